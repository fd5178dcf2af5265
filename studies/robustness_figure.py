"""The figures of the study `robustness`: every seed of every agent on every environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY
from studies.marks import draw_seeds, name_rows
from studies.robustness_page import Found, Score, compared, environments, measured, share, success, title_of
from studies.statistics import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Of the figure of shares in %; an environment whose seeds lie outside has an axis of its own.
_RANGE = (-50.0, 180.0)
_COLUMNS = 3

#: The families of rows: colour, what they are, and how their names begin.
_FAMILIES = (
    (SKY, "domain randomisation", ("dr",)),
    (BLUE, "worst case: CVaR and minimum", ("cvar", "minimum")),
    (GREEN, "worst case: balls", ("kl", "wasserstein")),
    (ORANGE, "policy gradients", ("pg", "epopt", "robust")),
    (BLACK, "stable-baselines3, its own settings", ("sb3",)),
)


def figures(found: Found) -> dict[str, Figure]:
    """Every figure, by name."""
    worst = "worst cell in % of the reference's, from 0 % for random play"
    return {
        "share": seeds_figure(found, share, worst, _RANGE),
        "success": seeds_figure(found, success, "mean success over cells in %", (0.0, 100.0), rate=True),
    }


def _colour(name: str) -> str:
    """One for each family of rows."""
    of = {begins: colour for colour, _, names in _FAMILIES for begins in names}
    return of.get(name.partition("_")[0], PURPLE)


def _axis(ends: Sequence[float], limits: tuple[float, float]) -> tuple[float, float]:
    """The limits, or wider ones if the ends of what is drawn lie outside, a multiple of 50 away."""
    low, high = min(ends), max(ends)
    return (
        limits[0] if low >= limits[0] else 50.0 * float(np.floor(low / 50)),
        limits[1] if high <= limits[1] else 50.0 * float(np.ceil(high / 50)),
    )


def seeds_figure(found: Found, score: Score, label: str, limits: tuple[float, float], rate: bool = False) -> Figure:
    """A panel for each environment: a dot for each seed of every row, and its mean with its interval.

    Args:
      found: what `robustness.json` holds.
      score: of each seed, of size one.
      label: of the horizontal axis, which is in percent.
      limits: of that axis, where they hold all that is drawn.
      rate: whether the score is one, whose interval ends at 0 and 100 %.
    """
    from matplotlib.figure import Figure

    envs, names = environments(found), compared(found)
    columns = min(_COLUMNS, len(envs))
    rows = -(-len(envs) // columns)
    chart = Figure(figsize=(3.4 + 3.4 * columns, rows * (0.3 * len(names) + 0.6) + 0.9), layout="constrained")
    panels = chart.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for panel, env in zip(panels, envs, strict=False):
        drawn = [*limits]
        for height, name in enumerate(reversed(names)):
            if not measured(found, env, name):
                continue
            values = 100 * np.array(score(found, env, name))
            mean = mean_of(values)
            if rate and mean.interval:
                mean = mean._replace(interval=(max(mean.interval[0], 0.0), min(mean.interval[1], 100.0)))
            draw_seeds(panel, height, values, mean, _colour(name))
            drawn += [*values, *(mean.interval or ())]
            if name == found["baseline"]:
                panel.axvline(mean.value, color="dimgrey", linewidth=0.9, linestyle=":", zorder=0)
        low, high = _axis(drawn, limits)
        margin = 0.03 * (high - low)
        panel.set_xlim(low - margin, high + margin)
        panel.set_title(env, fontsize=10)
        panel.grid(axis="x", linewidth=0.5, alpha=0.5)
    for panel in panels[len(envs) :]:
        panel.set_visible(False)
    name_rows(panels[0], [title_of(found, name) for name in reversed(names)])
    chart.supxlabel(label, fontsize=10)
    shown = [(colour, words) for colour, words, _ in _FAMILIES if colour in {_colour(name) for name in names}]
    marks = [panels[0].plot([], [], "o", color=colour)[0] for colour, _ in shown]
    words = [words for _, words in shown]
    chart.legend(marks, words, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)
    return chart
