// Asking the server. Every act carries a header that no other site's page can send.

// Numbers that a browser cannot hold are kept as they stand.
export class Exact {
  constructor(source) { this.source = source; }
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

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: 'same-origin', ...options });
  } catch {
    throw new Problem(0, { detail: 'the server does not answer' });
  }
  const text = await response.text();
  if (response.status === 401 && options?.method !== 'POST') location.reload();
  let body = null;
  try { body = text ? JSON.parse(text, exactly) : null; } catch { /* not JSON: the status says enough */ }
  if (!response.ok) throw new Problem(response.status, body);
  return body;
}

export const get = (path) => ask(`api/v1/${path}`);

export const post = (path, body = {}) =>
  ask(`api/v1/${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-durable': '1' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });

// A query of what is given, and nothing of what is not.
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return given.length ? `?${new URLSearchParams(given)}` : '';
}

export const part = encodeURIComponent;
