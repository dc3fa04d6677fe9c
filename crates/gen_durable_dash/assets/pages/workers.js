// The page of workers and their leases, and the page of one worker: what it serves and has claimed.

import { html } from '../view.js';
import { part } from '../api.js';
import { useFetch } from '../live.js';
import { Empty, ErrorNotice, InstanceLink, Loading, Panel, Sorted, Status, Time } from '../parts.js';
import { link } from '../route.js';
import { number, since } from '../text.js';

const EVERY = 3000;

const State = ({ worker }) => (!worker.alive ? html`<span class="status is-failed">expired</span>`
  : worker.draining ? html`<span class="status is-paused">draining</span>` : html`<span class="status is-done">alive</span>`);

const machineName = (name) => name.replace(/\/(\d+)$/, ' v$1');

const columns = (now) => [
  { name: 'host', by: (worker) => worker.host, cell: (worker) => html`<a href=${link(`workers/${part(worker.id)}`)} title=${worker.id}>${worker.host}</a>` },
  { name: '#pid', by: (worker) => worker.pid, cell: (worker) => worker.pid },
  { name: 'state', by: (worker) => `${worker.alive}${worker.draining}`, cell: (worker) => html`<${State} worker=${worker} />` },
  { name: 'version', by: (worker) => worker.version, cell: (worker) => worker.version || html`<span class="faint">–</span>` },
  { name: 'started', by: (worker) => Date.parse(worker.started_at), cell: (worker) => html`<${Time} at=${worker.started_at} now=${now} />` },
  { name: 'lease', by: (worker) => Date.parse(worker.lease_expires_at), cell: (worker) => html`${worker.alive ? 'expires ' : 'expired '}<${Time} at=${worker.lease_expires_at} now=${now} />` },
  { name: 'queues', cell: (worker) => worker.queues.map((name) => html`<span class="chip">${name}</span> `) },
  { name: 'machines', cell: (worker) => worker.machines.map((name) => html`<span class="chip">${machineName(name)}</span> `) },
];

export function Workers({ live }) {
  const { data, now } = live;
  if (!data?.at) return html`<h1>Workers</h1><${Loading} lines=${6} />`;
  return html`<h1>Workers</h1><${Panel}>
    ${data.workers.length === 0 ? html`<${Empty} title="No workers">Enqueued instances wait until a worker starts.<//>`
      : html`<${Sorted} label="Workers" columns=${columns(now)} rows=${data.workers} keyOf=${(worker) => worker.id} />`}
  <//>`;
}

// The steps that a worker knows, by machine: an entry "machine/version" stands for every step.
function stepsOf(worker) {
  const machines = new Map(worker.machines.map((name) => [name, []]));
  for (const known of worker.steps) {
    const machine = worker.machines.find((name) => known.startsWith(`${name}/`));
    if (machine) machines.get(machine).push(known.slice(machine.length + 1));
  }
  return [...machines];
}

const claims = (now) => [
  { name: 'id', by: (claim) => Number(claim.id), cell: (claim) => html`<${InstanceLink} id=${claim.id} />` },
  { name: 'machine', by: (claim) => claim.machine, cell: (claim) => claim.machine },
  { name: 'step', by: (claim) => claim.step, cell: (claim) => claim.step },
  { name: 'status', by: (claim) => claim.status, cell: (claim) => html`<${Status} status=${claim.status} />` },
  { name: 'queue', by: (claim) => claim.queue, cell: (claim) => html`<a href=${link(`queues/${part(claim.queue)}`)}>${claim.queue}</a>` },
  { name: '#attempt', by: (claim) => claim.attempt, cell: (claim) => number(claim.attempt) },
  { name: 'at this step', by: (claim) => -Date.parse(claim.changed_at), cell: (claim) => since(claim.changed_at, now) },
];

const Names = ({ names, path }) => (names.length === 0 ? html`<span class="faint">none</span>` : names.map((name) => html`${path ? html`<a class="chip" href=${link(`${path}/${part(name)}`)}>${name}</a>` : html`<span class="chip">${name}</span>`} `));

export function Worker({ one, live }) {
  const { data, error, read } = useFetch(`workers/${part(one)}`, { every: EVERY });
  const { now } = live;
  const head = html`<p class="crumbs"><a href=${link('workers')}>Workers</a></p>`;
  if (!data) {
    return html`${head}<h1>${one}</h1>${!error ? html`<${Loading} lines=${6} />`
      : html`<${Empty} title=${error.status === 404 ? 'Unknown worker' : 'Worker could not be read'}>${error.message}<//>`}`;
  }
  const { worker } = data;
  const facts = [
    ['Id', html`<code>${worker.id}</code>`], ['Version', worker.version || 'not known'],
    ['Started', html`<${Time} at=${worker.started_at} now=${now} />`],
    ['Lease', html`${worker.alive ? 'expires ' : 'expired '}<${Time} at=${worker.lease_expires_at} now=${now} />, renewed <${Time} at=${worker.renewed_at} now=${now} />`],
    ['Looks for instances', worker.draining ? 'no: it stops' : worker.polls ? 'yes' : 'no: it has no room'],
    ['Last found one', html`<${Time} at=${worker.found_work_at} now=${now} />`],
    ['Connections', worker.connections_max ? `at most ${number(worker.connections_max)}` : 'not known'],
    ['Queues', html`<${Names} names=${worker.queues} path="queues" />`],
    ['Schedules', html`<${Names} names=${worker.schedules} path="schedules" />`],
    ['Projections', html`<${Names} names=${worker.projections} path="projections" />`],
  ];
  return html`${head}<div class="head"><h1>${worker.host} ${worker.pid} <${State} worker=${worker} /></h1></div>
    <${ErrorNotice} error=${error} since=${read && new Date(read).toISOString()} what="What is shown below is" />
    <div class="two">
      <${Panel} title="Facts"><dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl><//>
      <${Panel} title="Machines and steps">${stepsOf(worker).length === 0 ? html`<${Empty} title="No machines" />` : html`<dl class="facts">${stepsOf(worker).map(([machine, steps]) => html`<dt><a href=${link(`machines/${part(machine.replace(/\/\d+$/, ''))}`)}>${machineName(machine)}</a></dt><dd>${steps.length ? steps.map((step) => html`<span class="chip">${step}</span> `) : html`<span class="faint">every step</span>`}</dd>`)}</dl>`}<//>
    </div>
    <${Panel} title="Claims" aside=${data.claims.length >= data.claims_max ? `the first ${number(data.claims_max)}` : number(data.claims.length)}>
      ${data.claims.length === 0 ? html`<${Empty} title="No claims">The worker runs no step now.<//>`
        : html`<${Sorted} label="Claims" columns=${claims(now)} rows=${data.claims} keyOf=${(claim) => claim.id} />`}
    <//>`;
}
