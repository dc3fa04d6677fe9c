// What was done, and by whom.

import { html } from '../vendor/preact-htm.js';
import { Empty, Loading, Panel, Table, Time, Trouble } from '../parts.js';
import { Further, usePages } from './projections.js';

export function Audit({ live }) {
  const pages = usePages('audit', {}, 'acts', 'before', 3000);
  const acts = pages.rows;
  if (!acts) return html`<h1>Acts</h1>${pages.error ? html`<${Trouble} error=${pages.error} />` : html`<${Loading} lines=${6} />`}`;
  return html`<h1>Acts</h1><p class="sub">What people did through dashboards and the command line, and tried to do. The newest 100,000 are kept, for 400 days at most.</p>
    <${Trouble} error=${pages.error} /><${Panel}>
    ${acts.length === 0 ? html`<${Empty} title="Nobody has done anything yet">Retries, signals, cancels, pauses show up here with who did them.<//>` : html`
    <${Table} label="Acts" head=${['when', 'who', 'from', 'act', 'on', 'outcome']}>
      ${acts.map((act) => html`<tr key=${act.id}><td><${Time} at=${act.at} now=${live.now} /></td><td>${act.by}</td><td title=${`through the ${act.via}`}>${act.from ?? html`<span class="faint">${act.via}</span>`}</td>
        <td>${act.act}</td><td class="cut" title=${act.on}>${act.on}</td>
        <td class=${`cut ${act.went_well === false ? 'error-text' : ''}`} title=${act.outcome ?? ''}>${act.outcome ?? html`<span class="warn">its end was not recorded: it may have been done or not</span>`}</td></tr>`)}
    <//>`}
    <${Further} pages=${pages} what="act" />
  <//>`;
}
