"""A comparison of groups as a figure: the interquartile mean of each, and the performance profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deeprok import plot as figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deeprok.evaluation.groups.result import GroupComparison

_MOST_ROWS = 40
_LONGEST = 44  # characters of a label


def draw(found: GroupComparison) -> Figure:
    """Intervals of the best groups, the best on top, and the profiles of as many as there are line styles."""
    from matplotlib.figure import Figure

    ranked = sorted(found.groups, key=lambda group: -group.iqm.value)[:_MOST_ROWS]
    figure = Figure(figsize=(9.6, max(3.2, 1.6 + 0.28 * len(ranked))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    scale = 100 if found.measure == "success" else 1
    drawn = [group for group in found.groups if group in ranked[: len(figures.STYLES)]]
    styles = {group.label: style for group, style in zip(drawn, figures.STYLES, strict=False)}
    for row, group in enumerate(ranked):
        colour, _, marker = styles.get(group.label, ("0.6", "", "o"))
        if group.iqm.interval:
            low, high = group.iqm.interval
            left.plot([scale * low, scale * high], [row, row], color=colour, linewidth=5, alpha=0.35)
        left.plot([scale * group.iqm.value], [row], marker, color=colour, markersize=6)
        left.plot([scale * group.mean.value], [row], "|", color=colour, markersize=11)
    left.set_yticks(range(len(ranked)), [_shortened(group.label) for group in ranked], fontsize=8)
    left.set_ylim(len(ranked) - 0.5, -0.5)
    left.set_xlabel(score_name(found))
    left.set_title("interquartile mean (95 %), | mean", fontsize=10)
    for group in drawn:
        shares = np.array([share.value for share in group.profile])
        ends = np.array([share.interval or (share.value, share.value) for share in group.profile])
        figures.draw_band(
            right,
            scale * found.thresholds,
            100 * shares,
            100 * ends[:, 0],
            100 * ends[:, 1],
            styles[group.label],
            _shortened(group.label),
            markers=False,
        )
    right.set_xlabel(f"τ: {score_name(found)}")
    right.set_ylabel(f"seeds and {found.tasks} above τ, in %")
    right.set_ylim(-2, 102)
    right.set_title("performance profile", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    return figure


def score_name(found: GroupComparison) -> str:
    """What the scores are, in a few words."""
    if found.measure == "success":
        return "success in %"
    return "normalised return" if found.scales else "return"


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
