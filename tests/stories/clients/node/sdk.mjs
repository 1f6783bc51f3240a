// The TypeScript SDK of MCP as an outside agent, from its first 401 to the end of its grant: sdk.mjs ENDPOINT.
// Prints one JSON line of what was seen.

import assert from 'node:assert/strict';

import { allow, installed, refused } from './story.mjs';

const { Client } = installed('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = installed('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { UnauthorizedError } = installed('@modelcontextprotocol/sdk/client/auth.js');

const control = new URL(`${process.argv[2]}/cocoonbox.mcp/control`);
const redirect = 'http://127.0.0.1/callback';

// what the SDK asks the server, in its order, but for the stream of a session, which it opens when it likes
let trail = [];
async function asked(address, init) {
  const answer = await fetch(address, init);
  const request = `${init?.method ?? 'GET'} ${new URL(address).pathname}`;
  if (request !== `GET ${control.pathname}`) trail.push(`${request} ${answer.status}`);
  return answer;
}
function trailed() {
  const until = trail;
  trail = [];
  return until;
}

/** Keeps in memory what the SDK is told, and takes the person to the consent page. */
class Provider {
  redirectUrl = redirect;
  clientMetadata = {
    client_name: 'An agent of the SDK',
    redirect_uris: [redirect],
    grant_types: ['authorization_code', 'refresh_token'],
    token_endpoint_auth_method: 'none',
  };
  kept = {};
  state() {
    return (this.kept.state = crypto.randomUUID());
  }
  clientInformation() {
    return this.kept.client;
  }
  saveClientInformation(client) {
    this.kept.client = client;
  }
  tokens() {
    return this.kept.tokens;
  }
  saveTokens(tokens) {
    this.kept.tokens = tokens;
  }
  codeVerifier() {
    return this.kept.verifier;
  }
  saveCodeVerifier(verifier) {
    this.kept.verifier = verifier;
  }
  saveDiscoveryState(discovery) {
    this.kept.discovery = discovery;
  }
  discoveryState() {
    return this.kept.discovery;
  }
  invalidateCredentials(scope) {
    if (scope === 'all' || scope === 'client') delete this.kept.client;
    if (scope === 'all' || scope === 'tokens') delete this.kept.tokens;
    if (scope === 'all' || scope === 'discovery') delete this.kept.discovery;
  }
  async redirectToAuthorization(address) {
    this.kept.asked = Object.fromEntries(address.searchParams);
    this.kept.back = (await allow(address)).searchParams;
  }
}

const provider = new Provider();
const faults = [];
async function connected(sessionId) {
  const transport = new StreamableHTTPClientTransport(control, { authProvider: provider, fetch: asked, sessionId });
  const client = new Client({ name: 'story', version: '1' });
  client.onerror = (error) => faults.push(String(error));
  const said = await client.connect(transport).then(() => null, (error) => error);
  return { client, transport, said };
}

const seen = {};
// nobody is let in, so the person is asked
const first = await connected();
assert.ok(first.said instanceof UnauthorizedError, String(first.said));
seen.discovery = trailed();
// it keeps the address that the challenge named; without one it would guess the same
seen.challenge = new URL(provider.kept.discovery.resourceMetadataUrl ?? 'none:').pathname;
seen.asked = { scope: provider.kept.asked.scope ?? null, resource: provider.kept.asked.resource };
const { back } = provider.kept;
assert.equal(back.get('state'), provider.kept.state);
assert.equal(back.get('iss'), provider.kept.discovery.authorizationServerMetadata.issuer);
await first.transport.finishAuth(back.get('code'));
seen.exchange = trailed();
assert.deepEqual(faults.splice(0), ['Error: Unauthorized']);

const { client, transport, said } = await connected();
assert.equal(said, null);
seen.server = client.getServerVersion().name;
const { tools } = await client.listTools();
seen.tools = tools.map((tool) => tool.name).sort();
// the SDK checks each structured answer against the schema that the tool told, and throws where they differ
assert.ok(tools.every((tool) => tool.outputSchema));
async function call(name, args, options) {
  const told = await client.callTool({ name, arguments: args }, undefined, options);
  assert.ok(!told.isError, JSON.stringify(told.content));
  return told.structuredContent;
}

seen.before = (await call('box_list', {})).boxes;
const progress = [];
const made = await call('box_create', { name: 'by-sdk' }, { onprogress: (told) => progress.push(told) });
seen.made = made.state;
assert.ok(progress.length > 0, 'the SDK was told of no progress');
const rises = progress.every((told, at) => at === 0 || told.progress > progress[at - 1].progress);
assert.ok(rises, JSON.stringify(progress));
seen.last = progress.at(-1).message;
seen.after = (await call('box_list', {})).boxes.map((box) => box.name);
const second = await client.callTool({ name: 'box_create', arguments: { name: 'second' } });
seen.second = [second.isError, second.content[0].text];
const unknown = await refused(() => client.callTool({ name: 'box_lost', arguments: {} }));
seen.unknown = unknown.code;

// the access token is lost: the SDK refreshes by itself, and its session goes on
trailed();
const { tokens } = provider.kept;
const session = transport.sessionId;
provider.kept.tokens = { ...tokens, access_token: `cba_${'0'.repeat(64)}` };
seen.refreshed = (await call('box_list', {})).boxes.map((box) => box.name);
seen.refresh = trailed();
assert.notEqual(provider.kept.tokens.access_token, tokens.access_token);
assert.notEqual(provider.kept.tokens.refresh_token, tokens.refresh_token);
assert.equal(transport.sessionId, session);
seen.deleted = (await call('box_delete', { box: 'by-sdk', confirm: true })).box_id === made.box_id;

// the end of a session is the end of that session alone
const other = await connected();
const ended = other.transport.sessionId;
trailed();
await other.transport.terminateSession();
seen.end = trailed();
assert.equal(other.transport.sessionId, undefined);
assert.deepEqual(faults.splice(0), []);
await other.client.close();
seen.ended = (await refused(async () => (await connected(ended)).client.listTools())).code;
seen.goes_on = (await call('box_list', {})).boxes;

faults.splice(0);

// the grant ends, and with it the refresh token: the SDK would have to ask the person again
const { authorizationServerMetadata } = provider.kept.discovery;
const revocation = await fetch(authorizationServerMetadata.revocation_endpoint, {
  method: 'POST',
  body: new URLSearchParams({
    token: provider.kept.tokens.refresh_token,
    token_type_hint: 'refresh_token',
    client_id: provider.kept.client.client_id,
  }),
});
seen.revocation = revocation.status;
provider.redirectToAuthorization = () => {};
trailed();
const shutOut = await refused(() => client.listTools());
seen.shut_out = [shutOut instanceof UnauthorizedError, trailed(), provider.kept.tokens ?? null];
await client.close();
console.log(JSON.stringify(seen));
