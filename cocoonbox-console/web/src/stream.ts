// A stream of events that heals itself. `EventSource` would say neither why it failed nor that nothing comes any more,
// so the stream is read here.

export interface StreamEvent {
  name: string;
  data: string;
}

/** Takes an event stream apart (WHATWG HTML, section 9.2), as far as our server uses it. */
export class EventReader {
  #rest = '';
  #name = '';
  #data: string[] = [];

  /** The longest line kept; what comes longer is no stream of ours. */
  static readonly LONGEST = 4 * 1024 * 1024;

  /** Takes what arrived and returns the events that are whole by now. */
  push(text: string): StreamEvent[] {
    const events: StreamEvent[] = [];
    this.#rest += text;
    if (this.#rest.length > EventReader.LONGEST) throw new RangeError('a line of the stream does not end');
    // a carriage return at the end may be half of a line's end
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line === '') {
        if (this.#data.length > 0)
          events.push({ name: this.#name || 'message', data: this.#data.join('\n') });
        this.#name = '';
        this.#data = [];
        continue;
      }
      const colon = line.indexOf(':');
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') this.#name = value;
      if (field === 'data') this.#data.push(value);
    }
    return events;
  }
}

/** Returns how long to wait before try number `attempt` (from 0): doubling from 1 s to 30 s, spread by a quarter. */
export function pause(attempt: number, random: number): number {
  const base = Math.min(30_000, 1000 * 2 ** Math.min(attempt, 10));
  return Math.round(base * (0.75 + random / 2));
}

/** The server says something every 15 s; after three silent ones the line is dead. */
const SILENCE_MS = 45_000;

export interface Follower {
  event(event: StreamEvent): void;
  /** Whether events come. */
  live(live: boolean): void;
  /** The session ended; the stream is over. */
  signedOut(): void;
}

/**
 * Follows the stream at `path` until the returned function is called. While the page is hidden the stream is closed: a
 * browser has six connections to a server, and a tab that nobody looks at should hold none of them.
 */
export function follow(path: string, follower: Follower): () => void {
  let stopped = false;
  let attempt = 0;
  let connection: AbortController | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const again = (wait: number) => {
    clearTimeout(timer);
    if (!stopped && document.visibilityState === 'visible') timer = setTimeout(() => void connect(), wait);
  };

  const connect = async () => {
    connection?.abort();
    const mine = new AbortController();
    connection = mine;
    let silence = setTimeout(() => mine.abort(), SILENCE_MS);
    try {
      const answer = await fetch(path, { signal: mine.signal, cache: 'no-store', redirect: 'error' });
      if (answer.status === 401) {
        stop();
        follower.signedOut();
        return;
      }
      if (!answer.ok || !answer.body) throw new Error(`HTTP ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const events = new EventReader();
      follower.live(true);
      for (;;) {
        const { done, value } = await reader.read();
        if (done || mine.signal.aborted) break;
        attempt = 0;
        clearTimeout(silence);
        silence = setTimeout(() => mine.abort(), SILENCE_MS);
        for (const event of events.push(value)) follower.event(event);
      }
    } catch {
      // told by `live`, and tried again
    } finally {
      clearTimeout(silence);
    }
    mine.abort();
    if (stopped || connection !== mine) return;
    follower.live(false);
    again(pause(attempt++, Math.random()));
  };

  const wake = () => {
    attempt = 0;
    if (document.visibilityState === 'visible') again(0);
    else {
      clearTimeout(timer);
      connection?.abort();
    }
  };

  const stop = () => {
    stopped = true;
    clearTimeout(timer);
    connection?.abort();
    document.removeEventListener('visibilitychange', wake);
    window.removeEventListener('online', wake);
  };

  document.addEventListener('visibilitychange', wake);
  window.addEventListener('online', wake);
  // not at once where the page was opened behind another
  again(0);
  return stop;
}
