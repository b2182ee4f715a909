// The two requests that this page sends, and what came back. It knows HTTP and the shape of refusals; it must not
// know the page. Addresses are relative to the page's own, so that a path before it holds for them too.

import { Fields, line, parse } from "./json.js";

export function addressOf(path) {
  return new URL(path, document.baseURI).href;
}

function call(path, key, options) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  return fetch(addressOf(path), { ...options, headers, credentials: "omit", cache: "no-store" });
}

/** The models' names and descriptions, or none where the server does not say. */
export async function listModels(key) {
  try {
    const response = await call("v1/models", key);
    const models = parse(await response.text()).get("models") ?? [];
    return models.map((model) => ({ name: model.get("name"), description: model.get("description") }));
  } catch {
    return [];
  }
}

/**
 * One request's outcome: { status, body, ms, timing, id, wait }. `body` is undefined where it is no JSON; `status` is
 * 0 where nothing came back; `timing` is [name, milliseconds] pairs. Throws if `signal` ends it.
 */
export async function decide(request, key, signal) {
  const began = performance.now();
  try {
    const response = await call("v1/systemone", key, { method: "POST", body: line(request), signal });
    const text = await response.text();
    const { headers, status } = response;
    const stages = (headers.get("Server-Timing") ?? "").matchAll(/([\w-]+);dur=([\d.]+)/g);
    return {
      status,
      body: parsed(text),
      ms: performance.now() - began,
      timing: [...stages].map(([, name, ms]) => [name, Number(ms)]),
      id: headers.get("X-Request-Id"),
      wait: headers.get("Retry-After"),
    };
  } catch (error) {
    if (signal.aborted) throw error;
    return { status: 0 };
  }
}

function parsed(text) {
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

/** Whether an outcome is a decision. */
export function decided({ status, body }) {
  return status === 200 && body instanceof Fields && body.get("answers") instanceof Fields;
}

/** Why an outcome is none: a list of { loc, words }; `loc` is a path in the request, null where none is named. */
export function refusals({ status, body, wait }) {
  if (!status) return [{ loc: null, words: "The server cannot be reached." }];
  const detail = body instanceof Fields ? body.get("detail") : null;
  if (Array.isArray(detail)) {
    return detail.map((error) => ({ loc: error.get("loc").slice(1).map(String), words: error.get("msg") }));
  }
  const words = (detail instanceof Fields ? detail.get("message") : detail) ?? `The server answered with status ${status}.`;
  return [{ loc: namedIn(words), words: wait ? `${words} Try again in ${wait} s.` : words }];
}

/** The path that a refusal without a list of fields names in its words: "Question 'team', criteria: ...". */
function namedIn(words) {
  const [, id, name] = words.match(/Question '(.*?)', (\w+)/s) ?? [];
  if (id !== undefined) return ["questions", id, name];
  return words.startsWith("Unknown model") ? ["model"] : null;
}
