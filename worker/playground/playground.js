// The page. `request` is the one document: the form and the JSON are two views of it, and every change is made in it.

import { drawAnswers, spoken } from "./answers.js";
import { button, byId, element, pin } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { addButtons, controlAt, drawForm, failure } from "./form.js";
import { copy, Fields, line, parse, pretty } from "./json.js";
import { Marks } from "./marks.js";
import { fromFragment, repeated, toFragment } from "./request.js";
import { addressOf, decide, decided, listModels, refusals } from "./server.js";
import { curl, javascript, python } from "./snippets.js";

const LANGUAGES = { curl, "Python SDK": python, "JavaScript SDK": javascript };

let request;
let stateKind = null; // the state's editor, where someone chose one
let models = [];
const others = new Set(); // names of the models to compare with
let key = "";
let sending = null; // the AbortController of what is under way
let answered = null; // the last request that was answered, and its outcomes
let language = "curl";
const marks = new Marks();

const page = {
  edited() {
    byId("json").value = pretty(request);
    pin("json", "");
    followed();
  },
  rebuilt(focus) {
    drawForm(request, stateKind, page);
    page.edited();
    byId(focus)?.focus();
  },
  kindChosen(kind) {
    stateKind = kind;
  },
  say,
};

/** Says what happened, beside Send and to a screen reader. */
function say(words) {
  byId("status").textContent = words;
}

/** What else shows the document. */
function followed() {
  drawCode();
  byId("stale").hidden = !answered || line(answered.request) === line(request);
}

/** Another document, in every view but the JSON. */
function replace(found, kind = null) {
  request = found;
  stateKind = kind;
  drawForm(request, stateKind, page);
  drawModels();
  broken(false);
  followed();
}

function load(found) {
  replace(found);
  page.edited();
}

function broken(is) {
  byId("broken").hidden = !is;
  byId("parts").disabled = is;
}

function jsonChanged() {
  let found;
  const unread = failure(() => (found = parse(byId("json").value)));
  const words = unread || (found instanceof Fields ? "" : "A request is an object, in braces.");
  pin("json", words);
  if (words) broken(true);
  else replace(found, stateKind);
}

// Models

async function findModels() {
  models = await listModels(key);
  drawModels();
}

function drawModels() {
  const chosen = request.get("model") ?? "";
  const unlisted = models.some(({ name }) => name === chosen) || !chosen ? [] : [{ name: String(chosen) }];
  byId("model").replaceChildren(
    element("option", { value: "" }, "the server's default"),
    ...[...unlisted, ...models].map(({ name }) => element("option", { value: name }, name)));
  byId("model").value = chosen;
  byId("model-description").textContent = models.find(({ name }) => name === chosen)?.description ?? "";
  byId("compare").hidden = models.length < 2;
  byId("others").replaceChildren(...models.filter(({ name }) => name !== chosen).map(({ name }) => {
    const change = (event) => (event.target.checked ? others.add(name) : others.delete(name));
    return element("label.check", element("input", { type: "checkbox", value: name, checked: others.has(name), on: { change } }), name);
  }));
}

function modelChosen() {
  if (byId("model").value) request.set("model", byId("model").value);
  else request.delete("model");
  pin("model", "");
  drawModels();
  page.edited();
}

// Sending

/** Sends the request, once for each model. */
async function send() {
  if (!sendable()) return;
  sending?.abort();
  const { signal } = (sending = new AbortController());
  byId("send").textContent = "Sending…";
  const names = [...others].filter((name) => name !== request.get("model"));
  const asked = [copy(request), ...names.map((name) => copy(request).set("model", name))];
  const settled = await Promise.allSettled(asked.map((one) => decide(one, key, signal)));
  if (signal.aborted) return;
  byId("send").textContent = "Send";
  const outcomes = settled.map(({ value }, i) => ({ ...value, asked: asked[i].get("model") ?? "default" }));
  const locked = outcomes.find(({ status }) => status === 401 || status === 403);
  if (locked) askKey(refusals(locked)[0].words, send);
  else show(asked[0], outcomes);
}

/** Whether every view can be read; the first that cannot gets the focus. */
function sendable() {
  byId("refused").replaceChildren();
  for (const control of document.querySelectorAll("[aria-invalid]")) {
    // What the server said is out of date. What cannot be read still cannot.
    if (control.className !== "code" || !failure(() => parse(control.value))) pin(control.id, "");
  }
  repeated(request).forEach(([index, part, name]) => pin(`q${index}-${part}`, `“${name}” is there twice.`));
  const wrong = focusFirstError();
  if (wrong) say(byId(`${wrong.id}-error`).textContent);
  return !wrong;
}

function focusFirstError() {
  const wrong = document.querySelector("[aria-invalid]");
  wrong?.focus();
  return wrong;
}

function show(asked, outcomes) {
  const found = outcomes.filter(decided);
  answered = found.length ? { request: asked, outcomes: found } : null;
  byId("answers").replaceChildren();
  followed();
  if (answered) {
    drawAnswered();
    say(`Answered. ${spoken(asked, found[0])}`);
    if (byId("answers-title").getBoundingClientRect().top > innerHeight) byId("answers-title").scrollIntoView();
  }
  showRefused(outcomes.filter((outcome) => !decided(outcome)), outcomes.length > 1);
}

/** Each refusal stands at its field, and above the answers as a way to it. */
function showRefused(outcomes, several) {
  const lines = outcomes.flatMap((outcome) => refusals(outcome).map(({ loc, words }) => {
    const id = loc && controlAt(request, loc);
    if (id) pin(id, words);
    const text = several ? `${outcome.asked}: ${words}` : words;
    return element("li",
      id ? button(text, () => byId(id).focus(), { className: "link" }) : text,
      outcome.id ? element("small", ` request ${outcome.id}`) : null);
  }));
  if (!lines.length) return;
  say("");
  byId("refused").append(element("div.alert", element("p", "The request was refused."), element("ul", ...lines)));
  focusFirstError();
}

// Marks

function drawAnswered() {
  drawAnswers(answered.request, answered.outcomes, marks.of(answered.request), mark);
  byId("marked").hidden = !marks.count;
  byId("mark-count").textContent = marks.count === 1 ? "1 answer marked" : `${marks.count} answers marked`;
}

function mark(id, label, focus) {
  const labels = marks.of(answered.request);
  if (label === undefined) labels.delete(id);
  else labels.set(id, label);
  drawAnswered();
  byId(label === null ? focus.replace(/wrong-\d+$/, "label") : focus)?.focus();
}

function download() {
  const href = URL.createObjectURL(new Blob([marks.lines()], { type: "application/x-ndjson" }));
  element("a", { href, download: "decisions.jsonl" }).click();
  // The browser has taken it by then.
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

// The key

/** Asks for the key; `then` goes on with it. */
function askKey(why, then) {
  const dialog = byId("key-dialog");
  byId("key-why").textContent = why;
  byId("key").value = key;
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue !== "use") return;
    key = byId("key").value.trim();
    byId("key").value = "";
    findModels();
    then?.();
  };
  dialog.showModal();
  byId("key").select();
}

// Code and links

function drawCode() {
  byId("code").textContent = LANGUAGES[language](request, addressOf("./"));
}

function copyAs(name) {
  language = name;
  drawCode();
  toClipboard(byId("code").textContent, name);
}

function copyLink() {
  history.replaceState(null, "", toFragment(request));
  toClipboard(location.href, "Link");
}

async function toClipboard(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied.`);
  } catch {
    // Browsers let a page write there on https and on this machine alone.
    say(`${what} not copied: the browser forbids it. Copy it by hand from ${what === "Link" ? "the address bar" : "above"}.`);
  }
}

function openLink() {
  const found = fromFragment(location.hash);
  if (found) load(found);
  return found !== null;
}

const on = (id, event, act) => byId(id).addEventListener(event, act);
on("form", "submit", (event) => (event.preventDefault(), send()));
on("json", "input", jsonChanged);
on("model", "change", modelChosen);
on("download", "click", download);
on("copy-link", "click", copyLink);
on("enter-key", "click", () => askKey("If the server asks for a key, enter it here."));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || byId("key-dialog").open) return;
  event.preventDefault();
  send();
});
addEventListener("hashchange", openLink);
addEventListener("beforeunload", (event) => {
  if (marks.count) event.preventDefault();
});

const example = (name) => load(parse(JSON.stringify(EXAMPLES[name])));
byId("examples").append(...Object.keys(EXAMPLES).map((name) => button(name, () => (example(name), say(`Loaded: ${name}.`)))));
byId("add").append(...addButtons(() => request, page));
byId("languages").append(...Object.keys(LANGUAGES).map((name) => button(`Copy ${name}`, () => copyAs(name))));
if (!openLink()) example("Support ticket");
findModels();
