// The page of failed and stuck instances, grouped by error. An operator can retry or
// discard a group together.

import { html } from '../view.js';
import { Empty, InstanceLink, Loading, Panel, Status, Time } from '../parts.js';
import { link } from '../route.js';
import { atLeast, counted, plural } from '../text.js';
import { BulkButton } from './bulk.js';

const stepsOf = (data, name) => Object.keys((data.machines ?? []).find((machine) => machine.name === name)?.steps ?? {});

export function Failures({ live, mayAct }) {
  const { data, now } = live;
  if (!data?.at) return html`<h1>Failures</h1><${Loading} lines=${8} />`;
  const all = (data.totals.failed ?? 0) + (data.totals.stuck ?? 0);
  return html`<h1>Failures</h1>
    <p class="sub">${all ? `${counted(all)} failed or stuck, in ${plural(data.failures.length, 'group')}.${data.failures_capped ? ' The groups cover the newest 5,000 of each status, so their numbers are lower bounds.' : ''}` : 'Failed and stuck instances stay here until they are retried or deleted.'}</p>
    ${data.failures.length === 0 && html`<${Panel}><${Empty} title="No failures">Failed and stuck instances appear here with their errors, and can be retried.<//><//>`}
    <div class="groups">
    ${data.failures.map((group) => {
      const filter = { status: group.status, machine: group.machine, step: group.step, error_group: group.error_group };
      return html`<article class="group" key=${`${group.machine}/${group.step}/${group.status}/${group.error_group}`}>
        <div class="group-count"><b>${atLeast(group.count, data.failures_capped)}</b><${Status} status=${group.status} /></div>
        <div class="group-what">
          <h2 class="error-text">${group.example}</h2>
          <p><a href=${link(`machines/${encodeURIComponent(group.machine)}`)}>${group.machine}</a> · ${group.step} · last <${Time} at=${group.last_at} now=${now} /> · first <${Time} at=${group.first_at} now=${now} /> · newest <${InstanceLink} id=${group.newest_id} /></p>
        </div>
        <div class="row">
          <a class="button" href=${link('instances', filter)}>List</a>
          ${mayAct && html`<${BulkButton} kind="retry" filter=${filter} steps=${stepsOf(data, group.machine)} label="Retry all…" />`}
          ${mayAct && html`<${BulkButton} kind="discard" filter=${filter} label="Discard all…" />`}
        </div>
      </article>`;
    })}
    </div>`;
}
