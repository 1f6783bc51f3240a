import { api } from '../api';
import type { Me } from '../model';
import { Button, Form, Title } from '../parts';
import { NewPassword, useNewPassword } from '../newpassword';
import { useSpeech } from '../text/speech';
import { useWork } from '../work';

export function LinkPage({ link, begin, leave }: { link: string; begin(me: Me): void; leave(): void }) {
  const { t } = useSpeech();
  const { busy, refusal, run } = useWork();
  const password = useNewPassword();
  const submit = () => {
    const chosen = password.check();
    if (chosen !== null) void run(async () => begin(await api.loginWithLink(link, chosen)));
  };
  return (
    <>
      <Title text={t('link.title')} />
      <p>{t('link.lead')}</p>
      <Form
        submit={submit}
        action={t('link.submit')}
        off={busy}
        refusal={refusal}
        others={
          <Button off={busy} onClick={leave}>
            {t('link.other')}
          </Button>
        }
      >
        <NewPassword state={password} label={t('link.password')} repeat={t('link.repeat')} />
      </Form>
    </>
  );
}
