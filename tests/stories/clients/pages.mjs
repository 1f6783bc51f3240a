// A browser on the pages of a real server, and a person who is told on standard input what happens elsewhere.

import { createRequire } from 'node:module';
import { mkdirSync } from 'node:fs';
import { createInterface } from 'node:readline';

const { chromium } = createRequire(new URL('../../../cocoonbox-console/web/package.json', import.meta.url))(
  'playwright-core',
);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Waits until the story says something: one line of JSON. */
export async function told() {
  const { done, value } = await lines.next();
  if (done) throw new Error('the story ended');
  return JSON.parse(value);
}

export const plan = await told();
/** What the story is told at the end. */
export const seen = { faults: [], sideways: [] };

mkdirSync(plan.pictures, { recursive: true });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});
const context = await browser.newContext({ locale: 'en-US' });
context.setDefaultTimeout(30_000);

/** Opens another page, whose faults are kept. */
export async function open(address) {
  const page = await context.newPage();
  page.on('pageerror', (error) => seen.faults.push(String(error)));
  page.on('console', (message) => {
    // what the server refuses is written there by the browser itself
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource'))
      seen.faults.push(message.text());
  });
  await page.goto(address);
  return page;
}

export const heading = (page, text) => page.getByRole('heading', { level: 1, name: text }).waitFor();

/** Goes to a page by its link in the head. */
export async function go(page, link, title = link) {
  await page.getByRole('navigation').getByRole('link', { name: link }).click();
  await heading(page, title);
  await page.getByText('Loading…').waitFor({ state: 'detached' });
}

/** Takes a picture of all of the page, wide and narrow, and looks whether it runs over the edge. */
export async function picture(page, name, ready = () => {}) {
  for (const width of [360, 1280]) {
    await page.setViewportSize({ width, height: 800 });
    await ready();
    if (await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth))
      seen.sideways.push(`${name} at ${width}`);
    await page.screenshot({ path: `${plan.pictures}/${name}-${width}.png`, fullPage: true });
  }
}

/** A button of the consent page once it counts, which it does not in the moment after a window changed. */
const counts = (page, name) => page.locator('button[aria-disabled="false"]').getByText(name, { exact: true });

export const decide = (page, name) => counts(page, name).click();

/** Takes a picture of the consent page. */
export const pictureOfConsent = (page, name) => picture(page, name, () => counts(page, 'Deny').waitFor());

export async function signIn(page) {
  await page.getByLabel('Name').fill('admin');
  await page.getByLabel('Password').fill(plan.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

/** Ends the browser and says what was seen. */
export async function leave() {
  await browser.close();
  console.log(JSON.stringify(seen));
  process.exit(0);
}
