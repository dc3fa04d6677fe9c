// Lanes: who has each, how many wait behind it and why; what to do about one that stands still. And partition keys.

import { html, useEffect, useState } from '../vendor/preact-htm.js';
import { get, post, query as ask } from '../api.js';
import { Empty, Field, FormDialog, InstanceLink, Loading, Panel, Status, Table, Trouble, Typed, toast } from '../parts.js';
import { link, refine } from '../route.js';
import { counted, exact, number, plural, since } from '../text.js';

const EVERY = 2000;

// Pages of a list whose `next` is what the next one is asked with. The first is kept fresh; who has gone further reads in peace.
function usePages(path, name, wanted) {
  const [pages, setPages] = useState({ rows: [], next: null, loaded: false, error: null, more: 0 });
  const asked = ask(wanted);
  const load = async (next) => {
    try {
      const answer = await get(`${path}${ask({ ...wanted, ...next })}`);
      setPages((old) => ({ rows: next ? [...old.rows, ...answer[name]] : answer[name], next: answer.next, loaded: true, error: null, more: next ? old.more + 1 : 0 }));
    } catch (error) {
      setPages((old) => ({ ...old, loaded: true, error }));
    }
  };
  useEffect(() => {
    setPages({ rows: [], next: null, loaded: false, error: null, more: 0 });
    load();
  }, [path, asked]);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden && pages.more === 0) load(); }, EVERY);
    return () => clearInterval(timer);
  }, [path, asked, pages.more]);
  return { ...pages, reload: () => load(), further: () => load(pages.next) };
}

export function Lanes({ query, live, mayAct }) {
  const isKeys = query.of === 'partitions';
  const change = (name) => (event) => refine('lanes', { ...query, [name]: event.target.type === 'checkbox' ? (event.target.checked ? 'true' : '') : event.target.value });
  return html`<h1>Lanes</h1>
    <p class="sub">${isKeys ? 'Under a partition key one step runs at a time.' : 'In a lane one instance runs at a time, in order of enqueueing. One that failed for good may hold up its lane until somebody decides.'}</p>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="Show"><select value=${isKeys ? 'partitions' : ''} onChange=${change('of')}>
        <option value="" selected=${!isKeys}>lanes</option><option value="partitions" selected=${isKeys}>partition keys</option></select><//>
      ${!isKeys && html`<${Field} label="Key"><${Typed} value=${query.prefix} onChange=${change('prefix')} placeholder="how it begins" autocomplete="off" /><//>`}
      <${Field} label="Tenant"><${Typed} value=${query.tenant} onChange=${change('tenant')} autocomplete="off" /><//>
      ${!isKeys && html`<label class="check"><input type="checkbox" checked=${query.blocked === 'true'} onChange=${change('blocked')} /> only those that stand still</label>`}
      ${Object.values(query).some(Boolean) && html`<a class="clear" href=${link('lanes')}>Clear</a>`}
    </form>
    ${isKeys ? html`<${Keys} key="keys" tenant=${query.tenant} now=${live.now} />` : html`<${LaneList} key="lanes" query=${query} now=${live.now} mayAct=${mayAct} />`}`;
}

function LaneList({ query, now, mayAct }) {
  const pages = usePages('lanes', 'lanes', { prefix: query.prefix, tenant: query.tenant, blocked: query.blocked });
  const isFiltered = query.prefix || query.tenant || query.blocked;
  return html`<${Trouble} error=${pages.error} /><${Panel}>
    ${!pages.loaded ? html`<${Loading} lines=${8} />` : pages.rows.length === 0
      ? html`<${Empty} title=${query.blocked ? 'No lane stands still' : 'Nobody stands in a lane'}>${pages.next ? 'None among those that were looked at so far.' : isFiltered ? 'Nothing matches all of this.' : 'A machine that says which lane it belongs to shows up here while it waits or runs.'}<//>`
      : html`<${Table} label="Lanes" head=${['lane', '#depth', 'head', 'status', 'age', 'why', '']}>
        ${pages.rows.map((lane) => html`<tr key=${`${lane.tenant}/${lane.key}`} class=${lane.blocked ? 'is-blocked' : ''}>
          <td class="key-cell">${named(lane)}</td>
          <td class="num">${counted(lane.depth)}${lane.unplaced > 0 && html` <small title="arrived, and without a place yet">+ ${number(lane.unplaced)}</small>`}</td>
          ${head(lane.head, now, 'No pick has given out its places yet.')}
          <td class="end">${mayAct && lane.blocked && html`<${Decide} lane=${lane} onDone=${pages.reload} />`}</td>
        </tr>`)}
      <//>`}
    <${Further} pages=${pages} what="lane" />
  <//>`;
}

function Keys({ tenant, now }) {
  const pages = usePages('partitions', 'partitions', { tenant });
  return html`<${Trouble} error=${pages.error} /><${Panel}>
    ${!pages.loaded ? html`<${Loading} lines=${8} />` : pages.rows.length === 0
      ? html`<${Empty} title="Nobody runs or waits under a partition key">A machine that says its partition key shows up here while it is due or runs.<//>`
      : html`<${Table} label="Partition keys" head=${['key', '#waiting', 'turn', 'status', 'age', 'why']}>
        ${pages.rows.map((key) => html`<tr key=${`${key.tenant}/${key.key}`}>
          <td class="key-cell">${named(key)}</td><td class="num">${counted(key.waiting)}</td>
          ${head(key.turn, now, 'No pick has given out the turn yet.')}
        </tr>`)}
      <//>`}
    <${Further} pages=${pages} what="key" />
  <//>`;
}

const Further = ({ pages, what }) => pages.next && html`<div class="more"><button onClick=${pages.further}>Look further</button><small>${plural(pages.rows.length, what)} so far</small></div>`;

const named = (one) => html`${one.key}${one.tenant && html` <small>of ${one.tenant}</small>`}`;

// Who has it, since when, and why it has not ended.
const head = (row, now, nobody) => (row ? html`
  <td><${InstanceLink} id=${row.id} /> ${row.machine} <small>${row.step}</small></td><td><${Status} status=${row.status} /></td>
  <td title=${`enqueued ${exact(row.inserted_at)}, changed ${exact(row.updated_at)}`}>${since(row.inserted_at, now)}</td>
  <td class="why-cell">${row.status === 'failed' && row.error ? html`<span class="error-text">${row.error}</span>` : row.reason}</td>`
  : html`<td><span class="faint">–</span></td><td></td><td></td><td class="why-cell">${nobody}</td>`);

const ACTS = {
  retry: ['Retry', 'Run it again', 'It runs again in its place, from the step where it stands. Everything behind it waits on.'],
  skip: ['Skip', 'Skip it', 'It stays failed, and the lane goes on with the next. Retried later, it stands in its lane as the last.'],
  discard: ['Discard', 'Discard it', 'It is cancelled, and the lane goes on with the next.'],
};

function Decide({ lane, onDone }) {
  const [act, setAct] = useState(null);
  const send = async ({ why }) => {
    const answer = await post(`lanes/${act}`, { key: lane.key, tenant: lane.tenant, ...(act === 'discard' ? { why } : {}) });
    toast(`Lane ${lane.key}: ${answer.said}`);
    onDone();
  };
  return html`<div class="row">${Object.entries(ACTS).map(([name, [label]]) => html`<button class=${name === 'discard' ? 'danger' : ''} aria-label=${`${label} the head of ${lane.key}`} onClick=${() => setAct(name)}>${label}</button>`)}</div>
    ${act && html`<${FormDialog} title=${`The head of lane ${lane.key}`} verb=${ACTS[act][1]} danger=${act === 'discard'} onSubmit=${send} onClose=${() => setAct(null)}>
      <p><b>${lane.head.id}</b> ${lane.head.machine} · ${lane.head.step}, with ${plural(Math.max(0, lane.depth - 1), 'other')} behind it.</p>
      ${lane.head.error && html`<p class="error-text">${lane.head.error}</p>`}
      <p>${ACTS[act][2]}</p>
      ${act === 'discard' && html`<${Field} label="Why"><input name="why" placeholder="for those who look later" autocomplete="off" /><//>`}
    <//>`}`;
}
