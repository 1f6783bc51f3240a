// The way out to another page.

/** Schemes whose addresses run in this page, read this machine's files, or hold their own content. */
const REFUSED = new Set([
  'javascript:',
  'data:',
  'vbscript:',
  'blob:',
  'file:',
  'filesystem:',
  'about:',
  'view-source:',
]);

/** Returns the address that the server answered, if a browser may be sent there, else null. */
export function safeRedirect(address: string): string | null {
  let parsed: URL;
  try {
    // without a base: a relative address is refused
    parsed = new URL(address);
  } catch {
    return null;
  }
  return REFUSED.has(parsed.protocol) ? null : parsed.href;
}

/** Goes where the server said, leaving no way back to the request; returns whether that was allowed. */
export function leaveFor(address: string): boolean {
  const target = safeRedirect(address);
  if (target === null) return false;
  location.replace(target);
  return true;
}
