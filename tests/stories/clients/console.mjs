// A person at a real browser, on the pages of a real server. Reads one JSON plan from standard input:
// {"link": ADDRESS, "password": TEXT, "pictures": FOLDER, "signIn": FILE, "worked": FILE}; the story writes the
// address that the command line prints into signIn, and this answers it; once worked is there, it shuts the device out. Prints one JSON line of what was seen.

import { createRequire } from 'node:module';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';

const { chromium } = createRequire(new URL('../../../cocoonbox-console/web/package.json', import.meta.url))(
  'playwright-core',
);
const plan = JSON.parse(readFileSync(0, 'utf8'));
mkdirSync(plan.pictures, { recursive: true });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});
const context = await browser.newContext({ locale: 'en-US' });
context.setDefaultTimeout(30_000);
const page = await context.newPage();
const faults = [];
page.on('pageerror', (error) => faults.push(String(error)));
page.on('console', (message) => {
  // what the server refuses is written there by the browser itself
  if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) faults.push(message.text());
});
const seen = {};
const heading = (text) => page.getByRole('heading', { level: 1, name: text }).waitFor();
async function picture(name) {
  for (const width of [1280, 360]) {
    await page.setViewportSize({ width, height: 800 });
    await page.screenshot({ path: `${plan.pictures}/${name}-${width}.png`, fullPage: true });
  }
  await page.setViewportSize({ width: 1280, height: 800 });
}

// the one-time link of the first start
await page.goto(plan.link);
await heading('Choose a password');
seen.linkInAddress = page.url().includes('cbl_');
await picture('link');
await page.getByLabel('New password').fill(plan.password);
await page.getByLabel('The same again').fill(plan.password);
await page.getByRole('button', { name: 'Set password and sign in' }).click();
await heading('Boxes');

// the first box, live
await page.getByRole('button', { name: 'Make the first box' }).click();
await page.getByText('running', { exact: true }).first().waitFor();
await picture('boxes');

// the command line asks
while (!existsSync(plan.signIn)) await pause(50);
await pause(100);
const answered = await context.newPage();
await answered.goto(readFileSync(plan.signIn, 'utf8').trim());
await answered.getByRole('heading', { level: 1, name: /Sign in the cocoonbox CLI/ }).waitFor();
seen.consent = await answered.getByRole('heading', { level: 1 }).innerText();
await answered.screenshot({ path: `${plan.pictures}/consent-1280.png`, fullPage: true });
await answered.locator('button[aria-disabled="false"]', { hasText: 'Allow' }).click();
await answered.getByText('You are signed in').waitFor();
seen.landed = new URL(answered.url()).pathname;
await answered.close();

for (const [link, title] of [['Devices', 'Devices'], ['Agents', 'Agents'], ['Token', /token/i], ['Users', 'Users'], ['Account', 'Account']]) {
  await page.getByRole('link', { name: link, exact: true }).click();
  await heading(title);
  await picture(String(link).toLowerCase());
}
await page.getByRole('link', { name: 'Devices', exact: true }).click();
await heading('Devices');
await page.getByText('Command line', { exact: true }).waitFor();
// once the command line was seen to work, it is shut out
while (!existsSync(plan.worked)) await pause(50);
await page.locator('main').getByRole('button', { name: 'Sign out' }).click();
await page.getByRole('dialog').getByRole('button', { name: 'Sign out' }).click();
await page.getByText(/ is signed out\.$/).waitFor();
seen.faults = faults;
await browser.close();
console.log(JSON.stringify(seen));
