import { expect, test } from 'vitest';

import { readRefusal } from '../../src/api';
import { isPassing, readBoxes, verbOf } from '../../src/boxlist';
import { readCaps, readWhole } from '../../src/caps';
import { safeRedirect } from '../../src/leave';
import { addressOf, linkOf, rawQuery } from '../../src/link';
import { isLongEnough } from '../../src/password';
import { distance } from '../../src/time';
import { mixesAlphabets, plainHost, readable } from '../../src/untrusted';

test('caps are whole numbers within their bounds, and no more run than there are', () => {
  expect(readCaps('2', '1', '30')).toEqual({ caps: { maxBoxes: 2, maxRunning: 1, days: 30 }, wrong: [] });
  expect(readCaps(' 16 ', '16', '90')).toEqual({
    caps: { maxBoxes: 16, maxRunning: 16, days: 90 },
    wrong: [],
  });
  const wrong: [string, string, string, string[]][] = [
    ['0', '1', '30', ['maxBoxes']],
    ['17', '1', '30', ['maxBoxes']],
    ['17', '17', '30', ['maxBoxes', 'maxRunning']],
    ['2', '3', '30', ['maxRunning']],
    ['2', '0', '30', ['maxRunning']],
    ['2', '1', '31', ['days']],
    ['2', '1', '', ['days']],
    ['', '', '', ['maxBoxes', 'maxRunning', 'days']],
  ];
  for (const [boxes, running, days, fields] of wrong) {
    expect(readCaps(boxes, running, days)).toEqual({ caps: null, wrong: fields });
  }
});

test('a whole number is digits alone', () => {
  for (const text of ['1.5', '1e1', '-1', '+1', '0x2', '١', '1 0', 'NaN', '', '9999999']) {
    expect(readWhole(text, 0, 10_000_000), text).toBeNull();
  }
  expect(readWhole('007', 0, 10)).toBe(7);
});

test('a redirect leads to another page and runs nothing in this one', () => {
  const allowed = [
    'http://127.0.0.1:5000/callback?code=a&state=b',
    'https://agent.example/callback',
    'cursor://anysphere.cursor/oauth?code=a',
  ];
  for (const address of allowed) expect(safeRedirect(address)).toBe(address);
  const refused = [
    'javascript:alert(1)',
    'JavaScript:alert(1)',
    '  javascript:alert(1)',
    'java\nscript:alert(1)',
    'data:text/html,<script>alert(1)</script>',
    'vbscript:x',
    'blob:https://a.example/1',
    'file:///etc/passwd',
    'about:blank',
    'view-source:https://a.example/',
    '/cb/agents',
    '//a.example/',
    '',
  ];
  for (const address of refused) expect(safeRedirect(address), address).toBeNull();
});

test('the query goes to the server as it stands in the address', () => {
  expect(rawQuery('?a=%20b+c&d=%E4&&e')).toBe('a=%20b+c&d=%E4&&e');
  expect(rawQuery('')).toBe('');
});

test('a one-time link is read out of the fragment alone, and an address for one reads back', () => {
  const link = `cbl_${'0a'.repeat(32)}`;
  expect(linkOf(`#link=${link}`)).toBe(link);
  expect(linkOf(new URL(addressOf('https://boxes.example', link)).hash)).toBe(link);
  for (const other of ['', '#', '#link=', '#link=cb_00', `#other=${link}`, '#link=cbl_<b>', `#${link}`]) {
    expect(linkOf(other), other).toBeNull();
  }
});

test('the length of a password counts in bytes', () => {
  expect(isLongEnough('1234567')).toBe(false);
  expect(isLongEnough('12345678')).toBe(true);
  expect(isLongEnough('äöüß')).toBe(true);
  expect(isLongEnough('a'.repeat(1024))).toBe(true);
  expect(isLongEnough('ä'.repeat(513))).toBe(false);
});

test('what cannot be seen in a name is made visible', () => {
  expect(readable('Claude')).toBe('Claude');
  expect(readable('  two\n words ')).toBe('two\uFFFD words');
  expect(readable('evil\u202Egpj.exe')).toBe('evil\uFFFDgpj.exe');
  expect(readable('Cla\u200Bude')).toBe('Cla\uFFFDude');
  expect(readable('\u2066x\u2069')).toBe('\uFFFDx\uFFFD');
  expect(Array.from(readable('😀'.repeat(200)))).toHaveLength(101);
});

test('letters that look alike are told from a name in one alphabet', () => {
  expect(mixesAlphabets('Cl\u0430ude')).toBe(true);
  expect(mixesAlphabets('Клод')).toBe(false);
  expect(mixesAlphabets('Claude 3 – 東京')).toBe(false);
});

test('a host is shown in letters that cannot be mistaken', () => {
  expect(plainHost('claude.ai')).toBe('claude.ai');
  expect(plainHost('127.0.0.1:5000')).toBe('127.0.0.1:5000');
  expect(plainHost('cl\u0430ude.ai')).toMatch(/^xn--/);
  expect(plainHost('claude.ai@evil.example')).toBe('claude.ai@evil.example');
  expect(plainHost('claude.ai/\u202Ex')).toBe('claude.ai/\uFFFDx');
});

test('a refusal is read whatever answered', () => {
  const told = readRefusal(
    429,
    '{"error":{"code":"too_many","message":"slow down","retry_after_seconds":90}}',
  );
  expect([told.status, told.code, told.message, told.retryAfterSeconds]).toEqual([
    429,
    'too_many',
    'slow down',
    90,
  ]);
  for (const [status, text, code] of [
    [502, '<html>bad gateway</html>', 'unavailable'],
    [404, '', 'unexpected'],
    [400, '{"error":null}', 'unexpected'],
    [400, '{"error":{"code":1,"message":"m"}}', 'unexpected'],
    [400, 'null', 'unexpected'],
  ] as const) {
    expect(readRefusal(status, text).code, text).toBe(code);
  }
});

test('a list of boxes is read out of an event, and nothing else is', () => {
  expect(readBoxes('{"boxes":[]}')).toEqual([]);
  for (const data of ['', '{}', '[]', 'null', '{"boxes":1}', '{"boxes":'])
    expect(readBoxes(data), data).toBeNull();
});

test('every state has its verb, and one that passes lets it rest', () => {
  for (const state of ['absent', 'starting', 'running', 'hibernating', 'hibernated', 'failed'] as const) {
    expect(verbOf(state).now, state).toBe(!isPassing(state));
  }
  expect(verbOf('running').verb).toBe('hibernate');
  expect(verbOf('hibernated').verb).toBe('wake');
});

test('times of the last week are distances', () => {
  const now = 1_700_000_000_000;
  expect(distance(now - 5_000, now, 'en')).toBe('now');
  expect(distance(now - 180_000, now, 'en')).toBe('3 minutes ago');
  expect(distance(now + 2 * 86_400_000, now, 'de')).toBe('übermorgen');
  expect(distance(now - 8 * 86_400_000, now, 'en')).toBeNull();
});
