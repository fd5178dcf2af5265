"""The figures of the page on the Kalman filter against Adam.

Matplotlib is imported when a figure is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY
from studies.filters_page import (
    FEW_TITLES,
    TITLES,
    Found,
    bar,
    is_few_measured,
    is_filter,
    rows_of,
    start_of,
    step_time,
    successes,
)
from studies.statistics import estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour, line and marker of each row: the four numbers of updates are shades of one hue.
_STYLES = {
    "adam 1": (ORANGE, "-", "s"),
    "adam 2": ("#CC7A00", "--", "D"),
    "adam 4": ("#994C00", "-.", "v"),
    "adam 8": ("#5C2E00", ":", "P"),
    "adam 20-20": (RED, "--", "x"),
    "full": (BLUE, "-", "o"),
    "layer": (SKY, "--", "^"),
    "neuron": (GREEN, "-.", "v"),
    "diagonal": (PURPLE, ":", "D"),
    "low_rank": (BLACK, "--", "x"),
}
_FEW_STYLES = {
    "filter posterior": (BLUE, "-", "o"),
    "filter posterior, fading": (SKY, "--", "^"),
    "filter mean": (GREEN, "-.", "v"),
    "filter scratch": (PURPLE, ":", "D"),
    "filter scratch, fast": (BLACK, "--", "x"),
    "adam weights": (ORANGE, "-", "s"),
    "adam weights, fast": (RED, "--", "P"),
    "adam scratch": ("#994C00", ":", "D"),
    "adam scratch, fast": ("#5C2E00", "-.", "x"),
}


def of_filters(found: Found) -> dict[str, Figure]:
    """Every figure, by name."""
    drawn = {"steps": curves(found, seconds=False), "seconds": curves(found, seconds=True)}
    return drawn | ({"few": few(found)} if is_few_measured(found) else {})


def curves(found: Found, seconds: bool) -> Figure:
    """Trials during training: a column for each environment, Adam's rows above and the filter's below.

    Args:
      found: what `filters.json` holds.
      seconds: against processor time instead of environment steps.
    """
    from matplotlib.figure import Figure

    envs = list(found["rows"])
    chart = Figure(figsize=(4.8 * len(envs), 6.4), layout="constrained")
    panels = chart.subplots(2, len(envs), squeeze=False, sharex="col", sharey="col")
    # The preset of the other estimator is in both rows, to compare with.
    kinds: list[Callable[[str], bool]] = [
        lambda name: not is_filter(name) or name == "full",
        lambda name: is_filter(name) or name == "adam 1",
    ]
    for column, env in enumerate(envs):
        for panel, shown in zip(panels[:, column], kinds, strict=True):
            for name, row in rows_of(found, env).items():
                if shown(name):
                    _draw(panel, row, _STYLES[name], 1e-6 * step_time(found, env, name) if seconds else 1e-3)
            panel.axhline(bar(found, env), color="grey", linewidth=1, linestyle=":")
            if seconds:
                panel.set_xscale("log")
                panel.xaxis.set_major_formatter("{x:g}")
            panel.grid(linewidth=0.5, alpha=0.5)
        panels[0, column].set_title(env, fontsize=10)
        panels[1, column].set_xlabel("processor time in s" if seconds else "environment steps in thousands")
    for panel in panels[:, 0]:
        panel.set_ylabel("return in trials: median, quartiles")
    measured = {name for env in envs for name in rows_of(found, env)}
    _legend(chart, {name: style for name, style in _STYLES.items() if name in measured}, TITLES, columns=3)
    return chart


def _draw(panel: Any, row: Mapping[str, Any], style: tuple[str, str, str], unit: float) -> None:
    """A row's median over seeds, with quartiles."""
    its = [seed["curve"] for seed in row["seeds"].values()]
    length = min(len(curve["steps"]) for curve in its)
    steps = unit * np.array(its[0]["steps"][:length], float)
    low, middle, high = np.percentile([curve["trial_return"][:length] for curve in its], (25, 50, 75), axis=0)
    colour, line, marker = style
    panel.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
    panel.plot(steps, middle, color=colour, linestyle=line, marker=marker, markersize=3, markevery=3, linewidth=1.4)


def few(found: Found) -> Figure:
    """Success at the new gravity against episodes there: a panel for each estimator."""
    from matplotlib.figure import Figure

    new, places = found["gravities"][1], np.arange(1 + len(found["budgets"]))
    measured = {name for name, its in found["few"].items() if any(row["seeds"] for row in its.values())}
    styles = {name: style for name, style in _FEW_STYLES.items() if name in measured}
    chart = Figure(figsize=(9.6, 4.4), layout="constrained")
    panels = chart.subplots(1, 2, sharey=True)
    for panel, (kind, text) in zip(panels, {"filter": "Kalman filter", "adam": "Adam"}.items(), strict=True):
        drawn = {name: style for name, style in styles.items() if name.startswith(kind)}
        for i, (name, (colour, line, marker)) in enumerate(drawn.items()):
            its = [start_of(found, name), *(found["few"].get(name, {}).get(str(b)) for b in found["budgets"])]
            known = [(place, row) for place, row in zip(places, its, strict=True) if row and row["seeds"]]
            found_means = [estimate(np.mean, list(successes(row, new).values())) for _, row in known]
            means = 100 * np.array([mean.value for mean in found_means])
            ends = 100 * np.array([mean.interval or (mean.value, mean.value) for mean in found_means])
            where = np.array([place for place, _ in known]) + 0.06 * (i - (len(drawn) - 1) / 2)
            errors = np.abs(np.stack([means - ends[:, 0], ends[:, 1] - means]))
            panel.errorbar(
                where, means, yerr=errors, color=colour, linestyle=line, marker=marker, markersize=5, capsize=2
            )
        panel.set_xticks(places, ["before", *map(str, found["budgets"])])
        panel.set_xlabel(f"episodes of training at {new:g} m/s²")
        panel.set_title(text, fontsize=10)
        panel.set_ylim(-3, 103)
        panel.grid(axis="y", linewidth=0.5, alpha=0.5)
    panels[0].set_ylabel("success over the grid in %: mean, 95 % interval")
    _legend(chart, styles, FEW_TITLES, columns=3)
    return chart


def _legend(chart: Figure, styles: Mapping[str, Any], titles: Mapping[str, str], columns: int) -> None:
    """A legend below the panels."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=c, linestyle=line, marker=marker, markersize=4) for c, line, marker in styles.values()
    ]
    words = [titles[name] for name in styles]
    chart.legend(marks, words, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
