// How the pages look: nothing runs over the edge of a small screen, and pictures for a person to judge.

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';

import type { Check } from '../../src/model';
import { openBrowser, Reader } from './reader';
import { FakeServer, LINK } from './server';

const PICTURES = join(import.meta.dirname, '../../../../target/console-pages');

interface View {
  name: string;
  path: string;
  set?(server: FakeServer): void;
  /** The button that is pressed first. */
  press?: string;
}

const agent: Check = {
  account: false,
  client_name: 'Claude',
  client_host: 'claude.ai',
  redirect_host: '127.0.0.1:5000',
  loopback: true,
  max_boxes: 2,
  max_running: 1,
  days: 30,
  has_grant: false,
};

const VIEWS: View[] = [
  { name: 'sign-in', path: '/cb/', set: (server) => (server.signedIn = false) },
  { name: 'link', path: `/cb/#link=${LINK}`, set: (server) => (server.signedIn = false) },
  {
    name: 'consent-account',
    path: '/cb/oauth/authorize?a=b',
    set: (server) =>
      (server.check = {
        account: true,
        client_name: 'cocoonbox CLI',
        device_name: 'a-rather-long-host-name-of-a-build-machine.example.org',
        redirect_host: '127.0.0.1:5000',
        loopback: true,
      }),
  },
  { name: 'consent-agent', path: '/cb/oauth/authorize?a=b', set: (server) => (server.check = agent) },
  {
    name: 'consent-unverified',
    path: '/cb/oauth/authorize?a=b',
    set: (server) =>
      (server.check = {
        ...agent,
        client_name: `Cl\u0430ude${'e'.repeat(80)}`,
        client_host: '',
        has_grant: true,
        redirect_host: 'a-host-with-a-name-that-is-longer-than-a-small-screen-is-wide.example.org',
      }),
  },
  {
    name: 'consent-refused',
    path: '/cb/oauth/authorize?a=b',
    set: (server) => (server.check = server.refuse(400, 'untrusted')),
  },
  { name: 'boxes', path: '/cb/' },
  { name: 'boxes-empty', path: '/cb/', set: (server) => ((server.boxes = []), (server.agents = [])) },
  { name: 'boxes-delete', path: '/cb/', press: '.rows .actions button >> nth=1' },
  { name: 'agents', path: '/cb/agents' },
  { name: 'devices', path: '/cb/devices' },
  { name: 'tokens', path: '/cb/tokens' },
  {
    name: 'tokens-made',
    path: '/cb/tokens',
    set: (server) => (server.token = { exists: false, created_at: null, used_at: null }),
    press: 'main button',
  },
  { name: 'users', path: '/cb/users' },
  { name: 'users-edit', path: '/cb/users', press: '.rows .actions button >> nth=2' },
  { name: 'account', path: '/cb/account' },
];

let browser: Browser;
let server: FakeServer;
beforeAll(async () => {
  browser = await openBrowser();
  server = await FakeServer.start();
  mkdirSync(PICTURES, { recursive: true });
});
afterAll(async () => {
  await browser.close();
  server.stop();
});

async function show(reader: Reader, view: View): Promise<void> {
  server.reset();
  view.set?.(server);
  await reader.page.goto('about:blank');
  await reader.page.goto(server.origin + view.path);
  await reader.page.locator('h1').waitFor();
  await reader.page.waitForFunction(() => !/Loading…|Lädt …/.test(document.body.innerText));
  if (view.press) await reader.page.locator(view.press).click();
  if (view.name.startsWith('consent-a'))
    await reader.page.locator('button.primary[aria-disabled="false"]').waitFor();
}

test.each(['en-GB', 'de-DE'])(
  'nothing runs over the edge of a screen of 320 pixels in %s',
  async (locale) => {
    const reader = await Reader.sitDown(browser, { locale, viewport: { width: 320, height: 640 } });
    for (const view of VIEWS) {
      await show(reader, view);
      const over = await reader.page.evaluate(() => {
        const width = document.documentElement.clientWidth;
        const elements = Array.from(document.querySelectorAll('body *'));
        const wide = elements.filter((element) => element.getBoundingClientRect().right > width + 0.5);
        const scrolling = [document.documentElement, ...document.querySelectorAll('dialog')];
        const scrolls = scrolling.some((element) => element.scrollWidth > element.clientWidth);
        return { scrolls, wide: wide.map((element) => element.outerHTML.slice(0, 100)) };
      });
      expect(over, view.name).toEqual({ scrolls: false, wide: [] });
    }
    expect(reader.faults).toEqual([]);
    await reader.leave();
  },
);

for (const [scheme, width, locale] of [
  ['light', 1280, 'en-GB'],
  ['dark', 1280, 'en-GB'],
  ['light', 360, 'de-DE'],
  ['dark', 360, 'en-GB'],
] as const) {
  test(`pictures of every page, ${scheme}, ${width} wide`, async () => {
    const reader = await Reader.sitDown(browser, {
      colorScheme: scheme,
      locale,
      viewport: { width, height: width > 800 ? 800 : 740 },
    });
    for (const view of VIEWS) {
      await show(reader, view);
      await reader.page.screenshot({
        path: join(PICTURES, `${view.name}-${width}-${scheme}.png`),
        fullPage: view.name !== 'users-edit' && view.name !== 'boxes-delete',
      });
    }
    expect(reader.faults).toEqual([]);
    await reader.leave();
  });
}
