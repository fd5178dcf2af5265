"""Marks that several figures draw: rows of seeds with their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from studies.statistics import Estimate

_EVERYWHERE = (-np.inf, np.inf)


def draw_seeds(
    panel: Any,
    height: float,
    values: Sequence[float] | np.ndarray,
    mean: Estimate,
    colour: str,
    above: float = 0.24,
    limits: tuple[float, float] = _EVERYWHERE,
) -> None:
    """A row of a panel: a dot for each seed, and a bar for their mean with its interval.

    Args:
      panel: where to.
      height: of the bar.
      values: of the seeds.
      mean: over seeds.
      colour: of all.
      above: how far above the bar the dots are.
      limits: the ends of an axis in percent; seeds beyond an end are an arrow there, with the mean over them.
    """
    low, high = limits
    every = np.asarray(values, float)
    shown = every[(every >= low) & (every <= high)]
    panel.plot(shown, np.full(len(shown), height + above), ".", color=colour, markersize=5, alpha=0.5)
    if mean.interval:
        panel.plot(np.clip(mean.interval, low, high), [height, height], color=colour, linewidth=1.2)
    if low <= mean.value <= high:
        panel.plot(mean.value, height, "|", color=colour, markersize=12, markeredgewidth=2.5)
    _arrow(panel, height, low, every[every < low], len(every), colour)
    _arrow(panel, height, high, every[every > high], len(every), colour)


def _arrow(panel: Any, height: float, end: float, beyond: np.ndarray, seeds: int, colour: str) -> None:
    """What lies beyond an end of the axis, if anything does."""
    if not len(beyond):
        return
    left = float(beyond[0]) < end
    panel.plot(end, height, "<" if left else ">", color=colour, markersize=5)
    words = f"{np.mean(beyond):.0f} %".replace("-", "−")
    words += "" if len(beyond) == seeds else f" ({len(beyond)} of {seeds} seeds)"
    where: dict[str, Any] = {"xytext": (6 if left else -6, 0), "textcoords": "offset points", "va": "center"}
    panel.annotate(words, (end, height), **where, ha="left" if left else "right", fontsize=7, color=colour)


def name_rows(panel: Any, names: Sequence[str]) -> None:
    """What the rows of a panel are called, from the lowest on."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(-0.6, len(names) - 0.3)
