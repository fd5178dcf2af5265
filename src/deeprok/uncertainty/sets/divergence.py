"""Divergence balls: relative entropy (KL) and the likelihood set (Burg); and entropic risk.

The worst case of each lies on a curve of tilted distributions with one parameter. For entropic risk the parameter is
given; for KL and Burg it is found by a safeguarded Newton method.

A. Nilim and L. El Ghaoui, "Robust control of Markov decision processes with uncertain transition
  matrices", Operations Research, 2005.
G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research, 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.search import Range
from deeprok.uncertainty.sets.base import (
    AmbiguitySet,
    Level,
    WorstCase,
    expectation,
    level_check,
    radius_check,
    to_unit,
)
from deeprok.uncertainty.sets.shared_budget import STEPS, Carry, Tilt, by_prices


def kl(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """Relative entropy Σ p' log(p' / p) ≤ level: the worst case is p' ∝ p exp(−θ v).

    Args:
      p: [M] the nominal distribution.
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

    everything = radius >= -jnp.log(x.mass)  # enough to move all mass to the worst outcomes
    # Hoeffding's lemma bounds θ from below. At the upper bound, e^(−θ gap) is negligible beside the worst mass.
    low = 0.5 * jnp.log(8.0 * radius)
    high = jnp.maximum(low, jnp.log((60.0 - 2.0 * jnp.log(x.mass)) / x.gap))
    start = 0.5 * jnp.log(2.0 * radius / x.variance)
    log_theta = _solve(divergence, radius, jnp.where(everything, high, low), high, start)
    weight = jnp.where(everything, x.worst, jnp.exp(-jnp.exp(log_theta) * x.u))
    q = jnp.where(level > 0.0, p * weight / jnp.sum(p * weight), p)
    return WorstCase(expectation(q, values), q)


def burg(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """The likelihood set, Σ p log(p / p') ≤ level: the worst case is p' ∝ p / (v + s), with s > −min v.

    With counts n p it contains the distributions under which the data are at most e^(n · level) times less
    likely than under p: Nilim and El Ghaoui's likelihood model. Outcomes without mass in p are unconstrained.

    Args:
      p: [M] the nominal distribution.
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

    # The lower bound is Hoeffding's lemma again; the upper one compares the worst outcomes with the next. At the
    # limit no probability underflows yet, and s is negligible beside the gap.
    limit = -0.5 * np.log(tiny)
    rest = 1.0 - x.mass
    low = jnp.minimum(_log_expm1(jnp.sqrt(8.0 * radius)), limit)
    high = _log_expm1((radius - jnp.log(x.mass)) / jnp.maximum(rest, tiny)) - jnp.log(x.gap)
    high = jnp.clip(high, low, limit)
    low = jnp.where(rest > eps, low, high)

    # An outcome without mass in p may be worse than all others: then s is at least its distance to them, and it gets
    # the remaining mass.
    free = jnp.where(p > 0.0, jnp.inf, values)
    depth = (jnp.min(jnp.where(p > 0.0, values, jnp.inf)) - jnp.min(free)) / x.span
    floor = -jnp.log(jnp.where(depth > 0.0, depth, 1.0))
    least, _ = divergence(floor)
    open_end = (depth > 0.0) & (least <= radius)
    retained = jnp.where(open_end, jnp.exp(least - radius), 1.0)
    low, high = jnp.where(open_end, floor, low), jnp.where(open_end, floor, high)

    steepness = _solve(divergence, radius, low, high, 0.5 * jnp.log(2.0 * radius / x.variance))
    weight = 1.0 / (1.0 + x.u * jnp.exp(steepness))
    q = retained * p * weight / jnp.sum(p * weight)
    q = q + (1.0 - retained) * jax.nn.one_hot(jnp.argmin(free), p.shape[0], dtype=q.dtype)
    q = jnp.where(level > 0.0, q, p)
    return WorstCase(expectation(q, values), q)


def entropic(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """Entropic risk, −log(Σ p exp(−level · v)) / level: a penalty for deviating from p instead of a set.

    The value is the minimum of Σ q v + KL(q‖p) / level over all q, and the distribution is the minimiser. So the value
    is larger than the expectation Σ q v, by the penalty. It depends on the unit of the values.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the risk aversion, in one over the unit of the values; 0 is the mean.
    """
    least = jnp.min(jnp.where(p > 0.0, values, jnp.inf))
    exponent = level * jnp.maximum(values - least, 0.0)
    q, log_mass = _tilt(p, jnp.exp(-exponent), -jnp.expm1(-exponent))
    value = least - log_mass / jnp.where(level > 0.0, level, 1.0)
    return WorstCase(jnp.where(level > 0.0, value, expectation(p, values)), jnp.where(level > 0.0, q, p))


class _Profile(NamedTuple):
    """The values of outcomes with mass, shifted and scaled to [0, 1]; those of others are 0."""

    u: jax.Array  # [M]
    span: jax.Array  # [] the scale
    worst: jax.Array  # [M] bool, the outcomes with u = 0
    mass: jax.Array  # [] of the worst outcomes
    gap: jax.Array  # [] the smallest u above 0, or 1
    variance: jax.Array  # [] of u, or 1 if it is 0


def _profile(p: jax.Array, values: jax.Array) -> _Profile:
    has = p > 0.0
    u, span = to_unit(values, has)
    worst = has & (u <= np.finfo(u.dtype).eps)
    mass = jnp.minimum(jnp.sum(jnp.where(worst, p, 0.0)), 1.0)
    gap = jnp.min(jnp.where(has & ~worst, u, 1.0))
    variance = jnp.sum(p * jnp.square(u - jnp.sum(p * u)))
    return _Profile(u, span, worst, mass, gap, jnp.where(variance > 0.0, variance, 1.0))


def _tilt(p: jax.Array, weight: jax.Array, less: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The distribution proportional to p times weights, and the log of their sum.

    Args:
      p: [M] a distribution.
      weight: [M] between 0 and 1.
      less: [M] 1 − weight, without cancellation, for weights near 1.
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
    """The x between `low` and `high` at which an increasing divergence equals the radius.

    Newton's method on its logarithm, which is almost linear for small radii; bisection if a Newton step leaves the
    bracket or is not shorter than half of the one before.

    Args:
      divergence: x -> its value and its derivative.
      radius: the target value, positive.
      low: an x at which the divergence is at most the radius.
      high: an x at which it is at least the radius, or the largest x to try.
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


def _tilt_kl(p: jax.Array, above: jax.Array, price: jax.Array) -> Tilt:
    """Rows proportional to p exp(−λ v)."""
    exponent = -price[:, None] * above
    weighted = p * jnp.exp(exponent)
    mass = jnp.sum(weighted, axis=1)
    lost = -jnp.sum(p * jnp.expm1(exponent), axis=1)  # 1 − mass, without cancellation for small prices
    log = jnp.where(mass > 0.5, jnp.log1p(-lost), jnp.log(mass))
    distribution = weighted / mass[:, None]
    mean = jnp.sum(distribution * above, axis=1)
    variance = jnp.sum(distribution * (above - mean[:, None]) ** 2, axis=1)
    return Tilt(mean, variance, -log, distribution)


def _tilt_burg(p: jax.Array, above: jax.Array, price: jax.Array) -> Tilt:
    """Rows p / (λ (v + s)) that sum to 1; or with s = 0 and the rest on an outcome at 0 that has no mass in p."""
    lam = jnp.where(price > 0, price, 1.0)[:, None]
    has = p > 0.0

    def mass(s: jax.Array) -> jax.Array:
        """[A, M] the rows for given s; the search never makes v + s equal to 0 where p has mass."""
        return jnp.where(has, p / jnp.where(has, lam * (above + s[:, None]), 1.0), 0.0)

    def step(carry: Carry) -> Carry:
        s, _, count = carry
        q = mass(s)
        total, square = jnp.sum(q, axis=1), jnp.sum(jnp.where(has, q * q / jnp.where(has, p, 1.0), 0.0), axis=1)
        # Newton's method from below for 1 / total, which is almost linear in s.
        ahead = s + (total - 1.0) * total / (lam[:, 0] * square)
        rises = (ahead > s * (1 + 4 * np.finfo(s.dtype).eps)) & (total > 1.0)
        return jnp.where(rises, ahead, s), jnp.any(rises), count + 1

    free = jnp.any(~has & (above <= 0.0), axis=1)
    low = jnp.max(jnp.where(has, p / lam - above, -jnp.inf), axis=1)  # where one outcome alone has mass 1
    low = jnp.where(free, jnp.maximum(low, 0.0), low)
    # If only outcomes without mass in p have value 0, the rows may sum to less than 1 at s = 0: such an outcome gets
    # the rest.
    at_zero = jnp.any(has & (above <= 0.0), axis=1)
    room = free & ~at_zero
    start: Carry = (jnp.where(room & (low <= 0.0), 0.0, low), jnp.bool_(True), jnp.int32(0))
    s, *_ = jax.lax.while_loop(lambda c: c[1] & (c[2] < STEPS), step, start)
    rows = mass(s)
    total = jnp.sum(rows, axis=1)
    rest = jnp.where(room, jnp.maximum(1.0 - total, 0.0), 0.0)
    taken = jax.nn.one_hot(jnp.argmax(~has & (above <= 0.0), axis=1), p.shape[1], dtype=p.dtype)
    scaled = jnp.where((rest > 0.0)[:, None], rows, rows / total[:, None])
    distribution = scaled + rest[:, None] * taken
    distance = jnp.sum(jnp.where(has, p * jnp.log(jnp.where(has, p / jnp.where(has, scaled, 1.0), 1.0)), 0.0), axis=1)
    mean = jnp.sum(distribution * above, axis=1)
    weight = jnp.where(has, scaled * scaled / jnp.where(has, p, 1.0), 0.0)
    centre = jnp.sum(weight * above, axis=1) / jnp.sum(weight, axis=1)
    slope = jnp.sum(weight * (above - centre[:, None]) ** 2, axis=1)
    slope = jnp.where(rest > 0.0, 1.0 / jnp.square(lam[:, 0]), slope)
    at = Tilt(mean, slope, distance + price * mean, distribution)
    nominal = jnp.sum(p * above, axis=1)
    still = Tilt(nominal, jnp.sum(p * (above - nominal[:, None]) ** 2, axis=1), jnp.zeros_like(price), p)
    moves = price > 0
    return Tilt(*(jnp.where(moves.reshape(-1, *(1,) * (x.ndim - 1)), x, y) for x, y in zip(at, still, strict=True)))


KL = AmbiguitySet(
    kl,
    radius_check("kl"),
    nominal_level=0.0,
    reach="support",
    level_rules=("likelihood_ratio",),
    shared=by_prices(_tilt_kl, keeps_support=True),
    levels=Range(0.02, 2.0, log=True),
)
BURG = AmbiguitySet(
    burg,
    radius_check("burg"),
    nominal_level=0.0,
    reach="worst",
    level_rules=("anytime_likelihood", "likelihood_ratio"),
    shared=by_prices(_tilt_burg, keeps_support=False),
    levels=Range(0.02, 2.0, log=True),
)
ENTROPIC = AmbiguitySet(
    entropic,
    level_check("entropic", lambda level: 0.0 <= level < math.inf, "a risk aversion, finite and at least 0"),
    nominal_level=0.0,
    reach="support",
    coherent=False,
)
