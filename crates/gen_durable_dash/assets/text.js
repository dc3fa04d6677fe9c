// Formatting of numbers, times and names. The results are rendered as text, never as markup.

import { inZone, zone } from './zone.js';

const whole = new Intl.NumberFormat('en');

export const number = (value) => (value === null || value === undefined ? '–' : whole.format(value));

// Formats a count that stops at 10,001.
export const counted = (value) => (value > 10000 ? '10,000+' : number(value));

// Formats a part of a count that has stopped: the part is a lower bound.
export const atLeast = (value, isCapped) => (isCapped && value > 0 ? `${number(Math.min(value, 10000))}+` : counted(value));

// Returns the entry of a table, and never a property that every object has, such as `constructor`.
export const entry = (table, key) => (Object.hasOwn(table, key) ? table[key] : undefined);

export function rate(value) {
  if (value === 0) return '0';
  if (value >= 100) return number(Math.round(value));
  return value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

export function bytes(value) {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

// Formats a duration in milliseconds.
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return '–';
  const s = ms / 1000;
  if (ms === 0) return '0 s';
  if (ms < 1) return '<1 ms';
  if (s < 1) return `${Math.round(ms)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

// Formats a time relative to now: "3 s ago", "in 2 min".
export function relative(time, now) {
  if (!time) return '–';
  const ms = now - Date.parse(time);
  if (Math.abs(ms) < 1000) return 'now';
  return ms > 0 ? `${span(ms)} ago` : `in ${span(-ms)}`;
}

export const since = (time, now) => (time ? span(Math.max(0, now - Date.parse(time))) : '–');

export function clock(time) {
  if (!time) return '–';
  const milliseconds = String(new Date(time).getMilliseconds()).padStart(3, '0');
  return `${inZone(time, zone()).slice(11, 19)}.${milliseconds}`;
}

export const exact = (time) => (time ? inZone(time, zone()) : '');

// The statuses of instances that wait, each with what they wait for.
export const WAITS = [['awaiting_signal', 'for a signal'], ['awaiting_children', 'for children'], ['awaiting_limit', 'for a limit'], ['queued', 'in lanes']];
export const WAITING = WAITS.map(([status]) => status);

// The statuses of instances that run, or will run without an operator.
export const LIVE = ['executing', 'runnable', ...WAITING];

const STATUS_NAMES = { awaiting_limit: 'waiting for a limit' };

export const statusName = (status) => entry(STATUS_NAMES, status) ?? status.replaceAll('_', ' ');

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
