import { useState } from 'react';

import { api } from '../api';
import type { Me } from '../model';
import { Field, Form, Title } from '../parts';
import { useSpeech } from '../text/speech';
import { useWork } from '../work';

export function SignInPage({ forConsent, begin }: { forConsent: boolean; begin(me: Me): void }) {
  const { t } = useSpeech();
  const { busy, refusal, run } = useWork();
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const submit = () => {
    if (name.trim() === '' || password === '') return;
    void run(async () => begin(await api.login(name.trim(), password)));
  };
  return (
    <>
      <Title text={t('signin.title')} />
      {forConsent && <p>{t('signin.for_consent')}</p>}
      <Form submit={submit} action={t('signin.submit')} off={busy} refusal={refusal}>
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
      </Form>
      <p className="hint">{t('signin.hint')}</p>
    </>
  );
}
