// The evidence: what was measured of the agents, with the commands and numbers behind it.

import { drawCurves } from "./curves.js";
import { choice, h, number, percent, svg, words } from "./elements.js";
import { behind, chart, hover } from "./figure.js";

const card = (title, about, ...content) =>
  h("section", { class: "card" }, h("h3", {}, title), about ? h("p", { class: "about" }, about) : null, content);

function wide(element) {
  element.classList.add("wide");
  return element;
}

export function drawEvidence(scene, theme, chosen) {
  const { agents } = scene;
  const mapped = agents.filter((agent) => agent.map);
  return [
    mapped.length ? results(mapped) : null,
    learning(agents, theme, chosen),
    stressed(scene, agents.filter((agent) => agent.stress)),
    covered(agents.filter((agent) => agent.coverage), theme),
    settings(agents),
  ].filter(Boolean);
}

function results(agents) {
  const { map } = agents[0];
  const axes = Object.keys(map.grid).length;
  const worst = (agent) => Math.min(...agent.map.success.flat(axes));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const best = Math.max(...agents.map((agent) => mean(agent.map.overall)));
  const rows = agents.map((agent) => {
    const overall = mean(agent.map.overall);
    const interval = agent.map.overall_interval;
    const said = interval ? ` (${interval.map((end) => (100 * end).toFixed(1)).join(" – ").replaceAll("-", "−")})` : "";
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, agent.name),
      h("td", { class: overall === best && agents.length > 1 ? "best" : "" }, `${percent(overall, 1)}${said}`),
      h("td", {}, percent(agent.map.nominal, 1)),
      h("td", {}, percent(worst(agent), 1)),
      h("td", {}, number(mean(agent.map.returns))),
      h("td", {}, agent.map.overall.length),
    );
  });
  const seeds = agents.every((agent) => agent.map.overall.length > 1)
    ? "Intervals are over seeds, 95 %."
    : "One seed of an agent has no interval: nothing is known of another seed.";
  return card(
    "Results",
    `Success over the whole grid, ${map.episodes} episodes a cell and seed, ε ${number(map.epsilon)}, ${map.keep} weights. ${seeds}`,
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Results" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["agent", "whole grid", "nominal model", "worst cell", "mean return", "seeds"].map(
          (said) => h("th", { scope: "col" }, said)))),
        h("tbody", {}, rows),
      ),
    ),
    behind("results", () => savedMaps(agents), agents.map((agent) => agent.map.command), () =>
      Object.fromEntries(agents.map((agent) => [agent.name, agent.map]))),
  );
}

/** The maps as they are shown, side by side in one picture with their names and axes. */
function savedMaps(agents) {
  const figures = [...document.querySelectorAll(".pane")].filter((pane) => pane.querySelector(".map"));
  const height = Math.max(...figures.map((pane) => Number(pane.querySelector(".map").getAttribute("viewBox").split(" ")[3])));
  const parts = figures.map((pane, i) => {
    const lines = [...pane.querySelectorAll("figcaption")].flatMap((caption) =>
      [...caption.childNodes].map((node) => node.textContent).filter(Boolean));
    return svg("g", { transform: `translate(${216 * i + 8} 8)` },
      svg("text", { x: 4, y: 12, class: "name" }, pane.dataset.agent),
      svg("g", { transform: "translate(0 18)" }, [...pane.querySelector(".map").childNodes].map((node) => node.cloneNode(true))),
      lines.map((said, k) => svg("text", { x: 4, y: height + 32 + 14 * k }, said)));
  });
  const picture = svg("svg", { viewBox: `0 0 ${216 * agents.length} ${height + 74}`, class: "chart" }, parts);
  document.querySelector(".evidence").append(picture); // for its styles
  setTimeout(() => picture.remove());
  return picture;
}

function learning(agents, theme, chosen) {
  const place = h("div", {});
  const tried = agents.some((agent) => agent.curves.some((curve) => curve.trial_return.some((value) => value !== null)));
  const draw = () => place.replaceChildren(drawCurves(agents, chosen.over, chosen.measure, theme.series));
  const set = (name) => (value) => {
    chosen[name] = value;
    draw();
  };
  draw();
  return card(
    "Learning",
    null,
    h(
      "div",
      { class: "switches" },
      choice("Over", ["episodes", "steps", "seconds"].map((name) => [name, name]), chosen.over, set("over")),
      tried
        ? choice("Return of", [["mean_return", "training"], ["trial_return", "held-out models"]], chosen.measure, set("measure"))
        : null,
    ),
    place,
    behind(
      "learning",
      () => place.querySelector("svg.chart"),
      [`deeprok plot ${agents.map((agent) => agent.folder).join(" ")} --kind learning --out learning.svg`],
      () => Object.fromEntries(agents.map((agent) => [agent.name, agent.curves])),
    ),
  );
}

/** Of each agent the values of each parameter between which it works, and its worst model. */
function stressed(scene, agents) {
  if (!agents.length) return null;
  const rows = agents.flatMap((agent) =>
    agent.stress.runs.map((run) => {
      const worst = Object.entries(run.worst.parameters).map(([name, value]) => `${words(name)} ${number(value)}`);
      const margins = Object.entries(run.margin).map(([name, { low, high }]) => {
        const ends = [low === null ? "" : `≥ ${number(low)}`, high === null ? "" : `≤ ${number(high)}`].filter(Boolean);
        return `${words(name)} ${ends.join(" and ") || "is any"}`;
      });
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, agent.name),
        h("td", {}, percent(run.failing.share, 1)),
        h("td", {}, `${percent(run.worst.success, 0)} at ${worst.join(", ")}`),
        h("td", {}, margins.join("; ")),
      );
    }));
  return card(
    "Stress test",
    `Models on which success is below ${percent(agents[0].stress.threshold)}, and how far each parameter may move alone.`,
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Stress test" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["agent", "failing models", "worst model", "works while"].map((said) =>
          h("th", { scope: "col" }, said)))),
        h("tbody", {}, rows),
      ),
    ),
    behind("stress", null, agents.map((agent) => `deeprok stress ${agent.folder} --json > ${agent.folder}/stress.json`), () =>
      Object.fromEntries(agents.map((agent) => [agent.name, agent.stress]))),
  );
}

/** Nominal against empirical coverage of the intervals for Q. */
function covered(agents, theme) {
  if (!agents.length) return null;
  const frame = chart("empirical against nominal coverage of the intervals for Q", [0, 100], [0, 100], "nominal coverage in %");
  frame.picture.append(svg("line", {
    x1: frame.across(0), y1: frame.up(0), x2: frame.across(100), y2: frame.up(100), class: "axis", "stroke-dasharray": "4 4",
  }));
  agents.forEach((agent, i) => {
    const colour = theme.series[i % theme.series.length];
    const { levels, coverage } = agent.coverage;
    const known = levels.map((level, k) => [frame.across(100 * level), frame.up(100 * coverage[k])]);
    frame.picture.append(svg("path", {
      d: known.map(([x, y], k) => `${k ? "L" : "M"}${x} ${y}`).join(""), fill: "none", stroke: colour, "stroke-width": 2,
    }));
    known.forEach(([x, y], k) => {
      const dot = svg("circle", { cx: x, cy: y, r: 5, fill: colour });
      hover(dot, () => `${agent.name}: ${percent(levels[k])} claimed, ${percent(coverage[k])} held`);
      frame.picture.append(dot);
    });
    const place = { x: frame.right - 8, y: frame.low - 12 - 16 * i, "text-anchor": "end", style: `fill:${colour}` };
    frame.picture.append(svg("text", place, agent.name));
  });
  return card(
    "Intervals for Q",
    "The share of what the policy really earns that lies within the posterior's intervals. On the line they are as wide as they claim.",
    frame.picture,
    behind("coverage", () => frame.picture,
      agents.map((agent) => `deeprok calibrate ${agent.folder} --json > ${agent.folder}/calibrate.json`), () =>
      Object.fromEntries(agents.map((agent) => [agent.name, agent.coverage]))),
  );
}

function settings(agents) {
  const rows = agents.map((agent) => {
    const box = Object.entries(agent.box).map(([name, [low, high]]) => `${words(name)} ${number(low)} – ${number(high)}`);
    const disturbed = Object.entries(agent.disturbances).map(([name, value]) => `${words(name)} ${value}`);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, agent.name),
      h("td", {}, `${agent.algorithm}, ${agent.preset}`),
      h("td", {}, agent.state),
      h("td", {}, `${agent.keep} weights of seed ${agent.seed}${agent.seeds.length > 1 ? ` of ${agent.seeds.length}` : ""}`),
      h("td", {}, [...box, ...disturbed].join(", ") || "–"),
    );
  });
  return wide(card(
    "Agents",
    "Of several seeds, the one that did best on held-out models acts above.",
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Agents" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["agent", "algorithm, preset", "trained for", "acts by", "box and disturbances"].map(
          (said) => h("th", { scope: "col" }, said)))),
        h("tbody", {}, rows),
      ),
    ),
  ));
}
