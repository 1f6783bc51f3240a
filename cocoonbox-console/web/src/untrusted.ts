// Words that a stranger chose: names of clients and devices.

const LONGEST = 100;

/** Invisible, steering and joining characters: what makes two names look alike, or one run backwards. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\u115F\u1160\u3164\uFFA0]/gu;

/** Returns the words with every character that cannot be seen made visible, one space between words, and an end. */
export function readable(text: string): string {
  const seen = text.normalize('NFC').replace(HIDDEN, '\uFFFD').replace(/\s+/gu, ' ').trim();
  const characters = Array.from(seen);
  return characters.length <= LONGEST ? seen : `${characters.slice(0, LONGEST).join('')}…`;
}

const ALPHABETS = [
  /\p{Script=Latin}/u,
  /\p{Script=Cyrillic}/u,
  /\p{Script=Greek}/u,
  /\p{Script=Armenian}/u,
  /\p{Script=Cherokee}/u,
];

/** Returns whether letters of several alphabets that look alike stand in one name. */
export function mixesAlphabets(text: string): boolean {
  return ALPHABETS.filter((alphabet) => alphabet.test(text)).length > 1;
}

/** Returns a host in the letters that cannot be mistaken: names in other scripts as `xn--…`. */
export function plainHost(host: string): string {
  if (/[/\\@?#\s]/u.test(host)) return readable(host);
  try {
    const { hostname, port } = new URL(`https://${host}/`);
    return port === '' ? hostname : `${hostname}:${port}`;
  } catch {
    return readable(host);
  }
}
