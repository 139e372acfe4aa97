// Elements from data. Data only ever becomes text: nothing here parses markup.

/** Make an element. A key that begins with "on" adds a listener; "class", "text" and attributes are set. */
export function h(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  fill(node, given);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, given = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function fill(node, given) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
}

/** Set a text or a class only where it changed, so that selections and screen readers are left in peace. */
export function text(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function classes(node, value) {
  if (node.className !== value) node.className = value;
}

export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Keep one child for each item, by key: new ones are made, old ones updated in place, the others removed. */
export function keyed(parent, items, keyOf, make, update) {
  const known = (parent.knownRows ??= new Map());
  const wanted = new Set();
  let at = parent.firstChild;
  for (const item of items) {
    let key = keyOf(item);
    while (wanted.has(key)) key += "\u0000";
    wanted.add(key);
    let node = known.get(key);
    if (node === undefined) known.set(key, (node = make(item)));
    update(node, item);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  for (const [key, node] of known) {
    if (wanted.has(key)) continue;
    node.remove();
    known.delete(key);
  }
}

/**
 * A table that is updated in place. A column is {title, num, wide, cell}; cell(row) returns a text, or
 * {text, class, href}, or {node(td, row)} for a cell that keeps its own content.
 */
export function table(columns, keyOf, { empty = "Nothing here.", rowClass = () => "" } = {}) {
  const heads = columns.map((column) => h("th", { scope: "col", text: column.title, class: column.num ? "num" : "" }));
  const body = h("tbody");
  const nothing = h("div", { class: "empty", text: empty });
  const whole = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body);
  const node = h("div", { class: "panel scroll", tabindex: "0", role: "region", "aria-label": nameOf(columns) }, whole, nothing);
  const make = () => h("tr", {}, ...columns.map((column) => h("td", { class: cellClass(column) })));
  const update = (row, item) => {
    classes(row, rowClass(item));
    columns.forEach((column, index) => show(row.children[index], column.cell(item), item));
  };
  return {
    node,
    update(items) {
      keyed(body, items, keyOf, make, update);
      nothing.classList.toggle("hidden", items.length > 0);
      whole.classList.toggle("hidden", items.length === 0);
    },
  };
}

const nameOf = (columns) => `Table of ${columns.slice(0, 3).map((column) => column.title.toLowerCase()).join(", ")}`;

function cellClass(column) {
  return column.num ? "num" : column.wide ? "wide" : "nowrap";
}

function show(cell, value, item) {
  if (value === null || value === undefined) return text(cell, "");
  if (typeof value !== "object") return text(cell, value);
  if (value.node) return value.node(cell, item);
  const shape = value.href ? "a" : "span";
  let inner = cell.firstElementChild;
  if (inner === null || inner.localName !== shape) cell.replaceChildren((inner = document.createElement(shape)));
  if (value.href && inner.getAttribute("href") !== value.href) inner.setAttribute("href", value.href);
  classes(inner, value.class ?? "");
  text(inner, value.text);
}

export function tile(label) {
  const value = h("div", { class: "value", text: "–" });
  const node = h("div", { class: "panel tile" }, value, h("div", { class: "label", text: label }));
  return {
    node,
    set(shown, state = "") {
      text(value, shown);
      classes(value, `value ${state}`);
    },
  };
}

export function select(label, options, chosen, onchange) {
  const field = h("select", { onchange: () => onchange(field.value) });
  const node = h("label", { class: "row" }, label, field);
  const set = (values, value) => {
    const rows = values.map((option) => (typeof option === "string" ? { value: option, text: option } : option));
    keyed(field, rows, (row) => row.value, (row) => h("option", { value: row.value }), (option, row) => text(option, row.text));
    if (field.value !== value && rows.some((row) => row.value === value)) field.value = value;
  };
  set(options, chosen);
  return { node, set, get value() { return field.value; } };
}
