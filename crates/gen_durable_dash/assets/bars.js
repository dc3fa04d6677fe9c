// Draws a stacked bar chart as SVG: counts by kind in each part of a time range ahead.

import { html, useState } from './view.js';
import { number } from './text.js';

const WIDTH = 600;
const HEIGHT = 130;
const LEFT = 34;
const BOTTOM = 20;
const TOP = 10;
const GAP = 3;

// Returns the next round number that is not below the value.
function ceiling(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value);
}

export function Bars({ label, parts, seconds, kinds, cap }) {
  const [at, setAt] = useState(null);
  const sums = Array.from({ length: parts }, (_, part) => kinds.reduce((sum, kind) => sum + kind.counts[part], 0));
  const top = ceiling(Math.max(...sums));
  const width = (WIDTH - LEFT - 4) / parts;
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const minutes = (part) => Math.round((part * seconds) / parts / 60);
  const said = (count) => (count >= cap ? `${number(cap)}+` : number(count));
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const part = Math.floor(((event.clientX - box.left) / box.width * WIDTH - LEFT) / width);
    setAt(part >= 0 && part < parts ? part : null);
  };
  return html`<figure class="chart bars">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${label} onPointerMove=${move} onPointerLeave=${() => setAt(null)}>
      ${[0, top / 2, top].map((tick) => html`<g class="tick"><line x1=${LEFT} x2=${WIDTH - 4} y1=${y(tick)} y2=${y(tick)} /><text x=${LEFT - 6} y=${y(tick) + 3.5} text-anchor="end">${number(Math.round(tick))}</text></g>`)}
      ${sums.map((_, part) => {
        let below = 0;
        return kinds.map((kind) => {
          const from = below;
          below += kind.counts[part];
          // A count above zero is always visible: the bar is at least 1.5 units high.
          return kind.counts[part] > 0 && html`<rect class=${`bar c-${kind.kind} ${at === part ? 'is-picked' : ''}`} x=${LEFT + part * width + GAP} width=${width - 2 * GAP} y=${Math.min(y(below), y(from) - 1.5)} height=${Math.max(1.5, y(from) - y(below))} />`;
        });
      })}
      ${sums.map((_, part) => part % 2 === 0 && html`<text x=${LEFT + part * width} y=${HEIGHT - 5} text-anchor="middle">${part === 0 ? 'now' : `${minutes(part)} min`}</text>`)}
    </svg>
    <figcaption>
      ${kinds.map((kind) => html`<span class="key"><i class=${`c-${kind.kind}`}></i>${kind.name} <b>${at === null ? number(kind.counts.reduce((sum, count) => sum + count, 0)) : said(kind.counts[at])}</b></span>`)}
      <span class="key when">${at === null ? 'total' : `in ${minutes(at)} to ${minutes(at + 1)} min`}</span>
    </figcaption>
  </figure>`;
}
