import {
  createContext,
  Fragment,
  type ReactNode,
  useCallback,
  useContext,
  useLayoutEffect,
  useMemo,
  useState,
} from 'react';

import type { Key } from './en';
import {
  chooseLanguage,
  type Language,
  LANGUAGES,
  localeFor,
  pieces,
  say,
  storedLanguage,
  storeLanguage,
  TABLES,
  type Values,
} from './language';

interface Speech {
  language: Language;
  /** How times are written. */
  locale: string;
  /** Text alone. */
  t(key: Key, values?: Values): string;
  /** Text with elements in its gaps. */
  rich(key: Key, values: Readonly<Record<string, ReactNode>>): ReactNode;
  speak(language: Language): void;
}

const SpeechContext = createContext<Speech | null>(null);

export function useSpeech(): Speech {
  const speech = useContext(SpeechContext);
  if (speech === null) throw new Error('no language here');
  return speech;
}

export function SpeechProvider({ children }: { children: ReactNode }) {
  const [language, setLanguage] = useState(() => chooseLanguage(storedLanguage(), navigator.languages));
  useLayoutEffect(() => {
    document.documentElement.lang = language;
  }, [language]);
  const speak = useCallback((next: Language) => {
    storeLanguage(next);
    setLanguage(next);
  }, []);
  const speech = useMemo<Speech>(
    () => ({
      language,
      locale: localeFor(language, navigator.languages),
      t: (key, values) => say(language, key, values),
      rich: (key, values) =>
        pieces(TABLES[language][key]).map((piece, place) => (
          <Fragment key={place}>{place % 2 === 0 ? piece : values[piece]}</Fragment>
        )),
      speak,
    }),
    [language, speak],
  );
  return <SpeechContext value={speech}>{children}</SpeechContext>;
}

export function LanguageSwitch() {
  const { language, t, speak } = useSpeech();
  return (
    <div className="languages" role="group" aria-label={t('language.label')}>
      {LANGUAGES.map((choice) => (
        <button
          key={choice.language}
          type="button"
          className="plain"
          lang={choice.language}
          aria-pressed={choice.language === language}
          onClick={() => speak(choice.language)}
        >
          {choice.name}
        </button>
      ))}
    </div>
  );
}
