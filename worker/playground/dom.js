// Making elements. Everything that anyone wrote becomes text here, never markup.

/**
 * An element: `kind` is a tag and perhaps a class, as "p.hint"; first among `parts` may be an object of properties,
 * attributes and `on` listeners; the others are children, elements or text. What is null is left out.
 */
export function element(kind, ...parts) {
  const [tag, className] = kind.split(".");
  const made = document.createElement(tag);
  if (className) made.className = className;
  const properties = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [name, value] of Object.entries(properties)) {
    if (value == null) continue;
    if (name === "on") Object.entries(value).forEach(([event, act]) => made.addEventListener(event, act));
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...parts.filter((part) => part != null));
  return made;
}

export function button(label, act, properties) {
  return element("button", { type: "button", on: { click: act }, className: "small", ...properties }, label);
}

export function byId(id) {
  return document.getElementById(id);
}

/** A labelled control, with room for what is wrong with it. */
export function field(label, control) {
  return element("div.field", element("label", { htmlFor: control.id }, label), control, errorLine(control.id));
}

export function errorLine(id) {
  return element("p.error", { id: `${id}-error`, hidden: true });
}

/** Says at the control with this id what is wrong with it; "" takes that back. */
export function pin(id, words) {
  const place = byId(`${id}-error`);
  if (!place) return;
  place.textContent = words;
  place.hidden = !words;
  byId(id).ariaInvalid = words ? "true" : null;
  if (words) byId(id).setAttribute("aria-describedby", place.id);
  else byId(id).removeAttribute("aria-describedby");
}
