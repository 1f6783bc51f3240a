// What an agent may be allowed at most.

export const MOST_BOXES = 16;
export const DAYS = [1, 7, 30, 90] as const;

export interface Caps {
  maxBoxes: number;
  maxRunning: number;
  days: number;
}

export type CapsField = 'maxBoxes' | 'maxRunning' | 'days';

/** The caps, or the fields that are wrong. */
export type CapsAnswer = { caps: Caps; wrong: readonly [] } | { caps: null; wrong: readonly CapsField[] };

/** Reads a whole number from `least` to `most`, written in digits and nothing else. */
export function readWhole(text: string, least: number, most: number): number | null {
  const digits = text.trim();
  if (!/^[0-9]{1,6}$/.test(digits)) return null;
  const value = Number(digits);
  return value >= least && value <= most ? value : null;
}

/** Reads the caps as they stand in the form. */
export function readCaps(maxBoxes: string, maxRunning: string, days: string): CapsAnswer {
  const wrong: CapsField[] = [];
  const boxes = readWhole(maxBoxes, 1, MOST_BOXES);
  if (boxes === null) wrong.push('maxBoxes');
  // as long as the boxes are wrong, what runs is measured by what could be right at all
  const running = readWhole(maxRunning, 1, boxes ?? MOST_BOXES);
  if (running === null) wrong.push('maxRunning');
  const life = DAYS.find((choice) => String(choice) === days);
  if (life === undefined) wrong.push('days');
  if (boxes === null || running === null || life === undefined) return { caps: null, wrong };
  return { caps: { maxBoxes: boxes, maxRunning: running, days: life }, wrong: [] };
}
