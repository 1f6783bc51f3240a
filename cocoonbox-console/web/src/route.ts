import { useSyncExternalStore } from 'react';

import type { Key } from './text/en';

export interface Page {
  path: string;
  title: Key;
  /** In the row of pages, and for whom. */
  shown: 'all' | 'admins' | 'none';
}

export const CONSENT = '/cb/oauth/authorize';
export const HOME = '/cb/';

export const PAGES: readonly Page[] = [
  { path: HOME, title: 'nav.boxes', shown: 'all' },
  { path: '/cb/agents', title: 'nav.agents', shown: 'all' },
  { path: '/cb/devices', title: 'nav.devices', shown: 'all' },
  { path: '/cb/tokens', title: 'nav.tokens', shown: 'all' },
  { path: '/cb/account', title: 'nav.account', shown: 'all' },
  { path: '/cb/users', title: 'nav.users', shown: 'admins' },
];

const listeners = new Set<() => void>();
const tell = () => listeners.forEach((listener) => listener());

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener('popstate', listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener('popstate', listener);
  };
}

/** The path of the page that is shown. */
export const usePath = () => useSyncExternalStore(subscribe, () => location.pathname);

/** Goes to another page of the console without loading it anew. */
export function go(path: string): void {
  if (path !== location.pathname) history.pushState(null, '', path);
  tell();
}
