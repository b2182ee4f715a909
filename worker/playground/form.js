// The form: one view of the request. It reads the document and changes it in place; it must not know what is sent.
//
// `page.edited()` follows a change that it shows already; `page.rebuilt(id)` one that it is drawn anew for, and gives
// the control with that id the focus.

import { button, byId, element, errorLine, field, pin } from "./dom.js";
import { Fields, parse, pretty } from "./json.js";
import {
  addQuestion, asText, changeType, convertState, duplicateQuestion, free, isText, isUsual, kindOf, message,
  moveQuestion, questionsOf, TYPES,
} from "./request.js";

const KINDS = { text: "Text", conversation: "Conversation", json: "JSON" };
const STATES = { text: textState, conversation: turnsState, json: jsonState };

/** Draws the state and the questions. `kind`: the state's editor that someone chose, if its value allows it. */
export function drawForm(request, kind, page) {
  const shown = kind === "json" ? kind : kindOf(request.get("state"));
  byId("state-editor").replaceChildren(stateKinds(request, shown, page), STATES[shown](request, page));
  byId("questions").replaceChildren(...questionsOf(request).map((_, index) => questionCard(request, index, page)));
}

/** The buttons that add a question of each type. They stay when the form is drawn anew. */
export function addButtons(request, page) {
  return Object.entries(TYPES).map(([type, label]) => {
    const add = () => {
      addQuestion(request(), type);
      page.rebuilt(`q${questionsOf(request()).length - 1}-instructions`);
    };
    return button(`Add ${label.toLowerCase()}`, add, { id: `add-${type}` });
  });
}

function stateKinds(request, shown, page) {
  const choose = (kind) => () => {
    request.set("state", convertState(request.get("state"), kind));
    page.kindChosen(kind);
    page.rebuilt(`state-${kind}`);
  };
  const kinds = Object.entries(KINDS).map(([kind, label]) => {
    const radio = { type: "radio", name: "kind", id: `state-${kind}`, checked: kind === shown, on: { change: choose(kind) } };
    return element("label.check", element("input", radio), label);
  });
  return element("div.tabs", { role: "radiogroup", ariaLabel: "What the state is" }, ...kinds);
}

function textState(request, page) {
  return field("The text to decide about", editor("state", request.get("state"), (text) => request.set("state", text), page));
}

function jsonState(request, page) {
  const set = (text) => {
    const wrong = failure(() => request.set("state", parse(text)));
    pin("state", wrong);
    return !wrong;
  };
  const value = request.get("state");
  const area = editor("state", value === undefined ? "" : pretty(value), set, page);
  area.className = "code";
  return field("The state, as JSON", area);
}

function turnsState(request, page) {
  const turns = request.get("state");
  const rows = turns.map((turn, i) => {
    const remove = () => {
      turns.splice(i, 1);
      page.rebuilt(turns.length ? `turn${Math.min(i, turns.length - 1)}-content` : "add-turn");
    };
    const part = (name, label, tag) =>
      editor(`turn${i}-${name}`, turn.get(name), (text) => turn.set(name, text), page, `${label} ${i + 1}`, tag);
    return element("li.row", part("role", "Speaker", "input"), part("content", "Message"),
      removeButton(`Remove message ${i + 1}`, remove, turns.length < 2));
  });
  const add = () => {
    turns.push(message(turns.at(-2)?.get("role") ?? "assistant", ""));
    page.rebuilt(`turn${turns.length - 1}-content`);
  };
  return group("state", "The messages to decide about", rows, button("Add message", add, { id: "add-turn" }));
}

/** Rows of controls that have something in common. */
function group(id, legend, rows, ...more) {
  return element("fieldset.field", { id, tabIndex: -1 }, element("legend", legend),
    element("ol.rows", ...rows), ...more, errorLine(id));
}

function questionCard(request, index, page) {
  const pair = questionsOf(request)[index];
  const [id, question] = pair;
  const title = element("h3", { id: `q${index}-title` }, `Question ${index + 1}`);
  const identity = field("Id", editor(`q${index}-id`, id, (text) => void (pair[0] = text), page, "", "input"));
  const body = isUsual(question)
    ? [
        element("div.pair", identity, typeField(question, index, page)),
        field("Instructions", editor(`q${index}-instructions`, question.get("instructions"), (text) => question.set("instructions", text), page)),
        criteriaField(question, index, page),
      ]
    : [identity, element("p.hint", "This question has a form that only the JSON shows.")];
  return element("section.card", { id: `q${index}`, tabIndex: -1, "aria-labelledby": title.id },
    element("div.card-head", title, questionButtons(request, index, page)), ...body, errorLine(`q${index}`));
}

function questionButtons(request, index, page) {
  const count = questionsOf(request).length;
  const act = (label, shown, change, disabled = false) => {
    const go = () => page.rebuilt(change());
    const id = `q${index}-${label.toLowerCase().replace(" ", "-")}`;
    return button(shown, go, { id, disabled, ariaLabel: `${label} question ${index + 1}`, title: label });
  };
  // At either end the button that was used cannot be used again: its twin gets the focus.
  const move = (to, end, way, back) => () => {
    moveQuestion(request, index, to);
    page.say(`Moved to place ${to + 1} of ${count}.`);
    return `q${to}-move-${to === end ? back : way}`;
  };
  const duplicate = () => {
    duplicateQuestion(request, index);
    return `q${index + 1}-id`;
  };
  const remove = () => {
    questionsOf(request).splice(index, 1);
    return count > 1 ? `q${Math.min(index, count - 2)}-id` : "add-choice";
  };
  return element("div.actions",
    act("Move up", "↑", move(index - 1, 0, "up", "down"), index === 0),
    act("Move down", "↓", move(index + 1, count - 1, "down", "up"), index === count - 1),
    act("Duplicate", "Duplicate", duplicate),
    act("Remove", "Remove", remove));
}

function typeField(question, index, page) {
  const options = Object.entries(TYPES).map(([value, label]) =>
    element("option", { value, selected: value === question.get("type") }, label));
  const change = (event) => {
    changeType(question, event.target.value);
    page.rebuilt(`q${index}-type`);
  };
  return field("Type", element("select", { id: `q${index}-type`, on: { change } }, ...options));
}

/** Each type's criteria: the list that rows are added to and taken from, and how each row is read and changed. */
const CRITERIA = {
  choice(question) {
    const list = question.get("criteria").pairs;
    const rows = list.map((pair) => ({
      name: pair[0],
      value: pair[1],
      rename: (text) => void (pair[0] = text),
      set: (text) => void (pair[1] = text || null),
    }));
    const fresh = () => [free("option 1", list.map(([name]) => name)), null];
    return { legend: "Options, and what each means", what: "option ", list, rows, fresh };
  },
  score(question) {
    const list = question.get("criteria");
    const rows = list.map((value, i) => ({ name: String(i), value, set: (text) => void (list[i] = text) }));
    return { legend: "Levels, lowest first", what: "level ", list, rows, fresh: () => "" };
  },
  noul(question) {
    const criteria = question.get("criteria") ?? new Fields();
    const set = (name) => (text) => {
      if (text) criteria.set(name, text);
      else criteria.delete(name);
      if (criteria.pairs.length) question.set("criteria", criteria);
      else question.delete("criteria");
    };
    const rows = ["true", "false"].map((name) => ({ name, value: criteria.get(name), set: set(name) }));
    return { legend: "What true and false mean (may be blank)", what: "", rows };
  },
};

function criteriaField(question, index, page) {
  const { legend, what, list, rows, fresh } = CRITERIA[question.get("type")](question);
  const id = (i, part) => `q${index}-o${i}-${part}`;
  const shown = rows.map(({ name, value, rename, set }, i) => {
    const label = what + (rename ? i + 1 : name);
    const remove = () => {
      list.splice(i, 1);
      page.rebuilt(list.length ? id(Math.min(i, list.length - 1), "text") : `q${index}-add`);
    };
    return element(rename ? "li.row" : "li.level", null,
      rename ? editor(id(i, "name"), name, rename, page, `Name of ${label}`, "input") : element("span", name),
      editor(id(i, "text"), value, set, page, `Meaning of ${label}`),
      list ? removeButton(`Remove ${label} of question ${index + 1}`, remove) : null);
  });
  const add = () => {
    list.push(fresh());
    page.rebuilt(id(list.length - 1, isText(list.at(-1)) ? "text" : "name"));
  };
  return group(`q${index}-criteria`, legend, shown, list ? button(`Add ${what}`, add, { id: `q${index}-add` }) : null);
}

function removeButton(ariaLabel, act, disabled = false) {
  return button("✕", act, { className: "small quiet", ariaLabel, disabled });
}

/**
 * An editor of a string, which goes to `set`; where that gives false, the document has not changed. Any other value
 * is shown as it is, and is changed in the JSON. `label`: where no other names it.
 */
function editor(id, value, set, page, label = "", tag = "textarea") {
  const plain = value == null || isText(value);
  const input = (event) => {
    pin(id, "");
    const around = event.target.closest("fieldset[id]");
    if (around) pin(around.id, "");
    if (set(event.target.value) !== false) page.edited();
  };
  return element(tag, {
    id, value: plain ? (value ?? "") : asText(value), placeholder: label, ariaLabel: label || null, autocomplete: "off",
    readOnly: !plain, title: plain ? "" : "Not plain text: change it in the JSON.", ...(tag === "textarea" && { rows: 1 }), on: { input },
  });
}

/** The message of what `act` throws, or "". */
export function failure(act) {
  try {
    act();
    return "";
  } catch (error) {
    return error.message;
  }
}

/** The id of the control at a path in the request: the nearest one that the form has, or the JSON's. */
export function controlAt(request, [part, id, name]) {
  if (part === "state" || part === "model") return part;
  // A refusal has an id's first 100 characters.
  const same = (other) => other === id || (id?.endsWith("...") && other.startsWith(id.slice(0, -3)));
  const index = part === "questions" ? questionsOf(request).findIndex(([other]) => same(other)) : -1;
  if (index < 0) return "json";
  return byId(`q${index}-${name}-error`) ? `q${index}-${name}` : `q${index}`;
}
