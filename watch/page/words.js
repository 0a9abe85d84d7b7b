// @ts-check
/** Figures and names as people read them. */

/** @param {number|null|undefined} s seconds */
export function seconds(s) {
  if (s === null || s === undefined || !Number.isFinite(s)) return "–";
  if (s >= 100) return `${s.toFixed(0)} s`;
  if (s >= 10) return `${s.toFixed(1)} s`;
  if (s >= 1) return `${s.toFixed(2)} s`;
  const ms = s * 1000;
  return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(ms >= 1 ? 1 : 2)} ms`;
}

/** @param {number|null|undefined} n */
export function count(n) {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  return n >= 10000 ? `${(n / 1000).toFixed(n >= 1e5 ? 0 : 1)} k` : n.toFixed(n > 0 && n < 10 && n % 1 ? 1 : 0);
}

export const MODE_NAMES = /** @type {Record<string, string>} */ ({
  nobatch: "one at a time",
  static: "a batch starts and ends together",
  dynamic: "requests join and leave at every iteration",
});

export const KIND_NAMES = ["prefill", "part of a prefill", "decode", "done, row still computed", "paused"];

/** @param {string} tag @param {Record<string, string>} attributes @param {...(Node|string)} children */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** The element with this id. @param {string} id @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element ${id}`);
  return found;
}
