// The page of workers and their leases.

import { html } from '../view.js';
import { Empty, Loading, Panel, Table, Time } from '../parts.js';

export function Workers({ live }) {
  const { data, now } = live;
  if (!data?.at) return html`<h1>Workers</h1><${Loading} lines=${6} />`;
  return html`<h1>Workers</h1><${Panel}>
    ${data.workers.length === 0 ? html`<${Empty} title="No workers">Enqueued instances wait until a worker starts.<//>` : html`
    <${Table} label="Workers" head=${['host', '#pid', 'state', 'started', 'lease', 'queues', 'machines']}>
      ${data.workers.map((worker) => html`<tr key=${worker.id}>
        <td title=${worker.id}>${worker.host}</td><td class="num">${worker.pid}</td>
        <td>${worker.alive ? html`<span class="status is-done">alive</span>` : html`<span class="status is-failed">expired</span>`}</td>
        <td><${Time} at=${worker.started_at} now=${now} /></td>
        <td>${worker.alive ? 'expires ' : 'expired '}<${Time} at=${worker.lease_expires_at} now=${now} /></td>
        <td>${worker.queues.map((name) => html`<span class="chip">${name}</span> `)}</td>
        <td>${worker.machines.map((name) => html`<span class="chip">${name.replace(/\/(\d+)$/, ' v$1')}</span> `)}</td>
      </tr>`)}
    <//>`}
  <//>`;
}
