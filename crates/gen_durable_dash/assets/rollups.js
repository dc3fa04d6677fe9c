// Charts and sums of the rollups: step results that workers counted, over an hour, a day or a week.

import { html } from './view.js';
import { part, query as toQuery } from './api.js';
import { Chart } from './chart.js';
import { useFetch } from './live.js';
import { Empty, ErrorNotice, Loading, Panel, Sorted, Unreadable } from './parts.js';
import { link, refine } from './route.js';
import { exact, number, span } from './text.js';
import { inZone, zone } from './zone.js';

// The periods, and the name of a bucket of each. The last five minutes are a part of the hour.
export const PERIODS = { '5m': '5 min', hour: 'Hour', day: 'Day', week: 'Week' };
const BUCKETS = { '5m': 'minute', hour: 'minute', day: '10 minutes', week: 'hour' };
const LAST = { '5m': 'five minutes', hour: 'hour', day: 'day', week: 'week' };
const EVERY = 10000;

// A machine or a queue has at most this many bytes in its name; longer names are in no rollup.
const NAME_MAX = 500;

export const periodOf = (query, usual) => (Object.hasOwn(PERIODS, query.period ?? '') ? query.period : usual);

// Switches between the periods; the URL contains the choice.
export const Periods = ({ path, query, period }) => html`<div class="periods" role="group" aria-label="Period">
  ${Object.entries(PERIODS).map(([key, name]) => html`<button type="button" aria-pressed=${String(key === period)} onClick=${() => refine(path, { ...query, period: key })}>${name}</button>`)}
</div>`;

// A percentile of a histogram: the exact value is at most the bound of its class.
const bound = (times, which) => {
  const at = times[which];
  if (!at) return '–';
  return at.over_ms ? `> ${span(at.over_ms)}` : `≤ ${span(at.at_most_ms)}`;
};
const height = (times, which) => times?.[which]?.at_most_ms ?? times?.[which]?.over_ms ?? null;

// Text below a point of a chart: the time of day, or the day at midnight.
function stamp(period) {
  return (second) => {
    const text = inZone(second * 1000, zone());
    const [hour, minute] = [Number(text.slice(11, 13)), Number(text.slice(14, 16))];
    if (period === 'week') return hour === 0 ? text.slice(5, 10) : null;
    if (period === 'day') return hour % 4 === 0 && minute < 10 ? text.slice(11, 16) : null;
    return minute % (period === '5m' ? 1 : 10) === 0 ? text.slice(11, 16) : null;
  };
}

// All buckets of the period: a bucket without counts has zeros if it begins after the oldest one in
// the database, and nothing if it is older, because no worker counted then.
function buckets(data, period) {
  const known = new Map(data.points.map((point) => [Date.parse(point.at), point]));
  const first = Date.parse(data.from);
  const oldest = data.oldest ? Date.parse(data.oldest) : Infinity;
  const all = Array.from({ length: data.buckets }, (_, index) => {
    const at = first + index * data.bucket_seconds * 1000;
    return { at, point: known.get(at) ?? null, isCounted: at >= oldest };
  });
  return period === '5m' ? all.slice(-6) : all;
}

const numbers = (all, name) => all.map(({ point, isCounted }) => (point ? point[name] : isCounted ? 0 : null));
const bounds = (all, name, which) => all.map(({ point }) => height(point?.[name], which));

function Charts({ data, period }) {
  const all = buckets(data, period);
  const chart = { width: 360, from: all[0].at / 1000, step: data.bucket_seconds, stamp: stamp(period), when: (second) => exact(new Date(second * 1000).toISOString()).replace(/:00 /, ' ') };
  const times = (name) => ['p50', 'p95', 'p99'].map((which) => ({ name: which, tone: `c-${which}`, values: bounds(all, name, which) }));
  const atMost = (value) => (value === 0 ? '0' : `≤ ${span(value)}`);
  return html`<div class="three">
    <${Panel} title="Step results" aside=${`per ${BUCKETS[period]}`}>
      <${Chart} ...${chart} label=${`Step results, finished instances and failed runs per ${BUCKETS[period]}`} format=${(value) => number(Math.round(value))}
        lines=${[{ name: 'steps', tone: 'c-arrived', values: numbers(all, 'steps') }, { name: 'done', tone: 'c-done', values: numbers(all, 'done') }, { name: 'failed runs', tone: 'c-failed', values: numbers(all, 'failures') }]} />
    <//>
    <${Panel} title="Time in queue" aside="upper bounds"><${Chart} ...${chart} label="Time in the queue: upper bounds of percentiles" format=${atMost} tick=${span} lines=${times('queue_time')} /><//>
    <${Panel} title="Step duration" aside="upper bounds"><${Chart} ...${chart} label="Duration of steps: upper bounds of percentiles" format=${atMost} tick=${span} lines=${times('duration')} /><//>
  </div>`;
}

const share = (pair) => (pair.steps ? pair.failures / pair.steps : 0);
const percent = (value) => (value === 0 ? '0 %' : value < 0.001 ? '<0.1 %' : `${(100 * value).toFixed(1)} %`);

const COLUMNS = [
  { name: 'machine', cell: (pair) => (pair.machine ? html`<a href=${link(`machines/${part(pair.machine)}`)}>${pair.machine}</a>` : html`<span class="faint">other</span>`), by: (pair) => pair.machine },
  { name: 'queue', cell: (pair) => (pair.queue ? html`<a href=${link(`queues/${part(pair.queue)}`)}>${pair.queue}</a>` : html`<span class="faint">other</span>`), by: (pair) => pair.queue },
  { name: '#steps', cell: (pair) => number(pair.steps), by: (pair) => pair.steps },
  { name: '#failed runs', cell: (pair) => number(pair.failures), by: (pair) => pair.failures },
  { name: '#share', cell: (pair) => percent(share(pair)), by: share },
  { name: '#done', cell: (pair) => number(pair.done), by: (pair) => pair.done },
  { name: '#failed', cell: (pair) => number(pair.failed), by: (pair) => pair.failed },
  { name: '#queue p95', cell: (pair) => bound(pair.queue_time, 'p95'), by: (pair) => height(pair.queue_time, 'p95') ?? -1 },
  { name: '#step p50', cell: (pair) => bound(pair.duration, 'p50'), by: (pair) => height(pair.duration, 'p50') ?? -1 },
  { name: '#step p95', cell: (pair) => bound(pair.duration, 'p95'), by: (pair) => height(pair.duration, 'p95') ?? -1 },
];

// The rollups of a period, of all machines and queues or of one. A machine or queue without results,
// an installation in which no worker has counted yet, and an error are told apart.
export function RollupCharts({ period, machine, queue }) {
  const isKnown = new TextEncoder().encode(`${machine ?? ''}${queue ?? ''}`).length <= NAME_MAX;
  const { data, error, read } = useFetch(isKnown ? `rollups${toQuery({ period: period === '5m' ? 'hour' : period, machine, queue })}` : null, { every: EVERY });
  if (!isKnown) return null;
  if (!data) return html`<${Panel} title="Step results">${error ? html`<${Unreadable} error=${error} />` : html`<${Loading} lines=${5} />`}<//>`;
  const notice = html`<${ErrorNotice} error=${error} since=${read && new Date(read).toISOString()} what="The charts below are" />`;
  const isEmpty = period === '5m' ? !buckets(data, period).some(({ point }) => point) : data.points.length === 0;
  if (isEmpty) {
    return html`${notice}<${Panel} title="Step results">${data.oldest
      ? html`<${Empty} title=${`No step results in the last ${LAST[period]}`}>No worker counted a result${machine ? ' of this machine' : queue ? ' of this queue' : ''} in this time.<//>`
      : html`<${Empty} title="Nothing has been counted yet">Workers add their counts about 10 s after they commit step results.<//>`}<//>`;
  }
  const isPartial = Date.parse(data.oldest) > Date.parse(data.from);
  return html`${notice}<${Charts} data=${data} period=${period} />
    ${period !== '5m' && html`<${Panel} title=${machine ? 'By queue' : queue ? 'By machine' : 'By machine and queue'} aside=${`last ${LAST[period]}`}>
      <${Sorted} label="Step results by machine and queue" columns=${COLUMNS} rows=${data.pairs} keyOf=${(pair) => JSON.stringify([pair.machine, pair.queue])} />
      ${data.pairs.length >= 200 && html`<p class="foot">The 200 with the most step results.</p>`}
    <//>`}
    <p class="foot">Counts are lower bounds: workers add theirs every 10 s, so the last point is incomplete, and a worker that was killed has lost its last ones. Percentiles are upper bounds.${isPartial && ` Counting began at ${exact(data.oldest)}.`}</p>`;
}
