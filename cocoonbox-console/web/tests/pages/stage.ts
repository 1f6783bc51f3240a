// A server and a person at a browser, anew for each test of a file that uses them.

import type { Browser, BrowserContextOptions } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect } from 'vitest';

import { openBrowser, Reader } from './reader';
import { FakeServer } from './server';

/** What a client asks in the address of the consent page, with escapes that are not to be touched. */
export const QUERY = 'response_type=code&client_id=https%3A%2F%2Fclaude.ai%2Fclient&state=a+b%20c';

export let browser: Browser;
export let server: FakeServer;
export let reader: Reader;

beforeAll(async () => {
  browser = await openBrowser();
  server = await FakeServer.start();
});
afterAll(async () => {
  await browser.close();
  server.stop();
});
beforeEach(async () => {
  server.reset();
  reader = await Reader.sitDown(browser);
});
afterEach(async () => {
  const { faults } = reader;
  await reader.leave();
  expect(faults).toEqual([]);
});

/** Has somebody else sit down. */
export async function sitDownAnew(options: BrowserContextOptions): Promise<void> {
  await reader.leave();
  reader = await Reader.sitDown(browser, options);
}

export const open = (path: string) => reader.page.goto(server.origin + path);

/** Waits until the consent page takes an answer. */
export const armed = () => reader.page.locator('button[aria-disabled="false"]', { hasText: 'Deny' }).waitFor();
