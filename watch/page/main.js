// @ts-check
/** Wires the page: the feed into the store, the store onto the canvas, buttons and keys to the view. */

import { setTheme } from "./colours.js";
import { iterationWords, requestWords, showIteration, showRequest } from "./detail.js";
import { follow, headers, reason } from "./feed.js";
import { Modes } from "./modes.js";
import { Room } from "./play.js";
import { Servers } from "./servers.js";
import { DURATION, START, Store } from "./store.js";
import { Tracks } from "./tracks.js";
import { View, keys, listen } from "./view.js";
import { byId, count, element, seconds } from "./words.js";

const LEGEND = /** @type {Record<string, string>} */ ({
  waiting: "waiting", prefill: "prefill: the prompt is read", chunk: "a part of a prefill", decode: "decode: one token per iteration",
  held: "done, but its row is still computed", paused: "paused", preempted: "preempted: lost its slot",
  accepted: "accepted drafts: further tokens of the iteration", rejected: "rejected drafts",
  vacant: "nobody has the slot" });

const key = () => byId("key").value;
byId("key").value = sessionStorage.getItem("key") ?? "";
const servers = new Servers(new URLSearchParams(location.search).get("with") ?? "", key);

const store = new Store();
let dirty = true;
const view = new View(store, () => (dirty = true));
const tracks = new Tracks(byId("canvas"), store, view);
const modes = new Modes(servers);
const room = new Room(key, () => view.live(), () => store.hello?.chat_template ?? false);
Object.assign(window, { watch: { store, view, tracks, modes, room } }); // for the console, and for tests

// --- theme, tabs, legends ---------------------------------------------------------------------

let theme = /** @type {"auto"|"light"|"dark"} */ (localStorage.getItem("theme") ?? "auto");
setTheme(theme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint());
byId("theme").addEventListener("click", () => {
  theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", theme);
  repaint();
});
function repaint() {
  setTheme(theme);
  dirty = true;
  modes.draw();
}

const TABS = ["modes", "live"];
function showTab(/** @type {string} */ name) {
  for (const tab of TABS) {
    byId(tab).hidden = tab !== name;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(tab === name));
  }
  history.replaceState(null, "", `#${name}`);
  repaint();
}
for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
byId("modes-try").addEventListener("click", () => (showTab("live"), byId("twenty").click()));

for (const legend of document.querySelectorAll(".legend")) {
  for (const kind of /** @type {HTMLElement} */ (legend).dataset.kinds?.split(" ") ?? []) {
    const sign = element("i", { class: kind }, kind === "preempted" ? "✕" : "");
    legend.append(element("span", { "data-kind": kind }, sign, LEGEND[kind]));
  }
}

// --- the server's records ---------------------------------------------------------------------

let end = () => {};
function connect() {
  end();
  end = follow("", key, {
    hello(hello) {
      store.greet(hello);
      view.offset = null;
      byId("what").textContent = `${hello.mode}${hello.mode === "dynamic" ? ` (${hello.policy})` : ""}, model ${hello.model}, `
        + `up to ${hello.slots} ${hello.slots === 1 ? "row" : "rows"} an iteration`;
      byId("live").setAttribute("aria-busy", "false");
    },
    frame(frame) {
      store.take(frame);
      if (tracks.padded !== (tracks.padded ||= frame.iterations.some((/** @type {number[]} */ row) => row[4] > 0))) dirty = true;
      view.sync();
      if (frame.stats) figures(frame.stats);
    },
    state(text, ok) {
      byId("state").textContent = text;
      byId("state").classList.toggle("ok", ok);
      if (/key/.test(text)) byId("key-field").hidden = false;
    },
  });
}
byId("key").addEventListener("change", () => (sessionStorage.setItem("key", key()), connect()));
connect();

/** @param {any} stats the figures of `/stats` */
function figures(stats) {
  byId("f-ttft").textContent = seconds(stats["ttft-s"].p50);
  byId("f-e2e").textContent = seconds(stats["e2e-s"].p50);
  byId("f-batch").textContent = stats["batch-size"].mean?.toFixed(1) ?? "–";
  byId("f-done").textContent = count(stats.counts.completed);
  byId("f-tokens").textContent = count(stats["total-tokens-handled"]);
}

// --- time -------------------------------------------------------------------------------------

byId("pause").addEventListener("click", () => (view.follows ? view.stop() : view.live()));
byId("older").addEventListener("click", () => view.pan(-view.span / 3));
byId("newer").addEventListener("click", () => view.pan(view.span / 3));
byId("in").addEventListener("click", () => view.zoom(1.7, view.follows ? 1 : 0.5));
byId("out").addEventListener("click", () => view.zoom(1 / 1.7, view.follows ? 1 : 0.5));
byId("into").addEventListener("click", () => into());
byId("colour").addEventListener("change", () => {
  tracks.by = byId("colour").value;
  tracks.groups.seen.clear();
  byId("live-legend").hidden = tracks.by !== "kind";
  dirty = true;
});

/** Shows one iteration, the one that ran at `t` or the last before it. @param {number} [t] */
function into(t) {
  const [from, to] = view.window();
  const wanted = store.after(t ?? (view.follows ? to : (from + to) / 2));
  look(Math.min(wanted, store.next - 1));
}

/** @param {number} n */
function look(n) {
  if (n < store.oldest || n >= store.next) return;
  tracks.iteration = n;
  tracks.chosen = null;
  view.show(store.at(n, START), store.at(n, START) + store.at(n, DURATION));
  showIteration(store, n);
}

function back() {
  tracks.iteration = tracks.chosen = null;
  byId("detail").hidden = true;
  view.span = 6;
  view.live();
}

const onKey = keys(view, { into, step: (by) => tracks.iteration !== null && look(tracks.iteration + by), back });
document.addEventListener("keydown", (e) => !byId("live").hidden && onKey(e));

listen(byId("canvas"), view, () => tracks.plot(), {
  hover(x, y) {
    const spot = tracks.spot(x, y), tip = byId("tip");
    const lines = spot?.request ? requestWords(spot.request, view.now())
      : spot?.iteration !== undefined ? iterationWords(store, spot.iteration) : [];
    tip.hidden = !lines.length;
    if (!lines.length) return;
    tip.textContent = lines.join("\n");
    tip.style.left = `${Math.max(0, Math.min(x + 14, tracks.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y + 16}px`;
  },
  leave: () => (byId("tip").hidden = true),
  pick(x, y) {
    const spot = tracks.spot(x, y);
    tracks.chosen = spot?.request && spot.request.id !== tracks.chosen ? spot.request.id : null;
    dirty = true;
    if (tracks.chosen !== null && spot?.request) showRequest(store, spot.request, key());
    else byId("detail").hidden = true;
  },
  into(x, y) {
    const spot = tracks.spot(x, y);
    if (spot) into(spot.time);
  },
});

byId("trace").addEventListener("click", async (/** @type {Event} */ e) => {
  if (!key()) return; // the browser follows the link
  e.preventDefault();
  const response = await fetch("/watch/trace", { headers: headers(key()) });
  if (!response.ok) return room.say(await reason(response));
  const link = element("a", { href: URL.createObjectURL(await response.blob()), download: "effective-batching.json" });
  link.click();
});

new ResizeObserver(() => repaint()).observe(document.body);

let toldAt = 0;
/** Once a frame of the screen. @param {number} ms */
function paint(ms) {
  requestAnimationFrame(paint);
  if (!byId("modes").hidden) modes.tick(ms);
  if (byId("live").hidden || !store.hello) return;
  if (view.follows || dirty) tracks.draw();
  dirty = false;
  if (ms - toldAt < 200) return;
  toldAt = ms;
  byId("pause").textContent = view.follows ? "Pause" : "Live";
  byId("span-shown").textContent = `${seconds(view.span)} shown`;
  byId("empty").hidden = store.next > 0;
  for (const entry of byId("live-legend").children) entry.hidden = !store.seen.has(entry.dataset.kind);
  const running = store.running().length, waiting = store.waiting().length;
  byId("f-rate").textContent = count(store.rate(view.now()));
  byId("f-running").textContent = count(running);
  byId("f-waiting").textContent = count(waiting);
  byId("canvas").setAttribute("aria-label",
    `${running} requests running, ${waiting} waiting, ${count(store.rate(view.now()))} tokens per second`);
}
showTab(location.hash.startsWith("#live") ? "live" : "modes");
requestAnimationFrame(paint);
