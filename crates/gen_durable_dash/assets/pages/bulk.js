// Bulk actions: a preview with the count, then progress while the action runs. The dialog belongs to
// the frame and not to the page, so that it stays when the page no longer shows what it was opened
// from.

import { html, useEffect, useState } from '../view.js';
import { get, post, part } from '../api.js';
import { Dialog, ErrorNotice, toast } from '../parts.js';
import { number, plural } from '../text.js';

const POLL_MS = 400;
const hosts = new Set();

export function BulkButton({ act, filter, fingerprint, label, onDone }) {
  const open = () => hosts.forEach((show) => show({ act, filter, fingerprint, onDone }));
  return html`<button class=${act === 'cancel' ? 'danger' : ''} onClick=${open}>${label}</button>`;
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

const outcome = (bulk) => `${number(bulk.done)} done, ${number(bulk.refused)} refused, of ${number(bulk.all)}`;

function Bulk({ act, filter, fingerprint, onDone, onClose }) {
  const [preview, setPreview] = useState(null);
  const [bulk, setBulk] = useState(null);
  const [error, setError] = useState(null);
  const [isHidden, setHidden] = useState(false);
  const [tries, setTries] = useState(0);
  const many = { act, filter, fingerprint };
  const verb = act === 'retry' ? 'Retry' : 'Cancel';
  const loadPreview = () => post('bulk/preview', many).then((answer) => { setPreview(answer); setError(null); }, setError);
  useEffect(() => { loadPreview(); }, []);
  useEffect(() => {
    if (!bulk || bulk.is_over) return undefined;
    const update = (answer) => {
      setBulk(answer);
      setError(null);
      if (!answer.is_over) return;
      toast(`${verb}: ${outcome(answer)}`);
      onDone?.();
      if (isHidden) onClose();
    };
    // A failed read of the progress is shown, and repeated: the action itself goes on.
    const failed = (problem) => { setError(problem); setTries((count) => count + 1); };
    const timer = setTimeout(() => get(`bulk/${part(bulk.id)}`).then(update, failed), POLL_MS);
    return () => clearTimeout(timer);
  }, [bulk, tries, isHidden]);
  const begin = () => post('bulk', { ...many, expect: preview.count }).then((answer) => { setBulk(answer); setError(null); }, (failed) => {
    setError(failed);
    if (failed.body?.code === 'count_changed') loadPreview();
  });
  const close = () => (bulk && !bulk.is_over ? setHidden(true) : onClose());
  const share = bulk ? (100 * (bulk.done + bulk.refused)) / Math.max(1, bulk.all) : 0;
  if (isHidden) return null;
  return html`<${Dialog} title=${`${verb} matching instances`} onClose=${close}>
    ${!bulk && !preview && !error && html`<p>Counting…</p>`}
    ${!bulk && preview && html`
      <p class="big">${plural(preview.count, 'instance')}${preview.is_all ? '' : ' (limit reached: repeat the action for the rest)'}</p>
      ${preview.sample.length > 0 && html`<ul class="sample">${preview.sample.slice(0, 8).map((row) => html`<li><span class="id">${row.id}</span> ${row.machine} · ${row.step} <span class="error-text">${row.last_error ?? ''}</span></li>`)}</ul>`}`}
    ${bulk && html`
      <p class="big">${bulk.is_over ? (bulk.is_stopped ? 'Stopped' : 'Done') : 'Working…'}</p>
      <div class="meter wide" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share)}><i style=${{ width: `${share}%` }}></i></div>
      <p>${outcome(bulk)}</p>
      ${bulk.errors.length > 0 && html`<ul class="sample">${bulk.errors.map((text) => html`<li class="error-text">${text}</li>`)}</ul>`}`}
    <${ErrorNotice} error=${error} />
    <div class="row end">
      ${bulk && !bulk.is_over && html`<button class="danger" onClick=${() => post(`bulk/${part(bulk.id)}/stop`).then(setBulk, setError)}>Stop</button>`}
      <button onClick=${close}>${bulk && !bulk.is_over ? 'Run in background' : 'Close'}</button>
      ${!bulk && html`<button class=${act === 'cancel' ? 'danger' : 'primary'} disabled=${!preview?.count} onClick=${begin}>${verb} ${preview ? number(preview.count) : ''}</button>`}
    </div>
  <//>`;
}
