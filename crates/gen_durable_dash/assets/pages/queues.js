// The page of queues: it shows the backlog of each queue, and pauses and resumes queues.

import { html, useState } from '../view.js';
import { post, part } from '../api.js';
import { ConfirmButton, Empty, Loading, Panel, Table, Time, ErrorNotice, toast } from '../parts.js';
import { link } from '../route.js';
import { counted, number, since } from '../text.js';

export function Queues({ live, mayAct }) {
  const { data, now } = live;
  const [error, setError] = useState(null);
  const [pending, setPending] = useState(new Map());
  if (!data?.at) return html`<h1>Queues</h1><${Loading} lines=${6} />`;
  const setPaused = async (queue, act) => {
    await post(`queues/${part(queue.name)}/${act}`);
    setPending((before) => new Map(before).set(queue.name, { paused: act === 'pause', until: Date.now() + 3000 }));
    toast(act === 'pause' ? `${queue.name} paused: running steps continue` : `${queue.name} resumed`);
    setError(null);
  };
  const resume = (queue) => setPaused(queue, 'resume').catch(setError);
  return html`<h1>Queues</h1><${ErrorNotice} error=${error} /><${Panel}>
    ${data.queues.length === 0 ? html`<${Empty} title="No queues yet">A queue appears when a worker serves it or an instance waits in it.<//>` : html`
    <${Table} label="Queues" head=${['queue', '#due', 'oldest', '#later', 'next', '#running', '#workers', '']}>
      ${data.queues.map((queue) => {
        const recent = pending.get(queue.name);
        const paused = recent?.until > Date.now() ? recent.paused : queue.paused;
        return html`<tr key=${queue.name}>
          <td><a href=${link('instances', { queue: queue.name })}>${queue.name}</a> ${paused && html`<span class="status is-paused" title=${queue.paused_by ? `by ${queue.paused_by}` : ''}>paused</span>`}</td>
          <td class="num">${counted(queue.due)}</td><td>${queue.oldest_due_at ? since(queue.oldest_due_at, now) : html`<span class="faint">–</span>`}</td>
          <td class="num">${counted(queue.scheduled)}</td><td>${queue.next_due_at ? html`<${Time} at=${queue.next_due_at} now=${now} />` : html`<span class="faint">–</span>`}</td>
          <td class="num">${counted(queue.executing)}</td><td class=${`num ${queue.workers ? '' : 'warn'}`}>${number(queue.workers)}</td>
          <td class="end">${mayAct && (paused
            ? html`<button onClick=${() => resume(queue)} aria-label=${`Resume ${queue.name}`}>Resume</button>`
            : html`<${ConfirmButton} label="Pause" describe=${`Pause ${queue.name}`} title=${`Pause ${queue.name}`} verb="Pause it" onConfirm=${() => setPaused(queue, 'pause')}>
                <p>No worker claims instances of this queue until it is resumed. Running steps continue. ${counted(queue.due)} are due now.</p>
              <//>`)}</td>
        </tr>`;
      })}
    <//>`}
  <//>`;
}
