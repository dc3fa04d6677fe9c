// Writes the screens of README.md and the guides. `.ci/run screens` starts the demo and runs this
// script against its dashboard.
//
//   node screens.mjs ADDRESS DIRECTORY
//
// DURABLE_BROWSER_MODULES names the directory with playwright-core.

import { createRequire } from 'node:module';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';

const require = createRequire(join(process.env.DURABLE_BROWSER_MODULES, 'x.js'));
const { chromium } = require('playwright-core');
const [address, directory] = process.argv.slice(2);
const found = ['/usr/bin/chromium', '/usr/bin/chromium-headless-shell', '/usr/bin/chromium-browser'].find(existsSync);
const executablePath = process.env.CHROMIUM ?? found;
const args = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run'];
const browser = await chromium.launch({ executablePath, args });
mkdirSync(directory, { recursive: true });

const get = async (path) => (await fetch(`${address}api/v1/${path}`)).json();
const post = (path) => fetch(`${address}api/v1/${path}`, { method: 'POST', headers: { 'x-durable': '1', 'content-type': 'application/json' }, body: '{}' });

// The audit log needs entries, and the history of an instance an order that was delivered.
await post('queues/mail/pause');
await post('queues/mail/resume');
const { instances } = await get('instances?machine=order&status=done&limit=1');
const id = instances[0].id;

const WIDE = { width: 1280, height: 820 };
const SCREENS = [
  ['overview', ''],
  ['machine', 'machines/order'],
  ['instance', `instances/${id}`],
  ['instances', 'instances'],
  ['failures', 'failures'],
  ['queues', 'queues'],
  ['lanes', 'lanes'],
  ['timers', 'timers'],
  ['schedules', 'schedules'],
  ['schedules-dark', 'schedules', { colorScheme: 'dark' }],
  ['projections', 'projections'],
  ['workers', 'workers'],
  ['audit', 'audit'],
  ['dark', '', { colorScheme: 'dark' }],
  ['phone', '', { viewport: { width: 390, height: 844 }, isMobile: true }],
];
for (const [name, path, options] of SCREENS) {
  const context = await browser.newContext({ viewport: WIDE, locale: 'en-US', timezoneId: 'UTC', reducedMotion: 'reduce', ...options });
  const page = await context.newPage();
  await page.goto(`${address}#/${path}`);
  await page.getByRole('heading', { level: 1 }).first().waitFor();
  await page.waitForFunction(() => !document.querySelector('.loading') && document.fonts.status === 'loaded');
  await page.locator('.dot').getByText('live').first().waitFor();
  await page.screenshot({ path: join(directory, `${name}.png`) });
  await context.close();
}
await browser.close();
