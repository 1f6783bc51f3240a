import { useEffect, useRef, useState } from 'react';

import { api, BOX_EVENTS, Refusal } from './api';
import type { Box, BoxState } from './model';
import { useSession } from './session';
import { follow } from './stream';
import { useSpeech } from './text/speech';

/** Whether a box is between two states and will leave this one by itself. */
export function isPassing(state: BoxState): boolean {
  return state === 'starting' || state === 'hibernating';
}

export type Verb = 'start' | 'wake' | 'hibernate';

/**
 * Returns what can be done with a box in a state. While it passes from one to the next that is what comes after: its
 * button stands there already and rests, so that the keyboard keeps its place.
 */
export function verbOf(state: BoxState): { verb: Verb; now: boolean } {
  switch (state) {
    case 'absent':
    case 'failed':
      return { verb: 'start', now: true };
    case 'hibernated':
      return { verb: 'wake', now: true };
    case 'running':
      return { verb: 'hibernate', now: true };
    case 'starting':
      return { verb: 'hibernate', now: false };
    case 'hibernating':
      return { verb: 'wake', now: false };
  }
}

/** Reads the list out of an event; null: it is not one. */
export function readBoxes(data: string): Box[] | null {
  try {
    const { boxes } = JSON.parse(data) as { boxes?: unknown };
    return Array.isArray(boxes) ? (boxes as Box[]) : null;
  } catch {
    return null;
  }
}

/** The user's boxes, as they are at any moment. */
export function useBoxes(changed: (boxes: Box[]) => void) {
  const { end } = useSession();
  const { t } = useSpeech();
  const [boxes, setBoxes] = useState<Box[] | null>(null);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const [live, setLive] = useState<boolean | null>(null);
  const [round, setRound] = useState(0);
  const latest = useRef({ changed, end, t });
  latest.current = { changed, end, t };

  useEffect(() => {
    let wanted = true;
    let streamed = false;
    const show = (list: Box[]) => {
      setBoxes(list);
      setRefusal(null);
      latest.current.changed(list);
    };
    const signedOut = () => latest.current.end(latest.current.t('problem.signed_out'));
    // asked for as well: behind a proxy that holds streams back there is a list, too
    api.boxes().then(
      (answer) => {
        if (wanted && !streamed) show(answer.boxes);
      },
      (thrown: unknown) => {
        if (!wanted || streamed || !(thrown instanceof Refusal)) return;
        if (thrown.code === 'signed_out') signedOut();
        else setRefusal(thrown);
      },
    );
    const stop = follow(BOX_EVENTS, {
      event: ({ name, data }) => {
        const list = name === 'boxes' ? readBoxes(data) : null;
        if (list === null) return;
        streamed = true;
        show(list);
      },
      live: setLive,
      signedOut,
    });
    return () => {
      wanted = false;
      stop();
    };
  }, [round]);

  return { boxes, refusal, live, reload: () => setRound((before) => before + 1) };
}
