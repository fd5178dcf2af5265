"""Deep sea: a benchmark for exploration with a sparse reward.

I. Osband, B. Van Roy, D. Russo and Z. Wen, "Deep exploration via randomized value functions",
Journal of Machine Learning Research, 2019. There, and in bsuite, the meaning of the actions is drawn for each cell and
the observation is one-hot. Here that can be set; by default the actions mean the same everywhere and the observation is
two numbers, so that a constant policy solves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.fields import Count, Seed
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Environment, EnvironmentPart, EpisodeSettings, Outcome, quantity
from deeprok.environments.drawing import BLUE, GREY, INK, ORANGE, WATER, Circle, Drawing, Line, Polygon, Text, rectangle
from deeprok.environments.spaces import Choices

Observation = Literal["coordinates", "one_hot"]
ActionMap = Literal["fixed", "random"]


@pytree_dataclass
class DeepSea:
    """Rewards and costs of a dive."""

    treasure: Any = quantity(1.0, "", "reward of the last step, if every step went right")
    move_cost: Any = quantity(0.01, "", "cost of going right in every step, all of them together")


def exchanged_actions(horizon: int, action_seed: int) -> np.ndarray:
    """A random action map [N, N] bool: where action 0 goes right."""
    return np.random.default_rng(action_seed).integers(0, 2, (horizon, horizon)) == 1


def deep_sea(
    horizon: int = 10,
    observation: Observation = "coordinates",
    action_map: ActionMap = "fixed",
    action_seed: int = 0,
    exchanged: np.ndarray | jax.Array | None = None,
) -> Environment:
    """Dive through N rows of N cells: each step leads one row down, to the left (0) or to the right (1).

    Who goes right in all N steps finds the treasure. Going left is free, going right costs the N-th
    part of the moving cost, so that whoever has not found the treasure learns to go left. Of the
    2ᴺ ways one is the right one.

    Args:
      horizon: N, rows and columns. The last row's step terminates the episode.
      observation: `coordinates`, two numbers between −1 and 1, or `one_hot`, N² numbers: 1 for the cell and 0 for the
        others. As in bsuite, all of them are 0 once the episode is over.
      action_map: `fixed`, or `random`: for each cell it is drawn once which of the two actions goes right.
      action_seed: seed of that drawing.
      exchanged: the random action map itself, if it is not to be drawn; it may be traced.
    """
    drawn = exchanged_actions(horizon, action_seed) if exchanged is None else exchanged

    def observe(cell: jax.Array) -> jax.Array:
        if observation == "coordinates":
            return cell * (2.0 / horizon) - 1.0
        # One row more, which is cut off: that of the end.
        return jnp.zeros((horizon + 1, horizon + 1)).at[tuple(cell)].set(1.0)[:horizon, :horizon].ravel()

    def reset(key: jax.Array, params: DeepSea) -> tuple[jax.Array, jax.Array]:
        del key, params
        cell = jnp.zeros(2, jnp.int32)
        return cell, observe(cell)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: DeepSea) -> Outcome:
        del key
        row, column = state
        right = action == 1
        if action_map == "random":
            right = right != jnp.asarray(drawn)[row, column]
        # Never beyond the row's number, so that only going right in all N steps leads to column N.
        below = jnp.stack([row + 1, jnp.maximum(column + jnp.where(right, 1, -1), 0)])
        found = jnp.all(below == horizon)
        reward = jnp.where(found, params.treasure, 0.0) - jnp.where(right, params.move_cost / horizon, 0.0)
        return Outcome(
            state=below, obs=observe(below), reward=jnp.asarray(reward, float), terminated=below[0] >= horizon
        )

    def draw(states: Sequence[Any], params: DeepSea) -> Drawing:
        way = [(float(column), -float(row)) for row, column in states]
        cells = [(float(column), -float(row)) for row in range(horizon + 1) for column in range(row + 1)]
        edge = 0.6 + 0.02 * horizon
        return Drawing(
            shapes=[
                Polygon(rectangle(-edge, -horizon - edge, horizon + edge, 0.0), WATER),
                *(Circle(at, 0.06, GREY) for at in cells),
                Circle((float(horizon), -float(horizon)), 0.35, ORANGE),
                Line(way, BLUE, 0.9),
                Circle(way[-1], 0.25, BLUE),
                Text((horizon - 0.2, 0.35 - horizon * 0.02), f"treasure {float(params.treasure):g}", INK, "right"),
            ],
            view=(-edge, -horizon - edge, horizon + edge, edge),
        )

    return Environment(
        name="deep_sea",
        reset=reset,
        step=step,
        nominal=DeepSea(),
        box={"treasure": (0.5, 1.5)},
        observation_scale=(1.0,) * (2 if observation == "coordinates" else horizon**2),
        actions=Choices(("left", "right") if action_map == "fixed" else ("first", "second")),
        horizon=horizon,
        success_return=0.5 * DeepSea().treasure,
        draw=draw,
    )


@dataclass(frozen=True)
class DeepSeaSettings(EpisodeSettings):
    """Settings of the deep sea."""

    horizon: Count = 10
    """Rows and columns, and so steps in an episode."""
    observation: Observation = "coordinates"
    """What is seen of a cell: two `coordinates`, or a number for each cell, `one_hot`, as in bsuite."""
    action_map: ActionMap = "fixed"
    """Whether action 1 goes right in every cell (`fixed`), or in a `random` half of them, as in bsuite."""
    action_seed: Seed = 0
    """Seed of the random action map."""


PART = EnvironmentPart(
    settings=DeepSeaSettings,
    make=lambda settings: deep_sea(settings.horizon, settings.observation, settings.action_map, settings.action_seed),
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
