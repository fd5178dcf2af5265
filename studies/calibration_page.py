"""The page on the posterior's intervals, made of nothing but the numbers of `calibration.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLUE, GREEN, ORANGE
from studies.tables import Lines, figure, markdown, title, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Nominal coverage -> what the empirical one should be between.
BARS = {0.8: (0.70, 0.90), 0.95: (0.88, 0.99)}
NAMES = {"filter": "Kalman filter", "bbb": "Bayes by Backprop", "ensemble": "five Q-networks"}
_COLOURS = {"filter": BLUE, "bbb": ORANGE, "ensemble": GREEN}


def rows_of(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Environment, target, posterior and its row, of those that have numbers."""
    for env, targets in found["rows"].items():
        for target, its in targets.items():
            for posterior, row in its.items():
                if row["agents"]:
                    yield env, target, posterior, row


def mean_of(row: Mapping[str, Any], kind: str, name: str) -> float:
    """The mean over agents of one of a row's numbers, `raw` or `corrected`."""
    return float(np.mean([agent[kind][name] for agent in row["agents"].values()]))


def covered(found: Mapping[str, Any], row: Mapping[str, Any], kind: str, level: float) -> float:
    """The empirical coverage, over all agents of a row, of intervals with this nominal one."""
    i = found["levels"].index(level)
    return float(np.mean([agent[kind]["coverage"][i] for agent in row["agents"].values()]))


def within(found: Mapping[str, Any], row: Mapping[str, Any], kind: str) -> bool:
    """Whether the empirical coverages are where they should be."""
    return all(low <= covered(found, row, kind, level) <= high for level, (low, high) in BARS.items())


def table(found: Mapping[str, Any], short: bool = False) -> Lines:
    """Coverage, error and surprise of every posterior."""
    header = [
        "environment",
        "target",
        "posterior",
        "seeds",
        "80 %, raw",
        "80 %, corrected",
        "95 %, raw",
        "95 %, corrected",
    ]
    header += ["surprise, raw", "surprise, corrected", "σ, corrected", "RMS error, corrected", "within"]
    if short:
        header = ["", "", "", "seeds", "80 raw", "80", "95 raw", "95", "nll raw", "nll", "sd", "rms", "ok"]
    return [
        header,
        *(
            [
                env if short else f"`{env}`",
                target,
                posterior if short else NAMES[posterior],
                str(row["seeds"] - len(row["diverged"])),
                *(f"{100 * covered(found, row, kind, level):.0f}" for level in BARS for kind in ("raw", "corrected")),
                *(_short(mean_of(row, kind, "surprise")) for kind in ("raw", "corrected")),
                *(f"{mean_of(row, 'corrected', name):.3g}" for name in ("deviation", "error")),
                "yes" if within(found, row, "corrected") else "no",
            ]
            for env, target, posterior, row in rows_of(found)
        ),
    ]


def _short(number: float) -> str:
    return f"{number:.2f}" if abs(number) < 100 else f"{number:.0f}"


def alarm_table(found: Mapping[str, Any]) -> Lines:
    """How well deviations tell the cells where a policy fails."""
    lines: Lines = [["environment", "target", "posterior", "failing cells %", "AUROC", "agents with both kinds"]]
    for env, target, posterior, row in rows_of(found):
        told = [agent["auroc"] for agent in row["agents"].values() if agent["auroc"] is not None]
        lines.append(
            [
                f"`{env}`",
                target,
                NAMES[posterior],
                f"{100 * np.mean([agent['failing'] for agent in row['agents'].values()]):.0f}",
                f"{np.mean(told):.2f} ({min(told):.2f} – {max(told):.2f})" if told else "–",
                f"{len(told)} of {len(row['agents'])}",
            ]
        )
    return lines


def cautious_table(found: Mapping[str, Any]) -> Lines:
    """Success of acting on a lower confidence bound beyond the box."""
    rows = [(env, target, row) for env, target, _, row in rows_of(found) if row["cautious"]]
    kappas = list(rows[0][2]["cautious"]) if rows else []
    return [
        ["environment", "agent", *(f"κ = {kappa}" for kappa in kappas)],
        *(
            [f"`{env}`", title(row["agent"]), *(f"{100 * row['cautious'][kappa]:.1f}" for kappa in kappas)]
            for env, _, row in rows
        ),
    ]


def verdicts(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers come to, for the page and for others that quote it."""
    cases = [(env, target) for env, targets in found["rows"].items() for target in targets]
    rows = {(env, target, posterior): row for env, target, posterior, row in rows_of(found)}
    filters = [rows[case[0], case[1], "filter"] for case in cases if (*case, "filter") in rows]

    def less(other: str, kind: str) -> str:
        """In how many of the cases that both were measured in the corrected filter is less surprised."""
        both = [
            (rows[*case, "filter"], rows[*case, other])
            for case in cases
            if {(*case, "filter"), (*case, other)} <= {*rows}
        ]
        wins = sum(mean_of(one, "corrected", "surprise") < mean_of(two, kind, "surprise") for one, two in both)
        return f"{wins} of {len(both)}"

    return {
        "cases": len(filters),
        "raw": sum(within(found, row, "raw") for row in filters),
        "corrected": sum(within(found, row, "corrected") for row in filters),
        **{f"less than {other} {kind}": less(other, kind) for other in NAMES for kind in ("raw", "corrected")},
    }


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [["intervals for Q", *table(found, short=True)]]


def page(found: Mapping[str, Any]) -> str:
    """Markdown of the tables and the figure.

    Args:
      found: what `calibration.json` holds.
    """
    said = verdicts(found)
    seeds = sorted({row["seeds"] for *_, row in rows_of(found)})
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    broken = [
        f"`{env}`, {title(row['agent'])}: {', '.join(map(str, row['diverged']))}"
        for env, _, _, row in rows_of(found)
        if row["diverged"]
    ]
    return wrapped(
        f"""# Can the posterior be believed?

An interval for Q with a nominal coverage of 95 % should hold the true value in 95 % of all cases. Here are the
intervals of agents trained with the preset `default`, {many} seeds each, before and after the correction that a run
makes at its end (`--recalibrate`, in `default` for agents with a posterior).

**Truth.** {found["states"]} states of each seed that its greedy policy visits; after each action the policy goes on,
and the discounted return is what Q should be. With the nominal target this is on the nominal model, which the agents
learned on. With the robust target nature goes on in every step with one of the models that are worst by the agent's
own values, averaged over {found["models"]} model sets: what the agent's Q means. The run corrects itself with other
states, other models and other random numbers.

**Correction.** A run compares its values with such returns in 64 states. It adds the median error to Q, multiplies the
posterior's σ, and adds a constant variance, so that intervals of 80 and 95 % hold as much as they claim
([How it works](estimators.md#intervals-that-hold)). The greedy policy stays the same.

**Result.** Of {said["cases"]} combinations of environment and target, the filter's intervals are within bounds (80 %
intervals: 70 to 90 %; 95 % intervals: 88 to 99 %) in {said["raw"]} as the filter gives them, and in
{said["corrected"]} after the correction. The corrected filter is less surprised by the truth than Bayes by Backprop in
{said["less than bbb raw"]} cases and than five Q-networks in {said["less than ensemble raw"]}, if those are taken as
they are; if they are corrected in the same way, in {said["less than bbb corrected"]} and
{said["less than ensemble corrected"]}.

{figure("calibration", "coverage", "Empirical coverage of 80 and 95 % intervals, before and after the correction")}

A hollow mark is the posterior as it is, a full one is corrected; the grey bands are the bounds.

This page is generated, with its figure and [calibration.json](calibration/calibration.json), by

```sh
{found["command"]}
```

which adds to what its folder holds.
{"Seeds that diverged, which are in no mean: " + "; ".join(broken) + "." if broken else "No seed diverged."}

## Intervals

Empirical coverage in %, over all states, actions and seeds. *Surprise*: the mean negative log density of the truth, the
smaller the better. *Within*: both corrected coverages are within the bounds. Bayes by Backprop has no numbers of its
own for the preset `default`: its rates are those of `tuned`. The five networks are DQN, and RTD-DQN for the robust
target; their spread is the standard deviation over five seeds, and each such group of five is an agent.

{markdown(table(found), texts=(1, 2))}

This truth is that of the agent's own policy. Against the exact robust Q* of the ferry, which no policy enters, there is
[an older measurement](kalman.md#calibration).

The errors are not normal: where a policy fails from some states it earns much less than Q says, and a few such errors
dominate the surprise of every posterior.

## σ as an alarm

Does σ grow where the policy fails? Each agent plays {found["episodes"]} episodes on a grid of models that reaches half
a width beyond the box on either side. A cell fails if fewer than half of its episodes succeed. The alarm is the mean σ
of Q over an episode's steps. AUROC is the probability that a failing cell has the larger alarm: 0.5 is chance. Mean
over agents, and smallest and largest.

{markdown(alarm_table(found), texts=(1, 2))}

## Acting on a lower confidence bound

Success in % on the same grid, with random actions of probability 0.05, of policies that act on Q − κσ, mean over seeds.

{markdown(cautious_table(found), texts=(1,))}
"""
    )


def figures(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the numbers allow, by name."""
    return {"coverage": coverage_chart(found)}


def coverage_chart(found: Mapping[str, Any]) -> Figure:
    """Empirical coverage of every posterior, raw and corrected, for two nominal ones."""
    from matplotlib.figure import Figure

    cases = [(env, target) for env, targets in found["rows"].items() for target, its in targets.items() if its]
    chart = Figure(figsize=(9.6, 0.55 * len(cases) + 1.3), layout="constrained")
    panels = chart.subplots(1, 2, sharey=True)
    heights = {case: len(cases) - 1 - i for i, case in enumerate(cases)}
    for panel, (level, (low, high)) in zip(panels, BARS.items(), strict=True):
        panel.axvspan(100 * low, 100 * high, color="0.9", zorder=0)
        panel.axvline(100 * level, color="0.5", linewidth=0.8, linestyle=":")
        for env, target, posterior, row in rows_of(found):
            height = heights[env, target] + 0.25 - 0.25 * list(NAMES).index(posterior)
            for kind, fill in (("raw", "none"), ("corrected", _COLOURS[posterior])):
                at = 100 * covered(found, row, kind, level)
                panel.plot(at, height, "o", color=_COLOURS[posterior], markerfacecolor=fill, clip_on=False, zorder=3)
        panel.set_xlim(0, 100)
        panel.set_xlabel(f"empirical coverage in %, nominal {100 * level:.0f} %")
        panel.grid(axis="x", linewidth=0.6, alpha=0.5)
    panels[0].set_yticks(list(heights.values()), [f"{env}, {target}" for env, target in heights])
    marks = [panels[0].plot([], [], "o", color=colour)[0] for colour in _COLOURS.values()]
    chart.legend(marks, list(NAMES.values()), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return chart
