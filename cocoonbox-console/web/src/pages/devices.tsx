import { useState } from 'react';

import { api } from '../api';
import { Confirm } from '../dialog';
import type { Device } from '../model';
import { Button, Fact, Facts, Time, Title, Untrusted, Waiting } from '../parts';
import { useNotice } from '../session';
import { useSpeech } from '../text/speech';
import { readable } from '../untrusted';
import { gone, useLoaded } from '../work';

export function DevicesPage() {
  const { t, rich } = useSpeech();
  const notice = useNotice();
  const [asked, ask] = useState<Device | null>(null);
  const list = useLoaded(async () => (await api.devices()).devices);

  const client = (device: Device) => {
    if (device.client === 'cocoonbox-cli') return t('devices.cocoonbox-cli');
    if (device.client === 'cocoonbox-app') return t('devices.cocoonbox-app');
    return device.client === '' ? t('devices.link') : device.client;
  };
  const nameOf = (device: Device) => readable(device.label) || t('devices.nameless');

  return (
    <>
      <Title text={t('devices.title')} />
      <p className="lead">{t('devices.lead')}</p>
      {list.value === null ? (
        <Waiting refusal={list.refusal} retry={list.reload} />
      ) : list.value.length === 0 ? (
        <div className="empty">
          <p>{t('devices.empty')}</p>
          <p className="hint">{rich('devices.empty.how', { command: <code>cocoonbox login</code> })}</p>
        </div>
      ) : (
        <ul className="rows">
          {list.value.map((device) => (
            <li key={device.id}>
              <div className="about">
                <h2>
                  <Untrusted>{nameOf(device)}</Untrusted>
                </h2>
                <Facts>
                  <Fact name={t('devices.client')}>
                    <Untrusted>{client(device)}</Untrusted>
                  </Fact>
                  <Fact name={t('devices.created')}>
                    <Time at={device.created_at} />
                  </Fact>
                  <Fact name={t('devices.used')}>
                    <Time at={device.used_at} />
                  </Fact>
                </Facts>
              </div>
              <div className="actions">
                <Button onClick={() => ask(device)} aria-label={`${t('devices.revoke')}: ${nameOf(device)}`}>
                  {t('devices.revoke')}
                </Button>
              </div>
            </li>
          ))}
        </ul>
      )}
      {asked && (
        <Confirm
          title={rich('devices.revoke.title', { name: <Untrusted>{nameOf(asked)}</Untrusted> })}
          body={t('devices.revoke.body')}
          action={t('devices.revoke')}
          close={() => ask(null)}
          act={async () => {
            await gone(api.revokeDevice(asked.id));
            list.change((before) => before?.filter((device) => device.id !== asked.id) ?? null);
            ask(null);
            notice(t('devices.revoked', { name: nameOf(asked) }));
          }}
        />
      )}
    </>
  );
}
