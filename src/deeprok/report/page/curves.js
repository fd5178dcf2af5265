// Learning curves: each seed, and their mean, over episodes, steps or seconds.

import { h, number, svg } from "./elements.js";
import { chart, hover, legend } from "./figure.js";

const LABELS = { episodes: "training episodes", steps: "environment steps", seconds: "seconds of training" };

/** The points of a curve that are known. */
function points(curve, over, measure) {
  return curve[over].map((x, i) => [x, curve[measure][i]]).filter(([, y]) => y !== null);
}

/** The value of a curve anywhere, between two of its points. */
function valueAt(known, x) {
  if (!known.length || x < known[0][0] || x > known[known.length - 1][0]) return null;
  const after = known.findIndex(([each]) => each >= x);
  if (after === 0) return known[0][1];
  const [[x0, y0], [x1, y1]] = [known[after - 1], known[after]];
  return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0 || 1);
}

function meanCurve(curves) {
  if (curves.length === 1) return curves[0];
  const ends = curves.map((known) => known[known.length - 1][0]);
  const starts = curves.map((known) => known[0][0]);
  const [low, high] = [Math.max(...starts), Math.min(...ends)];
  return Array.from({ length: 101 }, (_, i) => low + ((high - low) * i) / 100).map((x) => {
    const each = curves.map((known) => valueAt(known, x)).filter((value) => value !== null);
    return [x, each.reduce((sum, value) => sum + value, 0) / each.length];
  });
}

const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "12 4"];

export function drawCurves(agents, over, measure, colours) {
  const shown = agents
    .map((agent, i) => ({
      agent,
      colour: colours[i % colours.length],
      dash: DASHES[i % DASHES.length],
      curves: agent.curves.map((curve) => points(curve, over, measure)).filter((known) => known.length),
    }))
    .filter(({ curves }) => curves.length);
  if (!shown.length) return h("p", { class: "none" }, "No episode has ended yet.");
  const all = shown.flatMap(({ curves }) => curves.flat());
  const [xs, ys] = [0, 1].map((k) => all.map((point) => point[k]));
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const margin = 0.05 * (high - low || 1);
  const frame = chart(
    `${measure === "mean_return" ? "return of training episodes" : "return on held-out models"} over ${LABELS[over]}`,
    [0, Math.max(...xs)],
    [low - margin, high + margin],
    LABELS[over],
  );
  const path = (known) => known.map(([x, y], i) => `${i ? "L" : "M"}${frame.across(x).toFixed(1)} ${frame.up(y).toFixed(1)}`).join("");
  for (const { colour, dash, curves } of shown) {
    for (const [[x, y], ...more] of curves) {
      if (!more.length) frame.picture.append(svg("circle", { cx: frame.across(x), cy: frame.up(y), r: 3, fill: colour }));
    }
    if (curves.length > 1) for (const known of curves) {
      frame.picture.append(svg("path", { d: path(known), fill: "none", stroke: colour, "stroke-width": 1, opacity: 0.3 }));
    }
    frame.picture.append(svg("path", {
      d: path(meanCurve(curves)), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash,
    }));
  }
  hover(frame.picture, (event) => {
    const bounds = frame.picture.getBoundingClientRect();
    const place = ((event.clientX - bounds.left) / bounds.width) * frame.width;
    const x = ((place - frame.left) / (frame.right - frame.left)) * Math.max(...xs);
    if (x < 0 || x > Math.max(...xs)) return "";
    const each = shown.map(({ agent, curves }) => `${agent.name} ${number(valueAt(meanCurve(curves), x))}`);
    return `${number(x)} ${over}: ${each.join(", ")}`;
  });
  return h("div", { class: "chart-place" }, frame.picture, legend(shown.map(({ agent, colour, dash, curves }) =>
    ({ said: `${agent.name}${curves.length > 1 ? `, ${curves.length} seeds` : ""}`, colour, dash }))));
}
