// The overview page: it shows throughput, latency, backlog and errors.

import { html } from '../view.js';
import { Chart } from '../chart.js';
import { Empty, Loading, Panel, Table, Tile, Time } from '../parts.js';
import { link } from '../route.js';
import { Periods, RollupCharts, periodOf } from '../rollups.js';
import { WAITING, WAITS, atLeast, bytes, counted, number, plural, rate, since, span, statusName } from '../text.js';

export function Overview({ live, query }) {
  const { data, now } = live;
  if (!data?.at) return html`<h1>Overview</h1><${Loading} lines=${8} />`;
  const { minute, chart, totals } = data;
  const settled = minute.done + minute.failed + minute.cancelled;
  const more = minute.is_lower_bound ? '+' : '';
  const due = data.queues.reduce((sum, queue) => sum + queue.due, 0);
  const oldest = data.queues.map((queue) => queue.oldest_due_at).filter(Boolean).sort()[0];
  const alive = data.workers.filter((worker) => worker.alive).length;
  const waiting = WAITS.map(([status, what]) => ({ status, what, count: totals[status] ?? 0 }));
  const waits = waiting.reduce((sum, one) => sum + one.count, 0);
  const most = [...waiting].sort((a, b) => b.count - a.count)[0];
  const failed = (totals.failed ?? 0) + (totals.stuck ?? 0);
  const period = periodOf(query, '5m');
  return html`
    <h1>Overview</h1>
    <${Alerts} alerts=${data.alerts} />
    <div class="tiles">
      <${Tile} label="Finished" value=${`${rate(settled / 60)}${more}/s`} note=${`${number(settled)}${more} in the last minute`} />
      <${Tile} label="Time to finish" value=${span(minute.p50)} note=${`p95 ${span(minute.p95)} · p99 ${span(minute.p99)}`} />
      <${Tile} label="Due" value=${counted(due)} note=${oldest ? `oldest: ${since(oldest, now)}` : 'no backlog'} tone=${oldest && now - Date.parse(oldest) > 60000 ? 'is-warn' : ''} href=${link('queues')} />
      <${Tile} label="Running" value=${counted(totals.executing ?? 0)} note=${`on ${plural(alive, 'worker')}`} tone=${alive ? '' : 'is-warn'} href=${link('workers')} />
      <${Tile} label="Waiting" value=${atLeast(waits, waiting.some((one) => data.capped.includes(one.status)))} note=${waiting.filter((one) => one.count).map((one) => `${counted(one.count)} ${one.what}`).join(', ') || 'for a signal, for children, for a limit or in lanes'} href=${link('instances', { status: most.status })} />
      <${Tile} label="Failed" value=${counted(failed)} note=${failed ? 'see the errors' : 'no failures'} tone=${failed ? 'is-bad' : ''} href=${link('failures')} />
    </div>
    <div class="row end"><${Periods} path="" query=${query} period=${period} /></div>
    ${period === '5m' ? html`<${LiveCharts} chart=${chart} />` : html`<${RollupCharts} period=${period} />`}
    <div class="two">
      <${Panel} title="Queues" aside=${html`<a href=${link('queues')}>all</a>`}>
        ${data.queues.length ? html`<${Backlog} queues=${data.queues} now=${now} />` : html`<${Empty} title="No queues yet">A queue appears when a worker serves it or an instance waits in it.<//>`}
      <//>
      <${Panel} title="Errors" aside=${html`<a href=${link('failures')}>all</a>`}>
        ${data.failures.length ? html`<ul class="errors">${data.failures.slice(0, 6).map((group) => html`<li>
          <a href=${link('failures')}><b class="num">${atLeast(group.count, data.failures_capped)}</b><span><span class="error-text">${group.example}</span>
          <small>${group.machine} · ${group.step} · ${statusName(group.status)} · <${Time} at=${group.last_at} now=${now} /></small></span></a>
        </li>`)}</ul>` : html`<${Empty} title="No errors">Failed and stuck instances appear here, grouped by error.<//>`}
      <//>
    </div>
    <${Panel} title="Machines" aside=${html`<a href=${link('machines')}>all</a>`}>
      ${data.machines.length ? html`<${Table} label="Machines" head=${['machine', '#finished/min', '#time to finish', '#running', '#runnable', '#waiting', '#failed', '#workers']}>
        ${data.machines.map((machine) => {
          const sum = (...statuses) => atLeast(Object.values(machine.steps).reduce((all, counts) => all + statuses.reduce((some, status) => some + (counts[status] ?? 0), 0), 0), statuses.some((status) => data.capped.includes(status)));
          return html`<tr><td><a href=${link(`machines/${encodeURIComponent(machine.name)}`)}>${machine.name}</a></td>
            <td class="num">${number(machine.settled_last_minute)}${more}</td><td class="num" title=${`p95 ${span(machine.minute.p95)}, p99 ${span(machine.minute.p99)}`}>${span(machine.minute.p50)}</td><td class="num">${sum('executing')}</td>
            <td class="num">${sum('runnable')}</td><td class="num">${sum(...WAITING)}</td>
            <td class="num">${sum('failed', 'stuck')}</td><td class=${`num ${machine.workers ? '' : 'warn'}`}>${number(machine.workers)}</td></tr>`;
        })}
      <//>` : html`<${Empty} title="No machines">Start a worker, or enqueue an instance: <code>durable enqueue</code>.<//>`}
    <//>
    <p class="foot">About ${number(data.instances)} instances are stored, using ${bytes(data.bytes)}.</p>`;
}

// The last five minutes, second by second, as this dashboard has read them.
const LiveCharts = ({ chart }) => html`<div class="two">
      <${Panel} title="Throughput" aside="per second">
        <${Chart} label="Instances that arrived, were done and failed, per second" from=${chart.from} step=${chart.step} smooth=${5} format=${(value) => rate(value)} unit="/s"
          lines=${[{ name: 'arrived', tone: 'c-arrived', values: chart.arrived }, { name: 'done', tone: 'c-done', values: chart.done, area: true }, { name: 'failed', tone: 'c-failed', values: chart.failed }]} />
      <//>
      <${Panel} title="Time to finish" aside="of all machines, from enqueue to done or failed">
        <${Chart} label="Time of instances from enqueue to finish" from=${chart.from} step=${chart.step} smooth=${5} bridge format=${span}
          lines=${[{ name: 'p50', tone: 'c-p50', values: chart.p50 }, { name: 'p95', tone: 'c-p95', values: chart.p95 }, { name: 'p99', tone: 'c-p99', values: chart.p99 }]} />
      <//>
    </div>`;

// Everything that an operator should look at, as `durable doctor` reports it.
const Alerts = ({ alerts }) => alerts.length > 0 && html`<ul class="alerts" aria-label="Findings">${alerts.map((alert) => html`<li key=${alert.code + alert.text} class=${`is-${alert.severity}`}><a href=${link(alert.page)}>${alert.text}</a></li>`)}</ul>`;

export function Backlog({ queues, now }) {
  const most = Math.max(1, ...queues.map((queue) => queue.due));
  return html`<ul class="backlog">${queues.slice(0, 12).map((queue) => html`<li>
    <span class="queue-name">${queue.name}${queue.paused && html` <span class="status is-paused">paused</span>`}</span>
    <span class="meter" role="img" aria-label=${`${queue.due} due`}><i style=${{ width: `${(100 * queue.due) / most}%` }}></i></span>
    <span class="num">${counted(queue.due)}</span>
    <small>${queue.oldest_due_at ? `oldest ${since(queue.oldest_due_at, now)}` : queue.workers ? 'up to date' : 'no worker'}</small>
  </li>`)}</ul>`;
}
