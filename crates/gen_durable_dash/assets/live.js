// The live numbers: one event stream for the whole page. It reconnects by itself after an
// interruption.

import { useEffect, useRef, useState } from './view.js';
import { get, query as toQuery } from './api.js';

// Snapshots arrive about once a second. Without one for this time, the numbers are out of date.
export const STALE_MS = 6000;

const listeners = new Set();
// `received` is the time, by the clock of the browser, at which the last snapshot arrived.
let state = { data: null, connected: false, skew: 0, received: 0 };
let source = null;
let retry = null;

function say(change) {
  state = { ...state, ...change };
  listeners.forEach((listener) => listener(state));
}

function receive(data) {
  // Times come from the database. The difference between its clock and the browser's clock is
  // corrected.
  const skew = data.at ? Date.parse(data.at) - Date.now() : state.skew;
  say({ data, connected: true, skew, received: Date.now() });
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource('api/v1/live');
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    say({ connected: false });
    // Some proxies block event streams. The page then polls the overview instead.
    if (source?.readyState === EventSource.CLOSED) {
      close();
      retry = setTimeout(async () => {
        try { receive(await get('overview')); } catch { /* the status indicator shows it */ }
        open();
      }, 2000);
    }
  };
}

function close() {
  source?.close();
  source = null;
  clearTimeout(retry);
}

// A hidden page closes its stream and causes no load.
document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
open();

export function useLive() {
  const [seen, setSeen] = useState(state);
  useEffect(() => {
    setSeen(state);
    listeners.add(setSeen);
    return () => listeners.delete(setSeen);
  }, []);
  // Renders again every second, so that the age of the numbers is shown while nothing arrives.
  const [, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) setTick((tick) => tick + 1); }, 1000);
    return () => clearInterval(timer);
  }, []);
  const age = seen.received ? Date.now() - seen.received : 0;
  return { ...seen, age, isStale: age > STALE_MS, now: Date.now() + seen.skew };
}

// Fetches a path of the API, and fetches it again every `every` milliseconds while the page is
// visible and `again` returns true.
export function useFetch(path, { every = 0, again = () => true } = {}) {
  const [answer, setAnswer] = useState({ data: null, error: null, path: null, read: null });
  const latest = useRef(path);
  latest.current = path;
  const busy = useRef(false);
  const load = async () => {
    if (!path) return;
    busy.current = true;
    try {
      const data = await get(path);
      if (latest.current === path) setAnswer({ data, error: null, path, read: Date.now() });
    } catch (error) {
      if (latest.current === path) setAnswer((before) => ({ data: before.path === path ? before.data : null, read: before.path === path ? before.read : null, error, path }));
    } finally {
      busy.current = false;
    }
  };
  const state = useRef(null);
  state.current = answer;
  useEffect(() => {
    load();
    if (!every) return undefined;
    const timer = setInterval(() => { if (!document.hidden && !busy.current && again(state.current.data)) load(); }, every);
    return () => clearInterval(timer);
  }, [path, every]);
  const current = answer.path === path ? answer : { data: null, error: null, read: null };
  return { ...current, reload: load };
}

// Pages of a list. The first page is refreshed periodically. Once further pages are loaded, the list
// stays as it is. `rows` is null until the first answer: a list that could not be read is not empty.
export function useList(path, name, wanted, every) {
  const none = { rows: null, next: null, error: null, more: 0, read: null };
  const [pages, setPages] = useState(none);
  const search = toQuery(wanted);
  const latest = useRef(search);
  latest.current = search;
  const busy = useRef(false);
  const load = async (next) => {
    busy.current = true;
    try {
      const answer = await get(`${path}${toQuery({ ...wanted, ...next })}`);
      if (latest.current !== search) return;
      setPages((old) => ({ rows: next ? [...(old.rows ?? []), ...answer[name]] : answer[name], next: answer.next, nextAt: answer.next_at, error: null, more: next ? old.more + 1 : 0, read: Date.now() }));
    } catch (error) {
      if (latest.current === search) setPages((old) => ({ ...old, error }));
    } finally {
      busy.current = false;
    }
  };
  useEffect(() => { setPages(none); load(); }, [path, search]);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden && !busy.current && pages.more === 0) load(); }, every);
    return () => clearInterval(timer);
  }, [path, search, pages.more]);
  return { ...pages, reload: () => load(), further: (cursor) => load(cursor ?? pages.next) };
}
