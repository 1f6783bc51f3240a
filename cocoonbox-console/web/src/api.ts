// The one way to the server.

import type { Caps } from './caps';
import type { Agent, Box, Check, Device, Me, SignIns, TokenState, User, UserChange } from './model';

/** Why a call was refused: a code that the pages have words for, and the server's own words. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryAfterSeconds: number | null = null,
  ) {
    super(message);
    this.name = 'Refusal';
  }
}

/** Reads a refusal out of an answer's text, which may come from a proxy and be anything. */
export function readRefusal(status: number, text: string): Refusal {
  try {
    const { error } = JSON.parse(text) as { error?: Record<string, unknown> };
    if (error && typeof error['code'] === 'string' && typeof error['message'] === 'string') {
      const wait = error['retry_after_seconds'];
      return new Refusal(status, error['code'], error['message'], typeof wait === 'number' ? wait : null);
    }
  } catch {
    // not of this API: told by its status alone
  }
  return new Refusal(status, status >= 500 ? 'unavailable' : 'unexpected', `HTTP ${status}`);
}

async function call<T>(method: 'GET' | 'POST' | 'PATCH' | 'DELETE', path: string, body?: object): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(`/cb/api/${path}`, {
      method,
      cache: 'no-store',
      redirect: 'error',
      ...(body && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    });
  } catch {
    throw new Refusal(0, 'offline', 'no answer');
  }
  const text = await answer.text();
  if (!answer.ok) throw readRefusal(answer.status, text);
  return (text === '' ? undefined : JSON.parse(text)) as T;
}

/** An id goes into a path as one part of it, whatever is in it. */
const part = encodeURIComponent;

const since = (before: string) => (before === '' ? '' : `?before=${part(before)}`);

export const api = {
  me: () => call<Me>('GET', 'me'),
  login: (name: string, password: string) => call<Me>('POST', 'login', { name, password }),
  loginWithLink: (link: string, password: string) => call<Me>('POST', 'login/link', { link, password }),
  logout: () => call<void>('POST', 'logout', {}),
  changePassword: (old: string, fresh: string) => call<void>('POST', 'me/password', { old, new: fresh }),
  signOutEverywhere: () => call<void>('POST', 'me/sign-out-everywhere', {}),

  token: () => call<TokenState>('GET', 'me/token'),
  makeToken: () => call<{ token: string }>('POST', 'me/token', {}),
  revokeToken: () => call<void>('DELETE', 'me/token'),

  devices: () => call<{ devices: Device[] }>('GET', 'devices'),
  revokeDevice: (id: string) => call<void>('DELETE', `devices/${part(id)}`),

  signIns: (before: string) => call<SignIns>('GET', `me/sign-ins${since(before)}`),
  everybodysSignIns: (before: string) => call<SignIns>('GET', `sign-ins${since(before)}`),

  agents: () => call<{ agents: Agent[] }>('GET', 'agents'),
  revokeAgent: (id: string) => call<void>('DELETE', `agents/${part(id)}`),
  agentsSeen: () => call<void>('POST', 'agents/seen', {}),

  check: (query: string) => call<Check>('POST', 'oauth/check', { query }),
  approve: (query: string, caps: Caps | null) =>
    call<{ redirect: string }>('POST', 'oauth/approve', {
      query,
      ...(caps && { max_boxes: caps.maxBoxes, max_running: caps.maxRunning, days: caps.days }),
    }),
  deny: (query: string) => call<{ redirect: string }>('POST', 'oauth/deny', { query }),

  users: () => call<{ users: User[] }>('GET', 'users'),
  makeUser: (name: string, password: string, admin: boolean) =>
    call<User>('POST', 'users', { name, password, admin }),
  changeUser: (id: string, change: UserChange) => call<User>('PATCH', `users/${part(id)}`, change),
  deleteUser: (id: string) => call<void>('DELETE', `users/${part(id)}`),

  boxes: () => call<{ boxes: Box[] }>('GET', 'boxes'),
  ensureFirstBox: () => call<{ id: string; operation_id: string }>('POST', 'boxes/ensure', {}),
  ensureBox: (id: string) => call<{ operation_id: string }>('POST', `boxes/${part(id)}/ensure`, {}),
  hibernateBox: (id: string) => call<{ operation_id: string }>('POST', `boxes/${part(id)}/hibernate`, {}),
  deleteBox: (id: string) => call<{ operation_id: string }>('DELETE', `boxes/${part(id)}`),
};

export const BOX_EVENTS = '/cb/api/boxes/events';
