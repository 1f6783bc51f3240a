import { expect, test } from 'vitest';

import { de } from '../../src/text/de';
import { en, type Key } from '../../src/text/en';
import { chooseLanguage, localeFor, pieces, say } from '../../src/text/language';

const keys = Object.keys(en) as Key[];
const gaps = (text: string) =>
  pieces(text)
    .filter((_, place) => place % 2 === 1)
    .sort();

test('both languages have the same keys', () => {
  expect(Object.keys(de).sort()).toEqual([...keys].sort());
});

test('no text is empty or padded', () => {
  for (const table of [en, de]) {
    for (const key of keys) {
      expect(table[key], key).not.toBe('');
      expect(table[key].trim(), key).toBe(table[key]);
    }
  }
});

test('a text has the same gaps in both languages', () => {
  for (const key of keys) expect(gaps(de[key]), key).toEqual(gaps(en[key]));
});

test('whole sentences differ between the languages', () => {
  for (const key of keys.filter((name) => en[name].split(' ').length > 4))
    expect(de[key], key).not.toBe(en[key]);
});

test('gaps are filled, and what fills them is not looked at again', () => {
  expect(say('en', 'users.made', { name: '{name}' })).toBe('{name} is added.');
  expect(say('de', 'agents.caps.value', { boxes: 2, running: 1 })).toBe('Boxen: 2, zugleich laufend: 1');
});

test('the language is the chosen one, else the first that we speak, else English', () => {
  const cases: [string | null, string[], string][] = [
    ['de', ['en-GB'], 'de'],
    ['en', ['de-DE'], 'en'],
    [null, ['de-AT', 'en'], 'de'],
    [null, ['fr', 'DE', 'en'], 'de'],
    [null, ['fr-FR'], 'en'],
    [null, [], 'en'],
    ['xx', ['de'], 'de'],
    [null, ['den'], 'en'],
  ];
  for (const [stored, preferred, expected] of cases) expect(chooseLanguage(stored, preferred)).toBe(expected);
});

test('times are written as in the reader’s region', () => {
  expect(localeFor('en', ['de-DE', 'en-GB', 'en-US'])).toBe('en-GB');
  expect(localeFor('de', ['fr', 'en'])).toBe('de');
});
