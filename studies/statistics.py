"""Statistics of the studies, beside those of the library, whose names are here too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from deeprok.evaluation.statistics import Estimate as Estimate
from deeprok.evaluation.statistics import difference as difference
from deeprok.evaluation.statistics import estimate as estimate
from deeprok.evaluation.statistics import iqm as iqm
from deeprok.evaluation.statistics import mean_of as mean_of
from deeprok.evaluation.statistics import probability_of_improvement as probability_of_improvement


def ratio_of_iqms(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    """The first agent's interquartile mean over the second's."""
    return iqm(first, axis) / iqm(second, axis)


class Verdict(NamedTuple):
    """What the 95 % intervals of some differences say: which lie above 0, which below, and which hold 0."""

    above: list[str]
    below: list[str]
    open: list[str]


def verdict(differences: Mapping[str, Estimate | None]) -> Verdict:
    """Sorts differences by what their intervals say; those without an interval are left out.

    Args:
      differences: name, as of an environment -> the difference there, or None where there is none.
    """
    said = Verdict([], [], [])
    for name, apart in differences.items():
        if apart and apart.interval:
            low, high = apart.interval
            (said.above if low > 0 else said.below if high < 0 else said.open).append(name)
    return said


def failures(scores: Sequence[float], threshold: float) -> int:
    """How many seeds score below a threshold."""
    return int(np.sum(np.asarray(scores) < threshold))


def fisher(first: Sequence[float], second: Sequence[float], threshold: float) -> float:
    """p of Fisher's exact test, two-sided: do the seeds of two agents fall below a threshold equally often?"""
    from scipy import stats

    counts = [(failures(scores, threshold), len(scores)) for scores in (first, second)]
    return float(stats.fisher_exact([[below, seeds - below] for below, seeds in counts]).pvalue)


def exam_noise(cell_success: Sequence[Sequence[float]], episodes: int) -> float:
    """Standard error of the success over a grid from the test episodes alone, for one policy.

    Args:
      cell_success: share of successes in each cell.
      episodes: test episodes in each cell.
    """
    cells = np.asarray(cell_success)
    return float(np.sqrt(np.sum(cells * (1 - cells)) / episodes) / cells.size)


def episodes_to(threshold: float, episodes: Sequence[int], returns: Sequence[float]) -> int | None:
    """When a learning curve got there: the first of two successive evaluations that are both above.

    Args:
      threshold: where to.
      episodes: when each evaluation was.
      returns: what it gave.

    Returns:
      The episode, or None if it never did.
    """
    above = np.asarray(returns) > threshold
    both = np.flatnonzero(above[:-1] & above[1:])
    return int(episodes[both[0]]) if len(both) else None
