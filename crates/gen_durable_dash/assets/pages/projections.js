// The page of projections: it shows their lag, runs and failed events, and offers the actions on
// them.

import { html, useEffect, useRef, useState } from '../view.js';
import { get, post, part } from '../api.js';
import { useFetch } from '../live.js';
import { Empty, Field, FormDialog, Loading, Panel, Table, Time, ErrorNotice, Typed, toast } from '../parts.js';
import { link, refine } from '../route.js';
import { entry, number, plural, span } from '../text.js';

const EVERY = 1000;
const HEALTH = { 'up to date': 'is-done', following: 'is-executing', rebuilding: 'is-executing', retrying: 'is-paused', halted: 'is-failed' };
const STATUS = { running: 'is-executing', done: 'is-done', failed: 'is-failed', cancelled: 'is-cancelled' };
const KINDS = { shadow: 'shadow rebuild', rebuild: 'rebuild in place', replay: 'replay', verify: 'verify' };

// Builds a query string. The tenant with the empty name is valid, so an empty string is sent and
// only missing values are left out.
const where = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  return given.length ? `?${new URLSearchParams(given)}` : '';
};
const scopeLink = (name, tenant) => `#/projections/${part(name)}${where({ tenant })}`;
const Tenant = ({ name }) => (name ? html`<span>${name}</span>` : html`<span class="faint">no tenant</span>`);
const of = (row) => `${row.projection} of ${row.tenant || 'no tenant'}`;

const NO_MORE = { rows: [], next: undefined, error: null };

// The first page is refreshed periodically. Once further pages are loaded, the list stays as it is
// until an action reloads it.
export function usePages(path, values, field, cursor, every) {
  const whole = `${path}${where(values)}`;
  const [more, setMore] = useState(NO_MORE);
  const hasMore = useRef(false);
  hasMore.current = more.next !== undefined;
  const fetched = useFetch(whole, { every, again: () => !hasMore.current });
  useEffect(() => { setMore(NO_MORE); }, [whole]);
  const next = hasMore.current ? more.next : fetched.data?.next;
  const further = async () => {
    hasMore.current = true;
    try {
      const answer = await get(`${path}${where({ ...values, [cursor]: next })}`);
      setMore((old) => ({ rows: [...old.rows, ...answer[field]], next: answer.next, error: null }));
    } catch (error) { setMore((old) => ({ ...old, error })); }
  };
  const reload = () => { setMore(NO_MORE); fetched.reload(); };
  return { rows: fetched.data ? [...fetched.data[field], ...more.rows] : null, next, further, error: fetched.error ?? more.error, reload };
}

export const LoadMore = ({ pages, what }) => pages.next && html`<div class="more"><button onClick=${pages.further}>Load more</button><small>${plural(pages.rows.length, what)} so far</small></div>`;

export function Projections({ one, query, live, mayAct }) {
  const tenant = query.tenant;
  const scopes = usePages(one === undefined ? 'projections' : `projections/${part(one)}`, { tenant }, 'projections', 'after', EVERY);
  // Runs and failures are listed for all projections, or for one projection and tenant: the API has
  // no list for a tenant alone.
  const which = one === undefined ? {} : { projection: one, tenant };
  const runs = usePages('projection_runs', which, 'runs', 'before', EVERY);
  const failures = usePages('projection_failures', which, 'failures', 'after', 3 * EVERY);
  const reload = () => { scopes.reload(); runs.reload(); failures.reload(); };
  const act = { mayAct, reload, now: live.now, workers: live.data?.workers ?? [] };
  const title = one ?? 'Projections';
  const unserved = (scopes.rows ?? []).filter((row) => !row.served);
  if (!scopes.rows) return html`<${Head} one=${one} title=${title} />${scopes.error ? html`<${Empty} title=${scopes.error.status === 404 ? 'Projection not found' : 'Projection could not be read'}>${scopes.error.message}<//>` : html`<${Loading} lines=${8} />`}`;
  return html`<${Head} one=${one} title=${title} tenant=${tenant} />
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="Tenant"><${Typed} value=${tenant ?? ''} placeholder="all tenants" onChange=${(event) => refine(one === undefined ? 'projections' : `projections/${part(one)}`, { tenant: event.target.value.trim() })} /><//>
      ${(one !== undefined || tenant !== undefined) && html`<a class="clear" href=${link('projections')}>All projections</a>`}
    </form>
    <${ErrorNotice} error=${scopes.error} />
    ${unserved.length > 0 && html`<p class="notice">No live worker has registered ${[...new Set(unserved.map((row) => row.projection))].slice(0, 5).join(', ')}: it makes no progress, and requested runs wait until one does.</p>`}
    <${Panel}>
      ${scopes.rows.length === 0 ? html`<${Empty} title="No projection has processed an event yet">A projection appears when a worker that registers it has processed an event.<//>` : html`
      <${Table} label="Scopes" head=${['projection', 'tenant', 'health', '#position', '#behind', 'oldest', 'worker', 'error', '']}>
        ${scopes.rows.map((row) => html`<${Scope} key=${`${row.projection}/${row.tenant}`} row=${row} act=${act} />`)}
      <//>`}
      <${LoadMore} pages=${scopes} what="scope" />
    <//>
    <${Panel} title="Runs" aside="rebuilds, replays, verifications"><${ErrorNotice} error=${runs.error} />
      ${!runs.rows ? html`<${Loading} />` : runs.rows.length === 0 ? html`<${Empty} title="No runs" />` : html`
      <${Table} label="Runs" head=${['run', 'kind', 'projection', 'tenant', 'status', 'progress', 'result', 'by', 'on', 'changed', '']}>
        ${runs.rows.map((row) => html`<${Run} key=${row.id} row=${row} act=${act} />`)}
      <//>`}
      <${LoadMore} pages=${runs} what="run" />
    <//>
    <${Panel} title="Failed events"><${ErrorNotice} error=${failures.error} />
      ${!failures.rows ? html`<${Loading} />` : failures.rows.length === 0 ? html`<${Empty} title="No failed events" />` : html`
      <${Table} label="Failures" head=${['projection', 'tenant', '#position', 'event', 'state', '#attempts', 'last', 'error', '']}>
        ${failures.rows.map((row) => html`<${Failure} key=${`${row.projection}/${row.tenant}/${row.position}`} row=${row} act=${act} />`)}
      <//>`}
      <${LoadMore} pages=${failures} what="event" />
    <//>`;
}

const Head = ({ one, title, tenant }) => html`${one !== undefined && html`<p class="crumbs"><a href=${link('projections')}>Projections</a></p>`}
  <h1>${title}${tenant !== undefined && html` <small>of ${tenant || 'no tenant'}</small>`}</h1>`;

function Scope({ row, act }) {
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const waits = !row.served && html`<p class="notice">No live worker has it registered: the run waits until one does.</p>`;
  const requestRun = async (what, body) => {
    const answer = await post(`projections/${part(row.projection)}/${what}`, { tenant: row.tenant, ...body });
    toast(answer.served ? `Run ${answer.run.id} requested` : `Run ${answer.run.id} waits for a worker that has ${row.projection} registered`);
    act.reload();
  };
  const rebuild = ({ how, force, after, to }) => {
    if (how === 'replay') return requestRun('replay', { after: Number(after || 0), up_to: to ? Number(to) : undefined });
    return requestRun('rebuild', how === 'in_place' ? { in_place: true } : { force: force === 'on' });
  };
  const retry = async () => {
    const answer = await post(`projections/${part(row.projection)}/retry`, { tenant: row.tenant });
    toast(answer.resumed ? `${of(row)} continues` : `${of(row)} had not halted`);
    act.reload();
  };
  return html`<tr>
    <td><a href=${scopeLink(row.projection)}>${row.projection}</a> <small class="faint">v${row.version}</small></td>
    <td class="cut"><a href=${scopeLink(row.projection, row.tenant)}><${Tenant} name=${row.tenant} /></a></td>
    <td><span class=${`status ${row.offered ? 'is-paused' : entry(HEALTH, row.health) ?? ''}`}>${row.offered ? `v${row.offered} ${row.health}` : row.health}</span></td>
    <td class="num">${number(row.position)}</td><td class="num">${row.lag ? number(row.lag) : html`<span class="faint">0</span>`}</td>
    <td>${row.lag_seconds === null ? html`<span class="faint">–</span>` : span(row.lag_seconds * 1000)}</td>
    <td>${row.owned && row.host ? `${row.host}/${row.pid}` : row.served ? html`<span class="faint">idle</span>` : html`<span class="warn">none</span>`}</td>
    <td class="cut error-text" title=${row.last_error ?? ''}>${row.last_error ?? ''}</td>
    <td class="end">${act.mayAct && html`<div class="row">
      ${row.status !== 'running' && html`<button onClick=${() => setOpen('retry')} aria-label=${`Retry ${of(row)}`}>Retry</button>`}
      <button onClick=${() => setOpen('verify')} aria-label=${`Verify ${of(row)}`}>Verify</button>
      <button onClick=${() => setOpen('rebuild')} aria-label=${`Rebuild ${of(row)}`}>Rebuild…</button></div>`}
      ${open === 'verify' && html`<${FormDialog} title=${`Verify ${of(row)}`} verb="Verify it" onSubmit=${() => requestRun('verify')} onClose=${close}>
        <p>A worker applies all ${number(row.position)} events to shadow rows and compares them with the live rows. Nothing is changed.</p>${waits}
      <//>`}
      ${open === 'retry' && html`<${FormDialog} title=${`Retry ${of(row)}`} verb="Retry now" onSubmit=${retry} onClose=${close}>
        <p>The next event, at position ${number(row.position + 1)}, is retried now. It failed with:</p><p class="error-text">${row.last_error ?? ''}</p>
      <//>`}
      ${open === 'rebuild' && html`<${FormDialog} title=${`Rebuild ${of(row)}`} verb="Start" danger onSubmit=${rebuild} onClose=${close}>
        <${Rebuild} row=${row} />${waits}
      <//>`}
    </td>
  </tr>`;
}

function Rebuild({ row }) {
  const [how, setHow] = useState('shadow');
  return html`<${Field} label="Method"><select name="how" onChange=${(event) => setHow(event.target.value)}>
      <option value="shadow">shadow rebuild: swap it in if it is equal</option>
      <option value="in_place">in place: clear the live rows and fill them again</option>
      <option value="replay">replay: apply events again to the existing rows</option>
    </select><//>
    ${how === 'shadow' && html`<p>A worker applies all ${number(row.position)} events to shadow rows. Readers see the live rows until the shadow is swapped in.</p>
      <label class="check"><input type="checkbox" name="force" /> swap even if they differ</label>`}
    ${how === 'in_place' && html`<p>Readers see incomplete rows while it runs: the live rows are cleared first. It cannot be undone once it has started.</p>`}
    ${how === 'replay' && html`<p>Use it only for idempotent projections: events are applied a second time.</p>
      <${Field} label="After position"><input name="after" type="number" min="0" step="1" value="0" /><//>
      <${Field} label="Up to position"><input name="to" type="number" min="1" step="1" placeholder="the last" /><//>`}`;
}

function Run({ row, act }) {
  const [open, setOpen] = useState(false);
  const share = row.status === 'done' ? 100 : row.target ? Math.min(100, (100 * row.position) / row.target) : 0;
  const worker = act.workers.find((one) => one.id === row.owner);
  const cancel = async ({ why }) => {
    const answer = await post(`projection_runs/${part(row.id)}/cancel`, { why });
    toast(answer.cancelled ? `Run ${row.id} cancelled` : `Run ${row.id} has already ended`);
    act.reload();
  };
  const tone = row.error ? 'error-text' : row.is_equal === true ? 'good' : row.is_equal === false ? 'error-text' : '';
  return html`<tr>
    <td class="id">${row.id}</td><td>${entry(KINDS, row.kind) ?? row.kind}</td><td><a href=${scopeLink(row.projection)}>${row.projection}</a></td><td class="cut"><${Tenant} name=${row.tenant} /></td>
    <td><span class=${`status ${entry(STATUS, row.status) ?? ''}`}>${row.status}</span></td>
    <td class="progress"><div class="meter" role="progressbar" aria-label=${`Progress of run ${row.id}`} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share)}><i style=${{ width: `${share}%` }}></i></div>
      <small>${number(row.position)} of ${number(row.target)}</small></td>
    <td class=${`cut ${tone}`} title=${row.error ?? row.verdict ?? ''}>${row.error ?? row.verdict ?? (row.status === 'pending' ? 'waiting for a worker' : '')}</td>
    <td>${row.requested_by ?? ''}</td><td>${worker ? `${worker.host}/${worker.pid}` : ''}</td><td><${Time} at=${row.updated_at} now=${act.now} /></td>
    <td class="end">${act.mayAct && !row.is_over && html`<button class="danger" onClick=${() => setOpen(true)} aria-label=${`Cancel run ${row.id}`}>Cancel</button>`}
      ${open && html`<${FormDialog} title=${`Cancel run ${row.id}`} verb="Cancel it" danger onSubmit=${cancel} onClose=${() => setOpen(false)}>
        <p>${row.kind === 'rebuild' ? 'If the live rows are already cleared, the projection continues to fill them: that cannot be undone.' : 'The live rows stay as they are.'}</p>
        <${Field} label="Reason"><input name="why" placeholder="recorded with the run" /><//>
      <//>`}</td>
  </tr>`;
}

function Failure({ row, act }) {
  const [open, setOpen] = useState(false);
  const again = async ({ all }) => {
    const answer = await post(`projections/${part(row.projection)}/redrive`, { tenant: row.tenant, position: all === 'on' ? undefined : row.position });
    toast(`${plural(answer.retried, 'event')} will be retried`);
    act.reload();
  };
  return html`<tr>
    <td><a href=${scopeLink(row.projection)}>${row.projection}</a></td><td class="cut"><${Tenant} name=${row.tenant} /></td>
    <td class="num">${number(row.position)}</td><td>${row.event ?? html`<span class="faint">not in the log</span>`}</td>
    <td><span class=${`status ${row.state === 'parked' ? 'is-paused' : row.state === 'halted' ? 'is-failed' : ''}`}>${row.redrive ? 'retry pending' : row.state}</span></td>
    <td class="num">${number(row.attempts)}</td><td><${Time} at=${row.last_at} now=${act.now} /></td>
    <td class="cut error-text" title=${row.error}>${row.error}</td>
    <td class="end">${act.mayAct && row.state === 'parked' && !row.redrive && html`<button onClick=${() => setOpen(true)} aria-label=${`Retry position ${row.position} of ${of(row)}`}>Retry</button>`}
      ${open && html`<${FormDialog} title=${`Retry the event at position ${row.position}`} verb="Retry" onSubmit=${again} onClose=${() => setOpen(false)}>
        <p>It was skipped. The retry applies it after the events that followed it. It failed with:</p><p class="error-text">${row.error}</p>
        <label class="check"><input type="checkbox" name="all" /> also retry all other parked events of this projection and tenant</label>
      <//>`}</td>
  </tr>`;
}
