// What was done through this dashboard, and by whom.

import { html } from '../vendor/preact-htm.js';
import { useAsked } from '../live.js';
import { Empty, Loading, Panel, Table, Time, Trouble } from '../parts.js';

export function Audit({ live }) {
  const { data, error } = useAsked('audit', { every: 3000 });
  if (!data) return html`<h1>Acts</h1>${error ? html`<${Trouble} error=${error} />` : html`<${Loading} lines=${6} />`}`;
  return html`<h1>Acts</h1><p class="sub">What was done through this process since it started. The log has them all.</p><${Panel}>
    ${data.acts.length === 0 ? html`<${Empty} title="Nobody has done anything yet">Retries, signals, cancels, pauses show up here with who did them.<//>` : html`
    <${Table} label="Acts" head=${['when', 'who', 'act', 'on', 'outcome']}>
      ${data.acts.map((act) => html`<tr><td><${Time} at=${act.at} now=${live.now} /></td><td>${act.by}</td><td>${act.act}</td><td class="cut">${act.on}</td><td class="cut">${act.outcome}</td></tr>`)}
    <//>`}
  <//>`;
}
