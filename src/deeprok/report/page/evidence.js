// The evidence: what was measured of the agents, with the commands and numbers behind it.

import { drawCurves } from "./curves.js";
import { card, choice, h, number, percent, svg, table, words } from "./elements.js";
import { behind, chart, hover, legend } from "./figure.js";
import { cellsOf, regretTo } from "./maps.js";
import { drawStress } from "./stress.js";

function wide(element) {
  element.classList.add("wide");
  return element;
}

export function drawEvidence(scene, theme, chosen) {
  const { agents } = scene;
  const mapped = agents.filter((agent) => agent.map);
  const cards = [
    learning(agents, theme, chosen),
    drawStress(agents, scene.sliders, theme),
    covered(agents, theme),
  ].filter(Boolean);
  if (cards.length % 2) wide(cards[0]);
  return [mapped.length ? results(scene, mapped) : null, ...cards, settings(agents)].filter(Boolean);
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const between = (interval, said) => (interval ? ` (${interval.map(said).join(" – ")})` : "");

function results(scene, agents) {
  const { map } = agents[0];
  const [first, ...others] = agents;
  const compared = others.some((agent) => agent.map.improvement !== null);
  const { reference } = scene;
  const best = Math.max(...agents.map((agent) => mean(agent.map.overall)));
  const rows = agents.map((agent) => {
    const overall = mean(agent.map.overall);
    const { improvement, improvement_interval: interval } = agent.map;
    return [
      agent.name,
      h("td", { class: overall === best && others.length ? "best" : "" },
        percent(overall, 1) + between(agent.map.overall_interval, (end) => (100 * end).toFixed(1).replace("-", "−"))),
      percent(agent.map.nominal, 1),
      percent(Math.min(...cellsOf(agent.map, "success")), 1),
      number(mean(agent.map.returns)),
      compared ? (improvement === null ? "–" : improvement.toFixed(2) + between(interval, (end) => end.toFixed(2))) : null,
      reference ? number(mean(regretTo(reference, agent.map))) : null,
      agent.map.overall.length,
    ].filter((cell) => cell !== null);
  });
  const seeds = agents.every((agent) => agent.map.overall.length > 1)
    ? "Intervals are over seeds, 95 %."
    : "One seed of an agent has no interval: nothing is known of another seed.";
  const chance = compared ? ` Better than ${first.name}: the probability that a seed succeeds more often than one of ${first.name}.` : "";
  const regret = reference
    ? " Regret: how much less it earns, on average over the cells, than policies that were each computed for a cell's own model " +
      `(${reference.episodes} episodes a cell).`
    : "";
  const headings = ["agent", "whole grid", "nominal model", "worst cell", "mean return", compared && `better than ${first.name}`,
    reference && "regret", "seeds"].filter(Boolean);
  const commands = [...agents.map((agent) => agent.map.command), ...(reference ? [reference.command] : [])];
  return wide(card(
    "Results",
    `Success over the whole grid, ${map.episodes} episodes a cell and seed, ε ${number(map.epsilon)}, ${map.keep} weights. ` +
      `${seeds}${chance}${regret}`,
    table("Results", headings, rows),
    behind("results", () => savedMaps(agents), commands, () =>
      ({ ...Object.fromEntries(agents.map((agent) => [agent.name, agent.map])), ...(reference ? { reference } : {}) })),
  ));
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

/** Nominal against empirical coverage of the intervals for Q. */
function covered(agents, theme) {
  const known = agents
    .map((agent, i) => ({ agent, colour: theme.series[i % theme.series.length], found: agent.coverage?.found }))
    .filter(({ found }) => found);
  if (!known.length) return null;
  const frame = chart("empirical against nominal coverage of the intervals for Q", [0, 100], [0, 100], "nominal coverage in %");
  frame.picture.append(svg("line", {
    x1: frame.across(0), y1: frame.up(0), x2: frame.across(100), y2: frame.up(100), class: "axis", "stroke-dasharray": "4 4",
  }));
  for (const { agent, colour, found: { levels, coverage } } of known) {
    const points = levels.map((level, k) => [frame.across(100 * level), frame.up(100 * coverage[k])]);
    frame.picture.append(svg("path", {
      d: points.map(([x, y], k) => `${k ? "L" : "M"}${x} ${y}`).join(""), fill: "none", stroke: colour, "stroke-width": 2,
    }));
    points.forEach(([x, y], k) => {
      const dot = svg("circle", { cx: x, cy: y, r: 5, fill: colour });
      hover(dot, () => `${agent.name}: ${percent(levels[k])} claimed, ${percent(coverage[k], 1)} held`);
      frame.picture.append(dot);
    });
  }
  const rows = known.map(({ agent, found: { levels, coverage, points } }) =>
    [agent.name, `${agent.coverage.keep} weights`, ...levels.map((_, k) => percent(coverage[k], 1)), number(points)]);
  const { levels } = known[0].found;
  return card(
    "Intervals for Q",
    "The share of what the policy really earns that lies within the posterior's intervals. On the dashed line they hold what " +
      "they claim.",
    frame.picture,
    legend(known.map(({ agent, colour }) => ({ said: agent.name, colour }))),
    table("Intervals for Q", ["agent", "of the", ...levels.map((level) => `${percent(level)} interval`), "values of Q"], rows),
    behind("coverage", () => frame.picture, known.map(({ agent }) => agent.coverage.command), () =>
      Object.fromEntries(known.map(({ agent, found }) => [agent.name, found]))),
  );
}

function settings(agents) {
  const rows = agents.map((agent) => {
    const box = Object.entries(agent.box).map(([name, [low, high]]) => `${words(name)} ${number(low)} – ${number(high)}`);
    const disturbed = Object.entries(agent.disturbances).map(([name, value]) => `${words(name)} ${value}`);
    return [
      agent.name,
      `${agent.algorithm}, ${agent.preset}`,
      agent.state,
      `${agent.keep} weights of seed ${agent.seed}${agent.seeds.length > 1 ? ` of ${agent.seeds.length}` : ""}`,
      [...box, ...disturbed].join(", ") || "–",
    ];
  });
  return wide(card(
    "Agents",
    "Of several seeds, the one that did best on held-out models acts above.",
    table("Agents", ["agent", "algorithm, preset", "trained for", "acts by", "box and disturbances"], rows),
  ));
}
