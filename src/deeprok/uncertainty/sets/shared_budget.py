"""Budgets that the actions of a state share: nature divides one level among the rows of all actions.

All functions are of one state, unbatched. With q_a(ξ) the worst expectation of action a when nature
spends ξ on it, convex and falling, and ξ_a(u) its inverse, what it costs to push action a down to u,

    max over π of min { Σ_a π_a q_a(ξ_a) : Σ_a ξ_a ≤ κ }  =  min { u : Σ_a ξ_a(u) ≤ κ }.

The right-hand side is one convex equation in u. All methods draw lines that lie below the q_a: with
such a line for each action, of slope −1/λ_a, the equation is solved at once (`meet`). Its root is a lower bound
of u, and the policy π ∝ λ is worth at least that against the true q_a. So the policy comes with the value,
at kinks too, where any line that touches will do. What no line says is that an action may be worth u by
itself, as nature can't push it farther: then it is taken for certain.

A set takes part in one of three ways:

- Its q_a are made of straight pieces that are known (`l1`, `tv`): its file has a method of its own.
- Nature's answer to each price of the budget is known (`kl`, `chi2`, `burg`): `by_prices` chooses the lines by
  their slope, and u is the greatest value of a fractional program (Dinkelbach).
- It has tangents: `deeprok.tabular.s_rectangular` draws them where the last ones met u.

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

STEPS = 100  # of Newton's method, which takes about a dozen
Carry = tuple[jax.Array, ...]  # of a loop


class Shared(NamedTuple):
    """What a state is worth when nature shares one budget over its actions."""

    value: jax.Array  # []
    policy: jax.Array  # [A]
    distribution: jax.Array  # [A, M] nature's answer


Backup = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Shared]


class SharedBudget(NamedTuple):
    """How a set shares a budget among the actions of a state.

    Attributes:
      best_policy: `(p [A, M], values [A, M], valid [A], budget) -> Shared`, for the best policy.
      of_policy: `(p [A, M], values [A, M], policy [A], budget) -> Shared`, for a given one.
    """

    best_policy: Backup
    of_policy: Backup


def from_least(solve: Backup) -> Backup:
    """The same, computed with values measured from their least: nearly equal ones keep their digits."""

    @functools.wraps(solve)
    def moved(p: jax.Array, values: jax.Array, third: jax.Array, budget: jax.Array) -> Shared:
        least = jnp.min(values)
        found = solve(p, values - least, third, budget)
        return found._replace(value=least + found.value)

    return moved


class Tilt(NamedTuple):
    """Nature's answer to a price for each action: the least of distance + price · expectation."""

    mean: jax.Array  # [A] the expectation
    slope: jax.Array  # [A] how fast it falls with the price
    dual: jax.Array  # [A] that least, expectations being measured from the least value
    distribution: jax.Array  # [A, M]


#: `(p [A, M], values [A, M] from the least of each action on, price [A]) -> Tilt`, its mean measured from there too.
Tilted = Callable[[jax.Array, jax.Array, jax.Array], Tilt]


def by_prices(tilted: Tilted, keeps_support: bool) -> SharedBudget:
    """Shared budgets for a set whose answers to prices are known.

    With λ_a = π_a / μ, and μ the price of the budget, the dual is the fractional program

        max over λ ≥ 0 of ( −κ + Σ_a min over p' of (distance + λ_a p'·v_a) ) / Σ_a λ_a.

    Args:
      tilted: nature's answer to a price for each action.
      keeps_support: whether outcomes without mass stay without. If not, nature can come near the least of all.
    """

    def lowest(p: jax.Array, values: jax.Array) -> jax.Array:
        """[A] the least expectation that nature can come near."""
        return jnp.min(jnp.where(p > 0, values, jnp.inf) if keeps_support else values, axis=1)

    def best_policy(p: jax.Array, values: jax.Array, valid: jax.Array, budget: jax.Array) -> Shared:
        least = lowest(p, values)
        above = jnp.maximum(values - least[:, None], 0.0)
        tilt = functools.partial(tilted, p, above)
        mean = least + jnp.sum(p * above, axis=1)
        floor, mean = (jnp.where(valid, x, -jnp.inf) for x in (least, mean))
        found = _dinkelbach(tilt, floor, mean, budget)
        # Where nature has nothing to spend the best action is taken.
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
    """The greatest ratio, its λ, and the policy that is proportional to it."""

    value: jax.Array  # []
    price: jax.Array  # [n]
    policy: jax.Array  # [n]


def _dinkelbach(tilt: Callable[[jax.Array], Tilt], floor: jax.Array, mean: jax.Array, budget: jax.Array) -> _Ratio:
    """The greatest ratio ( Σ λ floor + Σ dual(λ) − κ ) / Σ λ, at least the highest floor.

    Each step is one of Newton's for the λ that are best at the ratio u found so far. The ratio of any
    λ is a lower bound, so u rises; a λ whose expectation is below u will therefore always be too large.

    Args:
      tilt: [n] λ -> nature's answer.
      floor: [n] the least value of each, −∞ for those that don't take part.
      mean: [n] the expectation of each, at λ = 0.
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

    # A first guess, from the slope at 0 if that says something of the way to the floor.
    spread = jnp.maximum(tilt(jnp.zeros_like(mean)).slope, 1e-4 * jnp.square(jnp.where(mean > low, mean - low, 1.0)))
    price = jnp.where(mean > jnp.max(floor), jnp.sqrt(2 * budget / (len(mean) * spread)), 0.0)
    held = jax.nn.one_hot(jnp.argmax(floor), len(floor), dtype=price.dtype)
    start: Carry = (jnp.int32(0), jnp.max(floor), price, held, jnp.full_like(price, jnp.inf), jnp.bool_(True))
    _, u, price, policy, *_ = jax.lax.while_loop(lambda c: c[5] & (c[0] < STEPS), step, start)
    return _Ratio(jnp.where(budget > 0, u, jnp.max(mean)), price, policy)


def meet(top: jax.Array, rate: jax.Array, budget: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The least u such that Σ_a rate_a (top_a − u)₊ ≤ κ, −∞ if all rates are 0; and the policy that holds it.

    It is the greatest (Σ rate top − κ) / Σ rate over those with the highest tops.

    Args:
      top: [A] where the line of an action is when nothing is spent on it.
      rate: [A] what it costs to push it down by 1; 0 for actions that don't take part.
      budget: κ.
    """
    highest = jnp.max(jnp.where(rate > 0, top, -jnp.inf))
    below = jnp.where(rate > 0, top - highest, -jnp.inf)
    members = below[None, :] >= below[:, None]  # [A, A] those at least as high as each
    total = jnp.sum(jnp.where(members, rate, 0.0), axis=1)
    cost = jnp.sum(jnp.where(members & (rate > 0), rate * below, 0.0), axis=1) - budget
    held = jnp.where(rate > 0, cost / jnp.where(total > 0, total, 1.0), -jnp.inf)
    last = jnp.argmax(held)
    return highest + held[last], jnp.where(members[last], rate, 0.0) / jnp.where(total[last] > 0, total[last], 1.0)
