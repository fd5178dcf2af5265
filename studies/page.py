"""The page of results, made of nothing but the numbers of `results.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deeprok.plot import NAMES
from studies.figures import squares
from studies.plan import ABLATED, CHOICES, SQUARE, applies, label

Lines = list[list[str]]

#: A table's columns, and what they are called where room is scarce.
_COLUMNS = {
    "": "",
    "success %": "success %",
    "95 % interval": "interval",
    "return": "return",
    "mean regret": "regret",
    "largest regret": "largest",
    "nominal return": "nominal",
    "episodes to 95 %": "episodes",
    "seeds": "seeds",
}


def main_table(rows: Mapping[str, Mapping[str, Any]], short: bool = False) -> Lines:
    """A header and a line for each agent or reference.

    Args:
      rows: name -> summary.
      short: for a terminal: the names of the command line.
    """
    header = list(_COLUMNS.values() if short else _COLUMNS)
    return [header, *(_line(name if short else NAMES.get(name, name), row) for name, row in rows.items())]


def _line(name: str, row: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{100 * row['iqm_success']:.1f}",
        _interval(row["success_ci"], 100),
        f"{row['iqm_return']:.1f}",
        f"{row['mean_regret']:.1f}",
        f"{row['max_regret']:.1f}",
        f"{row['nominal_return']:.1f}",
        _time(row),
        _seeds(row),
    ]


def _seeds(row: Mapping[str, Any]) -> str:
    broken = len(row.get("broken", ()))
    return f"{row['seeds']} ({broken} more broke down)" if broken else str(row["seeds"])


def _time(row: Mapping[str, Any]) -> str:
    """Episodes needed; with how many seeds got there, if not all did."""
    if row["episodes_to_95"] is None:
        return "–"
    if row["reached"] == 0:
        return "never"
    missed = "" if row["reached"] == row["seeds"] else f" ({row['reached']} of {row['seeds']})"
    at_least = "" if row["reached"] == row["seeds"] else "≥ "
    return f"{at_least}{row['episodes_to_95']:.0f}{missed}"


def _interval(ends: Sequence[float] | None, factor: float = 1.0, form: str = ".1f") -> str:
    return f"{factor * ends[0]:{form}} – {factor * ends[1]:{form}}" if ends else "–"


def with_interval(found: Mapping[str, Any], factor: float = 1.0, form: str = ".1f") -> str:
    """A number with its interval in brackets."""
    value = f"{factor * found['value']:{form}}"
    return f"{value} ({_interval(found['ci'], factor, form)})" if found["ci"] else value


def beyond_table(rows: Mapping[str, Mapping[str, Any]], conditions: Mapping[str, str]) -> Lines:
    """Success in worlds beyond those trained on, a line for each condition and a column for each row."""
    lines = [["beyond the box, success %", *rows]]
    lines += [
        [what, *(with_interval(row["beyond"][name], 100) for row in rows.values())] for name, what in conditions.items()
    ]
    return lines


def coverage_table(rows: Mapping[str, Mapping[str, Any]]) -> Lines:
    """Coverage of intervals, as they come and with fitted temperatures, a line for each calibration."""
    levels = next(iter(rows.values()))["levels"]
    header = ["", *(f"{100 * level:.0f} %" for level in levels), "temperature"]
    header += [*(f"{100 * level:.0f} %, scaled" for level in levels), "claimed σ", "error"]
    return [
        header,
        *(
            [
                name,
                *(f"{100 * share:.0f}" for share in row["coverage"]),
                f"{min(row['temperature']):.2g} – {max(row['temperature']):.2g}",
                *([f"{100 * share:.0f}" for share in row["calibrated"]] if row["calibrated"] else ["–"] * len(levels)),
                f"{row['deviation']:.3g}",
                f"{row['error']:.3g}",
            ]
            for name, row in rows.items()
        ),
    ]


def markdown(lines: Lines) -> str:
    """A table: a header and its lines."""
    header, *rest = lines
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rest)) + "\n"


def _figure(name: str, what: str) -> str:
    return f"![{what}](results/{name}.png)\n\n[As SVG](results/{name}.svg)\n"


def results_page(found: Mapping[str, Any]) -> str:
    """Markdown of all tables and figures.

    Args:
      found: what `results.json` holds.
    """
    studies = found["studies"]
    preset, other = found["preset"], "paper" if found["preset"] == "tuned" else "tuned"
    parts = [_introduction(found), _agents(found, preset, found["agents"])]
    if other in studies:
        parts.append(_agents(found, other, studies[other]))
    parts += [_square(found), _speed(found), _beyond(found), _improvement(found)]
    if "ablation" in studies:
        parts += [_ablation(studies["ablation"]), _tuning(studies["tuning"])]
    parts.append(_settings(found))
    return "\n".join(part for part in parts if part)


def _introduction(found: Mapping[str, Any]) -> str:
    count = max(agent["seeds"] for agent in found["agents"].values())
    full = "--full " if found["studies"] else ""
    preset = "" if found["preset"] == "tuned" else f" --preset {found['preset']}"
    weights = ", ".join(f"{x:.4f}" for x in found["linear_weights"])
    return f"""# Results

This page is generated, with its figures and [results.json](results/results.json), by

```sh
deeprok reproduce {full}--seeds {count}{preset}
```

The numbers are this library's, not the paper's.

## How it was measured

- The grid is the paper's: pole length 0.2 – 1.4 m × cart mass 0.1 – 7 kg, 7 × 7 cells, both edges included. Each cell
  is played for {found["test_episodes"]} episodes with ε = {found["epsilon"]:g}, with the same random numbers in every
  cell and for every agent (ensembles and stable-baselines3: a fifth of the episodes).
- An episode succeeds when its return is above 195 of 200.
- Every agent is trained for 700 episodes with each seed; the weights are the last ones, as they stand after the last
  episode.
- *Success* and *return* over the grid are interquartile means over seeds, with 95 % bootstrap intervals: the seeds of
  an agent are resampled, 9999 times. A reference that is a single policy has the interval of its test episodes.
- *The ceiling* is a linear-quadratic regulator designed for each cell with that cell's physics, pushing by its sign.
  Some cells are beyond any policy: with a random action in one step of ten, a light cart can't hold a short pole.
- A run whose filter or weights break down numerically has no policy to examine; the tables say how many did.
- The maps show means over seeds, cell by cell, which seeds that failed pull down.
- *Regret* is the ceiling's return in a cell less the agent's: its mean and its largest value over cells.
- *Episodes to 95 %*: the first of two successive evaluations over the grid, one every 20 episodes, that are both above
  95 % of the ceiling's return. A seed that never gets there counts as one evaluation more than it had; "≥" and the
  number of seeds that did get there say so.
- *The best linear policy* pushes right where ({weights}) · s > 0;
  the cross-entropy method found it on this grid, on other episodes.
- *SB3 DQN* is stable-baselines3's DQN with the settings that RL Baselines3 Zoo publishes for CartPole-v1, trained for
  700 episodes on the nominal model, or with a model of the box drawn in each episode (*randomised*). Like the other
  agents it is judged by its last weights; these settings were published for 50,000 steps, and it is unstable beyond.
"""


def _agents(found: Mapping[str, Any], preset: str, agents: Mapping[str, Any]) -> str:
    rows = {**agents, **found["references"]} if preset == found["preset"] else agents
    title = {"tuned": "As we would run it", "paper": "As the paper has it"}[preset]
    return "\n".join(
        [
            f"## {title}: preset `{preset}`\n",
            markdown(main_table(rows)),
            _figure(f"success-{preset}", f"Success over pole length × cart mass, preset {preset}"),
            _figure(f"returns-{preset}", f"Return against pole length at a cart mass of 1.5 kg, preset {preset}"),
            _figure(f"learning-{preset}", f"Return over the grid while learning, preset {preset}"),
        ]
    )


def _square(found: Mapping[str, Any]) -> str:
    header = ["", "Adam: nominal label", "Adam: robust label", "Kalman: nominal label", "Kalman: robust label"]
    lines = [[title, *(_cell(agents[name]) for name in SQUARE)] for title, agents in squares(found).items()]
    chosen = ""
    if best := found["studies"].get("best"):
        changes = "; ".join(
            f"`{name}`: " + (", ".join(f"{k} {_value(v)}" for k, v in row["changes"].items()) or "none")
            for name, row in best.items()
        )
        chosen = f"""
*Best settings* are those with the highest mean success in the [tuning](#how-it-was-tuned), which gave each corner the
same trials. What differs from preset `tuned`: {changes}.
"""
    return f"""## The square: label × estimator

The paper's argument in four corners: `dqn`, `rtd_dqn`, `ekf_dqn` and `deep_rok` differ by the label and the estimator
alone. All take the plain maximum and act on the same models while they train: sampled ones with preset `tuned`, the
nominal one with `paper`. Success in %, interquartile mean and 95 % interval:

{markdown([header, *lines])}{chosen}
{_figure("square", "Success by label and estimator")}"""


def _speed(found: Mapping[str, Any]) -> str:
    lines = [["", "Deep-RoK", "RTD-DQN", "Deep-RoK / RTD-DQN (95 % interval)"]]
    tables = {found["preset"]: found["agents"], "fastest": found["studies"].get("fastest")}
    for name, table in tables.items():
        if table:
            title = {"fastest": "each at its own fastest settings"}.get(name, f"preset `{name}`")
            ratio = with_interval(found["speed"][name], form=".2f")
            lines.append([title, _time(table["deep_rok"]), _time(table["rtd_dqn"]), ratio])
    text = f"""## How fast they learn

Episodes to 95 % of the ceiling's return, and their ratio:

{markdown(lines)}"""
    if fastest := tables["fastest"]:
        settings = [["", "settings that differ from `tuned`", "success %", "episodes to 95 %"]]
        for name, row in fastest.items():
            changes = ", ".join(f"`{k}` {_value(v)}" for k, v in row["changes"].items()) or "none"
            settings.append([NAMES[name], changes, f"{100 * row['iqm_success']:.1f}", _time(row)])
        text += f"""
Each at the settings with which it was fastest in the [tuning](#how-it-was-tuned):

{markdown(settings)}
{_figure("learning-fastest", "Return over the grid while learning, each agent at its fastest settings")}"""
    return text


def _beyond(found: Mapping[str, Any]) -> str:
    rows = {name: row for name, row in {**found["agents"], **found["references"]}.items() if "beyond" in row}
    lines = [["", *(NAMES.get(name, name) for name in rows)]]
    lines.append(["the grid itself", *(f"{100 * row['iqm_success']:.1f}" for row in rows.values())])
    for condition, what in found["conditions"].items():
        lines.append([what, *(f"{100 * row['beyond'][condition]['value']:.1f}" for row in rows.values())])
    return f"""## Beyond the box

Success in %, interquartile mean over seeds, of the agents of preset `{found["preset"]}` in worlds that none of them
was trained or tuned on; unless said otherwise on the grid above. The regulator knows each cell's parameters, the pole's
mass and gravity included, but nothing of noise and delay.

{markdown(lines)}"""


def _improvement(found: Mapping[str, Any]) -> str:
    names = list(found["agents"])
    lines = [["", *(NAMES.get(name, name) for name in names)]]
    for first in names:
        cells = [
            "" if first == second else with_interval(found["improvement"][first][second], form=".2f")
            for second in names
        ]
        lines.append([NAMES.get(first, first), *cells])
    return f"""## Probability of improvement

How likely a seed of the agent in the row has a higher success over the grid than one of the agent in the column, and
its 95 % interval; preset `{found["preset"]}`.

{markdown(lines)}"""


def _ablation(table: Mapping[str, Any]) -> str:
    lines = [["choice", *(NAMES[algorithm] for algorithm in ABLATED)]]
    lines.append(["**the preset**", *(_cell(table[f"{algorithm} base"]) for algorithm in ABLATED)])
    for choice, values in CHOICES.items():
        for changes in values:
            rows = [
                table.get(label(algorithm, changes)) if applies(algorithm, changes) else None for algorithm in ABLATED
            ]
            if any(rows):
                shown = ", ".join(_value(value) for value in changes.values())
                lines.append([f"{choice}: {shown}", *("" if row is None else _cell(row) for row in rows)])
    seeds = next(iter(table.values()))["seeds"]
    return f"""## What the open choices do

Each choice that the paper leaves open is changed alone, from preset `paper`. Success in % and its 95 % interval;
{seeds} seeds a row. An empty cell is the preset's own value, or a choice that the agent does not have.

{markdown(lines)}"""


def _cell(row: Mapping[str, Any]) -> str:
    broken = f", {len(row['broken'])} broke down" if row["broken"] else ""
    return f"{100 * row['iqm_success']:.1f} ({_interval(row['success_ci'], 100)}){broken}"


def _tuning(table: Mapping[str, Any]) -> str:
    lines = [["", "success %", "over seeds", "episodes to 95 %"]]
    for row in table.values():
        seeds = [100 * x for x in row["per_seed"]["success"]]
        settings = ", ".join(f"{k} {_value(v)}" for k, v in row["changes"].items())
        lines.append(
            [
                f"`{row['algorithm']}`: {settings}",
                f"{sum(seeds) / len(seeds):.1f}",
                f"{min(seeds):.1f} – {max(seeds):.1f}",
                _time(row),
            ]
        )
    seeds = next(iter(table.values()))["per_seed"]["seed"]
    return f"""## How it was tuned

Each corner of the square was given the same fifteen trials: three step sizes (Adam's rate, or the filter's observation
noise, whose ratio to the prior covariance of 0.004 is what counts) × five schedules. Inputs not scaled in the first,
scaled by 0.5, 0.5, 5, 0.5 in the others; ε annealed over 30,000 steps and a target period of 2000 unless a row says
otherwise. Everything else is as in preset `tuned`. Seeds {seeds[0]} to {seeds[-1]}, which are not reported elsewhere on
this page. The last schedule was added, for all corners alike, once the first four had been seen; the preset `tuned`
itself is older, and was chosen on seeds 1000 to 1007 with fewer trials. Means over these seeds:

{markdown(lines)}"""


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(_value(x) for x in value)
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _settings(found: Mapping[str, Any]) -> str:
    lines = [["", "algorithm", "preset", "settings' hash"]]
    tables = {found["preset"]: found["agents"], **found["studies"]}
    for study, table in tables.items():
        if study in ("tuned", "paper", "fastest"):
            lines += [
                [f"{study}: {NAMES.get(n, n)}", f"`{r['algorithm']}`", r["preset"], f"`{r['settings']}`"]
                for n, r in table.items()
            ]
    return f"## Settings\n\n{markdown(lines)}"
