// @ts-check
/** The servers that the page's address names (`?with=`). Anyone can write such an address, so the page contacts no other
 * server before the user has agreed, and a key belongs to the one server that it was typed for. */

import { byId, element } from "./words.js";

const ADDRESS = /^https?:\/\/[a-z0-9.-]+(:[0-9]{1,5})?\/?$/i; // the server's Content-Security-Policy allows the same
const isAddress = (/** @type {string} */ text) => ADDRESS.test(text) && URL.canParse(text);
const stored = (/** @type {string} */ origin) => `key ${origin}`;

export class Servers {
  /** @param {string} named comma separated @param {() => string} ownKey the key of the server that sent this page */
  constructor(named, ownKey) {
    this.ownKey = ownKey;
    const texts = named.split(",").filter(Boolean);
    /** Origins. */
    this.all = texts.filter(isAddress).map((text) => new URL(text).origin);
    const wrong = texts.filter((text) => !isAddress(text));
    this.others = [...new Set(this.all.filter((origin) => origin !== location.origin))];
    this.agreed = !this.others.length && !wrong.length;
    /** @type {Map<string, HTMLInputElement>} */ this.fields = new Map();
    byId("others-list").append(
      ...this.others.map((origin) => this.row(origin)),
      ...wrong.map((text) => element("li", {}, element("code", {}, text), " is not used; allowed: http(s)://HOST[:PORT]")));
  }

  /** @param {string} origin */
  row(origin) {
    const field = /** @type {HTMLInputElement} */ (element("input", { type: "password", autocomplete: "off", size: "12" }));
    field.value = sessionStorage.getItem(stored(origin)) ?? "";
    this.fields.set(origin, field);
    return element("li", {}, element("code", {}, origin), element("label", {}, "its API key, if it needs one ", field));
  }

  agree() {
    for (const [origin, field] of this.fields) sessionStorage.setItem(stored(origin), field.value);
    this.agreed = true;
  }

  /** The key that this server may see. @param {string} origin */
  key(origin) {
    return origin === location.origin ? this.ownKey() : this.fields.get(origin)?.value ?? "";
  }
}
