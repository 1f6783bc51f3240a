const STEPS: readonly [Intl.RelativeTimeFormatUnit, number][] = [
  ['day', 86_400_000],
  ['hour', 3_600_000],
  ['minute', 60_000],
];

/** Returns a time as a distance within a week of `now`, else null. */
export function distance(at: number, now: number, locale: string): string | null {
  const difference = at - now;
  if (Math.abs(difference) >= 7 * 86_400_000) return null;
  const words = new Intl.RelativeTimeFormat(locale, { numeric: 'auto' });
  for (const [unit, length] of STEPS) {
    if (Math.abs(difference) >= length) return words.format(Math.trunc(difference / length), unit);
  }
  return words.format(0, 'second');
}

/** Returns a time in full, in the reader's time zone. */
export function inFull(at: number, locale: string): string {
  return new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'short' }).format(at);
}
