// @ts-check
/** Servers that a comparison measures one after the other: of each its run of the newest workload. */

import { follow } from "./feed.js";
import { Store } from "./store.js";

/** @typedef {import("./store.js").Request} Request */
/** @typedef {import("./modes.js").Run} Run */
/** @typedef {import("./servers.js").Servers} Servers */
/** @typedef {{key: string, workload: string, requests: Request[], whole: boolean}} Seen `whole`: from its first request on */
/** @typedef {{url: string, name: string, store: Store, greeted: boolean, told: number, busy: number, seen: Seen|null,
 *   problem: string, end: () => void}} Server `told`, `busy`: when a frame came, and one with a request, in ms of the
 *   page's clock; `problem`: why it is not connected */

// what a comparison names its requests (X-Request-Id): workload / system / run / index
const NAMED = /^([^/]+)\/([^/]+)\/([^/]+)\/(\d+)$/;
const QUIET_MS = 1500; // after which a run whose requests have all ended is over

/** A system's name; as it is, if another client sent it. @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export class Measured {
  /** @param {Servers} servers */
  constructor(servers) {
    this.workload = "";
    /** @type {Server[]} */
    this.servers = servers.all.map((url) => {
      /** @type {Server} */
      const server = { url, name: new URL(url).host, store: new Store(), greeted: false, told: 0, busy: 0, seen: null,
        problem: "", end: () => {} };
      server.end = follow(url, () => servers.key(url), {
        hello: (hello) => {
          server.store.greet(hello);
          server.name = hello.mode;
          server.greeted = false;
          server.seen = null; // its requests are numbered from 0 again
        },
        frame: (frame) => this.take(server, frame),
        state: (text, ok) => (server.problem = ok ? "" : text),
      });
      return server;
    });
  }

  end() {
    for (const server of this.servers) server.end();
  }

  /** @param {Server} server @param {import("./store.js").Frame} frame */
  take(server, frame) {
    server.store.take(frame);
    server.told = performance.now();
    for (const [id, , , , , name] of frame.arrived) {
      const found = NAMED.exec(name ?? "");
      if (!found) continue;
      const [, workload, system, run, index] = found;
      server.name = decoded(system);
      if (server.seen?.key !== `${workload}/${run}`) {
        // what was there before the page was may have lost its beginning
        server.seen = { key: `${workload}/${run}`, workload, requests: [], whole: server.greeted || index === "0" };
      }
      this.workload = workload;
      server.busy = server.told;
      const request = server.store.requests.get(id);
      if (request) server.seen.requests.push(request);
    }
    server.greeted = true;
  }

  /** One for each server; without requests where it has not run this workload. @param {number} ms @returns {Run[]} */
  runs(ms) {
    const newest = Math.max(...this.servers.map((server) => server.busy));
    return this.servers.map(({ name, seen, store, told, busy, problem }) => {
      if (!seen?.whole || seen.workload !== this.workload) return { name, requests: [], zero: 0, end: 0, now: Infinity, problem };
      const zero = Math.min(...seen.requests.map((r) => r.arrival));
      const last = Math.max(...seen.requests.map((r) => (r.end ?? zero) - zero));
      const over = seen.requests.every((r) => r.end !== null) && (busy < newest || ms - busy > QUIET_MS);
      const now = over ? Infinity : store.now + (ms - told) / 1000 - zero;
      return { name, requests: seen.requests, zero, end: over ? last : now, now };
    });
  }
}
