// Tests the dashboard in a real Chromium. tests/it/browser.rs runs this script against three
// servers: a server with instances to show, a server with markup from an XSS corpus in every field
// that users control, and a server that requires a token.
//
//   node run.mjs ADDRESS EVIL_ADDRESS LOCKED_ADDRESS LONG_ID
//
// LONG_ID is an instance of the second server with long names and a history with odd outcomes.
//
// DURABLE_BROWSER_MODULES names the directory with playwright-core and axe-core.

import { createRequire } from 'node:module';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import assert from 'node:assert/strict';

const modules = process.env.DURABLE_BROWSER_MODULES;
const require = createRequire(join(modules, 'x.js'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const [address, evilAddress, lockedAddress, longId] = process.argv.slice(2);
const shots = process.env.DURABLE_BROWSER_SHOTS;
const TIMEOUT_MS = 20000;

const found = ['/usr/bin/chromium', '/usr/bin/chromium-headless-shell', '/usr/bin/chromium-browser'].find(existsSync);
const executablePath = process.env.CHROMIUM ?? found;
const args = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run'];
const browser = await chromium.launch({ executablePath, args });

const problems = [];
// The pattern of the console errors that the current test step expects, because the step sends a
// request that the server rejects.
let expectedError = /^$/;
async function open(at, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(TIMEOUT_MS);
  // The test fails if the page requests another origin, opens a dialog of the browser, or raises an
  // error.
  page.on('request', (request) => { if (!request.url().startsWith(at) && !request.url().startsWith('data:')) problems.push(`asked for ${request.url()}`); });
  page.on('dialog', (dialog) => { problems.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('pageerror', (error) => problems.push(`an error on the page: ${error.message}`));
  page.on('console', (message) => {
    const text = message.text();
    if (message.type() === 'error' && !(options.expectRejections && /401|404/.test(text)) && !expectedError.test(text)) problems.push(`the console: ${text}`);
  });
  return page;
}
const visit = (page, at, path) => page.goto(`${at}#/${path}`);
const heading = (page, name) => page.getByRole('heading', { level: 1, name });
const loaded = (page) => page.waitForFunction(() => !document.querySelector('.loading'));
const assertNoProblems = (where) => { assert.deepEqual(problems, [], where); };
async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  const said = violations.map((one) => `${one.id}: ${one.help} (${one.nodes.slice(0, 3).map((node) => `${node.target.join(' ')} ${node.any?.[0]?.message ?? ''}`).join('; ')})`);
  problems.push(...said.map((one) => `accessibility of ${where}: ${one}`));
}
// DURABLE_BROWSER_ONLY selects steps by a regular expression, for work on a single step.
const only = new RegExp(process.env.DURABLE_BROWSER_ONLY ?? '');
async function step(name, act) {
  if (!only.test(name)) return;
  const began = Date.now();
  await act();
  if (!process.env.DURABLE_BROWSER_GO_ON) assertNoProblems(name);
  console.log(`  ✓ ${name} (${Date.now() - began} ms)`);
}
// Finds a control by the text of its label, without the options of a select, which are part of the
// label element.
const field = (page, name) => page.locator('label.field').filter({ has: page.locator('span').getByText(name, { exact: true }) }).locator('input, select, textarea');
const rows = (page) => page.locator('table[aria-label], .table-wrap table').locator('tbody tr');

const PAGES = ['', 'machines', 'machines/parcel', 'instances', 'failures', 'queues', 'queues/default', 'limits', 'limits/api', '?period=hour', 'machines/parcel?period=day', 'projections', 'projections/till?tenant=acme', 'lanes', 'lanes?of=partitions', 'timers', 'schedules', 'schedules/hourly', 'workers', 'audit'];
const page = await open(address);

await step('the page loads and shows that it is live', async () => {
  await page.goto(address);
  await heading(page, 'Overview').waitFor();
  await page.locator('.dot.is-on').waitFor();
  await page.getByRole('link', { name: 'parcel' }).waitFor();
});

await step('numbers are updated without a reload', async () => {
  const tile = page.locator('.tile', { hasText: 'Waiting' }).locator('.tile-value');
  await page.waitForFunction(() => [...document.querySelectorAll('.tile')].some((tile) => tile.textContent.startsWith('Waiting30')));
  const made = await page.evaluate(() => fetch('api/v1/instances', { method: 'POST', headers: { 'content-type': 'application/json', 'x-durable': '1' }, body: '{"machine": "parcel", "step": "pack", "state": {"name": "another"}}' }).then((answer) => answer.status));
  assert.equal(made, 201);
  await page.waitForFunction(() => [...document.querySelectorAll('.tile')].some((tile) => tile.textContent.startsWith('Waiting31')));
  assert.equal(await tile.textContent(), '31');
});

await step('a machine is drawn as a graph of its steps', async () => {
  await page.keyboard.press('g');
  await page.keyboard.press('m');
  await heading(page, 'Machines').waitFor();
  await page.locator('.graph .node', { hasText: 'pack' }).first().waitFor();
  await page.locator('.graph .way.label').first().waitFor();
});

await step('instances are filtered, and the URL contains the filter', async () => {
  await visit(page, address, 'instances');
  await field(page, 'Status').selectOption('awaiting_signal');
  await field(page, 'Machine').selectOption('parcel');
  await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 31);
  assert.match(page.url(), /status=awaiting_signal/);
  assert.match(page.url(), /machine=parcel/);
});

let first;
await step('an instance is found by its id, from the keyboard', async () => {
  first = await rows(page).last().locator('a.id').textContent();
  await page.keyboard.press('/');
  await page.keyboard.type(first);
  await page.keyboard.press('Enter');
  await heading(page, first).waitFor();
  await page.getByText('It waits for the signal go').waitFor();
  await page.getByText('[redacted]').waitFor();
  assert.equal(await page.getByText('hidden', { exact: true }).count(), 0, 'a password is shown');
});

await step('an instance receives a signal and fails', async () => {
  await page.getByRole('button', { name: 'Signal' }).click();
  assert.equal(await field(page, 'Signal').inputValue(), 'go');
  await field(page, 'Payload (JSON)').fill('{not json');
  await page.getByRole('button', { name: 'Send' }).click();
  await page.getByText('the payload is not JSON').waitFor();
  await field(page, 'Payload (JSON)').fill('{"well": false}');
  await page.getByRole('button', { name: 'Send' }).click();
  await page.locator('h1 .status.is-failed').waitFor();
  await page.locator('.why').getByText('no van for').waitFor();
});

await step('a failed instance is listed under failures and is retried', async () => {
  await visit(page, address, 'failures');
  await page.locator('.group', { hasText: 'no van for' }).waitFor();
  await page.getByRole('link', { name: 'List' }).click();
  await rows(page).first().waitFor();
  assert.match(decodeURIComponent(page.url()), /error_group=no/, 'the list has the error of the group');
  await visit(page, address, `instances/${first}`);
  await page.getByRole('button', { name: 'Retry' }).click();
  await page.getByText('From another step').click();
  // A step that no worker knows is refused, and the dialog offers the known ones.
  assert.deepEqual(await page.locator('#retry-steps option').evaluateAll((all) => all.map((one) => one.value).sort()), ['pack', 'send']);
  expectedError = /422/;
  await field(page, 'Step').fill('nosuchstep');
  await page.getByRole('dialog').getByRole('button', { name: 'Retry' }).click();
  await page.getByRole('dialog').getByRole('alert').getByText('choose one of pack, send').waitFor();
  expectedError = /^$/;
  await field(page, 'Step').fill('pack');
  await page.getByRole('dialog').getByRole('button', { name: 'Retry' }).click();
  await page.locator('h1 .status.is-awaiting_signal').waitFor();
  await page.getByRole('button', { name: 'Signal' }).click();
  await field(page, 'Payload (JSON)').fill('{"well": true}');
  await page.getByRole('button', { name: 'Send' }).click();
  await page.locator('h1 .status.is-done').waitFor();
  await page.getByText('retried by an operator').waitFor();
});

await step('an instance is cancelled', async () => {
  await visit(page, address, 'instances?status=awaiting_signal&machine=parcel');
  await rows(page).first().locator('a.id').click();
  await page.getByRole('button', { name: 'Cancel' }).click();
  await field(page, 'Reason').fill('by the browser test');
  await page.getByRole('button', { name: 'Cancel it' }).click();
  await page.locator('h1 .status.is-cancelled').waitFor();
  await page.getByText('by the browser test').first().waitFor();
});

await step('a bulk cancel shows a preview and its progress', async () => {
  await visit(page, address, 'instances?status=awaiting_signal&machine=parcel');
  await rows(page).first().waitFor();
  await page.getByRole('button', { name: 'Cancel all that match' }).click();
  await page.getByText('29 instances').waitFor();
  await page.getByRole('button', { name: 'Cancel 29' }).click();
  await page.getByRole('dialog').getByText('29 changed, 0 refused').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await visit(page, address, 'bulk');
  await page.reload();
  await page.getByRole('cell', { name: '29 changed, 0 refused, of 29' }).waitFor();
});

await step('a queue is paused and resumed', async () => {
  await visit(page, address, 'queues');
  await page.getByRole('button', { name: 'Pause default' }).click();
  await page.getByRole('dialog').getByText('No worker claims instances of this queue').waitFor();
  await page.getByRole('button', { name: 'Pause it' }).click();
  await page.locator('.status.is-paused').waitFor();
  await page.getByRole('button', { name: 'Resume default' }).click();
  await page.locator('.status.is-paused').waitFor({ state: 'detached' });
});

const enqueue = (body) => page.evaluate((text) => fetch('api/v1/instances', { method: 'POST', headers: { 'content-type': 'application/json', 'x-durable': '1' }, body: text }).then((answer) => answer.status), JSON.stringify(body));

await step('a limit shows why instances wait, is changed, paused and resumed, and a key of it gets bounds of its own', async () => {
  for (const tenant of ['acme', 'acme', 'globex']) assert.equal(await enqueue({ machine: 'fetch', step: 'run', state: { tenant } }), 201);
  await page.keyboard.press('g');
  await page.keyboard.press('r');
  await heading(page, 'Limits').waitFor();
  const row = rows(page).filter({ has: page.getByRole('link', { name: 'api', exact: true }) });
  await row.getByRole('cell', { name: '3', exact: true }).waitFor();
  // An instance that waits leads to its limit.
  await visit(page, address, 'instances?status=awaiting_limit&machine=fetch');
  await rows(page).first().locator('a.id').click();
  await page.locator('.why').getByRole('link', { name: 'Limit api' }).click();
  await heading(page, 'api').waitFor();
  await page.getByRole('img', { name: 'Running steps and waiting instances' }).waitFor();
  const keys = page.getByRole('region', { name: 'Keys' });
  await keys.getByRole('cell', { name: 'globex', exact: true }).waitFor();
  await page.getByRole('link', { name: 'Instances that wait' }).click();
  await heading(page, 'Instances').waitFor();
  await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 3);
  await visit(page, address, 'limits/api');
  await page.getByRole('button', { name: 'Change bounds of api' }).click();
  await page.getByRole('dialog').waitFor();
  await accessible(page, 'the dialog of a limit');
  assert.equal(await field(page, 'At once').inputValue(), '0');
  assert.equal(await field(page, 'Per key').inputValue(), '2');
  await field(page, 'Rate').fill('ten a second');
  await page.getByRole('button', { name: 'Change them' }).click();
  await page.getByRole('dialog').getByRole('alert').getByText('is no rate').waitFor();
  await field(page, 'Rate').fill('600/m');
  await field(page, 'Burst of the rate').fill('50');
  await field(page, 'At once').fill('40');
  await page.getByRole('button', { name: 'Change them' }).click();
  await page.locator('h1').getByText('changed by an operator').waitFor();
  // The instances run now.
  await keys.waitFor({ state: 'detached' });
  await page.getByText('No keys', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Set a key of api' }).click();
  await field(page, 'Key').fill('acme');
  await field(page, 'At once').fill('7');
  await page.getByRole('button', { name: 'Set them' }).click();
  await keys.getByText('of 7').waitFor();
  await page.getByRole('button', { name: 'Pause api' }).click();
  await page.getByRole('button', { name: 'Pause it' }).click();
  await page.locator('h1 .status.is-paused').waitFor();
  await page.getByRole('button', { name: 'Resume api' }).click();
  await page.locator('h1 .status.is-paused').waitFor({ state: 'detached' });
});

await step('a queue is made fair, and a tenant gets a share', async () => {
  await visit(page, address, 'queues/default');
  await page.getByRole('button', { name: 'Make fair' }).click();
  await page.getByRole('button', { name: 'Change it' }).click();
  await page.getByText('Each tenant has a share of 1.').waitFor();
  await page.getByRole('button', { name: 'Set a share in default' }).click();
  await field(page, 'Tenant').fill('acme');
  await field(page, 'Share').fill('3');
  await page.getByRole('button', { name: 'Set it' }).click();
  await page.getByRole('region', { name: 'Shares of tenants' }).getByRole('cell', { name: 'acme', exact: true }).waitFor();
  await visit(page, address, 'queues');
  await rows(page).filter({ has: page.getByRole('link', { name: 'default', exact: true }) }).locator('.status', { hasText: 'fair' }).waitFor();
});

await step('a bulk retry of the last failures of a group shows its progress and its outcome to the end', async () => {
  for (const id of await page.evaluate(() => fetch('api/v1/instances?status=cancelled&machine=parcel&limit=3').then((answer) => answer.json()).then((list) => list.instances.map((row) => row.id)))) {
    const act = (what, body) => page.evaluate(([path, text]) => fetch(path, { method: 'POST', headers: { 'content-type': 'application/json', 'x-durable': '1' }, body: text }).then((answer) => answer.status), [`api/v1/instances/${id}/${what}`, JSON.stringify(body)]);
    assert.equal(await act('retry', { step: 'pack' }), 200);
    assert.equal(await act('signal', { name: 'go', payload: { well: false } }), 200);
  }
  await visit(page, address, 'failures');
  const group = page.locator('.group', { hasText: 'no van for' });
  await group.getByText('3', { exact: true }).waitFor();
  await group.getByRole('button', { name: 'Retry all' }).click();
  await page.getByRole('button', { name: 'Retry 3' }).click();
  await page.getByRole('dialog').getByText('3 changed, 0 refused, of 3').waitFor();
  await page.locator('.toast').getByText('3 changed, 0 refused').waitFor();
  // The card of the group is gone, and the dialog is still there.
  await group.waitFor({ state: 'detached' });
  await page.getByRole('dialog').getByText('3 changed, 0 refused, of 3').waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Close' }).click();
  for (const id of await page.evaluate(() => fetch('api/v1/instances?status=awaiting_signal&machine=parcel').then((answer) => answer.json()).then((list) => list.instances.map((row) => row.id)))) {
    await page.evaluate((one) => fetch(`api/v1/instances/${one}/cancel`, { method: 'POST', headers: { 'content-type': 'application/json', 'x-durable': '1' }, body: '{}' }), id);
  }
});

const setQueue = (act) => page.evaluate((what) => fetch(`api/v1/queues/gate/${what}`, { method: 'POST', headers: { 'x-durable': '1' } }).then((answer) => answer.status), act);

await step('a projection is rebuilt, and its progress is shown', async () => {
  await page.keyboard.press('g');
  await page.keyboard.press('p');
  await heading(page, 'Projections').waitFor();
  await page.getByRole('link', { name: 'acme' }).click();
  await heading(page, 'till').waitFor();
  await page.locator('.status', { hasText: 'up to date' }).waitFor();
  // The test pauses a queue. The rebuild of the projection then waits half-way until the test
  // resumes the queue.
  assert.equal(await setQueue('pause'), 200);
  await page.getByRole('button', { name: 'Rebuild till of acme' }).click();
  await page.getByRole('dialog').waitFor();
  await accessible(page, 'the dialog of a rebuild');
  await page.getByRole('button', { name: 'Start' }).click();
  const bar = page.getByRole('progressbar').first();
  await page.waitForFunction(() => document.querySelector('[role=progressbar]')?.getAttribute('aria-valuenow') === '50');
  await page.getByRole('button', { name: /^Cancel run/ }).waitFor();
  if (shots) {
    mkdirSync(shots, { recursive: true });
    await visit(page, address, 'projections');
    await page.waitForFunction(() => {
      const bar = document.querySelector('[role=progressbar]');
      return bar && bar.firstElementChild.getBoundingClientRect().width > 0.45 * bar.getBoundingClientRect().width;
    });
    await page.screenshot({ path: join(shots, 'projections.png') });
    await visit(page, address, 'projections/till?tenant=acme');
  }
  assert.equal(await setQueue('resume'), 200);
  await page.getByText('equal at position 40').first().waitFor();
  await page.waitForFunction(() => document.querySelector('[role=progressbar]')?.getAttribute('aria-valuenow') === '100');
  assert.equal(await bar.count(), 1);
});

await step('a projection is verified, from the keyboard', async () => {
  await page.getByRole('button', { name: 'Verify till of acme' }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Verify it' }).focus();
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => [...document.querySelectorAll('tbody tr')].some((row) => /verify/.test(row.textContent) && /done/.test(row.textContent) && /equal at position 40/.test(row.textContent)));
});

await step('a failed event is listed and retried', async () => {
  await visit(page, address, 'projections');
  await page.getByRole('button', { name: 'Retry position 2 of till of odd' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Retry' }).click();
  await page.waitForFunction(() => [...document.querySelectorAll('tbody tr')].some((row) => /must not be negative/.test(row.textContent) && [...row.querySelectorAll('td.num')].some((cell) => cell.textContent === '2')
    && row.children[5]?.textContent === '2'));
});

await step('a blocked lane shows the reason, is found by its key, and is unblocked by retry, skip and discard', async () => {
  for (const [van, first] of [[7, { once: true }], [8, { fails: true }], [9, { fails: true }], [10, { fails: true }]]) {
    for (const state of [first, {}, {}]) assert.equal(await enqueue({ machine: 'haul', step: 'run', state, lane: `van:${van}`, lane_blocks: true }), 201);
  }
  await page.keyboard.press('g');
  await page.keyboard.press('l');
  await heading(page, 'Lanes').waitFor();
  const lane = (name) => page.locator('tr.is-blocked').filter({ has: page.getByRole('cell', { name, exact: true }) });
  for (const name of ['van:7', 'van:8', 'van:9', 'van:10']) await lane(name).getByText('a flat tyre').waitFor();
  assert.equal(await lane('van:7').locator('td.num').textContent(), '3');
  await page.locator('nav a', { hasText: 'Lanes' }).locator('.badge').getByText('4').waitFor();
  await page.getByRole('button', { name: 'Retry the head of van:7' }).click();
  await page.getByText('with 2 others behind it').waitFor();
  // The dialog stands in a table cell, and must not inherit its single line.
  const dialog = await page.getByRole('dialog').evaluate((one) => ({ wrap: getComputedStyle(one).whiteSpace, align: getComputedStyle(one).textAlign, wide: one.scrollWidth - one.clientWidth }));
  assert.deepEqual(dialog, { wrap: 'normal', align: 'start', wide: 0 });
  await accessible(page, 'the dialog of a lane');
  await page.getByRole('button', { name: 'Run it again' }).click();
  await lane('van:7').waitFor({ state: 'detached' });
  // The test types slowly, because the page renders again every second and must keep the typed
  // text.
  await field(page, 'Key').focus();
  await page.keyboard.type('van:8', { delay: 500 });
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 1);
  assert.match(page.url(), /prefix=van%3A8/);
  // The test skips the head of a blocked lane with the keyboard only.
  await page.getByRole('button', { name: 'Skip the head of van:8' }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await page.getByRole('button', { name: 'Skip it' }).focus();
  await page.keyboard.press('Enter');
  await page.getByText('Nothing matches the filter.').waitFor();
  await page.getByRole('link', { name: 'Clear' }).click();
  await page.getByRole('button', { name: 'Discard the head of van:9' }).click();
  await field(page, 'Reason').fill('sold the van');
  await page.getByRole('button', { name: 'Discard it' }).click();
  await lane('van:9').waitFor({ state: 'detached' });
  await page.getByLabel('only blocked lanes').check();
  await page.waitForFunction(() => document.querySelectorAll('tr.is-blocked').length === 1 && document.querySelectorAll('tbody tr').length === 1);
  await field(page, 'Show').selectOption('partitions');
  await page.getByText('No partition keys in use').waitFor();
});

await step('timers are drawn and listed, on a page of their own and with their instance, and one is cancelled', async () => {
  assert.equal(await enqueue({ machine: 'chime', step: 'strike' }), 201);
  await visit(page, address, 'timers');
  await page.locator('.bars .bar').first().waitFor();
  await page.getByText('Nothing is overdue').waitFor();
  const row = page.locator('tr').filter({ hasText: 'chime → silence' });
  await row.locator('a.id').click();
  await page.locator('.panel', { hasText: 'Timers' }).getByText('deadline', { exact: true }).waitFor();
  await page.getByRole('button', { name: /^Cancel timer/ }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel it' }).click();
  await page.getByRole('button', { name: /^Cancel timer/ }).waitFor({ state: 'detached' });
  await page.locator('.panel', { hasText: 'Timers' }).getByText('chime → silence').waitFor();
});

await step('a schedule is paused, run now, changed and resumed', async () => {
  await visit(page, address, 'schedules');
  const card = page.locator('.schedule').filter({ has: page.getByRole('link', { name: 'hourly', exact: true }) });
  await card.waitFor();
  assert.equal(await card.locator('ol').first().locator('li').count(), 5);
  await page.getByRole('button', { name: 'Pause hourly' }).click();
  await page.getByRole('button', { name: 'Pause it' }).click();
  await card.locator('.status.is-paused').waitFor();
  await card.getByText('None while the schedule is paused.').waitFor();
  await page.getByRole('button', { name: 'Run now: hourly' }).click();
  await page.getByRole('dialog').getByText('although the schedule is paused').waitFor();
  await page.getByRole('button', { name: 'Run it' }).click();
  await card.getByText('manual').waitFor();
  await card.locator('.status.is-done').waitFor();
  await page.getByRole('button', { name: 'Change cycle… of hourly' }).click();
  expectedError = /422/;
  await field(page, 'Cycle').fill('61 * * * *');
  await page.getByRole('button', { name: 'Change it' }).click();
  await page.getByRole('dialog').getByRole('alert').getByText('61').waitFor();
  expectedError = /^$/;
  await field(page, 'Cycle').fill('30 3 * * * [Asia/Tokyo]');
  await page.getByRole('button', { name: 'Change it' }).click();
  await card.getByText('set by tester').waitFor();
  await page.getByRole('button', { name: 'Resume hourly' }).click();
  await card.locator('.status.is-paused').waitFor({ state: 'detached' });
  await card.getByRole('link', { name: 'hourly', exact: true }).click();
  await heading(page, 'hourly').waitFor();
  await page.getByText('Asia/Tokyo', { exact: false }).first().waitFor();
});

await step('charts of an hour, a day and a week show what workers counted', async () => {
  await visit(page, address, '');
  await page.getByRole('group', { name: 'Period' }).getByRole('button', { name: 'Hour' }).click();
  await page.getByRole('heading', { name: 'Time in queue' }).waitFor();
  assert.match(page.url(), /period=hour/);
  const table = page.getByRole('region', { name: 'Step results by machine and queue' });
  await table.getByRole('link', { name: 'parcel' }).waitFor();
  await table.getByRole('button', { name: 'steps' }).click();
  await table.locator('th[aria-sort="descending"]', { hasText: 'steps' }).waitFor();
  const steps = async () => (await table.locator('tbody tr td:nth-child(3)').allTextContents()).map((text) => Number(text.replaceAll(',', '')));
  const down = await steps();
  assert.deepEqual(down, [...down].sort((a, b) => b - a));
  await table.getByRole('button', { name: 'steps' }).click();
  await table.locator('th[aria-sort="ascending"]', { hasText: 'steps' }).waitFor();
  const up = await steps();
  assert.deepEqual(up, [...up].sort((a, b) => a - b));
  await page.reload();
  await page.getByRole('button', { name: 'Hour', pressed: true }).waitFor();
  for (const name of ['Day', 'Week', '5 min']) {
    await page.getByRole('button', { name, exact: true }).click();
    await page.getByRole('button', { name, exact: true, pressed: true }).waitFor();
    await loaded(page);
  }
});

await step('a queue and a worker have pages of their own', async () => {
  await visit(page, address, 'queues');
  await rows(page).getByRole('link', { name: 'default', exact: true }).click();
  await heading(page, 'default').waitFor();
  await page.getByText('Keeps done instances').waitFor();
  await page.getByRole('heading', { name: 'Step duration' }).waitFor();
  await page.locator('.plain-list a').first().click();
  await page.getByRole('heading', { name: 'Claims' }).waitFor();
  await page.getByText(/^at most \d+$/).waitFor();
  PAGES.push(decodeURIComponent(new URL(page.url()).hash.slice(2)));
  for (const width of [1400, 1024, 390]) {
    await page.setViewportSize({ width, height: 844 });
    for (const path of ['?period=week', 'machines/parcel?period=hour', 'queues/default', PAGES.at(-1)]) {
      await visit(page, address, path);
      await page.locator('main h1').waitFor();
      await loaded(page);
      await accessible(page, `${path} at ${width}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) problems.push(`${path} is ${wide} px too wide at ${width}`);
    }
  }
  await page.setViewportSize({ width: 1400, height: 900 });
});

await step('an instance leads to the next and the previous one of the list', async () => {
  await visit(page, address, 'instances?machine=parcel');
  await rows(page).nth(2).waitFor();
  const ids = await rows(page).locator('a.id').allTextContents();
  await rows(page).nth(1).locator('a.id').click();
  await heading(page, ids[1]).waitFor();
  const next = page.getByRole('link', { name: /Next in the list/ });
  await next.waitFor();
  await page.keyboard.press('j');
  await heading(page, ids[2]).waitFor();
  await next.waitFor();
  await page.keyboard.press('k');
  await heading(page, ids[1]).waitFor();
  await page.getByRole('link', { name: /Previous in the list/ }).click();
  await heading(page, ids[0]).waitFor();
});

await step('rollups that are missing, empty or unreadable are told apart', async () => {
  const apart = await open(address, { expectRejections: true });
  expectedError = /503/;
  const answer = await fetch(`${address}api/v1/rollups?period=day`).then((response) => response.json());
  const say = (status, body) => apart.route('**/api/v1/rollups*', (route) => route.fulfill({ status, contentType: 'application/json', body: JSON.stringify(body) }));
  await say(503, { code: 'database_away', detail: 'could not reach the database' });
  await visit(apart, address, '?period=day');
  await apart.getByText('This could not be read').waitFor();
  assert.equal(await apart.getByText('No step results').count(), 0);
  await apart.unrouteAll();
  await say(200, { ...answer, points: [], pairs: [], oldest: null });
  await visit(apart, address, '?period=week');
  await apart.getByText('Nothing has been counted yet').waitFor();
  await apart.unrouteAll();
  await say(200, { ...answer, points: [], pairs: [] });
  await visit(apart, address, '?period=hour');
  await apart.getByText('No step results in the last hour').waitFor();
  await apart.context().close();
  expectedError = /^$/;
});

await step('every action is in the audit log', async () => {
  await visit(page, address, 'audit');
  // The page has the newest 50 actions, and older ones on request.
  await page.getByRole('button', { name: 'Load more' }).click();
  await page.waitForFunction(() => document.querySelectorAll('tbody tr').length > 50);
  for (const act of ['redrive', 'verify', 'shadow rebuild', 'resume', 'pause', 'bulk cancel', 'cancel', 'retry', 'signal', 'enqueue', 'lane retry', 'lane skip', 'lane discard', 'cancel timer', 'pause schedule', 'run schedule', 'set schedule', 'resume schedule', 'set limit', 'set limit key', 'pause limit', 'resume limit', 'fair queue', 'set share']) await page.getByRole('cell', { name: act, exact: true }).first().waitFor();
});

await step('every page passes axe, in light and in dark', async () => {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    for (const path of [...PAGES, `instances/${first}`]) {
      await visit(page, address, path);
      await page.locator('main h1').waitFor();
      await loaded(page);
      await accessible(page, `${path || 'overview'} in ${colorScheme}`);
    }
  }
  const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.getByRole('button', { name: /^Theme/ }).click();
  await page.waitForFunction((before) => getComputedStyle(document.body).backgroundColor !== before, dark);
});

await step('a dialog passes axe, keeps the focus and closes by Escape', async () => {
  await visit(page, address, 'instances');
  await page.getByRole('button', { name: 'Enqueue' }).click();
  await page.getByRole('dialog').waitFor();
  await accessible(page, 'the dialog');
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'detached' });
});

await step('the filter of a projection keeps the text that is typed', async () => {
  await visit(page, address, 'projections');
  await field(page, 'Tenant').focus();
  await page.keyboard.type('acme', { delay: 700 });
  assert.equal(await field(page, 'Tenant').inputValue(), 'acme');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => location.hash.includes('tenant=acme'));
});

await step('times are shown with their zone, relative, local or in UTC', async () => {
  await visit(page, address, 'schedules/nightly%20%3Cb%3E');
  await page.getByText(/\d{4}-\d\d-\d\d 02:30:00 GMT\+[12]/).first().waitFor();
  await visit(page, address, 'workers');
  assert.match(await page.locator('tbody time').first().getAttribute('title'), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ · \d{4}-\d\d-\d\dT\S+Z$/);
  await page.getByRole('button', { name: 'Times: relative' }).click();
  await page.getByRole('button', { name: 'Times: local' }).click();
  await page.locator('tbody time').first().getByText(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/).waitFor();
  await page.getByRole('button', { name: 'Times: UTC' }).click();
});

await step('actions of a row are visible at 1024 and at 390 pixels', async () => {
  for (const width of [1024, 390]) {
    await page.setViewportSize({ width, height: 844 });
    for (const [path, name] of [['lanes', 'Discard the head of van:10'], ['queues', 'Pause default'], ['limits', 'Pause api'], ['projections', 'Rebuild till of acme']]) {
      await visit(page, address, path);
      const button = page.getByRole('button', { name }).first();
      await button.waitFor();
      const box = await button.boundingBox();
      if (box.x < 0 || box.x + box.width > width) problems.push(`${name} is outside of the screen at ${width}: ${JSON.stringify(box)}`);
    }
    const current = await page.locator('.side [aria-current]').boundingBox();
    if (current.x < 0 || current.x + current.width > width) problems.push(`the current page is outside of the list of pages at ${width}`);
  }
});

await step('no page scrolls horizontally on a phone', async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  for (const path of [...PAGES, `instances/${first}`]) {
    await visit(page, address, path);
    await page.locator('main h1').waitFor();
    await loaded(page);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wide > 0) problems.push(`${path || 'overview'} is ${wide} px too wide`);
  }
});

const evil = await open(evilAddress);
await step('markup in names, keys, errors, states and signals is shown as text', async () => {
  const clean = async (where) => {
    const bad = await evil.evaluate(() => [...document.querySelectorAll('script')].filter((script) => !script.src.startsWith(location.origin)).length
      + document.querySelectorAll('#app iframe, #app img:not([src="assets/icon.svg"]), #app object, #app embed, #app base, #app style, #app video, #app audio, #app [onerror], #app [onload], #app [onclick], #app a[href^="javascript:"]').length);
    assert.equal(bad, 0, `markup on ${where}`);
    assertNoProblems(where);
  };
  for (const path of ['', 'machines', 'instances', 'instances?status=failed', 'failures', 'queues', 'limits', 'projections', 'lanes', 'lanes?blocked=true', 'lanes?of=partitions', 'timers', 'schedules', 'workers', 'audit']) {
    await visit(evil, evilAddress, path);
    await evil.locator('main h1').waitFor();
    await loaded(evil);
    await evil.getByText('alert(').first().waitFor({ state: 'attached' });
    await clean(path || 'overview');
  }
  const ids = await evil.evaluate(() => fetch('api/v1/instances?status=failed&limit=200').then((answer) => answer.json()).then((list) => list.instances.map((row) => [row.id, row.machine])));
  // The instance with long names has no signals.
  const planted = ids.filter(([id]) => String(id) !== longId);
  for (const [id] of [...planted.slice(0, 6), ...planted.slice(-6)]) {
    await visit(evil, evilAddress, `instances/${id}`);
    await evil.locator('.history').waitFor();
    await evil.getByText('Undelivered').waitFor();
    await clean(`instances/${id}`);
  }
  const names = await evil.evaluate(() => fetch('api/v1/projections?limit=200').then((answer) => answer.json()).then((list) => list.projections.map((row) => row.projection)));
  for (const name of [...names.slice(0, 6), ...names.slice(-6)]) {
    await visit(evil, evilAddress, `projections/${encodeURIComponent(name)}?tenant=${encodeURIComponent(name)}`);
    await evil.locator('.table-wrap').first().waitFor();
    await clean(`projections/${name}`);
  }
  for (const [, machine] of ids.slice(0, 10)) {
    await visit(evil, evilAddress, `machines/${encodeURIComponent(machine)}`);
    await evil.locator('main h1').waitFor();
    await clean(`machines/${machine}`);
  }
  await visit(evil, evilAddress, 'instances/1');
  await evil.locator('.history').waitFor();
  await clean('instances/1');
  const schedules = await evil.evaluate(() => fetch('api/v1/schedules').then((answer) => answer.json()).then((list) => list.schedules.map((one) => one.name)));
  assert.ok(schedules.length > 20, 'the corpus is in the schedules');
  for (const name of schedules.slice(0, 10)) {
    await visit(evil, evilAddress, `schedules/${encodeURIComponent(name)}`);
    await evil.locator('.schedule').waitFor();
    await clean(`schedules/${name}`);
  }
  const limits = await evil.evaluate(() => fetch('api/v1/limits').then((answer) => answer.json()).then((list) => list.limits.map((one) => one.name)));
  assert.ok(limits.length > 20, 'the corpus is in the limits');
  for (const name of limits.slice(0, 10)) {
    await visit(evil, evilAddress, `limits/${encodeURIComponent(name)}`);
    await evil.getByText('own bounds').waitFor();
    await clean(`limits/${name}`);
  }
  // The page must show text that a user types, or that a link contains, as text and not as markup.
  const corpus = readFileSync(new URL('corpus.txt', import.meta.url), 'utf8').split('\n').filter(Boolean).slice(0, 40);
  for (const text of corpus) {
    await visit(evil, evilAddress, `instances?key=${encodeURIComponent(text)}&machine=${encodeURIComponent(text)}`);
    await evil.locator('main h1').waitFor();
  }
  for (const text of corpus.slice(0, 10)) {
    await visit(evil, evilAddress, `lanes?prefix=${encodeURIComponent(text)}&tenant=${encodeURIComponent(text)}`);
    await evil.locator('main h1').waitFor();
  }
  await clean('links');
});

await step('long names without a space widen no page', async () => {
  for (const width of [1400, 1024, 390]) {
    await evil.setViewportSize({ width, height: 844 });
    for (const path of ['', 'machines', 'instances', 'failures', 'queues', 'limits', `limits/${'n'.repeat(200)}`, 'projections', 'lanes', 'timers', 'schedules', 'workers', 'audit', 'instances/1', `instances/${longId}`]) {
      await visit(evil, evilAddress, path);
      await evil.locator('main h1').waitFor();
      await loaded(evil);
      const wide = await evil.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) problems.push(`${path || 'overview'} is ${wide} px too wide at ${width}`);
    }
  }
  await evil.setViewportSize({ width: 1400, height: 900 });
});

await step('characters that reorder text are escaped, and names of object properties break no page', async () => {
  await visit(evil, evilAddress, 'audit');
  await evil.getByText('abc\\u{202e}gpj.exe').first().waitFor();
  const raw = await evil.evaluate(() => /[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText));
  assert.equal(raw, false, 'a raw direction mark is on the page');
  await visit(evil, evilAddress, `instances/${longId}`);
  await evil.waitForFunction(() => document.querySelectorAll('.history li').length >= 4);
});

const locked = await open(lockedAddress, { expectRejections: true });
await step('a token is required, a wrong one is rejected, and a valid one starts a session', async () => {
  await locked.goto(lockedAddress);
  await locked.getByLabel('Token').fill('a-wrong-token-of-enough-characters');
  await locked.getByRole('button', { name: 'Sign in' }).click();
  await locked.getByText('This token is not valid.').waitFor();
  await accessible(locked, 'the sign-in page');
  await locked.getByLabel('Token').fill('reader-token-of-thirty-two-chars-x');
  await locked.getByRole('button', { name: 'Sign in' }).click();
  await heading(locked, 'Overview').waitFor();
  await locked.getByText('reader', { exact: false }).first().waitFor();
  await visit(locked, lockedAddress, 'instances');
  await heading(locked, 'Instances').waitFor();
  assert.equal(await locked.getByRole('button', { name: 'Enqueue' }).count(), 0, 'readers see no action buttons');
  await locked.getByRole('button', { name: 'Sign out' }).click();
  await locked.getByLabel('Token').waitFor();
});

const signIn = async (token) => {
  await locked.getByLabel('Token').fill(token);
  await locked.getByRole('button', { name: 'Sign in' }).click();
};
const OPERATOR = 'operator-token-of-thirty-two-chars';

await step('a link to a page opens that page after the sign-in', async () => {
  await locked.goto('about:blank');
  await visit(locked, lockedAddress, 'instances?status=failed');
  await signIn('a-wrong-token-of-enough-characters');
  await locked.getByText('This token is not valid.').waitFor();
  await signIn(OPERATOR);
  await heading(locked, 'Instances').waitFor();
  assert.match(locked.url(), /#\/instances\?status=failed$/);
  assert.equal(await field(locked, 'Status').inputValue(), 'failed');
});

await step('a session that ended leads to the sign-in, also from an action, and back to the page', async () => {
  await visit(locked, lockedAddress, 'instances');
  // The sign-out in another tab ends the session of this page.
  await locked.evaluate(() => fetch('api/v1/session/end', { method: 'POST', headers: { 'x-durable': '1' } }));
  await locked.getByLabel('Token').waitFor();
  await signIn(OPERATOR);
  await heading(locked, 'Instances').waitFor();
  await locked.route('**/api/v1/queues/*/pause', (route) => route.fulfill({ status: 401, contentType: 'application/problem+json', body: '{"code": "token_needed", "detail": "authentication required"}' }));
  await locked.evaluate(() => fetch('api/v1/queues/mail/resume', { method: 'POST', headers: { 'x-durable': '1' } }));
  await locked.evaluate(() => fetch('api/v1/instances', { method: 'POST', headers: { 'content-type': 'application/json', 'x-durable': '1' }, body: '{"machine": "parcel", "step": "pack"}' }));
  await visit(locked, lockedAddress, 'queues');
  await locked.getByRole('button', { name: 'Pause default' }).click();
  await locked.getByRole('button', { name: 'Pause it' }).click();
  await locked.getByRole('dialog').getByText('Your session has ended.').waitFor();
  await locked.getByRole('dialog').getByRole('button', { name: 'Sign in' }).click();
  await heading(locked, 'Queues').waitFor();
});

await step('work without any worker is reported on every page', async () => {
  for (const path of ['', 'instances', 'audit']) {
    await visit(locked, lockedAddress, path);
    await locked.getByRole('alert').getByText('No worker is running: 1 instances are due').waitFor();
  }
  await locked.locator('nav a', { hasText: 'Workers' }).locator('.badge.bad').getByText('0').waitFor();
});

// The browser answers in place of the server from here on.
await step('a list that cannot be read is not shown as an empty list', async () => {
  const broken = await open(address, { expectRejections: true });
  expectedError = /503/;
  await broken.route(/\/api\/v1\/(instances|lanes|timers|schedules|audit)/, (route) => route.fulfill({ status: 503, contentType: 'application/problem+json', body: '{"code": "database_away", "detail": "could not reach the database"}' }));
  for (const path of ['instances', 'lanes', 'timers', 'schedules', 'audit', 'lanes?of=partitions']) {
    await visit(broken, address, path);
    await broken.locator('main h1').waitFor();
    if (path !== 'lanes?of=partitions') await broken.getByText('could not reach the database').first().waitFor();
    for (const empty of ['No instances', 'No lanes', 'Nothing is overdue', 'Nothing falls due', 'No schedules', 'No actions yet']) {
      assert.equal(await broken.getByText(empty, { exact: true }).count(), 0, `${path} shows ${empty}`);
    }
  }
  // Rows of an earlier answer stay, with their time.
  await broken.unroute(/\/api\/v1\/(instances|lanes|timers|schedules|audit)/);
  await visit(broken, address, 'instances');
  await rows(broken).first().waitFor();
  await broken.route(/\/api\/v1\/instances/, (route) => route.fulfill({ status: 503, contentType: 'application/problem+json', body: '{"code": "database_away", "detail": "could not reach the database"}' }));
  await broken.getByText('The rows below are from').waitFor();
  assert.ok(await rows(broken).count() > 0, 'the rows stay');
  await broken.context().close();
  expectedError = /^$/;
});

await step('a page says how old its numbers are when none arrive, and gives up a request without an answer', async () => {
  const hung = await open(address, { expectRejections: true });
  // The stream sends one snapshot. Then the server hangs: it accepts requests and never answers.
  const snapshot = await fetch(`${address}api/v1/overview`).then((answer) => answer.text());
  let sent = false;
  await hung.route('**/api/v1/live', (route) => {
    if (sent) return;
    sent = true;
    route.fulfill({ status: 200, contentType: 'text/event-stream', body: `data: ${snapshot}\n\n` });
  });
  await hung.goto(address);
  await hung.locator('.tile').first().waitFor();
  await hung.route('**/api/v1/queues/**', () => {});
  await hung.locator('.dot.is-bad').getByText(/last update \d+ s ago/).waitFor();
  await hung.getByRole('alert').getByText('No numbers have arrived for').waitFor();
  await visit(hung, address, 'queues');
  await hung.getByRole('button', { name: 'Pause default' }).click();
  await hung.getByRole('button', { name: 'Pause it' }).click();
  await hung.getByText('Working…').waitFor();
  await hung.getByRole('dialog').getByText('may or may not have taken effect').waitFor({ timeout: 30000 });
  await hung.context().close();
});

if (shots) {
  mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: join(shots, 'last.png') });
}
await browser.close();
assertNoProblems('the whole run');
