// Bulk actions: a preview with the count, then progress while the action runs. The server stores each
// bulk action, so its progress and its outcome are still there after a reload. The dialog belongs to
// the frame and not to the page, so that it stays when the page no longer shows what it was opened
// from.

import { html, useEffect, useState } from '../view.js';
import { get, post, part } from '../api.js';
import { Dialog, Empty, ErrorNotice, Field, Loading, Panel, Table, Time, toast } from '../parts.js';
import { link } from '../route.js';
import { number } from '../text.js';
import { LoadMore, usePages } from './projections.js';

const POLL_MS = 400;
const LIST_MS = 1500;
const VERBS = { retry: 'Retry', cancel: 'Cancel', discard: 'Discard' };
const hosts = new Set();

export function BulkButton({ kind, filter, steps = [], label, onDone }) {
  const open = () => hosts.forEach((show) => show({ kind, filter, steps, onDone }));
  return html`<button class=${kind === 'retry' ? '' : 'danger'} onClick=${open}>${label}</button>`;
}

export function BulkHost() {
  const [wanted, setWanted] = useState(null);
  useEffect(() => {
    let opened = 0;
    const show = (next) => { opened += 1; setWanted({ ...next, number: opened }); };
    hosts.add(show);
    return () => hosts.delete(show);
  }, []);
  return wanted && html`<${Bulk} key=${wanted.number} ...${wanted} onClose=${() => setWanted(null)} />`;
}

const isOver = (bulk) => bulk.state !== 'running';
const bound = (count, isExact) => `${number(count)}${isExact ? '' : '+'}`;
const outcome = (bulk) => `${number(bulk.changed)} changed, ${number(bulk.refused)} refused, of ${bound(bulk.expected, bulk.expected_is_exact)}`;
const stateName = (bulk) => ({ running: bulk.is_active ? 'Working…' : 'Waiting for a dashboard or command', done: 'Done', stopped: 'Stopped', failed: 'Failed' })[bulk.state];
const conditions = (bulk) => Object.entries(bulk.conditions).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`).join(', ') + (bulk.retry_step ? `, from step ${bulk.retry_step}` : '');

function Meter({ bulk }) {
  const percent = Math.round(100 * bulk.share);
  return html`<div class="meter wide" role="progressbar" aria-label=${`Progress of bulk ${bulk.id}`} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent}><i style=${{ width: `${percent}%` }}></i></div>`;
}

const Refusals = ({ bulk }) => (bulk.refusals.length > 0 || bulk.error) && html`<ul class="sample">${bulk.error && html`<li class="error-text">${bulk.error}</li>`}${bulk.refusals.map((text) => html`<li class="error-text">${text}</li>`)}</ul>`;

function Bulk({ kind, filter, steps, onDone, onClose }) {
  const [preview, setPreview] = useState(null);
  const [bulk, setBulk] = useState(null);
  const [error, setError] = useState(null);
  const [isHidden, setHidden] = useState(false);
  const [tries, setTries] = useState(0);
  const [step, setStep] = useState('');
  const many = { kind, filter };
  const verb = VERBS[kind];
  const loadPreview = () => post('bulk/preview', many).then((answer) => { setPreview(answer); setError(null); }, setError);
  useEffect(() => { loadPreview(); }, []);
  useEffect(() => {
    if (!bulk || isOver(bulk)) return undefined;
    const update = (answer) => {
      setBulk(answer);
      setError(null);
      if (!isOver(answer)) return;
      toast(`${verb}: ${outcome(answer)}`);
      onDone?.();
      if (isHidden) onClose();
    };
    // A failed read of the progress is shown, and repeated: the action itself continues.
    const failed = (problem) => { setError(problem); setTries((count) => count + 1); };
    const timer = setTimeout(() => get(`bulk/${part(bulk.id)}`).then(update, failed), POLL_MS);
    return () => clearTimeout(timer);
  }, [bulk, tries, isHidden]);
  const begin = () => post('bulk', { ...many, step: step || undefined, expect: preview.count }).then((answer) => { setBulk(answer); setError(null); }, (failed) => {
    setError(failed);
    if (failed.body?.code === 'count_changed') loadPreview();
  });
  const close = () => (bulk && !isOver(bulk) ? setHidden(true) : onClose());
  if (isHidden) return null;
  const count = preview && bound(preview.count, preview.is_exact);
  return html`<${Dialog} title=${`${verb} matching instances`} onClose=${close}>
    ${!bulk && !preview && !error && html`<p>Counting…</p>`}
    ${!bulk && preview && html`
      <p class="big">${count} ${count === '1' ? 'instance' : 'instances'}</p>
      ${kind === 'discard' && html`<p>They become cancelled and are not run again by themselves. A lane that one of them blocks continues with its next instance.</p>`}
      ${preview.sample.length > 0 && html`<ul class="sample">${preview.sample.slice(0, 8).map((row) => html`<li><span class="id">${row.id}</span> ${row.machine} · ${row.step} <span class="error-text">${row.last_error ?? ''}</span></li>`)}</ul>`}
      ${kind === 'retry' && filter.machine && steps.length > 0 && html`<${Field} label="From step"><select value=${step} onChange=${(event) => setStep(event.target.value)}>
        <option value="" selected=${!step}>the current step of each</option>${steps.map((name) => html`<option value=${name} selected=${step === name}>${name}</option>`)}
      </select><//>`}`}
    ${bulk && html`
      <p class="big">${stateName(bulk)}</p>
      <${Meter} bulk=${bulk} />
      <p>${outcome(bulk)}</p>
      <${Refusals} bulk=${bulk} />
      <p><a href=${link('bulk')} onClick=${close}>All bulk actions</a></p>`}
    <${ErrorNotice} error=${error} />
    <div class="row end">
      ${bulk && !isOver(bulk) && html`<button class="danger" onClick=${() => post(`bulk/${part(bulk.id)}/stop`).then(setBulk, setError)}>Stop</button>`}
      <button onClick=${close}>${bulk && !isOver(bulk) ? 'Run in background' : 'Close'}</button>
      ${!bulk && html`<button class=${kind === 'retry' ? 'primary' : 'danger'} disabled=${!preview?.count} onClick=${begin}>${verb} ${count ?? ''}</button>`}
    </div>
  <//>`;
}

// The page of bulk actions, with the progress of those that run and the outcome of those that ended.
export function BulkActions({ live, mayAct }) {
  const pages = usePages('bulk', {}, 'bulks', 'before', LIST_MS);
  const bulks = pages.rows;
  const [error, setError] = useState(null);
  if (!bulks) return html`<h1>Bulk actions</h1>${pages.error ? html`<${ErrorNotice} error=${pages.error} />` : html`<${Loading} lines=${6} />`}`;
  const stop = (bulk) => post(`bulk/${part(bulk.id)}/stop`).then(() => { setError(null); pages.reload?.(); }, setError);
  return html`<h1>Bulk actions</h1><p class="sub">Retries, cancellations and discards of many instances. They continue after a restart of the dashboard. The newest 1,000 are kept.</p>
    <${ErrorNotice} error=${pages.error ?? error} /><${Panel}>
    ${bulks.length === 0 ? html`<${Empty} title="No bulk actions yet">Retry, cancel or discard all matching instances on the pages Failures and Instances.<//>` : html`
    <${Table} label="Bulk actions" head=${['id', 'requested', 'user', 'action', 'conditions', 'state', 'progress', '']}>
      ${bulks.map((bulk) => html`<tr key=${bulk.id}><td>${bulk.id}</td><td><${Time} at=${bulk.requested_at} now=${live.now} /></td><td>${bulk.actor}</td>
        <td>${bulk.kind}</td><td class="cut" title=${conditions(bulk)}>${conditions(bulk)}</td><td>${stateName(bulk)}</td>
        <td>${outcome(bulk)}${!isOver(bulk) && html`<${Meter} bulk=${bulk} />`}<${Refusals} bulk=${bulk} /></td>
        <td class="end">${mayAct && !isOver(bulk) && html`<button class="danger" onClick=${() => stop(bulk)}>Stop</button>`}</td></tr>`)}
    <//>`}
    <${LoadMore} pages=${pages} what="bulk action" />
  <//>`;
}
