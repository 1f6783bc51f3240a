// The pieces that pages are made of.

import {
  type ComponentProps,
  type FormEvent,
  type MouseEvent,
  type ReactNode,
  useEffect,
  useId,
  useRef,
} from 'react';

import type { Refusal } from './api';
import { useNotice } from './session';
import { useSpeech } from './text/speech';
import { distance, inFull } from './time';
import { mixesAlphabets, plainHost, readable } from './untrusted';
import { useProblem } from './work';

type ButtonProps = Omit<ComponentProps<'button'>, 'disabled'> & {
  /** Does nothing now, but keeps its place in the order of the keyboard. */
  off?: boolean;
  kind?: 'primary' | 'danger' | 'ordinary';
};

export function Button({ off = false, kind = 'ordinary', type = 'button', onClick, ...rest }: ButtonProps) {
  const click = (event: MouseEvent<HTMLButtonElement>) => {
    if (off) event.preventDefault();
    else onClick?.(event);
  };
  return <button {...rest} type={type} className={kind} aria-disabled={off} onClick={click} />;
}

interface FieldProps extends Omit<ComponentProps<'input'>, 'id' | 'value' | 'onChange'> {
  label: ReactNode;
  value: string;
  set(value: string): void;
  hint?: string;
  problem?: string | null;
}

export function Field({ label, value, set, hint, problem, ...rest }: FieldProps) {
  const id = useId();
  const notes = [hint && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(' ');
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input
        {...rest}
        id={id}
        value={value}
        aria-invalid={problem ? true : undefined}
        aria-describedby={notes || undefined}
        onChange={(event) => set(event.target.value)}
      />
      {hint && (
        <p id={`${id}-hint`} className="hint">
          {hint}
        </p>
      )}
      {problem && (
        <p id={`${id}-problem`} className="problem">
          {problem}
        </p>
      )}
    </div>
  );
}

interface FormProps {
  submit(): void;
  action: string;
  kind?: 'primary' | 'danger';
  off: boolean;
  refusal: Refusal | null;
  /** Other ways on, after the action. */
  others?: ReactNode;
  /** The way out of a dialog, before the action. */
  cancel?: ReactNode;
  autoComplete?: 'off';
  children: ReactNode;
}

/** Fields, what went wrong with them, and the button that sends them. The pages say themselves what is not filled in. */
export function Form({
  submit,
  action,
  kind = 'primary',
  off,
  refusal,
  others,
  cancel,
  autoComplete,
  children,
}: FormProps) {
  const send = (event: FormEvent) => {
    event.preventDefault();
    submit();
  };
  return (
    <form onSubmit={send} noValidate autoComplete={autoComplete}>
      {children}
      <Problem refusal={refusal} />
      <div className={cancel ? 'actions end' : 'actions'}>
        {cancel}
        <Button type="submit" kind={kind} off={off}>
          {action}
        </Button>
        {others}
      </div>
    </form>
  );
}

export function Tick({
  label,
  checked,
  set,
}: {
  label: string;
  checked: boolean;
  set(checked: boolean): void;
}) {
  return (
    <label className="tick">
      <input type="checkbox" checked={checked} onChange={(event) => set(event.target.checked)} />
      <span>{label}</span>
    </label>
  );
}

/** What went wrong, said at once to a screen reader. */
export function Problem({ refusal, text }: { refusal?: Refusal | null; text?: string | null }) {
  const words = useProblem();
  const shown = text ?? (refusal ? words(refusal) : null);
  return <div role="alert">{shown !== null && <p className="notice bad">{shown}</p>}</div>;
}

/** The title of a page; a page that was gone to starts here for the keyboard and for a screen reader, too. */
export function Title({ children, text }: { children?: ReactNode; text: string }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${text} · cocoonbox`;
  }, [text]);
  useEffect(() => {
    heading.current?.focus();
  }, []);
  return (
    <h1 id="title" ref={heading} tabIndex={-1}>
      {children ?? text}
    </h1>
  );
}

/** Puts the keyboard to the top of the page when what it stood on went with the element that uses this. */
export function useFocusKept(): void {
  useEffect(
    () => () => {
      if (document.activeElement === document.body) document.getElementById('title')?.focus();
    },
    [],
  );
}

/** Words of a stranger: never more than text, and never steering the text around them. */
export function Untrusted({ children }: { children: string }) {
  return <bdi className="untrusted">{readable(children)}</bdi>;
}

/** Who vouches for a client: beside every name that a client gave itself. */
export function Host({ host }: { host: string }) {
  const { t } = useSpeech();
  return host === '' ? (
    <span className="badge warn">{t('agents.unverified')}</span>
  ) : (
    <span className="badge good host">{t('agents.verified', { host: plainHost(host) })}</span>
  );
}

/** A warning beside a stranger's name that could pass for another's. */
export function LookAlike({ name }: { name: string }) {
  const { t } = useSpeech();
  return mixesAlphabets(name) ? <p className="notice warn">{t('consent.mixed')}</p> : null;
}

export function Time({ at }: { at: number | null }) {
  const { locale, t } = useSpeech();
  if (at === null) return <>{t('never')}</>;
  const full = inFull(at, locale);
  return (
    <time dateTime={new Date(at).toISOString()} title={full}>
      {distance(at, Date.now(), locale) ?? full}
    </time>
  );
}

export function Facts({ children }: { children: ReactNode }) {
  return <dl className="facts">{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** What is shown until a page's list is there. */
export function Waiting({ refusal, retry }: { refusal: Refusal | null; retry(): void }) {
  const { t } = useSpeech();
  if (refusal === null) return <p className="quiet">{t('loading')}</p>;
  return (
    <>
      <Problem refusal={refusal} />
      <Button onClick={retry}>{t('retry')}</Button>
    </>
  );
}

/** A secret that is shown once, with a button that copies it. */
export function Secret({ label, value, hint }: { label: ReactNode; value: string; hint: string }) {
  const { t } = useSpeech();
  const notice = useNotice();
  const field = useRef<HTMLInputElement>(null);
  const id = useId();
  useEffect(() => {
    field.current?.focus();
    field.current?.select();
  }, [value]);
  const copy = () => {
    field.current?.focus();
    field.current?.select();
    // the newer interface needs a permission that these pages give up, and is not there without https
    notice(t(document.execCommand('copy') ? 'copied' : 'copy.by_hand'));
  };
  return (
    <div className="secret">
      <label htmlFor={id}>{label}</label>
      <div className="joined">
        <input
          id={id}
          ref={field}
          className="code"
          readOnly
          value={value}
          aria-describedby={`${id}-hint`}
          spellCheck={false}
        />
        <Button kind="primary" onClick={copy}>
          {t('copy')}
        </Button>
      </div>
      <p id={`${id}-hint`} className="hint">
        {hint}
      </p>
    </div>
  );
}
