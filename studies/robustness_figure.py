"""The figures of the study `robustness`: every seed of every agent on every environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY
from studies.robustness_page import RANGE, Found, Score, compared, environments, measured, share, success, title_of
from studies.statistics import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(found: Found) -> dict[str, Figure]:
    """Every figure, by name."""
    worst = "worst cell, % of the reference's"
    return {
        "share": seeds_figure(found, share, worst, RANGE),
        "success": seeds_figure(found, success, "mean success over cells in %", (0.0, 100.0)),
    }


def _colour(name: str) -> str:
    """One for each family of rows."""
    families = {"dr": SKY, "cvar": BLUE, "minimum": BLUE, "kl": GREEN, "wasserstein": GREEN, "sb3": BLACK}
    families |= {"pg": ORANGE, "epopt": ORANGE, "robust": ORANGE}
    return families.get(name.partition("_")[0], PURPLE)


def seeds_figure(found: Found, score: Score, label: str, limits: tuple[float, float]) -> Figure:
    """A panel for each environment: a dot for each seed of every row, and its mean with its interval.

    Args:
      found: what `robustness.json` holds.
      score: of each seed, of size one.
      label: of the horizontal axis, which is in percent.
      limits: of that axis; what lies outside is drawn at the edge.
    """
    from matplotlib.figure import Figure

    envs, names = environments(found), compared(found)
    chart = Figure(figsize=(2.2 + 2.6 * len(envs), 0.34 * len(names) + 1.1), layout="constrained")
    panels = chart.subplots(1, len(envs), sharey=True, squeeze=False)[0]
    for panel, env in zip(panels, envs, strict=True):
        for height, name in enumerate(reversed(names)):
            if not measured(found, env, name):
                continue
            values, colour = score(found, env, name), _colour(name)
            mean = mean_of(values)
            dots = np.clip(100 * np.array(values), *limits)
            panel.plot(
                dots, np.full(len(dots), height + 0.22), ".", color=colour, markersize=5, alpha=0.45, linewidth=0
            )
            centre = float(np.clip(100 * mean.value, *limits))
            panel.plot(centre, height, "|", color=colour, markersize=12, markeredgewidth=2.5)
            if mean.interval:
                ends = np.clip(100 * np.array(mean.interval), *limits)
                panel.plot(ends, [height, height], color=colour, linewidth=1.2)
            if name == found["baseline"]:
                panel.axvline(centre, color="dimgrey", linewidth=0.9, linestyle=":", zorder=0)
        margin = 0.03 * (limits[1] - limits[0])
        panel.set_xlim(limits[0] - margin, limits[1] + margin)
        panel.set_title(env, fontsize=10)
        panel.grid(axis="x", linewidth=0.5, alpha=0.5)
    panels[0].set_yticks(range(len(names)), [title_of(found, name) for name in reversed(names)])
    panels[0].set_ylim(-0.6, len(names) - 0.4)
    chart.supxlabel(label, fontsize=10)
    return chart
