// The frame around every page: navigation, search, keyboard shortcuts, and the connection status.

import { html, render, useEffect, useRef, useState } from './view.js';
import { get, post } from './api.js';
import { useLive } from './live.js';
import { Dialog, Loading, Toasts } from './parts.js';
import { counted, exact, span } from './text.js';
import { TIMES, setTimes, useTimes } from './zone.js';
import { go, link, useRoute } from './route.js';
import { Overview } from './pages/overview.js';
import { Machine, Machines } from './pages/machines.js';
import { Instances } from './pages/instances.js';
import { Instance } from './pages/instance.js';
import { Failures } from './pages/failures.js';
import { Queue, Queues } from './pages/queues.js';
import { Limit, Limits } from './pages/limits.js';
import { Lanes } from './pages/lanes.js';
import { Timers } from './pages/timers.js';
import { Schedule, Schedules } from './pages/schedules.js';
import { Projections } from './pages/projections.js';
import { Worker, Workers } from './pages/workers.js';
import { Audit } from './pages/audit.js';
import { BulkActions, BulkHost } from './pages/bulk.js';

// One entry per page: its path, name, shortcut (after g), the list view, the view of a single item,
// and the number shown beside the name.
const PAGES = [
  { path: '', name: 'Overview', key: 'o', view: Overview },
  { path: 'machines', name: 'Machines', key: 'm', view: Machines, one: Machine },
  { path: 'instances', name: 'Instances', key: 'i', view: Instances, one: Instance },
  { path: 'failures', name: 'Failures', key: 'f', view: Failures, count: (live) => (live?.totals.failed ?? 0) + (live?.totals.stuck ?? 0), tone: 'bad' },
  { path: 'queues', name: 'Queues', key: 'q', view: Queues, one: Queue, count: (live) => live?.queues.reduce((sum, queue) => sum + queue.due, 0) },
  { path: 'limits', name: 'Limits', key: 'r', view: Limits, one: Limit },
  { path: 'lanes', name: 'Lanes', key: 'l', view: Lanes, count: (live) => live?.findings?.lanes_blocked, tone: 'bad' },
  { path: 'timers', name: 'Timers', key: 't', view: Timers, count: (live) => live?.findings?.overdue, tone: 'bad' },
  { path: 'schedules', name: 'Schedules', key: 's', view: Schedules, one: Schedule, count: (live) => live?.findings?.schedules_failing, tone: 'bad' },
  { path: 'projections', name: 'Projections', key: 'p', view: Projections, one: Projections },
  { path: 'workers', name: 'Workers', key: 'w', view: Workers, one: Worker, count: (live) => live?.workers.filter((worker) => worker.alive).length, isShown: (live) => live?.at, toneOf: (count) => (count ? '' : 'bad') },
  { path: 'bulk', name: 'Bulk actions', key: 'b', view: BulkActions },
  { path: 'audit', name: 'Audit log', key: 'a', view: Audit },
];

function Search() {
  const box = useRef(null);
  useEffect(() => {
    const focus = (event) => {
      if (event.key === '/' && !isTyping(event)) { event.preventDefault(); box.current?.focus(); }
    };
    addEventListener('keydown', focus);
    return () => removeEventListener('keydown', focus);
  }, []);
  const find = (event) => {
    event.preventDefault();
    const text = box.current.value.trim();
    if (!text) return;
    if (/^\d{1,18}$/.test(text)) go(`instances/${text}`);
    else if (text.startsWith('error:')) go('instances', { error: text.slice(6).trim(), status: 'failed' });
    else go('instances', { key: text });
    box.current.value = '';
    box.current.blur();
  };
  return html`<form class="search" role="search" onSubmit=${find}>
    <input ref=${box} type="search" aria-label="Find an instance by id, key or error" placeholder="Find: id, key or error:text" />
    <kbd aria-hidden="true">/</kbd>
  </form>`;
}

const isTyping = (event) => event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.('input, textarea, select, dialog');

function useKeys(help) {
  useEffect(() => {
    let chord = 0;
    const press = (event) => {
      if (isTyping(event)) return;
      if (event.key === '?') help();
      else if (event.key === 'g') chord = Date.now();
      else if (Date.now() - chord < 1500) {
        chord = 0;
        const page = PAGES.find((one) => one.key === event.key);
        if (page) go(page.path);
      }
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
}

const THEMES = ['auto', 'light', 'dark'];

function Theme() {
  const kept = () => { try { return localStorage.getItem('durable-theme') ?? 'auto'; } catch { return 'auto'; } };
  const [theme, setTheme] = useState(kept);
  useEffect(() => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try { localStorage.setItem('durable-theme', theme); } catch { /* storage is disabled in this browser */ }
  }, [theme]);
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  return html`<button class="quiet" onClick=${() => setTheme(next)} aria-label=${`Theme: ${theme}. Change to ${next}`} title=${`Theme: ${theme}`}>
    ${{ auto: '◐', light: '☀', dark: '☾' }[theme]}
  </button>`;
}

// Switches between relative times and exact times in the zone of the browser or in UTC.
function Times() {
  const times = useTimes();
  const next = TIMES[(TIMES.indexOf(times) + 1) % TIMES.length];
  return html`<button class="quiet times" onClick=${() => setTimes(next)} aria-label=${`Times: ${times}. Change to ${next}`} title=${`Times: ${times}`}>${times}</button>`;
}

// The state of the connection: whether numbers arrive, and how old they are.
function connection(live) {
  const trouble = live.data?.trouble;
  if (!live.received) return { dot: 'is-off', said: 'connecting' };
  if (live.isStale) return { dot: 'is-bad', said: `last update ${span(live.age)} ago` };
  if (trouble) return { dot: 'is-bad', said: 'database unavailable' };
  return live.connected ? { dot: 'is-on', said: 'live' } : { dot: 'is-off', said: 'reconnecting' };
}

// The most important thing that is wrong, on every page.
function Banner({ live }) {
  const { data } = live;
  if (data?.trouble) {
    return html`<p class="notice is-bad" role="alert">The database does not respond since ${exact(data.trouble_since)}.${data.at && html` The numbers on this page are from ${exact(data.at)}.`} ${data.trouble}</p>`;
  }
  if (live.isStale) return html`<p class="notice is-bad" role="alert">No numbers have arrived for ${span(live.age)}: the server or the database does not respond. The numbers on this page are from ${exact(data.at)}.</p>`;
  const alerts = (data?.alerts ?? []).filter((alert) => alert.severity === 'critical');
  if (!alerts.length) return null;
  return html`<div class="notice is-bad" role="alert">${alerts.slice(0, 3).map((alert) => html`<p key=${alert.code + alert.text}><a href=${link(alert.page)}>${alert.text}</a></p>`)}${alerts.length > 3 && html`<p><a href="#/">${alerts.length - 3} more</a></p>`}</div>`;
}

function Help({ onClose }) {
  return html`<${Dialog} title="Keyboard shortcuts" onClose=${onClose}>
    <dl class="keys">
      <dt><kbd>/</kbd></dt><dd>Find an instance</dd>
      ${PAGES.map((page) => html`<dt><kbd>g</kbd> <kbd>${page.key}</kbd></dt><dd>${page.name}</dd>`)}
      <dt><kbd>?</kbd></dt><dd>Show this list</dd>
    </dl>
    <div class="row end"><button onClick=${onClose}>Close</button></div>
  <//>`;
}

function Frame() {
  const route = useRoute();
  const live = useLive();
  const [session, setSession] = useState(null);
  const [help, setHelp] = useState(false);
  useEffect(() => { get('session').then(setSession, () => {}); }, []);
  useKeys(() => setHelp(true));
  const [section = '', one] = route.parts;
  const page = PAGES.find((known) => known.path === section);
  const View = one !== undefined ? page?.one : page?.view;
  const title = session?.title ?? 'gen_durable';
  useEffect(() => {
    document.title = `${one ?? page?.name ?? 'Page not found'} · ${title}`;
    document.querySelector('main')?.focus({ preventScroll: true });
    scrollTo(0, 0);
    // On a phone the list of pages scrolls sideways.
    document.querySelector('.side [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' });
  }, [section, one, title]);
  const signOut = async () => { await post('session/end'); location.reload(); };
  const { dot, said } = connection(live);
  // A new choice renders every page again.
  useTimes();
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector('main').focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="assets/icon.svg" alt="" width="26" height="26" /><span>${title}</span></a>
      <${Search} />
      <span class=${`dot ${dot}`} role="status"><i></i>${said}</span>
      <${Times} />
      <${Theme} />
      <button class="quiet keys-button" onClick=${() => setHelp(true)} aria-label="Keyboard shortcuts">?</button>
      ${session?.may_sign_out && html`<button class="quiet" onClick=${signOut}>Sign out</button>`}
    </header>
    <nav class="side" aria-label="Pages">
      ${PAGES.map((item) => {
        const count = item.count?.(live.data);
        return html`<a href=${link(item.path)} aria-current=${item === page ? 'page' : undefined}>
          ${item.name}${(count > 0 || item.isShown?.(live.data)) && html`<span class=${`badge ${item.toneOf?.(count) ?? item.tone ?? ''}`}>${counted(count)}</span>`}
        </a>`;
      })}
      <p class="about">${session && html`${session.role}<br />schema ${session.schema}<br />v${session.version}`}</p>
    </nav>
    <main id="main" tabindex="-1">
      <${Banner} live=${live} />
      ${View
        ? session ? html`<${View} key=${`${section}/${one ?? ''}`} one=${one} query=${route.query} live=${live} mayAct=${session.may_act} />` : html`<${Loading} lines=${6} />`
        : html`<h1>Page not found</h1><p>This page does not exist. <a href="#/">Back to the overview</a></p>`}
    </main>
    <${Toasts} />
    <${BulkHost} />
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

render(html`<${Frame} />`, document.getElementById('app'));
document.querySelector('.boot')?.remove();
