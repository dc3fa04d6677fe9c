// The page of instances: it searches them, shows the results page by page, and enqueues new
// instances.

import { html, useEffect, useState } from '../view.js';
import { useList } from '../live.js';
import { Empty, Field, InstanceLink, Loading, Panel, Status, Table, Time, ErrorNotice, Typed, Unreadable } from '../parts.js';
import { refine, link } from '../route.js';
import { WAITING, plural, statusName } from '../text.js';
import { EnqueueButton } from './acts.js';
import { BulkButton } from './bulk.js';

const STATUSES = ['runnable', 'executing', ...WAITING, 'stuck', 'done', 'failed', 'cancelled'];
const AGES = [['', 'any age'], ['300', 'last 5 min'], ['3600', 'last hour'], ['86400', 'last day'], ['604800', 'last week']];
const EVERY = 3000;

// The ids of the list that was last shown.
let listed = [];

// Returns the ids before and after an instance in that list.
export function neighbours(id) {
  const at = listed.indexOf(id);
  return at < 0 ? {} : { before: listed[at - 1], after: listed[at + 1] };
}

export function Instances({ query, live, mayAct }) {
  const pages = useList('instances', 'instances', query, EVERY);
  if (pages.rows) listed = pages.rows.map((row) => row.id);
  const load = pages.reload;
  const change = (name) => (event) => refine('instances', { ...query, [name]: event.target.value });
  const machines = (live.data?.machines ?? []).map((machine) => machine.name);
  const steps = Object.keys((live.data?.machines ?? []).find((machine) => machine.name === query.machine)?.steps ?? {});
  const queues = (live.data?.queues ?? []).map((queue) => queue.name);
  const isFiltered = Object.values(query).some(Boolean);
  // A request searches a bounded number of instances. Without a match, the page continues by itself.
  const [stopped, setStopped] = useState(null);
  const { sort, before, after, limit, ...filter } = query;
  // The cursor and the words for the rest of the list follow the order of the list.
  const isOldestFirst = sort === 'oldest';
  const [which, direction] = isOldestFirst ? ['newer', 'up'] : ['older', 'down'];
  const further = () => pages.further(isOldestFirst ? { after: pages.next } : { before: pages.next });
  const search = JSON.stringify(query);
  const goesOn = pages.rows?.length === 0 && pages.next && !pages.error && stopped !== search;
  useEffect(() => { if (goesOn) further(); }, [goesOn && pages.next, search]);
  return html`<div class="head"><h1>Instances</h1><div class="row">
      ${mayAct && ['failed', 'stuck', 'cancelled'].includes(query.status) && html`<${BulkButton} kind="retry" filter=${filter} steps=${steps} label="Retry all that match…" onDone=${() => load()} />`}
      ${mayAct && ['failed', 'stuck'].includes(query.status) && html`<${BulkButton} kind="discard" filter=${filter} label="Discard all that match…" onDone=${() => load()} />`}
      ${mayAct && ['runnable', ...WAITING].includes(query.status) && html`<${BulkButton} kind="cancel" filter=${filter} label="Cancel all that match…" onDone=${() => load()} />`}
      ${mayAct && html`<${EnqueueButton} machines=${live.data?.machines ?? []} />`}
    </div></div>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <${Pick} label="Status" value=${query.status} onChange=${change('status')} options=${STATUSES} name=${statusName} />
      <${Pick} label="Machine" value=${query.machine} onChange=${change('machine')} options=${machines} />
      <${Pick} label="Step" value=${query.step} onChange=${change('step')} options=${steps} />
      <${Pick} label="Queue" value=${query.queue} onChange=${change('queue')} options=${queues} />
      <${Field} label="Age"><select value=${query.newer_than ?? ''} onChange=${change('newer_than')}>${AGES.map(([value, name]) => html`<option value=${value} selected=${(query.newer_than ?? '') === value}>${name}</option>`)}</select><//>
      <${Field} label="Key"><${Typed} value=${query.key} onChange=${change('key')} placeholder="the complete key" /><//>
      <${Field} label="Key begins with"><${Typed} value=${query.key_prefix} onChange=${change('key_prefix')} /><//>
      <${Field} label="Tenant"><${Typed} value=${query.tenant} onChange=${change('tenant')} /><//>
      <${Field} label="Error"><${Typed} value=${query.error} onChange=${change('error')} placeholder="text it contains" /><//>
      ${query.error_group && html`<${Field} label="Error group"><${Typed} value=${query.error_group} onChange=${change('error_group')} /><//>`}
      <${Field} label="Enqueued since"><${Typed} value=${query.since} onChange=${change('since')} placeholder="2030-01-31T12:00:00Z" /><//>
      <${Field} label="Enqueued before"><${Typed} value=${query.until} onChange=${change('until')} placeholder="2030-01-31T12:00:00Z" /><//>
      ${isFiltered && html`<a class="clear" href=${link('instances')}>Clear</a>`}
    </form>
    <${ErrorNotice} error=${pages.rows && pages.error} since=${pages.read} />
    <${Panel}>
      ${!pages.rows ? (pages.error ? html`<${Unreadable} error=${pages.error} />` : html`<${Loading} lines=${10} />`)
        : pages.rows.length ? html`<${Rows} rows=${pages.rows} now=${live.now} />`
          : html`<${Empty} title=${pages.next ? 'No match so far' : 'No instances'}>${pages.next ? 'No match among the instances searched so far.' : isFiltered ? 'Nothing matches the filter.' : 'Nothing has been enqueued, or all instances have been deleted after their retention.'}<//>`}
      ${goesOn ? html`<div class="more" role="status"><button onClick=${() => setStopped(search)}>Stop</button>
        <small>Searching ${which} instances: ${direction} to id ${pages.next}</small></div>`
        : pages.next && html`<div class="more"><button onClick=${further}>Search ${which} instances</button>
        <small>${plural(pages.rows.length, 'instance')} so far, searched ${direction} to id ${pages.next}${pages.nextAt && html`, enqueued <${Time} at=${pages.nextAt} now=${live.now} />`}</small></div>`}
    <//>`;
}

function Pick({ label, value = '', options, onChange, name = (text) => text }) {
  const all = value && !options.includes(value) ? [value, ...options] : options;
  return html`<${Field} label=${label}><select value=${value} onChange=${onChange}>
    <option value="" selected=${!value}>any</option>${all.map((option) => html`<option value=${option} selected=${option === value}>${name(option)}</option>`)}
  </select><//>`;
}

export const Rows = ({ rows, now }) => html`<${Table} label="Instances" head=${['id', 'machine', 'step', 'status', 'queue', 'key', '#attempt', 'enqueued', 'changed', 'error']}>
  ${rows.map((row) => html`<tr key=${row.id}>
    <td><${InstanceLink} id=${row.id} /></td><td>${row.machine}</td><td>${row.step}</td><td><${Status} status=${row.status} /></td>
    <td>${row.queue}</td><td class="cut">${row.key ?? html`<span class="faint">–</span>`}</td><td class="num">${row.attempt || html`<span class="faint">0</span>`}</td>
    <td><${Time} at=${row.inserted_at} now=${now} /></td><td><${Time} at=${row.updated_at} now=${now} /></td>
    <td class="cut error-text" title=${row.last_error ?? ''}>${row.last_error ?? ''}</td>
  </tr>`)}
<//>`;
