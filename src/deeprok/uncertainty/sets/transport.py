"""Optimal transport with a budget: weighted L1 and Wasserstein-1 balls.

The worst case for a given price of transport is known in closed form. Cutting planes of the concave dual find the
price at which the budget is used up; the worst case is a mixture of the two plans at that price.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.uncertainty.sets.base import (
    AmbiguitySet,
    Level,
    Tangent,
    WorstCase,
    expectation,
    radius_check,
    to_unit,
)


def weighted_l1(p: jax.Array, values: jax.Array, level: Level, weights: jax.Array) -> WorstCase:
    """Σ w |p' − p| ≤ level: moving mass from i to j costs w_i + w_j.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius.
      weights: [M] w, at least 0; a large weight keeps the probability of its outcome near p.
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
    """Wasserstein-1 distance: moving mass from outcome i to j costs cost[i, j], at most the level in total.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius, in the unit of the costs.
      cost: [M, M] at least 0, and 0 on the diagonal; |i − j| if not given.
    """
    return WorstCase(*wasserstein_tangent(p, values, level, cost)[:2])


def wasserstein_tangent(p: jax.Array, values: jax.Array, level: Level, cost: jax.Array | None = None) -> Tangent:
    """`wasserstein` with its tangent."""
    here = jnp.arange(values.shape[0])
    c = jnp.abs(here[:, None] - here[None, :]).astype(p.dtype) if cost is None else jnp.asarray(cost, p.dtype)
    arriving = c.T  # destinations first: both minima below are then vectorised, unlike argmin

    def respond(price: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        reached = u[:, None] + price * arriving
        least = reached <= jnp.min(reached, axis=0)
        there = jnp.min(jnp.where(least, here[:, None], values.shape[0]), axis=0)
        return there, c[here, there]

    return _transport(p, values, level, respond)


class _Plan(NamedTuple):
    """A transport plan: the destination of each outcome's mass, its total cost and the resulting expectation."""

    there: jax.Array  # [M] int
    cost: jax.Array  # []
    value: jax.Array  # []


def _transport(
    p: jax.Array,
    values: jax.Array,
    level: Level,
    respond: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
) -> Tangent:
    """The smallest expectation that can be reached by moving mass at a total cost of at most the level.

    A plan is a point (cost, value). The solution lies on the lower convex hull of all plans, between a plan that costs
    more than the level and one that does not. At the price where both are equally good, the best plan replaces one of
    them; this is repeated until there is no better one.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the budget.
      respond: `(price, u) -> (there, cost)`, all of shape [M]: the best destination of each outcome's mass, and its
        cost, if outcomes have the values u and moving costs the price times its cost.
    """
    u, span = to_unit(values, jnp.ones(p.shape, bool))
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
    return Tangent(expectation(q, values), q, span * price)


def check_cost(cost: np.ndarray, field: str = "cost") -> None:
    """Raises unless a matrix of costs is square, finite, at least 0, and 0 on its diagonal."""
    cost = np.asarray(cost)
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise DeeprokError(f"{field} has shape {cost.shape}; it must be square, a row and a column for each outcome")
    wrong = ~(np.isfinite(cost) & (cost >= 0)) | (np.eye(len(cost), dtype=bool) & (cost != 0))
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        allowed = "staying costs 0" if i == j else "a cost is a finite number of at least 0"
        raise DeeprokError(f"{field} is {cost[i, j]:g} from outcome {i} to {j}; {allowed}")


WEIGHTED_L1 = AmbiguitySet(
    weighted_l1, radius_check("weighted_l1"), nominal_level=0.0, reach="all", tangent=weighted_l1_tangent
)
WASSERSTEIN = AmbiguitySet(
    wasserstein,
    radius_check("wasserstein"),
    nominal_level=0.0,
    reach="all",
    takes_cost=True,
    tangent=wasserstein_tangent,
)
