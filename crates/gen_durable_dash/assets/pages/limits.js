// The page of limits: it shows the bounds and the use of each limit. The page of one limit also shows
// its use over time and its keys, and changes bounds, pauses, resumes and resets it.

import { html, useState } from '../view.js';
import { part, post } from '../api.js';
import { Chart } from '../chart.js';
import { useFetch } from '../live.js';
import { ConfirmButton, Empty, ErrorNotice, Field, FormDialog, Loading, Panel, Sorted, Table, Time, Unreadable, toast } from '../parts.js';
import { link } from '../route.js';
import { atLeast, counted, exact, number } from '../text.js';

const EVERY = 2000;
const none = html`<span class="faint">–</span>`;
const WAITING = link('instances', { status: 'awaiting_limit' });

const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']];
const SECONDS = Object.fromEntries(UNITS.map(([seconds, unit]) => [unit, seconds]));

// Writes a rate as the form reads it: "100/15m".
function rateText(rate) {
  if (!rate) return '';
  const [seconds, unit] = UNITS.find(([size]) => rate.period_seconds >= size && rate.period_seconds % size === 0) ?? [1, 's'];
  const count = rate.period_seconds / seconds;
  return `${rate.weight}/${count === 1 ? '' : count}${unit}`;
}

// Reads a rate and its burst from the form. An empty rate is no rate.
function rateOf(text, burst) {
  if (!text.trim()) return null;
  const found = /^([\d.]+)\/([\d.]*)([smhd])$/.exec(text.replace(/\s/g, ''));
  if (!found) throw new Error(`${text} is no rate: write how much may begin per period, such as 10/s, 100/15m, 5000/h or 100000/d`);
  const rate = { weight: Number(found[1]), period_seconds: Number(found[2] || 1) * SECONDS[found[3]] };
  return burst.trim() ? { ...rate, burst: Number(burst) } : rate;
}

const stepsOf = (text) => (text.trim() ? Number(text) : null);
const shownRate = (rate) => (rate ? `${rateText(rate)}${rate.burst === rate.weight ? '' : `, burst ${number(rate.burst)}`}` : none);
const shownTokens = (tokens) => (tokens === null ? none : number(Math.floor(tokens * 10) / 10));

// The running steps beside their bound, with a bar.
const Use = ({ running, bound, label }) => html`<div class="use"><span>${counted(running)}${bound !== null && html` <small>of ${number(bound)}</small>`}</span>
  ${bound !== null && html`<span class="meter" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${Math.max(1, bound)} aria-valuenow=${Math.min(running, Math.max(1, bound))}><i class=${running >= bound ? 'is-full' : ''} style=${{ width: `${bound > 0 ? Math.min(100, (100 * running) / bound) : 100}%` }}></i></span>`}</div>`;

const State = ({ limit }) => html`${limit.paused_at && html`<span class="status is-paused" title=${`since ${exact(limit.paused_at)}`}>paused</span> `}
  ${limit.closed_until && html`<span class="status is-paused">closed until ${exact(limit.closed_until)}</span> `}
  ${limit.changed_at && html`<span class="status is-runnable" title=${`at ${exact(limit.changed_at)}`}>changed by an operator</span>`}`;

// Pauses and resumes a limit.
function PauseButton({ limit, onDone, onError }) {
  const act = (verb, said) => async () => {
    await post(`limits/${part(limit.name)}/${verb}`);
    toast(`${limit.name} ${said}`);
    onDone();
  };
  if (limit.paused_at || limit.closed_until) return html`<button onClick=${() => act('resume', 'resumed')().catch(onError)} aria-label=${`Resume ${limit.name}`}>Resume</button>`;
  return html`<${ConfirmButton} label="Pause" describe=${`Pause ${limit.name}`} title=${`Pause ${limit.name}`} verb="Pause it" onConfirm=${act('pause', 'paused: running steps continue')}>
    <p>No step that takes this limit begins until it is resumed. Running steps continue. ${atLeast(limit.waiting, limit.is_lower_bound)} instances wait for it now.</p>
  <//>`;
}

const columns = (mayAct, onDone, onError) => [
  { name: 'limit', className: () => 'key-cell', by: (limit) => limit.name, cell: (limit) => html`<a href=${link(`limits/${part(limit.name)}`)}>${limit.name}</a>` },
  { name: 'running', by: (limit) => limit.running, cell: (limit) => html`<${Use} running=${limit.running} bound=${limit.at_once} label=${`Use of ${limit.name}`} />` },
  { name: '#per key', by: (limit) => limit.per_key ?? Infinity, cell: (limit) => (limit.per_key === null ? none : number(limit.per_key)) },
  { name: 'rate', cell: (limit) => shownRate(limit.rate) },
  { name: 'rate per key', cell: (limit) => shownRate(limit.key_rate) },
  { name: '#left', by: (limit) => limit.tokens ?? Infinity, cell: (limit) => shownTokens(limit.tokens) },
  { name: '#waiting', by: (limit) => limit.waiting, cell: (limit) => atLeast(limit.waiting, limit.is_lower_bound) },
  { name: 'state', cell: (limit) => html`<${State} limit=${limit} />` },
  { name: '', className: () => 'end', cell: (limit) => mayAct && html`<${PauseButton} limit=${limit} onDone=${onDone} onError=${onError} />` },
];

export function Limits({ mayAct }) {
  const fetched = useFetch('limits', { every: EVERY });
  const [error, setError] = useState(null);
  const limits = fetched.data?.limits;
  const done = () => { setError(null); fetched.reload(); };
  return html`<h1>Limits</h1>
    <p class="sub">A limit bounds how many steps run at the same time, or how many begin in a period, in all processes together.</p>
    <${ErrorNotice} error=${limits && fetched.error} since=${fetched.read && new Date(fetched.read).toISOString()} /><${ErrorNotice} error=${error} />
    <${Panel}>
      ${!limits ? (fetched.error ? html`<${Unreadable} error=${fetched.error} />` : html`<${Loading} lines=${6} />`) : limits.length === 0
        ? html`<${Empty} title="No limits">An engine declares limits with .limit(..) when it starts.<//>`
        : html`<${Sorted} label="Limits" columns=${columns(mayAct, done, setError)} rows=${limits} keyOf=${(limit) => limit.name} />
          ${limits.length === 1000 && html`<p class="foot">The first 1,000.</p>`}`}
    <//>`;
}

export function Limit({ one, live, mayAct }) {
  const path = `limits/${part(one)}`;
  const { data, error, read, reload } = useFetch(path, { every: EVERY });
  const [failed, setFailed] = useState(null);
  const head = html`<p class="crumbs"><a href=${link('limits')}>Limits</a></p>`;
  if (!data) {
    return html`${head}<h1>${one}</h1>${error ? html`<${Empty} title=${error.status === 404 ? 'Unknown limit' : 'Limit could not be read'}>${error.message}<//>` : html`<${Loading} lines=${6} />`}`;
  }
  const { limit, keys, chart } = data;
  const done = () => { setFailed(null); reload(); };
  const act = (verb, body, said) => async () => { await post(`${path}/${verb}`, body); toast(`${one} ${said}`); done(); };
  const facts = [
    ['At once', limit.at_once === null ? 'no bound' : number(limit.at_once)], ['Per key', limit.per_key === null ? 'no bound' : number(limit.per_key)],
    ['Rate', limit.rate ? shownRate(limit.rate) : 'no bound'], ['Rate per key', limit.key_rate ? shownRate(limit.key_rate) : 'no bound'],
    ['Left of the rate', shownTokens(limit.tokens)],
    ['Waiting', html`<a href=${WAITING}>${atLeast(limit.waiting, limit.is_lower_bound)}</a>`],
    ['Paused', limit.paused_at ? html`<${Time} at=${limit.paused_at} now=${live.now} />` : 'no'],
    ['Closed by a step', limit.closed_until ? html`until <${Time} at=${limit.closed_until} now=${live.now} />` : 'no'],
    ['Changed by an operator', limit.changed_at ? html`<${Time} at=${limit.changed_at} now=${live.now} />` : 'no'],
  ];
  return html`${head}
    <div class="head"><h1>${limit.name} <${State} limit=${limit} /></h1>
      <div class="row"><a class="button" href=${WAITING}>Instances that wait</a>
        ${mayAct && html`<${BoundsButton} limit=${limit} path=${path} onDone=${done} />
          <${ConfirmButton} label="Reset" describe=${`Reset ${limit.name}`} title=${`Reset ${limit.name}`} verb="Reset it" onConfirm=${act('reset', {}, 'has the bounds of the code')}>
            <p>The limit gets the bounds that the code declares. Single keys lose bounds of their own.</p>
          <//>
          <${PauseButton} limit=${limit} onDone=${done} onError=${setFailed} />`}</div></div>
    <${ErrorNotice} error=${error} since=${read && new Date(read).toISOString()} what="The numbers below are" /><${ErrorNotice} error=${failed} />
    <div class="two">
      <${Panel} title="Bounds"><${Use} running=${limit.running} bound=${limit.at_once} label=${`Use of ${limit.name}`} />
        <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl><//>
      <${Panel} title="Use" aside="last five minutes">${chart
        ? html`<${Chart} label="Running steps and waiting instances" from=${chart.from} step=${chart.step} format=${counted} lines=${[{ name: 'running', tone: 'c-arrived', values: chart.running }, { name: 'waiting', tone: 'c-waiting', values: chart.waiting }]} />`
        : html`<${Empty} title="No chart">The dashboard keeps the use of the first 100 limits by name.<//>`}<//>
    </div>
    <${Panel} title="Keys" aside=${mayAct && html`<${KeyButton} limit=${limit} path=${path} onDone=${done} label="Set a key" />`}>
      ${keys.length === 0 ? html`<${Empty} title="No keys">A key appears while instances wait for it, or if it has bounds of its own.<//>`
        : html`<${Table} label="Keys" head=${['key', 'running', 'rate', '#left', '#waiting', 'next try', '', '']}>
          ${keys.map((key) => html`<tr><td class="key-cell">${key.key}</td>
            <td><${Use} running=${key.running} bound=${key.at_once} label=${`Use of ${key.key}`} /></td><td>${shownRate(key.rate)}</td>
            <td class="num">${shownTokens(key.tokens)}</td><td class="num">${counted(key.waiting)}</td>
            <td>${key.ready_at ? html`<${Time} at=${key.ready_at} now=${live.now} />` : none}</td>
            <td>${key.is_own && html`<span class="status is-runnable">own bounds</span>`}</td>
            <td class="end">${mayAct && html`<div class="row"><${KeyButton} limit=${limit} path=${path} of=${key} onDone=${done} label="Change" />
              ${key.is_own && html`<${ConfirmButton} label="Remove" describe=${`Remove the bounds of ${key.key}`} title=${`The key ${key.key}`} verb="Remove them" onConfirm=${act('unset_key', { key: key.key }, `has no bounds of their own for ${key.key}`)}><p>The key gets the bounds that the limit has for each key.</p><//>`}</div>`}</td></tr>`)}
        <//>${keys.length === 200 && html`<p class="foot">The 200 keys with the most waiting instances.</p>`}`}
    <//>`;
}

const Steps = ({ name, label, value, hint }) => html`<${Field} label=${label} hint=${hint}><input name=${name} type="number" min="0" max="2147483647" step="1" defaultValue=${value ?? ''} /><//>`;

const Rate = ({ name, label, rate }) => html`<${Field} label=${label} hint="Such as 10/s, 100/15m, 5000/h or 100000/d. Empty: no rate."><input name=${name} defaultValue=${rateText(rate)} autocomplete="off" spellcheck="false" /><//>
  <${Field} label=${`Burst of the ${label.toLowerCase()}`} hint="How much may begin at once. Empty: as much as in a period."><input name=${`${name}_burst`} type="number" min="0" step="any" defaultValue=${rate && rate.burst !== rate.weight ? rate.burst : ''} /><//>`;

// A form for the bounds of a limit. It sends only the bounds that differ from those at its opening, so
// that another operator's change of another bound stays.
function BoundsButton({ limit, path, onDone }) {
  const [shown, setShown] = useState(null);
  const send = async (form) => {
    const wanted = { at_once: stepsOf(form.at_once), per_key: stepsOf(form.per_key), rate: rateOf(form.rate, form.rate_burst), key_rate: rateOf(form.key_rate, form.key_rate_burst) };
    const isSame = (name) => {
      const [a, b] = [wanted[name], shown[name]];
      return a === b || (a && b && typeof a === 'object' && a.weight === b.weight && a.period_seconds === b.period_seconds && (a.burst ?? a.weight) === b.burst);
    };
    const body = Object.fromEntries(Object.entries(wanted).filter(([name]) => !isSame(name)));
    if (!Object.keys(body).length) return;
    await post(`${path}/set`, body);
    toast(`${limit.name} changed: new steps follow the bounds at once`);
    onDone();
  };
  return html`<button onClick=${() => setShown(limit)} aria-label=${`Change bounds of ${limit.name}`}>Change bounds</button>
    ${shown && html`<${FormDialog} title=${`Bounds of ${limit.name}`} verb="Change them" onSubmit=${send} onClose=${() => setShown(null)}>
      <${Steps} name="at_once" label="At once" value=${shown.at_once} hint="Steps at the same time. Empty: no bound." />
      <${Steps} name="per_key" label="Per key" value=${shown.per_key} hint="Steps at the same time with the same key. Empty: no bound." />
      <${Rate} name="rate" label="Rate" rate=${shown.rate} />
      <${Rate} name="key_rate" label="Rate per key" rate=${shown.key_rate} />
      <p>The bounds stay in force until the limit is reset. A lower bound interrupts no step.</p>
    <//>`}`;
}

// A form for the bounds of one key. A bound that equals the one for each key is left empty.
function KeyButton({ limit, path, of, onDone, label }) {
  const [shown, setShown] = useState(null);
  const own = (bound, general) => (shown?.is_own && JSON.stringify(bound) !== JSON.stringify(general) ? bound : null);
  const send = async (form) => {
    const rate = rateOf(form.rate, form.rate_burst);
    const body = { key: of?.key ?? form.key, ...(form.at_once.trim() ? { at_once: Number(form.at_once) } : {}), ...(rate ? { rate } : {}) };
    await post(`${path}/set_key`, body);
    toast(`${limit.name} has bounds of its own for ${body.key}`);
    onDone();
  };
  return html`<button onClick=${() => setShown(of ?? {})} aria-label=${of ? `Change the bounds of ${of.key}` : `Set a key of ${limit.name}`}>${label}</button>
    ${shown && html`<${FormDialog} title=${of ? `The key ${of.key}` : `A key of ${limit.name}`} verb="Set them" onSubmit=${send} onClose=${() => setShown(null)}>
      ${!of && html`<${Field} label="Key"><input name="key" required maxlength="512" autocomplete="off" /><//>`}
      <${Steps} name="at_once" label="At once" value=${own(shown.at_once, limit.per_key)} hint="Steps at the same time with this key. Empty: as the limit has it for each key." />
      <${Rate} name="rate" label="Rate" rate=${own(shown.rate, limit.key_rate)} />
      <p>These bounds replace those that the limit has for each key.</p>
    <//>`}`;
}
