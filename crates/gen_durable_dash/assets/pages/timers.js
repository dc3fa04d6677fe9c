// What falls due: in the next hour, next, and what should have been.

import { html, useEffect, useState } from '../vendor/preact-htm.js';
import { get, part, post, query as ask } from '../api.js';
import { Bars } from '../bars.js';
import { useAsked } from '../live.js';
import { Empty, FormDialog, InstanceLink, Loading, Panel, Table, Time, Trouble, toast } from '../parts.js';
import { link } from '../route.js';
import { number, plural } from '../text.js';

const EVERY = 2000;
const NAMES = { sleep: 'sleeps', deadline: 'deadlines', repeat: 'repeats', schedule: 'schedules' };

export function Timers({ live, mayAct }) {
  const { now } = live;
  const forecast = useAsked('timers/forecast', { every: EVERY });
  const kinds = forecast.data?.kinds.map((kind) => ({ ...kind, name: NAMES[kind.kind] ?? kind.kind }));
  const sum = kinds?.flatMap((kind) => kind.counts).reduce((all, count) => all + count, 0) ?? 0;
  return html`<h1>Timers</h1>
    <${Panel} title="In the next hour" aside=${forecast.data && `${forecast.data.capped ? 'over ' : ''}${plural(sum, 'timer')}`}>
      <${Trouble} error=${forecast.error} />
      ${!kinds ? html`<${Loading} lines=${4} />` : html`<${Bars} label="How many fall due in the next hour, by kind" parts=${forecast.data.parts} seconds=${forecast.data.seconds} kinds=${kinds} cap=${forecast.data.counted_to} />
        ${forecast.data.capped && html`<p class="foot">Each kind is counted up to ${number(forecast.data.counted_to)} in each part.</p>`}`}
    <//>
    <${TimerList} title="Overdue" which="overdue" now=${now} mayAct=${mayAct} empty="Nothing is overdue">What should have fired and has not: nobody works here, or nobody registers the schedule.<//>
    <${TimerList} title="Next" which="ahead" now=${now} mayAct=${mayAct} empty="Nothing falls due">Sleeps, deadlines of waits, what repeats beside them, and schedules show up here.<//>`;
}

function TimerList({ title, which, now, mayAct, empty, children }) {
  const [pages, setPages] = useState({ rows: null, next: null, error: null, more: 0 });
  const load = async (after) => {
    try {
      const answer = await get(`timers${ask({ which, after })}`);
      setPages((old) => ({ rows: after ? [...old.rows, ...answer.timers] : answer.timers, next: answer.next, error: null, more: after ? old.more + 1 : 0 }));
    } catch (error) {
      setPages((old) => ({ ...old, rows: old.rows ?? [], error }));
    }
  };
  useEffect(() => { load(); }, [which]);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden && pages.more === 0) load(); }, EVERY);
    return () => clearInterval(timer);
  }, [which, pages.more]);
  return html`<${Panel} title=${title}><${Trouble} error=${pages.error} />
    ${!pages.rows ? html`<${Loading} lines=${4} />` : pages.rows.length === 0 ? html`<${Empty} title=${empty}>${children}<//>`
      : html`<${TimerRows} label=${title} rows=${pages.rows} now=${now} mayAct=${mayAct} onDone=${() => load()} />`}
    ${pages.next && html`<div class="more"><button onClick=${() => load(pages.next)}>Show more</button><small>${plural(pages.rows.length, 'timer')} so far</small></div>`}
  <//>`;
}

export const TimerRows = ({ label, rows, now, mayAct, onDone }) => html`<${Table} label=${label} head=${['due', 'kind', 'what', 'instance', 'cycle', '', '']}>
  ${rows.map((timer) => html`<tr key=${`${timer.kind}/${timer.id ?? timer.instance}`}>
    <td class=${timer.overdue ? 'warn' : ''}><${Time} at=${timer.due_at} now=${now} /></td>
    <td><span class=${`kind c-${timer.kind}`}>${timer.kind}</span></td>
    <td>${timer.schedule ? html`<a href=${link(`schedules/${part(timer.schedule)}`)}>${timer.schedule}</a>` : html`${timer.machine}${timer.step && html` → ${timer.step}`}`}</td>
    <td>${timer.instance ? html`<${InstanceLink} id=${timer.instance} />` : html`<span class="faint">–</span>`}</td>
    <td class="cut">${timer.cycle ?? ''}</td>
    <td>${!timer.served && html`<span class="status is-paused">nobody registers it</span>`}</td>
    <td class="end">${mayAct && timer.may_cancel && html`<${CancelTimer} timer=${timer} onDone=${onDone} />`}</td>
  </tr>`)}
<//>`;

function CancelTimer({ timer, onDone }) {
  const [open, setOpen] = useState(false);
  const send = async () => {
    const answer = await post(`timers/${part(timer.id)}/cancel`);
    toast(answer.cancelled ? `Timer ${timer.id} is cancelled` : 'It was too late: it has ended');
    onDone();
  };
  return html`<button aria-label=${`Cancel timer ${timer.id}`} onClick=${() => setOpen(true)}>Cancel</button>
    ${open && html`<${FormDialog} title=${`Cancel timer ${timer.id}`} verb="Cancel it" danger onSubmit=${send} onClose=${() => setOpen(false)}>
      <p>Neither this occurrence of <b>${timer.machine}</b> happens nor any that would follow. What it stands beside waits on.</p>
    <//>`}`;
}
