// How the pages look: nothing runs over the edge of a small screen, all text stands out, and pictures for a person to
// judge.

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { openBrowser, Reader } from './reader';
import { AGENT, DEVICE, FakeServer, LINK } from './server';

const PICTURES = join(import.meta.dirname, '../../../../target/console-pages');

interface View {
  name: string;
  path: string;
  set?(server: FakeServer): void;
  /** The button that is pressed first. */
  press?: string;
}

const VIEWS: View[] = [
  { name: 'sign-in', path: '/cb/', set: (server) => (server.signedIn = false) },
  { name: 'link', path: `/cb/#link=${LINK}`, set: (server) => (server.signedIn = false) },
  {
    name: 'consent-account',
    path: '/cb/oauth/authorize?a=b',
    set: (server) =>
      (server.check = {
        ...DEVICE,
        device_name: 'a-rather-long-host-name-of-a-build-machine.example.org',
      }),
  },
  { name: 'consent-agent', path: '/cb/oauth/authorize?a=b', set: (server) => (server.check = AGENT) },
  {
    name: 'consent-unverified',
    path: '/cb/oauth/authorize?a=b',
    set: (server) =>
      (server.check = {
        ...AGENT,
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

/** What on the page stands out from its ground by less than 4.5 to 1 (WCAG 2.2, 1.4.3). */
function faint(): string[] {
  const numbers = (color: string) => (color.match(/[\d.]+/g) ?? []).map(Number);
  const light = (color: string) => {
    const [red, green, blue] = numbers(color).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * (red ?? 0) + 0.7152 * (green ?? 0) + 0.0722 * (blue ?? 0);
  };
  const ground = (element: Element | null): string => {
    if (element === null) return 'rgb(255, 255, 255)';
    const color = getComputedStyle(element).backgroundColor;
    return numbers(color)[3] === 0 ? ground(element.parentElement) : color;
  };
  const own = (element: Element) =>
    Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.textContent?.trim());
  return Array.from(document.querySelectorAll('body *'))
    .filter((element) => own(element) && element.closest('[aria-disabled="true"], [hidden]') === null)
    .filter((element) => {
      const [one = 0, other = 0] = [light(getComputedStyle(element).color), light(ground(element))].sort();
      return (other + 0.05) / (one + 0.05) < 4.5;
    })
    .map((element) => element.outerHTML.slice(0, 100));
}

for (const [scheme, width, locale] of [
  ['light', 1280, 'en-GB'],
  ['dark', 1280, 'de-DE'],
  ['light', 360, 'en-GB'],
  ['dark', 360, 'de-DE'],
] as const) {
  test(`pictures of every page, ${scheme}, ${width} wide`, async () => {
    const reader = await Reader.sitDown(browser, {
      colorScheme: scheme,
      locale,
      viewport: { width, height: width > 800 ? 800 : 740 },
    });
    for (const view of VIEWS) {
      await show(reader, view);
      expect(await reader.page.evaluate(faint), view.name).toEqual([]);
      await reader.page.screenshot({
        path: join(PICTURES, `${view.name}-${width}-${scheme}.png`),
        fullPage: view.name !== 'users-edit' && view.name !== 'boxes-delete',
      });
    }
    expect(reader.faults).toEqual([]);
    await reader.leave();
  });
}
