"""s-rectangular sets: nature has one budget for all actions of a state, and the optimal policy is randomised.

`deeprok.uncertainty.sets.shared_budget` derives the equation that all methods solve. This file solves it by cutting
planes, for any set with a `tangent`.

J. E. Kelley, "The cutting-plane method for solving convex programs", Journal of the SIAM 8(4), 1960.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.uncertainty.sets import Tangent
from deeprok.uncertainty.sets.shared_budget import STEPS, Carry, Shared, meet

_Tangents = Callable[[jax.Array], Tangent]


def by_tangents(tangent: _Tangents, valid: jax.Array, budget: jax.Array) -> Shared:
    """The best policy, for any set with a tangent.

    A tangent underestimates the cost of lowering an action to u. So if the tangents meet at u for some shares of the
    budget, the actions have at least the value u there, and new tangents at these shares meet higher. As in Newton's
    method, u increases until no action is above it.

    Args:
      tangent: shares [A] of the budget -> the worst case of each action.
      valid: [A] which actions the state has.
      budget: κ.
    """
    nothing = jnp.zeros(len(valid))
    ends = jax.vmap(tangent)(jnp.stack([nothing, nothing + budget]))  # vmapped, so that it is compiled once for both
    first, last = ends.value
    alone = jnp.where(valid, last, -jnp.inf)
    scale = jnp.max(jnp.where(valid, first, 0.0))
    flat = 1e-13 * (first - last)  # a tangent that falls by less is taken as constant

    def step(carry: Carry) -> Carry:
        count, u, top, rate, policy, share, *_ = carry
        at = tangent(share)
        slopes = valid & (at.steepness * budget > flat)  # if not, nature can't lower it: use the last tangent
        rate = jnp.where(slopes, 1.0 / jnp.where(slopes, at.steepness, 1.0), rate)
        top = jnp.where(slopes, at.value + at.steepness * share, top)
        met, weights = meet(top, rate, budget)
        policy = jnp.where(met > u, weights, policy)
        u = jnp.maximum(u, met)
        ahead = jnp.clip(rate * (top - u), 0.0, budget)
        above = jnp.max(jnp.where(valid, at.value, -jnp.inf)) - u > 4 * np.finfo(u.dtype).eps * scale
        return count + 1, u, top, rate, policy, ahead, at.distribution, above & jnp.any(ahead != share)

    pure = jax.nn.one_hot(jnp.argmax(alone), len(valid), dtype=nothing.dtype)
    start: Carry = (
        jnp.int32(0),
        jnp.max(alone),
        nothing,
        nothing,
        pure,
        nothing,
        ends.distribution[0],
        jnp.bool_(True),
    )
    _, u, *_, policy, _, rows, _ = jax.lax.while_loop(lambda c: c[7] & (c[0] < STEPS), step, start)
    return Shared(u, policy, rows)


def of_policy_by_tangents(tangent: _Tangents, policy: jax.Array, budget: jax.Array) -> Shared:
    """The worst case of a given policy, for any set with a tangent.

    For a given price of the budget each action has its own optimal share, where the tangents on both sides of it cross.
    The optimal price lies between two whose shares sum to less and to more than the budget: `cheap` and `dear`. The
    slope of the line through both is the next price. Its shares need not be exact, only precise enough to decide which
    of the two it replaces. In the end a mixture of both spends exactly the budget.

    Args:
      tangent: shares [A] of the budget -> the worst case of each action.
      policy: [A] the probability of each action.
      budget: κ.
    """

    # A division of the budget is an array [3, A]: shares, worst-case values times π, and their steepness times π.
    def spend(share: jax.Array) -> jax.Array:
        at = tangent(share)
        return jnp.stack([share, policy * at.value, policy * at.steepness])

    def through(cheap: jax.Array, dear: jax.Array) -> jax.Array:
        room, fall, _ = jnp.sum((dear - cheap) * jnp.array([[1.0], [-1.0], [0.0]]), axis=1)
        return jnp.where(room > 0, fall / jnp.where(room > 0, room, 1.0), 0.0)

    cheap, dear = jax.vmap(spend)(jnp.stack([jnp.zeros_like(policy), jnp.where(policy > 0, budget, 0.0)]))
    enough = jnp.sum(dear[0]) <= budget  # the policy is deterministic, and all is spent on its action
    cheap = jnp.where(enough, dear, cheap)
    tolerance = 500 * np.finfo(policy.dtype).eps * jnp.sum(jnp.abs(cheap[1]))

    def step(carry: Carry) -> Carry:
        count, cheap, dear, low, high, price, _ = carry
        pays, idle = (
            high[2] >= price,
            low[2] <= price,
        )  # the best share is at the end of its interval, or at its start
        low = jnp.where(pays & (high[0] > low[0]), high, low)
        high = jnp.where(idle | pays, low, high)
        (begin, value, steep), (end, value_end, steep_end) = low, high
        bent = (end > begin) & (steep > steep_end)
        cross = (value + steep * begin - value_end - steep_end * end) / jnp.where(bent, steep - steep_end, 1.0)
        share = jnp.where(bent, jnp.clip(cross, begin, end), begin)
        least = value - steep * (share - begin)
        gap = jnp.sum(cheap[1] - least + price * (cheap[0] - share))
        at = spend(share)
        found, pays = at[1] - least <= tolerance, at[2] >= price
        low = jnp.where((end > begin) & (found | pays), at, low)
        high = jnp.where((end > begin) & (found | ~pays), at, high)
        over, under = jnp.sum(low[0]) > budget, jnp.sum(high[0]) <= budget
        less, more = jnp.where(under, low, cheap), jnp.where(over, high, dear)
        ahead = through(less, more)
        exact = jnp.all(high[0] <= low[0])
        decided = exact | ((over | under) & (jnp.abs(ahead - price) > 0.01 * price))
        cheap, dear = jnp.where(decided, less, cheap), jnp.where(decided, more, dear)
        low, high = jnp.where(decided, cheap, low), jnp.where(decided, dear, high)
        return count + 1, cheap, dear, low, high, jnp.where(decided, ahead, price), gap > tolerance

    start: Carry = (jnp.int32(0), cheap, dear, cheap, dear, through(cheap, dear), ~enough)
    _, cheap, dear, *_ = jax.lax.while_loop(lambda c: c[6] & (c[0] < 4 * STEPS), step, start)
    room = jnp.sum(dear[0] - cheap[0])
    part = jnp.clip((budget - jnp.sum(cheap[0])) / jnp.where(room > 0, room, 1.0), 0.0, 1.0)
    less, more = jax.vmap(tangent)(jnp.stack([cheap[0], dear[0]])).distribution
    return Shared(jnp.sum((1 - part) * cheap[1] + part * dear[1]), policy, (1 - part) * less + part * more)
