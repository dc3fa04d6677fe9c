// The page of machines. It draws each machine as a graph of its steps.

import { html } from '../view.js';
import { Graph, stepTimes, stepsInOrder } from '../graph.js';
import { Empty, Loading, Panel, Table } from '../parts.js';
import { link } from '../route.js';
import { Periods, RollupCharts, periodOf } from '../rollups.js';
import { LIVE, atLeast, number, plural, statusName } from '../text.js';

const about = (machine, live) => [
  machine.versions.length ? `v${machine.versions.join(', v')}` : 'no known version',
  machine.workers ? plural(machine.workers, 'worker') : 'no live worker runs it',
  `${number(machine.settled_last_minute)}${live.data.minute.is_lower_bound ? '+' : ''} finished in the last minute`,
].join(' · ');

const ways = (live) => (live.data.edges_sampled ? 'Edges show the share of each transition among the newest 5,000 recorded changes of all machines.' : 'Edge counts cover all recorded changes.');
const unrecorded = (machine) => machine.edges.length === 0 && html`<p class="sub">No transition of this machine is among the recorded changes. A job records only failed runs, unless its <code>HISTORY</code> says otherwise.</p>`;

export function Machines({ live }) {
  const machines = live.data?.machines;
  if (!live.data?.at) return html`<h1>Machines</h1><${Loading} lines=${8} />`;
  return html`<h1>Machines</h1><p class="sub">${ways(live)}</p>
    ${machines.length === 0 && html`<${Empty} title="No machines">A machine appears when a worker registers it or an instance of it is enqueued.<//>`}
    ${machines.map((machine) => html`<${Panel} key=${machine.name} title=${html`<a href=${link(`machines/${encodeURIComponent(machine.name)}`)}>${machine.name}</a>`} aside=${about(machine, live)}>
      ${Object.keys(machine.steps).length ? html`<${Graph} machine=${machine} capped=${live.data.capped} sampled=${live.data.edges_sampled} />${unrecorded(machine)}` : html`<${Empty} title=${machine.settled_last_minute ? 'No step is known' : 'No instance has run yet'} />`}
    <//>`)}`;
}

export function Machine({ one, query, live }) {
  const period = periodOf(query, 'hour');
  const charts = html`<div class="row end"><${Periods} path=${`machines/${encodeURIComponent(one)}`} query=${query} period=${period} /></div><${RollupCharts} period=${period} machine=${one} />`;
  if (!live.data?.at) return html`<h1>${one}</h1><${Loading} lines=${8} />`;
  const machine = live.data.machines.find((known) => known.name === one);
  if (!machine) return html`<h1>${one}</h1><${Empty} title="Unknown machine">No live worker registers it, and it has no instances that are running or waiting. <a href=${link('instances', { machine: one })}>Search all instances</a><//>${charts}`;
  const times = stepTimes(machine);
  const statuses = [...LIVE, 'stuck', 'failed', 'cancelled'];
  return html`<p class="crumbs"><a href=${link('machines')}>Machines</a></p>
    <h1>${machine.name}</h1>
    <p class="sub">${about(machine, live)}. ${ways(live)}</p>
    <${Panel}>${Object.keys(machine.steps).length ? html`<${Graph} machine=${machine} capped=${live.data.capped} sampled=${live.data.edges_sampled} />${unrecorded(machine)}` : html`<${Empty} title=${machine.settled_last_minute ? 'No step is known' : 'No instance has run yet'} />`}<//>
    ${charts}
    <${Panel} title="Steps" aside=${html`<a href=${link('instances', { machine: one })}>all instances</a>`}>
      <${Table} label="Steps" head=${['step', ...statuses.map((status) => `#${statusName(status)}`), '#runs', '#average']}>
        ${stepsInOrder(machine).map((step) => [step, machine.steps[step]]).map(([step, counts]) => html`<tr><td><a href=${link('instances', { machine: one, step })}>${step}</a></td>
          ${statuses.map((status) => html`<td class="num">${counts[status] ? html`<a href=${link('instances', { machine: one, step, status })}>${atLeast(counts[status], live.data.capped.includes(status))}</a>` : html`<span class="faint">0</span>`}</td>`)}
          <td class="num">${number(times.get(step)?.count ?? null)}</td><td class="num">${times.get(step)?.average ?? '–'}</td></tr>`)}
      <//>
    <//>`;
}
