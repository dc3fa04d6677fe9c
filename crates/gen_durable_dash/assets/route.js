// The route: the part of the URL after the #, so that the dashboard works under any prefix.

import { useEffect, useState } from './view.js';
import { query } from './api.js';

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function parse(hash) {
  const [path, search = ''] = hash.replace(/^#/, '').split('?');
  const parts = path.split('/').filter(Boolean).map(decoded);
  return { parts, query: Object.fromEntries(new URLSearchParams(search)) };
}

export const link = (path, values = {}) => `#/${path}${query(values)}`;

export function go(path, values = {}) {
  location.hash = link(path, values);
}

// Changes the query of the current page without a new entry in the browser history.
export function refine(path, values) {
  history.replaceState(null, '', link(path, values));
  dispatchEvent(new HashChangeEvent('hashchange'));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const change = () => setRoute(parse(location.hash));
    addEventListener('hashchange', change);
    return () => removeEventListener('hashchange', change);
  }, []);
  return route;
}
