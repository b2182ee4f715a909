// What an answer says, in one form for all types of question and both of the worker's wires. Pure.

import { Fields } from "./json.js";
import { asText } from "./request.js";

/** A question's options in the model's order: { name, text, label }; `label` is its value in labelled decisions. */
export function optionsOf(question) {
  const criteria = question.get("criteria");
  const described = (name, value, label) => ({ name, text: asText(value ?? ""), label });
  switch (question.get("type")) {
    case "choice":
      // laya-serve's wire also takes a list of names.
      return Array.isArray(criteria)
        ? criteria.map((name) => described(name, null, name))
        : criteria.pairs.map(([name, text]) => described(name, text, name));
    case "score":
      return criteria.map((level, i) => described(String(i), level, i));
    default:
      return [true, false].map((label) => described(String(label), criteria?.get(String(label)), label));
  }
}

/** An answer: { shares (of the options), top (the likeliest one's index), score and confidence (or undefined) }. */
export function reading(answer, options) {
  const yes = Number(answer.get("noul"));
  const shares = options.map(({ name, label }) =>
    answer.get("type") === "noul" ? (label ? yes : 1 - yes) : Number(answer.get("probabilities").get(name)));
  return { shares, top: shares.indexOf(Math.max(...shares)), score: answer.get("score"), confidence: answer.get("confidence") };
}

export function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  if (share < 1 && share > 0.999) return "> 99.9 %";
  return `${(share * 100).toFixed(1)} %`;
}

/** What a field of `usage` says of a question. `options` is laya-serve's wire's. */
const NOTES = {
  x_instruction_tokens_dropped: (tokens) => `The last ${tokens.text} tokens of the instructions were not read.`,
  x_shortened_options: (names) => `Shortened before the model read them: ${names.join(", ")}.`,
  x_indistinguishable_options: (groups) => `The same to the model, as it reads them: ${groups.map((names) => names.join(" = ")).join("; ")}.`,
  x_option_parts: (parts) => `There are many options: they were read in ${parts.text} parts.`,
  options: (options) => `Of ${options.get("total").text} options the model can tell ${options.get("distinct").text} apart.`,
};

/**
 * What the model did not read: { used, dropped (tokens of the state), truncated (ids of the questions that lost
 * some), notes (sentences by question id) }.
 */
export function cuts(usage) {
  const field = (name) => usage.get(`x_${name}`) ?? usage.get(name);
  const dropped = Number(field("state_tokens_dropped") ?? 0);
  // laya-serve's wire counts the whole state.
  const used = Number(usage.get("x_state_tokens_used") ?? Number(usage.get("state_tokens") ?? 0) - dropped);
  const notes = new Map();
  for (const [name, words] of Object.entries(NOTES)) {
    const told = usage.get(name);
    if (told instanceof Fields) told.pairs.forEach(([id, value]) => notes.set(id, [...(notes.get(id) ?? []), words(value)]));
  }
  return { used, dropped, truncated: field("truncated_questions") ?? [], notes };
}

/**
 * The state's text in two parts about where it was cut, and whether the first was read. Words and marks stand for
 * tokens, so the place is near the real one.
 */
export function splitState(state, { used, dropped }) {
  const text = asText(state);
  const pieces = text.match(/\s*(?:[\p{L}\p{M}]+|\p{N}|[^\s\p{L}\p{N}])/gu) ?? [];
  const firstRead = !Array.isArray(state);
  const first = Math.round((pieces.length * (firstRead ? used : dropped)) / (used + dropped));
  const at = pieces.slice(0, first).join("").length;
  return { parts: [text.slice(0, at), text.slice(at)], firstRead };
}
