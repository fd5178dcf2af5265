"""Statistics over few seeds.

R. Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021.

The unit that is resampled is a seed: its cells hang together and are never torn apart. Agents are
the strata: each is resampled among its own seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A number over seeds and its 95 % interval, which is None with a single seed."""

    value: float
    interval: tuple[float, float] | None


def as_object(found: Estimate) -> dict[str, Any]:
    """An estimate as JSON has it."""
    return {"value": found.value, "interval": found.interval and list(found.interval)}


def iqm(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """The interquartile mean: a quarter of the scores, rounded down, is left out at either end."""
    from scipy import stats  # here, since it would take half a second of every command's start

    return stats.trim_mean(scores, 0.25, axis=axis)


def probability_of_improvement(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    """How often a seed of the first agent beats one of the second; a draw counts half."""
    first, second = (np.moveaxis(np.asarray(scores), axis, -1) for scores in (first, second))
    difference = first[..., :, None] - second[..., None, :]
    return np.mean((difference > 0) + 0.5 * (difference == 0), axis=(-2, -1))


def estimate(statistic: Callable[..., np.ndarray], *samples: Sequence[float] | np.ndarray) -> Estimate:
    """A statistic of samples with its 95 % stratified percentile bootstrap interval.

    Args:
      statistic: takes the samples and the axis along which the seeds lie.
      samples: scores of each agent's seeds.
    """
    from scipy import stats

    arrays = [np.asarray(sample, float) for sample in samples]
    value = float(statistic(*arrays, axis=-1))
    if min(len(array) for array in arrays) < 2:
        return Estimate(value, None)
    resampled = stats.bootstrap(
        arrays, statistic, n_resamples=9999, vectorized=True, method="percentile", rng=np.random.default_rng(0)
    )
    low, high = resampled.confidence_interval
    return Estimate(value, (float(low), float(high)))


def mean_of(scores: Sequence[float] | np.ndarray) -> Estimate:
    """The mean over seeds with Student's 95 % interval, which at ten seeds is closer to 95 % than a bootstrap's."""
    values = np.asarray(scores, float)
    return _around(float(np.mean(values)), [values])


def difference(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> Estimate:
    """The first agent's mean minus the second's, with Welch's 95 % interval."""
    values = [np.asarray(scores, float) for scores in (first, second)]
    return _around(float(np.mean(values[0]) - np.mean(values[1])), values)


def _around(value: float, samples: Sequence[np.ndarray]) -> Estimate:
    """Student's interval for a sum or difference of means; the degrees of freedom are Welch's."""
    from scipy import stats

    if min(len(sample) for sample in samples) < 2:
        return Estimate(value, None)
    squares = [float(np.var(sample, ddof=1)) / len(sample) for sample in samples]
    total = sum(squares)
    if not total:
        return Estimate(value, (value, value))
    freedom = total**2 / sum(square**2 / (len(sample) - 1) for square, sample in zip(squares, samples, strict=True))
    half = float(stats.t.ppf(0.975, freedom)) * total**0.5
    return Estimate(value, (value - half, value + half))
