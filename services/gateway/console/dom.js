// Building the page. Text goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (null and false leave one out) and children, which are nodes or texts. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

/** A table with a caption for whoever cannot see where it stands. Each column: {title, cell(row), wide}. */
export function table(caption, columns, rows) {
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col" }, column.title)));
  const body = rows.map((row) =>
    el("tr", {}, ...columns.map((column) =>
      el("td", { "data-title": column.title, class: column.wide ? "wide" : null }, column.cell(row)))));
  return el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body));
}

/** Replaces what `place` holds, unless that would change nothing: focus and selected text stay where they are. */
export function show(place, ...children) {
  const fresh = document.createElement("div");
  fresh.append(...children);
  if (place.innerHTML !== fresh.innerHTML) place.replaceChildren(...fresh.childNodes);
}

export function text(place, value) {
  if (place.textContent !== value) place.textContent = value;
}
