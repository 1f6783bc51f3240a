import { useCallback, useContext, useEffect, useRef, useState } from 'react';

import { Refusal } from './api';
import { SessionContext } from './session';
import type { Key } from './text/en';
import { useSpeech } from './text/speech';
import { distance } from './time';

/** Returns anything thrown as a refusal. */
function refusalOf(thrown: unknown): Refusal {
  return thrown instanceof Refusal ? thrown : new Refusal(0, 'unexpected', String(thrown));
}

const TOLD = {
  offline: 'problem.offline',
  unavailable: 'problem.unavailable',
  wrong_password: 'problem.wrong_password',
  link_refused: 'problem.link_refused',
  weak_password: 'problem.weak_password',
  signed_out: 'problem.signed_out',
  not_admin: 'problem.not_admin',
  not_found: 'problem.not_found',
  name_taken: 'problem.name_taken',
  last_admin: 'problem.last_admin',
  cross_site: 'problem.cross_site',
} as const satisfies Record<string, Key>;

/** Returns a function that puts a refusal into words; the server's own stand where we have none. */
export function useProblem(): (refusal: Refusal) => string {
  const { locale, t } = useSpeech();
  return useCallback(
    (refusal) => {
      if (refusal.code === 'too_many') {
        const wait = refusal.retryAfterSeconds;
        // rounded up: who tries at that minute is let in
        const at = wait === null ? null : distance(Math.ceil(wait / 60) * 60_000, 0, locale);
        return at === null ? t('problem.too_many_later') : t('problem.too_many', { when: at });
      }
      const key = Object.hasOwn(TOLD, refusal.code) ? TOLD[refusal.code as keyof typeof TOLD] : null;
      return key === null ? t('problem.other', { message: refusal.message }) : t(key);
    },
    [locale, t],
  );
}

/** Returns a function that ends the session when a refusal says that it is over, and returns whether it did. */
function useEnded(): (refusal: Refusal) => boolean {
  const session = useContext(SessionContext);
  const { t } = useSpeech();
  return (refusal) => {
    if (session === null || refusal.code !== 'signed_out') return false;
    session.end(t('problem.signed_out'));
    return true;
  };
}

/** One thing done at the user's word: never twice at once, and with what went wrong. */
export function useWork() {
  const [busy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const running = useRef(false);
  const ended = useEnded();

  const run = async (work: () => Promise<void>): Promise<void> => {
    if (running.current) return;
    running.current = true;
    setBusy(true);
    setRefusal(null);
    try {
      await work();
    } catch (thrown) {
      const told = refusalOf(thrown);
      if (!ended(told)) setRefusal(told);
    } finally {
      running.current = false;
      setBusy(false);
    }
  };
  return { busy, refusal, run };
}

/** Takes it as done when what was to go is gone already. */
export async function gone(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (thrown) {
    if (!(thrown instanceof Refusal && thrown.code === 'not_found')) throw thrown;
  }
}

/** What a page shows: read when it opens, and again on demand. */
export function useLoaded<T>(load: () => Promise<T>) {
  const [value, setValue] = useState<T | null>(null);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const [round, setRound] = useState(0);
  const ended = useRef(useEnded());
  const read = useRef(load);

  useEffect(() => {
    let wanted = true;
    read.current().then(
      (loaded) => {
        if (!wanted) return;
        setValue(loaded);
        setRefusal(null);
      },
      (thrown: unknown) => {
        const told = refusalOf(thrown);
        if (wanted && !ended.current(told)) setRefusal(told);
      },
    );
    return () => {
      wanted = false;
    };
  }, [round]);

  return {
    value,
    refusal,
    change: setValue,
    reload: useCallback(() => setRound((before) => before + 1), []),
  };
}
