// Maps: how an agent does in each cell of a grid of parameters.

import { h, number, percent, svg, words } from "./elements.js";
import { hover } from "./figure.js";

/** The values of a nested list along its first two axes, at these places of the others. */
function slice(values, axes, rest) {
  const inner = (value) => rest.reduce((part, index) => part[index], value);
  return axes === 1 ? values.map((value) => [value]) : values.map((row) => row.map(inner));
}

const nearest = (axis, value) =>
  axis.reduce((best, each, i) => (Math.abs(each - value) < Math.abs(axis[best] - value) ? i : best), 0);

/** A map at the sliders' place: names and values of its axes, and its cells [i][j], of what is asked for. */
export function readMap(map, params) {
  const names = Object.keys(map.grid);
  const axes = names.map((name) => map.grid[name]);
  const rest = names.slice(2).map((name) => nearest(map.grid[name], params[name]));
  const cells = (name) => slice(map[name], names.length, rest);
  const at = names.slice(0, 2).map((name) => nearest(map.grid[name], params[name]));
  return { names: names.slice(0, 2), axes: axes.slice(0, 2), at, cells };
}

/** The cell in which the agents differ most, or a single one does worst; null without maps. */
export function tellingCell(agents) {
  const mapped = agents.filter((agent) => agent.map);
  if (!mapped.length) return null;
  const names = Object.keys(mapped[0].map.grid);
  const flat = mapped.map((agent) => agent.map.success.flat(names.length));
  const gap = (i) => {
    const each = flat.map((values) => values[i]);
    return mapped.length > 1 ? Math.max(...each) - Math.min(...each) : 1 - each[0];
  };
  let best = 0;
  for (let i = 1; i < flat[0].length; i++) if (gap(i) > gap(best)) best = i;
  const params = {};
  let rest = best;
  for (const name of [...names].reverse()) {
    const axis = mapped[0].map.grid[name];
    params[name] = axis[rest % axis.length];
    rest = Math.floor(rest / axis.length);
  }
  const success = mapped.map((agent, i) => ({ agent, success: flat[i][best] }));
  success.sort((a, b) => a.success - b.success);
  const ordered = Object.fromEntries(names.map((name) => [name, params[name]]));
  return { params: ordered, gap: gap(best), worst: success[0], best: success[success.length - 1], alone: mapped.length === 1 };
}

const mixed = (a, b, share) => a.map((value, i) => Math.round(value + (b[i] - value) * share));

/** A colour between fails and works, by way of the middle. */
function colour(share, theme) {
  const place = Math.min(Math.max(share, 0), 1);
  const [from, to, part] =
    place < 0.5 ? [theme.bad, theme.middle, 2 * place] : [theme.middle, theme.good, 2 * place - 1];
  return `rgb(${mixed(from, to, part).join(" ")})`;
}

/** What maps can show. A regret is what an agent earns less than the best one on the page, or than the reference. */
const MEASURES = { success: "success", return: "return", regret: "regret to the best agent", reference: "regret to the reference" };

/** Those that the agents of a scene have the numbers for. */
export function measuresOf(scene) {
  const maps = scene.agents.filter((agent) => agent.map).length;
  return Object.entries(MEASURES).filter(([name]) =>
    (name === "regret" ? maps > 1 : name === "reference" ? scene.reference !== null : true));
}

/** All cells of a map, or of a reference, as one list. */
export const cellsOf = (map, name) => map[name].flat(Object.keys(map.grid).length);

/** In each cell, how much more a reference earns. */
export function regretTo(reference, map) {
  const theirs = cellsOf(map, "mean_return");
  return cellsOf(reference, "mean_return").map((value, i) => value - theirs[i]);
}

/** What a measure is in each cell, what share of its colours that is, and what the two ends of the colours stand for. */
function measured(scene, measure, params) {
  if (measure === "success") {
    return { value: (map, i, j) => map.cells("success")[i][j], share: (v) => v, said: percent, ends: ["0 %", "100 %"] };
  }
  const all = scene.agents.filter((agent) => agent.map).map((agent) => readMap(agent.map, params).cells("mean_return"));
  if (measure === "reference") all.push(readMap(scene.reference, params).cells("mean_return"));
  const returns = all.flat(2);
  const [low, high] = [Math.min(...returns), Math.max(...returns)];
  const width = high - low || 1;
  const earned = (map, i, j) => map.cells("mean_return")[i][j];
  if (measure === "return") {
    return { value: earned, share: (v) => (v - low) / width, said: number, ends: [number(low), number(high)] };
  }
  const best = (i, j) => (measure === "reference" ? all.at(-1)[i][j] : Math.max(...all.map((cells) => cells[i][j])));
  return {
    value: (map, i, j) => best(i, j) - earned(map, i, j), share: (v) => 1 - v / width, said: number, ends: [number(width), "0"],
  };
}

/** What the colours' two ends stand for. */
export const scaleOf = (scene, measure, params) => measured(scene, measure, params).ends;

/**
 * The map of an agent, which a click or a key sets the sliders by.
 *
 * `stage` has the scene, its settings, the theme, and `move(params)`.
 */
export function drawMap(stage, agent) {
  const { scene, settings, measure, theme } = stage;
  const map = readMap(agent.map, settings.params);
  const { value, share, said } = measured(scene, measure, settings.params);
  const [success, low, high, mean] = ["success", "low", "high", "mean_return"].map(map.cells);
  const [columns, rows] = [success.length, success[0].length];
  const [width, plot] = [200, rows === 1 ? 28 : 140];
  const [left, top] = [4, 4];
  const [cellWidth, cellHeight] = [(width - 8) / columns, plot / rows];
  const units = Object.fromEntries(scene.sliders.map((slider) => [slider.name, slider]));
  const about = (i, j) => {
    const place = map.names.map((name, k) => `${words(name)} ${number(map.axes[k][k ? j : i])}`).join(", ");
    const regret = ["regret", "reference"].includes(measure) ? `, ${MEASURES[measure]} ${number(value(map, i, j))}` : "";
    return `${place}: success ${percent(success[i][j])} (${percent(low[i][j])} to ${percent(high[i][j])}), ` +
      `return ${number(mean[i][j])}${regret}`;
  };
  const set = (i, j) => stage.move(Object.fromEntries(map.names.map((name, k) => [name, map.axes[k][k ? j : i]])));
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${plot + 8}`,
    class: "map",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "map",
    "aria-label": `${MEASURES[measure]} of ${agent.name} over ${map.names.map(words).join(" and ")}; arrow keys move ` +
      `the sliders; now at ${about(map.at[0], map.at[1] ?? 0)}`,
  });
  for (let i = 0; i < columns; i++) {
    for (let j = 0; j < rows; j++) {
      const cell = svg("rect", {
        x: left + i * cellWidth + 0.5,
        y: top + (rows - 1 - j) * cellHeight + 0.5,
        width: cellWidth - 1,
        height: cellHeight - 1,
        rx: 2,
        fill: colour(share(value(map, i, j)), theme),
        "data-cell": `${i},${j}`,
        onclick: () => set(i, j),
      });
      hover(cell, () => about(i, j));
      picture.append(cell);
    }
  }
  const place = (k, length) => {
    const axis = map.axes[k];
    if (!axis || axis.length < 2) return { at: 0.5 * length, beyond: false };
    const share = (settings.params[map.names[k]] - axis[0]) / (axis[axis.length - 1] - axis[0]);
    const cells = (0.5 + share * (axis.length - 1)) / axis.length;
    return { at: Math.min(Math.max(cells, 0), 1) * length, beyond: share < -1e-9 || share > 1 + 1e-9 };
  };
  const [x, y] = [place(0, width - 8), place(1, plot)];
  picture.append(svg("circle", {
    cx: left + x.at,
    cy: top + plot - y.at,
    r: 5,
    class: x.beyond || y.beyond ? "dot beyond" : "dot",
  }));
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const [i, j] = [map.at[0] + by[0], (map.at[1] ?? 0) + by[1]];
    if (i < 0 || j < 0 || i >= columns || j >= rows) return;
    set(i, j);
    stage.focusMap(agent);
  });
  const [i, j] = [map.at[0], map.at[1] ?? 0];
  const here = x.beyond || y.beyond
    ? "beyond the map"
    : measure === "success"
      ? `${percent(success[i][j])} in this cell (${Math.round(100 * low[i][j])} – ${Math.round(100 * high[i][j])})`
      : `${measure === "return" ? "return" : "regret"} ${said(value(map, i, j))} in this cell`;
  // The map was played with the other parameters nominal, and with its own ε.
  const others = stage.scene.sliders.some(({ name, nominal }) => !map.names.includes(name) && settings.params[name] !== nominal);
  const end = (k) => `${words(map.names[k])} ${number(map.axes[k][0])} – ${number(map.axes[k].at(-1))} ${units[map.names[k]]?.unit ?? ""}`.trim();
  return h(
    "figure",
    { class: "map-figure" },
    picture,
    h("figcaption", {}, h("span", { class: "here" }, here), others ? " with the others nominal" : "", h("br"), `→ ${end(0)}`, rows > 1 ? h("br") : null, rows > 1 ? `↑ ${end(1)}` : null),
  );
}
