// @ts-check
/** The span of time that is shown: follows the newest, or stands where the user put it. Mouse, touch
 * and keyboard all end in `pan`, `zoom`, `stop` and `live`. */

import { START } from "./store.js";

/** @typedef {import("./store.js").Store} Store */

const LEAST_S = 0.0005, MOST_S = 600;
const KEEP_UP = 0.1; // share of its error by which the clock is corrected at each frame

export class View {
  /** @param {Store} store @param {() => void} changed */
  constructor(store, changed) {
    this.store = store;
    this.changed = changed;
    this.span = 6;
    this.to = 0; // right edge while paused
    this.follows = true;
    /** @type {number|null} */ this.offset = null; // server's clock - the page's
  }

  /** The server's time now, smooth between frames. */
  now() {
    return this.offset === null ? this.store.now : performance.now() / 1000 + this.offset;
  }

  /** A frame came. */
  sync() {
    const offset = this.store.now - performance.now() / 1000;
    if (this.offset === null || Math.abs(offset - this.offset) > 1) this.offset = offset;
    else this.offset += KEEP_UP * (offset - this.offset);
  }

  /** In seconds of the server's clock. @returns {[number, number]} from, to */
  window() {
    const to = this.follows ? this.now() : this.to;
    return [to - this.span, to];
  }

  stop() {
    if (this.follows) [, this.to] = this.window();
    this.follows = false;
    this.changed();
  }

  live() {
    this.follows = true;
    this.span = Math.max(this.span, 1);
    this.changed();
  }

  /** @param {number} s */
  pan(s) {
    const [, to] = this.window();
    const newest = this.now();
    if (to + s >= newest && !this.follows && s > 0) return this.live();
    this.stop();
    this.to = Math.min(Math.max(to + s, this.oldest() + this.span / 2), newest);
    this.changed();
  }

  /** @param {number} factor above 1: shows less @param {number} at share of the width that stays put */
  zoom(factor, at = 1) {
    const [from, to] = this.window();
    const span = Math.min(Math.max(this.span / factor, LEAST_S), MOST_S);
    if (this.follows && at < 0.98 && span < 1) this.stop();
    this.to = from + at * (to - from) + (1 - at) * span;
    this.span = span;
    this.changed();
  }

  /** Shows just this span. @param {number} from @param {number} to */
  show(from, to) {
    this.stop();
    const margin = 0.06 * (to - from);
    this.span = Math.max(to - from + 2 * margin, LEAST_S);
    this.to = to + margin;
    this.changed();
  }

  oldest() {
    const { store } = this;
    return store.oldest < store.next ? store.at(store.oldest, START) : store.now - this.span;
  }
}

/** Mouse and touch on the canvas. @param {HTMLElement} canvas @param {View} view
 * @param {() => [number, number]} plot left edge and width of the time axis, in px
 * @param {{hover: (x: number, y: number) => void, leave: () => void, pick: (x: number, y: number) => void,
 *   into: (x: number, y: number) => void}} on */
export function listen(canvas, view, plot, on) {
  /** @type {Map<number, PointerEvent>} */ const down = new Map();
  let moved = 0;
  /** @param {PointerEvent|WheelEvent|MouseEvent} e @returns {[number, number]} */
  const place = (e) => {
    const box = canvas.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  };
  const share = (/** @type {number} */ x) => {
    const [left, width] = plot();
    return Math.min(1, Math.max(0, (x - left) / width));
  };
  canvas.addEventListener("pointerdown", (e) => {
    down.set(e.pointerId, e);
    moved = 0;
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointermove", (e) => {
    const before = down.get(e.pointerId);
    if (!before) return on.hover(...place(e));
    const width = plot()[1];
    if (down.size === 2) {
      const other = /** @type {PointerEvent} */ ([...down.values()].find((d) => d.pointerId !== e.pointerId));
      const was = Math.abs(before.clientX - other.clientX), is = Math.abs(e.clientX - other.clientX);
      const [x] = place(e);
      if (was > 8 && is > 8) view.zoom(is / was, share(x));
      moved = 99;
    } else {
      const dx = e.clientX - before.clientX;
      moved += Math.abs(dx);
      if (moved > 4) view.pan((-dx * view.span) / width);
    }
    down.set(e.pointerId, e);
  });
  const up = (/** @type {PointerEvent} */ e) => {
    if (down.delete(e.pointerId) && moved <= 4 && e.type === "pointerup") on.pick(...place(e));
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", on.leave);
  canvas.addEventListener("dblclick", (e) => on.into(...place(e)));
  canvas.addEventListener("wheel", (e) => {
    const sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey;
    if (!sideways && !e.ctrlKey && !e.metaKey && !e.altKey) return; // the page scrolls
    e.preventDefault();
    if (sideways) view.pan(((e.deltaX || e.deltaY) * view.span) / plot()[1]);
    else view.zoom(Math.exp(-e.deltaY / 200), share(place(e)[0]));
  }, { passive: false });
}

/** The keyboard, where no field has it. @param {View} view @param {{into: () => void, step: (n: number) => void,
 *   back: () => void}} on */
export function keys(view, on) {
  /** @type {Record<string, () => void>} */
  const does = {
    " ": () => (view.follows ? view.stop() : view.live()),
    ArrowLeft: () => view.pan(-view.span / 4),
    ArrowRight: () => view.pan(view.span / 4),
    "+": () => view.zoom(1.6, view.follows ? 1 : 0.5),
    "=": () => view.zoom(1.6, view.follows ? 1 : 0.5),
    "-": () => view.zoom(1 / 1.6, view.follows ? 1 : 0.5),
    Home: () => view.pan(view.oldest() - view.window()[0]),
    End: () => view.live(),
    Enter: on.into,
    ",": () => on.step(-1),
    ".": () => on.step(1),
    Escape: on.back,
  };
  return (/** @type {KeyboardEvent} */ e) => {
    const target = /** @type {HTMLElement} */ (e.target);
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
    if (/^(BUTTON|A)$/.test(target.tagName) && (e.key === " " || e.key === "Enter")) return;
    const act = does[e.key];
    if (act) e.preventDefault(), act();
  };
}
