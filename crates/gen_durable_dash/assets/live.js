// What goes on, as it goes on: one stream for the whole page, which comes back by itself when it breaks.

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
  // Times are the database's: how far they are from this machine's clock is taken off.
  const skew = data.at ? Date.parse(data.at) - Date.now() : state.skew;
  say({ data, connected: true, skew });
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource('api/v1/live');
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    say({ connected: false });
    // Some proxies do not let streams through: then one asks.
    if (source?.readyState === EventSource.CLOSED) {
      close();
      retry = setTimeout(async () => {
        try { receive(await get('overview')); } catch { /* the dot says it */ }
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

// Nobody sees a page that is hidden: it costs nothing then.
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

// Ask for something, and again every so often while the page is seen and `again` says so.
export function useAsked(path, { every = 0, again = () => true } = {}) {
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
