// Robust MDPs that were solved exactly: values against the radius, and nature's worst model.

import { card, h, number, svg, table } from "./elements.js";
import { behind, chart, hover, lanes, legend } from "./figure.js";

/** Successors that are drawn at most. */
const MOST = 12;

const LINES = [
  ["value", "robust policy, worst case", ""],
  ["unprotected", "nominal policy, worst case", "7 4"],
  ["nominal_value", "robust policy, nominal model", "2 3"],
];

/** A card for a file of `deeprok solve --out`. */
export function drawSolved(found, theme, id) {
  const many = found.radius.length > 1;
  const chosen = telling(found);
  const values = h("div", {});
  const nature = h("div", {});
  const draw = () => {
    if (many) values.replaceChildren(valuesOf(found, theme, chosen, pick));
    nature.replaceChildren(...natureOf(found, theme, chosen));
  };
  const pick = (index) => {
    chosen.radius = index;
    slider.value = index;
    slider.setAttribute("aria-valuetext", number(found.radius[index]));
    output.textContent = number(found.radius[index]);
    draw();
  };
  const output = h("output", { for: `${id}-radius` });
  const slider = h("input", {
    type: "range", id: `${id}-radius`, min: 0, max: found.radius.length - 1, step: 1,
    oninput: () => pick(Number(slider.value)),
  });
  const states = found.nature[0].map(({ state }) => state);
  const select = h(
    "select",
    { id: `${id}-state`, onchange: () => { chosen.state = Number(select.value); draw(); } },
    states.map((state) => h("option", { value: state, selected: state === chosen.state }, found.states[state])),
  );
  pick(chosen.radius);
  const numbers = () => found;
  return card(
    `${found.name}: ${found.objective === "optimistic" ? "the best case" : "the worst case"}`,
    `Set ${found.set}, discount ${number(found.discount, 6)}` +
      (many ? `. Values of state ${found.states[found.state]}; a click on the figure chooses a radius.` : "."),
    many ? values : null,
    many ? behind("values", () => values.querySelector("svg.chart"), [found.command], numbers) : null,
    h("h4", {}, found.objective === "optimistic" ? "Nature's best model" : "Nature's worst model"),
    h("div", { class: "row fields" },
      many ? h("span", { class: "field" }, h("label", { for: `${id}-radius` }, "Radius"), slider, output) : null,
      states.length > 1 ? h("span", { class: "field" }, h("label", { for: `${id}-state` }, "State"), select) : null),
    nature,
    behind("nature", () => nature.querySelector("svg.chart"), [found.command], numbers),
  );
}

/** How much probability nature moves. */
const moved = ({ nominal, worst }) => nominal.reduce((sum, p, i) => sum + Math.abs(worst[i] - p), 0) / 2;

/** What a card begins with: the middle radius, and the state that is asked about unless nature leaves it alone. */
function telling(found) {
  const radius = Math.floor(found.radius.length / 2);
  const moves = found.nature[radius];
  const asked = moves.find(({ state }) => state === found.state);
  const most = moves.reduce((best, each) => (moved(each) > moved(best) ? each : best));
  return { radius, state: asked && moved(asked) > 1e-9 ? asked.state : most.state };
}

function valuesOf(found, theme, chosen, pick) {
  const shown = LINES.map(([name, said, dash], i) => ({ said, dash, colour: theme.series[i], values: found[name] }))
    .filter(({ values }) => values);
  const all = [...shown.flatMap(({ values }) => values), found.nominal].filter((value) => value !== null);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const margin = 0.06 * (high - low || Math.abs(high) || 1);
  const { radius } = found;
  const frame = chart(`values of state ${found.states[found.state]} against the radius`, [radius[0], radius.at(-1)],
    [low - margin, high + margin], "radius");
  const line = (at, attributes) => svg("line", { x1: frame.left, x2: frame.right, y1: frame.up(at), y2: frame.up(at), ...attributes });
  if (found.nominal !== null) frame.picture.append(line(found.nominal, { stroke: theme.colours.grey, "stroke-width": 2 }));
  const place = frame.across(radius[chosen.radius]);
  frame.picture.append(svg("line", { x1: place, x2: place, y1: frame.top, y2: frame.low, class: "axis" }));
  for (const { colour, dash, values } of shown) {
    const points = values.map((value, i) => [frame.across(radius[i]), frame.up(value)]);
    frame.picture.append(svg("path", {
      d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""),
      fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash,
    }), ...points.map(([x, y]) => svg("circle", { cx: x, cy: y, r: 3, fill: colour })));
  }
  const nearest = (event) => {
    const bounds = frame.picture.getBoundingClientRect();
    const x = ((event.clientX - bounds.left) / bounds.width) * frame.width;
    return radius.reduce((best, each, i) =>
      (Math.abs(frame.across(each) - x) < Math.abs(frame.across(radius[best]) - x) ? i : best), 0);
  };
  hover(frame.picture, (event) => {
    const i = nearest(event);
    return `radius ${number(radius[i])}: ${shown.map(({ said, values }) => `${said} ${number(values[i], 5)}`).join(", ")}`;
  });
  frame.picture.addEventListener("click", (event) => pick(nearest(event)));
  const entries = shown.map(({ said, colour, dash }) => ({ said, colour, dash }));
  if (found.nominal !== null) entries.push({ said: "nominal policy, nominal model", colour: theme.colours.grey });
  return h("div", {}, frame.picture, legend(entries));
}

function natureOf(found, theme, chosen) {
  const moves = found.nature[chosen.radius];
  const here = moves.find(({ state }) => state === chosen.state) ?? moves[0];
  const all = here.successors.map((successor, i) => ({ name: found.states[successor], nominal: here.nominal[i], worst: here.worst[i] }));
  const kept = [...all].sort((a, b) => Math.max(b.nominal, b.worst) - Math.max(a.nominal, a.worst)).slice(0, MOST);
  const rows = all.filter((one) => kept.includes(one));
  const [grey, colour] = ["var(--soft)", theme.series[1]];
  const bar = (said, value, fill) => (across, y, height) => {
    const mark = svg("rect", { x: across(0), y, width: Math.max(1, across(value) - across(0)), height, rx: 2, fill });
    hover(mark, () => `${said}: ${number(value, 4)}`);
    return mark;
  };
  const kind = found.objective === "optimistic" ? "best" : "worst";
  const picture = lanes(
    `successors of state ${found.states[here.state]} in the nominal and in the ${kind} model`,
    rows.map(({ name, nominal, worst }) => ({
      name, marks: [bar(`${name}, nominal model`, nominal, grey), bar(`${name}, ${kind} model`, worst, colour)],
    })),
    [0, 1],
    ["probability 0", "1"],
  );
  const action = Array.isArray(here.action)
    ? here.action.map((share, i) => [share, found.actions[i]]).filter(([share]) => share > 5e-4)
        .map(([share, name]) => (share > 0.9995 ? name : `${name} with probability ${number(share)}`)).join(", ")
    : found.actions[here.action];
  const more = all.length > rows.length ? ` ${all.length - rows.length} less likely successors are left out.` : "";
  return [
    h("p", { class: "about" }, `In state ${found.states[here.state]} the policy takes ${action}; its value is ` +
      `${number(here.value, 6)}.${more}`),
    picture,
    legend([{ said: "nominal model", colour: grey }, { said: `${kind} model`, colour }]),
    h("details", { class: "behind" }, h("summary", {}, "As a table"),
      table("Successors", ["successor", "nominal model", `${kind} model`],
        rows.map(({ name, nominal, worst }) => [name, number(nominal, 4), number(worst, 4)]))),
  ];
}
