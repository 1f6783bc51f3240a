// The list of boxes is live, and says so when it is not.

import { expect, test, vi } from 'vitest';

import { open, reader, server } from './stage';

const eventually = (check: () => void) => vi.waitFor(check, 5_000);

test('boxes are followed live, and the stream heals', async () => {
  await open('/cb/');
  await reader.sees('Live');
  await reader.press('Wake: experiments');
  await reader.sees('experiments is waking.');
  // the same button by now, and it keeps the keyboard
  await vi.waitFor(async () => expect(await reader.focused()).toBe('Hibernate: experiments'));
  server.setState('cb-sleepsleep', 'running');
  await reader.sees('experiments: running');

  server.cut();
  await reader.sees('Connecting again…');
  server.boxes = server.boxes.map((box) => ({ ...box, state: 'hibernated' }));
  await reader.sees('Live');
  await eventually(() => expect(server.streams).toBe(1));
  expect(await reader.page.locator('.badge.hibernated').count()).toBe(3);

  await reader.press('Delete: main');
  await reader.fill('Type main to confirm', 'mai');
  await reader.page.keyboard.press('Enter');
  expect(server.bodies('DELETE', 'boxes/cb-mainmainma')).toEqual([]);
  await reader.page.keyboard.type('n');
  await reader.page.keyboard.press('Enter');
  await reader.sees('main is being deleted.');
  await reader.page.locator('.rows > li', { hasText: 'main' }).waitFor({ state: 'detached' });
  await vi.waitFor(async () => expect(await reader.focused()).toBe('Boxes'));
});

test('a page that nobody looks at holds no stream', async () => {
  await open('/cb/');
  await reader.sees('Live');
  const look = (state: string) =>
    reader.page.evaluate((shown) => {
      Object.defineProperty(document, 'visibilityState', { value: shown, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }, state);
  await eventually(() => expect(server.streams).toBe(1));
  await look('hidden');
  await eventually(() => expect(server.streams).toBe(0));
  await reader.page.waitForTimeout(1500);
  expect(server.streams).toBe(0);
  await look('visible');
  await eventually(() => expect(server.streams).toBe(1));
  await reader.sees('Live');
});

test('a stream that says nothing any more is given up, and one that says something is kept', async () => {
  await reader.page.clock.install();
  await open('/cb/');
  await reader.sees('Live');
  await eventually(() => expect(server.streams).toBe(1));
  const first = server.tries;
  // each half of what would be too long, with a sign of life in between
  await reader.page.clock.fastForward(30_000);
  server.setState('cb-sleepsleep', 'running');
  await reader.page.locator('.badge.hibernated').waitFor({ state: 'detached' });
  await reader.page.clock.fastForward(30_000);
  await reader.sees('Live');
  expect(server.tries).toBe(first);

  server.down = true;
  await reader.page.clock.fastForward(46_000);
  await reader.sees('Connecting again…');
  await eventually(() => expect(server.streams).toBe(0));
  // each try is refused, and the next waits longer
  await eventually(() => expect(server.tries).toBe(first + 1));
  await reader.page.clock.fastForward(3_000);
  await eventually(() => expect(server.tries).toBe(first + 2));
  await reader.sees('Connecting again…');
  // what is known stays in sight, and what can be done can be done
  expect(await reader.page.locator('.rows > li').count()).toBe(3);

  server.boxes = server.boxes.map((box) => ({ ...box, state: 'hibernated' }));
  server.down = false;
  // the last refusal may be on its way yet, and nothing waits for the next try before it is there
  await vi.waitFor(async () => {
    await reader.page.clock.fastForward(30_000);
    expect(await reader.page.getByText('Live', { exact: true }).count()).toBe(1);
  }, 5_000);
  expect(await reader.page.locator('.badge.hibernated').count()).toBe(3);
  expect(await reader.page.getByText('Connecting again…').count()).toBe(0);
});
