// Components shared by the pages.

import { html, useEffect, useRef, useState } from './view.js';
import { Exact } from './api.js';
import { exact, relative, statusName } from './text.js';
import { isRelative } from './zone.js';
import { link } from './route.js';

export const Status = ({ status }) => html`<span class=${`status is-${status}`}>${statusName(status)}</span>`;

// A time as the reader has chosen; the pointer shows the other form, and the time in ISO 8601.
export const Time = ({ at, now }) => html`<time datetime=${at} title=${at ? `${isRelative() ? exact(at) : relative(at, now)} · ${at}` : ''}>${isRelative() || !at ? relative(at, now) : exact(at)}</time>`;

const ISO = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

// A sentence of the server: times in it are shown in the zone of the page.
export const Sentence = ({ text }) => (text ?? '').split(ISO).map((piece, at) => (at % 2 ? html`<time datetime=${piece} title=${piece}>${exact(piece)}</time>` : piece));

export const InstanceLink = ({ id }) => html`<a class="id" href=${link(`instances/${id}`)}>${id}</a>`;

export function Panel({ title, aside, children, className = '' }) {
  return html`<section class=${`panel ${className}`}>
    ${title && html`<header class="panel-head"><h2>${title}</h2>${aside && html`<div class="aside">${aside}</div>`}</header>`}
    ${children}
  </section>`;
}

export const Empty = ({ title, children }) => html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>`;

export const Loading = ({ lines = 3 }) => html`<div class="loading" role="status" aria-label="Loading">
  ${Array.from({ length: lines }, () => html`<span class="bone"></span>`)}
</div>`;

// An error of a request. If rows of an earlier answer are still shown, `since` is the time of that
// answer.
export const ErrorNotice = ({ error, since, what = 'The rows below are' }) => error && html`<p class="notice is-bad" role="alert">${error.message}${since && html` ${what} from ${exact(since)}.`}${error.status === 401 && html` <button type="button" onClick=${() => location.reload()}>Sign in</button>`}</p>`;

// The state of a list that could not be read: it is not an empty list.
export const Unreadable = ({ error }) => html`<div class="empty" role="alert"><p class="empty-title">This could not be read</p><p class="error-text">${error.message}</p>${error.status === 401 && html`<button type="button" onClick=${() => location.reload()}>Sign in</button>`}</div>`;

export const Tile = ({ label, value, note, tone = '', href }) => {
  const inside = html`<span class="tile-label">${label}</span><span class="tile-value">${value}</span><span class="tile-note">${note}</span>`;
  return href ? html`<a class=${`tile ${tone}`} href=${href}>${inside}</a>` : html`<div class=${`tile ${tone}`}>${inside}</div>`;
};

// A table that scrolls horizontally by itself on a narrow screen. It can receive the focus for
// keyboard scrolling.
export const Table = ({ label, head, children }) => html`<div class="table-wrap" tabindex="0" role="region" aria-label=${label}>
  <table><thead><tr>${head.map((name) => html`<th scope="col" class=${name.startsWith('#') ? 'num' : ''}>${name.replace('#', '') || html`<span class="hidden">actions</span>`}</th>`)}</tr></thead>
  <tbody>${children}</tbody></table>
</div>`;

// A table of rows that are all loaded: a click on the head of a column sorts them, first descending.
// Without a choice the rows have the order of the server.
export function Sorted({ label, columns, rows, keyOf, rowClass = () => '' }) {
  const [order, setOrder] = useState({ column: null, down: true });
  const by = columns.find((column) => column.name === order.column)?.by;
  const compare = (a, b) => (typeof a === 'number' && typeof b === 'number' ? a - b : String(a ?? '').localeCompare(String(b ?? '')));
  const shown = by ? [...rows].sort((a, b) => (order.down ? -1 : 1) * compare(by(a), by(b))) : rows;
  const choose = (name) => setOrder(order.column !== name ? { column: name, down: true } : order.down ? { column: name, down: false } : { column: null, down: true });
  const isNumber = (column) => column.name.startsWith('#');
  const head = (column) => {
    const name = column.name.replace('#', '');
    const is = order.column === column.name;
    if (!column.by) return name || html`<span class="hidden">actions</span>`;
    return html`<button type="button" class="sort" onClick=${() => choose(column.name)} title=${`Sort by ${name}`}>${name}<span aria-hidden="true">${is ? (order.down ? ' ↓' : ' ↑') : ''}</span></button>`;
  };
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label=${label}>
    <table><thead><tr>${columns.map((column) => html`<th scope="col" class=${isNumber(column) ? 'num' : ''} aria-sort=${order.column === column.name ? (order.down ? 'descending' : 'ascending') : undefined}>${head(column)}</th>`)}</tr></thead>
    <tbody>${shown.map((row) => html`<tr key=${keyOf(row)} class=${rowClass(row)}>${columns.map((column) => html`<td class=${column.className?.(row) ?? (isNumber(column) ? 'num' : '')}>${column.cell(row)}</td>`)}</tr>`)}</tbody></table>
  </div>`;
}

// A JSON value as a collapsible tree. Values from rows are always rendered as text, never as
// markup.
export function Json({ value, depth = 0 }) {
  if (value instanceof Exact) return html`<span class="j-num">${value.source}</span>`;
  if (value === null || value === undefined) return html`<span class="j-null">null</span>`;
  if (typeof value === 'string') return html`<span class="j-str">${JSON.stringify(value)}</span>`;
  if (typeof value !== 'object') return html`<span class="j-num">${String(value)}</span>`;
  const isList = Array.isArray(value);
  const entries = isList ? value.map((item) => [null, item]) : Object.entries(value);
  const [open, close] = isList ? '[]' : '{}';
  if (!entries.length) return html`<span>${open}${close}</span>`;
  const rows = entries.slice(0, 200).map(([key, item]) => html`<div class="j-row">
    ${key !== null && html`<span class="j-key">${JSON.stringify(key)}</span>: `}<${Json} value=${item} depth=${depth + 1} />
  </div>`);
  const more = entries.length > 200 && html`<div class="j-row j-null">… ${entries.length - 200} more</div>`;
  return html`<details class="j" open=${depth < 3}><summary>${open}<span class="j-count">${entries.length}</span></summary>${rows}${more}<span>${close}</span></details>`;
}

// A native dialog: the browser keeps the focus inside it, and Escape closes it.
export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-label=${title} onClick=${(event) => event.target === dialog.current && onClose()}>
    <div class="dialog-body"><h2>${title}</h2>${children}</div>
  </dialog>`;
}

// A form in a dialog: it shows the error if the request fails, and closes if it succeeds.
export function FormDialog({ title, verb, danger, onSubmit, onClose, children }) {
  const [state, setState] = useState({ busy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await onSubmit(Object.fromEntries(new FormData(event.target)));
      onClose();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${children}
      <${ErrorNotice} error=${state.error} />
      <div class="row end">
        <button type="button" onClick=${onClose}>Close</button>
        <button class=${danger ? 'danger' : 'primary'} disabled=${state.busy}>${state.busy ? 'Working…' : verb}</button>
      </div>
    </form>
  <//>`;
}

// A button for an action with consequences: a dialog names them and asks for confirmation.
export function ConfirmButton({ label, title, verb, describe, tone = '', danger, onConfirm, children }) {
  const [open, setOpen] = useState(false);
  return html`<button class=${tone} aria-label=${describe} onClick=${() => setOpen(true)}>${label}</button>
    ${open && html`<${FormDialog} title=${title} verb=${verb} danger=${danger} onSubmit=${onConfirm} onClose=${() => setOpen(false)}>${children}<//>`}`;
}

export const Field = ({ label, hint, children }) => html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;

// An input that keeps the text being typed while the page around it is rendered again. A new value
// from outside replaces the text.
export function Typed({ value = '', ...rest }) {
  const [state, setState] = useState({ text: value, from: value });
  const now = state.from === value ? state : { text: value, from: value };
  if (now !== state) setState(now);
  return html`<input ...${rest} value=${now.text} onInput=${(event) => setState({ ...now, text: event.target.value })} />`;
}

const TOAST_MS = 8000;
const toasts = new Set();
export const toast = (text) => toasts.forEach((show) => show(text));

export function Toasts() {
  const [text, setText] = useState(null);
  const box = useRef(null);
  useEffect(() => {
    let timer;
    const show = (said) => { setText(said); clearTimeout(timer); timer = setTimeout(() => setText(null), TOAST_MS); };
    toasts.add(show);
    return () => toasts.delete(show);
  }, []);
  // A popover is above the backdrop of a dialog, if it is opened after the dialog.
  useEffect(() => {
    if (!box.current?.showPopover) return;
    if (box.current.matches(':popover-open')) box.current.hidePopover();
    if (text) box.current.showPopover();
  }, [text]);
  return html`<div ref=${box} class="toasts" popover="manual" role="status" aria-live="polite">${text && html`<span class="toast">${text}</span>`}</div>`;
}
