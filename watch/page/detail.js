// @ts-check
/** What is known of one request, or of one iteration, in words. */

import { headers, reason } from "./feed.js";
import { CACHED, DURATION, FREE, GENERATED, KINDS, PADDING, TOKENS, USED, WAITING } from "./store.js";
import { KIND_NAMES, byId, element, seconds } from "./words.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Request} Request */

/** @param {Request} r @param {number} now */
export function requestWords(r, now) {
  const waited = (r.admitted ?? r.end ?? now) - r.arrival;
  const lines = [
    `request ${r.id}: prompt ${r.prompt} tokens, asked for ${r.max}`,
    r.admitted === null && r.end === null ? `waiting for ${seconds(waited)}` : `waited ${seconds(waited)}`,
  ];
  if (r.first !== null) lines.push(`first token after ${seconds(r.first - r.arrival)}`);
  if (r.end !== null) {
    const how = /** @type {Record<string, string>} */ ({ length: "done", stop: "done", cancelled: "client disconnected", failed: "failed" });
    lines.push(`${how[r.how ?? ""] ?? r.how} after ${seconds(r.end - r.arrival)}, ${r.generated} tokens`);
  } else if (r.admitted !== null) lines.push(`${r.generated} tokens so far`);
  if (r.preempted.length) lines.push(`preempted ${r.preempted.length} ×`);
  if (r.kind === "deferred") lines.push("deferred");
  if (r.priority) lines.push(`priority ${r.priority}`);
  return lines;
}

/** @param {Store} store @param {number} n */
export function iterationWords(store, n) {
  const at = (/** @type {number} */ column) => store.at(n, column);
  return [
    `iteration ${n}: ${seconds(at(DURATION))}`,
    `${at(TOKENS)} tokens computed, ${at(GENERATED)} generated` + (at(PADDING) ? `, ${at(PADDING)} positions of padding` : ""),
    `${at(WAITING)} waiting; KV blocks: ${at(USED)} in use, ${at(CACHED)} cached, ${at(FREE)} free`,
  ];
}

/** Of each of its iterations. @param {import("./store.js").Run} run */
function draftWords(run) {
  const iterations = run.last - run.first + 1, accepted = run.accepted / iterations, rejected = run.rejected / iterations;
  return accepted || rejected ? ` (${accepted} drafts accepted, ${rejected} rejected)` : "";
}

/** Below the picture: an iteration with all its rows. @param {Store} store @param {number} n */
export function showIteration(store, n) {
  const rows = store.slots.flatMap((runs) => runs?.filter((run) => run.first <= n && n <= run.last) ?? []);
  const list = element("ul", {}, ...rows.map((run) => {
    const each = Math.round(run.tokens / (run.last - run.first + 1));
    const words = `request ${run.request}: ${KIND_NAMES[run.kind]}${each ? `, ${each} token${each > 1 ? "s" : ""}` : ""}`;
    const item = element("li", {}, words + draftWords(run));
    item.style.borderLeftColor = `var(--${KINDS[run.kind]})`;
    return item;
  }));
  const [title, ...lines] = iterationWords(store, n);
  byId("detail").hidden = false;
  byId("detail").replaceChildren(element("h2", {}, title), element("p", {}, lines.join("; ")), list);
}

/** Below the picture: a request, and its text where the server allows it.
 * @param {Store} store @param {Request} r @param {string} key */
export async function showRequest(store, r, key) {
  const [title, ...lines] = requestWords(r, store.now);
  const box = byId("detail");
  box.hidden = false;
  const heading = element("h2", {}, title);
  box.replaceChildren(heading, element("p", {}, lines.join(", ")));
  if (!store.hello?.text) return;
  const response = await fetch(`/watch/text/${r.id}`, { headers: headers(key) });
  const told = response.ok ? await response.json() : null;
  const words = told ? [element("b", {}, told.prompt), told.answer] : [await reason(response)];
  if (heading.isConnected) box.append(element("pre", {}, ...words)); // nothing else was chosen since
}
