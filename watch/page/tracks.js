// @ts-check
/** The live picture: queue, slots, tokens per second, padding and KV blocks over one time axis. */

import { Groups, fills, palette } from "./colours.js";
import { CACHED, DURATION, FREE, GENERATED, PADDING, START, TOKENS, USED } from "./store.js";
import { count, seconds } from "./words.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Run} Run */
/** @typedef {import("./store.js").Request} Request */
/** @typedef {{name: "queue"|"batch"|"tokens"|"waste"|"kv"|"axis", top: number, height: number}} Track */
/** @typedef {{run?: Run, request?: Request, iteration?: number, track: Track, time: number}} Spot */

const GAP = 14, PAD = 10;
const MOST_SLOTS_PX = 520, SLOT_PX = 13, LEAST_SLOTS_PX = 96, LEAST_SLOTS = 8;
const DECODE = 2, PAUSED = 4;

export class Tracks {
  /** @param {HTMLCanvasElement} canvas @param {Store} store @param {import("./view.js").View} view */
  constructor(canvas, store, view) {
    this.canvas = canvas;
    this.store = store;
    this.view = view;
    this.pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.width = 0;
    this.height = 0;
    /** @type {Track[]} */ this.tracks = [];
    /** @type {number|null} */ this.chosen = null; // a request
    /** @type {number|null} */ this.iteration = null; // the one on display
    /** @type {"kind"|"user"|"program"|"priority"} */ this.by = "kind"; // what the colour of a row says
    this.groups = new Groups();
    this.peak = 1;
    this.padded = false;
    this.frames = 0; // drawn, for measurements
  }

  /** Rows of the batch track, without slots that nobody has had; under a policy that pauses, more requests are
   * resident than advance at once. */
  get slots() {
    return Math.max(Math.min(this.limit, LEAST_SLOTS), this.store.slots.length);
  }

  /** Most rows of an iteration. */
  get limit() {
    return this.store.hello?.slots ?? 8;
  }

  get slotPx() {
    const px = Math.min(SLOT_PX, MOST_SLOTS_PX / this.slots);
    return this.slots * px < LEAST_SLOTS_PX ? Math.min(26, LEAST_SLOTS_PX / this.slots) : px;
  }

  /** Left edge and width of the time axis. @returns {[number, number]} */
  plot() {
    const left = this.width < 600 ? 12 : 108;
    return [left, this.width - left - 12];
  }

  /** Heights follow from the number of slots; returns whether anything changed. */
  layOut() {
    const width = this.canvas.clientWidth, ratio = Math.min(devicePixelRatio || 1, 2);
    const heights = /** @type {[Track["name"], number][]} */ ([
      ["queue", 58], ["batch", Math.max(this.slots * this.slotPx, 24)], ["tokens", 54],
      ...(this.padded ? [["waste", 26]] : []), ["kv", 34], ["axis", 20]]);
    let top = this.width && this.plot()[0] < 40 ? 16 : 6;
    const step = this.plot()[0] < 40 ? GAP + 8 : GAP;
    this.tracks = heights.map(([name, height]) => {
      const track = { name, top, height };
      top += height + (name === "kv" ? 4 : step);
      return track;
    });
    if (width === this.width && top === this.height && this.canvas.width === Math.round(width * ratio)) return false;
    this.width = width;
    this.height = top;
    this.canvas.style.height = `${top}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(top * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return true;
  }

  draw() {
    if (this.layOut()) this.layOut(); // the second time with the right width
    const { pen } = this, p = palette();
    const [from, to] = this.view.window();
    const [left, width] = this.plot();
    const x = (/** @type {number} */ t) => left + ((t - from) / (to - from)) * width;
    this.frames++;
    pen.fillStyle = p.back;
    pen.fillRect(0, 0, this.width, this.height);
    pen.save();
    for (const track of [...this.tracks].reverse()) { // the axis below all others
      pen.save();
      if (track.name !== "axis") {
        pen.beginPath();
        pen.rect(left, track.top - 1, width, track.height + 2);
        pen.fillStyle = p.panel;
        pen.fill();
        pen.clip();
      }
      this[track.name](track, x, from, to, p);
      pen.restore();
    }
    pen.restore();
    this.labels(p, to);
  }

  /** Names of the tracks with their figure of now. @param {import("./colours.js").Palette} p @param {number} t */
  labels(p, t) {
    const { pen, store } = this, narrow = this.plot()[0] < 40;
    const last = Math.min(store.after(t), store.next - 1);
    const at = (/** @type {number} */ column) => (last >= store.oldest && last >= 0 ? store.at(last, column) : 0);
    const waiting = this.queueAt(t);
    const oldest = waiting.length ? t - Math.min(...waiting.map((r) => r.arrival)) : 0;
    const blocks = at(USED) + at(CACHED) + at(FREE);
    const newest = last >= store.oldest && last >= 0 ? store.end(last) : 0;
    const slots = this.store.slots.filter((_, slot) => this.slotAt(slot, Math.min(t, newest))).length;
    /** @type {Record<string, [string, string]>} */
    const words = {
      queue: ["queue", waiting.length ? `${waiting.length}, oldest ${seconds(oldest)}` : "empty"],
      batch: ["batch", this.slots > this.limit ? `${slots} residents` : `${slots} of ${this.limit} slots`],
      tokens: ["tokens/s", count(store.rate(t))],
      waste: ["padding", "computed but not used"],
      kv: ["KV memory", blocks ? `${count(slots ? (100 * at(USED)) / blocks : 0)} % in use` : ""],
    };
    pen.textBaseline = "top";
    for (const track of this.tracks) {
      const word = words[track.name];
      if (!word) continue;
      pen.fillStyle = p.text;
      pen.font = "600 12px system-ui, sans-serif";
      if (narrow) {
        pen.fillText(word[0], 12, track.top - 15);
        pen.fillStyle = p.dim;
        const after = 18 + pen.measureText(word[0]).width;
        pen.font = "11px system-ui, sans-serif";
        pen.fillText(word[1], after, track.top - 14);
      } else {
        pen.fillText(word[0], PAD, track.top + 1);
        pen.fillStyle = p.dim;
        pen.font = "11px system-ui, sans-serif";
        word[1].split(", ").forEach((line, i) => pen.fillText(line, PAD, track.top + 16 + 13 * i));
      }
    }
  }

  /** Who waits at a time. @param {number} t */
  queueAt(t) {
    return [...this.store.requests.values()].filter(
      (r) => r.arrival <= t && (r.admitted ?? r.end ?? Infinity) > t);
  }

  /** @param {number} slot @param {number} t */
  slotAt(slot, t) {
    const runs = this.store.slots[slot];
    return runs && this.store.runs(slot, t - 1e-6, t).find( // times are rounded to microseconds
      (run) => run.end >= t - 1e-6 && (this.store.requests.get(run.request)?.end ?? Infinity) > t + 2e-6);
  }

  /** Waiting requests packed into rows, each from its arrival to its admission.
   * @param {Track} track @param {(t: number) => number} x @param {number} from @param {number} to
   * @param {import("./colours.js").Palette} p */
  queue(track, x, from, to, p) {
    const rows = packed(this.store, from, to);
    const step = Math.min(9, (track.height - 4) / Math.max(rows.length, 1));
    const bar = Math.max(step - (step > 3 ? 1.5 : 0), 0.7);
    rows.forEach((row, i) => {
      const y = track.top + track.height - 3 - (i + 1) * step;
      for (const r of row) {
        const end = Math.min(r.admitted ?? r.end ?? to, to);
        this.pen.fillStyle = r.id === this.chosen ? p.bright : r.end !== null && r.admitted === null ? p.preempted
          : this.by === "kind" ? p.waiting : this.groups.colour(r[this.by], p, true);
        this.pen.fillRect(x(Math.max(r.arrival, from)), y, Math.max(x(end) - x(Math.max(r.arrival, from)), 1.2), bar);
      }
    });
  }

  /** @param {Track} track @param {(t: number) => number} x @param {number} from @param {number} to
   * @param {import("./colours.js").Palette} p */
  batch(track, x, from, to, p) {
    const { pen, store } = this, px = this.slotPx;
    const colours = fills(pen, p);
    const bar = px > 4 ? px - 2 : px;
    /** @type {[number, number, number][]} */ const numbers = []; // request, x, y; above the lines between iterations
    for (let slot = 0; slot < this.slots; slot++) {
      const y = track.top + slot * px;
      if (px > 4) {
        pen.fillStyle = p.line;
        pen.fillRect(0, y + px - 1.5, this.width, 0.5);
      }
      for (const run of store.runs(slot, from, to)) {
        const start = x(run.start), wide = Math.max(x(run.end) - start, 0.6);
        const plain = this.chosen === null || run.request === this.chosen;
        pen.globalAlpha = plain ? 1 : 0.35;
        const request = store.requests.get(run.request);
        pen.fillStyle = this.by === "kind" || !request ? colours[run.kind]
          : this.groups.colour(request[this.by], p, run.kind === PAUSED);
        pen.fillRect(start, y, wide, bar);
        if (run.accepted || run.rejected) this.drafts(run, start, wide, y, bar, p);
        if (request?.runs[0] === run && wide > 3) { // an edge where it takes its slot
          pen.fillStyle = p.back;
          pen.fillRect(start - 0.75, y, 1.5, bar);
        }
        if (plain && run.kind === DECODE && bar >= 9 && wide > 26) numbers.push([run.request, start, y + bar / 2 + 0.5]);
        if (request?.preempted.length) this.lost(request, run, x, y, bar, p);
      }
    }
    pen.globalAlpha = 1;
    this.bounds(track, x, from, to, p);
    pen.font = `${Math.min(bar, 10)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    for (const [request, start, middle] of numbers) {
      const words = String(request), left = Math.max(start, this.plot()[0]) + 3;
      const named = this.store.requests.get(request);
      pen.fillStyle = this.by === "kind" || !named ? p.decode : this.groups.colour(named[this.by], p, false);
      pen.fillRect(left, middle - bar / 2, pen.measureText(words).width + 2, bar - 0.5);
      pen.fillStyle = p.label;
      pen.fillText(words, left + 1, middle);
    }
  }

  /** The parts of a row that are drafts, below the one token that it has without them, and the tokens by which
   * each of its iterations advances the request. @param {Run} run @param {number} start @param {number} wide
   * @param {number} y @param {number} bar @param {import("./colours.js").Palette} p */
  drafts(run, start, wide, y, bar, p) {
    const { pen } = this, iterations = run.last - run.first + 1;
    const each = bar / (iterations + run.accepted + run.rejected);
    pen.fillStyle = p.accepted;
    pen.fillRect(start, y + each * iterations, wide, each * run.accepted);
    pen.fillStyle = p.rejected;
    pen.fillRect(start, y + bar - each * run.rejected, wide, each * run.rejected);
    if (bar < 9 || wide / iterations < 16 || !run.accepted) return;
    pen.font = `${Math.min(bar, 10)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.fillStyle = p.label;
    const words = `×${run.tokens / iterations}`;
    pen.fillText(words, start + wide - pen.measureText(words).width - 3, y + bar / 2 + 0.5);
  }

  /** A cross where a request was preempted. @param {Request} r @param {Run} run @param {(t: number) => number} x
   * @param {number} y @param {number} bar @param {import("./colours.js").Palette} p */
  lost(r, run, x, y, bar, p) {
    const next = r.runs[r.runs.indexOf(run) + 1]?.start ?? Infinity;
    if (!r.preempted.some((t) => t >= run.end - 1e-6 && t <= next + 1e-6)) return;
    const { pen } = this, end = x(run.end), size = Math.max(2.5, Math.min(bar / 2, 5)), middle = y + bar / 2;
    pen.strokeStyle = p.preempted;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(end - size, middle - size), pen.lineTo(end + size, middle + size);
    pen.moveTo(end + size, middle - size), pen.lineTo(end - size, middle + size);
    pen.stroke();
  }

  /** Draws iterations separately where they are wide enough.
   * @param {Track} track @param {(t: number) => number} x @param {number} from @param {number} to
   * @param {import("./colours.js").Palette} p */
  bounds(track, x, from, to, p) {
    const { pen, store } = this;
    const first = store.after(from);
    let last = store.after(to);
    if (last - first > this.plot()[1] / 5) return;
    pen.fillStyle = p.back;
    for (let n = first; n <= last && n < store.next; n++) {
      if (x(store.end(n)) - x(store.at(n, START)) < 5) continue;
      pen.fillRect(x(store.at(n, START)) - 0.5, track.top, 1, track.height);
      pen.fillRect(x(store.end(n)) - 0.5, track.top, 1, track.height);
    }
    if (this.iteration !== null && this.iteration >= store.oldest && this.iteration < store.next) {
      pen.strokeStyle = p.bright;
      pen.lineWidth = 1.5;
      const start = x(store.at(this.iteration, START));
      pen.strokeRect(start, track.top, x(store.end(this.iteration)) - start, track.height);
    }
  }

  /** A column over its duration, as a rate in bins. @param {number} from @param {number} to @param {number} bins
   * @param {number} column */
  binned(from, to, bins, column) {
    const { store } = this, sums = new Float64Array(bins), wide = (to - from) / bins;
    for (let n = store.after(from); n < store.next; n++) {
      const start = store.at(n, START), duration = store.at(n, DURATION);
      if (start >= to) break;
      const per = store.at(n, column) / (duration || 1e-9);
      const low = Math.max(0, (start - from) / wide), high = Math.min(bins, (start + duration - from) / wide);
      for (let bin = Math.floor(low); bin < high; bin++) {
        sums[bin] += per * (Math.min(bin + 1, high) - Math.max(bin, low));
      }
    }
    return sums; // per second, mean over each bin
  }

  /** Bins that do not move while the picture does. @param {number} from @param {number} to @returns {[number, number, number]} */
  bins(from, to) {
    const wanted = ((to - from) * 4) / this.plot()[1], exact = Math.log2(wanted / 0.001);
    const wide = 0.001 * 2 ** Math.ceil(exact);
    const start = Math.floor(from / wide) * wide;
    return [start, start + Math.ceil((to - start) / wide) * wide, Math.ceil((to - start) / wide)];
  }

  /** @param {Track} track @param {(t: number) => number} x @param {number} from @param {number} to
   * @param {import("./colours.js").Palette} p */
  tokens(track, x, from, to, p) {
    const [start, end, n] = this.bins(from, to);
    const rates = this.binned(start, end, n, GENERATED);
    const high = Math.max(10, ...rates);
    this.peak += (high > this.peak ? 0.5 : 0.03) * (high - this.peak);
    const wide = x(start + (end - start) / n) - x(start);
    this.pen.fillStyle = p.decode;
    rates.forEach((rate, i) => {
      const tall = Math.min(rate / this.peak, 1) * (track.height - 12);
      this.pen.fillRect(x(start) + i * wide, track.top + track.height - tall, Math.ceil(wide) - (wide > 4 ? 1 : 0), tall);
    });
    this.pen.fillStyle = p.dim;
    this.pen.font = "10px system-ui, sans-serif";
    this.pen.textBaseline = "top";
    this.pen.fillText(`${count(this.peak)}/s`, this.plot()[0] + 4, track.top + 2);
  }

  /** @param {Track} track @param {(t: number) => number} x @param {number} from @param {number} to
   * @param {import("./colours.js").Palette} p */
  waste(track, x, from, to, p) {
    const [start, end, n] = this.bins(from, to);
    const wasted = this.binned(start, end, n, PADDING), useful = this.binned(start, end, n, TOKENS);
    const wide = x(start + (end - start) / n) - x(start);
    this.pen.fillStyle = fills(this.pen, p)[3];
    wasted.forEach((positions, i) => {
      const share = positions / (positions + useful[i] || 1);
      this.pen.fillRect(x(start) + i * wide, track.top + track.height * (1 - share), Math.ceil(wide), track.height * share);
    });
  }

  /** @param {Track} track @param {(t: number) => number} x @param {number} from @param {number} to
   * @param {import("./colours.js").Palette} p */
  kv(track, x, from, to, p) {
    const { pen, store } = this;
    const first = store.after(from), last = Math.min(store.after(to), store.next - 1);
    const stride = Math.max(1, Math.floor((last - first) / this.plot()[1]));
    for (let n = Math.max(first - 1, store.oldest); n <= last; n += stride) {
      const used = store.at(n, USED), cached = store.at(n, CACHED), all = used + cached + store.at(n, FREE) || 1;
      const start = x(store.at(n, START));
      const end = n + stride <= last ? x(store.at(n + stride, START)) : x(store.end(Math.min(n + stride, last)));
      const low = track.top + track.height, tall = (used / all) * track.height, more = (cached / all) * track.height;
      pen.fillStyle = p.cached;
      pen.fillRect(start, low - tall - more, end - start + 0.7, more);
      pen.fillStyle = p.used;
      pen.fillRect(start, low - tall, end - start + 0.7, tall);
    }
  }

  /** @param {Track} track @param {(t: number) => number} x @param {number} from @param {number} to
   * @param {import("./colours.js").Palette} p */
  axis(track, x, from, to, p) {
    const { pen } = this, now = this.view.now(), [left, width] = this.plot();
    const step = nice((to - from) / Math.max(3, width / 130));
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    pen.textAlign = "center";
    const ref = this.view.follows ? to : now;
    const decimals = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
    for (let k = Math.ceil((from - ref) / step); k * step <= to - ref + 1e-12; k++) {
      const at = x(ref + k * step);
      if (at < left - 1 || at > left + width + 1) continue;
      pen.fillStyle = p.line;
      pen.fillRect(at - 0.5, 0, 0.5, track.top);
      pen.fillStyle = p.dim;
      const words = k === 0 ? "now" : `−${(-k * step).toFixed(decimals)} s`;
      pen.fillText(words, Math.min(at, left + width - 14), track.top + 3);
    }
    pen.textAlign = "left";
  }

  /** What is drawn there. @param {number} px @param {number} py @returns {Spot|null} */
  spot(px, py) {
    const track = this.tracks.find((t) => py >= t.top - 2 && py <= t.top + t.height + 2);
    const [left, width] = this.plot();
    if (!track || px < left || px > left + width) return null;
    const [from, to] = this.view.window();
    const time = from + ((px - left) / width) * (to - from);
    const near = (3 * (to - from)) / width;
    const iteration = this.store.during(time) ?? undefined;
    if (track.name === "batch") {
      const slot = Math.min(this.slots - 1, Math.max(0, Math.floor((py - track.top) / this.slotPx)));
      const run = this.store.runs(slot, time - near, time + near).pop();
      return { track, time, iteration, run, request: run && this.store.requests.get(run.request) };
    }
    if (track.name === "queue") {
      const rows = packed(this.store, from, to);
      const step = Math.min(9, (track.height - 4) / Math.max(rows.length, 1));
      const row = rows[Math.floor((track.top + track.height - 3 - py) / step)] ?? [];
      const request = row.find((r) => r.arrival - near <= time && (r.admitted ?? r.end ?? to) + near >= time);
      return { track, time, iteration, request };
    }
    return { track, time, iteration };
  }
}

/** Those who wait in a stretch of time, in as few rows as hold them. @param {Store} store
 * @param {number} from @param {number} to @returns {Request[][]} */
export function packed(store, from, to) {
  /** @type {Request[][]} */ const rows = [];
  /** @type {number[]} */ const free = [];
  const shortest = (to - from) / 2000;
  for (const r of store.requests.values()) {
    const end = r.admitted ?? r.end ?? Infinity;
    if (end < from || r.arrival > to || end - r.arrival < shortest) continue;
    let row = free.findIndex((t) => t <= r.arrival);
    if (row < 0) row = free.push(0) - 1, rows.push([]);
    free[row] = end;
    rows[row].push(r);
  }
  return rows;
}

/** A round step near `s`. @param {number} s */
export function nice(s) {
  const power = 10 ** Math.floor(Math.log10(s)), part = s / power;
  return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}
