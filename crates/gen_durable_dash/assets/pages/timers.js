// The page of timers: it shows the forecast of the next hour, overdue timers, and the next timers.

import { html, useState } from '../view.js';
import { part, post } from '../api.js';
import { Bars } from '../bars.js';
import { useFetch, useList } from '../live.js';
import { Empty, FormDialog, InstanceLink, Loading, Panel, Table, Time, ErrorNotice, Unreadable, toast } from '../parts.js';
import { link } from '../route.js';
import { entry, number, plural } from '../text.js';

const EVERY = 2000;
const NAMES = { sleep: 'sleeps', deadline: 'deadlines', repeat: 'repeating timers', schedule: 'schedules', rate: 'held back by rates' };

export function Timers({ live, mayAct }) {
  const { now } = live;
  const forecast = useFetch('timers/forecast', { every: EVERY });
  const kinds = forecast.data?.kinds.map((kind) => ({ ...kind, name: entry(NAMES, kind.kind) ?? kind.kind }));
  const sum = kinds?.flatMap((kind) => kind.counts).reduce((all, count) => all + count, 0) ?? 0;
  return html`<h1>Timers</h1>
    <${Panel} title="In the next hour" aside=${forecast.data && `${forecast.data.capped ? 'over ' : ''}${plural(sum, 'timer')}`}>
      <${ErrorNotice} error=${kinds && forecast.error} since=${forecast.read} />
      ${!kinds ? (forecast.error ? html`<${Unreadable} error=${forecast.error} />` : html`<${Loading} lines=${4} />`) : html`<${Bars} label="Timers due in the next hour, by kind" parts=${forecast.data.parts} seconds=${forecast.data.seconds} kinds=${kinds} cap=${forecast.data.counted_to} />
        ${forecast.data.capped && html`<p class="foot">Each kind is counted up to ${number(forecast.data.counted_to)} in each part.</p>`}`}
    <//>
    <${TimerList} title="Overdue" which="overdue" now=${now} mayAct=${mayAct} empty="Nothing is overdue">Timers that are due and have not fired appear here: no worker is running, or none registers the schedule.<//>
    <${TimerList} title="Next" which="ahead" now=${now} mayAct=${mayAct} empty="Nothing falls due">Sleeps, deadlines and repeating timers of waits, and schedules appear here.<//>`;
}

function TimerList({ title, which, now, mayAct, empty, children }) {
  const pages = useList('timers', 'timers', { which }, EVERY);
  return html`<${Panel} title=${title}><${ErrorNotice} error=${pages.rows && pages.error} since=${pages.read} />
    ${!pages.rows ? (pages.error ? html`<${Unreadable} error=${pages.error} />` : html`<${Loading} lines=${4} />`) : pages.rows.length === 0 ? html`<${Empty} title=${empty}>${children}<//>`
      : html`<${TimerRows} label=${title} rows=${pages.rows} now=${now} mayAct=${mayAct} onDone=${pages.reload} />`}
    ${pages.next && html`<div class="more"><button onClick=${() => pages.further({ after: pages.next })}>Load more</button><small>${plural(pages.rows.length, 'timer')} so far</small></div>`}
  <//>`;
}

export const TimerRows = ({ label, rows, now, mayAct, onDone }) => html`<${Table} label=${label} head=${['due', 'kind', 'target', 'instance', 'cycle', '', '']}>
  ${rows.map((timer) => html`<tr key=${`${timer.kind}/${timer.id ?? timer.instance_id}`}>
    <td class=${timer.overdue ? 'warn' : ''}><${Time} at=${timer.due_at} now=${now} /></td>
    <td><span class=${`kind c-${timer.kind}`}>${timer.kind}</span></td>
    <td>${timer.schedule ? html`<a href=${link(`schedules/${part(timer.schedule)}`)}>${timer.schedule}</a>` : html`${timer.machine}${timer.step && html` → ${timer.step}`}`}</td>
    <td>${timer.instance_id ? html`<${InstanceLink} id=${timer.instance_id} />` : html`<span class="faint">–</span>`}</td>
    <td class="cut">${timer.cycle ?? ''}</td>
    <td>${!timer.served && html`<span class="status is-paused">no worker registers it</span>`}</td>
    <td class="end">${mayAct && timer.may_cancel && html`<${CancelTimer} timer=${timer} onDone=${onDone} />`}</td>
  </tr>`)}
<//>`;

function CancelTimer({ timer, onDone }) {
  const [open, setOpen] = useState(false);
  const send = async () => {
    const answer = await post(`timers/${part(timer.id)}/cancel`);
    toast(answer.cancelled ? `Timer ${timer.id} cancelled` : `Timer ${timer.id} has already ended`);
    onDone();
  };
  return html`<button aria-label=${`Cancel timer ${timer.id}`} onClick=${() => setOpen(true)}>Cancel</button>
    ${open && html`<${FormDialog} title=${`Cancel timer ${timer.id}`} verb="Cancel it" danger onSubmit=${send} onClose=${() => setOpen(false)}>
      <p>This timer of <b>${timer.machine}</b> does not fire again. The wait that it belongs to continues.</p>
    <//>`}`;
}
