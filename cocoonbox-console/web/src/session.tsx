import { createContext, useContext } from 'react';

import type { Me } from './model';

interface Session {
  me: Me;
  change(change: Partial<Me>): void;
  /** The session is over, by the user's will or not. */
  end(notice?: string): void;
}

export const SessionContext = createContext<Session | null>(null);

/** Who is signed in; only for what is shown to somebody who is. */
export function useSession(): Session {
  const session = useContext(SessionContext);
  if (session === null) throw new Error('nobody is signed in here');
  return session;
}

/** Says what came of something, in the line under the head and to a screen reader. */
export const NoticeContext = createContext<(notice: string) => void>(() => {});
export const useNotice = () => useContext(NoticeContext);
