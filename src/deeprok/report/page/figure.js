// Figures: axes, a tooltip, and a frame with the numbers behind them, the command, and the picture as a file.

import { download, h, number, svg } from "./elements.js";

/** About so many round numbers in a range. */
export function ticks(low, high, count = 5) {
  const width = high - low || 1;
  const rough = width / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * width; i++) found.push(i * step);
  return found;
}

/** Width of pictures in their own units: fewer on a narrow screen, where letters would otherwise be too small to read. */
export const breadth = () => (window.innerWidth < 640 ? 360 : 640);

/** Scales and axes of a chart. */
export function chart(title, x, y, bottom) {
  const [width, height] = [breadth(), 300];
  const [left, right, top, low] = [58, width - 12, 12, 254];
  const across = (value) => left + ((value - x[0]) / (x[1] - x[0] || 1)) * (right - left);
  const up = (value) => low - ((value - y[0]) / (y[1] - y[0] || 1)) * (low - top);
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, class: "chart" },
    ticks(...y).map((value) => [
      svg("line", { x1: left, x2: right, y1: up(value), y2: up(value), class: "rule" }),
      svg("text", { x: left - 8, y: up(value) + 4, "text-anchor": "end" }, number(value)),
    ]),
    ticks(...x, width / 100).map((value) =>
      svg("text", { x: across(value), y: low + 20, "text-anchor": "middle" }, number(value))),
    svg("line", { x1: left, x2: right, y1: low, y2: low, class: "axis" }),
    svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle", class: "label" }, bottom),
  );
  return { picture, across, up, left, right, top, low, width };
}

/**
 * Lines with a name each, and marks along a range that all share.
 *
 * `rows` are `{ name, marks, behind }`; each mark is a function `(across, y, height)` that draws it below the one before,
 * and what is behind the marks is drawn once. `ends` are the words at the two ends of the range.
 */
export function lanes(title, rows, range, ends, lane = 12) {
  const width = breadth();
  const [left, right] = [Math.min(150, width / 3), width - 14];
  const heights = rows.map(({ marks }) => marks.length * lane + 12);
  const height = heights.reduce((sum, one) => sum + one, 0) + (ends ? 26 : 4);
  const across = (value) => left + ((value - range[0]) / (range[1] - range[0] || 1)) * (right - left);
  let y = 2;
  const drawn = rows.map(({ name, marks, behind: back }, i) => {
    const top = y;
    y += heights[i];
    return svg("g", {},
      svg("line", { x1: 4, x2: right, y1: y - 2, y2: y - 2, class: "rule" }),
      svg("text", { x: left - 10, y: (top + y) / 2 + 2, "text-anchor": "end" }, name),
      back?.(across, top + 2, heights[i] - 8),
      marks.map((mark, k) => mark(across, top + 4 + k * lane, lane - 3)));
  });
  const foot = ends && [
    svg("text", { x: left, y: height - 6 }, ends[0]),
    svg("text", { x: right, y: height - 6, "text-anchor": "end" }, ends[1]),
  ];
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, class: "chart" }, drawn, foot);
}

/** A legend: what the colours, and dashes where there are any, stand for. */
export const legend = (entries) => h(
  "ul",
  { class: "legend" },
  entries.map(({ said, colour, dash }) => h(
    "li",
    {},
    svg("svg", { width: 26, height: 10, "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dash ?? "" })),
    ` ${said}`,
  )),
);

const tip = h("div", { class: "tip", role: "status", hidden: true });

/** Shows words beside the pointer while it is on an element. */
export function hover(element, said) {
  const show = (event) => {
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = said(event);
    tip.hidden = !tip.textContent;
    const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 10)}px`;
  };
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerleave", () => (tip.hidden = true));
}

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight"];

/** The picture as SVG that needs no style sheet. */
export function standalone(picture) {
  const copy = picture.cloneNode(true);
  const [own, theirs] = [picture, copy].map((one) => [one, ...one.querySelectorAll("*")]);
  own.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of KEPT) theirs[i].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const [, , width, height] = copy.getAttribute("viewBox").split(" ");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.prepend(svg("rect", {
    width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor,
  }));
  return new XMLSerializer().serializeToString(copy);
}

/** What stands below a figure: the command that makes its numbers, these as JSON, and the picture as SVG. */
export function behind(name, picture, commands, content) {
  const save = picture && h(
    "button",
    { type: "button", class: "quiet", onclick: () => download(`${name}.svg`, "image/svg+xml", standalone(picture())) },
    "Save SVG",
  );
  const numbers = h(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => download(`${name}.json`, "application/json", JSON.stringify(content(), null, 1)),
    },
    "Save JSON",
  );
  return h(
    "details",
    { class: "behind" },
    h("summary", {}, "Where it comes from"),
    [...new Set(commands)].map((command) => h("code", {}, command)),
    h("div", { class: "row" }, save, numbers),
  );
}
