import { de } from './de';
import { en, type Key, type Table } from './en';

export type Language = 'de' | 'en';
export const LANGUAGES: readonly { language: Language; name: string }[] = [
  { language: 'de', name: 'Deutsch' },
  { language: 'en', name: 'English' },
];
export const TABLES: Readonly<Record<Language, Table>> = { de, en };

/** Returns the reader's own region of a language, for times: British dates to a British reader. */
export function localeFor(language: Language, preferred: readonly string[]): string {
  return preferred.find((locale) => locale.toLowerCase().split('-')[0] === language) ?? language;
}

const STORED = 'cocoonbox.language';

/** Returns the language chosen before, else the first of the reader's languages that we speak, else English. */
export function chooseLanguage(stored: string | null, preferred: readonly string[]): Language {
  for (const candidate of [stored, ...preferred]) {
    const primary = candidate?.toLowerCase().split('-')[0];
    if (primary === 'de' || primary === 'en') return primary;
  }
  return 'en';
}

/** Reads the choice; a browser that keeps nothing has none. */
export function storedLanguage(): string | null {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
}

export function storeLanguage(language: Language): void {
  try {
    localStorage.setItem(STORED, language);
  } catch {
    // the choice then lasts as long as the page
  }
}

/** Cuts a text at what is to be filled in: plain parts at even places, names at odd ones. */
export function pieces(text: string): string[] {
  return text.split(/\{(\w+)\}/);
}

export type Values = Readonly<Record<string, string | number>>;

/** Returns the text for `key` with its gaps filled. */
export function say(language: Language, key: Key, values: Values = {}): string {
  return pieces(TABLES[language][key])
    .map((piece, place) => (place % 2 === 0 ? piece : String(values[piece] ?? '')))
    .join('');
}
