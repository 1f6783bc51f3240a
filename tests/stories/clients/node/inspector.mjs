// The command line of the MCP Inspector as an outside agent: inspector.mjs ENDPOINT. Its HOME must be the story's own.
// Prints one JSON line of what was seen.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { allow, installed } from './story.mjs';

const endpoint = process.argv[2];
const program = join(dirname(installed.resolve('@modelcontextprotocol/inspector/package.json')),
  'clients/launcher/build/index.js');
const env = { ...process.env, MCP_INSPECTOR_SECRET_STORE: 'file' };
const kept = join(process.env.HOME, '.mcp-inspector');
const secrets = join(kept, 'secrets.json');

/** Runs it to its end. With a terminal it may ask, and the person answers the address that it prints. */
async function inspector(words, { terminal = false } = {}) {
  const command = [process.execPath, program, '--cli', `${endpoint}/cocoonbox.mcp/control`, '--transport', 'http',
    '--callback-url', 'http://127.0.0.1:0/oauth/callback', '--format', 'json', ...words];
  // none of the words has a quote
  const line = command.map((word) => `'${word}'`).join(' ');
  const run = terminal ? ['script', '-qec', line, '/dev/null'] : command;
  // it would wait for its callback longer than the story for it
  const child = spawn('timeout', ['60', ...run], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  const done = { stdout: '', stderr: '', asked: false };
  let answering;
  child.stdout.on('data', (text) => {
    done.stdout += text;
    // it may be a link, which begins and ends with a bell
    const address = /(http:[^\s\x07]+\/cb\/oauth\/authorize\?[^\s\x07]+)[\s\x07]/.exec(done.stdout)?.[1];
    if (address && !done.asked) {
      done.asked = true;
      // its callback is where the browser goes
      answering = allow(address).then((back) => fetch(back));
      answering.catch(() => child.kill());
    }
  });
  child.stderr.on('data', (text) => (done.stderr += text));
  done.code = await new Promise((resolve, reject) => child.on('close', resolve).on('error', reject));
  await answering;
  return done;
}
async function result(words, options) {
  const done = await inspector(words, options);
  assert.equal(done.code, 0, JSON.stringify(done));
  const { result } = JSON.parse(done.stdout.split(/\r?\n/).find((text) => text.startsWith('{')));
  return { ...done, result };
}
const call = (name, ...args) => ['--method', 'tools/call', '--tool-name', name,
  ...(args.length > 0 ? ['--tool-arg', ...args] : [])];
const alone = '--stored-auth-only';
const list = ['--method', 'tools/list', '--strict'];
const token = () => /cba_[0-9a-f]{64}/.exec(readFileSync(secrets, 'utf8'))[0];
/** Returns 401 for a token that is worth nothing, and 400 for another: there is no session to end. */
async function status(bearer) {
  const headers = { authorization: `Bearer ${bearer}` };
  const answer = await fetch(`${endpoint}/cocoonbox.mcp/control`, { method: 'DELETE', headers });
  return answer.status;
}

const seen = {};
const nobody = await inspector([alone, ...list]);
seen.nobody = [nobody.code, JSON.parse(nobody.stderr).error.code];

// it signs in at a terminal; with --strict a schema that other clients may not read is a failure
const first = await result(list, { terminal: true });
seen.asked = first.asked;
seen.tools = first.result.tools.map((tool) => tool.name).sort();
const again = await result([alone, ...list]);
assert.deepEqual(again.result, first.result);
assert.ok(!again.stderr.includes('schema'), again.stderr);
seen.made = (await result([alone, ...call('box_create', 'name=by-inspector')])).result.structuredContent.state;
const boxes = async () => {
  const { structuredContent } = (await result([alone, ...call('box_list')])).result;
  return structuredContent.boxes.map((box) => box.name);
};
seen.listed = await boxes();

// the access token is lost: it refreshes by itself
const lost = token();
writeFileSync(secrets, readFileSync(secrets, 'utf8').replace(lost, `cba_${'0'.repeat(64)}`));
seen.refreshed = await boxes();
assert.notEqual(token(), lost);
seen.deleted = (await result([alone, ...call('box_delete', 'box=by-inspector', 'confirm=true')])).result.isError;

// it gives back what it has and signs in anew. This release looks for the revocation endpoint where it keeps nothing
// itself any more, so it is put there
const place = join(kept, 'storage/oauth.json');
const storage = JSON.parse(readFileSync(place, 'utf8'));
for (const state of Object.values(storage.servers)) {
  state.serverMetadata = state.discoveryState.authorizationServerMetadata;
}
writeFileSync(place, JSON.stringify(storage));
const before = token();
assert.equal(await status(before), 400);
seen.again = (await result(['--relogin', ...call('box_list')], { terminal: true })).asked;
seen.given_back = await status(before);
assert.equal(await status(token()), 400);
console.log(JSON.stringify(seen));
