// JSON that keeps what JSON.parse loses: the order of names such as "10" and "2", names that come twice, and the
// digits of a number. It knows RFC 8259 and nothing of requests.

/** An object of JSON: [name, value] pairs in their order. */
export class Fields {
  constructor(pairs = []) {
    this.pairs = pairs;
  }

  get names() {
    return this.pairs.map(([name]) => name);
  }

  get(name) {
    return this.pairs.find((pair) => pair[0] === name)?.[1];
  }

  set(name, value) {
    const pair = this.pairs.find((pair) => pair[0] === name);
    if (pair) pair[1] = value;
    else this.pairs.push([name, value]);
    return this;
  }

  delete(name) {
    this.pairs = this.pairs.filter((pair) => pair[0] !== name);
  }
}

/** A number as it was written. */
export class Numeral {
  constructor(text) {
    this.text = text;
  }

  valueOf() {
    return Number(this.text);
  }
}

const SPACE = /[ \t\n\r]*/y;
const TOKEN =
  /[{}[\],:]|true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|"[^"\\\0-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\0-\x1f]*)*"/y;
const WORDS = { true: true, false: false, null: null };

/** The value that `text` writes. Throws with words on where it cannot be read. */
export function parse(text) {
  const reader = new Reader(text);
  const value = reader.value();
  if (reader.start < text.length) reader.fail("the end");
  return value;
}

class Reader {
  constructor(text) {
    this.text = text;
    this.end = 0;
    this.advance();
  }

  /** To the next token; it is "" at the end, and where no token begins. */
  advance() {
    SPACE.lastIndex = this.end;
    SPACE.test(this.text);
    this.start = TOKEN.lastIndex = SPACE.lastIndex;
    this.token = TOKEN.exec(this.text)?.[0] ?? "";
    this.end = this.start + this.token.length;
  }

  took(token) {
    if (this.token !== token) return false;
    this.advance();
    return true;
  }

  value() {
    const { token } = this;
    if (this.took("{")) return new Fields(this.listed("}", () => this.pair()));
    if (this.took("[")) return this.listed("]", () => this.value());
    if (token[0] === '"') return this.string();
    if (!/^[-0-9tfn]/.test(token)) this.fail("a value");
    this.advance();
    return token in WORDS ? WORDS[token] : new Numeral(token);
  }

  pair() {
    if (this.token[0] !== '"') this.fail("a name in double quotes");
    const name = this.string();
    if (!this.took(":")) this.fail("a colon");
    return [name, this.value()];
  }

  listed(close, read) {
    const found = [];
    if (this.took(close)) return found;
    do found.push(read());
    while (this.took(","));
    if (!this.took(close)) this.fail(`a comma or ${close}`);
    return found;
  }

  string() {
    const found = JSON.parse(this.token);
    this.advance();
    return found;
  }

  fail(expected) {
    const lines = this.text.slice(0, this.start).split("\n");
    const found = this.text.slice(this.start, this.start + 12).split("\n")[0];
    const place = `Line ${lines.length}, column ${lines.at(-1).length + 1}`;
    throw new Error(`${place}: expected ${expected}, found ${found ? `“${found}”` : "the end"}.`);
  }
}

/** `value` on one line, spaced as the model reads it. `words`: how another language writes true, false and null. */
export function line(value, words = {}) {
  if (value instanceof Fields) return `{${value.pairs.map(([name, part]) => `${JSON.stringify(name)}: ${line(part, words)}`).join(", ")}}`;
  if (Array.isArray(value)) return `[${value.map((part) => line(part, words)).join(", ")}]`;
  if (value instanceof Numeral) return value.text;
  return (typeof value !== "string" && words[value]) || JSON.stringify(value);
}

const WIDTH = 72;

/** `value` for people: what fits on a line stays on one. */
export function pretty(value, indent = "", words = {}) {
  const short = line(value, words);
  const listed = value instanceof Fields || Array.isArray(value);
  if (!listed || short.length + indent.length <= WIDTH) return short;
  const deeper = `${indent}  `;
  const parts = value instanceof Fields
    ? value.pairs.map(([name, part]) => `${JSON.stringify(name)}: ${pretty(part, deeper, words)}`)
    : value.map((part) => pretty(part, deeper, words));
  return `${short[0]}\n${parts.map((part) => deeper + part).join(",\n")}\n${indent}${short.at(-1)}`;
}

/** A copy that shares nothing with `value`. */
export function copy(value) {
  return parse(line(value));
}
