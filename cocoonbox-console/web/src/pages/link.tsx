import type { FormEvent } from 'react';

import { api } from '../api';
import type { Me } from '../model';
import { Button, Problem, Title } from '../parts';
import { NewPassword, useNewPassword } from '../newpassword';
import { useSpeech } from '../text/speech';
import { useWork } from '../work';

export function LinkPage({ link, begin, leave }: { link: string; begin(me: Me): void; leave(): void }) {
  const { t } = useSpeech();
  const { busy, refusal, run } = useWork();
  const password = useNewPassword();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const chosen = password.check();
    if (chosen !== null) void run(async () => begin(await api.loginWithLink(link, chosen)));
  };
  return (
    <>
      <Title text={t('link.title')} />
      <p>{t('link.lead')}</p>
      <form onSubmit={submit} noValidate>
        <NewPassword state={password} label={t('link.password')} repeat={t('link.repeat')} />
        <Problem refusal={refusal} />
        <div className="actions">
          <Button type="submit" kind="primary" off={busy}>
            {t('link.submit')}
          </Button>
          <Button off={busy} onClick={leave}>
            {t('link.other')}
          </Button>
        </div>
      </form>
    </>
  );
}
