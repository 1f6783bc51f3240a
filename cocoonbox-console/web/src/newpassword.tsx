import { useState } from 'react';

import { Field } from './parts';
import { isLongEnough } from './password';
import type { Key } from './text/en';
import { useSpeech } from './text/speech';

/** A new password in two fields, checked when it is sent. */
export function useNewPassword() {
  const [first, setFirst] = useState('');
  const [second, setSecond] = useState('');
  const [wrong, setWrong] = useState<{ first?: Key; second?: Key }>({});
  return {
    first,
    second,
    wrong,
    setFirst,
    setSecond,
    /** Returns the password if it is good, else says in the form what is not. */
    check(): string | null {
      const found: { first?: Key; second?: Key } = {};
      if (!isLongEnough(first)) found.first = 'problem.weak_password';
      else if (first !== second) found.second = 'problem.mismatch';
      setWrong(found);
      return found.first || found.second ? null : first;
    },
    clear() {
      setFirst('');
      setSecond('');
      setWrong({});
    },
  };
}

interface NewPasswordProps {
  state: ReturnType<typeof useNewPassword>;
  label: string;
  repeat: string;
}

export function NewPassword({ state, label, repeat }: NewPasswordProps) {
  const { t } = useSpeech();
  const said = (key?: Key) => (key ? t(key) : null);
  return (
    <>
      <Field
        label={label}
        value={state.first}
        set={state.setFirst}
        type="password"
        autoComplete="new-password"
        hint={t('link.hint')}
        problem={said(state.wrong.first)}
      />
      <Field
        label={repeat}
        value={state.second}
        set={state.setSecond}
        type="password"
        autoComplete="new-password"
        problem={said(state.wrong.second)}
      />
    </>
  );
}
