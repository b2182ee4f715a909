// The request as one document: `Fields` with model, state and questions. It knows the three types of question and
// how a request fits in a link; it must not know the page.

import { copy, Fields, line, parse } from "./json.js";

export const TYPES = { choice: "Choice", score: "Score", noul: "Yes or no (noul)" };

/** What a question of a new type begins with. */
const CRITERIA = {
  choice: () => new Fields([["option 1", null], ["option 2", null]]),
  score: () => ["low", "high"],
  noul: () => null,
};

export function isText(value) {
  return typeof value === "string";
}

/** A value as the model reads it: a string as it is, anything else as a line of JSON. */
export function asText(value) {
  return isText(value) ? value : line(value);
}

/** The request's questions as [id, question] pairs, or none where they are no object. */
export function questionsOf(request) {
  const questions = request.get("questions");
  return questions instanceof Fields ? questions.pairs : [];
}

/** Whether a question is of a known type and its criteria have that type's form. */
export function isUsual(question) {
  if (!(question instanceof Fields)) return false;
  const criteria = question.get("criteria");
  const type = question.get("type");
  if (type === "score") return Array.isArray(criteria);
  return criteria instanceof Fields ? type in TYPES : criteria == null && type === "noul";
}

/** `name`, or with the first number behind it that none of `taken` has. */
export function free(name, taken) {
  const stem = name.replace(/ \d+$/, "");
  let found = name;
  for (let n = 2; taken.includes(found); n++) found = `${stem} ${n}`;
  return found;
}

export function addQuestion(request, type) {
  if (!(request.get("questions") instanceof Fields)) request.set("questions", new Fields());
  const pairs = questionsOf(request);
  const question = new Fields([["type", type], ["instructions", ""]]);
  pairs.push([free("question 1", pairs.map(([id]) => id)), withCriteria(question, CRITERIA[type]())]);
}

function withCriteria(question, criteria) {
  if (criteria) question.set("criteria", criteria);
  else question.delete("criteria");
  return question;
}

export function duplicateQuestion(request, index) {
  const pairs = questionsOf(request);
  const [id, question] = pairs[index];
  pairs.splice(index + 1, 0, [free(id, pairs.map(([id]) => id)), copy(question)]);
}

export function moveQuestion(request, from, to) {
  const pairs = questionsOf(request);
  pairs.splice(to, 0, ...pairs.splice(from, 1));
}

/** Makes a usual question one of another type; a choice's options and a score's levels become each other. */
export function changeType(question, type) {
  const before = question.get("criteria");
  let criteria = CRITERIA[type]();
  if (type === "score" && question.get("type") === "choice") criteria = before.names;
  if (type === "choice" && question.get("type") === "score") criteria = new Fields(before.map((level) => [asText(level), null]));
  withCriteria(question.set("type", type), criteria);
}

/** Which editor fits a state: text, conversation (messages of role and content) or json. */
export function kindOf(state) {
  if (isText(state)) return "text";
  return Array.isArray(state) && state.length && state.every(isMessage) ? "conversation" : "json";
}

function isMessage(value) {
  return value instanceof Fields && line(value.names) === '["role", "content"]' && value.pairs.every(([, part]) => isText(part));
}

export function message(role, content) {
  return new Fields([["role", role], ["content", content]]);
}

/** A state made fit for another editor. */
export function convertState(state, kind) {
  if (kind === "json" || kind === kindOf(state)) return state;
  if (kind === "conversation") return [message("user", asText(state ?? ""))];
  if (kindOf(state) === "conversation") return state.map((turn) => turn.pairs.map(([, part]) => part).join(": ")).join("\n");
  return asText(state ?? "");
}

/** Names that come twice, which JSON's readers do not take alike: [question's index, the part that has it, name]. */
export function repeated(request) {
  const twice = (names) => names.filter((name, i) => names.indexOf(name) < i);
  const pairs = questionsOf(request);
  const ids = twice(pairs.map(([id]) => id)).map((id) => [pairs.findLastIndex((pair) => pair[0] === id), "id", id]);
  const options = pairs.flatMap(([, question], i) =>
    isUsual(question) ? twice(question.get("criteria")?.names ?? []).map((name) => [i, "criteria", name]) : []);
  return [...ids, ...options];
}

const LINK = "#request=";

/** The fragment of a link that holds the request: base64url of its JSON. A browser sends no fragment. */
export function toFragment(request) {
  const binary = Array.from(new TextEncoder().encode(line(request)), (byte) => String.fromCharCode(byte)).join("");
  return LINK + btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** The request that a fragment holds; null if it holds none that can be read. */
export function fromFragment(fragment) {
  if (!fragment.startsWith(LINK)) return null;
  try {
    const binary = atob(fragment.slice(LINK.length).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
    const request = parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    return request instanceof Fields ? request : null;
  } catch {
    return null;
  }
}
