"""Deep sea: a benchmark for exploration with a sparse reward.

I. Osband, B. Van Roy, D. Russo and Z. Wen, "Deep exploration via randomized value functions",
Journal of Machine Learning Research, 2019. There the meaning of the actions is drawn anew for each
cell and the observation is one-hot; here the actions mean the same everywhere and the observation is two numbers, so
that a constant policy solves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.fields import Count
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Environment, EnvironmentPart, EpisodeSettings, Outcome, quantity
from deeprok.environments.spaces import Choices


@pytree_dataclass
class DeepSea:
    """Rewards and costs of a dive."""

    treasure: Any = quantity(1.0, "", "reward of the last step, if every step went right")
    move_cost: Any = quantity(0.01, "", "cost of going right in every step, all of them together")


def deep_sea(horizon: int = 10) -> Environment:
    """Dive through N rows of N cells: each step leads one row down, to the left (0) or to the right (1).

    Who goes right in all N steps finds the treasure. Going left is free, going right costs the N-th
    part of the moving cost, so that whoever has not found the treasure learns to go left. Of the
    2ᴺ ways one is the right one.

    Args:
      horizon: N, rows and columns. The last row's step terminates the episode.
    """

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

    return Environment(
        name="deep_sea",
        reset=reset,
        step=step,
        nominal=DeepSea(),
        box={"treasure": (0.5, 1.5)},
        observation_scale=(1.0, 1.0),
        actions=Choices(("left", "right")),
        horizon=horizon,
        success_return=0.5 * DeepSea().treasure,
    )


@dataclass(frozen=True)
class DeepSeaSettings(EpisodeSettings):
    """Settings of the deep sea."""

    horizon: Count = 10
    """Rows and columns, and so steps in an episode."""


PART = EnvironmentPart(
    settings=DeepSeaSettings,
    make=lambda settings: deep_sea(settings.horizon),
    presets={
        ("tuned", "q_learning"): {
            "episodes": 500,
            "discount": 0.99,
            "warm_up": 20,
            "target_period": 200,
            "epsilon_steps": 3000,
            "acting": "nominal",
        }
    },
)
