// openid-client as an OAuth client without an id token, from discovery to revocation: openid.mjs ENDPOINT.
// It throws where the server is wrong; prints one JSON line of what was seen.

import assert from 'node:assert/strict';

import { allow, deny, hello, installed, refused } from './story.mjs';

const openid = installed('openid-client');
const redirect = 'http://127.0.0.1/callback';
const resource = `${process.argv[2]}/cocoonbox.mcp`;
// native programs listen on a port that they find free, which is no part of what was registered; nobody listens here
const listening = 'http://127.0.0.1:49152/callback';

// discovery and registration in one; plain http is loopback here
const config = await openid.dynamicClientRegistration(
  new URL(process.argv[2]),
  {
    client_name: 'A client of OpenID Connect',
    redirect_uris: [redirect],
    token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
  },
  openid.None(),
  { algorithm: 'oauth2', execute: [openid.allowInsecureRequests] },
);
assert.ok(config.serverMetadata().supportsPKCE());

async function authorized({ person = allow, checks = {}, parameters = {} } = {}) {
  const pkceCodeVerifier = openid.randomPKCECodeVerifier();
  const expectedState = openid.randomState();
  const address = openid.buildAuthorizationUrl(config, {
    redirect_uri: listening,
    scope: 'boxes',
    resource,
    state: expectedState,
    code_challenge: await openid.calculatePKCECodeChallenge(pkceCodeVerifier),
    code_challenge_method: 'S256',
    ...parameters,
  });
  const callback = await person(address);
  assert.equal(callback.origin, 'http://127.0.0.1:49152');
  // it takes the redirect URI from where the browser went, and looks at state and iss
  return openid.authorizationCodeGrant(config, callback, { pkceCodeVerifier, expectedState, ...checks }, { resource });
}
/** Begins a session of the MCP with a token. */
async function used(token) {
  const control = new URL(`${resource}/control`);
  const answer = await openid.fetchProtectedResource(config, token, control, 'POST', hello.body, hello.headers);
  await answer.body?.cancel();
  return answer.status;
}

const seen = {};
const tokens = await authorized();
assert.ok(tokens.expiresIn() > 0);
assert.equal(tokens.id_token, undefined);
assert.equal(await used(tokens.access_token), 200);
const fresh = await openid.refreshTokenGrant(config, tokens.refresh_token, { resource });
assert.notEqual(fresh.refresh_token, tokens.refresh_token);
assert.equal(await used(fresh.access_token), 200);
await openid.tokenRevocation(config, fresh.refresh_token, { token_type_hint: 'refresh_token' });
seen.revoked_access = (await refused(() => used(fresh.access_token))).status;
seen.revoked_refresh = (await refused(() => openid.refreshTokenGrant(config, fresh.refresh_token))).error;
seen.no = (await refused(() => authorized({ person: deny }))).error;
seen.account = (await refused(() => authorized({ parameters: { scope: 'account' } }))).error;
// without its verifier a code is worth nothing
const another = { pkceCodeVerifier: openid.randomPKCECodeVerifier() };
seen.another_verifier = (await refused(() => authorized({ checks: another }))).error;
console.log(JSON.stringify(seen));
