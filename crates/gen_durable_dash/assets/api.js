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

// A request without an answer after this time is given up. The server gives up a read earlier.
const READ_MS = 10000;
const ACT_MS = 15000;

const LATE_READ = 'The server did not answer in time.';
const LATE_ACT = 'The server did not answer in time: the action may or may not have taken effect, and may still do so. Check the audit log before you repeat it.';

async function request(path, options) {
  const isAct = options?.method === 'POST';
  let response;
  let text;
  try {
    response = await fetch(path, { credentials: 'same-origin', signal: AbortSignal.timeout(isAct ? ACT_MS : READ_MS), ...options });
    text = await response.text();
  } catch (error) {
    const isLate = error?.name === 'TimeoutError' || error?.name === 'AbortError';
    throw new Problem(0, { code: isLate ? 'late' : 'away', detail: isLate ? (isAct ? LATE_ACT : LATE_READ) : 'The server does not respond.' });
  }
  if (response.status === 401) {
    // The page of the sign-in has the same address, so the sign-in leads back to this page. An
    // action keeps its dialog, so that its input is not lost.
    if (!isAct) location.reload();
    throw new Problem(401, { code: 'signed_out', detail: 'Your session has ended.' });
  }
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
