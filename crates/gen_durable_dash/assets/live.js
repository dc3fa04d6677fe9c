// The live numbers: one event stream for the whole page. It reconnects by itself after an
// interruption.

import { useEffect, useRef, useState } from './vendor/preact-htm.js';
import { get } from './api.js';

const listeners = new Set();
let state = { data: null, connected: false, skew: 0 };
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
  say({ data, connected: true, skew });
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
  return { ...seen, now: Date.now() + seen.skew };
}

// Fetches a path of the API, and fetches it again every `every` milliseconds while the page is
// visible and `again` returns true.
export function useFetch(path, { every = 0, again = () => true } = {}) {
  const [answer, setAnswer] = useState({ data: null, error: null, path: null });
  const latest = useRef(path);
  latest.current = path;
  const load = async () => {
    if (!path) return;
    try {
      const data = await get(path);
      if (latest.current === path) setAnswer({ data, error: null, path });
    } catch (error) {
      if (latest.current === path) setAnswer((before) => ({ data: before.path === path ? before.data : null, error, path }));
    }
  };
  const state = useRef(null);
  state.current = answer;
  useEffect(() => {
    load();
    if (!every) return undefined;
    const timer = setInterval(() => { if (!document.hidden && again(state.current.data)) load(); }, every);
    return () => clearInterval(timer);
  }, [path, every]);
  const current = answer.path === path ? answer : { data: null, error: null };
  return { ...current, reload: load };
}
