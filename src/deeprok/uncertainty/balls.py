"""The inner problem: the worst expectation over a set of distributions.

Each set is one function `worst_case(p, values, level) -> WorstCase`, unbatched: `jit` and `vmap` do
the rest. Labels of the deep agents call it with uniform `p` over the M outcomes of a step, dynamic
programming with a row of the transition kernel. Values are finite numbers. Radii are at least 0, may
be infinite, and 0 leaves `p` alone.

Where a set is cut by a norm or a cost, mass may move to outcomes that `p` gives none; KL and χ² keep
to those it gives some; the likelihood set (Burg) does not price the others. `on_support` keeps any of
them to the outcomes that have mass.

How they are solved:

- L1, total variation, L∞, intervals and CVaR fill the outcomes from the worst: one sort.
- L2 and χ² are the same ellipsoid. Without p' ≥ 0 its least point is known in closed form; outcomes that
  come out negative there are 0 in the answer too, so they are dropped until none is left (the idea of
  Michelot's projection on the simplex).
- KL and Burg tilt `p` along a curve with one parameter, found by Newton steps inside a bracket.
- Weighted L1 and Wasserstein are transport with a budget. What each price of transport makes nature do is
  known; the two prices around the budget are found by intersecting tangents of the concave dual, and
  their answers mixed.

G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research, 2005.
A. Nilim and L. El Ghaoui, "Robust control of Markov decision processes with uncertain transition
  matrices", Operations Research, 2005.
C. P. Ho, M. Petrik and W. Wiesemann, "Fast Bellman updates for robust MDPs", ICML, 2018.
R. T. Rockafellar and S. Uryasev, "Optimization of conditional value-at-risk", Journal of Risk, 2000.
C. Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex of
  Rⁿ", Journal of Optimization Theory and Applications, 1986.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError

Level = float | jax.Array


class WorstCase(NamedTuple):
    """The least expectation and a distribution that attains it."""

    value: jax.Array  # []
    distribution: jax.Array  # [M]


class Tangent(NamedTuple):
    """A worst case and the line that supports it: at another level x it is at least value − steepness (x − level)."""

    value: jax.Array  # []
    distribution: jax.Array  # [M]
    steepness: jax.Array  # [] how fast the value falls with the level; any that holds, where it has a kink


class CheckLevel(Protocol):
    """A check of levels."""

    def __call__(self, level: float, field: str = "robust_level") -> None:
        """Raises a `DeeprokError` that names the field unless the level is one the family can take."""


class AmbiguitySet(NamedTuple):
    """A family of sets of distributions around `p`.

    Attributes:
      worst_case: `(p, values, level) -> WorstCase`, with `p` and `values` of shape [M].
      check_level: raises unless the level is one the family can take.
    """

    worst_case: Callable[[jax.Array, jax.Array, Level], WorstCase]
    check_level: CheckLevel


# --- the ends: a point, everything -------------------------------------------------------------------


def minimum(p: jax.Array, values: jax.Array, level: Level = 0.0) -> WorstCase:
    """All distributions on the outcomes: the hard minimum of the paper. The level is not used."""
    worst = jnp.argmin(values)
    return WorstCase(jnp.min(values), jax.nn.one_hot(worst, values.shape[0], dtype=p.dtype))


def contamination(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """(1 − level) p + level q for any distribution q: a part of the mass goes to the worst outcome.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the part of the mass, between 0 and 1.
    """
    return WorstCase(*contamination_tangent(p, values, level)[:2])


def contamination_tangent(p: jax.Array, values: jax.Array, level: Level) -> Tangent:
    """`contamination` with its tangent: the way from the mean to the least value is straight."""
    q = (1.0 - level) * p + level * jax.nn.one_hot(jnp.argmin(values), values.shape[0], dtype=p.dtype)
    return Tangent(_expectation(q, values), q, jnp.sum(p * (values - jnp.min(values))))


def finite(p: jax.Array, values: jax.Array, level: Level = 0.0) -> WorstCase:
    """A finite set of distributions, or their convex hull: the worst of them. The level is not used.

    Args:
      p: [K, M] a distribution a row.
      values: [M] the value of each outcome.
      level: not used.
    """
    expectations = jax.vmap(_expectation, (0, None))(p, values)
    worst = jnp.argmin(expectations)
    return WorstCase(expectations[worst], p[worst])


# --- filling from the worst ----------------------------------------------------------------------------


def cvar(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """Distributions with p' ≤ p / level: the mean of the worst fraction `level` of the mass.

    The outcome at the boundary of the fraction counts with the part of its mass that lies inside.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the fraction, in (0, 1]; 1 is the mean, and small levels approach the minimum over
        the outcomes that have mass.
      order: [M] `argsort(values)` where it is known.
    """
    taken = _fill(p, level, values, order) / level
    return WorstCase(jnp.sum(taken * values), taken)


def interval(p: jax.Array, values: jax.Array, level: Level = 0.0, order: jax.Array | None = None) -> WorstCase:
    """Distributions between two bounds. The level is not used.

    Args:
      p: [2, M] the lower and the upper bound of each outcome's probability; the lower ones sum to
        at most 1 and the upper ones to at least 1.
      values: [M] the value of each outcome.
      level: not used.
      order: [M] `argsort(values)` where it is known.
    """
    lower, upper = p
    q = lower + _fill(upper - lower, 1.0 - jnp.sum(lower), values, order)
    return WorstCase(_expectation(q, values), q)


def linf(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """No probability changes by more than the level: max |p' − p| ≤ level.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius; 1 is everything.
      order: [M] `argsort(values)` where it is known.
    """
    bounds = jnp.stack([jnp.maximum(p - level, 0.0), jnp.minimum(p + level, 1.0)])
    return interval(bounds, values, order=order)


def linf_tangent(p: jax.Array, values: jax.Array, level: Level) -> Tangent:
    """`linf` with its tangent: outcomes worse than the last one filled grow with the level, better ones shrink."""
    value, q = linf(p, values, level)
    filled = q > jnp.maximum(p - level, 0.0)
    last = jnp.max(jnp.where(filled, values, jnp.min(values)))
    moves = jnp.where(values > last, p > level, p + level < 1.0)
    return Tangent(value, q, jnp.sum(jnp.where(moves, jnp.abs(values - last), 0.0)))


def l1(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """Σ |p' − p| ≤ level: half the level of mass moves from the best outcomes to the worst one.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius; 2 is everything.
      order: [M] `argsort(values)` where it is known.
    """
    worst = jnp.argmin(values) if order is None else order[0]
    moved = jnp.clip(0.5 * level, 0.0, jnp.maximum(1.0 - p[worst], 0.0))
    kept = _fill(p, 1.0 - moved, values, order)
    q = kept + moved * jax.nn.one_hot(worst, values.shape[0], dtype=kept.dtype)
    return WorstCase(_expectation(q, values), q)


def tv(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """Total variation ½ Σ |p' − p| ≤ level: `l1` of twice the level.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius; 1 is everything.
      order: [M] `argsort(values)` where it is known.
    """
    return l1(p, values, 2.0 * level, order)


def l1_rows(columns: jax.Array, values: jax.Array, radius: jax.Array, order: jax.Array | None = None) -> jax.Array:
    """The value of `l1` for many rows that share their values, as in dynamic programming on all states.

    The mean less what is lost by emptying the best outcomes, one after the other, until every row has
    moved its half radius. Outcomes come first in memory, so that each step works on one contiguous
    vector of all rows; only the outcomes that some row empties are visited.

    Args:
      columns: [M, R] the R distributions, an outcome a row.
      values: [M] the value of each outcome.
      radius: [R] or a number, the radius of each row.
      order: [M] `argsort(values)` where it is known.

    Returns:
      [R] the worst expectation of each row.
    """
    columns, values = jnp.asarray(columns), jnp.asarray(values)
    size = values.shape[0]
    order = jnp.argsort(values) if order is None else order
    worst, best_first = order[0], order[::-1]
    drop = values[best_first] - values[worst]
    moved = jnp.clip(0.5 * radius, 0.0, jnp.maximum(1.0 - columns[worst], 0.0))

    def empty(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        done, left, value = state
        for ahead in range(_STRIDE):
            place = jnp.minimum(done + ahead, size - 1)  # the last is the worst outcome, where nothing is lost
            taken = jnp.minimum(left, columns[best_first[place]])
            left, value = left - taken, value - taken * drop[place]
        return done + _STRIDE, left, value

    def unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return (state[0] < size) & jnp.any(state[1] > 0.0)

    return jax.lax.while_loop(unfinished, empty, (jnp.asarray(0), moved, values @ columns))[2]


_STRIDE = 8  # outcomes visited in one pass over the rows


def _fill(room: jax.Array, amount: Level, values: jax.Array, order: jax.Array | None) -> jax.Array:
    """Shares an amount among the outcomes from the worst, none above its room."""
    return jnp.clip(amount - _mass_before(room, values, order), 0.0, room)


def _mass_before(p: jax.Array, values: jax.Array, order: jax.Array | None = None) -> jax.Array:
    """The mass of all outcomes worse than each one; equal ones count in the order they stand."""
    if order is not None:  # often one order for many p: its inverse is then had once
        mass = p[order]
        return (jnp.cumsum(mass) - mass)[jnp.argsort(order)]
    if values.shape[0] <= 64:  # comparing all pairs is one fused loop, sorting is not
        place = jnp.arange(values.shape[0])
        worse = values[None, :] < values[:, None]
        earlier = (values[None, :] == values[:, None]) & (place[None, :] < place[:, None])
        return jnp.sum(jnp.where(worse | earlier, p[None, :], 0.0), axis=1)
    order = jnp.argsort(values)
    mass = p[order]
    return jnp.zeros_like(p).at[order].set(jnp.cumsum(mass) - mass)


# --- ellipsoids ----------------------------------------------------------------------------------------


def l2(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """Euclidean distance: √Σ (p' − p)² ≤ level.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius; √2 is everything.
    """
    return WorstCase(*l2_tangent(p, values, level)[:2])


def l2_tangent(p: jax.Array, values: jax.Array, level: Level) -> Tangent:
    """`l2` with its tangent."""
    return _ellipsoid(p, values, jnp.ones_like(p), jnp.square(level))


def ellipsoid(p: jax.Array, values: jax.Array, level: Level, weights: jax.Array) -> WorstCase:
    """An ellipsoid along the axes: √Σ w (p' − p)² ≤ level.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius.
      weights: [M] the positive w; a large one holds its outcome near p.
    """
    return WorstCase(*ellipsoid_tangent(p, values, level, weights)[:2])


def ellipsoid_tangent(p: jax.Array, values: jax.Array, level: Level, weights: jax.Array) -> Tangent:
    """`ellipsoid` with its tangent."""
    return _ellipsoid(p, values, 1.0 / weights, jnp.square(level))


def chi2(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """χ² divergence: Σ (p' − p)² / p ≤ level, on the outcomes that have mass.

    Until an outcome is emptied the worst case is the mean less √level standard deviations.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius.
    """
    return WorstCase(*_ellipsoid(p, values, p, level)[:2])


def _ellipsoid(p: jax.Array, values: jax.Array, a: jax.Array, level: Level) -> Tangent:
    """Σ (p' − p)² / a ≤ level, where a = 0 holds an outcome at p; the tangent is in the root of the level.

    With only the outcomes of `active` in play, and those allowed to be negative, the least point is
    p' = p + a (shift − t (v − mean)): the shift hands out what the others have lost, t spends what the
    level leaves. What is negative there is 0 in the answer: the active sets shrink to the right one.
    """
    u, span = _unit(values, a > 0.0)
    price = jnp.where(a > 0.0, p * p / jnp.where(a > 0.0, a, 1.0), 0.0)  # of emptying an outcome
    budget = jnp.minimum(level, np.finfo(u.dtype).max)

    def least(active: jax.Array) -> tuple[jax.Array, jax.Array]:
        b = jnp.where(active, a, 0.0)
        total = jnp.sum(b)
        lost = jnp.sum(jnp.where(active, 0.0, p))
        away = u - jnp.sum(b * u) / total
        away = away - jnp.sum(b * away) / total  # once more, since t can be large
        spread = jnp.sum(b * away * away)
        left = jnp.maximum(budget - jnp.sum(jnp.where(active, 0.0, price)) - lost * lost / total, 0.0)
        t = jnp.sqrt(left) / jnp.sqrt(jnp.where(spread > 0.0, spread, jnp.inf))
        q = jnp.where(active, p + b * (lost / total - t * away), 0.0)
        # Its multiplier is √level / t. Without outcomes dropped, also at level 0, that is the root of the spread.
        share = left / jnp.where(budget > 0.0, budget, 1.0)
        return q, jnp.sqrt(spread / jnp.where(budget > 0.0, jnp.maximum(share, np.finfo(u.dtype).tiny), 1.0))

    State = tuple[jax.Array, tuple[jax.Array, jax.Array]]

    def drop(state: State) -> State:
        active = state[0] & (state[1][0] >= 0.0)
        return active, least(active)

    everything = jnp.ones(p.shape, bool)
    start = (everything, least(everything))
    _, (q, steepness) = jax.lax.while_loop(lambda state: jnp.any(state[1][0] < 0.0), drop, start)
    return Tangent(_expectation(q, values), q, span * steepness)


# --- divergences: p tilted by one parameter ------------------------------------------------------------


def kl(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """Relative entropy Σ p' log(p' / p) ≤ level: p' ∝ p exp(−θ v), on the outcomes that have mass.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius.
    """
    x = _profile(p, values)
    radius = jnp.maximum(level, np.finfo(x.u.dtype).tiny)

    def divergence(log_theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        exponent = jnp.exp(log_theta) * x.u
        q, log_mass = _tilt(p, jnp.exp(-exponent), -jnp.expm1(-exponent))
        mean = jnp.sum(q * exponent)
        return -mean - log_mass, jnp.sum(q * jnp.square(exponent - mean))

    everything = radius >= -jnp.log(x.mass)  # enough to leave the worst outcomes alone
    # Hoeffding's lemma bounds θ from below. Above, e^(−θ gap) is nothing beside the mass of the worst.
    low = 0.5 * jnp.log(8.0 * radius)
    high = jnp.maximum(low, jnp.log((60.0 - 2.0 * jnp.log(x.mass)) / x.gap))
    start = 0.5 * jnp.log(2.0 * radius / x.variance)
    log_theta = _solve(divergence, radius, jnp.where(everything, high, low), high, start)
    weight = jnp.where(everything, x.worst, jnp.exp(-jnp.exp(log_theta) * x.u))
    q = jnp.where(level > 0.0, p * weight / jnp.sum(p * weight), p)
    return WorstCase(_expectation(q, values), q)


def burg(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """The likelihood set, Σ p log(p / p') ≤ level: p' ∝ p / (v + s), s above minus the least value.

    With counts n p it holds the distributions under which the data are at most e^(n · level) times less
    likely than under p: Nilim and El Ghaoui's likelihood model. Outcomes without mass in p are free.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius.
    """
    x = _profile(p, values)
    eps, tiny = np.finfo(x.u.dtype).eps, np.finfo(x.u.dtype).tiny
    radius = jnp.maximum(level, tiny)

    def divergence(steepness: jax.Array) -> tuple[jax.Array, jax.Array]:  # −log s
        z = x.u * jnp.exp(steepness)
        weight = 1.0 / (1.0 + z)
        _, log_mass = _tilt(p, weight, z * weight)
        mean = jnp.exp(log_mass)
        return jnp.sum(p * jnp.log1p(z)) + log_mass, jnp.sum(p * jnp.square(weight - mean)) / mean

    # Hoeffding's lemma again from below; from above, the worst outcomes against the next. At the limit no
    # probability underflows yet, and s is nothing beside the gap.
    limit = -0.5 * np.log(tiny)
    rest = 1.0 - x.mass
    low = jnp.minimum(_log_expm1(jnp.sqrt(8.0 * radius)), limit)
    high = _log_expm1((radius - jnp.log(x.mass)) / jnp.maximum(rest, tiny)) - jnp.log(x.gap)
    high = jnp.clip(high, low, limit)
    low = jnp.where(rest > eps, low, high)

    # A free outcome below all others: s goes no lower than its distance, and it takes the mass that is left.
    free = jnp.where(p > 0.0, jnp.inf, values)
    depth = (jnp.min(jnp.where(p > 0.0, values, jnp.inf)) - jnp.min(free)) / x.span
    floor = -jnp.log(jnp.where(depth > 0.0, depth, 1.0))
    least, _ = divergence(floor)
    open_end = (depth > 0.0) & (least <= radius)
    kept = jnp.where(open_end, jnp.exp(least - radius), 1.0)
    low, high = jnp.where(open_end, floor, low), jnp.where(open_end, floor, high)

    steepness = _solve(divergence, radius, low, high, 0.5 * jnp.log(2.0 * radius / x.variance))
    weight = 1.0 / (1.0 + x.u * jnp.exp(steepness))
    q = kept * p * weight / jnp.sum(p * weight)
    q = q + (1.0 - kept) * jax.nn.one_hot(jnp.argmin(free), p.shape[0], dtype=q.dtype)
    q = jnp.where(level > 0.0, q, p)
    return WorstCase(_expectation(q, values), q)


def entropic(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """Entropic risk, −log(Σ p exp(−level · v)) / level: no set but a penalty on leaving p.

    The value is the least of Σ q v + KL(q‖p) / level over all q, and the distribution is that q: the
    value is below its expectation by the penalty. It depends on the unit of the values.

    Args:
      p: [M] the distribution that is left at a price.
      values: [M] the value of each outcome.
      level: the aversion to risk, in one over the unit of the values; 0 is the mean.
    """
    least = jnp.min(jnp.where(p > 0.0, values, jnp.inf))
    exponent = level * jnp.maximum(values - least, 0.0)
    q, log_mass = _tilt(p, jnp.exp(-exponent), -jnp.expm1(-exponent))
    value = least - log_mass / jnp.where(level > 0.0, level, 1.0)
    return WorstCase(jnp.where(level > 0.0, value, _expectation(p, values)), jnp.where(level > 0.0, q, p))


class _Profile(NamedTuple):
    """The values of the outcomes that have mass, moved and scaled to [0, 1]; others are 0."""

    u: jax.Array  # [M]
    span: jax.Array  # [] what they were divided by
    worst: jax.Array  # [M] bool, the outcomes with u = 0
    mass: jax.Array  # [] of the worst
    gap: jax.Array  # [] the next u above 0, or 1
    variance: jax.Array  # [] of u, or 1 where it is 0


def _profile(p: jax.Array, values: jax.Array) -> _Profile:
    has = p > 0.0
    u, span = _unit(values, has)
    worst = has & (u <= np.finfo(u.dtype).eps)
    mass = jnp.minimum(jnp.sum(jnp.where(worst, p, 0.0)), 1.0)
    gap = jnp.min(jnp.where(has & ~worst, u, 1.0))
    variance = jnp.sum(p * jnp.square(u - jnp.sum(p * u)))
    return _Profile(u, span, worst, mass, gap, jnp.where(variance > 0.0, variance, 1.0))


def _tilt(p: jax.Array, weight: jax.Array, less: jax.Array) -> tuple[jax.Array, jax.Array]:
    """p times weights made a distribution, and the log of what it summed to.

    Args:
      p: [M] a distribution.
      weight: [M] between 0 and 1.
      less: [M] 1 − weight with all its digits, which count where little changes.
    """
    mass = jnp.sum(p * weight)
    log_mass = jnp.where(mass > 0.5, jnp.log1p(-jnp.sum(p * less)), jnp.log(mass))
    return p * weight / mass, log_mass


def _log_expm1(x: jax.Array) -> jax.Array:
    return jnp.where(x < 20.0, jnp.log(jnp.expm1(x)), x)


def _solve(
    divergence: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    radius: jax.Array,
    low: jax.Array,
    high: jax.Array,
    start: jax.Array,
) -> jax.Array:
    """Where a divergence that grows from `low` to `high` equals the radius.

    Newton steps on its logarithm, which for small radii is a straight line; halving where such a step
    leaves the bracket or is no shorter than half the one before.

    Args:
      divergence: x -> its value and its slope.
      radius: the value sought, positive.
      low: an x where the divergence is at most the radius.
      high: an x where it is at least that, or the last to try.
      start: the first x, if it lies between the two.
    """
    enough = np.finfo(low.dtype).eps ** 0.75  # the error after a Newton step is about its square
    tiny = np.finfo(low.dtype).tiny
    State = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]

    def step(state: State) -> State:
        low, high, x, last, count = state
        found, slope = divergence(x)
        found = jnp.maximum(found, tiny)
        short = found < radius
        low, high = jnp.where(short, x, low), jnp.where(short, high, x)
        newton = x - jnp.log(found / radius) * found / slope
        good = (newton > low) & (newton < high) & (jnp.abs(newton - x) < 0.5 * last)
        new = jnp.where(good, newton, 0.5 * (low + high))
        return low, high, new, jnp.abs(new - x), count + 1

    def unfinished(state: State) -> jax.Array:
        return (state[3] > enough) & (state[4] < 100)

    begin = jnp.clip(start, low, high)
    return jax.lax.while_loop(unfinished, step, (low, high, begin, high - low, jnp.asarray(0)))[2]


# --- transport -----------------------------------------------------------------------------------------


def weighted_l1(p: jax.Array, values: jax.Array, level: Level, weights: jax.Array) -> WorstCase:
    """Σ w |p' − p| ≤ level: moving mass costs the weights of both its ends.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius.
      weights: [M] w, none negative; a large one holds its outcome near p.
    """
    return WorstCase(*weighted_l1_tangent(p, values, level, weights)[:2])


def weighted_l1_tangent(p: jax.Array, values: jax.Array, level: Level, weights: jax.Array) -> Tangent:
    """`weighted_l1` with its tangent."""
    weights = jnp.asarray(weights, p.dtype)
    here = jnp.arange(values.shape[0])

    def respond(price: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        there = jnp.argmin(u + price * weights)
        goes = (u - price * weights > u[there] + price * weights[there]) & (here != there)
        return jnp.where(goes, there, here), jnp.where(goes, weights + weights[there], 0.0)

    return _transport(p, values, level, respond)


def wasserstein(p: jax.Array, values: jax.Array, level: Level, cost: jax.Array | None = None) -> WorstCase:
    """Wasserstein-1 distance: mass moves from outcome i to j at cost[i, j], at most the level in all.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the radius, in the unit of the costs.
      cost: [M, M] none negative and 0 on the diagonal; |i − j| if not given, outcomes standing in line.
    """
    return WorstCase(*wasserstein_tangent(p, values, level, cost)[:2])


def wasserstein_tangent(p: jax.Array, values: jax.Array, level: Level, cost: jax.Array | None = None) -> Tangent:
    """`wasserstein` with its tangent."""
    here = jnp.arange(values.shape[0])
    c = jnp.abs(here[:, None] - here[None, :]).astype(p.dtype) if cost is None else jnp.asarray(cost, p.dtype)
    arriving = c.T  # outcomes reached first: both minima below are then vectorised, which argmin is not

    def respond(price: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        reached = u[:, None] + price * arriving
        least = reached <= jnp.min(reached, axis=0)
        there = jnp.min(jnp.where(least, here[:, None], values.shape[0]), axis=0)
        return there, c[here, there]

    return _transport(p, values, level, respond)


class _Plan(NamedTuple):
    """Where the mass of each outcome goes, with what it costs and the expectation it ends at."""

    there: jax.Array  # [M] int
    cost: jax.Array  # []
    value: jax.Array  # []


def _transport(
    p: jax.Array,
    values: jax.Array,
    level: Level,
    respond: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
) -> Tangent:
    """The least expectation that can be reached by moving mass at a total cost of at most the level.

    Plans are points (cost, value). The answer lies on the lower edge of their hull, between a plan that
    costs more than the level and one that does not. The price at which two such plans are equal is
    asked for a better one, which takes the place of one of them, until there is none.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the budget.
      respond: `(price, u) -> (there, cost)`, all of shape [M]: where each outcome's mass goes if moving
        costs the price times its cost and outcomes are worth u.
    """
    u, span = _unit(values, jnp.ones(p.shape, bool))
    here = jnp.arange(p.shape[0])
    enough = 8.0 * np.finfo(u.dtype).eps

    def plan(there: jax.Array, costs: jax.Array) -> _Plan:
        return _Plan(there, jnp.sum(p * costs), jnp.sum(p * u[there]))

    State = tuple[_Plan, _Plan, jax.Array, jax.Array]

    def improve(state: State) -> State:
        dear, cheap, _, count = state
        price = (cheap.value - dear.value) / (dear.cost - cheap.cost)
        new = plan(*respond(price, u))
        gain = (dear.value - new.value) + price * (dear.cost - new.cost)
        better = gain > enough * (dear.value + price * dear.cost)
        above = better & (new.cost > level)
        dear = jax.tree.map(lambda n, o: jnp.where(above, n, o), new, dear)
        cheap = jax.tree.map(lambda n, o: jnp.where(better & ~above, n, o), new, cheap)
        return dear, cheap, better, count + 1

    def unfinished(state: State) -> jax.Array:
        return state[2] & (state[3] < 200)

    all_moved, none_moved = plan(*respond(jnp.zeros((), u.dtype), u)), plan(here, jnp.zeros_like(u))
    start = (all_moved, none_moved, all_moved.cost > level, jnp.asarray(0))
    dear, cheap, *_ = jax.lax.while_loop(unfinished, improve, start)
    room = dear.cost - cheap.cost
    part = jnp.where(room > 0.0, jnp.clip((level - cheap.cost) / jnp.where(room > 0.0, room, 1.0), 0.0, 1.0), 1.0)
    q = jnp.zeros_like(u).at[dear.there].add(part * p).at[cheap.there].add((1.0 - part) * p)
    price = jnp.where(dear.cost > level, (cheap.value - dear.value) / jnp.where(room > 0.0, room, 1.0), 0.0)
    return Tangent(_expectation(q, values), q, span * price)


# --- other sets from these -----------------------------------------------------------------------------


def optimistic(worst_case: Callable[..., WorstCase]) -> Callable[..., WorstCase]:
    """The best case over the same set: the greatest expectation and a distribution that attains it.

    An `order` given to the result is that of the values from the greatest.
    """

    def best_case(p: jax.Array, values: jax.Array, *args: Any, **options: Any) -> WorstCase:
        value, distribution = worst_case(p, -values, *args, **options)
        return WorstCase(-value, distribution)

    return best_case


def on_support(worst_case: Callable[..., WorstCase]) -> Callable[..., WorstCase]:
    """The same set, cut down to the outcomes that have mass in p; rows can then be padded with zeros.

    The others are given a value above all, and so no mass: no set here puts any on the one greatest
    value where p has none.
    """

    def restricted(p: jax.Array, values: jax.Array, *args: Any, **options: Any) -> WorstCase:
        high = jnp.max(jnp.where(p > 0.0, values, -jnp.inf))
        span = high - jnp.min(jnp.where(p > 0.0, values, jnp.inf))
        above = high + jnp.where(span > 0.0, span, 1.0)
        return worst_case(p, jnp.where(p > 0.0, values, above), *args, **options)

    return restricted


def _expectation(q: jax.Array, values: jax.Array) -> jax.Array:
    """Σ q v, measured from the least value: equal values give exactly theirs."""
    least = jnp.min(values)
    return least + jnp.sum(q * (values - least))


def _unit(values: jax.Array, support: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values moved and scaled to [0, 1] over a support, 0 elsewhere; and the scale."""
    low = jnp.min(jnp.where(support, values, jnp.inf))
    span = jnp.max(jnp.where(support, values, -jnp.inf)) - low
    scale = jnp.where(span > 0.0, span, 1.0)
    return jnp.where(support, (values - low) / scale, 0.0), scale


# --- what can be asked ---------------------------------------------------------------------------------


def check_weights(weights: np.ndarray, field: str = "weights") -> None:
    """Raises unless weights [M] are positive and finite."""
    wrong = np.flatnonzero(~(np.isfinite(weights) & (np.asarray(weights) > 0)))
    if wrong.size:
        raise DeeprokError(f"{field} has {weights[wrong[0]]:g} for outcome {wrong[0]}; a weight is a positive number")


def check_cost(cost: np.ndarray, field: str = "cost") -> None:
    """Raises unless a matrix of costs is square, finite, nowhere negative and 0 on its diagonal."""
    cost = np.asarray(cost)
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise DeeprokError(f"{field} has shape {cost.shape}; it must be square, a row and a column for each outcome")
    wrong = ~(np.isfinite(cost) & (cost >= 0)) | (np.eye(len(cost), dtype=bool) & (cost != 0))
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        allowed = "staying costs 0" if i == j else "a cost is a finite number of at least 0"
        raise DeeprokError(f"{field} is {cost[i, j]:g} from outcome {i} to {j}; {allowed}")


def check_interval(bounds: np.ndarray, field: str = "interval") -> None:
    """Raises unless the bounds [2, M], lower and upper, have a distribution between them."""
    lower, upper = np.asarray(bounds, float)
    wrong = np.flatnonzero(~((lower >= 0) & (lower <= upper) & (upper <= 1)))
    if wrong.size:
        i = wrong[0]
        raise DeeprokError(
            f"{field} is {lower[i]:g} to {upper[i]:g} for outcome {i}; it must lie between 0 and 1, low before high"
        )
    if not lower.sum() <= 1 + 1e-9 <= upper.sum() + 2e-9:
        raise DeeprokError(
            f"{field} has lower bounds that sum to {lower.sum():g} and upper bounds that sum to {upper.sum():g}; "
            "1 must lie between the two"
        )


def _checker(name: str, allows: Callable[[float], bool], words: str) -> CheckLevel:
    def check_level(level: float, field: str = "robust_level") -> None:
        if not allows(level):
            raise DeeprokError(f"{field} is {level:g}; for the set {name} it is {words}")

    return check_level


def _ball(name: str, worst_case: Callable[..., WorstCase]) -> AmbiguitySet:
    return AmbiguitySet(worst_case, _checker(name, lambda level: level >= 0.0, "a radius of at least 0"))


SETS: dict[str, AmbiguitySet] = {
    "minimum": AmbiguitySet(minimum, _checker("minimum", lambda level: True, "not used")),
    "cvar": AmbiguitySet(cvar, _checker("cvar", lambda level: 0.0 < level <= 1.0, "a fraction above 0 and at most 1")),
    "contamination": AmbiguitySet(
        contamination, _checker("contamination", lambda level: 0.0 <= level <= 1.0, "a fraction between 0 and 1")
    ),
    "l1": _ball("l1", l1),
    "tv": _ball("tv", tv),
    "linf": _ball("linf", linf),
    "l2": _ball("l2", l2),
    "chi2": _ball("chi2", chi2),
    "kl": _ball("kl", kl),
    "burg": _ball("burg", burg),
    "wasserstein": _ball("wasserstein", wasserstein),
    "entropic": AmbiguitySet(
        entropic,
        _checker("entropic", lambda level: 0.0 <= level < math.inf, "an aversion to risk, finite and at least 0"),
    ),
}
