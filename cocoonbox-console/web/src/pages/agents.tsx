import { useEffect, useState } from 'react';

import { api } from '../api';
import { Confirm } from '../dialog';
import type { Agent } from '../model';
import { Button, Fact, Facts, Host, LookAlike, Time, Title, Untrusted, Waiting } from '../parts';
import { useNotice, useSession } from '../session';
import { useSpeech } from '../text/speech';
import { readable } from '../untrusted';
import { gone, useLoaded } from '../work';

export function AgentsPage() {
  const { t, rich } = useSpeech();
  const { me, change } = useSession();
  const notice = useNotice();
  const [asked, ask] = useState<Agent | null>(null);
  const list = useLoaded(async () => (await api.agents()).agents);

  // seen is what was shown: after the list came, so that it still holds the marks
  const unseen = list.value !== null && (me.unseen_agents > 0 || list.value.some((agent) => !agent.seen));
  useEffect(() => {
    if (!unseen) return;
    api.agentsSeen().then(
      () => change({ unseen_agents: 0 }),
      () => {
        // they stay new until the next look
      },
    );
  }, [unseen]);

  return (
    <>
      <Title text={t('agents.title')} />
      <p className="lead">{t('agents.lead')}</p>
      {list.value === null ? (
        <Waiting refusal={list.refusal} retry={list.reload} />
      ) : list.value.length === 0 ? (
        <div className="empty">
          <p>{t('agents.empty')}</p>
          <p className="hint">
            {rich('agents.empty.how', { address: <code>{`${location.origin}/cocoonbox.mcp/control`}</code> })}
          </p>
        </div>
      ) : (
        <ul className="rows">
          {list.value.map((agent) => (
            <AgentRow key={agent.id} agent={agent} revoke={() => ask(agent)} />
          ))}
        </ul>
      )}
      {asked && (
        <Confirm
          title={rich('agents.revoke.title', { name: <Untrusted>{asked.client_name}</Untrusted> })}
          body={t('agents.revoke.body')}
          action={t('agents.revoke')}
          close={() => ask(null)}
          act={async () => {
            await gone(api.revokeAgent(asked.id));
            list.change((before) => before?.filter((agent) => agent.id !== asked.id) ?? null);
            ask(null);
            notice(t('agents.revoked', { name: readable(asked.client_name) }));
          }}
        />
      )}
    </>
  );
}

function AgentRow({ agent, revoke }: { agent: Agent; revoke(): void }) {
  const { t } = useSpeech();
  return (
    <li>
      <div className="about">
        <h2>
          <Untrusted>{agent.client_name}</Untrusted> <Host host={agent.client_host} />
          {!agent.seen && <span className="badge new">{t('new')}</span>}
        </h2>
        <LookAlike name={agent.client_name} />
        <Facts>
          <Fact name={t('agents.approved')}>
            <Time at={agent.approved_at} />
          </Fact>
          <Fact name={t('agents.expires')}>
            <Time at={agent.expires_at} />
          </Fact>
          <Fact name={t('agents.used')}>
            <Time at={agent.used_at} />
          </Fact>
          <Fact name={t('agents.caps')}>
            {t('agents.caps.value', { boxes: agent.max_boxes, running: agent.max_running })}
          </Fact>
          <Fact name={t('agents.boxes')}>
            {agent.boxes.length === 0
              ? t('agents.boxes.none')
              : agent.boxes.map((box, place) => (
                  <span key={box.id}>
                    {place > 0 && ', '}
                    <Untrusted>{box.name}</Untrusted>
                  </span>
                ))}
          </Fact>
        </Facts>
      </div>
      <div className="actions">
        <Button onClick={revoke} aria-label={`${t('agents.revoke')}: ${readable(agent.client_name)}`}>
          {t('agents.revoke')}
        </Button>
      </div>
    </li>
  );
}
