// The answers: one table for each question, with a column for each model. It knows how a decision is shown and
// marked; it must not know how it was asked for.

import { button, byId, element } from "./dom.js";
import { pretty } from "./json.js";
import { cuts, optionsOf, percent, reading, splitState } from "./reading.js";
import { asText, questionsOf } from "./request.js";

/**
 * Draws what `request` got: `outcomes`, a column each. `labels`: what is right, by question id. `mark(id, label,
 * focus)` is called with a label, null for one that is not said yet, or undefined for none.
 */
export function drawAnswers(request, outcomes, labels, mark) {
  const columns = outcomes.map((outcome) => ({
    outcome,
    model: outcome.body.get("model"),
    answers: outcome.body.get("answers"),
    cuts: cuts(outcome.body.get("usage")),
  }));
  const sections = questionsOf(request).map(([id, question], index) => {
    const options = optionsOf(question);
    const readings = columns.map(({ answers }) => reading(answers.get(id), options));
    return answerSection({ id, question, index, columns, options, readings, labels, mark });
  });
  const below = columns.flatMap((column) => [cutState(request.get("state"), column), costs(column)]);
  byId("answers").replaceChildren(...sections, ...below.filter(Boolean));
  document.querySelectorAll(".cut").forEach((cut) => (cut.parentNode.scrollTop = cut.offsetTop - cut.parentNode.offsetTop - 80));
}

/** What a screen reader is told of an outcome. */
export function spoken(request, outcome) {
  return questionsOf(request).map(([id, question]) => {
    const options = optionsOf(question);
    const { shares, top } = reading(outcome.body.get("answers").get(id), options);
    return `${id}: ${titleOf(options[top])}, ${percent(shares[top])}.`;
  }).join(" ");
}

function titleOf({ name, text, label }) {
  return typeof label === "number" ? `${name} ${text}` : name;
}

function answerSection(parts) {
  const { id, question, index, columns } = parts;
  const instructions = question.get("instructions");
  return element("section.card", { "aria-labelledby": `a${index}-title` },
    element("h3", { id: `a${index}-title` }, id),
    instructions ? element("p.soft", asText(instructions)) : null,
    element("div.scroll", table(parts)),
    ...columns.flatMap((column) => notes(id, column, columns.length > 1)),
    rightAnswer(parts));
}

function notes(id, { model, cuts }, several) {
  const words = [...(cuts.notes.get(id) ?? [])];
  if (cuts.dropped && cuts.truncated.includes(id)) words.unshift("Decided without the whole state: see what was cut below.");
  return words.map((words) => element("p.note", several ? `${model}: ${words}` : words));
}

function table(parts) {
  const { index, columns, options, readings } = parts;
  const heads = columns.map(({ model }) => element("th", { scope: "col" }, model));
  const rows = options.map(({ name, text }, i) =>
    row([element("b", name), text ? element("span.soft", text) : null],
      readings.map(({ shares, top }) => [bar(shares[i], i === top)])));
  return element("table", { "aria-labelledby": `a${index}-title` },
    element(columns.length > 1 ? "thead" : "thead.unseen", element("tr", element("td"), ...heads)),
    element("tbody", row(["Answer"], readings.map((_, column) => decision(parts, column))), ...rows));
}

function row(head, cells) {
  return element("tr", element("th", { scope: "row" }, ...head), ...cells.map((cell) => element("td", ...cell)));
}

/** A model's answer, how sure it is, and whether someone finds it right. */
function decision({ id, index, columns, options, readings, labels, mark }, column) {
  const { top, score, confidence } = readings[column];
  const words = titleOf(options[top]);
  const others = options.filter((_, i) => i !== top);
  const right = labels.has(id) && labels.get(id) === options[top].label;
  const marker = (name, pressed, label) => {
    const id_ = `a${index}-${name.toLowerCase()}-${column}`;
    const ariaLabel = `${name}: ${words}${columns.length > 1 ? `, ${columns[column].model}` : ""}`;
    return button(name, () => mark(id, pressed ? undefined : label, id_), { id: id_, ariaLabel, ariaPressed: String(pressed) });
  };
  return [
    element("strong", words),
    element("span.soft", [
      score === undefined ? "" : `score ${Number(score).toFixed(2)} · `,
      confidence === undefined ? "" : `confidence ${percent(Number(confidence))}`,
    ].join("")),
    element("span.marks",
      marker("Right", right, options[top].label),
      marker("Wrong", labels.has(id) && !right, others.length === 1 ? others[0].label : null)),
  ];
}

function bar(share, top) {
  const fill = element(top ? "span.top" : "span");
  fill.style.width = `${share * 100}%`;
  return element("span.share", element("span.bar", { ariaHidden: "true" }, fill), element("span", percent(share)));
}

/** Where the right answer is chosen, once a question is marked. */
function rightAnswer({ id, index, options, labels, mark }) {
  if (!labels.has(id)) return null;
  const chosen = options.findIndex(({ label }) => label === labels.get(id));
  const select = element("select", { id: `a${index}-label`, on: { change: () => mark(id, options[select.value].label, select.id) } },
    element("option", { value: "", disabled: true }, "Choose the right answer"),
    ...options.map((option, i) => element("option", { value: i }, titleOf(option))));
  select.value = chosen < 0 ? "" : chosen;
  return element("p.right-answer", element("label", { htmlFor: select.id }, "The right answer"), select);
}

function cutState(state, { model, cuts }) {
  if (!cuts.dropped) return null;
  const { parts, firstRead } = splitState(state, cuts);
  const shown = parts.map((text, i) => {
    const read = (i === 0) === firstRead;
    return element(read ? "span" : "span.cut", element("b", read ? "Read: " : "Not read: "), text);
  });
  return element("section.card", { ariaLabel: "What was cut" },
    element("h3", "What was cut"),
    element("p", `${model} read ${cuts.used} of the state's ${cuts.used + cuts.dropped} tokens: its ` +
      `${firstRead ? "beginning" : "end"}. The cut's place is right to within a few words.`),
    element("div.state-text", { tabIndex: 0, role: "region", ariaLabel: "The state, and where it was cut" }, ...shown));
}

/** What a decision cost, and the answer as it came. */
function costs({ model, outcome }) {
  const { timing, ms, id, body } = outcome;
  const stages = timing.map(([name, value]) => `${name} ${value.toFixed(1)}`).join(", ");
  return element("div.costs",
    element("p", element("b", model), ` · ${body.get("usage").get("input_tokens").text} tokens · ${ms.toFixed(0)} ms here`,
      stages ? ` · in the worker, ms: ${stages}` : null, id ? ` · request ${id}` : null),
    element("details", element("summary", "Answer as JSON"), element("pre", { tabIndex: 0 }, pretty(body))));
}
