// The page of queues: it shows the backlog of each queue, and pauses and resumes queues. The page of
// one queue also shows its throughput and times, its retention, its workers and the shares of its
// tenants, and makes the queue fair.

import { html, useState } from '../view.js';
import { post, part } from '../api.js';
import { useFetch } from '../live.js';
import { ConfirmButton, Empty, Field, FormDialog, Loading, Panel, Sorted, Table, Time, ErrorNotice, toast } from '../parts.js';
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
  { name: 'queue', by: (queue) => queue.name, cell: (queue) => html`<a href=${link(`queues/${part(queue.name)}`)}>${queue.name}</a> ${pauses.isPaused(queue) && html`<span class="status is-paused" title=${queue.paused_by ? `by ${queue.paused_by}` : ''}>paused</span>`} ${queue.is_fair && html`<span class="status is-runnable" title="its tenants share the workers">fair</span>`}` },
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

// Lets the tenants of a queue share its workers, or ends that.
function FairButton({ queue, onDone }) {
  const act = queue.is_fair ? 'unfair' : 'fair';
  const send = async () => {
    await post(`queues/${part(queue.name)}/${act}`);
    toast(queue.is_fair ? `${queue.name} is not fair any more` : `${queue.name} is fair: its tenants share the workers`);
    onDone();
  };
  return html`<${ConfirmButton} label=${queue.is_fair ? 'Make unfair' : 'Make fair'} title=${`Make ${queue.name} ${act}`} verb="Change it" onConfirm=${send}>
    <p>${queue.is_fair ? 'Its instances begin by priority and due time, whatever their tenants.' : 'Its tenants share the workers, however many instances one of them has.'} Workers follow within seconds.</p>
  <//>`;
}

function ShareButton({ queue, tenant, share, onDone }) {
  const [open, setOpen] = useState(false);
  const send = async (form) => {
    const body = { tenant: tenant ?? form.tenant, share: Number(form.share) };
    await post(`queues/${part(queue.name)}/share`, body);
    toast(`${body.tenant} has a share of ${body.share} in ${queue.name}`);
    onDone();
  };
  return html`<button onClick=${() => setOpen(true)} aria-label=${tenant === undefined ? `Set a share in ${queue.name}` : `Change the share of ${tenant}`}>${tenant === undefined ? 'Set a share' : 'Change'}</button>
    ${open && html`<${FormDialog} title=${`A share in ${queue.name}`} verb="Set it" onSubmit=${send} onClose=${() => setOpen(false)}>
      ${tenant === undefined ? html`<${Field} label="Tenant"><input name="tenant" required autocomplete="off" /><//>` : html`<p><b>${tenant}</b></p>`}
      <${Field} label="Share" hint="So many instances begin for each one of a tenant with a share of 1."><input name="share" type="number" min="1" max="1000" step="1" required defaultValue=${share ?? 1} /><//>
    <//>`}`;
}

function Shares({ queue, mayAct, onDone }) {
  const shares = Object.entries(queue.tenant_shares);
  if (!queue.is_fair && !shares.length) return null;
  return html`<${Panel} title="Shares of tenants" aside=${mayAct && html`<${ShareButton} queue=${queue} onDone=${onDone} />`}>
    ${shares.length === 0 ? html`<${Empty} title="Equal shares">Each tenant has a share of 1.<//>`
      : html`<${Table} label="Shares of tenants" head=${['tenant', '#share', '']}>${shares.map(([tenant, share]) => html`<tr key=${tenant}><td class="key-cell">${tenant}</td><td class="num">${number(share)}</td>
        <td class="end">${mayAct && html`<${ShareButton} queue=${queue} tenant=${tenant} share=${share} onDone=${onDone} />`}</td></tr>`)}<//>
        <p class="foot">Other tenants have a share of 1.${!queue.is_fair && ' The queue is not fair, so shares have no effect.'}</p>`}
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
    ['Fair', queue.is_fair ? 'yes: tenants share the workers' : 'no'],
    ['Keeps done instances', kept(queue.retention_seconds)], ['Keeps failed instances', kept(queue.failed_retention_seconds)],
  ];
  return html`${head}
    <div class="head"><h1>${queue.name} ${pauses.isPaused(queue) && html`<span class="status is-paused">paused</span>`} ${queue.is_fair && html`<span class="status is-runnable">fair</span>`}</h1>
      <div class="row"><a class="button" href=${link('instances', { queue: one })}>Instances</a>${mayAct && html`<${FairButton} queue=${queue} onDone=${fetched.reload} /><${PauseButton} queue=${queue} pauses=${pauses} />`}</div></div>
    <${ErrorNotice} error=${fetched.error} since=${fetched.read && new Date(fetched.read).toISOString()} what="The numbers below are" /><${ErrorNotice} error=${pauses.error} />
    <div class="two">
      <${Panel} title="Backlog"><dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl><//>
      <${Panel} title="Workers" aside=${plural(fetched.data.workers.length, 'live worker')}>
        ${fetched.data.workers.length === 0 ? html`<${Empty} title="No worker serves this queue">Its instances wait until one does.<//>`
          : html`<ul class="plain-list">${fetched.data.workers.slice(0, 50).map((worker) => html`<li key=${worker.id}><a href=${link(`workers/${part(worker.id)}`)}>${worker.host} ${worker.pid}</a> ${worker.draining && html`<span class="status is-paused">draining</span>`}</li>`)}</ul>${fetched.data.workers.length > 50 && html`<p class="foot">The first 50.</p>`}`}
      <//>
    </div>
    <${Shares} queue=${queue} mayAct=${mayAct} onDone=${fetched.reload} />
    ${charts}`;
}
