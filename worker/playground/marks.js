// Answers that were marked right or wrong, as labelled decisions. Marks stay in this tab's memory until they are
// downloaded. A label of null is an answer marked wrong before anyone said what is right: it is kept, not written.

import { Fields, line, Numeral } from "./json.js";
import { questionsOf } from "./request.js";

export class Marks {
  constructor() {
    this.requests = new Map();
  }

  /** A request's labels by question id. Another model's answers to it have the same ones. */
  of(request) {
    const key = line([request.get("state"), request.get("questions")]);
    if (!this.requests.has(key)) this.requests.set(key, { request, labels: new Map() });
    return this.requests.get(key).labels;
  }

  get count() {
    return this.records().reduce((sum, record) => sum + record.get("labels").pairs.length, 0);
  }

  /** One record for each request with marks: its state, the questions that are marked, their labels. */
  records() {
    const all = [...this.requests.values()].map(({ request, labels }) => {
      const questions = questionsOf(request).filter(([id]) => (labels.get(id) ?? null) !== null);
      const written = (label) => (typeof label === "number" ? new Numeral(String(label)) : label);
      return new Fields([
        ["state", request.get("state")],
        ["questions", new Fields(questions)],
        ["labels", new Fields(questions.map(([id]) => [id, written(labels.get(id))]))],
      ]);
    });
    return all.filter((record) => record.get("labels").pairs.length);
  }

  /** JSON Lines. */
  lines() {
    return this.records().map((record) => `${line(record)}\n`).join("");
  }
}
