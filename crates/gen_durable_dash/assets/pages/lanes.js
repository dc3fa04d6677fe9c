// The page of lanes: it shows the head and the depth of each lane, and the reason why the head has
// not finished, and offers the actions on a blocked lane. It also lists partition keys.

import { html, useState } from '../view.js';
import { post } from '../api.js';
import { useList } from '../live.js';
import { Empty, Field, FormDialog, InstanceLink, Loading, Panel, Sentence, Status, Table, ErrorNotice, Typed, Unreadable, toast } from '../parts.js';
import { link, refine } from '../route.js';
import { counted, exact, number, plural, since } from '../text.js';

const EVERY = 2000;

export function Lanes({ query, live, mayAct }) {
  const isKeys = query.of === 'partitions';
  const change = (name) => (event) => refine('lanes', { ...query, [name]: event.target.type === 'checkbox' ? (event.target.checked ? 'true' : '') : event.target.value });
  return html`<h1>Lanes</h1>
    <p class="sub">${isKeys ? 'At most one step runs per partition key at a time.' : 'A lane runs its instances one at a time, in the order of enqueueing. A head that failed permanently may block its lane until an operator retries, skips or discards it.'}</p>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="Show"><select value=${isKeys ? 'partitions' : ''} onChange=${change('of')}>
        <option value="" selected=${!isKeys}>lanes</option><option value="partitions" selected=${isKeys}>partition keys</option></select><//>
      ${!isKeys && html`<${Field} label="Key"><${Typed} value=${query.prefix} onChange=${change('prefix')} placeholder="prefix" autocomplete="off" /><//>`}
      <${Field} label="Tenant"><${Typed} value=${query.tenant} onChange=${change('tenant')} autocomplete="off" /><//>
      ${!isKeys && html`<label class="check"><input type="checkbox" checked=${query.blocked === 'true'} onChange=${change('blocked')} /> only blocked lanes</label>`}
      ${Object.values(query).some(Boolean) && html`<a class="clear" href=${link('lanes')}>Clear</a>`}
    </form>
    ${isKeys ? html`<${Keys} key="keys" tenant=${query.tenant} now=${live.now} />` : html`<${LaneList} key="lanes" query=${query} now=${live.now} mayAct=${mayAct} />`}`;
}

function LaneList({ query, now, mayAct }) {
  const pages = useList('lanes', 'lanes', { prefix: query.prefix, tenant: query.tenant, blocked: query.blocked }, EVERY);
  const isFiltered = query.prefix || query.tenant || query.blocked;
  return html`<${ErrorNotice} error=${pages.rows && pages.error} since=${pages.read} /><${Panel}>
    ${!pages.rows ? (pages.error ? html`<${Unreadable} error=${pages.error} />` : html`<${Loading} lines=${8} />`) : pages.rows.length === 0
      ? html`<${Empty} title=${query.blocked ? 'No blocked lanes' : 'No lanes'}>${pages.next ? 'No match among the lanes searched so far.' : isFiltered ? 'Nothing matches the filter.' : 'A lane appears while instances wait or run in it.'}<//>`
      : html`<${Table} label="Lanes" head=${['lane', '#depth', 'head', 'status', 'age', 'why', '']}>
        ${pages.rows.map((lane) => html`<tr key=${`${lane.tenant}/${lane.key}`} class=${lane.blocked ? 'is-blocked' : ''}>
          <td class="key-cell">${named(lane)}</td>
          <td class="num">${counted(lane.depth)}${lane.awaiting_placement > 0 && html` <small title="waiting for a lane position">+ ${number(lane.awaiting_placement)}</small>`}</td>
          ${head(lane.head, now, 'Waiting for placement by the next pick.')}
          <td class="end">${mayAct && lane.blocked && html`<${LaneActions} lane=${lane} onDone=${pages.reload} />`}</td>
        </tr>`)}
      <//>`}
    <${LoadMore} pages=${pages} what="lane" />
  <//>`;
}

function Keys({ tenant, now }) {
  const pages = useList('partitions', 'partitions', { tenant }, EVERY);
  return html`<${ErrorNotice} error=${pages.rows && pages.error} since=${pages.read} /><${Panel}>
    ${!pages.rows ? (pages.error ? html`<${Unreadable} error=${pages.error} />` : html`<${Loading} lines=${8} />`) : pages.rows.length === 0
      ? html`<${Empty} title="No partition keys in use">A partition key appears while instances with it are due or running.<//>`
      : html`<${Table} label="Partition keys" head=${['key', '#waiting', 'holder', 'status', 'age', 'why']}>
        ${pages.rows.map((key) => html`<tr key=${`${key.tenant}/${key.key}`}>
          <td class="key-cell">${named(key)}</td><td class="num">${counted(key.waiting)}</td>
          ${head(key.holder, now, 'No holder yet: the next pick selects one.')}
        </tr>`)}
      <//>`}
    <${LoadMore} pages=${pages} what="key" />
  <//>`;
}

const LoadMore = ({ pages, what }) => pages.next && html`<div class="more"><button onClick=${() => pages.further()}>Load more</button><small>${plural(pages.rows.length, what)} so far</small></div>`;

const named = (one) => html`${one.key}${one.tenant && html` <small>of ${one.tenant}</small>`}`;

// The head of a lane or the holder of a partition: the instance, its age, and the reason why it has
// not finished.
const head = (row, now, noHolder) => (row ? html`
  <td><${InstanceLink} id=${row.id} /> ${row.machine} <small>${row.step}</small></td><td><${Status} status=${row.status} /></td>
  <td title=${`enqueued ${exact(row.inserted_at)}, changed ${exact(row.updated_at)}`}>${since(row.inserted_at, now)}</td>
  <td class="why-cell">${row.status === 'failed' && row.last_error ? html`<span class="error-text">${row.last_error}</span>` : html`<${Sentence} text=${row.reason} />`}</td>`
  : html`<td><span class="faint">–</span></td><td></td><td></td><td class="why-cell">${noHolder}</td>`);

const ACTS = {
  retry: ['Retry', 'Run it again', 'It runs again from its current step and keeps its lane position. The instances behind it keep waiting.'],
  skip: ['Skip', 'Skip it', 'It stays failed, and its successor is promoted. If it is retried later, it joins the end of the lane.'],
  discard: ['Discard', 'Discard it', 'It is cancelled, and its successor is promoted.'],
};

function LaneActions({ lane, onDone }) {
  const [act, setAct] = useState(null);
  const send = async ({ why }) => {
    const answer = await post(`lanes/${act}`, { key: lane.key, tenant: lane.tenant, ...(act === 'discard' ? { why } : {}) });
    toast(`Lane ${lane.key}: ${answer.said}`);
    onDone();
  };
  return html`<div class="row">${Object.entries(ACTS).map(([name, [label]]) => html`<button class=${name === 'discard' ? 'danger' : ''} aria-label=${`${label} the head of ${lane.key}`} onClick=${() => setAct(name)}>${label}</button>`)}</div>
    ${act && html`<${FormDialog} title=${`The head of lane ${lane.key}`} verb=${ACTS[act][1]} danger=${act === 'discard'} onSubmit=${send} onClose=${() => setAct(null)}>
      <p><b>${lane.head.id}</b> ${lane.head.machine} · ${lane.head.step}, with ${plural(Math.max(0, lane.depth - 1), 'other')} behind it.</p>
      ${lane.head.last_error && html`<p class="error-text">${lane.head.last_error}</p>`}
      <p>${ACTS[act][2]}</p>
      ${act === 'discard' && html`<${Field} label="Reason"><input name="why" placeholder="recorded with the cancellation" autocomplete="off" /><//>`}
    <//>`}`;
}
