// The page of the audit log: it lists the actions of operators with user, source and outcome.

import { html } from '../view.js';
import { Empty, Loading, Panel, Table, Time, ErrorNotice } from '../parts.js';
import { LoadMore, usePages } from './projections.js';

export function Audit({ live }) {
  const pages = usePages('audit', {}, 'acts', 'before', 3000);
  const acts = pages.rows;
  if (!acts) return html`<h1>Audit log</h1>${pages.error ? html`<${ErrorNotice} error=${pages.error} />` : html`<${Loading} lines=${6} />`}`;
  return html`<h1>Audit log</h1><p class="sub">Actions of operators through dashboards and the command line, including rejected ones. The newest 100,000 records are kept, for at most 400 days.</p>
    <${ErrorNotice} error=${pages.error} /><${Panel}>
    ${acts.length === 0 ? html`<${Empty} title="No actions yet">Retries, signals, cancellations and pauses appear here with the user that requested them.<//>` : html`
    <${Table} label="Audit log" head=${['time', 'user', 'source', 'action', 'subject', 'outcome']}>
      ${acts.map((act) => html`<tr key=${act.id}><td><${Time} at=${act.at} now=${live.now} /></td><td>${act.actor}</td><td title=${`through the ${act.channel}`}>${act.source ?? html`<span class="faint">${act.channel}</span>`}</td>
        <td>${act.action}</td><td class="cut" title=${act.subject}>${act.subject}</td>
        <td class=${`cut ${act.succeeded === false ? 'error-text' : ''}`} title=${act.outcome ?? ''}>${act.outcome ?? html`<span class="warn">outcome not recorded: the action may or may not have taken effect</span>`}</td></tr>`)}
    <//>`}
    <${LoadMore} pages=${pages} what="action" />
  <//>`;
}
