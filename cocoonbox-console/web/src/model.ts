// What the API answers. Times are milliseconds since the epoch.

export interface Me {
  user_id: string;
  name: string;
  admin: boolean;
  has_password: boolean;
  version: string;
  /** How many grants the user has not seen yet. */
  unseen_agents: number;
}

export interface TokenState {
  exists: boolean;
  created_at: number | null;
  used_at: number | null;
}

export interface Device {
  id: string;
  /** `cocoonbox-cli`, `cocoonbox-app`, or empty: signed in by a link. */
  client: string;
  label: string;
  created_at: number;
  used_at: number | null;
}

export interface Agent {
  id: string;
  client_name: string;
  /** The host that vouches for the client; empty: nobody does. */
  client_host: string;
  approved_at: number;
  expires_at: number | null;
  used_at: number | null;
  max_boxes: number;
  max_running: number;
  seen: boolean;
  boxes: { id: string; name: string }[];
}

export type BoxState = 'absent' | 'starting' | 'running' | 'hibernating' | 'hibernated' | 'failed';

export interface Box {
  id: string;
  name: string;
  state: BoxState;
  image: string;
  last_saved_at: number | null;
  /** Made by an agent. */
  agent: boolean;
}

export interface User {
  id: string;
  name: string;
  admin: boolean;
  disabled: boolean;
  created_at: number;
  has_password: boolean;
  /** null: no cap. */
  max_agent_boxes: number | null;
  /** A one-time link, only in the answer that made the user. */
  link?: string;
}

/** A sign-in, or an attempt at one. */
export interface SignIn {
  id: string;
  at: number;
  door: 'password' | 'link' | 'device' | 'agent';
  let_in: boolean;
  /** An address; empty: unknown. */
  from: string;
  /** A device's label or an agent's name; empty for a browser. */
  what: string;
  /** Only in what administrators are told; empty: nobody's. */
  user_name?: string;
}

export interface SignIns {
  sign_ins: SignIn[];
  /** Where the next answer goes on; empty: nowhere. */
  next: string;
}

export interface UserChange {
  disabled?: boolean;
  password?: string;
  admin?: boolean;
  /** 0: no cap. */
  max_agent_boxes?: number;
}

/** A program of ours that asks for the whole account. */
export interface AccountRequest {
  account: true;
  client_name: string;
  device_name: string;
  redirect_host: string;
  loopback: boolean;
}

/** An agent that asks for boxes of its own. */
export interface AgentRequest {
  account: false;
  client_name: string;
  client_host: string;
  redirect_host: string;
  loopback: boolean;
  max_boxes: number;
  max_running: number;
  days: number;
  has_grant: boolean;
}

export type Check = AccountRequest | AgentRequest | { redirect: string };
