// The dialogs for actions of an operator on one instance or on many instances.

import { html, useEffect, useState } from '../vendor/preact-htm.js';
import { get, post, part } from '../api.js';
import { Dialog, Field, FormDialog, ErrorNotice, toast } from '../parts.js';
import { go } from '../route.js';
import { number, plural } from '../text.js';

// Checks JSON that the user typed, and sends its text unchanged, so that no number loses digits in
// a JavaScript number.
function typed(text, what) {
  const json = text.trim();
  if (!json) return null;
  try { JSON.parse(json); } catch { throw new Error(`${what} is not JSON`); }
  return json;
}

const body = (values, raw) => {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== '').map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`);
  const bare = Object.entries(raw).filter(([, value]) => value).map(([key, value]) => `${JSON.stringify(key)}:${value}`);
  return `{${[...given, ...bare].join(',')}}`;
};

function DialogButton({ label, tone = '', children, disabled }) {
  const [open, setOpen] = useState(false);
  return html`<button class=${tone} disabled=${disabled} onClick=${() => setOpen(true)}>${label}</button>${open && children(() => setOpen(false))}`;
}

export function RetryButton({ row, onDone }) {
  const send = async ({ step, data }) => {
    await post(`instances/${part(row.id)}/retry`, body({ step: step.trim() || undefined }, { data: typed(data, 'the data') }));
    toast(`Instance ${row.id} will be retried`);
    onDone();
  };
  return html`<${DialogButton} label="Retry" tone="primary">${(close) => html`<${FormDialog} title=${`Retry ${row.id}`} verb="Retry" onSubmit=${send} onClose=${close}>
    <p>It runs again from <b>${row.step}</b> now, and its attempts are reset. A retry from the current step keeps the idempotency key.</p>
    <details><summary>From another step</summary>
      <${Field} label="Step"><input name="step" autocomplete="off" /><//>
      <${Field} label="Data (JSON)"><textarea name="data" rows="3"></textarea><//>
    </details>
  <//>`}<//>`;
}

export function CancelButton({ row, onDone }) {
  const send = async ({ why, subtree }) => {
    const answer = await post(`instances/${part(row.id)}/cancel`, { why, subtree: subtree === 'on' });
    toast(answer.cancelled ? `Instance ${row.id} cancelled` : `Instance ${row.id} has already finished`);
    onDone();
  };
  return html`<${DialogButton} label="Cancel" tone="danger">${(close) => html`<${FormDialog} title=${`Cancel ${row.id}`} verb="Cancel it" danger onSubmit=${send} onClose=${close}>
    <p>The instance finishes as cancelled at once. If its step is running, the result of that step is discarded.</p>
    <${Field} label="Reason"><input name="why" placeholder="recorded with the cancellation" /><//>
    <label class="check"><input type="checkbox" name="subtree" /> also cancel all descendants that have not finished</label>
  <//>`}<//>`;
}

export function SignalButton({ row, onDone }) {
  const send = async ({ name, payload, once }) => {
    const answer = await post(`instances/${part(row.id)}/signal`, body({ name, once }, { payload: typed(payload, 'the payload') }));
    toast(answer.is_new ? `Signal ${name} delivered` : `Signal ${name} was already delivered`);
    onDone();
  };
  const awaited = row.status === 'awaiting_signal' ? row.awaits ?? [] : [];
  return html`<${DialogButton} label="Signal">${(close) => html`<${FormDialog} title=${`Send a signal to ${row.id}`} verb="Send" onSubmit=${send} onClose=${close}>
    <${Field} label="Signal" hint=${awaited.length ? `It waits for ${awaited.join(' or ')}.` : 'The signal stays in the inbox until a step consumes it.'}><input name="name" required defaultValue=${awaited[0] ?? ''} autocomplete="off" /><//>
    <${Field} label="Payload (JSON)"><textarea name="payload" rows="4" placeholder="null"></textarea><//>
    <${Field} label="Dedup key" hint="Repeated signals with the same key are delivered once."><input name="once" autocomplete="off" /><//>
  <//>`}<//>`;
}

export function EnqueueButton({ machines }) {
  const send = async ({ machine, step, state, data, queue, key, after }) => {
    const values = { machine, step, queue, key, delay_seconds: after ? Number(after) : undefined };
    const answer = await post('instances', body(values, { state: typed(state, 'the state'), data: typed(data, 'the data') }));
    toast(answer.is_new ? `Instance ${answer.id} enqueued` : `The key is already taken by instance ${answer.id}`);
    go(`instances/${answer.id}`);
  };
  return html`<${DialogButton} label="Enqueue…">${(close) => html`<${FormDialog} title="Enqueue an instance" verb="Enqueue" onSubmit=${send} onClose=${close}>
    <${Field} label="Machine"><input name="machine" list="machines" required autocomplete="off" /><datalist id="machines">${machines.map((name) => html`<option value=${name}></option>`)}</datalist><//>
    <${Field} label="Step" hint="The step of a job is named run."><input name="step" required autocomplete="off" /><//>
    <${Field} label="State (JSON)"><textarea name="state" rows="3" placeholder="{}"></textarea><//>
    <${Field} label="Data (JSON)"><textarea name="data" rows="2" placeholder="null"></textarea><//>
    <${Field} label="Queue"><input name="queue" placeholder="default" autocomplete="off" /><//>
    <${Field} label="Key" hint="Unique until the instance finishes."><input name="key" autocomplete="off" /><//>
    <${Field} label="Not before (seconds from now)"><input name="after" type="number" min="0" step="any" /><//>
  <//>`}<//>`;
}

// Bulk actions: a preview with the count, then progress while the action runs.
export function BulkButton({ act, filter, fingerprint, label, onDone }) {
  return html`<${DialogButton} label=${label} tone=${act === 'cancel' ? 'danger' : ''}>${(close) => html`<${Bulk} act=${act} filter=${filter} fingerprint=${fingerprint} onDone=${onDone} onClose=${close} />`}<//>`;
}

const POLL_MS = 400;

function Bulk({ act, filter, fingerprint, onDone, onClose }) {
  const [preview, setPreview] = useState(null);
  const [bulk, setBulk] = useState(null);
  const [error, setError] = useState(null);
  const many = { act, filter, fingerprint };
  const loadPreview = () => post('bulk/preview', many).then((answer) => { setPreview(answer); setError(null); }, setError);
  useEffect(() => { loadPreview(); }, []);
  useEffect(() => {
    if (!bulk || bulk.is_over) return undefined;
    const timer = setTimeout(() => get(`bulk/${part(bulk.id)}`).then((answer) => { setBulk(answer); if (answer.is_over) onDone?.(); }, setError), POLL_MS);
    return () => clearTimeout(timer);
  }, [bulk]);
  const begin = () => post('bulk', { ...many, expect: preview.count }).then(setBulk, (failed) => {
    setError(failed);
    if (failed.body?.code === 'count_changed') loadPreview();
  });
  const verb = act === 'retry' ? 'Retry' : 'Cancel';
  const share = bulk ? (100 * (bulk.done + bulk.refused)) / Math.max(1, bulk.all) : 0;
  return html`<${Dialog} title=${`${verb} matching instances`} onClose=${onClose}>
    ${!bulk && !preview && !error && html`<p>Counting…</p>`}
    ${!bulk && preview && html`
      <p class="big">${plural(preview.count, 'instance')}${preview.is_all ? '' : ' (limit reached: repeat the action for the rest)'}</p>
      ${preview.sample.length > 0 && html`<ul class="sample">${preview.sample.slice(0, 8).map((row) => html`<li><span class="id">${row.id}</span> ${row.machine} · ${row.step} <span class="error-text">${row.last_error ?? ''}</span></li>`)}</ul>`}`}
    ${bulk && html`
      <p class="big">${bulk.is_over ? (bulk.is_stopped ? 'Stopped' : 'Done') : 'Working…'}</p>
      <div class="meter wide" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share)}><i style=${{ width: `${share}%` }}></i></div>
      <p>${number(bulk.done)} done, ${number(bulk.refused)} refused, of ${number(bulk.all)}</p>
      ${bulk.errors.length > 0 && html`<ul class="sample">${bulk.errors.map((text) => html`<li class="error-text">${text}</li>`)}</ul>`}`}
    <${ErrorNotice} error=${error} />
    <div class="row end">
      ${bulk && !bulk.is_over && html`<button class="danger" onClick=${() => post(`bulk/${part(bulk.id)}/stop`).then(setBulk, setError)}>Stop</button>`}
      <button onClick=${onClose}>${bulk?.is_over ? 'Close' : bulk ? 'Run in background' : 'Close'}</button>
      ${!bulk && html`<button class=${act === 'cancel' ? 'danger' : 'primary'} disabled=${!preview?.count} onClick=${begin}>${verb} ${preview ? number(preview.count) : ''}</button>`}
    </div>
  <//>`;
}
