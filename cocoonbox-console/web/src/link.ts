// One-time links, and what an address holds.

/** Returns the one-time link of an address' fragment, or null. */
export function linkOf(fragment: string): string | null {
  const link = new URLSearchParams(fragment.replace(/^#/, '')).get('link');
  return link !== null && /^cbl_[0-9a-zA-Z_-]{1,256}$/.test(link) ? link : null;
}

/** Returns the address to hand to a person for a one-time link. */
export function addressOf(origin: string, link: string): string {
  return `${origin}/cb/#${new URLSearchParams({ link }).toString()}`;
}

/** Returns the query as it stands in the address, escapes and all: what the server checks is what the client sent. */
export function rawQuery(search: string): string {
  return search.startsWith('?') ? search.slice(1) : search;
}
