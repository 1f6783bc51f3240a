export const PASSWORD_LEAST_BYTES = 8;
export const PASSWORD_MOST_BYTES = 1024;

/** Returns whether the server would take the password: its length counts in bytes. */
export function isLongEnough(password: string): boolean {
  const bytes = new TextEncoder().encode(password).length;
  return bytes >= PASSWORD_LEAST_BYTES && bytes <= PASSWORD_MOST_BYTES;
}
