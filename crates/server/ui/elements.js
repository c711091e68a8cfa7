// Elements, numbers and times. Text from the server only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element[name] = value;
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

const keyOf = (node) => node.dataset?.key;
const isAlike = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

/** Makes the children of an element as they are wanted, in place: what stays keeps its scroll, the text that is selected in
 * it, the focus and the press of a button that has begun. Children with a key are the same wherever they stand. */
export function update(part, ...children) {
  const wanted = document.createDocumentFragment();
  fill(wanted, {}, children);
  const keys = new Set([...wanted.children].map(keyOf));
  for (const old of [...part.children]) if (keyOf(old) !== undefined && !keys.has(keyOf(old))) old.remove();
  const keyed = new Map([...part.children].map((old) => [keyOf(old), old]));
  let next = part.firstChild;
  for (const child of [...wanted.childNodes]) {
    const key = keyOf(child);
    const found = key === undefined ? next : keyed.get(key);
    if (!found || (key === undefined && keyOf(found) !== undefined)) {
      part.insertBefore(child, next);
      continue;
    }
    if (found === next) next = next.nextSibling;
    else part.insertBefore(found, next);
    if (isAlike(found, child)) become(found, child);
    else found.replaceWith(child);
  }
  while (next) {
    const last = next;
    next = next.nextSibling;
    last.remove();
  }
}

/** Makes a node like another one of its kind. */
function become(old, wanted) {
  if (wanted.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  old.onclick = wanted.onclick;
  update(old, ...wanted.childNodes);
}

/** A name as a part of a path. What paths may hold stays as it is, for servers that decode nothing. */
export const segment = (name) => (/^[\w.~!$&'()*+,;=:@%-]*$/.test(name) ? name : encodeURIComponent(name));

/** Three digits that matter, and a unit. */
function scaled(value, units, step) {
  let index = 0;
  while (Math.abs(value) >= step * 0.9995 && index < units.length - 1) {
    value /= step;
    index += 1;
  }
  const digits = Number.isInteger(value) || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[index]}`.trim();
}

const known = (text) => (value) => (value == null || Number.isNaN(value) ? "unavailable" : text(value));

export const count = known((value) => (value < 10000 ? String(Math.round(value)) : scaled(value, ["", "k", "M", "G"], 1000)));
export const rate = known((value) => scaled(value, ["/s", "k/s", "M/s"], 1000));
export const bytes = known((value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024));
export const time = known((ns) => scaled(ns, ["ns", "µs", "ms", "s"], 1000));

export const shape = (dims) => `[${dims.map((dim) => (dim < 0 ? "any" : dim)).join(", ")}]`;

export const facts = (pairs) =>
  html("dl", {}, pairs.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));

/** A table whose columns are [title, whether numbers, how to make a cell of a row, a class of its own]; `key` tells rows apart. */
export function table(caption, columns, rows, key = () => null) {
  const kind = ([, isNumber, , own]) => own ?? (isNumber ? "number" : null);
  // Where the page is narrow it scrolls, which the keyboard can do to what has the focus alone.
  return html("div", { class: "scroll", role: "group", "aria-label": caption, tabindex: "0" }, html("table", {},
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, columns.map((column) => html("th", { scope: "col", class: kind(column) }, column[0])))),
    html("tbody", {}, rows.map((row) => html("tr", { "data-key": key(row) }, columns.map((column, index) =>
      html(index ? "td" : "th", { scope: index ? null : "row", class: kind(column) }, column[2](row))))))));
}
