// By keyboard alone: in the order in which one reads, with the place always in sight.

import { expect, test, vi } from 'vitest';

import { AGENT, LINK } from './server';
import { armed, open, QUERY, reader, server } from './stage';

/** Goes once round the page with the Tab key; returns the stops, and those that do not show that they are one. */
async function walk(): Promise<{ stops: string[]; unseen: string[] }> {
  const [stops, unseen]: [string[], string[]] = [[], []];
  for (let count = 0; count < 40; count += 1) {
    await reader.page.keyboard.press('Tab');
    const here = await reader.focused();
    if (here === stops[0]) break;
    // between the last and the first the browser has it
    if (here === '') continue;
    stops.push(here);
    const shown = await reader.page.evaluate(() => {
      const element = document.activeElement;
      if (element === null) return false;
      const { outlineStyle, outlineWidth } = getComputedStyle(element);
      const { top, bottom, width } = element.getBoundingClientRect();
      const inside = top >= 0 && bottom <= window.innerHeight && width > 1;
      return outlineStyle === 'solid' && parseFloat(outlineWidth) >= 2 && inside;
    });
    if (!shown) unseen.push(here);
  }
  return { stops, unseen };
}

test('nothing of the consent is chosen beforehand, and the keyboard passes it as it is read', async () => {
  server.check = AGENT;
  await open(`/cb/oauth/authorize?${QUERY}`);
  await armed();
  expect(await reader.focused()).toBe('Allow this agent its own boxes?');
  for (const key of ['Enter', 'Space']) await reader.page.keyboard.press(key);
  // nor does a field send what is in it
  await reader.tabTo('Boxes');
  await reader.page.keyboard.press('Enter');
  await reader.page.keyboard.press('Shift+Tab');
  await reader.page.locator('h1').focus();
  const { stops, unseen } = await walk();
  expect(stops).toEqual(['Boxes', 'Running at once', 'For', 'Deny', 'Allow', 'Deutsch', 'English']);
  expect(unseen).toEqual([]);
  expect(server.bodies('POST', 'oauth/approve')).toEqual([]);
  expect(server.bodies('POST', 'oauth/deny')).toEqual([]);
  // the same keys do count on a button
  await reader.tabTo('Deny');
  await armed();
  await reader.page.keyboard.press('Space');
  await reader.page.waitForURL(server.answer);
  expect(server.bodies('POST', 'oauth/deny')).toEqual([{ query: QUERY }]);
});

test('the place of the keyboard is in sight on every page', async () => {
  for (const path of ['', 'agents', 'devices', 'tokens', 'users', 'account']) {
    await open(`/cb/${path}`);
    await reader.page.locator('main h1').waitFor();
    await reader.page.getByText('Loading…').first().waitFor({ state: 'detached' });
    const { stops, unseen } = await walk();
    const [last, top, next] = stops.slice(stops.indexOf('English'));
    expect([last, top, next], path).toEqual(['English', 'Skip to the content', 'Sign out']);
    expect(stops.length, path).toBeGreaterThan(9);
    expect(unseen, path).toEqual([]);
  }
  server.signedIn = false;
  for (const [path, first] of [
    ['/cb/', 'Name'],
    [`/cb/#link=${LINK}`, 'New password'],
  ] as const) {
    await reader.page.goto('about:blank');
    await open(path);
    await reader.page.locator('main h1').waitFor();
    const { stops, unseen } = await walk();
    expect([stops[0], unseen], path).toEqual([first, []]);
  }
});

test('every dialog keeps the keyboard and gives it back', async () => {
  const dialogs = [
    ['', 'Delete: main'],
    ['agents', 'Revoke: Claude'],
    ['devices', 'Sign out: workbench'],
    ['tokens', 'Replace it'],
    ['tokens', 'Revoke'],
    ['users', 'Edit: grace'],
    ['users', 'Delete: grace'],
    ['account', 'Sign out everywhere'],
  ] as const;
  for (const [path, opener] of dialogs) {
    await open(`/cb/${path}`);
    await reader.press(opener);
    await reader.page.locator('dialog').waitFor();
    const within = () => reader.page.evaluate(() => document.activeElement?.closest('dialog') !== null);
    expect(await within(), opener).toBe(true);
    for (const key of ['Tab', 'Shift+Tab']) {
      for (let count = 0; count < 8; count += 1) {
        await reader.page.keyboard.press(key);
        expect(await within(), `${opener}: ${key} ${count}`).toBe(true);
      }
    }
    await reader.page.keyboard.press('Escape');
    await reader.page.locator('dialog').waitFor({ state: 'detached' });
    await vi.waitFor(async () => expect(await reader.focused()).toBe(opener));
  }
});
