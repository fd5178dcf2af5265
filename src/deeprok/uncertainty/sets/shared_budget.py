"""Shared budgets: nature divides one level among the actions of a state (s-rectangular sets).

All functions are for one state, unbatched. Let q_a(ξ) be the worst-case expectation of action a when nature spends ξ on
it, convex and decreasing, and ξ_a(u) its inverse: the cost of lowering action a to u. Then

    max over π of min { Σ_a π_a q_a(ξ_a) : Σ_a ξ_a ≤ κ }  =  min { u : Σ_a ξ_a(u) ≤ κ }.

The right-hand side is one convex equation in u. All methods replace the q_a by tangents below them. With one tangent
for each action, of slope −1/λ_a, the equation has a closed-form solution (`meet`). It is a lower bound of u, and the
policy π ∝ λ attains at least that against the true q_a. So the policy is found together with the value, also at kinks,
where any subgradient will do. One case is left: an action may be worth u by itself because nature can't lower it any
further. Then it is taken with probability 1.

A set is solved in one of three ways:

- The q_a are piecewise linear with known pieces (`l1`, `tv`): the set's file has its own method.
- Nature's best response to a price of the budget is known (`kl`, `chi2`, `burg`): `by_prices` solves a fractional
  program (Dinkelbach).
- The set has a `tangent`: `deeprok.tabular.s_rectangular` uses cutting planes.

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

STEPS = 100  # limit of Newton's method, which takes about a dozen steps
Carry = tuple[jax.Array, ...]  # state of a loop


class Shared(NamedTuple):
    """The worst-case value of a state if nature shares one budget among its actions."""

    value: jax.Array  # []
    policy: jax.Array  # [A]
    distribution: jax.Array  # [A, M] the worst-case distribution of each action


SharedBackup = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Shared]


class SharedBudget(NamedTuple):
    """A set's own method for budgets shared by the actions of a state.

    Attributes:
      best_policy: `(p [A, M], values [A, M], valid [A], budget) -> Shared`, for the best policy.
      of_policy: `(p [A, M], values [A, M], policy [A], budget) -> Shared`, for a given policy.
    """

    best_policy: SharedBackup
    of_policy: SharedBackup


def from_least(solve: SharedBackup) -> SharedBackup:
    """The same function, computed relative to the smallest value, so that nearly equal values lose no digits."""

    @functools.wraps(solve)
    def moved(p: jax.Array, values: jax.Array, third: jax.Array, budget: jax.Array) -> Shared:
        least = jnp.min(values)
        found = solve(p, values - least, third, budget)
        return found._replace(value=least + found.value)

    return moved


class Tilt(NamedTuple):
    """Nature's best response to a price for each action: the minimum of distance + price · expectation."""

    mean: jax.Array  # [A] the expectation
    slope: jax.Array  # [A] minus the derivative of the expectation by the price
    dual: jax.Array  # [A] the minimum, with expectations relative to the smallest value
    distribution: jax.Array  # [A, M]


#: `(p [A, M], values [A, M], price [A]) -> Tilt`, with values and means relative to the smallest value of each action.
Tilted = Callable[[jax.Array, jax.Array, jax.Array], Tilt]


def by_prices(tilted: Tilted, keeps_support: bool) -> SharedBudget:
    """Shared budgets for a set whose best response to a price is known.

    With λ_a = π_a / μ, and μ the price of the budget, the dual is the fractional program

        max over λ ≥ 0 of ( −κ + Σ_a min over p' of (distance + λ_a p'·v_a) ) / Σ_a λ_a.

    Args:
      tilted: nature's best response to a price for each action.
      keeps_support: whether outcomes without mass in p never get any.
    """

    def lowest(p: jax.Array, values: jax.Array) -> jax.Array:
        """[A] the infimum of the expectations that nature can reach."""
        return jnp.min(jnp.where(p > 0, values, jnp.inf) if keeps_support else values, axis=1)

    def best_policy(p: jax.Array, values: jax.Array, valid: jax.Array, budget: jax.Array) -> Shared:
        least = lowest(p, values)
        above = jnp.maximum(values - least[:, None], 0.0)
        tilt = functools.partial(tilted, p, above)
        mean = least + jnp.sum(p * above, axis=1)
        floor, mean = (jnp.where(valid, x, -jnp.inf) for x in (least, mean))
        found = _dinkelbach(tilt, floor, mean, budget)
        # Without a budget the best action is taken with probability 1.
        best = jax.nn.one_hot(jnp.argmax(mean), len(p), dtype=p.dtype)
        policy = jnp.where(budget > 0, found.policy, best)
        return Shared(found.value, policy, tilt(found.price).distribution)

    def of_policy(p: jax.Array, values: jax.Array, policy: jax.Array, budget: jax.Array) -> Shared:
        """One price for all actions."""
        least = lowest(p, values)
        above = jnp.maximum(values - least[:, None], 0.0)

        def tilt(price: jax.Array) -> Tilt:
            each = tilted(p, above, price * policy)
            mean, slope, dual = policy @ each.mean, policy**2 @ each.slope, jnp.sum(each.dual)
            return Tilt(mean[None], slope[None], dual[None], each.distribution)

        low, mean = policy @ least, policy @ (least + jnp.sum(p * above, axis=1))
        found = _dinkelbach(tilt, low[None], mean[None], budget)
        return Shared(found.value, policy, tilt(found.price).distribution)

    return SharedBudget(from_least(best_policy), from_least(of_policy))


class _Ratio(NamedTuple):
    """The largest ratio, its λ, and the policy proportional to it."""

    value: jax.Array  # []
    price: jax.Array  # [n]
    policy: jax.Array  # [n]


def _dinkelbach(tilt: Callable[[jax.Array], Tilt], floor: jax.Array, mean: jax.Array, budget: jax.Array) -> _Ratio:
    """The largest ratio ( Σ λ floor + Σ dual(λ) − κ ) / Σ λ, at least the highest floor.

    Each step is a Newton step for the λ that maximise the ratio at the current u. The ratio of any λ is a lower bound,
    so u increases. Hence a λ whose expectation is below u stays too large.

    Args:
      tilt: [n] λ -> nature's best response.
      floor: [n] the smallest value of each action, −∞ for actions that the state does not have.
      mean: [n] the expectation of each action, at λ = 0.
      budget: κ.
    """
    tiny = np.finfo(mean.dtype).tiny
    low = jnp.where(floor > -jnp.inf, floor, 0.0)

    def step(carry: Carry) -> Carry:
        count, u, price, policy, too_large, _ = carry
        at = tilt(price)
        top = low + at.dual / jnp.where(price > 0, price, 1.0)
        found, weights = meet(top, price, budget)
        policy = jnp.where(found > u, weights, policy)
        u = jnp.maximum(u, found)
        too_large = jnp.where(low + at.mean < u, jnp.minimum(too_large, price), too_large)
        ahead = price + (low + at.mean - u) / jnp.maximum(at.slope, tiny)
        ahead = jnp.clip(ahead, price / 4, 2 * price)
        ahead = jnp.where(ahead < too_large, ahead, (price + too_large) / 2)
        ahead = jnp.where(mean > u, ahead, 0.0)
        moving = jnp.any(jnp.abs(ahead - price) > 1e-10 * price)
        return count + 1, u, ahead, policy, too_large, moving

    # The first guess is from the slope at λ = 0, bounded below by the distance to the floor.
    slope = jnp.maximum(tilt(jnp.zeros_like(mean)).slope, 1e-4 * jnp.square(jnp.where(mean > low, mean - low, 1.0)))
    price = jnp.where(mean > jnp.max(floor), jnp.sqrt(2 * budget / (len(mean) * slope)), 0.0)
    held = jax.nn.one_hot(jnp.argmax(floor), len(floor), dtype=price.dtype)
    start: Carry = (jnp.int32(0), jnp.max(floor), price, held, jnp.full_like(price, jnp.inf), jnp.bool_(True))
    _, u, price, policy, *_ = jax.lax.while_loop(lambda c: c[5] & (c[0] < STEPS), step, start)
    return _Ratio(jnp.where(budget > 0, u, jnp.max(mean)), price, policy)


def meet(top: jax.Array, rate: jax.Array, budget: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The smallest u such that Σ_a rate_a (top_a − u)₊ ≤ κ, −∞ if all rates are 0; and the policy that attains it.

    It is the largest (Σ rate top − κ) / Σ rate over sets of the actions with the highest tops.

    Args:
      top: [A] the value of each action's tangent when nothing is spent on it.
      rate: [A] the cost of lowering it by 1; 0 for actions that the state does not have.
      budget: κ.
    """
    highest = jnp.max(jnp.where(rate > 0, top, -jnp.inf))
    below = jnp.where(rate > 0, top - highest, -jnp.inf)
    members = below[None, :] >= below[:, None]  # [A, A] actions at least as high as each
    total = jnp.sum(jnp.where(members, rate, 0.0), axis=1)
    cost = jnp.sum(jnp.where(members & (rate > 0), rate * below, 0.0), axis=1) - budget
    held = jnp.where(rate > 0, cost / jnp.where(total > 0, total, 1.0), -jnp.inf)
    last = jnp.argmax(held)
    return highest + held[last], jnp.where(members[last], rate, 0.0) / jnp.where(total[last] > 0, total[last], 1.0)
