// What the clients of this folder share: the packages of the lock file, and somebody at a browser.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

// where scripts/need.sh puts them
export const installed = createRequire(new URL('../../../../target/node-clients/package.json', import.meta.url));

async function answer(address, verb) {
  const { origin, search } = new URL(address);
  let cookie = '';
  const call = async (path, body) => {
    const told = await fetch(`${origin}/cb/api/${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', origin, 'sec-fetch-site': 'same-origin', cookie },
      body: JSON.stringify(body),
    });
    assert.ok(told.ok, `${path}: ${told.status} ${await told.clone().text()}`);
    cookie = told.headers.getSetCookie()[0]?.split(';')[0] ?? cookie;
    return told.json();
  };
  await call('login', { name: 'admin', password: process.env.PERSON_PASSWORD });
  const query = search.slice(1);
  const asked = await call('oauth/check', { query });
  // a fault goes back to the client at once
  return new URL(asked.redirect ?? (await call(`oauth/${verb}`, { query })).redirect);
}

/** Signs in, allows what the address of the consent page asks for, and returns where the browser goes then. */
export const allow = (address) => answer(address, 'approve');

/** The same, and says no. */
export const deny = (address) => answer(address, 'deny');

/** What begins a session of the MCP: headers and body of a POST. */
export const hello = {
  headers: new Headers({ 'content-type': 'application/json', accept: 'application/json, text/event-stream' }),
  body: JSON.stringify({
    jsonrpc: '2.0',
    id: 1,
    method: 'initialize',
    params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'story', version: '1' } },
  }),
};

/** Returns what `work` is refused with. */
export async function refused(work) {
  try {
    await work();
  } catch (error) {
    return error;
  }
  throw new Error('this must be refused');
}
