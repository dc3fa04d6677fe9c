// Requests to the API. Every action carries a header that pages of other sites cannot send.

// A number that JavaScript writes with other digits, kept as its source text. Arithmetic uses its
// nearest JavaScript number.
export class Exact {
  constructor(source) { this.source = source; }
  valueOf() { return Number(this.source); }
}

function exactly(_key, value, context) {
  const source = context?.source;
  if (typeof value === 'number' && source && !Number.isSafeInteger(value) && String(value) !== source) return new Exact(source);
  return value;
}

export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail ?? `the server answered ${status}`);
    this.status = status;
    this.body = body;
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: 'same-origin', ...options });
  } catch {
    throw new Problem(0, { detail: 'the server does not respond' });
  }
  const text = await response.text();
  if (response.status === 401 && options?.method !== 'POST') location.reload();
  let body = null;
  try { body = text ? JSON.parse(text, exactly) : null; } catch { /* not JSON: the status says enough */ }
  if (!response.ok) throw new Problem(response.status, body);
  return body;
}

export const get = (path) => request(`api/v1/${path}`);

export const post = (path, body = {}) =>
  request(`api/v1/${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-durable': '1' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });

// Builds a query string from the values that are set.
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return given.length ? `?${new URLSearchParams(given)}` : '';
}

export const part = encodeURIComponent;
