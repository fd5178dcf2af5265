"""How well parameters are known: ranges by profile likelihood, directions that a log can't tell, plausible models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from deeprok.identification.fit import Bounds, Likelihood, Point, climb

_DRAWS = 20_000  # of normal vectors, for simultaneous quantiles
_PRECISION = 0.01  # of the ends of a range, in standard deviations
_BATCHES = 10
_CHANGE = 1e-3  # of a noise, as a share, by which derivatives are taken
_MOST_FREEDOM = 1e6


class Range(NamedTuple):
    """Where a parameter may lie, as x has it."""

    low: float
    high: float
    closed: bool  # whether the log ends it on both sides, and not a bound of the search


class Region(NamedTuple):
    """The estimate and what surrounds it, as x has it."""

    best: Point
    optima: list[Point]  # others, that are not much less likely
    ranges: list[Range]
    flat: np.ndarray  # [N, K] directions that the log does not tell, in units of the bounds' widths
    levels: np.ndarray  # [N] roots of twice the drops of the log-likelihood at the ends of the ranges
    freedom: np.ndarray  # [N] degrees of freedom of the ranges


class MoreLikelyError(Exception):
    """A profile has found a place that is more likely than the estimate."""

    def __init__(self, point: Point) -> None:
        super().__init__()
        self.point = point


def information_of(best: Point, likelihood: Likelihood) -> np.ndarray:
    """[N, N] Fisher's information on the parameters, the noises being unknown too."""
    count = likelihood.unknowns.parameters
    noises = _unknown_noises(best, likelihood)
    whole = np.asarray(best.score.information)
    own, between, among = whole[:count, :count], whole[:count, noises], whole[np.ix_(noises, noises)]
    return own - between @ np.linalg.pinv(among, hermitian=True) @ between.T


def _unknown_noises(best: Point, likelihood: Likelihood) -> list[int]:
    """Indices of the noises in x; one that is at its end is taken as known."""
    at_end = likelihood.bounds.at(best.x)
    return [i for i in range(likelihood.unknowns.parameters, len(best.x)) if not at_end[i]]


def degrees_of_freedom(best: Point, likelihood: Likelihood) -> np.ndarray:
    """[N] how many squares the variance V of each estimate is known by: 2 V² / var V, as Satterthwaite has it, less N.

    V is a function of the noises, which are estimated themselves. Each parameter takes one square.

    Args:
      best: the estimate.
      likelihood: the log and the unknowns.
    """
    count, noises = likelihood.unknowns.parameters, _unknown_noises(best, likelihood)
    width = likelihood.bounds.width[:count]

    def variances(i: int, sign: int) -> np.ndarray:
        x = best.x.copy()
        x[i] *= 1 + sign * _CHANGE
        information = np.asarray(likelihood.alone(x).information)
        return np.diag(covariance_of(information[:count, :count], width))

    logs = [np.log(variances(i, 1) / variances(i, -1)) / (2 * _CHANGE) for i in noises]  # ∂ log V / ∂ log q
    slope = np.reshape(logs, (len(noises), count))
    q, free = best.x[noises], [*range(count), *noises]
    scale = np.concatenate([width, q])
    whole = best.score.information[np.ix_(free, free)] * np.outer(scale, scale)
    among = np.linalg.pinv(whole, hermitian=True)[count:, count:]  # covariance of the logarithms of the noises
    relative = np.einsum("ij,ik,kj->j", slope, among, slope)
    return np.clip(2 / np.maximum(relative, 2 / _MOST_FREEDOM) - count, 1.0, _MOST_FREEDOM)


def student_levels(level: float, freedom: np.ndarray) -> np.ndarray:
    """[N] the roots of 2 Δℓ at the ends of ranges that hold the truth as often as normal ones at this level.

    Of the mean of normal numbers, twice the drop of the log-likelihood is (ν + 1) log (1 + t² / ν), where t has
    Student's distribution with ν degrees of freedom.

    Args:
      level: of normal ones.
      freedom: [N] ν.
    """
    t = stats.t.isf(stats.norm.sf(level), freedom)
    return np.asarray(np.sqrt((freedom + 1) * np.log1p(t**2 / freedom)))


def directions(information: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations [N] of the estimate along orthogonal directions [N, N], its columns.

    Both are in units of the bounds' widths; what is not known at all has a standard deviation of a thousand.

    Args:
      information: [N, N].
      width: [N].
    """
    values, vectors = np.linalg.eigh(information * np.outer(width, width))
    return 1 / np.sqrt(np.maximum(values, 1e-6)), vectors


def covariance_of(information: np.ndarray, width: np.ndarray, largest: float = np.inf) -> np.ndarray:
    """[N, N] of the estimate; along directions that are not known, `largest` widths at most."""
    deviations, vectors = directions(information, width)
    half = width[:, None] * vectors * np.minimum(deviations, largest)
    return half @ half.T


def simultaneous_quantile(covariance: np.ndarray, confidence: float) -> float:
    """c with P(max |z_i| ≤ c) = confidence, for normal z with this correlation.

    Args:
      covariance: [N, N].
      confidence: between 0 and 1.
    """
    deviations = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(correlation)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = np.random.default_rng(0).normal(size=(_DRAWS, len(half))) @ half.T
    return float(np.quantile(np.abs(draws).max(axis=1), confidence))


def profile_range(
    likelihood: Likelihood, best: Point, i: int, covariance: np.ndarray, level: float, patient: bool = True
) -> Range:
    """The range of a parameter in which 2 (ℓ − ℓ(x_i)) ≤ c², with all other unknowns the most likely for it.

    Args:
      likelihood: the log and the unknowns.
      best: the estimate.
      i: which parameter.
      covariance: [N, N] of the estimate.
      level: c.
      patient: raise `MoreLikelyError` where a more likely place turns up.
    """
    bounds, count = likelihood.bounds, likelihood.unknowns.parameters
    along = np.zeros(len(best.x))  # how the others follow the parameter
    along[:count] = covariance[:, i] / covariance[i, i]
    deviation = np.sqrt(covariance[i, i])
    precision = _PRECISION * min(deviation, 0.1 * bounds.width[i])

    def ratio(to: float) -> tuple[float, Point]:
        """The root of 2 Δℓ, which is nearly linear."""
        start = best.x + along * (to - best.x[i])
        start[i] = to
        there = climb(likelihood.at, start, bounds, held=(i,))
        drop = 2 * float(best.score.log_likelihood - there.score.log_likelihood)
        if patient and drop < -0.01:
            raise MoreLikelyError(there)
        return float(np.sqrt(max(drop, 0.0))) if np.isfinite(drop) else 1e3 * level, there

    def end(bound: float) -> tuple[float, bool]:
        sign = np.sign(bound - best.x[i])
        inside, outside = best.x[i], best.x[i]
        reach = level * deviation
        while True:
            outside = best.x[i] + sign * min(reach, abs(bound - best.x[i]))
            if ratio(outside)[0] > level:
                break
            if outside == bound or reach >= abs(bound - best.x[i]):
                return bound, False
            inside, reach = outside, 2 * reach
        found = optimize.brentq(
            lambda to: ratio(to)[0] - level if to != best.x[i] else -level, inside, outside, xtol=precision
        )
        # Where another parameter is at its bound, it is that bound that ends the range.
        others = np.delete(bounds.at(ratio(found)[1].x)[:count], i)
        return float(found), not others.any()

    (low, below), (high, above) = end(float(bounds.low[i])), end(float(bounds.high[i]))
    return Range(low, high, below and above)


def bootstrap_estimates(
    likelihood: Likelihood, best: Point, times: int, seed: int, advance: Callable[[float], None]
) -> np.ndarray:
    """[times, N] estimates from resampled episodes, each climbed to from the estimate.

    Args:
      likelihood: the log and the unknowns.
      best: the estimate.
      times: how many.
      seed: decides which episodes are drawn.
      advance: called with the fraction of the work done since its last call.
    """
    draws, episodes = np.random.default_rng(seed), len(likelihood.data.length)
    found = []
    for _ in range(times):
        weight = np.bincount(draws.integers(episodes, size=episodes), minlength=episodes).astype(float)
        found.append(climb(functools.partial(likelihood.at, weight=weight), best.x, likelihood.bounds).x)
        advance(1 / times)
    return np.array(found).reshape(times, len(best.x))[:, : likelihood.unknowns.parameters]


def plausible_models(
    likelihood: Likelihood,
    best: Point,
    covariance: np.ndarray,
    limits: Sequence[tuple[float, float]],
    confidence: float,
    freedom: float,
    count: int,
    seed: int,
) -> np.ndarray:
    """[up to count, N] parameters, as x has them: normal draws around the estimate that the log does not contradict.

    A draw is kept if its likelihood ratio is within the joint region of all parameters. Where the estimate is beyond
    the limits, draws are around the most likely point within, and with the noises there, or hardly any would be kept.

    Args:
      likelihood: the log and the unknowns.
      best: the estimate.
      covariance: [N, N] of the draws.
      limits: N ranges in which they must lie.
      confidence: of the region.
      freedom: degrees of freedom ν by which the noises are known.
      count: how many.
      seed: of the draws.
    """
    size = len(covariance)
    low, high = np.transpose(limits)
    most = (freedom + size) * np.log1p(size * stats.f.ppf(confidence, size, freedom) / freedom)
    draws = np.random.default_rng(seed)
    within = np.clip(best.x[:size], low, high)
    ends = Bounds(*(np.concatenate([own, end[size:]]) for own, end in zip((low, high), likelihood.bounds, strict=True)))
    middle = best if np.array_equal(within, best.x[:size]) else climb(likelihood.at, best.x, ends)
    kept: list[np.ndarray] = []
    for _ in range(_BATCHES * count):
        if len(kept) == count:
            break
        x = middle.x.copy()
        x[:size] = draws.multivariate_normal(x[:size], covariance, check_valid="ignore")
        if np.all((low <= x[:size]) & (x[:size] <= high)):
            drop = 2 * (best.score.log_likelihood - likelihood.at(x).score.log_likelihood)
            if drop <= most:
                kept.append(x[:size])
    return np.array(kept).reshape(-1, size)
