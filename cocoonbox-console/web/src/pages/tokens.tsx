import { useState } from 'react';

import { api } from '../api';
import { Confirm } from '../dialog';
import { Button, Fact, Facts, Problem, Secret, Time, Title, Waiting } from '../parts';
import { useNotice } from '../session';
import { useSpeech } from '../text/speech';
import { useLoaded, useWork } from '../work';

export function TokensPage() {
  const { t, rich } = useSpeech();
  const notice = useNotice();
  const state = useLoaded(api.token);
  const making = useWork();
  const [asked, ask] = useState<'renew' | 'revoke' | null>(null);
  const [made, setMade] = useState<string | null>(null);

  const make = async () => {
    const { token } = await api.makeToken();
    setMade(token);
    ask(null);
    state.change({ exists: true, created_at: Date.now(), used_at: null });
    notice(t('tokens.made'));
  };
  const revoke = async () => {
    await api.revokeToken();
    setMade(null);
    ask(null);
    state.change({ exists: false, created_at: null, used_at: null });
    notice(t('tokens.revoked'));
  };

  return (
    <>
      <Title text={t('tokens.title')} />
      <p className="lead">{rich('tokens.lead', { variable: <code>COCOONBOX_TOKEN</code> })}</p>
      {made !== null && <Secret label={t('tokens.secret')} value={made} hint={t('secret.once')} />}
      {state.value === null ? (
        <Waiting refusal={state.refusal} retry={state.reload} />
      ) : state.value.exists ? (
        <div className="card">
          <Facts>
            <Fact name={t('tokens.created')}>
              <Time at={state.value.created_at} />
            </Fact>
            <Fact name={t('tokens.used')}>
              <Time at={state.value.used_at} />
            </Fact>
          </Facts>
          <div className="actions">
            <Button onClick={() => ask('renew')}>{t('tokens.renew')}</Button>
            <Button onClick={() => ask('revoke')}>{t('tokens.revoke')}</Button>
          </div>
        </div>
      ) : (
        <div className="empty">
          <p>{t('tokens.none')}</p>
          <Problem refusal={making.refusal} />
          <Button kind="primary" off={making.busy} onClick={() => void making.run(make)}>
            {t('tokens.make')}
          </Button>
        </div>
      )}
      {asked === 'renew' && (
        <Confirm
          title={t('tokens.renew.title')}
          body={t('tokens.renew.body')}
          action={t('tokens.renew')}
          close={() => ask(null)}
          act={make}
        />
      )}
      {asked === 'revoke' && (
        <Confirm
          title={t('tokens.revoke.title')}
          body={t('tokens.revoke.body')}
          action={t('tokens.revoke')}
          close={() => ask(null)}
          act={revoke}
        />
      )}
    </>
  );
}
