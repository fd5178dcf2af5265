"""The most likely parameters: from many starts, by Fisher scoring between bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from deeprok.core.errors import DeeprokError
from deeprok.identification.likelihood import Data, Score, Unknowns, one_step_of, penalised, score_of

#: Parameters that are tried by one-step prediction, of which the best are climbed from.
_TRIED = 256
_CLIMBED = 4
#: How far starts are apart, as a share of the bounds' widths.
_APART = 0.1
#: Climbing ends where the next step would gain less log-likelihood.
_GAIN = 1e-4
_MOST_STEPS = 200
#: Optima are different if this far apart, and worth a word if their likelihood ratio 2Δℓ is below.
DIFFERENT, _CLOSE = 0.01, 20.0


class Bounds(NamedTuple):
    """Ends between which the unknowns x are searched."""

    low: np.ndarray  # [n]
    high: np.ndarray  # [n]

    @property
    def width(self) -> np.ndarray:
        """How far the ends are apart [n]."""
        return self.high - self.low

    def at(self, x: np.ndarray) -> np.ndarray:
        """[n] bool, which of the unknowns are at an end."""
        return (x <= self.low) | (x >= self.high)


class Point(NamedTuple):
    """A place, and what the log says there."""

    x: np.ndarray  # [n]
    score: Score  # with the penalty of the noises


class Likelihood(NamedTuple):
    """A log and the unknowns that it is to tell."""

    unknowns: Unknowns
    bounds: Bounds
    data: Data

    def at(self, x: np.ndarray, weight: np.ndarray | None = None) -> Point:
        """What the log says at x, each episode with its weight [E]."""
        data = self.data if weight is None else self.data._replace(weight=jnp.asarray(weight))
        return Point(x, penalised(self.unknowns, x, self._score(x, data)))

    def alone(self, x: np.ndarray) -> Score:
        """The score without the penalty of the noises."""
        return self._score(x, self.data)

    def _score(self, x: np.ndarray, data: Data) -> Score:
        return Score(*map(np.asarray, score_of(self.unknowns)(jnp.asarray(x), data)))  # type: ignore[arg-type]


def climb(at: Callable[[np.ndarray], Point], start: np.ndarray, bounds: Bounds, held: Sequence[int] = ()) -> Point:
    """The optimum that is reached from a start, by Fisher scoring with Levenberg's and Marquardt's damping.

    Args:
      at: the log-likelihood with its gradient and information.
      start: x [n].
      bounds: where to search.
      held: indices of x that stay as they are.
    """
    here, damping, rejected = at(np.clip(start, bounds.low, bounds.high)), 1e-3, False
    for _ in range(_MOST_STEPS):
        x, (_, gradient, information) = here
        outwards = ((x <= bounds.low) & (gradient < 0)) | ((x >= bounds.high) & (gradient > 0))
        free = np.setdiff1d(np.flatnonzero(~outwards), held)
        slope, curvature = gradient[free], information[np.ix_(free, free)]
        scale = np.where(np.diag(curvature) > 0, np.diag(curvature), 1.0)
        step = np.linalg.solve(curvature + np.diag(damping * scale), slope)
        if not len(free) or slope @ step < 2 * _GAIN:
            if damping <= 1e-3 or rejected:  # with less damping it was tried, and gained nothing
                break
            damping /= 10
            continue
        there = x.copy()
        there[free] = np.clip(x[free] + step, bounds.low[free], bounds.high[free])
        tried = at(there)
        if tried.score.log_likelihood > here.score.log_likelihood:  # false if it is not a number
            here, damping, rejected = tried, max(damping / 10, 1e-9), False
        else:
            damping, rejected = 10 * damping, True
            if damping > 1e12:
                break
    return here


def starts(likelihood: Likelihood, nominal: np.ndarray, seed: int) -> list[np.ndarray]:
    """Places x to climb from: the nominal parameters, and those that predict best by one step, not too close together.

    Args:
      likelihood: the log and the unknowns.
      nominal: [N] parameters, as x has them.
      seed: of the parameters tried.
    """
    unknowns, (low, high) = likelihood.unknowns, likelihood.bounds
    count = unknowns.parameters
    cube = qmc.Sobol(count, seed=seed).random(_TRIED)
    tried = np.vstack([np.clip(nominal, low[:count], high[:count]), low[:count] + cube * (high - low)[:count]])
    theta = jax.vmap(unknowns.theta)(jnp.asarray(tried))
    likely, errors = map(np.asarray, one_step_of(unknowns)(theta, likelihood.data))
    chosen: list[int] = [0]
    for i in np.argsort(-np.nan_to_num(likely, nan=-np.inf)):
        apart = np.abs(tried[chosen] - tried[i]) / (high - low)[:count]
        if len(chosen) <= _CLIMBED and np.isfinite(likely[i]) and apart.max(axis=1).min() > _APART:
            chosen.append(i)
    thirds = np.maximum(np.nan_to_num(errors, posinf=1.0) / 3, unknowns.least)  # of noise before, between and after
    return [unknowns.pack(np.asarray(theta[i]), thirds[i], thirds[i]) for i in chosen]


def maximise(
    likelihood: Likelihood, nominal: np.ndarray, seed: int, advance: Callable[[float], None]
) -> tuple[Point, list[Point]]:
    """The most likely place, and other optima that are not much less likely.

    Args:
      likelihood: the log and the unknowns.
      nominal: [N] parameters, as x has them.
      seed: of the parameters tried.
      advance: called with the fraction of the work done since its last call.
    """
    found = []
    places = starts(likelihood, nominal, seed)
    for start in places:
        found.append(climb(likelihood.at, start, likelihood.bounds))
        advance(1 / len(places))
    found.sort(key=lambda point: -np.nan_to_num(float(point.score.log_likelihood), nan=-np.inf))
    best, count = found[0], likelihood.unknowns.parameters
    if not np.isfinite(best.score.log_likelihood):
        raise DeeprokError("data has no finite likelihood under any parameters; check the units of its observations")
    others: list[Point] = []
    for point in found[1:]:
        apart = [np.abs((point.x - other.x) / likelihood.bounds.width)[:count].max() for other in (best, *others)]
        ratio = 2 * (best.score.log_likelihood - point.score.log_likelihood)
        if min(apart) > DIFFERENT and ratio < _CLOSE:
            others.append(point)
    return best, others
