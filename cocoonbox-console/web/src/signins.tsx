import { useState } from 'react';

import type { SignIn, SignIns } from './model';
import { Button, Fact, Facts, Problem, Time, Untrusted, Waiting } from './parts';
import { useSpeech } from './text/speech';
import { readable } from './untrusted';
import { useLoaded, useWork } from './work';

const DOORS = {
  password: 'sign_ins.password',
  link: 'sign_ins.link',
  device: 'sign_ins.device',
  agent: 'sign_ins.agent',
} as const;

/** Who came in and who was turned away, the newest first; older ones on demand. */
export function SignInList({ lead, load }: { lead: string; load: (before: string) => Promise<SignIns> }) {
  const { t } = useSpeech();
  const first = useLoaded(() => load(''));
  const [more, setMore] = useState<SignIns | null>(null);
  const { busy, refusal, run } = useWork();
  const known = first.value?.sign_ins ?? [];
  const all = [...known, ...(more?.sign_ins ?? [])];
  const next = more?.next ?? first.value?.next ?? '';

  const older = () =>
    run(async () => {
      const read = await load(next);
      setMore((before) => ({ sign_ins: [...(before?.sign_ins ?? []), ...read.sign_ins], next: read.next }));
    });

  return (
    <section className="card">
      <h2>{t('sign_ins.title')}</h2>
      <p className="hint">{lead}</p>
      {first.value === null ? (
        <Waiting refusal={first.refusal} retry={first.reload} />
      ) : all.length === 0 ? (
        <p>{t('sign_ins.empty')}</p>
      ) : (
        <ul className="rows">
          {all.map((one) => (
            <li key={one.id}>
              <One signIn={one} />
            </li>
          ))}
        </ul>
      )}
      <Problem refusal={refusal} />
      {next !== '' && (
        <div className="actions">
          <Button off={busy} onClick={() => void older()}>
            {t('sign_ins.older')}
          </Button>
        </div>
      )}
    </section>
  );
}

function One({ signIn }: { signIn: SignIn }) {
  const { t } = useSpeech();
  const what = readable(signIn.what);
  return (
    <div className="about">
      <h3>
        {t(DOORS[signIn.door])}
        {what !== '' && <Untrusted>{what}</Untrusted>}
        {!signIn.let_in && <span className="badge bad">{t('sign_ins.refused')}</span>}
      </h3>
      <Facts>
        <Fact name={t('sign_ins.at')}>
          <Time at={signIn.at} />
        </Fact>
        {signIn.user_name !== undefined && (
          <Fact name={t('sign_ins.user')}>
            {signIn.user_name === '' ? t('sign_ins.nobody') : <Untrusted>{signIn.user_name}</Untrusted>}
          </Fact>
        )}
        <Fact name={t('sign_ins.from')}>{signIn.from === '' ? t('sign_ins.unknown') : signIn.from}</Fact>
      </Facts>
    </div>
  );
}
