// The dialogs for actions of an operator on one instance or on many instances.

import { html, useState } from '../view.js';
import { post, part } from '../api.js';
import { Field, FormDialog, toast } from '../parts.js';
import { go } from '../route.js';

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

// The names of known steps or machines, to choose from.
const Known = ({ id, names }) => html`<datalist id=${id}>${names.map((name) => html`<option value=${name}></option>`)}</datalist>`;
// The server refuses names that no live worker knows, unless the user insists.
const Insist = () => html`<label class="check"><input type="checkbox" name="force" /> also if no live worker knows the name</label>`;

export function RetryButton({ row, steps = [], onDone }) {
  const send = async ({ step, data, force }) => {
    await post(`instances/${part(row.id)}/retry`, body({ step: step.trim() || undefined, force: force === 'on' || undefined }, { data: typed(data, 'the data') }));
    toast(`Instance ${row.id} will be retried`);
    onDone();
  };
  return html`<${DialogButton} label="Retry" tone="primary">${(close) => html`<${FormDialog} title=${`Retry ${row.id}`} verb="Retry" onSubmit=${send} onClose=${close}>
    <p>It runs again from <b>${row.step}</b> now, and its attempts are reset. A retry from the current step keeps the idempotency key.</p>
    <details><summary>From another step</summary>
      <${Field} label="Step" hint=${steps.length ? `Known steps: ${steps.join(', ')}` : ''}><input name="step" list="retry-steps" autocomplete="off" /><${Known} id="retry-steps" names=${steps} /><//>
      <${Field} label="Data (JSON)"><textarea name="data" rows="3"></textarea><//>
      <${Insist} />
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
  const [chosen, setChosen] = useState('');
  const steps = Object.keys(machines.find((machine) => machine.name === chosen)?.steps ?? {});
  const send = async ({ machine, step, state, data, queue, key, after, force }) => {
    const values = { machine, step, queue, key, delay_seconds: after ? Number(after) : undefined, force: force === 'on' || undefined };
    const answer = await post('instances', body(values, { state: typed(state, 'the state'), data: typed(data, 'the data') }));
    toast(answer.is_new ? `Instance ${answer.id} enqueued` : `The key is already taken by instance ${answer.id}`);
    go(`instances/${answer.id}`);
  };
  return html`<${DialogButton} label="Enqueue…">${(close) => html`<${FormDialog} title="Enqueue an instance" verb="Enqueue" onSubmit=${send} onClose=${close}>
    <${Field} label="Machine"><input name="machine" list="machines" required autocomplete="off" onInput=${(event) => setChosen(event.target.value)} /><${Known} id="machines" names=${machines.map((machine) => machine.name)} /><//>
    <${Field} label="Step" hint="The step of a job is named run."><input name="step" list="steps" required autocomplete="off" /><${Known} id="steps" names=${steps} /><//>
    <${Field} label="State (JSON)"><textarea name="state" rows="3" placeholder="{}"></textarea><//>
    <${Field} label="Data (JSON)"><textarea name="data" rows="2" placeholder="null"></textarea><//>
    <${Field} label="Queue"><input name="queue" placeholder="default" autocomplete="off" /><//>
    <${Field} label="Key" hint="Unique until the instance finishes."><input name="key" autocomplete="off" /><//>
    <${Field} label="Not before (seconds from now)"><input name="after" type="number" min="0" step="any" /><//>
    <${Insist} />
  <//>`}<//>`;
}
