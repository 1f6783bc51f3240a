import { type FormEvent, useState } from 'react';

import { api } from '../api';
import type { Me } from '../model';
import { Button, Field, Problem, Title } from '../parts';
import { useSpeech } from '../text/speech';
import { useWork } from '../work';

export function SignInPage({ forConsent, begin }: { forConsent: boolean; begin(me: Me): void }) {
  const { t } = useSpeech();
  const { busy, refusal, run } = useWork();
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (name.trim() === '' || password === '') return;
    void run(async () => begin(await api.login(name.trim(), password)));
  };
  return (
    <>
      <Title text={t('signin.title')} />
      {forConsent && <p>{t('signin.for_consent')}</p>}
      <form onSubmit={submit} noValidate>
        <Field
          label={t('signin.name')}
          value={name}
          set={setName}
          name="name"
          autoComplete="username"
          autoCapitalize="none"
          spellCheck={false}
          maxLength={256}
        />
        <Field
          label={t('signin.password')}
          value={password}
          set={setPassword}
          name="password"
          type="password"
          autoComplete="current-password"
          maxLength={1024}
        />
        <Problem refusal={refusal} />
        <div className="actions">
          <Button type="submit" kind="primary" off={busy}>
            {t('signin.submit')}
          </Button>
        </div>
      </form>
      <p className="hint">{t('signin.hint')}</p>
    </>
  );
}
