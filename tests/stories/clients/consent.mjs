// A person whom an outside agent asks: what the page says, what was allowed, and the end of it.
// The plan: {"ask": ADDRESS, "password": TEXT, "pictures": FOLDER}; then something once the agent has its boxes, something
// once it has a stream and a call under way, and the address of the next agent.

import { decide, go, heading, leave, open, picture, pictureOfConsent, plan, seen, signIn, told } from './pages.mjs';

const ANSWER = 'The agent has its answer.';
const words = (page) => page.locator('main').innerText();

// nobody is signed in yet
const asked = await open(plan.ask);
await heading(asked, 'Sign in');
await asked.getByText('Sign in to see the request and decide on it.').waitFor();
await picture(asked, 'consent-sign-in');
await signIn(asked);
await heading(asked, 'Allow this agent its own boxes?');
seen.consent = await words(asked);
await pictureOfConsent(asked, 'consent-agent');
seen.caps = [];
for (const label of ['Boxes', 'Running at once', 'For'])
  seen.caps.push(await asked.getByLabel(label, { exact: true }).inputValue());

// more than there may be is not sent
await asked.getByLabel('Boxes', { exact: true }).fill('17');
await pictureOfConsent(asked, 'consent-agent-wrong');
seen.allowRests = await asked.getByRole('button', { name: 'Allow' }).getAttribute('aria-disabled');
await asked.getByLabel('Boxes', { exact: true }).fill('3');
await asked.getByLabel('Running at once', { exact: true }).fill('2');
await asked.getByLabel('For', { exact: true }).selectOption('7');
await decide(asked, 'Allow');
await asked.getByText(ANSWER).waitFor();
await asked.close();

// what was allowed is found by whoever looks next, clicked or not
await told();
const page = await open(new URL('/cb/', plan.ask).href);
await page.getByText('New agents with access since your last look').waitFor();
await page.getByText('Live', { exact: true }).waitFor();
seen.boxes = await words(page);
await picture(page, 'boxes-new-agent');
await page.getByRole('link', { name: 'Look at them' }).click();
await heading(page, 'Agents');
await page.locator('.rows').waitFor();
seen.agents = await words(page);
await picture(page, 'agents');

// it is shut out in the middle of what it does
await told();
await page.getByRole('button', { name: "Revoke: A story's agent" }).click();
await picture(page, 'agents-revoke');
await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
await page.getByText("The access of A story's agent is revoked.").waitFor();
seen.agentsAfter = await words(page);
await go(page, 'Boxes');
await page.getByText('Live', { exact: true }).waitFor();
seen.boxesAfter = await words(page);
await picture(page, 'boxes-after');

// another one is denied
const second = await open(await told());
await heading(second, 'Allow this agent its own boxes?');
await decide(second, 'Deny');
await second.getByText(ANSWER).waitFor();
await second.close();

// and one that nobody knows is refused, with no way on
const broken = await open(`${new URL('/cb/oauth/authorize', plan.ask).href}?response_type=code&client_id=nobody`);
await heading(broken, 'This request is refused');
seen.broken = await words(broken);
seen.waysOn = await broken.locator('main a, main button').count();
await picture(broken, 'consent-refused');
await leave();
