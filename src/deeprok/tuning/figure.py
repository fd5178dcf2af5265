"""A tuning as a figure: what each trial scored, and which settings matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from deeprok.tuning.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#bdbdbd", "#6baed6", "#08519c")  # of the rungs, the longest darkest


def draw(record: Record, importance: Mapping[str, float] | None, shown: tuple[str, float]) -> Figure:
    """Two panels: scores against trials, with what is reported of the winner; and the importance of each setting.

    Args:
      record: what was tried.
      importance: of each setting; None if it is not known.
      shown: what the score is called, and what it is multiplied by.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rungs = max((len(trial.rungs) for trial in record.trials), default=1)
    for rung in range(rungs):
        reached = [(t.number, t.rungs[rung].mean) for t in record.trials if len(t.rungs) > rung]
        points = [(number, shown[1] * mean) for number, mean in reached if mean is not None]
        colour = _COLOURS[min(len(_COLOURS) - 1, len(_COLOURS) - rungs + rung)]
        label = "all of the budget" if rung == len(record.task["rungs"]) - 1 else f"rung {rung + 1}"
        left.scatter(
            *zip(*points, strict=True) if points else ((), ()), s=18, color=colour, label=label, zorder=2 + rung
        )
    low = left.get_ylim()[0]
    failed = [trial.number for trial in record.trials if trial.state == "failed"]
    if failed:
        left.scatter(failed, [low] * len(failed), marker="x", s=22, color="#d62728", label="failed", zorder=9)
    if record.winner and record.winner.scored.scores:
        scores = shown[1] * np.asarray(record.winner.scored.scores)
        place = len(record.trials) + 1.0
        left.scatter(np.full(len(scores), place), scores, s=14, color="#d95f02", label="winner, fresh seeds", zorder=8)
        left.axhline(scores.mean(), color="#d95f02", linewidth=1, linestyle="--")
    left.set_xlabel("trial")
    left.set_ylabel(shown[0])
    left.legend(frameon=False, fontsize=8, loc="best")
    if importance:
        names = sorted(importance, key=lambda name: importance[name])
        right.barh(names, [importance[name] for name in names], color=_COLOURS[1])
        right.set_xlabel("importance (PED-ANOVA, first rung)")
        right.tick_params(axis="y", labelsize=8)
    else:
        right.axis("off")
        right.text(0.5, 0.5, "too few trials to tell\nwhich settings matter", ha="center", va="center")
    return figure
