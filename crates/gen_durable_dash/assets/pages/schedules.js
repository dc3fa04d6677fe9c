// The page of schedules: it shows next occurrences and recent runs, and pauses, resumes, runs or
// changes a schedule.

import { html, useState } from '../view.js';
import { part, post, query as toQuery } from '../api.js';
import { useFetch } from '../live.js';
import { ConfirmButton, Empty, Field, FormDialog, InstanceLink, Loading, Panel, Status, Time, ErrorNotice, toast } from '../parts.js';
import { link } from '../route.js';
import { entry, exact } from '../text.js';
import { inZone } from '../zone.js';

const EVERY = 2000;
const MISSED = { all: 'run every missed occurrence', latest: 'run only the latest missed occurrence', skip: 'skip missed occurrences' };

export function Schedules({ query, live, mayAct }) {
  const fetched = useFetch(`schedules${toQuery({ after: query.after })}`, { every: EVERY });
  const { data } = fetched;
  return html`<h1>Schedules</h1><${ErrorNotice} error=${fetched.error} />
    ${!data ? !fetched.error && html`<${Loading} lines=${8} />` : data.schedules.length === 0
      ? html`<${Panel}><${Empty} title="No schedules">An engine registers schedules with .schedule(name, cycle, make).<//><//>`
      : html`<div class="schedules">${data.schedules.map((one) => html`<${Card} key=${one.name} schedule=${one} now=${live.now} mayAct=${mayAct} onDone=${fetched.reload} />`)}</div>`}
    ${(data?.next || query.after) && html`<div class="more">${query.after && html`<a class="button" href=${link('schedules')}>First page</a>`}${data?.next && html`<a class="button" href=${link('schedules', { after: data.next })}>Next page</a>`}</div>`}`;
}

export function Schedule({ one, live, mayAct }) {
  const { data, error, reload } = useFetch(`schedules/${part(one)}`, { every: EVERY });
  return html`<p class="crumbs"><a href=${link('schedules')}>Schedules</a></p><h1>${one}</h1>
    ${data ? html`<${Card} schedule=${data} now=${live.now} mayAct=${mayAct} onDone=${reload} />`
      : error ? html`<${Empty} title=${error.status === 404 ? 'Schedule not found' : 'Schedule could not be read'}>${error.message}<//>` : html`<${Loading} lines=${6} />`}`;
}

// A time in the zone of the schedule, and in the zone of the page if that is another one.
function Due({ at, zone }) {
  const own = zone ? inZone(at, zone) : exact(at);
  return html`<span>${own}${own !== exact(at) && html` <small>(${exact(at)})</small>`}</span>`;
}

function Card({ schedule, now, mayAct, onDone }) {
  const [error, setError] = useState(null);
  const [changes, setChanges] = useState(false);
  const path = `schedules/${part(schedule.name)}`;
  const act = (verb, said) => async () => {
    await post(`${path}/${verb}`);
    setError(null);
    toast(`${schedule.name} ${said}`);
    onDone();
  };
  const resume = () => act('resume', 'resumed')().catch(setError);
  const isPaused = Boolean(schedule.paused_at);
  return html`<article class="schedule">
    <div class="head"><div class="row"><h2><a href=${link(path)}>${schedule.name}</a></h2>
        ${isPaused && html`<span class="status is-paused">paused${schedule.paused_by && ` by ${schedule.paused_by}`}</span>`}
        ${schedule.ended_at && html`<span class="status is-cancelled">ended</span>`}
        ${!schedule.served && html`<span class="status is-failed">no live worker registers it</span>`}</div>
      ${mayAct && html`<div class="row">
        <${ConfirmButton} label="Run now" describe=${`Run now: ${schedule.name}`} title=${`Run ${schedule.name} now`} verb="Run it" onConfirm=${act('run', 'will run now')}>
          <p>One instance is enqueued at once, in addition to the occurrences of the cycle${isPaused ? ', although the schedule is paused' : ''}.</p>
        <//>
        ${isPaused ? html`<button onClick=${resume} aria-label=${`Resume ${schedule.name}`}>Resume</button>`
          : html`<${ConfirmButton} label="Pause" describe=${`Pause ${schedule.name}`} title=${`Pause ${schedule.name}`} verb="Pause it" onConfirm=${act('pause', 'paused')}>
            <p>No occurrence runs until the schedule is resumed.${schedule.next_due_at[0] ? html` The next one would be ${exact(schedule.next_due_at[0])}.` : ''}</p>
          <//>`}
        <button onClick=${() => setChanges(true)} aria-label=${`Change cycle… of ${schedule.name}`}>Change cycle…</button>
      </div>`}
    </div>
    <p class="about-cycle"><code>${schedule.cycle}</code> · ${schedule.zone ?? 'cycle of a newer build'} · ${entry(MISSED, schedule.missed) ?? schedule.missed}
      ${schedule.set_at && html` · set ${schedule.set_by && `by ${schedule.set_by} `}<${Time} at=${schedule.set_at} now=${now} />, cycle in code: <code>${schedule.code_cycle}</code>`}
      ${schedule.served && html` · registered by ${schedule.registered_by.map((worker) => html`<span class="chip">${worker.host} ${worker.pid}</span> `)}`}</p>
    ${schedule.last_error && html`<p class="notice is-bad">The last occurrence could not be started: ${schedule.last_error}</p>`}
    <${ErrorNotice} error=${error} />
    <div class="two">
      <div><h3>Next</h3>${schedule.next_due_at.length === 0 ? html`<p class="faint">${isPaused ? 'None while the schedule is paused.' : 'No further occurrences.'}</p>`
        : html`<ol>${schedule.next_due_at.map((at) => html`<li><${Due} at=${at} zone=${schedule.zone} /> <small><${Time} at=${at} now=${now} /></small></li>`)}</ol>`}</div>
      <div><h3>Recent runs</h3>${schedule.runs.length === 0 ? html`<p class="faint">No runs yet.</p>`
        : html`<ol>${schedule.runs.map((run) => html`<li key=${run.due_at}><${Due} at=${run.due_at} zone=${schedule.zone} /> ${run.instance_id ? html`<${InstanceLink} id=${run.instance_id} />` : ''}
            ${run.status ? html`<${Status} status=${run.status} />` : html`<span class="faint">${run.instance_id ? 'deleted' : run.state}</span>`}
            ${run.manual && html`<small>manual</small>`}${run.missed > 0 && html`<small>${run.missed} missed before it</small>`}</li>`)}</ol>`}</div>
    </div>
    ${changes && html`<${ChangeCycle} schedule=${schedule} path=${path} onDone=${onDone} onClose=${() => setChanges(false)} />`}
  </article>`;
}

function ChangeCycle({ schedule, path, onDone, onClose }) {
  const send = async ({ cycle, missed }) => {
    const answer = await post(`${path}/set`, { cycle, missed });
    toast(`${schedule.name} cycle set to ${answer.cycle}`);
    onDone();
  };
  return html`<${FormDialog} title=${`Change the cycle of ${schedule.name}`} verb="Change it" onSubmit=${send} onClose=${onClose}>
    <${Field} label="Cycle" hint="An ISO 8601 cycle (R/2026-01-05T08:00:00[Europe/Madrid]/P1W), or a cron expression with its time zone in brackets (30 3 * * * [Europe/Madrid])."><input name="cycle" required defaultValue=${schedule.cycle} autocomplete="off" spellcheck="false" /><//>
    <${Field} label="Missed occurrences"><select name="missed">${Object.entries(MISSED).map(([name, text]) => html`<option value=${name} selected=${name === schedule.missed}>${text}</option>`)}</select><//>
    <p>The new cycle is in effect until the cycle in code changes.</p>
  <//>`;
}
