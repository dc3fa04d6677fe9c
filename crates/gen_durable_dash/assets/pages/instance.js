// One instance: its status and the reason for it, its history, state, data, result, children,
// timers and inbox.

import { html, useLayoutEffect, useState } from '../view.js';
import { part } from '../api.js';
import { useFetch } from '../live.js';
import { Empty, InstanceLink, Json, Loading, Panel, Sentence, Status, Table, Time, ErrorNotice } from '../parts.js';
import { go, link } from '../route.js';
import { clock, entry, exact, number, span, statusName } from '../text.js';
import { neighbours } from './instances.js';
import { TimerRows } from './timers.js';
import { CancelButton, RetryButton, SignalButton } from './acts.js';

const EVERY = 1500;
const SETTLED = ['done', 'failed', 'cancelled'];
const RETRYABLE = ['failed', 'cancelled', 'stuck'];

export function Instance({ one, live, mayAct }) {
  const path = `instances/${part(one)}`;
  const isLive = (row) => !row || !SETTLED.includes(row.status);
  const instance = useFetch(path, { every: EVERY, again: isLive });
  const row = instance.data;
  // This value changes whenever the row of the instance changes. The panels then fetch their data
  // again.
  const moved = row ? `${row.step_seq}.${row.claim_epoch}.${row.status}.${row.updated_at}` : '';
  const { now } = live;
  if (!row) {
    return html`<p class="crumbs"><a href=${link('instances')}>Instances</a></p><h1>${one}</h1>
      ${instance.error ? html`<${Empty} title=${instance.error.status === 404 ? 'Instance not found' : 'Instance could not be read'}>${instance.error.message}<//>` : html`<${Loading} lines=${8} />`}`;
  }
  const reload = () => { instance.reload(); };
  const steps = Object.keys((live.data?.machines ?? []).find((machine) => machine.name === row.machine)?.steps ?? {});
  return html`
    <p class="crumbs"><a href=${link('instances')}>Instances</a>${row.ancestors.slice().reverse().map((above) => html` › <${InstanceLink} id=${above.id} /> ${above.machine}`)}<${Neighbours} one=${one} /></p>
    <div class="head"><h1><span class="id">${row.id}</span> <a class="plain" href=${link(`machines/${part(row.machine)}`)}>${row.machine}</a> <${Status} status=${row.status} /></h1>
      ${mayAct && html`<div class="row">
        ${RETRYABLE.includes(row.status) && html`<${RetryButton} row=${row} steps=${steps} onDone=${reload} />`}
        ${!SETTLED.includes(row.status) && html`<${SignalButton} row=${row} onDone=${reload} /><${CancelButton} row=${row} onDone=${reload} />`}
      </div>`}
    </div>
    <${ErrorNotice} error=${instance.error} since=${instance.read} />
    <${Why} path=${path} moved=${moved} row=${row} />
    <div class="two wide-left">
      <div>
        <${Panel} title="History"><${History} path=${path} moved=${moved} row=${row} now=${now} /><//>
        <${Children} path=${path} moved=${moved} now=${now} row=${row} />
        <${InstanceTimers} path=${path} moved=${moved} now=${now} row=${row} mayAct=${mayAct} />
        <${Inbox} path=${path} moved=${moved} now=${now} row=${row} />
      </div>
      <div>
        <${Panel} title="Facts"><${Facts} row=${row} now=${now} /><//>
        ${row.payloads_hidden ? html`<${Panel} title="State"><${Empty} title="Hidden">This token may not see states, results and payloads.<//><//>` : html`
          ${row.result !== null && html`<${Panel} title="Output" aside="the result of the instance"><div class="json"><${Json} value=${row.result} /></div><//>`}
          ${row.data !== null && html`<${Panel} title=${`Input of ${row.step}`} aside="of the current step"><div class="json"><${Json} value=${row.data} /></div><//>`}
          <${Panel} title="State"><div class="json"><${Json} value=${row.state} /></div><//>`}
      </div>
    </div>`;
}

// Links to the instances before and after this one in the list that was last shown, also by the keys
// k and j.
function Neighbours({ one }) {
  const { before, after } = neighbours(one);
  // The keys work as soon as the links are shown.
  useLayoutEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.('input, textarea, select, dialog')) return;
      if (event.key === 'k' && before) go(`instances/${before}`);
      if (event.key === 'j' && after) go(`instances/${after}`);
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, [before, after]);
  return (before || after) && html`<span class="neighbours">${before && html`<a href=${link(`instances/${before}`)} title="k">← Previous in the list</a>`} ${after && html`<a href=${link(`instances/${after}`)} title="j">Next in the list →</a>`}</span>`;
}

function Why({ path, moved, row }) {
  const { data } = useFetch(`${path}/explain?at=${part(moved)}`);
  const settled = SETTLED.includes(row.status);
  const first = data?.blockers[0];
  if (row.status === 'done') return null;
  const tone = row.status === 'failed' || row.status === 'stuck' ? 'is-bad' : row.status === 'executing' ? 'is-good' : '';
  return html`<section class=${`why ${tone}`} aria-label="Why it is not running">
    <h2>${settled ? 'Why it finished' : row.status === 'executing' ? 'Running' : 'Why it is not running'}</h2>
    ${!data ? html`<p class="faint">Loading…</p>` : !first ? html`<p>Nothing blocks it: the next pick of a worker claims it.</p>`
      : html`<p><${Sentence} text=${first.text} /></p>${data.blockers.slice(1).map((other) => html`<p class="faint">Also: <${Sentence} text=${other.text} /></p>`)}`}
    ${first?.kind === 'awaiting_limit' && html`<p>${[...new Set(first.limits.map((bound) => bound.limit))].map((name) => html`<a href=${link(`limits/${part(name)}`)}>Limit ${name}</a> `)}</p>`}
    ${row.last_error && first?.kind !== 'settled' && html`<p class="error-text">Last error: ${row.last_error}</p>`}
  </section>`;
}

const OUTCOMES = {
  next: 'continued', sleep: 'sleeps', wait: 'waits for a signal', spawn: 'spawned children', retry: 'requested a retry', failure: 'failed, will be retried',
  done: 'done', fail: 'failed permanently', outage: 'database unavailable', stuck: 'could not be decoded', deadline: 'deadline reached', reap: 'worker lost',
  cancel: 'cancelled', operator_retry: 'retried by an operator',
};
const TONES = { done: 'is-done', fail: 'is-failed', failure: 'is-warn', reap: 'is-warn', outage: 'is-warn', stuck: 'is-failed', cancel: 'is-cancelled', wait: 'is-awaiting_signal', spawn: 'is-awaiting_children', sleep: 'is-runnable', deadline: 'is-warn' };

function History({ path, moved, row, now }) {
  const [limit, setLimit] = useState(100);
  const { data, error } = useFetch(`${path}/history?limit=${limit}&at=${part(moved)}`);
  const kept = useLatest(data);
  if (!kept) return error ? html`<${ErrorNotice} error=${error} />` : html`<${Loading} lines=${5} />`;
  const lines = kept.history.slice().reverse();
  const longest = Math.max(0.001, ...lines.map((line) => line.took_seconds ?? 0));
  return html`
    ${kept.has_more && limit < 1000 && html`<div class="more"><button onClick=${() => setLimit(1000)}>Show older entries</button></div>`}
    <ol class="history">
      <li class="is-begin"><span class="when" title=${exact(row.inserted_at)}>${clock(row.inserted_at)}</span><span class="mark"></span><div class="what"><b>enqueued</b> <small><${Time} at=${row.inserted_at} now=${now} /></small></div></li>
      ${lines.map((line) => html`<li key=${`${line.step_seq}.${line.claim_epoch}`} class=${entry(TONES, line.outcome) ?? 'is-next'}>
        <span class="when" title=${exact(line.at)}>${clock(line.at)}</span><span class="mark"></span>
        <div class="what">
          <b>${line.from}</b>${line.to !== line.from && html` → <b>${line.to}</b>`} <span class="outcome">${entry(OUTCOMES, line.outcome) ?? line.outcome}</span>
          ${line.attempt > 0 && html` <small>attempt ${line.attempt + 1}</small>`}
          ${line.took_seconds !== null && html`<span class="took" title=${`ran for ${span(1000 * line.took_seconds)}`}><i style=${{ width: `${Math.max(2, (60 * line.took_seconds) / longest)}px` }}></i>${span(1000 * line.took_seconds)}</span>`}
          ${line.error && html`<p class="error-text">${line.error}</p>`}
          ${line.woken_at && html`<p class="faint">woken by ${line.cause ?? 'an unknown cause'} after ${span(Date.parse(line.woken_at) - Date.parse(line.at))}</p>`}
          ${line.worker && html`<p class="faint">on ${line.worker}</p>`}
        </div>
      </li>`)}
      ${!SETTLED.includes(row.status) && html`<li class=${`is-now is-${row.status}`}><span class="when">now</span><span class="mark"></span><div class="what"><b>${row.step}</b> <span class="outcome">${statusName(row.status)}</span></div></li>`}
    </ol>
    ${lines.length === 0 && html`<p class="faint">No history is recorded yet. Jobs record only failures by default.</p>`}
    <p class="foot">The history has steps, outcomes, durations and errors, and the names of the signals that ended waits. It does not have the inputs of earlier steps or the payloads of consumed signals.</p>`;
}

// Returns the last value while the page fetches the next one.
function useLatest(value) {
  const [kept, setKept] = useState(null);
  if (value && value !== kept) setKept(value);
  return value ?? kept;
}

function Children({ path, moved, now, row }) {
  const fetched = useFetch(`${path}/children?at=${part(moved)}`);
  const data = useLatest(fetched.data);
  if (!data?.children.length) return null;
  const counts = Object.entries(data.counts).map(([status, count]) => html`<span><${Status} status=${status} /> ${number(count)} </span>`);
  return html`<${Panel} title="Children" aside=${counts}>
    ${row.children_pending > 0 && html`<p class="faint">${number(row.children_pending)} of the last spawn have not finished.</p>`}
    <ul class="tree">${data.children.map((child) => html`<${Child} key=${child.id} child=${child} now=${now} />`)}</ul>
    ${data.children.length === 200 && html`<p class="faint">The newest 200.</p>`}
  <//>`;
}

function Child({ child, now }) {
  const [open, setOpen] = useState(false);
  const { data } = useFetch(open ? `instances/${part(child.id)}/children` : null);
  return html`<li><div class="branch">
      ${child.is_parent ? html`<button class="quiet twist" aria-expanded=${String(open)} aria-label=${`Children of ${child.id}`} onClick=${() => setOpen(!open)}>${open ? '▾' : '▸'}</button>` : html`<span class="twist"></span>`}
      <${InstanceLink} id=${child.id} /> <span>${child.machine} · ${child.step}</span> <${Status} status=${child.status} />
      <small><${Time} at=${child.settled_at ?? child.inserted_at} now=${now} /></small>
      ${child.last_error && html`<span class="error-text cut">${child.last_error}</span>`}
    </div>
    ${open && data && html`<ul class="tree">${data.children.map((below) => html`<${Child} key=${below.id} child=${below} now=${now} />`)}</ul>`}
  </li>`;
}

function Inbox({ path, moved, now, row }) {
  const fetched = useFetch(`${path}/inbox?at=${part(moved)}`);
  const data = useLatest(fetched.data);
  if (!data?.signals.length) return null;
  return html`<${Panel} title=${SETTLED.includes(row.status) ? 'Undelivered signals' : 'Inbox'}>
    <${Table} label="Signals" head=${['signal', 'payload', 'dedup key', 'sent']}>
      ${data.signals.map((signal) => html`<tr><td>${signal.name}</td><td class="json">${data.payloads_hidden ? html`<span class="faint">hidden</span>` : html`<${Json} value=${signal.payload} depth=${2} />`}</td>
        <td>${signal.dedup_key ?? ''}</td><td><${Time} at=${signal.inserted_at} now=${now} /></td></tr>`)}
    <//>
  <//>`;
}

function InstanceTimers({ path, moved, now, row, mayAct }) {
  const fetched = useFetch(SETTLED.includes(row.status) ? null : `${path}/timers?at=${part(moved)}`, { every: 4 * EVERY });
  if (!fetched.data?.timers.length) return null;
  return html`<${Panel} title="Timers"><${TimerRows} label="Timers" rows=${fetched.data.timers} now=${now} mayAct=${mayAct} onDone=${fetched.reload} /><//>`;
}

function Facts({ row, now }) {
  const facts = [
    ['Step', row.status.startsWith('awaiting') ? `${row.step}, after the wait` : row.step], ['Version', `v${row.version}`],
    ['Queue', html`${row.queue}${row.priority !== 0 ? `, priority ${row.priority}` : ''}`],
    ['Lane', row.lane && html`<a href=${link('lanes', { prefix: row.lane, tenant: row.tenant })}>${row.lane}</a>${row.blocks_its_lane ? ' (blocked by this instance)' : ''}`], ['Partition', row.partition],
    ['Key', row.key], ['Tenant', row.tenant || null],
    ['Attempt', row.attempt ? `${row.attempt + 1} (${row.failures} failed before)` : null],
    ['Waits for', row.awaits && !SETTLED.includes(row.status) ? row.awaits.join(' or ') : null],
    ['Deadline', row.deadline_at && html`<${Time} at=${row.deadline_at} now=${now} />, then ${row.deadline_step}`],
    ['Enqueued', html`<${Time} at=${row.inserted_at} now=${now} />`],
    ['Due', SETTLED.includes(row.status) ? null : html`<${Time} at=${row.eligible_at} now=${now} />`],
    ['Changed', html`<${Time} at=${row.updated_at} now=${now} />`],
    ['Finished', row.settled_at && html`<${Time} at=${row.settled_at} now=${now} />`],
    ['Duration', row.settled_at && span(Date.parse(row.settled_at) - Date.parse(row.inserted_at))],
    ['Worker', row.locked_by], ['Commits', number(row.step_seq)], ['Worker crashes', row.crash_count || null], ['Trace', row.traceparent],
  ];
  return html`<dl class="facts">${facts.filter(([, value]) => value !== null && value !== undefined && value !== '').map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}
