// A person's first steps at a new server: the one-time link, a box, the command line, every page.
// The plan: {"link": ADDRESS, "password": TEXT, "pictures": FOLDER}; then the address that the command line asks to open,
// and anything once the command line was seen to work.

import { decide, go, heading, leave, open, picture, pictureOfConsent, plan, seen, told } from './pages.mjs';

// the one-time link of the first start
const page = await open(plan.link);
await heading(page, 'Choose a password');
seen.linkInAddress = page.url().includes('cbl_');
await picture(page, 'link');
await page.getByLabel('New password').fill(plan.password);
await page.getByLabel('The same again').fill(plan.password);
await page.getByRole('button', { name: 'Set password and sign in' }).click();
await heading(page, 'Boxes');

// the first box, live
await page.getByText('You have no box yet.').waitFor();
await picture(page, 'boxes-empty');
await page.getByRole('button', { name: 'Make the first box' }).click();
await page.getByText('running', { exact: true }).first().waitFor();
await picture(page, 'boxes');

// the command line asks
const asked = await open(await told());
await heading(asked, /Sign in the cocoonbox CLI/);
await pictureOfConsent(asked, 'consent-account');
await decide(asked, 'Allow');
await asked.getByText('You are signed in').waitFor();
seen.landed = new URL(asked.url()).pathname;
await asked.close();

await go(page, 'Agents');
await picture(page, 'agents-empty');
await go(page, 'Token', 'Personal token');
await picture(page, 'token');
await page.getByRole('button', { name: 'Replace it' }).click();
await picture(page, 'token-replace');
await page.getByRole('button', { name: 'Cancel' }).click();
await go(page, 'Users');
await picture(page, 'users');
await page.getByRole('button', { name: 'Edit: admin' }).click();
await picture(page, 'users-edit');
await page.getByRole('button', { name: 'Cancel' }).click();
await go(page, 'Account');
await picture(page, 'account');
await go(page, 'Devices');
await page.getByText('Command line', { exact: true }).waitFor();
await picture(page, 'devices');

// once the command line was seen to work, it is shut out
await told();
await page.locator('main').getByRole('button', { name: 'Sign out' }).click();
await picture(page, 'devices-sign-out');
await page.getByRole('dialog').getByRole('button', { name: 'Sign out' }).click();
await page.getByText(/ is signed out\.$/).waitFor();

await page.locator('header').getByRole('button', { name: 'Sign out' }).click();
await heading(page, 'Sign in');
await picture(page, 'sign-in');
await leave();
