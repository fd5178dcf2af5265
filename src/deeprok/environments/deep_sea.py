"""Deep sea: a treasure that only one way of very many leads to, and that the first steps speak against.

I. Osband, B. Van Roy, D. Russo and Z. Wen, "Deep exploration via randomized value functions",
Journal of Machine Learning Research, 2019. There the meaning of the actions is drawn anew for each
cell and the cell is seen one-hot; here it is the same everywhere, and the cell is two numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.pytree import record
from deeprok.environments.base import Outcome, World, quantity


@record
class DeepSea:
    """What the diver finds and pays."""

    treasure: Any = quantity(1.0, "", "reward of the last step, if every step went right")
    move_cost: Any = quantity(0.01, "", "cost of going right in every step, all of them together")


def deep_sea(integrator: str = "euler", failing_reward: float = 0.0, horizon: int = 10) -> World:
    """Dive through N rows of N cells: each step leads one row down, to the left (0) or to the right (1).

    Who goes right in all N steps finds the treasure. Going left is free, going right costs the N-th
    part of the moving cost, so that whoever has not found the treasure learns to go left. Of the
    2ᴺ ways one is the right one.

    Args:
      integrator: not used; nothing is integrated.
      failing_reward: not used; nothing fails.
      horizon: N, rows and columns. The last row's step terminates the episode.
    """
    del integrator, failing_reward

    def observe(cell: jax.Array) -> jax.Array:
        return cell * (2.0 / horizon) - 1.0

    def reset(key: jax.Array, params: DeepSea) -> tuple[jax.Array, jax.Array]:
        del key, params
        cell = jnp.zeros(2, jnp.int32)
        return cell, observe(cell)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: DeepSea) -> Outcome:
        del key
        row, column = state
        right = action == 1
        # Never beyond the row's number, so that only going right in all N steps leads to column N.
        below = jnp.stack([row + 1, jnp.maximum(column + jnp.where(right, 1, -1), 0)])
        found = jnp.all(below == horizon)
        reward = jnp.where(found, params.treasure, 0.0) - jnp.where(right, params.move_cost / horizon, 0.0)
        return Outcome(
            state=below, obs=observe(below), reward=jnp.asarray(reward, float), terminated=below[0] >= horizon
        )

    return World(
        name="deep_sea",
        reset=reset,
        step=step,
        nominal=DeepSea(),
        box={"treasure": (0.5, 1.5)},
        observation_scale=(1.0, 1.0),
        actions=("left", "right"),
        horizon=horizon,
        success_return=0.5 * DeepSea().treasure,
    )
