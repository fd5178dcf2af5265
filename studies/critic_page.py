"""The page on critics, made of nothing but the numbers of `critic.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLUE, GREEN, ORANGE
from studies.statistics import Estimate, estimate, probability_of_improvement
from studies.tables import Lines, figure, interval, markdown, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"linear": "linear", "adam": "network, Adam", "kalman": "network, Kalman filter"}
_SETTINGS = {"adam": "`--critic-rate`", "kalman": "`--critic-noise`"}
_COLOURS = {"linear": ORANGE, "adam": BLUE, "kalman": GREEN}


def each(found: Mapping[str, Any], env: str, critic: str, score: str) -> list[float]:
    """A score of each seed: one of the grid's, with random actions, or one of the critic's."""
    first = f"{found['epsilons'][0]:g}"
    seeds = found["rows"][env].get(critic, {"seeds": {}})["seeds"].values()
    return [seed["scores"][first][score] if score in seed["scores"][first] else seed[score] for seed in seeds]


def _measured(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(env, critic) for env, row in found["rows"].items() for critic in row if row[critic]["seeds"]]


def _reached(found: Mapping[str, Any], env: str, critic: str) -> str:
    """The median over the seeds that got there, and how many did if not all."""
    seeds = [seed["reached"] for seed in found["rows"][env][critic]["seeds"].values()]
    there = [episodes for episodes in seeds if episodes is not None]
    if not there:
        return "never"
    missed = "" if len(there) == len(seeds) else f" ({len(there)} of {len(seeds)})"
    return f"{np.median(there):.0f}{missed}"


def table(found: Mapping[str, Any], short: bool = False) -> Lines:
    """A header and a line for each environment and critic that was measured."""
    header = ["environment", "critic", "success %", "95 % interval", "worst cell", "95 % interval"]
    header += ["explained variance", "σ of V", "episodes to the bar", "time"]
    if short:
        header = ["", "", "success", "interval", "worst cell", "interval", "explained", "σ", "episodes", "time"]
    lines: Lines = [header]
    for env, critic in _measured(found):
        success = estimate(np.mean, each(found, env, critic, "success"))
        worst = estimate(np.mean, each(found, env, critic, "worst_cell"))
        deviations = each(found, env, critic, "deviation") if critic == "kalman" else []
        times = found["seconds"].get(env)
        lines.append(
            [
                env if short else f"`{env}`",
                critic if short else TITLES[critic],
                f"{100 * success.value:.1f}",
                interval(success.interval, 100),
                f"{worst.value:.3g}",
                interval(worst.interval, 1, ".3g"),
                f"{np.mean(each(found, env, critic, 'explained')):.2f}",
                f"{np.mean(deviations):.2g}" if deviations else "–",
                _reached(found, env, critic),
                f"{times[critic] / times['linear']:.2f}" if times else "–",
            ]
        )
    return lines


def tuning_table(found: Mapping[str, Any]) -> Lines:
    """A header and a line for each environment and tuned critic: the score of each trial."""
    lines: Lines = [["environment", "critic", "setting", "trials: mean return", "chosen"]]
    for env, critics in found["tuning"].items():
        for critic, trials in critics.items():
            said = [
                f"{value}: {np.mean(list(its['seeds'].values())):.3g}" if its["seeds"] else f"{value}: –"
                for value, its in trials.items()
            ]
            chosen = found["rows"][env].get(critic, {}).get("value")
            own = f"{chosen:g}" if chosen is not None else "–"
            lines.append([f"`{env}`", TITLES[critic], _SETTINGS[critic], ", ".join(said), own])
    return lines


def _compared(found: Mapping[str, Any]) -> list[tuple[str, str, Estimate]]:
    """How often a seed with the Kalman critic does better than one with another, in the worst cell."""
    pairs = []
    for env, row in found["rows"].items():
        for other in ("adam", "linear"):
            pair = [each(found, env, critic, "worst_cell") for critic in ("kalman", other) if critic in row]
            if len(pair) == 2 and all(pair):
                pairs.append((env, other, estimate(probability_of_improvement, *pair)))
    return pairs


def verdict(found: Mapping[str, Any]) -> str:
    """Where policies with the Kalman critic differ from others by more than chance, and what it costs."""
    sure = [(env, other, its.value) for env, other, its in _compared(found) if _is_sure(its)]
    said = [f"{'better' if value > 0.5 else 'worse'} than with {TITLES[of]} on `{env}`" for env, of, value in sure]
    answer = "better in places" if any(value > 0.5 for *_, value in sure) else "no better"
    worst_cell = f"is {', '.join(said)}, beyond chance" if said else "does not differ from that with another critic"
    worst_cell += "" if said else " on any environment, beyond chance"
    ratios = [its["kalman"] / its["adam"] for its in found["seconds"].values() if {"kalman", "adam"} <= set(its)]
    cost = f" An iteration takes {np.mean(ratios):.1f} times as long as with Adam." if ratios else ""
    return (
        f"**The filter is {answer} as a critic.** The return of its policies in the worst cell {worst_cell}."
        f"{_unlearned(found)}{cost}"
    )


def _unlearned(found: Mapping[str, Any]) -> str:
    """Environments that no policy learned, which compare nothing; empty if there is none."""
    best: dict[str, float] = {}
    for env, critic in _measured(found):
        best[env] = max(best.get(env, 0.0), float(np.mean(each(found, env, critic, "success"))))
    failing = [f"`{env}` (success at most {100 * rate:.0f} %)" for env, rate in best.items() if rate < _LEARNED]
    return f" No policy learned {', '.join(failing)}, so it can't compare critics." if failing else ""


#: Mean success below which policies count as not learned.
_LEARNED = 0.25


def _is_sure(better: Estimate) -> bool:
    return better.interval is not None and not better.interval[0] <= 0.5 <= better.interval[1]


def comparison_table(found: Mapping[str, Any]) -> Lines:
    """A header and a line for each environment and each of the other critics."""
    lines: Lines = [["environment", "against", "better", "95 % interval"]]
    for env, other, better in _compared(found):
        words = [f"{100 * better.value:.0f} %", interval(better.interval, 100, ".0f")]
        lines.append([f"`{env}`", TITLES[other], *words])
    return lines


def diverged(found: Mapping[str, Any]) -> str:
    """A sentence on the seeds that diverged, if any did."""
    broken = [
        f"`{env}`, {TITLES[critic]}: {', '.join(map(str, its['diverged']))}"
        for env, row in found["rows"].items()
        for critic, its in row.items()
        if its["diverged"]
    ]
    return f"Seeds that diverged, which are in no mean: {'; '.join(broken)}." if broken else "No seed diverged."


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [[f"critics, ε = {found['epsilons'][0]:g}", *table(found, short=True)]]


def _budgets(found: Mapping[str, Any]) -> str:
    """The environments with their episodes, what else differs from the preset, and the return to reach."""
    words = []
    for env, its in found["environments"].items():
        others = [f"{name} {value:g}" for name, value in its.items() if name not in ("episodes", "reached")]
        more = f", {', '.join(others)}" if others else ""
        words.append(f"`{env}` ({its['episodes']:,} episodes{more}; bar {its['reached']:g})")
    return ", ".join(words)


def page(found: Mapping[str, Any]) -> str:
    """Markdown of the tables and the figure.

    Args:
      found: what `critic.json` holds.
    """
    return wrapped(
        f"""# Is the Kalman filter a better critic?

A policy gradient subtracts a baseline V(s) from the returns. Here V is learned in three ways, and all else is equal:
`pg`, domain randomisation with the preset `tuned`. The linear critic is ridge regression on features of the observation
and the time. The two others are the same network of 32 × 32 units, whose weights are kept by Adam or by the extended
Kalman filter. The last is the idea of KOVA [^kova].

{verdict(found)}

{figure("critic", "critics", "Worst cell and explained variance with each critic on each environment")}

A dot is a seed, a bar the mean over seeds with its 95 % interval. Axes of the return are enlarged; those of the
explained variance end at 1.

This page is generated, with its figure and [critic.json](critic/critic.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. {diverged(found)}

## Results

On {_budgets(found)}. *Success* and *worst cell*: the weights that a run ends with, on the grid of models that
[the preset `default`](defaults.md) is measured on, with random actions of probability {found["epsilons"][0]:g} and
{found["episodes"]} episodes in each cell. *Explained variance*: of the returns of fresh trajectories of the last
policy, by the critic that the run ends with. *σ of V*: its mean standard deviation under the filter's posterior, in
units of return. *Episodes to the bar*: until the return on held-out models was above the bar in two trials in a row,
median over the seeds that got there. *Time*: of an iteration, as a multiple of the linear critic's, with the
iterations of the three taken in turns on one core.

{markdown(table(found), texts=(1,))}

How often a seed with the Kalman critic does better than one with another critic in the worst cell; 50 % is no
difference.

{markdown(comparison_table(found), texts=(1,))}

## Tuning

One setting of each network critic was tuned, with three trials each, on seeds that are not reported and on models
further inside the box than the grid's. The score is the mean return over these models and seeds. The linear critic has
nothing to tune.

{markdown(tuning_table(found), texts=(1, 2, 3))}

[^kova]: S. Di-Castro Shashua and S. Mannor, "Kalman meets Bellman: improving policy evaluation through value tracking",
    2020, arXiv:2002.07171.
"""
    )


def figures(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the numbers allow, by name."""
    return {"critics": critics(found)} if _measured(found) else {}


def critics(found: Mapping[str, Any]) -> Figure:
    """The worst cell and the explained variance: a column for each environment, a dot for each seed."""
    from matplotlib.figure import Figure

    envs = [env for env in found["rows"] if any(of == env for of, _ in _measured(found))]
    chart = Figure(figsize=(3.4 * len(envs), 5.2), layout="constrained")
    panels = chart.subplots(2, len(envs), squeeze=False)
    rows = (
        ("worst_cell", "return in the worst cell\n(sum of rewards)"),
        ("explained", "explained variance\nof the returns"),
    )
    lowest = min(min(each(found, env, critic, "explained")) for env, critic in _measured(found))
    for (score, words), line in zip(rows, panels, strict=True):
        for env, panel in zip(envs, line, strict=True):
            names = [critic for of, critic in _measured(found) if of == env]
            for at, critic in enumerate(names):
                values, colour = each(found, env, critic, score), _COLOURS[critic]
                mean = estimate(np.mean, values)
                panel.plot(np.full(len(values), at - 0.15), values, ".", color=colour, alpha=0.5)
                panel.plot(at, mean.value, "_", color=colour, markersize=16, markeredgewidth=2.5)
                panel.plot([at, at], mean.interval or [mean.value] * 2, color=colour, linewidth=1.2)
            panel.set_xticks(range(len(names)), [TITLES[critic].replace(", ", ",\n") for critic in names], fontsize=8)
            panel.set_xlim(-0.5, len(names) - 0.5)
            panel.grid(axis="y", linewidth=0.6, alpha=0.5)
            if score == "worst_cell":
                panel.set_title(env, fontsize=10)
            else:
                panel.set_ylim(min(0.5, lowest - 0.05), 1.02)
        line[0].set_ylabel(words)
    return chart
