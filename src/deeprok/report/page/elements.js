// Elements made of plain values. What runs are called is only ever text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A number as a reader wants it: three digits, and a true minus. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 1e-4 || size >= 1e7)
      ? value.toExponential(digits - 1)
      : Number(value.toPrecision(Math.max(digits, size >= 1000 ? 7 : 0))).toLocaleString("en", { maximumFractionDigits: 6 });
  return text.replace("-", "−");
}

export const percent = (share, digits = 0) =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`;

export const words = (name) => name.replaceAll("_", " ");

/** A part of the page with a title. */
export const card = (title, about, ...content) =>
  h("section", { class: "card" }, h("h3", {}, title), about ? h("p", { class: "about" }, about) : null, content);

/** A table that scrolls by itself where it is too wide; the first cell of a row is its heading. */
export const table = (label, headings, rows) => h(
  "div",
  { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
  h(
    "table",
    {},
    h("thead", {}, h("tr", {}, headings.map((said) => h("th", { scope: "col" }, said)))),
    h("tbody", {}, rows.map(([first, ...others]) =>
      h("tr", {}, h("th", { scope: "row" }, first), others.map((cell) => (cell instanceof Node ? cell : h("td", {}, cell)))))),
  ),
);

/** A group of radio buttons that look like one switch; `options` are pairs of a value and what is said of it. */
export function choice(label, options, chosen, change) {
  const name = `choice-${Math.random().toString(36).slice(2)}`;
  return h(
    "fieldset",
    { class: "switch" },
    h("legend", {}, label),
    options.map(([value, said]) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }),
        h("span", {}, said),
      ),
    ),
  );
}

/** Gives the reader a file. */
export function download(name, type, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
