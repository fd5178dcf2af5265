"""s-rectangular sets: nature has one budget for all actions of a state, and the best policy is randomised.

All functions are of one state, unbatched. With q_a(ξ) the worst expectation of action a when nature
spends ξ on it, convex and falling, and ξ_a(u) its inverse, what it costs to push action a down to u,

    max over π of min { Σ_a π_a q_a(ξ_a) : Σ_a ξ_a ≤ κ }  =  min { u : Σ_a ξ_a(u) ≤ κ }.

The right-hand side is one convex equation in u. The best policy weighs each action by −dξ_a/du at its
root.

C. P. Ho, M. Petrik and W. Wiesemann, "Partial policy iteration for L1-robust Markov decision
processes", Journal of Machine Learning Research 22(275), 2021.
W. Wiesemann, D. Kuhn and B. Rustem, "Robust Markov decision processes", Mathematics of Operations
Research 38(1), 2013.
W. Dinkelbach, "On nonlinear fractional programming", Management Science 13(7), 1967.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.uncertainty import balls

_STEPS = 100  # of Newton's method, which takes about a dozen
_Carry = tuple[jax.Array, ...]  # of a loop


class Shared(NamedTuple):
    """What a state is worth when nature shares one budget over its actions."""

    value: jax.Array  # []
    policy: jax.Array  # [A]
    distribution: jax.Array  # [A, M] nature's answer


_Solve = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Shared]


def _from_least(solve: _Solve) -> _Solve:
    """The same, computed with values measured from their least: nearly equal ones keep their digits."""

    @functools.wraps(solve)
    def moved(p: jax.Array, values: jax.Array, third: jax.Array, budget: jax.Array) -> Shared:
        least = jnp.min(values)
        found = solve(p, values - least, third, budget)
        return found._replace(value=least + found.value)

    return moved


@_from_least
def l1(p: jax.Array, values: jax.Array, valid: jax.Array, budget: jax.Array) -> Shared:
    """The best policy if the L1 distances of all rows sum to at most the budget.

    Nature moves mass from the best outcomes of an action to its worst one, so ξ_a(u) is made of
    straight pieces, one for each outcome. Newton's method from below ends on the piece of the root.

    Args:
      p: [A, M] the nominal rows.
      values: [A, M] the value of each outcome.
      valid: [A] which actions there are.
      budget: κ.
    """
    least = jnp.min(values, axis=1)
    gain = values - least[:, None]
    fall = p * gain  # how far emptying an outcome lowers its action
    before = _sum_above(fall, values)
    mean = least + jnp.sum(fall, axis=1)
    moves = (fall > 0) & valid[:, None]
    steep = jnp.where(moves, 1.0 / jnp.where(moves, gain, 1.0), 0.0)

    def moved(u: jax.Array) -> jax.Array:
        """[A, M] the mass taken from each outcome so that no action exceeds u."""
        return jnp.clip(((mean - u)[:, None] - before) * steep, 0.0, p)

    def step(carry: _Carry) -> _Carry:
        u, rate, _ = carry
        excess = jnp.sum(moved(u)) - budget / 2
        # One over the gain of the outcome that is being emptied, the last and least of those begun.
        now = jnp.max(jnp.where(before < (mean - u)[:, None], steep, 0.0), axis=1)
        ahead = u + excess / jnp.sum(now)
        rises = (excess > 0) & (ahead > u)
        return jnp.where(rises, ahead, u), jnp.where(rises, now, rate), rises

    floor = jnp.where(valid, least, -jnp.inf)
    highest = jax.nn.one_hot(jnp.argmax(floor), len(floor), dtype=p.dtype)
    start: _Carry = (jnp.max(floor), highest, jnp.bool_(True))
    u, rate, _ = jax.lax.while_loop(lambda c: c[2], step, start)
    return Shared(u, rate / jnp.sum(rate), _to_worst(p, values, moved(u)))


@_from_least
def l1_of_policy(p: jax.Array, values: jax.Array, policy: jax.Array, budget: jax.Array) -> Shared:
    """The worst case of a policy if the L1 distances of all rows sum to at most the budget.

    Args:
      p: [A, M] the nominal rows.
      values: [A, M] the value of each outcome.
      policy: [A] the probability of each action.
      budget: κ.
    """
    gain = policy[:, None] * (values - jnp.min(values, axis=1, keepdims=True))
    before = _sum_above(p.reshape(1, -1), gain.reshape(1, -1)).reshape(p.shape)
    moved = jnp.where(gain > 0, jnp.clip(budget / 2 - before, 0.0, p), 0.0)
    value = policy @ jnp.sum(p * values, axis=1) - jnp.sum(moved * gain)
    return Shared(value, policy, _to_worst(p, values, moved))


@_from_least
def kl(p: jax.Array, values: jax.Array, valid: jax.Array, budget: jax.Array) -> Shared:
    """The best policy if the relative entropies KL(p'_a ‖ p_a) of all rows sum to at most the budget.

    With λ_a = π_a / μ, and μ the price of the budget, the dual is the fractional program

        max over λ ≥ 0 of ( −κ − Σ_a log Σ_i p_ai exp(−λ_a v_ai) ) / Σ_a λ_a.

    Args:
      p: [A, M] the nominal rows.
      values: [A, M] the value of each outcome.
      valid: [A] which actions there are.
      budget: κ.
    """
    least, mean = _ends(p, values)
    floor, mean = (jnp.where(valid, x, -jnp.inf) for x in (least, mean))
    value, price = _dinkelbach(lambda price: _tilt(p, values, least, price), floor, mean, budget)
    # Where nature can't go below one action, or has nothing to spend, that one is best; else prices are weights.
    total = jnp.sum(price)
    held, mixed = value <= jnp.max(floor), (budget > 0) & (total > 0)
    best = jax.nn.one_hot(jnp.argmax(jnp.where(held & (budget > 0), floor, mean)), len(p), dtype=p.dtype)
    policy = jnp.where(mixed & ~held, price / jnp.where(total > 0, total, 1.0), best)
    return Shared(value, policy, _tilt(p, values, least, price).distribution)


@_from_least
def kl_of_policy(p: jax.Array, values: jax.Array, policy: jax.Array, budget: jax.Array) -> Shared:
    """The worst case of a policy if the relative entropies of all rows sum to at most the budget.

    Args:
      p: [A, M] the nominal rows.
      values: [A, M] the value of each outcome.
      policy: [A] the probability of each action.
      budget: κ.
    """
    least, mean = _ends(p, values)

    def tilt(price: jax.Array) -> _Tilt:
        """The sum over the actions, at one price for all."""
        each = _tilt(p, values, least, price * policy)
        mean, variance = policy @ each.mean, policy**2 @ each.variance
        return _Tilt(mean[None], variance[None], jnp.sum(each.log)[None], each.distribution)

    value, price = _dinkelbach(tilt, (policy @ least)[None], (policy @ mean)[None], budget)
    return Shared(value, policy, tilt(price).distribution)


def by_inversion(ball: Callable[[jax.Array], balls.WorstCase], valid: jax.Array, budget: jax.Array) -> Shared:
    """The best policy for any ball: ξ_a(u) by root finding, the policy by differences of q_a.

    Args:
      ball: [A] what is spent on each action -> the worst case of each.
      valid: [A] which actions there are.
      budget: κ.
    """
    everything = jnp.full(len(valid), budget)
    mean, least = ball(jnp.zeros_like(everything)).value, ball(everything).value
    top, floor = (jnp.max(jnp.where(valid, x, -jnp.inf)) for x in (mean, least))

    def shares(u: jax.Array) -> jax.Array:
        found = _root(lambda share: ball(share).value - u, jnp.zeros_like(mean), everything, mean - u, least - u)
        return jnp.where(valid & (mean > u), found, 0.0)

    def excess(u: jax.Array) -> jax.Array:
        return jnp.sum(shares(u)) - budget

    u = _root(excess, floor, top, excess(floor), -budget)
    share = shares(u)
    width = 1e-5 * jnp.where(budget > 0, jnp.minimum(budget, 1.0), 1.0)
    low, high = jnp.maximum(share - width, 0.0), share + width
    slope = (ball(low).value - ball(high).value) / (high - low)
    weight = jnp.where((share > 0) & (slope > 0), 1.0 / jnp.where(slope > 0, slope, 1.0), 0.0)
    pure = (u <= floor) | ~(jnp.sum(weight) > 0)
    best = jax.nn.one_hot(jnp.argmax(jnp.where(valid, jnp.where(budget > 0, least, mean), -jnp.inf)), len(valid))
    return Shared(u, jnp.where(pure, best, weight / jnp.sum(weight)), ball(share).distribution)


def _root(
    f: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array, f_low: jax.Array, f_high: jax.Array
) -> jax.Array:
    """Where falling functions are 0, each between its own ends; the nearer end where there is no such point.

    False position in the form known as Illinois: an end that stays twice counts half, so both close in.
    """
    eps = np.finfo(low.dtype).eps

    def step(carry: _Carry) -> _Carry:
        count, low, high, f_low, f_high, rose, x, active = carry
        part = jnp.clip(f_low / jnp.where(f_low > f_high, f_low - f_high, 1.0), eps, 1 - eps)
        new = low + part * (high - low)
        at = f(new)
        up = at > 0
        f_low = jnp.where(up, at, jnp.where(rose, f_low, f_low / 2))
        f_high = jnp.where(up, jnp.where(rose, f_high / 2, f_high), at)
        low, high = jnp.where(up, new, low), jnp.where(up, high, new)
        going = active & (at != 0) & (high - low > 2 * eps * jnp.maximum(jnp.abs(low), jnp.abs(high)))
        return count + 1, low, high, f_low, f_high, up, jnp.where(active, new, x), going

    crosses = (f_low > 0) & (f_high < 0)
    start: _Carry = (jnp.int32(0), low, high, f_low, f_high, crosses, jnp.where(f_low > 0, high, low), crosses)
    return jax.lax.while_loop(lambda c: jnp.any(c[7]) & (c[0] < _STEPS), step, start)[6]


class _Tilt(NamedTuple):
    """Rows p exp(−λ v), scaled to sum to 1."""

    mean: jax.Array  # [A]
    variance: jax.Array  # [A]
    log: jax.Array  # [A] log Σ p exp(−λ (v − least))
    distribution: jax.Array  # [A, M]


def _tilt(p: jax.Array, values: jax.Array, least: jax.Array, price: jax.Array) -> _Tilt:
    above = jnp.maximum(values - least[:, None], 0.0)
    exponent = -price[:, None] * above
    kept = p * jnp.exp(exponent)
    mass = jnp.sum(kept, axis=1)
    lost = -jnp.sum(p * jnp.expm1(exponent), axis=1)  # 1 − mass, with all its digits where the price is small
    log = jnp.where(mass > 0.5, jnp.log1p(-lost), jnp.log(mass))
    distribution = kept / mass[:, None]
    rise = jnp.sum(distribution * above, axis=1)
    variance = jnp.sum(distribution * (above - rise[:, None]) ** 2, axis=1)
    return _Tilt(least + rise, variance, log, distribution)


def _dinkelbach(
    tilt: Callable[[jax.Array], _Tilt], floor: jax.Array, mean: jax.Array, budget: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The greatest ratio ( Σ λ floor − Σ log(λ) − κ ) / Σ λ, at least the highest floor, and its λ.

    Each step is one of Newton's for the λ that are best at the ratio u found so far. The ratio of any
    λ is a lower bound, so u rises; a λ whose tilted mean is below u will therefore always be too large.

    Args:
      tilt: [n] λ -> tilted rows.
      floor: [n] the least value of each, −∞ for those that don't take part.
      mean: [n] the expectation of each, at λ = 0.
      budget: κ.
    """

    def step(carry: _Carry) -> _Carry:
        count, u, price, too_large, _ = carry
        at = tilt(price)
        total = jnp.sum(price)
        ratio = (jnp.sum(jnp.where(price > 0, price * floor, 0.0) - at.log) - budget) / jnp.where(total > 0, total, 1.0)
        u = jnp.where(total > 0, jnp.maximum(u, ratio), u)
        too_large = jnp.where(at.mean < u, jnp.minimum(too_large, price), too_large)
        ahead = price + (at.mean - u) / jnp.maximum(at.variance, np.finfo(price.dtype).tiny)
        ahead = jnp.clip(ahead, price / 4, 2 * price)
        ahead = jnp.where(ahead < too_large, ahead, (price + too_large) / 2)
        ahead = jnp.where(mean > u, ahead, 0.0)
        moving = jnp.any(jnp.abs(ahead - price) > 1e-10 * price)
        return count + 1, u, ahead, too_large, moving

    spread = jnp.maximum(tilt(jnp.zeros_like(mean)).variance, np.finfo(mean.dtype).tiny)
    price = jnp.where(mean > jnp.max(floor), jnp.sqrt(2 * budget / (len(mean) * spread)), 0.0)
    start: _Carry = (jnp.int32(0), jnp.max(floor), price, jnp.full_like(price, jnp.inf), jnp.bool_(True))
    _, u, price, *_ = jax.lax.while_loop(lambda c: c[4] & (c[0] < _STEPS), step, start)
    return jnp.where(budget > 0, u, jnp.max(mean)), price


def _ends(p: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[A] the least value of the outcomes that have mass, and [A] the expectation, equal if all values are."""
    least = jnp.min(jnp.where(p > 0, values, jnp.inf), axis=1)
    return least, least + jnp.sum(p * (values - least[:, None]), axis=1)


def _sum_above(amount: jax.Array, values: jax.Array) -> jax.Array:
    """[A, M] the amounts of all outcomes with a higher value; equal ones count in the order they stand."""
    if values.shape[1] <= 64:  # comparing all pairs is one fused loop, sorting is not
        place = jnp.arange(values.shape[1])
        higher = values[:, None, :] > values[:, :, None]
        earlier = (values[:, None, :] == values[:, :, None]) & (place[None, :] < place[:, None])
        return jnp.sum(jnp.where(higher | earlier, amount[:, None, :], 0.0), axis=2)
    order = jnp.argsort(-values, axis=1)
    ordered = jnp.take_along_axis(amount, order, axis=1)
    return jnp.put_along_axis(
        jnp.zeros_like(amount), order, jnp.cumsum(ordered, axis=1) - ordered, axis=1, inplace=False
    )


def _to_worst(p: jax.Array, values: jax.Array, moved: jax.Array) -> jax.Array:
    """[A, M] rows after mass has moved to the worst outcome of each."""
    worst = jax.nn.one_hot(jnp.argmin(values, axis=1), values.shape[1], dtype=p.dtype)
    return p - moved + worst * jnp.sum(moved, axis=1, keepdims=True)


def _half(solve: _Solve) -> _Solve:
    """Total variation is half of L1."""
    return lambda p, values, third, budget: solve(p, values, third, 2 * budget)


#: The best policy: `(p [A, M], values [A, M], valid [A], budget) -> Shared`.
BACKUPS: dict[str, _Solve] = {
    "l1": l1,
    "tv": _half(l1),
    "kl": kl,
}
#: A given policy: `(p [A, M], values [A, M], policy [A], budget) -> Shared`.
OF_POLICY: dict[str, _Solve] = {
    "l1": l1_of_policy,
    "tv": _half(l1_of_policy),
    "kl": kl_of_policy,
}
#: All sets with a budget to share.
BUDGETS = (*BACKUPS, "chi2", "burg", "linf", "l2", "wasserstein", "contamination")
