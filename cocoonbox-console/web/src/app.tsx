import { type ReactNode, useCallback, useEffect, useMemo, useState } from 'react';

import { api, Refusal } from './api';
import type { Me } from './model';
import { AccountPage } from './pages/account';
import { AgentsPage } from './pages/agents';
import { BoxesPage } from './pages/boxes';
import { ConsentPage } from './pages/consent';
import { DevicesPage } from './pages/devices';
import { LinkPage } from './pages/link';
import { SignInPage } from './pages/signin';
import { TokensPage } from './pages/tokens';
import { UsersPage } from './pages/users';
import { PageLink } from './pagelink';
import { Button, Title, Untrusted, Waiting } from './parts';
import { CONSENT, HOME, PAGES, usePath } from './route';
import { NoticeContext, SessionContext, useSession } from './session';
import { LanguageSwitch, useSpeech } from './text/speech';
import { useWork } from './work';

/** Who is signed in: not known yet, nobody, or somebody. */
type Who = Me | null | 'unknown';

/** How long it is said what came of something. */
const NOTICE_MS = 10_000;

interface AppProps {
  firstLink: string | null;
  takeLink(): string | null;
}

export function App({ firstLink, takeLink }: AppProps) {
  const path = usePath();
  const [who, setWho] = useState<Who>('unknown');
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const [link, setLink] = useState(firstLink);
  const [notice, setNotice] = useState('');

  const load = useCallback(() => {
    setRefusal(null);
    api.me().then(setWho, (thrown: unknown) => {
      const told = thrown instanceof Refusal ? thrown : new Refusal(0, 'unexpected', String(thrown));
      if (told.code === 'signed_out') setWho(null);
      else setRefusal(told);
    });
  }, []);
  useEffect(load, [load]);

  // a link that is put into the address of a page that is open already
  useEffect(() => {
    const look = () => {
      const taken = takeLink();
      if (taken !== null) setLink(taken);
    };
    window.addEventListener('hashchange', look);
    return () => window.removeEventListener('hashchange', look);
  }, [takeLink]);

  // what was said about one page is not about the next
  useEffect(() => setNotice(''), [path]);
  // it lies over the page's lower edge, and the page itself shows what came of it
  useEffect(() => {
    const timer = setTimeout(() => setNotice(''), NOTICE_MS);
    return () => clearTimeout(timer);
  }, [notice]);

  const begin = (me: Me) => {
    setNotice('');
    setLink(null);
    setWho(me);
  };

  const session = useMemo(
    () =>
      who === null || who === 'unknown'
        ? null
        : {
            me: who,
            change: (change: Partial<Me>) =>
              setWho((before) =>
                before === null || before === 'unknown' ? before : { ...before, ...change },
              ),
            end: (words = '') => {
              setWho(null);
              setNotice(words);
            },
          },
    [who],
  );

  let content: ReactNode;
  if (link !== null) content = <LinkPage link={link} begin={begin} leave={() => setLink(null)} />;
  else if (who === 'unknown') content = <Waiting refusal={refusal} retry={load} />;
  else if (who === null) content = <SignInPage forConsent={path === CONSENT} begin={begin} />;
  else content = <Page path={path} />;

  return (
    <SessionContext value={session}>
      <NoticeContext value={setNotice}>
        <Frame path={path} bare={link !== null || session === null || path === CONSENT} notice={notice}>
          {content}
        </Frame>
      </NoticeContext>
    </SessionContext>
  );
}

function Page({ path }: { path: string }) {
  const { me } = useSession();
  switch (path) {
    case HOME:
      return <BoxesPage />;
    case CONSENT:
      return <ConsentPage />;
    case '/cb/agents':
      return <AgentsPage />;
    case '/cb/devices':
      return <DevicesPage />;
    case '/cb/tokens':
      return <TokensPage />;
    case '/cb/account':
      return <AccountPage />;
    case '/cb/users':
      // the server decides; this spares somebody else a page of refusals
      return me.admin ? <UsersPage /> : <NotFoundPage />;
    default:
      return <NotFoundPage />;
  }
}

function NotFoundPage() {
  const { t } = useSpeech();
  return (
    <>
      <Title text={t('not_found.title')} />
      <p>
        <PageLink path={HOME}>{t('not_found.back')}</PageLink>
      </p>
    </>
  );
}

interface FrameProps {
  path: string;
  /** Without the row of pages: a question that is to be answered first. */
  bare: boolean;
  notice: string;
  children: ReactNode;
}

function Frame({ path, bare, notice, children }: FrameProps) {
  const { t } = useSpeech();
  return (
    <>
      {!bare && (
        <a
          className="skip"
          href="#title"
          onClick={(event) => {
            event.preventDefault();
            document.getElementById('title')?.focus();
          }}
        >
          {t('nav.skip')}
        </a>
      )}
      <header>
        <div className="bar">
          <span className="brand">cocoonbox</span>
          {!bare && <SignedIn />}
        </div>
        {!bare && <Pages path={path} />}
      </header>
      <main className={bare ? 'narrow' : undefined} key={path}>
        {children}
        <div role="status" aria-live="polite">
          {notice !== '' && <p className="notice good">{notice}</p>}
        </div>
      </main>
      <footer>
        <LanguageSwitch />
        {!bare && <Version />}
      </footer>
    </>
  );
}

function SignedIn() {
  const { t } = useSpeech();
  const { me, end } = useSession();
  const { busy, run } = useWork();
  const leave = () =>
    run(async () => {
      await api.logout();
      end(t('signedout'));
    });
  return (
    <div className="who">
      <Untrusted>{me.name}</Untrusted>
      <Button off={busy} onClick={() => void leave()}>
        {t('signout')}
      </Button>
    </div>
  );
}

function Pages({ path }: { path: string }) {
  const { t } = useSpeech();
  const { me } = useSession();
  return (
    <nav aria-label={t('nav.label')}>
      <ul>
        {PAGES.filter((page) => page.shown === 'all' || me.admin).map((page) => (
          <li key={page.path}>
            <PageLink path={page.path} here={page.path === path}>
              {t(page.title)}
              {page.path === '/cb/agents' && me.unseen_agents > 0 && (
                <span className="badge new">{t('nav.new', { count: me.unseen_agents })}</span>
              )}
            </PageLink>
          </li>
        ))}
      </ul>
    </nav>
  );
}

function Version() {
  const { t } = useSpeech();
  const { me } = useSession();
  return <span className="quiet">{t('version', { version: me.version })}</span>;
}
