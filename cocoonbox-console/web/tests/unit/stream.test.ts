import { expect, test } from 'vitest';

import { EventReader, pause } from '../../src/stream';

const STREAM =
  ': hello\n\nevent: boxes\ndata: {"a":\ndata: 1}\n\r\ndata:x\r\rretry: 5\n\nevent: empty\n\ndata: unfinished';
const EVENTS = [
  { name: 'boxes', data: '{"a":\n1}' },
  { name: 'message', data: 'x' },
];

test('events are the same however the stream is cut', () => {
  for (let size = 1; size <= STREAM.length; size += 1) {
    const reader = new EventReader();
    const events = [];
    for (let at = 0; at < STREAM.length; at += size) events.push(...reader.push(STREAM.slice(at, at + size)));
    expect(events, `pieces of ${size}`).toEqual(EVENTS);
  }
});

test('a line that does not end is given up', () => {
  const reader = new EventReader();
  const piece = 'x'.repeat(1024 * 1024);
  expect(() => {
    for (let count = 0; count < 5; count += 1) reader.push(piece);
  }).toThrow(RangeError);
});

test('pauses double up to half a minute and are spread', () => {
  expect([0, 1, 2, 5, 50].map((attempt) => pause(attempt, 0.5))).toEqual([1000, 2000, 4000, 30_000, 30_000]);
  expect(pause(0, 0)).toBe(750);
  expect(pause(0, 1)).toBe(1250);
});
