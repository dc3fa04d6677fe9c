// The page of queues: it shows the backlog of each queue, and pauses and resumes queues. The page of
// one queue also shows its throughput and times, its retention, and its workers.

import { html, useState } from '../view.js';
import { post, part } from '../api.js';
import { useFetch } from '../live.js';
import { ConfirmButton, Empty, Loading, Panel, Sorted, Time, ErrorNotice, toast } from '../parts.js';
import { link } from '../route.js';
import { Periods, RollupCharts, periodOf } from '../rollups.js';
import { counted, number, plural, since, span } from '../text.js';

const EVERY = 3000;

// Pauses and resumes queues. A pause that was just requested is shown before the next numbers arrive.
function usePauses() {
  const [error, setError] = useState(null);
  const [pending, setPending] = useState(new Map());
  const setPaused = async (queue, act) => {
    await post(`queues/${part(queue.name)}/${act}`);
    setPending((before) => new Map(before).set(queue.name, { paused: act === 'pause', until: Date.now() + 3000 }));
    toast(act === 'pause' ? `${queue.name} paused: running steps continue` : `${queue.name} resumed`);
    setError(null);
  };
  const isPaused = (queue) => {
    const recent = pending.get(queue.name);
    return recent?.until > Date.now() ? recent.paused : queue.paused;
  };
  return { error, isPaused, pause: (queue) => setPaused(queue, 'pause'), resume: (queue) => setPaused(queue, 'resume').catch(setError) };
}

const PauseButton = ({ queue, pauses }) => (pauses.isPaused(queue)
  ? html`<button onClick=${() => pauses.resume(queue)} aria-label=${`Resume ${queue.name}`}>Resume</button>`
  : html`<${ConfirmButton} label="Pause" describe=${`Pause ${queue.name}`} title=${`Pause ${queue.name}`} verb="Pause it" onConfirm=${() => pauses.pause(queue)}>
      <p>No worker claims instances of this queue until it is resumed. Running steps continue. ${counted(queue.due)} are due now.</p>
    <//>`);

const none = html`<span class="faint">–</span>`;

const columns = (now, mayAct, pauses) => [
  { name: 'queue', by: (queue) => queue.name, cell: (queue) => html`<a href=${link(`queues/${part(queue.name)}`)}>${queue.name}</a> ${pauses.isPaused(queue) && html`<span class="status is-paused" title=${queue.paused_by ? `by ${queue.paused_by}` : ''}>paused</span>`}` },
  { name: '#due', by: (queue) => queue.due, cell: (queue) => counted(queue.due) },
  { name: 'oldest', by: (queue) => (queue.oldest_due_at ? -Date.parse(queue.oldest_due_at) : -Infinity), cell: (queue) => (queue.oldest_due_at ? since(queue.oldest_due_at, now) : none) },
  { name: '#later', by: (queue) => queue.scheduled, cell: (queue) => counted(queue.scheduled) },
  { name: 'next', cell: (queue) => (queue.next_due_at ? html`<${Time} at=${queue.next_due_at} now=${now} />` : none), by: (queue) => (queue.next_due_at ? -Date.parse(queue.next_due_at) : -Infinity) },
  { name: '#running', by: (queue) => queue.executing, cell: (queue) => counted(queue.executing) },
  { name: '#workers', by: (queue) => queue.workers, className: (queue) => `num ${queue.workers ? '' : 'warn'}`, cell: (queue) => number(queue.workers) },
  { name: '', className: () => 'end', cell: (queue) => mayAct && html`<${PauseButton} queue=${queue} pauses=${pauses} />` },
];

export function Queues({ live, mayAct }) {
  const { data, now } = live;
  const pauses = usePauses();
  if (!data?.at) return html`<h1>Queues</h1><${Loading} lines=${6} />`;
  return html`<h1>Queues</h1><${ErrorNotice} error=${pauses.error} /><${Panel}>
    ${data.queues.length === 0 ? html`<${Empty} title="No queues yet">A queue appears when a worker serves it or an instance waits in it.<//>`
      : html`<${Sorted} label="Queues" columns=${columns(now, mayAct, pauses)} rows=${data.queues} keyOf=${(queue) => queue.name} />`}
  <//>`;
}

const kept = (seconds) => (seconds === null ? 'as each engine is set' : seconds === 'infinity' ? 'without limit' : span(1000 * seconds));

export function Queue({ one, query, live, mayAct }) {
  const fetched = useFetch(`queues/${part(one)}`, { every: EVERY });
  const pauses = usePauses();
  const { now } = live;
  const period = periodOf(query, 'hour');
  const queue = fetched.data?.queue;
  const head = html`<p class="crumbs"><a href=${link('queues')}>Queues</a></p>`;
  const charts = html`<div class="row end"><${Periods} path=${`queues/${part(one)}`} query=${query} period=${period} /></div><${RollupCharts} period=${period} queue=${one} />`;
  if (!queue) {
    return html`${head}<h1>${one}</h1>${!fetched.error ? html`<${Loading} lines=${6} />`
      : html`<${Empty} title=${fetched.error.status === 404 ? 'Unknown queue' : 'Queue could not be read'}>${fetched.error.message}<//>`}
      ${fetched.error?.status === 404 && charts}`;
  }
  const facts = [
    ['Due', html`${counted(queue.due)}${queue.oldest_due_at && html`, the oldest since <${Time} at=${queue.oldest_due_at} now=${now} />`}`],
    ['Later', html`${counted(queue.scheduled)}${queue.next_due_at && html`, the next <${Time} at=${queue.next_due_at} now=${now} />`}`],
    ['Running', counted(queue.executing)],
    ['In lanes', counted(queue.queued)], ['Wait for a partition', counted(queue.partition_waiting)],
    ['Paused', pauses.isPaused(queue) ? html`${queue.paused_at && html`<${Time} at=${queue.paused_at} now=${now} />`}${queue.paused_by && ` by ${queue.paused_by}`}` : 'no'],
    ['Keeps done instances', kept(queue.retention_seconds)], ['Keeps failed instances', kept(queue.failed_retention_seconds)],
  ];
  return html`${head}
    <div class="head"><h1>${queue.name} ${pauses.isPaused(queue) && html`<span class="status is-paused">paused</span>`}</h1>
      <div class="row"><a class="button" href=${link('instances', { queue: one })}>Instances</a>${mayAct && html`<${PauseButton} queue=${queue} pauses=${pauses} />`}</div></div>
    <${ErrorNotice} error=${fetched.error} since=${fetched.read && new Date(fetched.read).toISOString()} what="The numbers below are" /><${ErrorNotice} error=${pauses.error} />
    <div class="two">
      <${Panel} title="Backlog"><dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl><//>
      <${Panel} title="Workers" aside=${plural(fetched.data.workers.length, 'live worker')}>
        ${fetched.data.workers.length === 0 ? html`<${Empty} title="No worker serves this queue">Its instances wait until one does.<//>`
          : html`<ul class="plain-list">${fetched.data.workers.slice(0, 50).map((worker) => html`<li key=${worker.id}><a href=${link(`workers/${part(worker.id)}`)}>${worker.host} ${worker.pid}</a> ${worker.draining && html`<span class="status is-paused">draining</span>`}</li>`)}</ul>${fetched.data.workers.length > 50 && html`<p class="foot">The first 50.</p>`}`}
      <//>
    </div>
    ${charts}`;
}
