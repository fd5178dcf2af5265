// Where agents break: the worst model, how far each parameter may move alone, and which parameters matter.

import { card, h, number, percent, svg, table, words } from "./elements.js";
import { behind, hover, lanes, legend } from "./figure.js";

/** What `deeprok stress` found of each agent that has been tested; null without any. */
export function drawStress(agents, sliders, theme) {
  const tested = agents
    .map((agent, i) => ({ agent, colour: theme.series[i % theme.series.length], found: agent.stress?.found }))
    .filter(({ found }) => found);
  if (!tested.length) return null;
  const units = Object.fromEntries(sliders.map(({ name, unit }) => [name, unit]));
  const said = (name, value) => `${number(value)} ${units[name] ?? ""}`.trim();
  const commands = tested.map(({ agent }) => agent.stress.command);
  const numbers = () => Object.fromEntries(tested.map(({ agent }) => [agent.name, agent.stress.found]));
  const pictures = [marginsOf(tested, said), sensitivitiesOf(tested)];
  const names = legend(tested.map(({ agent, colour }) => ({ said: agent.name, colour })));
  return card(
    "Stress test",
    "Failing models are those on which an agent succeeds in fewer episodes than the threshold. They were searched for in " +
      `all parameters at once, in the ranges below.${alike(tested) ? "" : " The agents were tested differently."}`,
    table("Stress test", ["agent", "threshold", "failing models", "worst model found", "success there"], tested.map(({ agent, found }) => {
      const [run] = found.runs;
      const worst = Object.entries(run.worst.parameters).map(([name, value]) => `${words(name)} ${said(name, value)}`);
      return [agent.name, percent(found.threshold), `${percent(run.failing.share, 1)}${range(run.failing.interval)}`, worst.join(", "),
        `${percent(run.worst.success, 1)}${range(run.worst.interval)}`];
    })),
    h("h4", {}, "How far each parameter may move alone"),
    h("p", { class: "about" }, "The bar is where the agent works, the line the nominal value, the shaded part the box."),
    pictures[0],
    behind("margins", () => pictures[0], commands, numbers),
    h("h4", {}, "Which parameters matter"),
    h("p", { class: "about" }, "Total Sobol indices, the share of the variance of " + measured(tested) + " that a parameter has a part in, with 95 % intervals."),
    pictures[1],
    names,
    behind("sensitivities", () => pictures[1], commands, numbers),
  );
}

/** Whether all were tested in the same way. */
function alike(tested) {
  const how = ({ threshold, budget, searched }) => JSON.stringify([threshold, budget, searched]);
  return new Set(tested.map(({ found }) => how(found))).size === 1;
}

/** What the indices are of: success, or the mean return where success hardly varies. */
function measured(tested) {
  const of = tested.map(({ agent, found }) => [agent.name, words(found.runs[0].sensitivity_of)]);
  const kinds = new Set(of.map(([, kind]) => kind));
  return kinds.size === 1 ? of[0][1] : of.map(([name, kind]) => `${kind} (${name})`).join(" or ");
}

const range = (interval) => (interval ? ` (${interval.map((end) => (100 * end).toFixed(1)).join(" – ")})` : "");

const names = (tested) => [...new Set(tested.flatMap(({ found }) => Object.keys(found.searched)))];

function marginsOf(tested, said) {
  const rows = names(tested).map((name) => {
    const having = tested.filter(({ found }) => found.searched[name]);
    const low = Math.min(...having.map(({ found }) => found.searched[name][0]));
    const high = Math.max(...having.map(({ found }) => found.searched[name][1]));
    const share = (value) => (value - low) / (high - low || 1);
    const [{ found }] = having;
    return {
      name: words(name),
      behind: (across, y, height) => {
        const [from, to] = found.box[name].map((end) => across(share(end)));
        return svg("rect", { x: from, y, width: to - from, height, class: "shade" });
      },
      marks: having.map(({ agent, colour, found: its }) => (across, y, height) => {
        const margin = its.runs[0].margin[name];
        const fails = its.runs[0].nominal.success < its.threshold;
        const [from, to] = [margin.low ?? its.searched[name][0], margin.high ?? its.searched[name][1]];
        const bar = svg("rect", {
          x: across(share(from)), y, width: Math.max(2, across(share(to)) - across(share(from))), height, rx: 2, fill: colour,
        });
        const ends = [margin.low === null ? "" : `from ${said(name, from)}`, margin.high === null ? "" : `up to ${said(name, to)}`];
        const works = ends.filter(Boolean).join(" ") || `everywhere from ${said(name, from)} to ${said(name, to)}`;
        hover(bar, () => `${agent.name}, ${words(name)}: ${fails ? "fails on the nominal model" : `works ${works}`}`);
        const nominal = across(share(its.runs[0].nominal.parameters[name]));
        return svg("g", {}, bar, svg("line", { x1: nominal, x2: nominal, y1: y - 1, y2: y + height + 1, class: "strong" }));
      }),
    };
  });
  return lanes("how far each parameter may move alone before an agent fails", rows, [0, 1], ["least searched", "largest searched"]);
}

function sensitivitiesOf(tested) {
  const rows = names(tested).map((name) => ({
    name: words(name),
    marks: tested.filter(({ found }) => found.runs[0].sensitivity[name]).map(({ agent, colour, found }) => (across, y, height) => {
      const { total, low, high } = found.runs[0].sensitivity[name];
      const part = (value) => across(Math.min(Math.max(value, 0), 1));
      const mark = svg("g", {},
        svg("rect", { x: across(0), y, width: Math.max(1, part(total) - across(0)), height, rx: 2, fill: colour }),
        svg("line", { x1: part(low), x2: part(high), y1: y + height / 2, y2: y + height / 2, class: "strong" }));
      hover(mark, () => `${agent.name}, ${words(name)}: ${number(total)} (${number(low)} – ${number(high)}) of the variance of ` +
        words(found.runs[0].sensitivity_of));
      return mark;
    }),
  }));
  return lanes("total Sobol indices of each parameter", rows, [0, 1], ["0", "1"]);
}
