// A machine drawn as a graph: its steps in layers from left to right, and the transitions that the
// recorded history contains.

import { html } from './view.js';
import { LIVE, atLeast, entry, number, span, statusName } from './text.js';
import { link } from './route.js';

const BOX = { w: 150, h: 62 };
const GAP = { x: 56, y: 30 };
const ENDS = { done: 'done', fail: 'failed', cancel: 'cancelled' };
// The graph shows the outcomes failed and cancelled below the steps, so that edges to them cross no
// step.
const BELOW = ['→failed', '→cancelled'];

// Groups the transitions into edges. A transition from a step to itself is not an edge: it is shown
// as a mark on the step.
function edgesOf(machine) {
  const edges = new Map();
  const loops = new Map();
  for (const edge of machine.edges) {
    const end = entry(ENDS, edge.outcome) ?? null;
    const to = end ? `→${end}` : edge.to;
    if (!end && edge.from === edge.to) {
      const loop = loops.get(edge.from) ?? { retries: 0, other: 0 };
      if (edge.outcome === 'failure' || edge.outcome === 'retry') loop.retries += edge.count; else loop.other += edge.count;
      loops.set(edge.from, loop);
      continue;
    }
    const key = JSON.stringify([edge.from, to]);
    const arc = edges.get(key) ?? { from: edge.from, to, count: 0, outcomes: new Set(), took: 0 };
    arc.count += edge.count;
    arc.outcomes.add(edge.outcome);
    edges.set(key, arc);
  }
  return { edges: [...edges.values()], loops };
}

// Computes the layer of each step: the length of the longest path to it without back edges. Edges
// are processed by descending count, so that of the edges in a cycle the rarest becomes the back
// edge.
function layersOf(steps, edges) {
  const before = new Map(steps.map((step) => [step, new Set()]));
  const reaches = (from, to, seen = new Set()) => {
    if (from === to) return true;
    if (seen.has(from)) return false;
    seen.add(from);
    return steps.some((step) => before.get(step)?.has(from) && reaches(step, to, seen));
  };
  const back = new Set();
  for (const arc of [...edges].sort((a, b) => b.count - a.count)) {
    if (reaches(arc.to, arc.from)) back.add(arc);
    else before.get(arc.to)?.add(arc.from);
  }
  const depth = new Map();
  const depthOf = (step) => {
    if (!depth.has(step)) {
      depth.set(step, 0);
      const above = [...before.get(step)].map(depthOf);
      depth.set(step, above.length ? Math.max(...above) + 1 : 0);
    }
    return depth.get(step);
  };
  steps.forEach(depthOf);
  return { depth, back };
}

export function layout(machine) {
  const { edges, loops } = edgesOf(machine);
  const ends = [...new Set(edges.map((arc) => arc.to).filter((to) => to.startsWith('→')))];
  const steps = [...Object.keys(machine.steps), ...ends.filter((end) => !BELOW.includes(end))];
  const { depth, back } = layersOf(steps, edges.filter((arc) => !BELOW.includes(arc.to)));
  const layers = [];
  steps.forEach((step) => (layers[depth.get(step)] ??= []).push(step));
  const positions = new Map();
  const filled = layers.filter(Boolean);
  // Sort each layer by the average row of the predecessors of its steps.
  filled.forEach((layer, index) => {
    const weight = (step) => {
      const from = edges.filter((arc) => arc.to === step && positions.has(arc.from)).map((arc) => positions.get(arc.from).row);
      return from.length ? from.reduce((sum, row) => sum + row, 0) / from.length : 0;
    };
    layer.sort((a, b) => weight(a) - weight(b) || a.localeCompare(b));
    layer.forEach((step, row) => positions.set(step, { layer: index, row, rows: layer.length }));
  });
  const tallest = Math.max(1, ...filled.map((layer) => layer.length));
  const height = tallest * BOX.h + (tallest - 1) * GAP.y;
  for (const spot of positions.values()) {
    const own = spot.rows * BOX.h + (spot.rows - 1) * GAP.y;
    spot.x = 12 + spot.layer * (BOX.w + GAP.x);
    spot.y = 34 + (height - own) / 2 + spot.row * (BOX.h + GAP.y);
  }
  const width = 24 + filled.length * BOX.w + Math.max(0, filled.length - 1) * GAP.x;
  const below = BELOW.filter((end) => ends.includes(end));
  below.forEach((end, row) => positions.set(end, { x: width - BOX.w - 12, y: 34 + height + 24 + row * 46 - BOX.h / 2, layer: filled.length }));
  return { positions, edges, loops, back, width, height: height + 62 + below.length * 46 };
}

// Returns the steps of a machine in layout order.
export function stepsInOrder(machine) {
  const { positions } = layout(machine);
  const at = (step) => { const spot = positions.get(step); return spot ? spot.layer * 1000 + (spot.row ?? 0) : 0; };
  return Object.keys(machine.steps).sort((a, b) => at(a) - at(b));
}

function curve(from, to, isBack, isBelow) {
  if (isBelow) {
    const [x, y, rail] = [from.x + BOX.w / 2, from.y + BOX.h, to.y + BOX.h / 2];
    return { d: `M${x} ${y}C${x} ${rail} ${x + 20} ${rail} ${x + 60} ${rail}L${to.x - 4} ${rail}`, mid: [x + 12, y + 21], side: 'start' };
  }
  const [x1, y1] = [from.x + BOX.w, from.y + BOX.h / 2];
  const [x2, y2] = [to.x, to.y + BOX.h / 2];
  if (!isBack && x2 > x1) {
    const bend = Math.max(26, (x2 - x1) / 2);
    // An edge that skips layers curves around the steps of these layers.
    const lift = to.layer - from.layer > 1 && Math.abs(y1 - y2) < 4 ? -BOX.h - 6 : 0;
    const mid = [(x1 + x2) / 2, (y1 + y2) / 2 + lift * 0.75];
    return { d: `M${x1} ${y1}C${x1 + bend} ${y1 + lift} ${x2 - bend} ${y2 + lift} ${x2} ${y2}`, mid };
  }
  const top = Math.min(from.y, to.y) - 24;
  const [a, b] = [from.x + BOX.w / 2, to.x + BOX.w / 2];
  return { d: `M${a} ${from.y}C${a} ${top} ${b} ${top} ${b} ${to.y}`, mid: [(a + b) / 2, top + 6] };
}

const BAD = ['failed', 'stuck', 'cancelled'];

function Node({ machine, step, spot, counts, loop, capped, sampled }) {
  const live = LIVE.reduce((sum, status) => sum + (counts[status] ?? 0), 0);
  const bad = (counts.failed ?? 0) + (counts.stuck ?? 0);
  const bar = LIVE.filter((status) => counts[status]);
  const isCapped = (statuses) => statuses.some((status) => counts[status] && capped.includes(status));
  const [liveText, badText] = [atLeast(live, isCapped(LIVE)), atLeast(bad, isCapped(['failed', 'stuck']))];
  const what = live ? (counts.executing ? `${atLeast(counts.executing, isCapped(['executing']))} running` : 'waiting') : 'idle';
  // The description is left out if it would overlap the number of failures.
  const fits = liveText.length * 9.5 + what.length * 6 + (bad ? badText.length + 8 : 0) * 6.5 < BOX.w - 36;
  let at = 0;
  const said = [...LIVE, ...BAD].filter((status) => counts[status]).map((status) => `${counts[status]} ${statusName(status)}`);
  return html`<a href=${link('instances', { machine, step })}>
    <title>${step}: ${said.join(', ') || 'no instances'}</title>
    <g class=${`node ${live ? 'is-live' : ''} ${bad ? 'is-bad' : ''}`} transform=${`translate(${spot.x} ${spot.y})`}>
      <rect class="box" width=${BOX.w} height=${BOX.h} rx="10" />
      <text class="name" x="12" y="22">${step.length > 17 ? `${step.slice(0, 16)}…` : step}</text>
      <text class="count" x="12" y="43">${liveText}</text>
      ${fits && html`<text class="what" x=${20 + liveText.length * 9.5} y="43">${what}</text>`}
      ${bad > 0 && html`<text class="bad" x=${BOX.w - 12} y="43" text-anchor="end">${badText} failed</text>`}
      ${loop?.retries > 0 && html`<text class="loop" x=${BOX.w - 12} y="22" text-anchor="end">↻${sampled ? '' : ` ${number(loop.retries)}`}</text>`}
      ${bar.map((status) => {
        const width = (counts[status] / live) * (BOX.w - 24);
        const x = 12 + at;
        at += width;
        return html`<rect class=${`bar is-${status}`} x=${x} y=${BOX.h - 10} width=${Math.max(2, width)} height="4" rx="2" />`;
      })}
    </g>
  </a>`;
}

const End = ({ name, spot, count }) => html`<g class=${`end is-${name}`} transform=${`translate(${spot.x} ${spot.y + BOX.h / 2})`}>
  <circle r="9" cx="10" /><text x="27" y="4.5">${name}</text><text class="what" x="27" y="20">${count}</text>
</g>`;

// If the transitions are a sample, edges show the share of each transition among those that leave
// its step: a count of the sample would contradict the counts of instances.
export function Graph({ machine, capped = [], sampled = false }) {
  const { positions, edges, loops, back, width, height } = layout(machine);
  const most = Math.max(1, ...edges.map((arc) => arc.count));
  const into = (step) => edges.filter((arc) => arc.to === step).reduce((sum, arc) => sum + arc.count, 0);
  const outOf = (step) => edges.filter((arc) => arc.from === step).reduce((sum, arc) => sum + arc.count, 0);
  const label = (arc) => (sampled ? `${Math.round((100 * arc.count) / outOf(arc.from))} %` : number(arc.count));
  const curveOf = (arc) => curve(positions.get(arc.from), positions.get(arc.to), back.has(arc), BELOW.includes(arc.to));
  const standing = (status) => atLeast(Object.values(machine.steps).reduce((sum, counts) => sum + (counts[status] ?? 0), 0), capped.includes(status));
  const endCount = (status) => (status !== 'done' ? standing(status) : sampled ? '' : number(into('→done')));
  return html`<div class="graph" tabindex="0" role="region" aria-label=${`The steps of ${machine.name}`}>
    <svg viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} role="group" aria-label=${`Machine ${machine.name}`}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0L8 4L0 8Z" /></marker></defs>
      ${edges.map((arc) => {
        const { d } = curveOf(arc);
        return html`<g class=${`way ${arc.to === '→failed' ? 'is-bad' : ''}`}><path d=${d} marker-end="url(#tip)" stroke-width=${1.2 + 2.4 * (arc.count / most)} /></g>`;
      })}
      ${[...positions].map(([step, spot]) => (step.startsWith('→')
        ? html`<${End} name=${step.slice(1)} spot=${spot} count=${endCount(step.slice(1))} />`
        : html`<${Node} machine=${machine.name} step=${step} spot=${spot} capped=${capped} counts=${machine.steps[step] ?? {}} loop=${loops.get(step)} sampled=${sampled} />`))}
      ${edges.map((arc) => {
        // Labels are above the boxes: a long one would otherwise be hidden.
        const { mid, side } = curveOf(arc);
        const outcomes = [...arc.outcomes].filter((outcome) => !['next', 'done', 'fail'].includes(outcome)).join(', ');
        return html`<g class="way label"><text x=${mid[0]} y=${mid[1] - 6} text-anchor=${side ?? 'middle'}>${label(arc)}${outcomes && ` · ${outcomes}`}</text></g>`;
      })}
    </svg>
  </div>`;
}

// Returns the average duration of each step, over the recorded transitions that were read.
export function stepTimes(machine) {
  const sums = new Map();
  for (const edge of machine.edges) {
    if (edge.took_seconds === null) continue;
    const sum = sums.get(edge.from) ?? { ms: 0, count: 0 };
    sum.ms += 1000 * edge.took_seconds * edge.count;
    sum.count += edge.count;
    sums.set(edge.from, sum);
  }
  return new Map([...sums].map(([step, { ms, count }]) => [step, { average: span(ms / count), count }]));
}
