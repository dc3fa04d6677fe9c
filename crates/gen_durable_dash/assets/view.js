// Preact's functions, with an `html` that escapes characters that hide or reorder text. A name such
// as "abc<RLO>gpj.exe" would otherwise read "abcexe.jpg".

import { html as build } from './vendor/preact-htm.js';

export { render, useEffect, useLayoutEffect, useRef, useState } from './vendor/preact-htm.js';

// Control characters except line breaks and tabs, direction marks, and invisible characters.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\u{e0000}-\u{e007f}]/gu;
const SHOWN_ATTRIBUTES = ['title', 'aria-label', 'placeholder'];

export const plain = (text) => text.replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);

const seen = new WeakSet();

function escaped(child) {
  if (typeof child === 'string') return plain(child);
  if (Array.isArray(child)) return child.map(escaped);
  if (child && typeof child === 'object' && child.props && !seen.has(child)) {
    seen.add(child);
    const { props } = child;
    if (typeof child.type === 'string') for (const name of SHOWN_ATTRIBUTES) if (typeof props[name] === 'string') props[name] = plain(props[name]);
    if (props.children !== undefined && typeof props.children !== 'function') props.children = escaped(props.children);
  }
  return child;
}

export const html = (...parts) => escaped(build(...parts));
