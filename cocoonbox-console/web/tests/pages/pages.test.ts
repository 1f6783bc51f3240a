// The built pages in a browser, by keyboard alone.

import { expect, test, vi } from 'vitest';

import { AGENT, DEVICE, LINK, PASSWORD, TOKEN } from './server';
import { armed, open, QUERY, reader, server, sitDownAnew } from './stage';

const eventually = (check: () => void) => vi.waitFor(check, 5_000);

test('a person signs in by keyboard and is told what is wrong', async () => {
  server.signedIn = false;
  await open('/cb/');
  await reader.waitForTitle('Sign in');
  await reader.fill('Name', 'admin');
  await reader.fill('Password', 'wrong');
  await reader.page.keyboard.press('Enter');
  await reader.sees('Name and password do not match.');
  await reader.page.keyboard.press('Control+A');
  await reader.page.keyboard.type('slow');
  await reader.page.keyboard.press('Enter');
  await reader.sees('Too many tries. Try again in 2 minutes.');
  await reader.page.keyboard.press('Control+A');
  await reader.page.keyboard.type(PASSWORD);
  await reader.page.keyboard.press('Enter');
  await reader.waitForTitle('Boxes');
  expect(await reader.focused()).toBe('Boxes');
  await reader.press('Sign out');
  await reader.waitForTitle('Sign in');
});

test('a device is allowed by a click, after the sign-in, with the query as it was', async () => {
  server.signedIn = false;
  server.check = DEVICE;
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.sees('Sign in to see the request and decide on it.');
  await reader.fill('Name', 'admin');
  await reader.fill('Password', PASSWORD);
  await reader.page.keyboard.press('Enter');
  await reader.waitForTitle('Sign in the cocoonbox CLI on workbench?');
  await reader.sees(/only if you started this request on this computer just now/);
  expect(await reader.page.locator('fieldset').count()).toBe(0);
  await armed();
  await reader.press('Allow');
  await reader.page.waitForURL(server.answer);
  expect(server.bodies('POST', 'oauth/check')).toEqual([{ query: QUERY }]);
  expect(server.bodies('POST', 'oauth/approve')).toEqual([{ query: QUERY }]);
});

test('an agent is allowed within limits, and wrong ones are not sent', async () => {
  server.check = { ...AGENT, has_grant: true };
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.waitForTitle('Allow this agent its own boxes?');
  await reader.sees('claude.ai');
  await reader.sees('127.0.0.1:5000');
  await reader.sees(/has access already/);
  await reader.sees(/neither your saved keys nor your connected accounts/);
  await armed();
  await reader.fill('Boxes', '17');
  await reader.sees('A whole number from 1 to 16.');
  await reader.press('Allow');
  await reader.page.keyboard.press('Shift+Tab');
  await reader.page.keyboard.press('Shift+Tab');
  await reader.page.keyboard.press('Shift+Tab');
  await reader.page.keyboard.press('Shift+Tab');
  expect(await reader.focused()).toBe('Boxes');
  await reader.page.keyboard.press('Control+A');
  await reader.page.keyboard.type('4');
  await reader.fill('Running at once', '3');
  await reader.tabTo('For');
  await reader.page.keyboard.press('ArrowUp');
  await armed();
  await reader.press('Allow');
  await reader.page.waitForURL(server.answer);
  expect(server.bodies('POST', 'oauth/approve')).toEqual([
    { query: QUERY, max_boxes: 4, max_running: 3, days: 7 },
  ]);
});

test('a request is denied', async () => {
  server.check = AGENT;
  await open(`/cb/oauth/authorize?${QUERY}`);
  await armed();
  await reader.press('Deny');
  await reader.page.waitForURL(server.answer);
  expect(server.bodies('POST', 'oauth/deny')).toEqual([{ query: QUERY }]);
  expect(server.bodies('POST', 'oauth/approve')).toEqual([]);
});

test('a click in the first half second, or while the page is not in front, counts for nothing', async () => {
  server.check = DEVICE;
  // at the moment they appear, as fast as a program clicks
  await reader.page.addInitScript(() => {
    const watch = new MutationObserver(() => {
      const buttons = Array.from(document.querySelectorAll('main button'));
      if (buttons.length === 0) return;
      watch.disconnect();
      buttons.forEach((button) => (button as HTMLElement).click());
      document.documentElement.dataset['clicked'] = String(buttons.length);
    });
    watch.observe(document, { childList: true, subtree: true });
  });
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.page.locator('html[data-clicked="2"]').waitFor();
  await armed();
  await reader.page.evaluate(() => {
    document.hasFocus = () => false;
    Array.from(document.querySelectorAll('button'))
      .find((button) => button.textContent === 'Allow')
      ?.click();
    window.dispatchEvent(new Event('blur'));
  });
  await reader.page.locator('button[aria-disabled="true"]', { hasText: 'Allow' }).waitFor();
  await reader.page.waitForTimeout(800);
  await reader.page.locator('button', { hasText: 'Allow' }).click({ force: true });
  expect(server.bodies('POST', 'oauth/approve')).toEqual([]);
  expect(server.bodies('POST', 'oauth/deny')).toEqual([]);
  // in front again: half a second later it does count
  await reader.page.evaluate(() => {
    document.hasFocus = () => true;
    window.dispatchEvent(new Event('focus'));
  });
  await reader.page.locator('button', { hasText: 'Allow' }).click({ force: true });
  expect(server.bodies('POST', 'oauth/approve')).toEqual([]);
  await armed();
  await reader.page.locator('button', { hasText: 'Allow' }).click();
  await reader.page.waitForURL(server.answer);
  expect(server.bodies('POST', 'oauth/approve')).toEqual([{ query: QUERY }]);
});

test('a request that is not trusted is refused on the page, with no way on', async () => {
  server.check = server.refuse(400, 'untrusted');
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.waitForTitle('This request is refused');
  await reader.sees('refused: untrusted');
  await reader.sees(/nothing was sent back/);
  expect(await reader.page.locator('main a, main button').count()).toBe(0);
});

test('a fault that the client has to hear of goes back at once, and to no address that runs something', async () => {
  server.check = { redirect: server.answer };
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.page.waitForURL(server.answer);

  server.check = { redirect: 'javascript:document.title="ran"' };
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.sees(/is of a kind that is not opened/);
  expect(await reader.page.title()).not.toBe('ran');

  server.check = AGENT;
  server.answer = 'data:text/html,ran';
  await open(`/cb/oauth/authorize?${QUERY}`);
  await armed();
  await reader.press('Allow');
  await reader.sees(/is of a kind that is not opened/);
});

test('a stranger’s name is text, and stands beside what is known of it', async () => {
  server.check = { ...AGENT, client_name: '<img src=x onerror=alert(1)> \u202EClaude', client_host: '' };
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.sees('<img src=x onerror=alert(1)> \uFFFDClaude');
  await reader.sees('nobody: unverified');
  expect(await reader.page.locator('main img').count()).toBe(0);
  expect(await reader.page.locator('bdi', { hasText: 'onerror' }).count()).toBe(1);

  server.check = { ...AGENT, client_name: 'Cl\u0430ude', client_host: 'cl\u0430ude.ai' };
  await open(`/cb/oauth/authorize?${QUERY}`);
  await reader.sees(/mixes letters of several alphabets/);
  await reader.sees(/^xn--/);
});

test('new agents are named in front, marked on their page, and seen after that', async () => {
  await open('/cb/');
  await reader.sees(/since your last look/);
  await reader.press('Look at them');
  await reader.waitForTitle('Agents');
  await reader.sees('verified: claude.ai');
  await reader.sees('unverified');
  expect(await reader.page.locator('.rows .badge.new').count()).toBe(1);
  await eventually(() => expect(server.bodies('POST', 'agents/seen')).toEqual([{}]));
  await reader.press('Boxes');
  await reader.waitForTitle('Boxes');
  expect(await reader.page.getByText('since your last look').count()).toBe(0);
  expect(await reader.page.locator('nav .badge').count()).toBe(0);
});

test('an agent is revoked, and its dialog keeps the keyboard until Escape', async () => {
  await open('/cb/agents');
  await reader.press('Revoke: Claude');
  await reader.sees('Revoke the access of Claude?');
  expect(await reader.focused()).toBe('Cancel');
  for (const name of ['Revoke', 'Cancel', 'Revoke']) {
    await reader.page.keyboard.press('Tab');
    expect(await reader.focused()).toBe(name);
  }
  await reader.page.keyboard.press('Shift+Tab');
  await reader.page.keyboard.press('Shift+Tab');
  expect(await reader.focused()).toBe('Revoke');
  await reader.page.keyboard.press('Escape');
  await reader.page.locator('dialog').waitFor({ state: 'detached' });
  expect(await reader.focused()).toBe('Revoke: Claude');

  await reader.page.keyboard.press('Enter');
  await reader.page.locator('dialog').waitFor();
  await reader.press('Revoke');
  await reader.sees('The access of Claude is revoked.');
  await eventually(() => expect(server.agents.map((agent) => agent.id)).toEqual(['grant_1']));
  expect(await reader.page.locator('.rows > li').count()).toBe(1);
  await vi.waitFor(async () => expect(await reader.focused()).toBe('Agents'));
});

test('a device is signed out', async () => {
  await open('/cb/devices');
  await reader.sees('Ada’s MacBook Pro');
  await reader.press('Sign out: workbench');
  await reader.press('Sign out');
  await reader.sees('workbench is signed out.');
  expect(server.devices.map((device) => device.id)).toEqual(['dev_2', 'dev_3']);
});

test('who signed in is told, and older ones on demand', async () => {
  server.signIns.next = '5.si_4';
  server.olderSignIns.sign_ins = [
    { id: 'si_9', at: Date.now() - 1e9, door: 'agent', let_in: true, from: '192.0.2.7', what: 'an older agent' },
  ];
  await open('/cb/account');
  await reader.sees('workbench');
  expect(await reader.page.getByText('turned away').count()).toBe(1);
  expect(await reader.page.getByText('an older agent').count()).toBe(0);
  await reader.press('Show older ones');
  await reader.sees('an older agent');
  expect(await reader.page.getByText('workbench').count()).toBe(1);
  expect(await reader.page.getByRole('button', { name: 'Show older ones' }).count()).toBe(0);
});

test('users are added, changed and deleted', async () => {
  await open('/cb/users');
  await reader.sees('grace');
  await reader.fill('Name', 'ada');
  await reader.page.keyboard.press('Enter');
  await reader.sees('There is a user with this name already.');
  await reader.page.keyboard.press('Control+A');
  await reader.page.keyboard.type('linus');
  await reader.page.keyboard.press('Enter');
  await reader.sees('linus is added.');
  await vi.waitFor(async () => expect(await reader.focused()).toBe('One-time link for linus'));
  expect(await reader.page.getByLabel('One-time link for linus').inputValue()).toBe(
    `${server.origin}/cb/#link=${LINK}`,
  );

  await reader.press('Edit: linus');
  await reader.fill('Boxes of agents, at most', '12');
  await reader.press('Administrator', 'Space');
  await reader.press('Save');
  await reader.sees('linus is changed.');
  expect(server.bodies('PATCH', 'users/usr_4')).toEqual([{ admin: true, max_agent_boxes: 12 }]);

  await reader.press('Delete: grace');
  await reader.press('Delete');
  expect(server.bodies('DELETE', 'users/usr_3')).toEqual([]);
  await reader.fill('Type grace to confirm', 'grace');
  await reader.page.keyboard.press('Enter');
  await reader.sees('grace is deleted.');
  expect(server.users.map((user) => user.name)).toEqual(['admin', 'ada', 'linus']);
});

test('the last administrator stays one', async () => {
  await open('/cb/users');
  await reader.press('Edit: admin');
  await reader.press('Administrator', 'Space');
  await reader.press('Save');
  await reader.sees('This is the last administrator. Make somebody else one first.');
});

test('a personal token is shown once and copied, replaced and revoked', async () => {
  await open('/cb/tokens');
  await reader.press('Replace it');
  await reader.press('Replace it');
  await reader.sees('It is shown this once. Keep it where you keep passwords.');
  await vi.waitFor(async () => expect(await reader.focused()).toBe('Your personal token'));
  await reader.press('Copy');
  await reader.sees('Copied.');
  // pasted where it can be read
  await reader.page.evaluate(() => {
    const area = document.createElement('textarea');
    area.id = 'pasted';
    document.body.append(area);
    area.focus();
  });
  await reader.page.keyboard.press('Control+V');
  expect(await reader.page.locator('#pasted').inputValue()).toBe(TOKEN);

  await open('/cb/tokens');
  await reader.waitForTitle('Personal token');
  expect(await reader.page.content()).not.toContain(TOKEN);
  await reader.press('Revoke');
  await reader.press('Revoke');
  await reader.sees('The personal token is revoked.');
  await reader.press('Make a token');
  await reader.sees('Your personal token');
});

test('a password is changed, and every sign-in is ended', async () => {
  await open('/cb/account');
  await reader.fill('Current password', 'wrong');
  await reader.fill('New password', 'new password');
  await reader.fill('The new one again', 'new passwort');
  await reader.page.keyboard.press('Enter');
  await reader.sees('The two passwords differ.');
  await reader.page.keyboard.press('Control+A');
  await reader.page.keyboard.type('new password');
  await reader.page.keyboard.press('Enter');
  await reader.sees('That is not your current password.');
  await reader.page.getByLabel('Current password').fill(PASSWORD);
  await reader.page.keyboard.press('Enter');
  await reader.sees('The password is changed. Your other browsers are signed out.');
  expect(server.bodies('POST', 'me/password').at(-1)).toEqual({ old: PASSWORD, new: 'new password' });

  await reader.press('Sign out everywhere');
  await reader.press('Sign out everywhere');
  await reader.waitForTitle('Sign in');
  await reader.sees('You are signed out everywhere.');
});

test('a one-time link leaves the address at once and sets a password', async () => {
  server.signedIn = false;
  await open(`/cb/#link=${LINK}`);
  await reader.waitForTitle('Choose a password');
  expect(reader.page.url()).toBe(`${server.origin}/cb/`);
  await reader.fill('New password', 'short');
  await reader.page.keyboard.press('Enter');
  await reader.sees('A password has 8 to 1024 bytes.');
  await reader.page.keyboard.press('Control+A');
  await reader.page.keyboard.type('long enough');
  await reader.fill('The same again', 'long enough');
  await reader.page.keyboard.press('Enter');
  await reader.waitForTitle('Boxes');
  expect(server.bodies('POST', 'login/link')).toEqual([{ link: LINK, password: 'long enough' }]);

  // a used one, put into the address of the page that is open
  await reader.page.evaluate(() => location.assign('/cb/#link=cbl_used'));
  await reader.waitForTitle('Choose a password');
  await reader.fill('New password', 'long enough');
  await reader.fill('The same again', 'long enough');
  await reader.page.keyboard.press('Enter');
  await reader.sees('This link is used up or too old. Ask for a new one.');
});

test('the first box is made', async () => {
  server.boxes = [];
  await open('/cb/');
  await reader.press('Make the first box');
  await reader.sees('The first box is being made.');
  await reader.page.locator('.badge.starting').waitFor();
  server.setState('cb-mainmainma', 'running');
  await reader.page.locator('.badge.running').waitFor();
});

test('a session that ends elsewhere leads to the sign-in', async () => {
  await open('/cb/devices');
  await reader.sees('workbench');
  server.signedIn = false;
  await reader.press('Sign out: workbench');
  await reader.press('Sign out');
  await reader.waitForTitle('Sign in');
  await reader.sees('You are signed out.');
});

test('the language follows the browser and the switch, which is kept', async () => {
  await sitDownAnew({ locale: 'de-AT' });
  await open('/cb/devices');
  await reader.waitForTitle('Geräte');
  expect(await reader.page.getAttribute('html', 'lang')).toBe('de');
  await reader.press('English');
  await reader.waitForTitle('Devices');
  await reader.page.reload();
  await reader.waitForTitle('Devices');
});

test('pages are gone back to, and what is none says so', async () => {
  await open('/cb/');
  await reader.press('Devices');
  await reader.waitForTitle('Devices');
  expect(new URL(reader.page.url()).pathname).toBe('/cb/devices');
  expect(await reader.page.title()).toBe('Devices · cocoonbox');
  await reader.page.goBack();
  await reader.waitForTitle('Boxes');
  await reader.press('Skip to the content');
  expect(await reader.focused()).toBe('Boxes');
});

test('the policy of the pages is in force, and its breach would be noticed', async () => {
  await open('/cb/');
  await reader.waitForTitle('Boxes');
  await reader.page.evaluate(() => {
    const script = document.createElement('script');
    script.textContent = 'document.title = "ran"';
    document.head.append(script);
  });
  await vi.waitFor(() =>
    expect(reader.faults.some((fault) => fault.startsWith('policy: script-src'))).toBe(true),
  );
  expect(await reader.page.title()).not.toBe('ran');
  reader.faults.length = 0;
});

test('the page is loaded from files that were compressed beforehand', async () => {
  const forms: Record<string, string> = {};
  reader.page.on('response', (answer) => {
    const kind = new URL(answer.url()).pathname.split('.').pop() ?? '';
    if (answer.url().includes('/assets/')) forms[kind] = answer.headers()['content-encoding'] ?? 'as it is';
  });
  await open('/cb/');
  await reader.waitForTitle('Boxes');
  expect(forms).toMatchObject({ js: 'gzip', css: 'gzip' });
});
