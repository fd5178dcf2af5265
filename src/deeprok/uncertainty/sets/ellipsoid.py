"""Ellipsoids: Euclidean balls, with and without weights, and χ² balls.

All are the same problem. Without the constraint p' ≥ 0 it has a closed-form solution. Outcomes that are negative
there are 0 in the constrained solution too. So they are dropped until none is negative, as in Michelot's projection
onto the simplex.

G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research, 2005.
C. Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex of
  Rⁿ", Journal of Optimization Theory and Applications, 1986.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.search import Range
from deeprok.uncertainty.sets.base import (
    AmbiguitySet,
    Level,
    Tangent,
    WorstCase,
    expectation,
    radius_check,
    to_unit,
)
from deeprok.uncertainty.sets.shared_budget import Tilt, by_prices


def l2(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """Euclidean distance: √Σ (p' − p)² ≤ level.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius; with √2 the set contains all distributions.
    """
    return WorstCase(*l2_tangent(p, values, level)[:2])


def l2_tangent(p: jax.Array, values: jax.Array, level: Level) -> Tangent:
    """`l2` with its tangent."""
    return _ellipsoid(p, values, jnp.ones_like(p), jnp.square(level))


def ellipsoid(p: jax.Array, values: jax.Array, level: Level, weights: jax.Array) -> WorstCase:
    """An ellipsoid along the axes: √Σ w (p' − p)² ≤ level.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius.
      weights: [M] w > 0; a large weight keeps the probability of its outcome near p.
    """
    return WorstCase(*ellipsoid_tangent(p, values, level, weights)[:2])


def ellipsoid_tangent(p: jax.Array, values: jax.Array, level: Level, weights: jax.Array) -> Tangent:
    """`ellipsoid` with its tangent."""
    return _ellipsoid(p, values, 1.0 / weights, jnp.square(level))


def chi2(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """χ² divergence: Σ (p' − p)² / p ≤ level, on outcomes with mass in p.

    As long as all outcomes keep some mass, the worst case is the mean minus √level standard deviations.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius.
    """
    return WorstCase(*_ellipsoid(p, values, p, level)[:2])


def _ellipsoid(p: jax.Array, values: jax.Array, a: jax.Array, level: Level) -> Tangent:
    """Σ (p' − p)² / a ≤ level, where a = 0 fixes an outcome at p; the tangent is with respect to √level.

    If inactive outcomes are 0 and active ones may be negative, the solution is p' = p + a (shift − t (v − mean)). The
    shift redistributes the mass of inactive outcomes; t uses up the rest of the level. Outcomes that are negative in
    it become inactive, until none is.
    """
    u, span = to_unit(values, a > 0.0)
    price = jnp.where(a > 0.0, p * p / jnp.where(a > 0.0, a, 1.0), 0.0)  # distance used up by setting an outcome to 0
    budget = jnp.minimum(level, np.finfo(u.dtype).max)

    def solution(active: jax.Array) -> tuple[jax.Array, jax.Array]:
        b = jnp.where(active, a, 0.0)
        total = jnp.sum(b)
        lost = jnp.sum(jnp.where(active, 0.0, p))
        away = u - jnp.sum(b * u) / total
        away = away - jnp.sum(b * away) / total  # once more, since t can be large
        variance = jnp.sum(b * away * away)
        left = jnp.maximum(budget - jnp.sum(jnp.where(active, 0.0, price)) - lost * lost / total, 0.0)
        t = jnp.sqrt(left) / jnp.sqrt(jnp.where(variance > 0.0, variance, jnp.inf))
        q = jnp.where(active, p + b * (lost / total - t * away), 0.0)
        # Its multiplier is √level / t. If no outcome is inactive, also at level 0, that is the standard deviation.
        share = left / jnp.where(budget > 0.0, budget, 1.0)
        return q, jnp.sqrt(variance / jnp.where(budget > 0.0, jnp.maximum(share, np.finfo(u.dtype).tiny), 1.0))

    State = tuple[jax.Array, tuple[jax.Array, jax.Array]]

    def drop(state: State) -> State:
        active = state[0] & (state[1][0] >= 0.0)
        return active, solution(active)

    everything = jnp.ones(p.shape, bool)
    start = (everything, solution(everything))
    _, (q, steepness) = jax.lax.while_loop(lambda state: jnp.any(state[1][0] < 0.0), drop, start)
    return Tangent(expectation(q, values), q, span * steepness)


def check_weights(weights: np.ndarray, field: str = "weights") -> None:
    """Raises unless all weights [M] are positive and finite."""
    wrong = np.flatnonzero(~(np.isfinite(weights) & (np.asarray(weights) > 0)))
    if wrong.size:
        raise DeeprokError(f"{field} has {weights[wrong[0]]:g} for outcome {wrong[0]}; a weight is a positive number")


def _tilt_chi2(p: jax.Array, above: jax.Array, price: jax.Array) -> Tilt:
    """Rows p (c − λv/2)₊ that sum to 1. Outcomes where this is negative are dropped, and c computed again."""
    half = price[:, None] / 2 * above

    def level(active: jax.Array) -> tuple[jax.Array, jax.Array]:
        q = jnp.where(active, p, 0.0)
        c = (1.0 + jnp.sum(q * half, axis=1)) / jnp.sum(q, axis=1)
        return active, c[:, None] - half

    def drop(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return level(state[0] & (state[1] > 0.0))

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[0] & ~(state[1] > 0.0))

    active, factor = jax.lax.while_loop(unfinished, drop, level(p > 0.0))
    factor = jnp.where(active, factor, 0.0)
    distribution = p * factor
    mean = jnp.sum(distribution * above, axis=1)
    remaining = jnp.where(active, p, 0.0)
    centre = jnp.sum(remaining * above, axis=1) / jnp.sum(remaining, axis=1)
    slope = jnp.sum(remaining * (above - centre[:, None]) ** 2, axis=1) / 2
    return Tilt(mean, slope, jnp.sum(p * (factor - 1.0) ** 2, axis=1) + price * mean, distribution)


ELLIPSOID = AmbiguitySet(
    ellipsoid, radius_check("ellipsoid"), nominal_level=0.0, reach="all", tangent=ellipsoid_tangent
)
L2 = AmbiguitySet(
    l2,
    radius_check("l2"),
    nominal_level=0.0,
    reach="all",
    weighted=ELLIPSOID,
    tangent=l2_tangent,
    levels=Range(0.05, 0.9),
)
CHI2 = AmbiguitySet(
    chi2,
    radius_check("chi2"),
    nominal_level=0.0,
    reach="support",
    shared=by_prices(_tilt_chi2, keeps_support=True),
    levels=Range(0.05, 5.0, log=True),
)
