// @ts-check
/** Requests that the page sends to its own server. */

import { headers, reason } from "./feed.js";
import { byId, element } from "./words.js";

/** @typedef {{prompt: string, num_tokens: number, after_s: number}} Played */

const PROMPTS = ["for i in range(", "def main():\n    ", "import os\n\ndef read(path):\n", "class Queue:\n    def put(self",
  "if __name__ == ", "with open(name) as file:\n    ", "return [x for x in ", "# sorts the list\ndef sort("];
const LONG = "def area(width, height):\n    return width * height\n\n".repeat(10);

/** The same numbers in every browser. @param {number} seed @returns {() => number} in [0, 1) */
function numbers(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Short and long prompts and outputs, as on the picture of the documentation. @param {() => number} random
 * @param {number} after_s @returns {Played} */
function request(random, after_s) {
  const prompt = random() < 0.2 ? LONG : PROMPTS[Math.floor(random() * PROMPTS.length)];
  const lengths = [10, 10, 30, 30, 90];
  return { prompt, num_tokens: lengths[Math.floor(random() * lengths.length)], after_s };
}

/** @param {number} n @param {number} mean_s between two @param {number} seed */
function some(n, mean_s, seed) {
  const random = numbers(seed);
  let at = 0;
  return Array.from({ length: n }, () => request(random, (at += -Math.log(1 - random()) * mean_s)));
}

/** Always the same twenty. */
export const twenty = () => some(20, 0.012, 5);

export class Room {
  /** @param {() => string} key @param {() => void} begun what a button also does
   * @param {() => boolean} chats whether the model has a chat template */
  constructor(key, begun, chats) {
    this.key = key;
    this.chats = chats;
    this.seed = 1000;
    this.rate = 0;
    /** @type {AbortController|null} */ this.asking = null;
    byId("twenty").addEventListener("click", () => (begun(), this.send(twenty())));
    byId("burst").addEventListener("click", () => (begun(), this.send(some(60, 0.0005, this.seed++))));
    byId("load").addEventListener("input", () => {
      this.rate = Number(byId("load").value);
      byId("load-shown").textContent = this.rate ? `${this.rate} /s` : "off";
      if (this.rate) begun();
    });
    byId("prompt-form").addEventListener("submit", (/** @type {Event} */ e) => {
      e.preventDefault();
      begun();
      this.ask(byId("prompt").value);
    });
    setInterval(() => document.visibilityState === "visible" && this.rate && this.load(), 1000);
  }

  /** One second of the load. */
  load() {
    const random = numbers(this.seed++);
    const requests = [];
    for (let at = -Math.log(1 - random()) / this.rate; at < 1; at += -Math.log(1 - random()) / this.rate) {
      requests.push(request(random, at));
    }
    if (requests.length) this.send(requests);
  }

  /** @param {Played[]} requests */
  async send(requests) {
    try {
      const response = await fetch("/watch/play", {
        method: "POST", headers: { ...headers(this.key()), "Content-Type": "application/json" },
        body: JSON.stringify({ requests }) });
      if (!response.ok) throw new Error(await reason(response));
      const { refused } = await response.json();
      if (refused) this.say(`${refused} of ${requests.length} requests were refused: the queue is full (--max-waiting)`);
    } catch (error) {
      this.say(`not sent: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** One prompt, in the chat template if the model has one, and its response as it comes. @param {string} prompt */
  async ask(prompt) {
    this.asking?.abort();
    this.asking = new AbortController();
    const chats = this.chats();
    const [path, fields] = chats
      ? ["/v1/chat/completions", { messages: [{ role: "user", content: prompt }], max_tokens: 60 }]
      : ["/inference", { prompt, num_tokens: 60 }];
    const shown = byId("answer"), text = document.createTextNode(chats ? "\n" : "");
    shown.hidden = false;
    shown.replaceChildren(element("b", {}, prompt), text);
    try {
      const response = await fetch(path, {
        method: "POST", headers: { ...headers(this.key()), "Content-Type": "application/json" }, signal: this.asking.signal,
        body: JSON.stringify({ ...fields, temperature: 0.7, stream: true }) });
      if (!response.ok || !response.body) throw new Error(await reason(response));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        const events = (rest + value).split("\n\n");
        rest = events.pop() ?? "";
        for (const event of events.filter((e) => e.startsWith("data: ") && e !== "data: [DONE]")) {
          const told = JSON.parse(event.slice(6));
          if (told.error) throw new Error(told.error.message ?? told.error);
          if (told.choices) text.data += told.choices[0].delta.content ?? "";
          else if (!told.done) text.data += told.text;
        }
      }
    } catch (error) {
      if (!this.asking.signal.aborted) this.say(`no response: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** @param {string} text */
  say(text) {
    byId("answer").hidden = false;
    byId("answer").textContent = text;
  }
}
