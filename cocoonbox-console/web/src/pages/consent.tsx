import { type ReactNode, useEffect, useId, useState } from 'react';

import { api, Refusal } from '../api';
import { useArmed } from '../armed';
import { type Caps, DAYS, readCaps } from '../caps';
import { leaveFor } from '../leave';
import { rawQuery } from '../link';
import type { AccountRequest, AgentRequest } from '../model';
import { Button, Fact, Facts, Field, LookAlike, Problem, Title, Untrusted } from '../parts';
import { useSession } from '../session';
import { useSpeech } from '../text/speech';
import { plainHost, readable } from '../untrusted';
import { useLoaded, useWork } from '../work';

/**
 * A program asks, the user answers. Nothing is answered without a click: any program on this computer can open this
 * page and claim the name of one of ours.
 */
export function ConsentPage() {
  const { t } = useSpeech();
  const [query] = useState(() => rawQuery(location.search));
  const [left, setLeft] = useState<'well' | 'refused' | null>(null);
  const check = useLoaded(() => api.check(query));

  const leave = (redirect: string) => setLeft(leaveFor(redirect) ? 'well' : 'refused');
  // a fault that the client has to hear of goes back to it without a question: nothing is granted by that
  const fault = check.value !== null && 'redirect' in check.value ? check.value.redirect : null;
  useEffect(() => {
    if (fault !== null) leave(fault);
  }, [fault]);

  if (left === 'refused') {
    return (
      <>
        <Title text={t('consent.title.untrusted')} />
        <Problem text={t('consent.bad_redirect')} />
      </>
    );
  }
  if (left === 'well' || fault !== null) {
    return (
      <>
        <Title text={t('consent.title.leaving')} />
        <p>{t('consent.leaving')}</p>
      </>
    );
  }
  if (check.refusal !== null) return <Refused refusal={check.refusal} retry={check.reload} />;
  if (check.value === null || 'redirect' in check.value) return <p className="quiet">{t('loading')}</p>;
  return check.value.account ? (
    <AskForAccount request={check.value} query={query} leave={leave} />
  ) : (
    <AskForBoxes request={check.value} query={query} leave={leave} />
  );
}

function Refused({ refusal, retry }: { refusal: Refusal; retry(): void }) {
  const { t } = useSpeech();
  // the server does not know whom it would go back to: told here, and nowhere is linked to
  const final = refusal.status === 400;
  return (
    <>
      <Title text={t(final ? 'consent.title.untrusted' : 'consent.title.failed')} />
      {final ? <Problem text={readable(refusal.message)} /> : <Problem refusal={refusal} />}
      {final && <p>{t('consent.untrusted.why')}</p>}
      {!final && <Button onClick={retry}>{t('retry')}</Button>}
    </>
  );
}

interface AskProps<T> {
  request: T;
  query: string;
  leave(redirect: string): void;
}

function AskForAccount({ request, query, leave }: AskProps<AccountRequest>) {
  const { t, rich } = useSpeech();
  const client = readable(request.client_name);
  const device = readable(request.device_name);
  const key = device === '' ? 'consent.title.account.nameless' : 'consent.title.account';
  return (
    <>
      <Title text={t(key, { client, device })}>
        {rich(key, { client: <Untrusted>{client}</Untrusted>, device: <Untrusted>{device}</Untrusted> })}
      </Title>
      <Asked />
      <p>{t('consent.account.lead')}</p>
      <div className="card">
        <Facts>
          <Fact name={t('consent.redirect')}>
            <Destination request={request} />
          </Fact>
        </Facts>
      </div>
      {request.loopback && <p className="notice warn">{t('consent.loopback')}</p>}
      <Answer query={query} leave={leave} caps={() => 'none'} />
    </>
  );
}

function AskForBoxes({ request, query, leave }: AskProps<AgentRequest>) {
  const { t } = useSpeech();
  const [maxBoxes, setMaxBoxes] = useState(String(request.max_boxes));
  const [maxRunning, setMaxRunning] = useState(String(request.max_running));
  const [days, setDays] = useState(String(request.days));
  const answer = readCaps(maxBoxes, maxRunning, days);
  const wrong = new Set(answer.wrong);

  return (
    <>
      <Title text={t('consent.title.agent')} />
      <Asked />
      <div className="card">
        <Facts>
          <Fact name={t('consent.name')}>
            <strong>
              <Untrusted>{request.client_name}</Untrusted>
            </strong>
          </Fact>
          <Fact name={t('consent.host')}>
            {request.client_host === '' ? (
              <span className="badge warn">{t('consent.unverified')}</span>
            ) : (
              <strong className="host">{plainHost(request.client_host)}</strong>
            )}
          </Fact>
          <Fact name={t('consent.redirect')}>
            <Destination request={request} />
          </Fact>
        </Facts>
      </div>
      <LookAlike name={request.client_name} />
      {request.client_host === '' && <p className="notice warn">{t('consent.unverified.why')}</p>}
      {request.loopback && <p className="notice warn">{t('consent.loopback')}</p>}
      {request.has_grant && <p className="notice">{t('consent.has_grant')}</p>}
      <p>{t('consent.may')}</p>
      <p>{t('consent.may_not')}</p>
      <fieldset>
        <legend>{t('consent.limits')}</legend>
        <div className="columns three">
          <Field
            label={t('consent.max_boxes')}
            value={maxBoxes}
            set={setMaxBoxes}
            inputMode="numeric"
            autoComplete="off"
            problem={wrong.has('maxBoxes') ? t('consent.max_boxes.wrong') : null}
          />
          <Field
            label={t('consent.max_running')}
            value={maxRunning}
            set={setMaxRunning}
            inputMode="numeric"
            autoComplete="off"
            problem={wrong.has('maxRunning') ? t('consent.max_running.wrong') : null}
          />
          <Days value={days} set={setDays} problem={wrong.has('days')} />
        </div>
      </fieldset>
      <Answer query={query} leave={leave} caps={() => answer.caps} />
    </>
  );
}

function Days({ value, set, problem }: { value: string; set(value: string): void; problem: boolean }) {
  const { t } = useSpeech();
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{t('consent.days')}</label>
      <select
        id={id}
        value={value}
        aria-invalid={problem || undefined}
        onChange={(event) => set(event.target.value)}
      >
        {problem && <option value={value} />}
        {DAYS.map((choice) => (
          <option key={choice} value={choice}>
            {t(`consent.days.${choice}`)}
          </option>
        ))}
      </select>
      {problem && <p className="problem">{t('consent.days.wrong')}</p>}
    </div>
  );
}

/** Whose account it is about: a sign-in that somebody else slipped in shows here. */
function Asked() {
  const { rich } = useSpeech();
  const { me } = useSession();
  return <p className="quiet">{rich('signed_in_as', { name: <Untrusted>{me.name}</Untrusted> })}</p>;
}

function Destination({ request }: { request: AccountRequest | AgentRequest }): ReactNode {
  const { t } = useSpeech();
  // an address of a program's own scheme has no host
  if (request.redirect_host === '') return t('consent.redirect.app');
  return <span className="host">{plainHost(request.redirect_host)}</span>;
}

interface AnswerProps {
  query: string;
  leave(redirect: string): void;
  /** The caps to send, `none` where there are none, null while they are wrong. */
  caps(): Caps | 'none' | null;
}

function Answer({ query, leave, caps }: AnswerProps) {
  const { t } = useSpeech();
  const { armed, mayAct } = useArmed();
  const { busy, refusal, run } = useWork();
  const wrong = caps() === null;

  const allow = () => {
    const chosen = caps();
    if (!mayAct() || chosen === null) return;
    void run(async () => leave((await api.approve(query, chosen === 'none' ? null : chosen)).redirect));
  };
  const deny = () => {
    if (mayAct()) void run(async () => leave((await api.deny(query)).redirect));
  };

  return (
    <>
      <Problem refusal={refusal} />
      <div className="actions wide">
        <Button off={!armed || busy} onClick={deny}>
          {t('consent.deny')}
        </Button>
        <Button kind="primary" off={!armed || busy || wrong} onClick={allow}>
          {t('consent.allow')}
        </Button>
      </div>
      <p className="hint" hidden={armed}>
        {t('consent.wait')}
      </p>
    </>
  );
}
