// Acts: what a person does to one instance, or to many.

import { html, useEffect, useState } from '../vendor/preact-htm.js';
import { get, post, part } from '../api.js';
import { Dialog, Field, FormDialog, Trouble, toast } from '../parts.js';
import { go } from '../route.js';
import { number, plural } from '../text.js';

// JSON that a person typed, passed on as it was typed: no number of it goes through a browser's own.
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

function Opening({ label, tone = '', children, disabled }) {
  const [open, setOpen] = useState(false);
  return html`<button class=${tone} disabled=${disabled} onClick=${() => setOpen(true)}>${label}</button>${open && children(() => setOpen(false))}`;
}

export function RetryButton({ row, onDone }) {
  const send = async ({ step, data }) => {
    await post(`instances/${part(row.id)}/retry`, body({ step: step.trim() || undefined }, { data: typed(data, 'what the step carries') }));
    toast(`Instance ${row.id} runs again`);
    onDone();
  };
  return html`<${Opening} label="Retry" tone="primary">${(close) => html`<${FormDialog} title=${`Run ${row.id} again`} verb="Retry" onSubmit=${send} onClose=${close}>
    <p>It runs from <b>${row.step}</b>, now, with its attempts counted anew. From its own step it keeps its idempotency key.</p>
    <details><summary>From another step</summary>
      <${Field} label="Step"><input name="step" autocomplete="off" /><//>
      <${Field} label="What it carries (JSON)"><textarea name="data" rows="3"></textarea><//>
    </details>
  <//>`}<//>`;
}

export function CancelButton({ row, onDone }) {
  const send = async ({ why, subtree }) => {
    const answer = await post(`instances/${part(row.id)}/cancel`, { why, subtree: subtree === 'on' });
    toast(answer.cancelled ? `Instance ${row.id} is cancelled` : 'It was too late: it has settled');
    onDone();
  };
  return html`<${Opening} label="Cancel" tone="danger">${(close) => html`<${FormDialog} title=${`Cancel ${row.id}`} verb="Cancel it" danger onSubmit=${send} onClose=${close}>
    <p>It ends at once, whatever it waits for. A step that runs loses its claim, and what it decides is dropped.</p>
    <${Field} label="Why"><input name="why" placeholder="for those who look later" /><//>
    <label class="check"><input type="checkbox" name="subtree" /> and everything below it that still lives</label>
  <//>`}<//>`;
}

export function SignalButton({ row, onDone }) {
  const send = async ({ name, payload, once }) => {
    const answer = await post(`instances/${part(row.id)}/signal`, body({ name, once }, { payload: typed(payload, 'the payload') }));
    toast(answer.is_new ? `${name} is delivered` : `${name} was delivered before`);
    onDone();
  };
  const awaited = row.status === 'awaiting_signal' ? row.awaits ?? [] : [];
  return html`<${Opening} label="Signal">${(close) => html`<${FormDialog} title=${`Tell ${row.id} something`} verb="Send" onSubmit=${send} onClose=${close}>
    <${Field} label="Signal" hint=${awaited.length ? `It waits for ${awaited.join(' or ')}.` : 'It is kept until a step reads it.'}><input name="name" required defaultValue=${awaited[0] ?? ''} autocomplete="off" /><//>
    <${Field} label="Payload (JSON)"><textarea name="payload" rows="4" placeholder="null"></textarea><//>
    <${Field} label="Once" hint="However often it is sent with this key, the instance is told once."><input name="once" autocomplete="off" /><//>
  <//>`}<//>`;
}

export function EnqueueButton({ machines }) {
  const send = async ({ machine, step, state, data, queue, key, after }) => {
    const values = { machine, step, queue, key, after_seconds: after ? Number(after) : undefined };
    const answer = await post('instances', body(values, { state: typed(state, 'the state'), data: typed(data, 'what the step carries') }));
    toast(answer.is_new ? `Instance ${answer.id} is enqueued` : `Its key is held by ${answer.id}`);
    go(`instances/${answer.id}`);
  };
  return html`<${Opening} label="Enqueue…">${(close) => html`<${FormDialog} title="Enqueue an instance" verb="Enqueue" onSubmit=${send} onClose=${close}>
    <${Field} label="Machine"><input name="machine" list="machines" required autocomplete="off" /><datalist id="machines">${machines.map((name) => html`<option value=${name}></option>`)}</datalist><//>
    <${Field} label="Step" hint="A job's step is run."><input name="step" required autocomplete="off" /><//>
    <${Field} label="State (JSON)"><textarea name="state" rows="3" placeholder="{}"></textarea><//>
    <${Field} label="What the step carries (JSON)"><textarea name="data" rows="2" placeholder="nothing"></textarea><//>
    <${Field} label="Queue"><input name="queue" placeholder="default" autocomplete="off" /><//>
    <${Field} label="Key" hint="Unique while it lives."><input name="key" autocomplete="off" /><//>
    <${Field} label="Not before (seconds from now)"><input name="after" type="number" min="0" step="any" /><//>
  <//>`}<//>`;
}

// Many at once: counted and shown before, with progress while it goes on.
export function BulkButton({ act, filter, fingerprint, label, onDone }) {
  return html`<${Opening} label=${label} tone=${act === 'cancel' ? 'danger' : ''}>${(close) => html`<${Bulk} act=${act} filter=${filter} fingerprint=${fingerprint} onDone=${onDone} onClose=${close} />`}<//>`;
}

const LOOK = 400;

function Bulk({ act, filter, fingerprint, onDone, onClose }) {
  const [preview, setPreview] = useState(null);
  const [bulk, setBulk] = useState(null);
  const [error, setError] = useState(null);
  const many = { act, filter, fingerprint };
  const look = () => post('bulk/preview', many).then((seen) => { setPreview(seen); setError(null); }, setError);
  useEffect(() => { look(); }, []);
  useEffect(() => {
    if (!bulk || bulk.is_over) return undefined;
    const timer = setTimeout(() => get(`bulk/${part(bulk.id)}`).then((seen) => { setBulk(seen); if (seen.is_over) onDone?.(); }, setError), LOOK);
    return () => clearTimeout(timer);
  }, [bulk]);
  const begin = () => post('bulk', { ...many, expect: preview.count }).then(setBulk, (failed) => {
    setError(failed);
    if (failed.body?.code === 'count_changed') look();
  });
  const verb = act === 'retry' ? 'Retry' : 'Cancel';
  const share = bulk ? (100 * (bulk.done + bulk.refused)) / Math.max(1, bulk.all) : 0;
  return html`<${Dialog} title=${`${verb} many`} onClose=${onClose}>
    ${!bulk && !preview && !error && html`<p>Counting…</p>`}
    ${!bulk && preview && html`
      <p class="big">${plural(preview.count, 'instance')}${preview.is_all ? '' : ' (there may be more: they come next time)'}</p>
      ${preview.sample.length > 0 && html`<ul class="sample">${preview.sample.slice(0, 8).map((row) => html`<li><span class="id">${row.id}</span> ${row.machine} · ${row.step} <span class="error-text">${row.error ?? ''}</span></li>`)}</ul>`}`}
    ${bulk && html`
      <p class="big">${bulk.is_over ? (bulk.is_stopped ? 'Stopped' : 'Done') : 'Working…'}</p>
      <div class="meter wide" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share)}><i style=${{ width: `${share}%` }}></i></div>
      <p>${number(bulk.done)} done, ${number(bulk.refused)} refused, of ${number(bulk.all)}</p>
      ${bulk.errors.length > 0 && html`<ul class="sample">${bulk.errors.map((text) => html`<li class="error-text">${text}</li>`)}</ul>`}`}
    <${Trouble} error=${error} />
    <div class="row end">
      ${bulk && !bulk.is_over && html`<button class="danger" onClick=${() => post(`bulk/${part(bulk.id)}/stop`).then(setBulk, setError)}>Stop</button>`}
      <button onClick=${onClose}>${bulk?.is_over ? 'Close' : bulk ? 'Leave it running' : 'Not now'}</button>
      ${!bulk && html`<button class=${act === 'cancel' ? 'danger' : 'primary'} disabled=${!preview?.count} onClick=${begin}>${verb} ${preview ? number(preview.count) : ''}</button>`}
    </div>
  <//>`;
}
