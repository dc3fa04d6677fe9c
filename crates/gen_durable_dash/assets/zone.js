// How the pages show times: relative to now, or exactly in the zone of the browser or in UTC. The
// browser keeps the choice.

import { useEffect, useState } from './view.js';

export const TIMES = ['relative', 'local', 'UTC'];
const listeners = new Set();
let times = kept();

function kept() {
  try { return TIMES.find((name) => name === localStorage.getItem('durable-times')) ?? 'relative'; } catch { return 'relative'; }
}

export function setTimes(name) {
  times = name;
  try { localStorage.setItem('durable-times', name); } catch { /* storage is disabled in this browser */ }
  listeners.forEach((listener) => listener(name));
}

export function useTimes() {
  const [name, setName] = useState(times);
  useEffect(() => {
    listeners.add(setName);
    return () => listeners.delete(setName);
  }, []);
  return name;
}

export const isRelative = () => times === 'relative';
// The zone in which times are shown; undefined is the zone of the browser.
export const zone = () => (times === 'UTC' ? 'UTC' : undefined);

const OPTIONS = { year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23', timeZoneName: 'short' };
const formats = new Map();

// A format of a zone. A zone that the browser does not know is shown as its own.
function formatOf(timeZone) {
  if (!formats.has(timeZone)) {
    let format;
    try { format = new Intl.DateTimeFormat('en', { ...OPTIONS, timeZone }); } catch { format = new Intl.DateTimeFormat('en', OPTIONS); }
    if (formats.size > 100) formats.clear();
    formats.set(timeZone, format);
  }
  return formats.get(timeZone);
}

// Formats a time in a zone: "2026-12-01 05:00:00 GMT+1".
export function inZone(time, timeZone) {
  const parts = Object.fromEntries(formatOf(timeZone).formatToParts(new Date(time)).map(({ type, value }) => [type, value]));
  return `${parts.year}-${parts.month}-${parts.day} ${parts.hour}:${parts.minute}:${parts.second} ${parts.timeZoneName}`;
}
