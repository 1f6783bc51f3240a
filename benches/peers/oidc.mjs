// The authorization server of npm's oidc-provider with its own memory adapter: gives out refresh tokens that rotate, prints
// them as one JSON line, and serves until it is ended. It signs nothing: no ID tokens, opaque access tokens, as ours are.
// oidc.mjs FOLDER-WITH-NODE_MODULES PORT COUNT

import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, port, count] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(createRequire(`${folder}/`).resolve('oidc-provider')).href);
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'bench', token_endpoint_auth_method: 'none', application_type: 'native',
    redirect_uris: ['http://127.0.0.1/cb'], grant_types: ['authorization_code', 'refresh_token'],
  }],
  scopes: ['boxes', 'offline_access'],
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  rotateRefreshToken: true,
  ttl: { AccessToken: 3600, RefreshToken: 86400, Grant: 86400 },
});
const client = await provider.Client.find('bench');
const tokens = [];
for (let n = 0; n < Number(count); n += 1) {
  const grant = new provider.Grant({ accountId: `user-${n}`, clientId: 'bench' });
  grant.addOIDCScope('boxes offline_access');
  const grantId = await grant.save();
  const token = new provider.RefreshToken({
    accountId: `user-${n}`, client, grantId, scope: 'boxes offline_access', gty: 'authorization_code',
    expiresWithSession: false, rotations: 0,
  });
  tokens.push(await token.save());
}
provider.listen(Number(port), '127.0.0.1', () => console.log(JSON.stringify(tokens)));
