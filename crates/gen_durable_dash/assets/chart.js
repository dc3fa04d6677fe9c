// Draws a line chart as SVG.

import { html, useState } from './view.js';
import { clock } from './text.js';

const WIDTH_USUAL = 600;
const HEIGHT = 150;
const LEFT = 44;
const BOTTOM = 18;
const TOP = 8;

// Returns the next round number that is not below the value.
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function path(values, x, y) {
  let pen = 'M';
  let text = '';
  values.forEach((value, at) => {
    if (value === null || value === undefined) { pen = 'M'; return; }
    text += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = 'L';
  });
  return text;
}

// Points with a value between points without one: a line does not show them.
const alone = (values) => values.flatMap((value, at) => ((value ?? null) !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null ? [at] : []));

// Fills points without a value (no instance finished then) with the last value before them, so that
// the line has no gaps.
const bridged = (values) => {
  let last = null;
  return values.map((value) => { if (value !== null) last = value; return last; });
};

// The times below a chart of minutes: each minute, but for the edges.
const minutesOf = (second, index, count, step) => (second % 60 < step && index > 10 && index < count - 10 ? clock(second * 1000).slice(0, 5) : null);

// `format` renders a value, and `tick` a value of the axis. `stamp` returns the text below the point
// of a time, if it has one, and `when` the text for the point below the pointer.
export function Chart({ label, from, step, lines, width: WIDTH = WIDTH_USUAL, format, tick = format, smooth = 1, bridge = false, unit = '', stamp, when = (second) => clock(second * 1000).slice(0, 8) }) {
  const [at, setAt] = useState(null);
  const averaged = lines.map((line) => {
    const values = bridge ? bridged(line.values) : line.values;
    const shown = smooth < 2 ? values : values.map((_, end) => {
      const some = values.slice(Math.max(0, end - smooth + 1), end + 1).filter((value) => value !== null);
      return some.length ? some.reduce((sum, value) => sum + value, 0) / some.length : null;
    });
    return { ...line, shown };
  });
  const count = averaged[0]?.shown.length ?? 0;
  const top = ceiling(Math.max(0, ...averaged.flatMap((line) => line.shown.map((value) => value ?? 0))));
  const x = (index) => LEFT + (index / Math.max(1, count - 1)) * (WIDTH - LEFT - 4);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const isEmpty = averaged.every((line) => line.shown.every((value) => !value));
  const ticks = isEmpty ? [0] : [0, top / 2, top];
  const stamps = [];
  for (let index = 0; index < count; index += 1) {
    const second = from + index * step;
    const text = stamp ? index > 0 && index < count - 1 && stamp(second) : minutesOf(second, index, count, step);
    if (text) stamps.push([index, text]);
  }
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - 4);
    setAt(share >= 0 && share <= 1 ? Math.round(share * (count - 1)) : null);
  };
  const pick = at !== null && at < count ? at : null;
  return html`<figure class="chart">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${label} onPointerMove=${move} onPointerLeave=${() => setAt(null)}>
      ${ticks.map((value) => html`<g class="tick"><line x1=${LEFT} x2=${WIDTH - 4} y1=${y(value)} y2=${y(value)} /><text x=${LEFT - 6} y=${y(value) + 3.5} text-anchor="end">${tick(value)}</text></g>`)}
      ${stamps.map(([index, text]) => html`<text class="minute" x=${x(index)} y=${HEIGHT - 4} text-anchor="middle">${text}</text>`)}
      ${averaged.map((line) => html`
        ${line.area && html`<path class=${`area ${line.tone}`} d=${`${path(line.shown, x, y)}L${x(count - 1)} ${y(0)}L${x(0)} ${y(0)}Z`} />`}
        <path class=${`line ${line.tone}`} d=${path(line.shown, x, y)} />
        ${alone(line.shown).map((index) => html`<circle class=${`lone ${line.tone}`} cx=${x(index)} cy=${y(line.shown[index])} r="2.5" />`)}`)}
      ${pick !== null && html`<line class="cursor" x1=${x(pick)} x2=${x(pick)} y1=${TOP} y2=${HEIGHT - BOTTOM} />`}
    </svg>
    <figcaption>
      ${averaged.map((line) => {
        const value = line.shown[pick ?? count - 1];
        return html`<span class="key"><i class=${line.tone}></i>${line.name} <b>${value === null || value === undefined ? '–' : format(value)}${unit}</b></span>`;
      })}
      <span class="key when">${pick === null ? 'now' : when(from + pick * step)}</span>
    </figcaption>
  </figure>`;
}
