"""Statistics of many seeds on many tasks: what rliable computes of a matrix of scores, runs × tasks.

R. Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021.

Scores come in blocks [S, T]: S runs, each with a score on the same T tasks. A bootstrap draws the runs of each block
again by themselves, and a run keeps its scores together. A matrix as rliable has it is a block for each column, since
there the runs on two tasks are independent of each other. The cells of a grid that one policy has played are not: they
are one block, and to draw them apart would make intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from deeprok.evaluation.statistics import Estimate

#: Scores [S, T] of S runs on T tasks, for each group of tasks whose runs are independent of the others'.
Blocks = Sequence[np.ndarray]

RESAMPLES = 5000

_ENDS = (0.025, 0.975)
_MOST_NUMBERS = 4_000_000  # at once: 32 MB


class Resampled(NamedTuple):
    """Blocks of scores, and how often each bootstrap sample has each of their runs."""

    blocks: tuple[np.ndarray, ...]  # each [S, T]
    counts: tuple[np.ndarray, ...]  # each [B, S]

    @property
    def has_interval(self) -> bool:
        """Whether every task has at least two runs."""
        return all(len(block) > 1 for block in self.blocks)

    @property
    def tasks(self) -> np.ndarray:
        """How many tasks each block has."""
        return np.array([block.shape[1] for block in self.blocks])


def resample(blocks: Blocks, rng: np.random.Generator, resamples: int = RESAMPLES) -> Resampled:
    """Bootstrap samples of runs, drawn in each block by itself."""
    given = tuple(np.asarray(block, float) for block in blocks)
    counts = [rng.multinomial(len(block), np.full(len(block), 1 / len(block)), resamples) for block in given]
    return Resampled(given, tuple(counts))


def mean_over_tasks(scores: Resampled) -> Estimate:
    """The mean over tasks of the mean over runs."""
    return _linear(scores, [block.mean(axis=1, keepdims=True) for block in scores.blocks])[0]


def profile(scores: Resampled, thresholds: np.ndarray) -> list[Estimate]:
    """The performance profile: for each threshold τ, the share of runs and tasks with a score above τ."""
    return _linear(scores, [(block[:, :, None] > thresholds).mean(axis=1) for block in scores.blocks])


def iqm_over_tasks(scores: Resampled) -> Estimate:
    """The interquartile mean of the scores of all runs on all tasks."""
    every = np.concatenate([block.reshape(-1) for block in scores.blocks])
    order = np.argsort(every)
    value = float(_trimmed_mean(every[order], np.ones((1, len(every)), int))[0])
    if not scores.has_interval:
        return Estimate(value, None)
    # A run that is drawn twice has each of its scores twice, so that they are sorted once for all samples.
    of_score = [np.repeat(counts, block.shape[1], axis=1) for block, counts in zip(*scores, strict=True)]
    rows = max(1, _MOST_NUMBERS // len(every))
    parts = []
    for start in range(0, len(of_score[0]), rows):
        some = np.concatenate([counts[start : start + rows] for counts in of_score], axis=1)
        parts.append(_trimmed_mean(every[order], some[:, order]))
    return Estimate(value, _ends(np.concatenate(parts)))


def improvement_over_tasks(first: Resampled, second: Resampled) -> Estimate:
    """The probability that a run of the first agent beats one of the second on a task, a draw counting half.

    Both have the same blocks of tasks. It is the mean over tasks of the Mann-Whitney statistic.
    """
    wins = [_wins(ours, theirs) for ours, theirs in zip(first.blocks, second.blocks, strict=True)]
    share = first.tasks / first.tasks.sum()
    value = float(sum(part * won.mean() for part, won in zip(share, wins, strict=True)))
    if not (first.has_interval and second.has_interval):
        return Estimate(value, None)
    drawn = np.zeros(len(first.counts[0]))
    for part, won, ours, theirs in zip(share, wins, first.counts, second.counts, strict=True):
        drawn += part * np.sum((ours @ won) * theirs, axis=1) / won.size
    return Estimate(value, _ends(drawn))


def _wins(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[S, S'] on what share of the tasks each of our runs beats each of theirs."""
    rows = [((run > theirs) + 0.5 * (run == theirs)).mean(axis=1) for run in ours]
    return np.stack(rows)


def _linear(scores: Resampled, of_run: Sequence[np.ndarray]) -> list[Estimate]:
    """Means over tasks of numbers [S, K] that each run of a block has by itself; each block counts by its tasks."""
    share = scores.tasks / scores.tasks.sum()
    values = sum(part * runs.mean(axis=0) for part, runs in zip(share, of_run, strict=True))
    if not scores.has_interval:
        return [Estimate(float(value), None) for value in np.asarray(values)]
    drawn = np.zeros((len(scores.counts[0]), of_run[0].shape[1]))
    for part, runs, counts in zip(share, of_run, scores.counts, strict=True):
        drawn += part * (counts @ runs) / len(runs)
    return [Estimate(float(value), _ends(column)) for value, column in zip(np.asarray(values), drawn.T, strict=True)]


def _trimmed_mean(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The interquartile mean of sorted values [N], of which each sample [B, N] has so many."""
    total = int(counts[0].sum())
    cut = total // 4
    kept = np.clip(np.cumsum(counts, axis=1), cut, total - cut)
    return (np.diff(kept, axis=1, prepend=cut) @ values) / (total - 2 * cut)


def _ends(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(drawn, _ENDS)
    return float(low), float(high)
