// @ts-check
/** What a server told: its iterations, the runs in its slots and its requests, the newest of each. */

/** @typedef {{mode: string, policy: string, model: string, slots: number, blocks: number,
 *   block_tokens: number, text: boolean, chat_template?: boolean}} Hello */
/** @typedef {{now: number, first: number, iterations: number[][], runs: number[][], arrived: any[][],
 *   ended: any[][], preempted: number[][], stats?: any}} Frame times in microseconds; columns: watch/frames.py */
/** @typedef {{request: number, slot: number, kind: number, first: number, last: number,
 *   tokens: number, accepted: number, rejected: number, start: number, end: number}} Run `first` and `last`:
 *   iterations; `accepted` and `rejected`: drafts; times in s */
/** @typedef {{id: number, arrival: number, prompt: number, max: number, kind: string,
 *   user: number|null, program: number|null, priority: number,
 *   admitted: number|null, first: number|null, end: number|null, how: string|null,
 *   generated: number, runs: Run[], preempted: number[]}} Request `preempted`: times */

export const KINDS = ["prefill", "chunk", "decode", "held", "paused"];
const S = 1e-6;
/** Columns of an iteration as it is kept. */
export const START = 0, DURATION = 1, GENERATED = 2, TOKENS = 3, PADDING = 4, WAITING = 5, USED = 6,
  CACHED = 7, FREE = 8;
const WIDTH = 9;
const CHUNK = 1, DECODE = 2;

export class Store {
  /** @param {number} kept iterations that are remembered; @param {number} keptRequests those that ended */
  constructor(kept = 20000, keptRequests = 4000) {
    this.kept = kept;
    this.keptRequests = keptRequests;
    /** @type {Hello|null} */ this.hello = null;
    this.table = new Float64Array(0); // a ring of rows
    this.next = 0; // number of the iteration that comes next
    this.oldest = 0; // number of the oldest that is kept
    /** @type {Run[][]} */ this.slots = [];
    /** @type {Map<number, Request>} */ this.requests = new Map();
    /** @type {number[]} */ this.ended = [];
    /** @type {any} */ this.stats = null;
    this.now = 0;
    this.generated = this.computed = this.runTokens = 0; // tokens received so far: of iterations, and of runs
    /** @type {Set<string>} */ this.seen = new Set(); // what the legend explains
    this.clear();
  }

  clear() {
    this.table = new Float64Array(this.kept * WIDTH);
    this.next = this.oldest = this.now = this.generated = this.computed = this.runTokens = 0;
    this.slots = [];
    this.requests.clear();
    this.ended = [];
    this.stats = null;
    this.seen.clear();
  }

  /** @param {Hello} hello */
  greet(hello) {
    this.clear();
    this.hello = hello;
  }

  /** @param {Frame} frame */
  take(frame) {
    this.now = frame.now * S;
    if (frame.stats) this.stats = frame.stats;
    if (frame.iterations.length && frame.first !== this.next) {
      this.next = this.oldest = frame.first; // a gap: earlier iterations do not connect
      this.slots = [];
    }
    for (const row of frame.iterations) {
      const at = (this.next % this.kept) * WIDTH;
      this.table.set(row, at);
      this.table[at] *= S;
      this.table[at + 1] *= S;
      this.generated += row[GENERATED];
      this.computed += row[TOKENS];
      this.next++;
    }
    this.oldest = Math.max(this.oldest, this.next - this.kept);
    for (const [id, at, prompt, max, kind, , user = null, program = null, priority = 0] of frame.arrived) {
      this.requests.set(id, { id, arrival: at * S, prompt, max, kind, user, program, priority, admitted: null,
        first: null, end: null, how: null, generated: 0, runs: [], preempted: [] });
    }
    if (frame.arrived.length) this.seen.add("waiting");
    for (const row of frame.runs) this.#run(row);
    for (const [n, id] of frame.preempted) {
      this.seen.add("preempted");
      this.requests.get(id)?.preempted.push(n < this.next ? this.at(n, START) : this.now);
    }
    for (const row of frame.ended) this.#end(row);
    this.#forget();
  }

  /** @param {any[]} row */
  #end([id, how, arrival, admitted, first, end, generated]) {
    const s = (/** @type {number|null} */ t) => (t === null ? null : t * S);
    const request = this.requests.get(id);
    if (!request) return;
    Object.assign(request, { arrival: arrival * S, admitted: s(admitted), first: s(first), end: s(end), how, generated });
    this.ended.push(id);
  }

  /** @param {number[]} row */
  #run([id, slot, kind, first, count, tokens, accepted = 0, rejected = 0]) {
    this.runTokens += tokens;
    this.seen.add(KINDS[kind]).add("vacant");
    if (accepted) this.seen.add("accepted");
    if (rejected) this.seen.add("rejected");
    const last = first + count - 1;
    const request = this.requests.get(id), end = this.end(last);
    if (request) {
      request.admitted ??= this.at(first, START);
      if (kind !== CHUNK) request.first ??= this.end(kind === DECODE ? first : last);
      if (kind === DECODE) request.generated = Math.max(request.generated, 1) + tokens;
      else if (kind < CHUNK) request.generated = Math.max(request.generated, 1);
    }
    const runs = (this.slots[slot] ??= []);
    const before = runs[runs.length - 1];
    const same = (/** @type {number} */ drafts, /** @type {number} */ of) => drafts * (before.last - before.first + 1) === of * count;
    if (before && before.request === id && before.kind === kind && before.last === first - 1
      && same(accepted, before.accepted) && same(rejected, before.rejected)) {
      Object.assign(before, { last, tokens: before.tokens + tokens, accepted: before.accepted + accepted,
        rejected: before.rejected + rejected, end });
      return;
    }
    const run = { request: id, slot, kind, first, last, tokens, accepted, rejected, start: this.at(first, START), end };
    runs.push(run);
    request?.runs.push(run);
  }

  #forget() {
    const since = this.oldest < this.next ? this.at(this.oldest, START) : 0;
    for (const runs of this.slots) {
      if (!runs) continue;
      let gone = 0;
      while (gone < runs.length && runs[gone].last < this.oldest) gone++;
      if (gone > 64) runs.splice(0, gone);
    }
    while (this.ended.length > this.keptRequests) {
      this.requests.delete(/** @type {number} */ (this.ended.shift()));
    }
    while (this.ended.length && (this.requests.get(this.ended[0])?.end ?? 0) < since) {
      this.requests.delete(/** @type {number} */ (this.ended.shift()));
    }
  }

  /** A column of an iteration. @param {number} n @param {number} column */
  at(n, column) {
    return this.table[(n % this.kept) * WIDTH + column];
  }

  /** When an iteration ended, in s. @param {number} n */
  end(n) {
    return this.at(n, START) + this.at(n, DURATION);
  }

  /** The first kept iteration that ends after `t`; `next` where there is none. @param {number} t */
  after(t) {
    let low = this.oldest, high = this.next;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end(middle) > t) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** The iteration that runs at `t`, or null. @param {number} t */
  during(t) {
    const n = this.after(t);
    return n < this.next && this.at(n, START) <= t ? n : null;
  }

  /** The runs of a slot within a span of time. @param {number} slot @param {number} from @param {number} to */
  runs(slot, from, to) {
    const runs = this.slots[slot];
    if (!runs) return [];
    let low = 0, high = runs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (runs[middle].end > from) high = middle;
      else low = middle + 1;
    }
    let end = low;
    while (end < runs.length && runs[end].start < to) end++;
    return runs.slice(low, end);
  }

  /** Those without a slot now. */
  waiting() {
    return [...this.requests.values()].filter((r) => r.admitted === null && r.end === null);
  }

  running() {
    return [...this.requests.values()].filter((r) => r.admitted !== null && r.end === null);
  }

  /** Tokens per second over the newest `span` seconds up to `t`. @param {number} t @param {number} span */
  rate(t, span = 1) {
    let tokens = 0;
    for (let n = this.after(t - span); n < this.next && this.end(n) <= t; n++) tokens += this.at(n, GENERATED);
    return tokens / span;
  }
}

/** The middle of what is there; null of nothing. @param {number[]} values */
export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
