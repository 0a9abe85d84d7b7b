// @ts-check
/** The colours of the documentation, and hatches for viewers who cannot distinguish them. */

const LIGHT = {
  back: "#ffffff", panel: "#f6f7f9", line: "#e3e6ea", text: "#20242a", dim: "#646b75",
  waiting: "#d5d5d5", prefill: "#e8833a", chunk: "#f3b27f", decode: "#3b75af", held: "#9fc3e0", paused: "#b9bec6",
  preempted: "#c0392b", accepted: "#2f9e6e", rejected: "#d98880", hatch: "#ffffff", bright: "#111418", used: "#3b75af", cached: "#a9c7e2", free: "#eef0f3",
  label: "#ffffff",
};
const DARK = {
  back: "#14171c", panel: "#1b2027", line: "#2c333d", text: "#e4e8ee", dim: "#98a1ad",
  waiting: "#4b525c", prefill: "#ee8d45", chunk: "#a8673a", decode: "#5a97d3", held: "#37587a", paused: "#646c78",
  preempted: "#ff7665", accepted: "#4cc38a", rejected: "#8c4a43", hatch: "#14171c", bright: "#ffffff", used: "#5a97d3", cached: "#33506c", free: "#232a33",
  label: "#0d1013",
};
/** @typedef {typeof LIGHT} Palette */

/** @returns {Palette} */
export function palette() {
  return document.documentElement.dataset.theme === "dark" ? DARK : LIGHT;
}

/** Colours of kinds in the order of `KINDS`. @param {Palette} p */
export function kindColours(p) {
  return [p.prefill, p.chunk, p.decode, p.held, p.paused];
}

/** @type {Map<string, CanvasPattern>} */
const patterns = new Map();

/** Stripes on a colour. @param {CanvasRenderingContext2D} pen @param {string} colour @param {string} stripe
 * @param {boolean} steep */
function hatched(pen, colour, stripe, steep) {
  const key = `${colour}${stripe}${steep}`;
  let pattern = patterns.get(key);
  if (!pattern) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const brush = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 8, 8);
    brush.strokeStyle = stripe;
    brush.lineWidth = 1.6;
    brush.beginPath();
    for (const x of [-8, 0, 8]) {
      if (steep) brush.moveTo(x + 4, 0), brush.lineTo(x + 4, 8);
      else brush.moveTo(x, 8), brush.lineTo(x + 8, 0);
    }
    brush.stroke();
    pattern = /** @type {CanvasPattern} */ (pen.createPattern(tile, "repeat"));
    patterns.set(key, pattern);
  }
  return pattern;
}

/** How to fill a run of each kind. @param {CanvasRenderingContext2D} pen @param {Palette} p */
export function fills(pen, p) {
  return [p.prefill, hatched(pen, p.chunk, p.prefill, true), p.decode, hatched(pen, p.held, p.hatch, false),
    hatched(pen, p.paused, p.hatch, true)];
}

const HUES = [212, 28, 135, 285, 52, 335, 175, 0];

/** A colour for each user, program or priority, in order of appearance; grey for none. They repeat after eight. */
export class Groups {
  constructor() {
    /** @type {Map<number, number>} */ this.seen = new Map();
  }

  /** @param {number|null} value @param {Palette} p @param {boolean} pale while it waits or pauses */
  colour(value, p, pale) {
    if (value === null) return pale ? p.waiting : p.paused;
    if (!this.seen.has(value)) this.seen.set(value, this.seen.size);
    const hue = HUES[/** @type {number} */ (this.seen.get(value)) % HUES.length];
    const dark = document.documentElement.dataset.theme === "dark";
    return `hsl(${hue} ${pale ? 45 : 65}% ${pale === dark ? 35 : pale ? 78 : 50}%)`;
  }
}

/** @param {"auto"|"light"|"dark"} wanted */
export function setTheme(wanted) {
  const dark = wanted === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : wanted === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
