import { useRef, useState } from 'react';

import { api } from '../api';
import { isPassing, useBoxes, type Verb, verbOf } from '../boxlist';
import { Confirm } from '../dialog';
import type { Box, BoxState } from '../model';
import { Button, Fact, Facts, Host, Problem, Time, Title, Untrusted, useFocusKept, Waiting } from '../parts';
import { PageLink } from '../pagelink';
import { useNotice, useSession } from '../session';
import type { Key } from '../text/en';
import { useSpeech } from '../text/speech';
import { gone, useLoaded, useWork } from '../work';

export function BoxesPage() {
  const { t, rich } = useSpeech();
  const { me } = useSession();
  const notice = useNotice();
  const [asked, ask] = useState<Box | null>(null);
  // boxes that the user did something with, and what they were then: what becomes of them is said
  const awaited = useRef(new Map<string, BoxState>());

  const { boxes, refusal, live, reload } = useBoxes((list) => {
    for (const box of list) {
      const before = awaited.current.get(box.id);
      if (before === undefined || before === box.state || isPassing(box.state)) continue;
      awaited.current.delete(box.id);
      notice(t('boxes.became', { name: box.name, state: t(`state.${box.state}`) }));
    }
  });

  return (
    <>
      <Title text={t('boxes.title')} />
      <p className="lead">{t('boxes.lead')}</p>
      {me.unseen_agents > 0 && <UnseenAgents />}
      {boxes === null ? (
        <Waiting refusal={refusal} retry={reload} />
      ) : boxes.length === 0 ? (
        <FirstBox done={() => live !== true && reload()} />
      ) : (
        <ul className="rows">
          {boxes.map((box) => (
            <BoxRow
              key={box.id}
              box={box}
              begun={() => awaited.current.set(box.id, box.state)}
              done={() => live !== true && reload()}
              remove={() => ask(box)}
            />
          ))}
        </ul>
      )}
      {boxes !== null && live !== null && (
        <p className={live ? 'live' : 'live lost'}>{t(live ? 'boxes.live' : 'boxes.lost')}</p>
      )}
      {asked && (
        <Confirm
          title={rich('boxes.delete.title', { name: <Untrusted>{asked.name}</Untrusted> })}
          body={t('boxes.delete.body')}
          action={t('boxes.delete')}
          typed={{ label: 'boxes.delete.type', text: asked.name }}
          close={() => ask(null)}
          act={async () => {
            await gone(api.deleteBox(asked.id));
            ask(null);
            notice(t('boxes.deleting', { name: asked.name }));
            if (live !== true) reload();
          }}
        />
      )}
    </>
  );
}

function FirstBox({ done }: { done(): void }) {
  const { t, rich } = useSpeech();
  const notice = useNotice();
  const { busy, refusal, run } = useWork();
  useFocusKept();
  const make = () =>
    run(async () => {
      await api.ensureFirstBox();
      notice(t('boxes.making'));
      done();
    });
  return (
    <div className="empty">
      <p>{t('boxes.empty')}</p>
      <Problem refusal={refusal} />
      <Button kind="primary" off={busy} onClick={() => void make()}>
        {t('boxes.first')}
      </Button>
      <p className="hint">{rich('boxes.by_hand', { command: <code>cocoonbox box ensure</code> })}</p>
    </div>
  );
}

/** What is said when it began. */
const BEGUN = {
  start: 'boxes.starting',
  wake: 'boxes.waking',
  hibernate: 'boxes.hibernating',
} as const satisfies Record<Verb, Key>;

interface BoxRowProps {
  box: Box;
  begun(): void;
  done(): void;
  remove(): void;
}

function BoxRow({ box, begun, done, remove }: BoxRowProps) {
  const { t } = useSpeech();
  const notice = useNotice();
  const { busy, refusal, run } = useWork();
  useFocusKept();
  const { verb, now } = verbOf(box.state);

  const act = () =>
    run(async () => {
      begun();
      const call = verb === 'hibernate' ? api.hibernateBox : api.ensureBox;
      const { operation_id } = await call(box.id);
      if (operation_id === '') notice(t('boxes.nothing', { name: box.name }));
      else notice(t(BEGUN[verb], { name: box.name }));
      done();
    });

  return (
    <li>
      <div className="about">
        <h2>
          <Untrusted>{box.name}</Untrusted>{' '}
          <span className={`badge state ${box.state}`}>{t(`state.${box.state}`)}</span>
          {box.agent && <span className="badge">{t('boxes.agent')}</span>}
        </h2>
        <Facts>
          <Fact name={t('boxes.image')}>
            <Untrusted>{box.image}</Untrusted>
          </Fact>
          <Fact name={t('boxes.saved')}>
            <Time at={box.last_saved_at} />
          </Fact>
        </Facts>
        <Problem refusal={refusal} />
      </div>
      <div className="actions">
        <Button
          off={busy || !now}
          onClick={() => void act()}
          aria-label={`${t(`boxes.${verb}`)}: ${box.name}`}
        >
          {t(`boxes.${verb}`)}
        </Button>
        <Button onClick={remove} aria-label={`${t('boxes.delete')}: ${box.name}`}>
          {t('boxes.delete')}
        </Button>
      </div>
    </li>
  );
}

/** Names the agents that were allowed since the user last looked: a grant that somebody else clicked is found here. */
function UnseenAgents() {
  const { t, rich } = useSpeech();
  const list = useLoaded(async () => (await api.agents()).agents.filter((agent) => !agent.seen));
  if (list.value === null || list.value.length === 0) return null;
  const names = list.value.map((agent, place) => (
    <span key={agent.id}>
      {place > 0 && ', '}
      <Untrusted>{agent.client_name}</Untrusted> <Host host={agent.client_host} />
    </span>
  ));
  return (
    <aside className="notice warn">
      {rich('boxes.unseen', { names })} <PageLink path="/cb/agents">{t('boxes.unseen.link')}</PageLink>
    </aside>
  );
}
