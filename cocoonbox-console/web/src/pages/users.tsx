import { useState } from 'react';

import { api } from '../api';
import { readWhole } from '../caps';
import { Cancel, Confirm, Dialog } from '../dialog';
import { addressOf } from '../link';
import type { User, UserChange } from '../model';
import { Button, Fact, Facts, Field, Form, Secret, Tick, Time, Title, Untrusted, Waiting } from '../parts';
import { isLongEnough } from '../password';
import { useNotice, useSession } from '../session';
import { SignInList } from '../signins';
import { useSpeech } from '../text/speech';
import { readable } from '../untrusted';
import { gone, useLoaded, useWork } from '../work';

const MOST_AGENT_BOXES = 100_000;

export function UsersPage() {
  const { t, rich } = useSpeech();
  const { me, change } = useSession();
  const notice = useNotice();
  const list = useLoaded(async () => (await api.users()).users);
  const [asked, ask] = useState<{ user: User; to: 'edit' | 'delete' } | null>(null);

  const put = (user: User) => {
    list.change((before) => before?.map((other) => (other.id === user.id ? user : other)) ?? null);
    if (user.id === me.user_id) change({ admin: user.admin, has_password: user.has_password });
  };

  return (
    <>
      <Title text={t('users.title')} />
      <p className="lead">{t('users.lead')}</p>
      {list.value === null ? (
        <Waiting refusal={list.refusal} retry={list.reload} />
      ) : (
        <ul className="rows">
          {list.value.map((user) => (
            <UserRow
              key={user.id}
              user={user}
              own={user.id === me.user_id}
              edit={() => ask({ user, to: 'edit' })}
              remove={() => ask({ user, to: 'delete' })}
            />
          ))}
        </ul>
      )}
      <AddUser added={(user) => list.change((before) => (before === null ? null : [...before, user]))} />
      <SignInList lead={t('sign_ins.lead.all')} load={api.everybodysSignIns} />
      {asked?.to === 'edit' && (
        <EditUser
          user={asked.user}
          close={() => ask(null)}
          changed={(user) => {
            put(user);
            ask(null);
            notice(t('users.changed', { name: readable(user.name) }));
          }}
        />
      )}
      {asked?.to === 'delete' && (
        <Confirm
          title={rich('users.delete.title', { name: <Untrusted>{asked.user.name}</Untrusted> })}
          body={t('users.delete.body')}
          action={t('users.delete')}
          typed={{ label: 'users.delete.type', text: asked.user.name }}
          close={() => ask(null)}
          act={async () => {
            const { id, name } = asked.user;
            await gone(api.deleteUser(id));
            list.change((before) => before?.filter((user) => user.id !== id) ?? null);
            ask(null);
            notice(t('users.deleted', { name: readable(name) }));
          }}
        />
      )}
    </>
  );
}

interface UserRowProps {
  user: User;
  own: boolean;
  edit(): void;
  remove(): void;
}

function UserRow({ user, own, edit, remove }: UserRowProps) {
  const { t } = useSpeech();
  const name = readable(user.name);
  return (
    <li>
      <div className="about">
        <h2>
          <Untrusted>{user.name}</Untrusted>
          {own && <span className="badge">{t('users.you')}</span>}
          {user.admin && <span className="badge good">{t('users.badge.admin')}</span>}
          {user.disabled && <span className="badge bad">{t('users.badge.disabled')}</span>}
          {!user.has_password && <span className="badge warn">{t('users.badge.no_password')}</span>}
        </h2>
        <Facts>
          <Fact name={t('users.created')}>
            <Time at={user.created_at} />
          </Fact>
          <Fact name={t('users.agent_boxes')}>{user.max_agent_boxes ?? t('users.no_cap')}</Fact>
        </Facts>
      </div>
      <div className="actions">
        <Button onClick={edit} aria-label={`${t('users.edit')}: ${name}`}>
          {t('users.edit')}
        </Button>
        <Button onClick={remove} aria-label={`${t('users.delete')}: ${name}`}>
          {t('users.delete')}
        </Button>
      </div>
    </li>
  );
}

function AddUser({ added }: { added(user: User): void }) {
  const { t, rich } = useSpeech();
  const notice = useNotice();
  const { busy, refusal, run } = useWork();
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const [admin, setAdmin] = useState(false);
  const [wrong, setWrong] = useState<{ name?: boolean; password?: boolean }>({});
  const [made, setMade] = useState<{ name: string; link: string } | null>(null);

  const submit = () => {
    const found = { name: name.trim() === '', password: password !== '' && !isLongEnough(password) };
    setWrong(found);
    if (found.name || found.password) return;
    void run(async () => {
      const user = await api.makeUser(name.trim(), password, admin);
      setMade(user.link ? { name: user.name, link: user.link } : null);
      setName('');
      setPassword('');
      setAdmin(false);
      added(user);
      notice(t('users.made', { name: readable(user.name) }));
    });
  };

  return (
    <section className="card">
      <h2>{t('users.add')}</h2>
      <Form
        submit={submit}
        action={t('users.submit')}
        off={busy}
        refusal={refusal}
        autoComplete="off"
      >
        <div className="columns">
          <Field
            label={t('users.name')}
            value={name}
            set={setName}
            autoComplete="off"
            autoCapitalize="none"
            spellCheck={false}
            maxLength={256}
            problem={wrong.name ? t('problem.required') : null}
          />
          <Field
            label={t('users.password')}
            value={password}
            set={setPassword}
            type="password"
            autoComplete="new-password"
            hint={t('users.password.optional')}
            problem={wrong.password ? t('problem.weak_password') : null}
          />
        </div>
        <Tick label={t('users.admin')} checked={admin} set={setAdmin} />
      </Form>
      {made && (
        <Secret
          label={rich('users.link', { name: <Untrusted>{made.name}</Untrusted> })}
          value={addressOf(location.origin, made.link)}
          hint={t('users.link.hint')}
        />
      )}
    </section>
  );
}

function EditUser({ user, changed, close }: { user: User; changed(user: User): void; close(): void }) {
  const { t, rich } = useSpeech();
  const { busy, refusal, run } = useWork();
  const [password, setPassword] = useState('');
  const [admin, setAdmin] = useState(user.admin);
  const [disabled, setDisabled] = useState(user.disabled);
  const [cap, setCap] = useState(String(user.max_agent_boxes ?? 0));
  const [wrong, setWrong] = useState<{ password?: boolean; cap?: boolean }>({});

  const submit = () => {
    const most = readWhole(cap, 0, MOST_AGENT_BOXES);
    const found = { password: password !== '' && !isLongEnough(password), cap: most === null };
    setWrong(found);
    if (found.password || most === null) return;
    // what stands as it was is not sent: somebody else may have changed it meanwhile
    const change: UserChange = {
      ...(password !== '' && { password }),
      ...(admin !== user.admin && { admin }),
      ...(disabled !== user.disabled && { disabled }),
      ...(most !== (user.max_agent_boxes ?? 0) && { max_agent_boxes: most }),
    };
    if (Object.keys(change).length === 0) close();
    else void run(async () => changed(await api.changeUser(user.id, change)));
  };

  return (
    <Dialog
      title={rich('users.edit.title', { name: <Untrusted>{user.name}</Untrusted> })}
      busy={busy}
      close={close}
    >
      <Form
        submit={submit}
        action={t('users.edit.submit')}
        off={busy}
        refusal={refusal}
        cancel={<Cancel off={busy} close={close} />}
        autoComplete="off"
      >
        <Field
          label={t('users.edit.password')}
          value={password}
          set={setPassword}
          type="password"
          autoComplete="new-password"
          hint={t('users.edit.password.hint')}
          problem={wrong.password ? t('problem.weak_password') : null}
        />
        <Field
          label={t('users.edit.cap')}
          value={cap}
          set={setCap}
          inputMode="numeric"
          hint={t('users.edit.cap.hint')}
          problem={wrong.cap ? t('users.edit.cap.wrong') : null}
        />
        <Tick label={t('users.admin')} checked={admin} set={setAdmin} />
        <Tick label={t('users.edit.disabled')} checked={disabled} set={setDisabled} />
      </Form>
    </Dialog>
  );
}
