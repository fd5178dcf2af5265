"""The page and the figure of the study `simulators`, made of nothing but the numbers of `simulators.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, SKY
from studies import defaults_page
from studies.defaults_page import diverged, missing
from studies.marks import draw_seeds, name_rows
from studies.robustness_page import environments as _with_rows
from studies.robustness_page import measured, percent
from studies.statistics import Estimate, difference, estimate, mean_of, probability_of_improvement, verdict
from studies.tables import Lines, changed, figure, markdown, placed, shown, title, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Any]

#: What the rows are, whatever their algorithm.
ROLES = {
    "nominal": "nominal model",
    "dr": "domain randomisation",
    "robust": "worst case",
    "posterior": "worst case with a posterior",
    "sb3": "stable-baselines3, randomised",
    "random": "random play",
}
_COLOURS = {"nominal": ORANGE, "dr": SKY, "robust": BLUE, "posterior": GREEN, "sb3": BLACK}
#: What is said of the worst cell: whether the first of two rows does better than the second.
_PAIRS = (("robust", "dr"), ("posterior", "dr"), ("dr", "sb3"))


def role(name: str) -> str:
    """What a row is called, whatever its algorithm."""
    return ROLES[name]


def title_of(found: Found, env: str, name: str) -> str:
    """What a row is called on an environment."""
    algorithm = str(found["environments"][env]["algorithms"][name])
    if algorithm.startswith("sb3:"):
        return f"SB3 {algorithm.removeprefix('sb3:').upper()}, randomised"
    return title(algorithm)


def each(found: Found, env: str, name: str, score: str) -> list[float]:
    """A score of each seed on the grid."""
    return defaults_page.each(found, env, name, found["epsilons"][0], score)


def environments(found: Found) -> list[str]:
    """Those on which a trained agent has numbers."""
    trained = {
        env: {name: its for name, its in rows.items() if name != "random"} for env, rows in found["rows"].items()
    }
    return _with_rows({"rows": trained, "agents": _COLOURS})


# --- comparisons ---------------------------------------------------------------------------------------


def apart(found: Found, env: str, first: str, second: str) -> Estimate | None:
    """The difference of two rows' means over seeds in the worst cell; None if one of them has no numbers."""
    if not (measured(found, env, first) and measured(found, env, second)):
        return None
    return difference(*(each(found, env, name, "worst_cell") for name in (first, second)))


def sentence(found: Found, env: str, first: str, second: str) -> str:
    """What the seeds say of two rows in the worst cell; empty if one of them has no numbers."""
    if not (measured(found, env, first) and measured(found, env, second)):
        return ""
    scores = [each(found, env, name, "worst_cell") for name in (first, second)]
    return said_of(title_of(found, env, first), title_of(found, env, second), *scores)


def said_of(first: str, second: str, ones: list[float], others: list[float]) -> str:
    """A sentence on two rows: the difference of their means decides.

    Args:
      first: what the one is called.
      second: what the other is called.
      ones: a score of each seed of the one.
      others: of the other.
    """
    means = difference(ones, others)
    if means.interval is None:
        return f"{first} has too few seeds to be compared with {second}."
    above, below, _ = verdict({"": means})
    words = "is better than" if above else "is worse than" if below else "is not clearly better or worse than"
    probability = estimate(probability_of_improvement, ones, others)
    return (
        f"{first} {words} {second}: the means differ by {_with(means)}, and a seed of the former beats one of the "
        f"latter with probability {percent(probability)} %."
    )


def verdict_on(found: Found, env: str) -> str:
    """Whether the worst case beats domain randomisation in the worst cell, beyond chance; and two comparisons more."""
    first, *others = (sentence(found, env, *pair) for pair in _PAIRS)
    said = f"**In the worst cell {first.replace(': ', ':** ', 1)}" if first else ""
    return " ".join(filter(None, (said, *others)))


def summary(found: Found) -> str:
    """On which simulators the worst case is above domain randomisation, and on which below."""
    lines = []
    for name in ("robust", "posterior"):
        said = verdict({env: apart(found, env, name, found["baseline"]) for env in environments(found)})
        if any(said):
            lines.append(f"- **{role(name).capitalize()}** against {role(found['baseline'])}: {placed(said)}.")
    return "\n".join(lines)


def untaught(found: Found) -> str:
    """Simulators that no agent learned, where the worst cells say little; empty if there is none."""
    best = {
        env: max(float(np.mean(each(found, env, name, "success"))) for name in _COLOURS if measured(found, env, name))
        for env in environments(found)
    }
    failing = [f"`{env}` (success at most {100 * rate:.0f} %)" for env, rate in best.items() if rate < 0.5]
    return f" No agent learned {', '.join(failing)}: there the comparison says little." if failing else ""


def _chance(found: Found) -> str:
    count = sum(all(measured(found, env, name) for name in pair) for env in environments(found) for pair in _PAIRS)
    return (
        f"With {count} comparisons on this page, about {count / 20:.1g} would be called better or worse by chance if "
        "all agents were alike."
    )


# --- tables --------------------------------------------------------------------------------------------


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _with(value: Estimate) -> str:
    """A return with its interval."""
    ends = f" ({' – '.join(map(_number, value.interval))})" if value.interval else ""
    return f"{_number(value.value)}{ends}"


def _time(found: Found, env: str, name: str) -> str:
    """Median seconds of training relative to the nominal agent's; a row without was not timed beside it."""
    seconds = {
        of: [seed["seconds"] for seed in its]
        for of in (name, "nominal")
        if (its := found["rows"][env][of]["seeds"].values()) and all("seconds" in seed for seed in its)
    }
    return (
        f"{np.median(seconds[name]) / np.median(seconds['nominal']):.1f}" if {name, "nominal"} <= set(seconds) else "–"
    )


def table(found: Found, env: str, short: bool = False) -> Lines:
    """A header and a line for each row that has numbers on an environment."""
    header = ["agent", "success %", "mean return", "worst cell", "CVaR₁₀", "time", "seeds"]
    lines: Lines = [["", *header[1:]] if short else header]
    for name in ROLES:
        if not measured(found, env, name):
            continue
        lines.append(
            [
                found["environments"][env]["algorithms"][name] if short else title_of(found, env, name),
                percent(mean_of(each(found, env, name, "success")), rate=True),
                _number(float(np.mean(each(found, env, name, "mean_return")))),
                _with(estimate(np.mean, each(found, env, name, "worst_cell"))),
                _number(float(np.mean(each(found, env, name, "cvar10")))),
                _time(found, env, name),
                str(len(found["rows"][env][name]["seeds"])),
            ]
        )
    return lines


def budget_table(found: Found) -> Lines:
    """What each environment is given, and what is uncertain of it."""
    lines: Lines = [
        ["simulator", "uncertain", "steps", "steps between trials", "test episodes in a cell", "success above"]
    ]
    for env, its in found["environments"].items():
        box = ", ".join(f"`{name}` {low:g} – {high:g}" for name, (low, high) in its.get("box", {}).items())
        success = f"{its['success_return']:g}" if "success_return" in its else "–"
        steps = [f"{its[name]:,}" for name in ("steps", "trial_steps")]
        lines.append([f"`{env}`", box or "–", *steps, str(its["episodes"]), success])
    return lines


def short_tables(found: Found) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [[env, *table(found, env, short=True)] for env in environments(found)]


# --- the page ------------------------------------------------------------------------------------------


def _seeds(found: Found) -> str:
    counts = sorted(
        {len(found["rows"][env][name]["seeds"]) for env in environments(found) for name in _rows(found, env)}
    )
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "no"


def failed(found: Found) -> str:
    """A sentence on simulations that failed in the tests."""
    counts = {
        env: sum(seed["failed"] for its in found["rows"][env].values() for seed in its["seeds"].values())
        for env in environments(found)
    }
    words = ", ".join(f"{count} on `{env}`" for env, count in counts.items() if count)
    return (
        f"Simulations that failed in the tests, each an episode that ended there: {words}."
        if words
        else ("No simulation failed in the tests.")
    )


def left_out(found: Found) -> str:
    """A sentence on the simulators that could not be made where the study was run, if there are any."""
    known = environments(found)
    problems = [its["problem"] for env, its in found["environments"].items() if its["problem"] and env not in known]
    return f" Left out: {'; '.join(problems)}." if problems else ""


def effort(found: Found) -> str:
    """How long training and testing took in all."""
    seeds = [seed for rows in found["rows"].values() for its in rows.values() for seed in its["seeds"].values()]
    training, testing = (sum(seed.get(name, 0.0) for seed in seeds) / 3600 for name in ("seconds", "tested"))
    return f"Where the time was taken, training took {training:.1f} hours of one core and the tests {testing:.1f}."


def _stable_baselines(found: Found) -> str:
    if any(measured(found, env, "sb3") for env in found["rows"]):
        return (
            "stable-baselines3 has its own default settings, observations divided by their typical sizes, and models "
            "drawn in the same way. Its TD3 adds no noise to its actions by default, and then does not explore; here "
            f"it has that of the other agents, with a standard deviation of {found['action_noise']:g}. It has no "
            "choice of weights on held-out models, so its last ones are played."
        )
    return "stable-baselines3 is not among the rows yet; it needs the extra `bench`."


def page(found: Found) -> str:
    """Markdown of the verdicts, the tables and the figure.

    Args:
      found: what `simulators.json` holds.
    """
    tables = "\n".join(
        f"### `{env}`\n\n{verdict_on(found, env)}\n\n{markdown(table(found, env))}" for env in environments(found)
    )
    changes = found["changes"]
    return wrapped(
        f"""# The agents in other people's simulators

Gymnasium's and MuJoCo's environments are brought in by their ids, with the boxes of uncertain parameters that come with
them ([Gymnasium](how-to/gymnasium.md), [MuJoCo](how-to/mujoco.md)). On each, four agents and stable-baselines3 have the
same number of environment steps: the nominal model alone, domain randomisation, the worst-case target, and the
worst-case target with a weight posterior. They have the preset `default`, and nothing was tuned for a simulator.

In the worst cell of the grid, by 95 % intervals of the differences of means over {_seeds(found)} seeds:

{summary(found)}

With so few seeds only large differences are beyond chance.{untaught(found)}

{figure("simulators", "worst", "Return in the worst cell of each agent on each simulator")}

A dot is a seed, a bar the mean over seeds with its 95 % interval. The dotted line is random play. Agents that were not
measured on a simulator have no row there.

## Results

*Success* and *mean return*: over all cells of a grid of 5 values of each uncertain parameter, with both ends of its
range. *Worst cell*: the return in the cell where it is lowest. *CVaR₁₀*: over the worst tenth of the cells. *Time*:
of training with its trials, by the clock, as a multiple of the nominal agent's; medians over seeds, and – where the two
were not trained under the same conditions. Numbers are means over seeds, with 95 % intervals: Student's for success,
the bootstrap's for returns, so that they can't leave the range of what is possible. There is no exploration in the
tests. An agent is called better or worse than another where Welch's 95 % interval of the difference of their means in
the worst cell excludes 0. {_chance(found)}

{tables}

## How it was measured

This page is generated, with its figure and [simulators.json](simulators/simulators.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. {effort(found)}
{diverged(found, role)}{missing(found, role)}{left_out(found)} {failed(found)}

{markdown(budget_table(found), texts=(1,))}

- Settings that differ from the preset, for all of the library's agents alike: {changed(changes)}. With
  {shown(changes["models"])} models a robust target asks the simulator that many times in every step, and at its final
  level it takes the worst one of them.
- In the preset a trial on held-out models is 256 episodes, which a simulator takes longer for than the training
  between two trials. Here it is {shown(changes["trial_models"])} models with {shown(changes["trial_episodes"])}
  episodes each, without random actions, and the score is the worst of the models.
- Models are drawn from the box anew in each episode; each value is one of the ends of its range with probability
  {found["edges"]:g}.
- Every seed is tested on episodes of its own, so the spread over seeds holds the noise of the test as well. Within a
  seed the episodes have the same first states in all cells. The weights are those that a run ends with. Random play has
  one such test.
- In `LunarLander-v3` the state can't be restored, so a robust target has a copy of the simulation for each model, and
  these drift apart within an episode.
- {_stable_baselines(found)}
"""
    )


# --- the figure ----------------------------------------------------------------------------------------

_COLUMNS = 2


def figures(found: Found) -> dict[str, Figure]:
    """Every figure that the numbers allow, by name."""
    return {"worst": worst_cells(found)} if environments(found) else {}


def worst_cells(found: Found) -> Figure:
    """A panel for each simulator: a dot for each seed's worst cell of every agent, and its mean with its interval."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    envs = environments(found)
    columns = min(_COLUMNS, len(envs))
    rows = -(-len(envs) // columns)
    most = max(len(_rows(found, env)) for env in envs)
    chart = Figure(figsize=(4.6 * columns, rows * (0.36 * most + 0.8) + 0.4), layout="constrained")
    panels = chart.subplots(rows, columns, squeeze=False).ravel()
    for panel, env in zip(panels, envs, strict=False):
        names = _rows(found, env)
        for height, name in enumerate(names):
            values = each(found, env, name, "worst_cell")
            draw_seeds(panel, height, values, estimate(np.mean, values), _COLOURS[name])
        if measured(found, env, "random"):
            (line,) = each(found, env, "random", "worst_cell")[:1]
            panel.axvline(line, color="dimgrey", linewidth=0.9, linestyle=":", zorder=0)
        panel.set_title(env, fontsize=10)
        panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        panel.grid(axis="x", linewidth=0.5, alpha=0.5)
        name_rows(panel, [role(name) for name in names])
    for panel in panels[len(envs) :]:
        panel.set_visible(False)
    chart.supxlabel("return in the worst cell", fontsize=10)
    return chart


def _rows(found: Found, env: str) -> list[str]:
    """The trained agents that have numbers on a simulator, the last first."""
    return [name for name in reversed(_COLOURS) if measured(found, env, name)]
