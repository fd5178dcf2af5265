"""The page on the posterior's intervals, made of nothing but the numbers of `calibration.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    return float(np.mean(_each(found, row, kind, level)))


def within(found: Mapping[str, Any], row: Mapping[str, Any], kind: str) -> bool:
    """Whether the empirical coverages are where they should be."""
    return all(low <= covered(found, row, kind, level) <= high for level, (low, high) in BARS.items())


def table(found: Mapping[str, Any], short: bool = False) -> Lines:
    """Coverage, negative log-likelihood and error of every posterior."""
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
    header += ["NLL, raw", "NLL, corrected", "σ, corrected", "RMS error, corrected", "within"]
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
                *(_covered(found, row, kind, level) for level in BARS for kind in ("raw", "corrected")),
                *(_short(mean_of(row, kind, "surprise")) for kind in ("raw", "corrected")),
                *(f"{mean_of(row, 'corrected', name):.3g}" for name in ("deviation", "error")),
                "yes" if within(found, row, "corrected") else "no",
            ]
            for env, target, posterior, row in rows_of(found)
        ),
    ]


def _each(found: Mapping[str, Any], row: Mapping[str, Any], kind: str, level: float) -> list[float]:
    """The empirical coverage of each agent of a row."""
    i = found["levels"].index(level)
    return [agent[kind]["coverage"][i] for agent in row["agents"].values()]


def _covered(found: Mapping[str, Any], row: Mapping[str, Any], kind: str, level: float) -> str:
    """The mean coverage in %, and the smallest and largest of the agents if there are several."""
    each = _each(found, row, kind, level)
    mean = f"{100 * np.mean(each):.1f}"
    return f"{mean} ({100 * min(each):.0f} – {100 * max(each):.0f})" if len(each) > 1 else mean


def _short(number: float) -> str:
    return f"{number:.2f}" if abs(number) < 100 else f"{number:.0f}"


def alarm_table(found: Mapping[str, Any]) -> Lines:
    """How well deviations predict the cells where a policy fails."""
    lines: Lines = [["environment", "target", "posterior", "failing cells", "AUROC", "agents with both kinds"]]
    for env, target, posterior, row in rows_of(found):
        known = _aurocs(row)
        lines.append(
            [
                f"`{env}`",
                target,
                NAMES[posterior],
                _failing(found, env, [row]),
                f"{np.mean(known):.2f} ({min(known):.2f} – {max(known):.2f})" if known else "–",
                f"{len(known)} of {len(row['agents'])}",
            ]
        )
    return lines


def _aurocs(row: Mapping[str, Any]) -> list[float]:
    """Of each agent that has cells of both kinds."""
    return [agent["auroc"] for agent in row["agents"].values() if agent["auroc"] is not None]


def _failing(found: Mapping[str, Any], env: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """How many cells fail, from the agent with the fewest to the one with the most."""
    counts = [round(agent["failing"] * found["cells"][env]) for row in rows for agent in row["agents"].values()]
    ends = dict.fromkeys((min(counts), max(counts)))
    return f"{' to '.join(map(str, ends))} of {found['cells'][env]}"


def alarm_verdict(found: Mapping[str, Any]) -> str:
    """How well the filter's deviations predict failures, by target, and on how few cells that rests."""
    parts = []
    for target in ("robust", "nominal"):
        rows = {env: row for env, of, posterior, row in rows_of(found) if (of, posterior) == (target, "filter")}
        means = {env: float(np.mean(_aurocs(row))) for env, row in rows.items() if _aurocs(row)}
        if means:
            few = [f"{_failing(found, env, [rows[env]])} cells on `{env}`" for env in means]
            parts.append(
                f"With the {target} target the filter's mean AUROC is {min(means.values()):.2f} to "
                f"{max(means.values()):.2f}; failing are {', '.join(few)}."
            )
    return " ".join(parts)


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


def cautious_verdict(found: Mapping[str, Any]) -> str:
    """Where acting on the lower bound changes success by more than a point; no intervals are stored."""
    rows = [(env, row["agent"], row["cautious"]) for env, *_, row in rows_of(found) if row["cautious"]]
    if not rows:
        return ""
    *_, last = rows[0][2]
    changes = {(env, agent): (its["0"], its[last]) for env, agent, its in rows}
    words: dict[str, list[str]] = {"raises": [], "lowers": []}
    for (env, agent), (before, after) in changes.items():
        if abs(after - before) > _CHANGE:
            said = f"{title(agent)} on `{env}` ({100 * before:.1f} to {100 * after:.1f} %)"
            words["raises" if after > before else "lowers"].append(said)
    parts = [f"{what} the success of {', '.join(its)}" for what, its in words.items() if its]
    details = f" With κ = {last} it {' and '.join(parts)}. The others change by at most {100 * _CHANGE:.0f} points."
    return (
        f"**It helps in {len(words['raises'])} of {len(changes)} cases and harms in {len(words['lowers'])}.**"
        f"{details if parts else ''} These are means over seeds; intervals were not stored."
    )


#: What counts as a change of success.
_CHANGE = 0.02


def half_coverage(found: Mapping[str, Any]) -> str:
    """The coverage of the filter's corrected 50 % intervals, which no bound is set for."""
    rows = [row for *_, posterior, row in rows_of(found) if posterior == "filter"]
    if not rows or 0.5 not in found["levels"]:
        return ""
    shares = [covered(found, row, "corrected", 0.5) for row in rows]
    return (
        "The filter's corrected intervals of 50 %, which the correction does not look at, cover "
        f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %."
    )


def verdicts(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers come to, for the page and for others that quote it."""
    cases = [(env, target) for env, targets in found["rows"].items() for target in targets]
    rows = {(env, target, posterior): row for env, target, posterior, row in rows_of(found)}
    filters = [rows[case[0], case[1], "filter"] for case in cases if (*case, "filter") in rows]

    def less(other: str, kind: str) -> str:
        """In how many of the cases that both were measured in the corrected filter has the lower NLL."""
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

An interval for Q with a nominal coverage of 95 % should contain the true value in 95 % of all cases. Here are the
intervals of agents trained with the preset `default`, {many} seeds each, before and after the correction that a run
makes at its end (`--recalibrate`, in `default` for agents with a posterior).

**Truth.** {found["states"]} states of each seed that its greedy policy visits; after each action the policy goes on,
and the discounted return is what Q should be. With the nominal target this is on the nominal model, which the agents
learned on. With the robust target nature goes on in every step with one of the models that are worst by the agent's
own values, averaged over {found["models"]} model sets: what the agent's Q means. The run corrects itself with other
states, other models and other random numbers.

**Correction.** A run compares its values with such returns in 64 states. It adds the median error to Q, multiplies the
posterior's σ, and adds a constant variance, so that the empirical coverage of intervals of 80 and 95 % is the nominal
one there ([How it works](estimators.md#intervals-that-hold)). The greedy policy stays the same.

**Result.** Of {said["cases"]} combinations of environment and target, the filter's intervals are within bounds (80 %
intervals: 70 to 90 %; 95 % intervals: 88 to 99 %) in {said["raw"]} as the filter gives them, and in
{said["corrected"]} after the correction, by the mean over seeds; single seeds lie further off. {half_coverage(found)}
The corrected filter has a lower negative log-likelihood (NLL) than Bayes by Backprop in {said["less than bbb raw"]}
cases and than five Q-networks in {said["less than ensemble raw"]}, if those are taken as they are. If they are
corrected in the same way, it is lower in {said["less than bbb corrected"]} and {said["less than ensemble corrected"]}.

{figure("calibration", "coverage", "Empirical coverage of 80 and 95 % intervals, before and after the correction")}

This page is generated, with its figure and [calibration.json](calibration/calibration.json), by

```sh
{found["command"]}
```

which adds to what its folder holds.
{"Seeds that diverged, which are in no mean: " + "; ".join(broken) + "." if broken else "No seed diverged."}

## Intervals

Empirical coverage in %, over all states, actions and seeds, with the smallest and the largest of a seed. *NLL*: the
mean negative log-likelihood of the truth, the smaller the better. *Within*: both corrected coverages are within the
bounds. Bayes by Backprop has no numbers of its own for the preset `default`: its rates are those of `tuned`. The five
networks are DQN, and RTD-DQN for the robust target; their spread is the standard deviation over five seeds, and each
such group of five is one agent. With so few agents the comparisons between posteriors are no more than a hint.

{markdown(table(found), texts=(1, 2))}

This truth is that of the agent's own policy. Against the exact robust Q* of the ferry, which no policy enters, there is
[an older measurement](kalman.md#calibration).

The errors are not normal: where a policy fails from some states it earns much less than Q says, and a few such errors
dominate the NLL of every posterior.

## σ as an alarm

Does σ grow where the policy fails? Each agent plays {found["episodes"]} episodes on a grid of models that reaches half
a width beyond the box on either side. A cell fails if fewer than half of its episodes succeed. The alarm is the mean σ
of Q over an episode's steps. AUROC is the probability that a failing cell has the larger alarm: 0.5 is chance. Mean
over agents, and smallest and largest.

{alarm_verdict(found)} An alarm that knows the model and takes its distance from the box was not measured beside it.

{markdown(alarm_table(found), texts=(1, 2))}

## Acting on a lower confidence bound

Success in % on the same grid, with random actions of probability 0.05, of policies that act on Q − κσ, mean over seeds.

{cautious_verdict(found)}

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
        bounds = panel.axvspan(100 * low, 100 * high, color="0.9", zorder=0)
        panel.axvline(100 * level, color="0.5", linewidth=0.8, linestyle=":")
        for env, target, posterior, row in rows_of(found):
            height = heights[env, target] + 0.25 - 0.25 * list(NAMES).index(posterior)
            ends = 100 * np.array(_each(found, row, "corrected", level))
            panel.plot([ends.min(), ends.max()], [height, height], color=_COLOURS[posterior], linewidth=1.2, alpha=0.6)
            for kind, fill in (("raw", "none"), ("corrected", _COLOURS[posterior])):
                at = 100 * covered(found, row, kind, level)
                panel.plot(at, height, "o", color=_COLOURS[posterior], markerfacecolor=fill, clip_on=False, zorder=3)
        panel.set_xlim(0, 100)
        panel.set_xlabel(f"empirical coverage in %, nominal {100 * level:.0f} %")
        panel.grid(axis="x", linewidth=0.6, alpha=0.5)
    panels[0].set_yticks(list(heights.values()), [f"{env}, {target}" for env, target in heights])
    marks = [panels[0].plot([], [], "o", color=colour)[0] for colour in _COLOURS.values()]
    fills = [panels[0].plot([], [], "o", color="0.4", markerfacecolor=fill)[0] for fill in ("none", "0.4")]
    words = [*NAMES.values(), "as the posterior is", "corrected, with the range of seeds", "bounds"]
    chart.legend([*marks, *fills, bounds], words, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return chart
