// A small server that answers as the real one does: the built pages with the real headers, and the API over a few
// records in memory. It is as strict as the contract where the pages could go wrong.

import { existsSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';

import type { Agent, Box, Check, Device, SignIns, TokenState, User } from '../../src/model';

const DIST = join(import.meta.dirname, '../../dist');

/** Returns a text of the Rust side, so that what is tried here is what is served there. */
function policy(name: string): string {
  const source = readFileSync(join(import.meta.dirname, '../../../src/policy.rs'), 'utf8');
  const text = new RegExp(`const ${name}: &str = "([^"]*)"`).exec(source)?.[1];
  if (text === undefined) throw new Error(`policy.rs has no ${name}`);
  return text.replace(/\\\n\s*/g, '');
}

const HEADERS = {
  'content-security-policy': policy('CONTENT'),
  'permissions-policy': policy('PERMISSIONS'),
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
};

const PAGES = new Set([
  '/cb/',
  '/cb/oauth/authorize',
  '/cb/agents',
  '/cb/devices',
  '/cb/tokens',
  '/cb/users',
  '/cb/account',
]);

const TYPES: Record<string, string> = {
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
};

class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly more: object = {},
  ) {
    super(`refused: ${code}`);
  }
}

export interface Call {
  method: string;
  path: string;
  body: Record<string, unknown>;
}

export const PASSWORD = 'correct horse';
export const TOKEN = `cb_${'5e'.repeat(32)}`;
export const LINK = `cbl_${'7f'.repeat(32)}`;
/** What an agent asks for, and what the command line does. */
export const AGENT = {
  account: false,
  client_name: 'Claude',
  client_host: 'claude.ai',
  redirect_host: '127.0.0.1:5000',
  loopback: true,
  max_boxes: 2,
  max_running: 1,
  days: 30,
  has_grant: false,
} as const satisfies Check;
export const DEVICE = {
  account: true,
  client_name: 'cocoonbox CLI',
  device_name: 'workbench',
  redirect_host: '127.0.0.1:5000',
  loopback: true,
} as const satisfies Check;
const MINUTE = 60_000;

export class FakeServer {
  readonly calls: Call[] = [];
  signedIn = false;
  hasPassword = true;
  agents: Agent[] = [];
  devices: Device[] = [];
  signIns: SignIns = { sign_ins: [], next: '' };
  olderSignIns: SignIns = { sign_ins: [], next: '' };
  #query = '';
  users: User[] = [];
  boxes: Box[] = [];
  token: TokenState = { exists: false, created_at: null, used_at: null };
  check: Check | Refused = new Refused(400, 'untrusted');
  answer = '';
  /** Whether it refuses every stream. */
  down = false;
  /** How often a stream was asked for. */
  tries = 0;
  #server: Server;
  #streams = new Set<ServerResponse>();

  private constructor() {
    this.#server = createServer((request, answer) => void this.#handle(request, answer));
  }

  static async start(): Promise<FakeServer> {
    const fake = new FakeServer();
    await new Promise<void>((ready) => fake.#server.listen(0, '127.0.0.1', ready));
    return fake;
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  reset(): void {
    const now = Date.now();
    this.calls.length = 0;
    this.signedIn = true;
    this.hasPassword = true;
    this.down = false;
    this.tries = 0;
    this.token = { exists: true, created_at: now - 90 * 1440 * MINUTE, used_at: now - 4 * MINUTE };
    this.agents = [
      {
        id: 'grant_2',
        client_name: 'Claude',
        client_host: 'claude.ai',
        approved_at: now - 20 * MINUTE,
        expires_at: now + 30 * 1440 * MINUTE,
        used_at: now - MINUTE,
        max_boxes: 2,
        max_running: 1,
        seen: false,
        boxes: [
          { id: 'cb-aaaaaaaaaa', name: 'refactoring' },
          { id: 'cb-bbbbbbbbbb', name: 'benchmarks' },
        ],
      },
      {
        id: 'grant_1',
        client_name: 'Nightly reviewer <b>of everything</b> \u202Ethat runs backwards',
        client_host: '',
        approved_at: now - 12 * 1440 * MINUTE,
        expires_at: now + 78 * 1440 * MINUTE,
        used_at: null,
        max_boxes: 4,
        max_running: 4,
        seen: true,
        boxes: [],
      },
    ];
    this.signIns.sign_ins = (['device', 'password', 'agent', 'link'] as const).map((door, number) => ({
      id: `si_${number}`,
      at: now - 17 ** number * MINUTE,
      door,
      let_in: door !== 'password',
      from: door === 'link' ? '' : '2001:db8:85a3:8d3:1319:8a2e:370:7348',
      what: door === 'device' ? 'workbench' : door === 'agent' ? 'Claude Code' : '',
    }));
    this.devices = [
      {
        id: 'dev_1',
        client: 'cocoonbox-cli',
        label: 'workbench',
        created_at: now - 40 * 1440 * MINUTE,
        used_at: now - 2 * MINUTE,
      },
      {
        id: 'dev_2',
        client: 'cocoonbox-app',
        label: 'Ada’s MacBook Pro',
        created_at: now - 3 * 1440 * MINUTE,
        used_at: now - 300 * MINUTE,
      },
      {
        id: 'dev_3',
        client: '',
        label: 'a-rather-long-host-name-of-a-build-machine.internal.example.org',
        created_at: now - 1440 * MINUTE,
        used_at: null,
      },
    ];
    this.users = [
      {
        id: 'usr_1',
        name: 'admin',
        admin: true,
        disabled: false,
        created_at: now - 200 * 1440 * MINUTE,
        has_password: true,
        max_agent_boxes: null,
      },
      {
        id: 'usr_2',
        name: 'ada',
        admin: false,
        disabled: false,
        created_at: now - 30 * 1440 * MINUTE,
        has_password: true,
        max_agent_boxes: 8,
      },
      {
        id: 'usr_3',
        name: 'grace',
        admin: false,
        disabled: true,
        created_at: now - 2 * 1440 * MINUTE,
        has_password: false,
        max_agent_boxes: 2,
      },
    ];
    this.boxes = [
      {
        id: 'cb-mainmainma',
        name: 'main',
        state: 'running',
        image: 'host',
        last_saved_at: now - 11 * MINUTE,
        agent: false,
      },
      {
        id: 'cb-sleepsleep',
        name: 'experiments',
        state: 'hibernated',
        image: 'work:2',
        last_saved_at: now - 50 * 1440 * MINUTE,
        agent: false,
      },
      {
        id: 'cb-aaaaaaaaaa',
        name: 'refactoring',
        state: 'failed',
        image: 'work:2',
        last_saved_at: null,
        agent: true,
      },
    ];
    this.answer = `${this.origin}/callback?code=abc&state=xyz&iss=${encodeURIComponent(this.origin)}`;
  }

  refuse(status: number, code: string, more: object = {}): Refused {
    return new Refused(status, code, more);
  }

  /** The bodies of the calls to a path. */
  bodies(method: string, path: string): Record<string, unknown>[] {
    return this.calls.filter((call) => call.method === method && call.path === path).map((call) => call.body);
  }

  setState(id: string, state: Box['state']): void {
    this.boxes = this.boxes.map((box) => (box.id === id ? { ...box, state } : box));
    this.tell();
  }

  tell(): void {
    for (const stream of this.#streams)
      stream.write(`event: boxes\ndata: ${JSON.stringify({ boxes: this.boxes })}\n\n`);
  }

  /** Ends every stream, as a server that starts anew does. */
  cut(): void {
    for (const stream of this.#streams) stream.destroy();
  }

  get streams(): number {
    return this.#streams.size;
  }

  async #handle(request: IncomingMessage, answer: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', this.origin);
    const method = request.method ?? 'GET';
    if (url.pathname === '/callback') {
      answer.setHeader('content-type', 'text/html');
      answer.end('<!doctype html><link rel="icon" href="data:,"><p>This page can be closed.</p>');
    } else if (url.pathname === '/cb/api/boxes/events' && this.signedIn) {
      this.tries += 1;
      if (this.down) {
        answer.writeHead(503).end();
        return;
      }
      answer.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
      this.#streams.add(answer);
      answer.on('close', () => this.#streams.delete(answer));
      answer.write(': keep-alive\n\n');
      answer.write(`event: boxes\ndata: ${JSON.stringify({ boxes: this.boxes })}\n\n`);
    } else if (url.pathname.startsWith('/cb/api/')) {
      await this.#api(method, url.pathname.slice('/cb/api/'.length), request, answer);
    } else if (PAGES.has(url.pathname)) {
      answer.writeHead(200, {
        ...HEADERS,
        'content-type': 'text/html; charset=utf-8',
        'cache-control': 'no-store',
      });
      answer.end(readFileSync(join(DIST, 'index.html')));
    } else if (/^\/cb\/assets\/[\w.-]+$/.test(url.pathname)) {
      const file = join(DIST, url.pathname.slice('/cb/'.length));
      const gzip = /\bgzip\b/.test(String(request.headers['accept-encoding'])) && existsSync(`${file}.gz`);
      answer.writeHead(200, {
        ...HEADERS,
        'content-type': TYPES[url.pathname.split('.').pop() ?? ''] ?? '',
        ...(gzip && { 'content-encoding': 'gzip' }),
      });
      answer.end(readFileSync(gzip ? `${file}.gz` : file));
    } else {
      answer.writeHead(404, HEADERS);
      answer.end();
    }
  }

  async #api(method: string, path: string, request: IncomingMessage, answer: ServerResponse): Promise<void> {
    let text = '';
    for await (const piece of request) text += String(piece);
    try {
      if (method !== 'GET' && request.headers['sec-fetch-site'] !== 'same-origin')
        throw new Refused(403, 'cross_site');
      if (text !== '' && request.headers['content-type'] !== 'application/json')
        throw new Refused(400, 'invalid');
      const body = text === '' ? {} : (JSON.parse(text) as Record<string, unknown>);
      if (method !== 'GET') this.calls.push({ method, path, body });
      this.#query = new URL(request.url ?? '', this.origin).search;
      const result = this.#call(method, path, body);
      answer.writeHead(result === undefined ? 204 : 200, { 'content-type': 'application/json' });
      answer.end(result === undefined ? undefined : JSON.stringify(result));
    } catch (thrown) {
      if (!(thrown instanceof Refused)) throw thrown;
      answer.writeHead(thrown.status, { 'content-type': 'application/json' });
      answer.end(JSON.stringify({ error: { code: thrown.code, message: thrown.message, ...thrown.more } }));
    }
  }

  #me(): object {
    return {
      user_id: 'usr_1',
      name: 'admin',
      admin: true,
      has_password: this.hasPassword,
      version: '0.1.0',
      unseen_agents: this.agents.filter((agent) => !agent.seen).length,
    };
  }

  #call(method: string, path: string, body: Record<string, unknown>): unknown {
    const route = `${method} ${path}`;
    if (route === 'POST login') {
      if (body['password'] === 'slow') throw new Refused(429, 'too_many', { retry_after_seconds: 90 });
      if (body['name'] !== 'admin' || body['password'] !== PASSWORD) throw new Refused(401, 'wrong_password');
      this.signedIn = true;
      return this.#me();
    }
    if (route === 'POST login/link') {
      if (body['link'] !== LINK) throw new Refused(401, 'link_refused');
      this.signedIn = true;
      this.hasPassword = true;
      return this.#me();
    }
    if (!this.signedIn) throw new Refused(401, 'signed_out');
    const id = path.split('/')[1] ?? '';
    switch (route.replace(id === '' || id === 'ensure' || id === 'seen' ? '\0' : `/${id}`, '/:id')) {
      case 'GET me':
        return this.#me();
      case 'POST logout':
      case 'POST me/:id':
        return this.#mine(id, body);
      case 'GET me/:id':
        if (id === 'token') return this.token;
        return this.#query === '?before=5.si_4' ? this.olderSignIns : this.signIns;
      case 'DELETE me/:id':
        this.token = { exists: false, created_at: null, used_at: null };
        return undefined;
      case 'GET sign-ins':
        return { ...this.signIns, sign_ins: this.signIns.sign_ins.map((one) => ({ ...one, user_name: 'jo' })) };
      case 'GET devices':
        return { devices: this.devices };
      case 'DELETE devices/:id':
        this.devices = this.#without(this.devices, id);
        return undefined;
      case 'GET agents':
        return { agents: this.agents };
      case 'POST agents/seen':
        this.agents = this.agents.map((agent) => ({ ...agent, seen: true }));
        return undefined;
      case 'DELETE agents/:id':
        this.agents = this.#without(this.agents, id);
        return undefined;
      case 'POST oauth/:id':
        if (id !== 'check') return { redirect: this.answer };
        if (this.check instanceof Refused) throw this.check;
        return this.check;
      case 'GET users':
        return { users: this.users };
      case 'POST users':
        return this.#makeUser(body);
      case 'PATCH users/:id':
        return this.#changeUser(id, body);
      case 'DELETE users/:id':
        this.users = this.#without(this.users, id);
        return undefined;
      case 'GET boxes':
        return { boxes: this.boxes };
      case 'POST boxes/ensure':
        this.boxes = [
          {
            id: 'cb-mainmainma',
            name: 'main',
            state: 'starting',
            image: 'host',
            last_saved_at: null,
            agent: false,
          },
        ];
        this.tell();
        return { id: 'cb-mainmainma', operation_id: 'op_1' };
      case 'POST boxes/:id/ensure':
        this.setState(id, 'starting');
        return { operation_id: 'op_2' };
      case 'POST boxes/:id/hibernate':
        this.setState(id, 'hibernating');
        return { operation_id: 'op_3' };
      case 'DELETE boxes/:id':
        this.boxes = this.#without(this.boxes, id);
        this.tell();
        return { operation_id: 'op_4' };
      default:
        throw new Refused(404, 'not_found');
    }
  }

  #mine(id: string, body: Record<string, unknown>): unknown {
    if (id === 'token') {
      this.token = { exists: true, created_at: Date.now(), used_at: null };
      return { token: TOKEN };
    }
    if (id === 'password') {
      if (this.hasPassword && body['old'] !== PASSWORD) throw new Refused(401, 'wrong_password');
      this.hasPassword = true;
      return undefined;
    }
    this.signedIn = false;
    return undefined;
  }

  #makeUser(body: Record<string, unknown>): User {
    const name = String(body['name']);
    if (this.users.some((user) => user.name === name)) throw new Refused(409, 'name_taken');
    const user: User = {
      id: `usr_${this.users.length + 1}`,
      name,
      admin: body['admin'] === true,
      disabled: false,
      created_at: Date.now(),
      has_password: body['password'] !== '',
      max_agent_boxes: null,
    };
    this.users = [...this.users, user];
    return body['password'] === '' ? { ...user, link: LINK } : user;
  }

  #changeUser(id: string, body: Record<string, unknown>): User {
    const user = this.users.find((other) => other.id === id);
    if (user === undefined) throw new Refused(404, 'not_found');
    if (body['admin'] === false && user.admin) throw new Refused(409, 'last_admin');
    const {
      password,
      max_agent_boxes: most,
      ...rest
    } = body as { password?: string; max_agent_boxes?: number };
    const changed: User = {
      ...user,
      ...rest,
      has_password: user.has_password || password !== undefined,
      max_agent_boxes: most === undefined ? user.max_agent_boxes : most === 0 ? null : most,
    };
    this.users = this.users.map((other) => (other.id === id ? changed : other));
    return changed;
  }

  #without<T extends { id: string }>(list: T[], id: string): T[] {
    if (!list.some((item) => item.id === id)) throw new Refused(404, 'not_found');
    return list.filter((item) => item.id !== id);
  }
}
