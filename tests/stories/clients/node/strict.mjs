// oauth4webapi, which takes nothing that the RFCs do not say, from discovery to revocation: strict.mjs ENDPOINT.
// It throws where the server is wrong; prints one JSON line of what it was refused.

import assert from 'node:assert/strict';

import { allow, deny, hello, installed, refused } from './story.mjs';

const oauth = installed('oauth4webapi');
// plain http, which is loopback here
const http = { [oauth.allowInsecureRequests]: true };
const nobody = oauth.None();
const redirect = 'http://127.0.0.1/callback';

// the resource says who its authorization server is, and that one says the same of itself. All that lies under the
// resource is part of it: what is told there names the whole
const resource = `${process.argv[2]}/cocoonbox.mcp`;
const control = new URL(`${resource}/control`);
const told = await Promise.all([new URL(resource), control].map(async (place) => oauth.processResourceDiscoveryResponse(
  new URL(resource),
  await oauth.resourceDiscoveryRequest(place, http),
)));
assert.deepEqual(told[0], told[1]);
assert.equal(told[0].authorization_servers.length, 1);
const issuer = new URL(told[0].authorization_servers[0]);
const server = await oauth.processDiscoveryResponse(
  issuer,
  await oauth.discoveryRequest(issuer, { algorithm: 'oauth2', ...http }),
);
assert.ok(server.code_challenge_methods_supported.includes('S256'));
assert.equal(server.authorization_response_iss_parameter_supported, true);

const client = await oauth.processDynamicClientRegistrationResponse(
  await oauth.dynamicClientRegistrationRequest(server, {
    client_name: 'A strict client',
    redirect_uris: [redirect],
    application_type: 'native',
    token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
  }, http),
);

/** Asks the person, and returns what the client needs to go on; throws what comes back instead of a code. */
async function authorized({ scope = 'boxes', asks = resource, person = allow } = {}) {
  const verifier = oauth.generateRandomCodeVerifier();
  const state = oauth.generateRandomState();
  const address = new URL(server.authorization_endpoint);
  address.search = new URLSearchParams({
    response_type: 'code',
    client_id: client.client_id,
    redirect_uri: redirect,
    scope,
    resource: asks,
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  });
  // state and iss are looked at here
  return { callback: oauth.validateAuthResponse(server, client, await person(address), state), verifier };
}
async function exchanged({ callback, verifier }, asks = resource) {
  return oauth.processAuthorizationCodeResponse(server, client, await oauth.authorizationCodeGrantRequest(
    server, client, nobody, callback, redirect, verifier, { ...http, additionalParameters: { resource: asks } },
  ));
}
async function refreshed(token) {
  return oauth.processRefreshTokenResponse(server, client, await oauth.refreshTokenGrantRequest(
    server, client, nobody, token, { ...http, additionalParameters: { resource } },
  ));
}
async function revoked(token) {
  await oauth.processRevocationResponse(await oauth.revocationRequest(server, client, nobody, token, http));
}
/** Begins a session of the MCP with a token. */
async function used(token) {
  const answer = await oauth.protectedResourceRequest(token, 'POST', control, hello.headers, hello.body, http);
  await answer.body?.cancel();
  return answer.status;
}
const code = async (work) => (await refused(work)).error;
const challenge = async (token) => {
  const { status, cause } = await refused(() => used(token));
  return [status, cause[0].scheme, cause[0].parameters.error];
};

const seen = {};
// a grant of which each refresh makes a new pair
const first = await authorized();
const tokens = await exchanged(first);
assert.deepEqual([tokens.token_type, tokens.scope], ['bearer', 'boxes']);
assert.ok(tokens.expires_in > 0);
assert.equal(await used(tokens.access_token), 200);
const second = await refreshed(tokens.refresh_token);
assert.notEqual(second.refresh_token, tokens.refresh_token);
assert.notEqual(second.access_token, tokens.access_token);
assert.equal(await used(second.access_token), 200);
// an answer that was lost may be asked for again, until its successor is shown
assert.equal((await refreshed(tokens.refresh_token)).refresh_token, second.refresh_token);
const third = await refreshed(second.refresh_token);
assert.equal(await used(third.access_token), 200);
seen.replayed_refresh = await code(() => refreshed(tokens.refresh_token));
seen.newest_after_replay = await code(() => refreshed(third.refresh_token));
seen.access_after_replay = await challenge(third.access_token);

// a code that is shown twice ends what it made
const again = await authorized();
const ended = await exchanged(again);
seen.replayed_code = await code(() => exchanged(again));
seen.refresh_after_code = await code(() => refreshed(ended.refresh_token));

// what may not be had
seen.wrong_verifier = await code(async () =>
  exchanged({ ...(await authorized()), verifier: oauth.generateRandomCodeVerifier() }));
seen.foreign_resource = await code(() => authorized({ asks: 'http://127.0.0.1:1/elsewhere' }));
seen.foreign_resource_of_token = await code(async () =>
  exchanged(await authorized(), 'http://127.0.0.1:1/elsewhere'));
seen.account = await code(() => authorized({ scope: 'account' }));
seen.no = await code(() => authorized({ person: deny }));

// revocation ends the whole grant, and says nothing of what there is not
const last = await exchanged(await authorized());
assert.equal(await used(last.access_token), 200);
await revoked(last.access_token);
await revoked(last.access_token);
await revoked('cba_unknown');
seen.revoked_refresh = await code(() => refreshed(last.refresh_token));
seen.revoked_access = await challenge(last.access_token);
console.log(JSON.stringify(seen));
