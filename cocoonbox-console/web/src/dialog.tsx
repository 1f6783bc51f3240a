import { type KeyboardEvent, type ReactNode, useId, useLayoutEffect, useRef, useState } from 'react';

import { Button, Field, Form, useFocusKept } from './parts';
import { useSpeech } from './text/speech';
import { useWork } from './work';

interface DialogProps {
  title: ReactNode;
  /** Whether it may be left now. */
  busy: boolean;
  close(): void;
  children: ReactNode;
}

/** A question in front of the page. The browser keeps the rest inert and gives the focus back; Escape closes. */
export function Dialog({ title, busy, close, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useFocusKept();
  // a layout effect: it closes before the element goes, so that the focus finds its way back
  useLayoutEffect(() => {
    const shown = dialog.current;
    shown?.showModal();
    return () => shown?.close();
  }, []);

  const turn = (event: KeyboardEvent<HTMLDialogElement>) => {
    if (event.key !== 'Tab') return;
    const stops = event.currentTarget.querySelectorAll<HTMLElement>(
      'input:not([disabled]), select, button, a[href]',
    );
    const [first, last] = [stops[0], stops[stops.length - 1]];
    const here = document.activeElement;
    if (event.shiftKey ? here === first || here === event.currentTarget : here === last) {
      event.preventDefault();
      (event.shiftKey ? last : first)?.focus();
    }
  };

  return (
    <dialog
      ref={dialog}
      aria-labelledby={id}
      onKeyDown={turn}
      onCancel={(event) => {
        event.preventDefault();
        if (!busy) close();
      }}
      // a second Escape closes, whatever the first was answered; the event of an element that went says nothing
      onClose={() => {
        if (dialog.current?.open === false) close();
      }}
    >
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  );
}

/** The way out of a dialog's form. */
export function Cancel({ off, close }: { off: boolean; close(): void }) {
  const { t } = useSpeech();
  return (
    <Button off={off} onClick={close}>
      {t('cancel')}
    </Button>
  );
}

interface ConfirmProps {
  title: ReactNode;
  body: string;
  action: string;
  /** What has to be typed first. */
  typed?: { label: 'boxes.delete.type' | 'users.delete.type'; text: string };
  /** Does it; a refusal is shown and leaves the dialog open. */
  act(): Promise<void>;
  close(): void;
}

/** Asks once more before something that cannot be undone. */
export function Confirm({ title, body, action, typed, act, close }: ConfirmProps) {
  const { rich } = useSpeech();
  const { busy, refusal, run } = useWork();
  const [text, setText] = useState('');
  const off = busy || (typed !== undefined && text.trim() !== typed.text);
  const name = (
    <strong>
      <bdi>{typed?.text}</bdi>
    </strong>
  );
  return (
    <Dialog title={title} busy={busy} close={close}>
      <Form
        submit={() => void (off || run(act))}
        action={action}
        kind="danger"
        off={off}
        refusal={refusal}
        cancel={<Cancel off={busy} close={close} />}
      >
        <p>{body}</p>
        {typed && (
          <Field
            label={rich(typed.label, { name })}
            value={text}
            set={setText}
            autoComplete="off"
            autoCapitalize="none"
            spellCheck={false}
          />
        )}
      </Form>
    </Dialog>
  );
}
