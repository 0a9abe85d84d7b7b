// @ts-check
/** Reads `/watch/events`. By `fetch`, since an EventSource cannot send an API key. */

/** @typedef {{hello: (hello: any) => void, frame: (frame: any) => void, state: (text: string, ok: boolean) => void}} Listener */

const AGAIN_MS = 1500;

/** @param {string} server "" or another server's address
 * @param {() => string} key @param {Listener} listener @returns {() => void} ends it */
export function follow(server, key, listener) {
  const over = new AbortController();
  (async () => {
    while (!over.signal.aborted) {
      const wait = await once(server, key(), listener, over.signal).catch((error) => {
        if (!over.signal.aborted) listener.state(`no connection (${error.message}); trying again`, false);
        return AGAIN_MS;
      });
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  })();
  return () => over.abort();
}

/** @param {string} key */
export function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : /** @type {Record<string, string>} */ ({});
}

/** What an error response says. @param {Response} response */
export async function reason(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : error.message;
  } catch {
    return text.slice(0, 200) || `status ${response.status}`;
  }
}

/** @param {string} server @param {string} key @param {Listener} listener @param {AbortSignal} signal
 * @returns {Promise<number>} ms until the next try */
async function once(server, key, listener, signal) {
  const response = await fetch(`${server}/watch/events`, { headers: headers(key), signal, cache: "no-store" });
  if (!response.ok || !response.body) {
    listener.state(await reason(response), false);
    return response.status === 401 ? 3 * AGAIN_MS : AGAIN_MS;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      tell(rest.slice(0, end), listener);
      rest = rest.slice(end + 2);
    }
  }
  listener.state("the server ended the stream; trying again", false);
  return AGAIN_MS;
}

/** @param {string} event @param {Listener} listener */
function tell(event, listener) {
  let name = "", data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data = line.slice(6);
  }
  if (name === "hello") {
    listener.hello(JSON.parse(data));
    listener.state("live", true);
  } else if (name === "frame") listener.frame(JSON.parse(data));
}
