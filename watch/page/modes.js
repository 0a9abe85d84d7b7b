// @ts-check
/** The same requests in several modes, side by side at one clock: recorded runs, servers that are sent the 20
 * requests now, or servers that a comparison measures. */

import { fills, palette } from "./colours.js";
import { follow, headers, reason } from "./feed.js";
import { Measured } from "./measured.js";
import { twenty } from "./play.js";
import { Store, median } from "./store.js";
import { nice } from "./tracks.js";
import { MODE_NAMES, byId, element, seconds } from "./words.js";

/** @typedef {import("./store.js").Request} Request */
/** @typedef {import("./servers.js").Servers} Servers */
/** @typedef {{name: string, requests: Request[], zero: number, end: number, now: number,
 *   problem?: string}} Run one mode's requests;
 *   `zero`: the server's time at which the first arrived; `end`: seconds until the last was answered; `now`: how far
 *   it is, in seconds, while it is measured, else Infinity; `problem`: why its server is not connected */
/** @typedef {{run: Run, canvas: HTMLCanvasElement, score: HTMLElement, box: HTMLElement}} Panel */

const RECORDED = ["nobatch", "static", "dynamic"];
const PATIENCE_MS = 120_000;
const MOST_PX = 170; // of a panel's rows

/** @param {string} name @param {Request[]} requests @returns {Run} */
function runOf(name, requests) {
  const sorted = [...requests].sort((a, b) => a.arrival - b.arrival);
  const zero = sorted[0]?.arrival ?? 0;
  return { name, requests: sorted, zero, end: Math.max(0, ...sorted.map((r) => (r.end ?? zero) - zero)), now: Infinity };
}

/** @returns {Promise<Run[]>} */
async function recorded() {
  return Promise.all(RECORDED.map(async (mode) => {
    const told = await (await fetch(`/watch/page/recorded/${mode}.json`)).json();
    const store = new Store(told.frame.iterations.length + 1);
    store.greet(told.hello);
    store.take(told.frame);
    return runOf(mode, [...store.requests.values()]);
  }));
}

/** Each server in its turn, so that none takes the cores from another. @param {Servers} servers
 * @param {(text: string) => void} say @returns {Promise<Run[]>} */
async function asked(servers, say) {
  const runs = [], policies = [];
  for (const server of servers.all) {
    const store = new Store(), key = servers.key(server);
    let problem = "";
    const end = follow(server, () => key, { hello: (h) => store.greet(h), frame: (f) => store.take(f),
      state: (text, ok) => (problem = ok ? "" : text) });
    try {
      await until(() => store.hello !== null || problem !== "");
      if (problem) throw new Error(`${server}: ${problem}`);
      const name = store.hello?.mode ?? server;
      say(`The 20 requests run on ${name} …`);
      const response = await fetch(`${server}/watch/play`, {
        method: "POST", headers: { ...headers(key), "Content-Type": "application/json" },
        body: JSON.stringify({ requests: twenty() }) });
      if (!response.ok) throw new Error(await reason(response));
      /** @type {number[]} */ const ids = (await response.json()).requests;
      const all = () => ids.map((id) => store.requests.get(id)).filter((r) => r !== undefined);
      await until(() => all().length === ids.length && all().every((r) => r.end !== null));
      runs.push(runOf(name, all()));
      policies.push(store.hello?.policy);
    } finally {
      end();
    }
  }
  const alike = new Set(runs.map((run) => run.name)).size < runs.length;
  return alike ? runs.map((run, i) => ({ ...run, name: `${run.name} (${policies[i]})` })) : runs;
}

/** @param {() => boolean} met */
async function until(met) {
  const give = performance.now() + PATIENCE_MS;
  while (!met()) {
    if (performance.now() > give) throw new Error("the server did not respond in time");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export class Modes {
  /** @param {Servers} servers */
  constructor(servers) {
    this.servers = servers;
    /** @type {Panel[]} */ this.panels = [];
    this.t = 0; // time of the runs
    this.end = 1;
    this.playing = false;
    this.before = 0;
    /** @type {Measured|null} */ this.measured = null;
    this.loads = 0; // of sources, the newest one counts
    byId("modes-source-field").hidden = !servers.all.length;
    byId("modes-source").value = location.hash === "#measured" && servers.all.length ? "measured" : "recorded";
    byId("modes-play").addEventListener("click", () => this.press());
    byId("modes-source").addEventListener("change", () => this.load());
    byId("others").addEventListener("submit", (/** @type {Event} */ e) => {
      e.preventDefault();
      servers.agree();
      this.load();
    });
    byId("modes-at").addEventListener("input", () => {
      this.playing = false;
      this.t = (byId("modes-at").value / 1000) * this.end;
      this.draw();
    });
    this.ready = this.load();
  }

  async load() {
    const load = ++this.loads;
    this.playing = false;
    this.measured?.end();
    const source = byId("modes-source").value;
    const asks = source !== "recorded" && !this.servers.agreed;
    byId("others").hidden = !asks;
    this.measured = source === "measured" && !asks ? new Measured(this.servers) : null;
    for (const id of ["modes-play", "modes-at", "modes-clock", "modes-speed-field", "modes-intro"]) {
      byId(id).hidden = this.measured !== null || asks;
    }
    byId("verdict").textContent = "";
    this.build(this.measured?.runs(performance.now()) ?? []);
    if (asks || this.measured) return;
    byId("modes-play").disabled = true;
    try {
      const say = (/** @type {string} */ text) => { if (load === this.loads) byId("verdict").textContent = text; };
      const runs = await (source === "servers" ? asked(this.servers, say) : recorded());
      if (load !== this.loads) return; // another source was chosen since
      this.build(runs);
      say("");
    } catch (error) {
      if (load !== this.loads) return;
      byId("verdict").textContent = `not played: ${/** @type {Error} */ (error).message}`;
      if (source === "servers" && this.servers.others.length) { // a key may be wrong
        this.servers.agreed = false;
        byId("others").hidden = false;
      }
    }
    byId("modes-play").disabled = false;
  }

  /** @param {Run[]} runs */
  build(runs) {
    this.end = Math.max(0.001, ...runs.map((run) => run.end)) * 1.02;
    this.t = this.end;
    this.panels = runs.map((run) => {
      const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { role: "img" }));
      const score = element("span", { class: "score" });
      const box = element("section", { class: "panel" },
        element("header", {}, element("h2", {}, run.name), element("span", { class: "dim" }, MODE_NAMES[run.name] ?? ""), score),
        canvas);
      return { run, canvas, score, box };
    });
    byId("modes-panels").replaceChildren(...this.panels.map((panel) => panel.box));
    this.draw();
  }

  press() {
    if (this.playing) {
      this.playing = false;
    } else {
      if (this.t >= this.end) this.t = 0;
      this.playing = true;
      this.before = performance.now();
      byId("verdict").textContent = "";
    }
    this.draw();
  }

  /** Once a frame of the screen. @param {number} now ms */
  tick(now) {
    if (this.measured) return this.follow(this.measured.runs(now));
    if (!this.playing) return;
    this.t = Math.min(this.end, this.t + ((now - this.before) / 1000) * Number(byId("modes-speed").value));
    this.before = now;
    if (this.t >= this.end) this.playing = false;
    this.draw();
  }

  /** Runs that are being measured. @param {Run[]} runs */
  follow(runs) {
    if (this.panels.some((panel, i) => panel.run.name !== runs[i].name)) this.build(runs);
    this.panels.forEach((panel, i) => (panel.run = runs[i]));
    this.t = this.end = Math.max(0.001, ...runs.map((run) => run.end)) * 1.02;
    this.draw();
  }

  draw() {
    if (this.measured) return this.drawMeasured(this.measured);
    const over = this.t >= this.end;
    byId("modes-play").textContent = this.playing ? "Pause" : over || this.t === 0 ? "Play" : "Continue";
    byId("modes-clock").textContent = `${this.t.toFixed(2)} s`;
    byId("modes-at").value = String((1000 * this.t) / this.end);
    const best = Math.min(...this.panels.map((panel) => panel.run.end));
    for (const panel of this.panels) {
      paint(panel, this.t, this.end);
      const { requests, zero, end } = panel.run;
      const done = requests.filter((r) => r.end !== null && r.end - zero <= this.t).length;
      const finished = done === requests.length;
      panel.box.classList.toggle("winner", finished && end === best);
      panel.score.replaceChildren(`${done} of ${requests.length} completed`,
        ...(finished ? [" after ", element("b", {}, seconds(end))] : []));
      panel.canvas.setAttribute("aria-label",
        `${panel.run.name}: ${done} of ${requests.length} requests completed at ${this.t.toFixed(2)} s`);
    }
    if (over && this.panels.length) byId("verdict").textContent = verdict(this.panels.map((panel) => panel.run));
    byId("modes-next").hidden = !over || !this.panels.length;
  }

  /** One workload on all servers, one after the other: each panel is as far as its server.
   * @param {Measured} measured */
  drawMeasured({ workload }) {
    const rows = Math.max(1, ...this.panels.map((panel) => panel.run.requests.length));
    for (const panel of this.panels) {
      const { run } = panel;
      paint(panel, run.now, this.end, rows);
      panel.score.textContent = measuredWords(run);
      panel.canvas.setAttribute("aria-label", `${run.name}: ${panel.score.textContent}`);
    }
    const running = this.panels.find(({ run }) => Number.isFinite(run.now));
    byId("verdict").textContent = !workload
      ? "Connected. The first run begins when the comparison has measured what the servers can do."
      : `Workload ${workload}: the same requests for each server, one server after the other`
        + (running ? `; now ${running.run.name}.` : ".");
    byId("modes-next").hidden = true;
  }
}

/** @param {Run} run */
function measuredWords({ requests, problem }) {
  if (!requests.length) return problem || "has not run this workload yet";
  const ended = (/** @type {string[]} */ ...how) => requests.filter((r) => how.includes(r.how ?? "")).length;
  const cut = ended("cancelled"), failed = ended("failed");
  const first = median(requests.flatMap((r) => (r.first === null ? [] : [r.first - r.arrival])));
  return `${ended("length", "stop")} of ${requests.length} completed` + (cut ? `, ${cut} cut` : "")
    + (failed ? `, ${failed} failed` : "") + (first === null ? "" : `; first token after ${seconds(first)} (median)`);
}

/** What the runs show, in words. @param {Run[]} runs */
function verdict(runs) {
  const sorted = [...runs].sort((a, b) => a.end - b.end);
  const [best] = sorted, worst = sorted[sorted.length - 1];
  const first = (/** @type {Run} */ run) => median(run.requests.map((r) => (r.first ?? Infinity) - r.arrival));
  const how = (/** @type {string} */ name) =>
    (name === "nobatch" ? "one at a time" : name.includes("(") ? `under ${name}` : `with ${name} batching`);
  const all = `All ${best.requests.length} responses took ${seconds(best.end)} ${how(best.name)}`;
  if (runs.length === 1) return `${all}. Half of the requests had their first token within ${seconds(first(best))}.`;
  const others = sorted.slice(1).map((run) => `${seconds(run.end)} ${how(run.name)}`).join(" and ");
  const why = best.name === "dynamic" && ["nobatch", "static"].every((name) => runs.some((run) => run.name === name))
    ? " One at a time, the others wait (grey). A static batch keeps its slots until its longest request is done"
      + " (hatched). With dynamic batching a slot goes to the next request the moment it is free."
    : "";
  return `${all}, ${others}: `
    + `${(worst.end / best.end).toFixed(1)} times as fast as ${how(worst.name)}. Half of the requests had their first `
    + `token within ${seconds(first(best))} ${how(best.name)}, and within ${seconds(first(worst))} ${how(worst.name)}.${why}`;
}

/** One mode up to a time. @param {Panel} panel @param {number} t @param {number} span @param {number} rows */
function paint({ run, canvas }, t, span, rows = run.requests.length) {
  const p = palette(), ratio = Math.min(devicePixelRatio || 1, 2);
  const width = canvas.clientWidth, row = Math.min(width < 600 ? 6 : 7.5, MOST_PX / rows), axis = 17;
  const height = rows * row + axis;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = p.back;
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = p.panel;
  pen.fillRect(0, 0, width, height - axis);
  const x = (/** @type {number} */ s) => (s / span) * (width - 2) + 1;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  const step = nice(span / Math.max(3, width / 130));
  for (let k = 0; k * step < span; k++) {
    pen.fillStyle = p.line;
    pen.fillRect(x(k * step), 0, 0.5, height - axis);
    pen.fillStyle = p.dim;
    const words = k ? `${+(k * step).toFixed(6)} s` : "first arrival";
    pen.fillText(words, Math.max(2, x(k * step) - (k ? pen.measureText(words).width / 2 : 0)), height - axis + 3);
  }
  const colours = fills(pen, p);
  run.requests.forEach((r, i) => {
    const tall = row > 4 ? row - 1.5 : 0.8 * row, y = i * row + (row - tall) / 2;
    /** @param {number} from @param {number} to @param {string|CanvasPattern} colour */
    const bar = (from, to, colour) => {
      const end = Math.min(to - run.zero, t), start = from - run.zero;
      if (end <= start) return;
      pen.fillStyle = colour;
      pen.fillRect(x(start), y, Math.max(x(end) - x(start), 0.8), tall);
    };
    bar(r.arrival, r.end ?? Infinity, p.waiting);
    for (const { start, end, kind } of r.runs) bar(start, end, colours[kind]);
  });
  if (t < span) {
    pen.fillStyle = p.bright;
    pen.fillRect(x(t) - 0.75, 0, 1.5, height - axis);
  }
}
