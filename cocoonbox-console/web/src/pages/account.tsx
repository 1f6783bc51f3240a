import { useState } from 'react';

import { api, Refusal } from '../api';
import { Confirm } from '../dialog';
import { Button, Field, Form, Title } from '../parts';
import { NewPassword, useNewPassword } from '../newpassword';
import { useNotice, useSession } from '../session';
import { SignInList } from '../signins';
import { useSpeech } from '../text/speech';
import { useWork } from '../work';

export function AccountPage() {
  const { t } = useSpeech();
  return (
    <>
      <Title text={t('account.title')} />
      <PasswordForm />
      <SignOutEverywhere />
      <SignInList lead={t('sign_ins.lead')} load={api.signIns} />
    </>
  );
}

function PasswordForm() {
  const { t } = useSpeech();
  const { me, change } = useSession();
  const notice = useNotice();
  const { busy, refusal, run } = useWork();
  const [old, setOld] = useState('');
  const [missing, setMissing] = useState(false);
  const password = useNewPassword();

  const submit = () => {
    const without = me.has_password && old === '';
    setMissing(without);
    const chosen = password.check();
    if (without || chosen === null) return;
    void run(async () => {
      await api.changePassword(me.has_password ? old : '', chosen);
      setOld('');
      password.clear();
      change({ has_password: true });
      notice(t('account.changed'));
    });
  };
  const wrong = refusal?.code === 'wrong_password' ? t('problem.wrong_old_password') : null;

  return (
    <section className="card slim">
      <h2>{me.has_password ? t('account.password') : t('account.password.set')}</h2>
      <Form
        submit={submit}
        action={me.has_password ? t('account.submit') : t('account.submit.set')}
        off={busy}
        refusal={wrong === null ? refusal : null}
      >
        {/* what a password manager files the new password under */}
        <input
          className="aside"
          type="text"
          name="name"
          autoComplete="username"
          value={me.name}
          readOnly
          tabIndex={-1}
          aria-hidden="true"
        />
        {me.has_password && (
          <Field
            label={t('account.old')}
            value={old}
            set={setOld}
            type="password"
            autoComplete="current-password"
            problem={missing ? t('problem.required') : wrong}
          />
        )}
        <NewPassword state={password} label={t('account.new')} repeat={t('account.repeat')} />
      </Form>
    </section>
  );
}

function SignOutEverywhere() {
  const { t } = useSpeech();
  const { me, end } = useSession();
  const [asked, ask] = useState(false);
  return (
    <section className="card">
      <h2>{t('account.everywhere')}</h2>
      <p>{t('account.everywhere.lead')}</p>
      {!me.has_password && <p className="notice warn">{t('account.everywhere.no_password')}</p>}
      <div className="actions">
        <Button onClick={() => ask(true)}>{t('account.everywhere')}</Button>
      </div>
      {asked && (
        <Confirm
          title={t('account.everywhere.title')}
          body={t('account.everywhere.body')}
          action={t('account.everywhere')}
          close={() => ask(false)}
          act={async () => {
            try {
              await api.signOutEverywhere();
            } catch (thrown) {
              // somebody was faster: that is what was asked for
              if (!(thrown instanceof Refusal && thrown.code === 'signed_out')) throw thrown;
            }
            end(t('account.everywhere.done'));
          }}
        />
      )}
    </section>
  );
}
