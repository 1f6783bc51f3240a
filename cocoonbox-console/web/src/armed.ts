import { useEffect, useState } from 'react';

/** How long a question has been in front before an answer counts. */
export const ARMING_MS = 500;

const inFront = () => document.visibilityState === 'visible' && document.hasFocus();

/**
 * Returns a check whether a click may count: the page has been visible and in focus for half a second without a break.
 * A click meant for something that lay over the page, or the second half of a double click, does not.
 *
 * `armed` is for showing; `mayAct` asks the page once more at the click itself.
 */
export function useArmed(): { armed: boolean; mayAct: () => boolean } {
  const [armed, setArmed] = useState(false);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = () => {
      clearTimeout(timer);
      setArmed(false);
      if (inFront()) timer = setTimeout(() => setArmed(inFront()), ARMING_MS);
    };
    look();
    window.addEventListener('focus', look);
    window.addEventListener('blur', look);
    // whoever opened this page can move its buttons, too
    window.addEventListener('resize', look);
    document.addEventListener('visibilitychange', look);
    return () => {
      clearTimeout(timer);
      window.removeEventListener('focus', look);
      window.removeEventListener('blur', look);
      window.removeEventListener('resize', look);
      document.removeEventListener('visibilitychange', look);
    };
  }, []);
  return { armed, mayAct: () => armed && inFront() };
}
