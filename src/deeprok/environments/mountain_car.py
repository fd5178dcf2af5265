"""A car that is too weak for the hill before it and has to swing itself up, with every physical parameter an argument.

A. W. Moore, "Efficient memory-based learning for robot control", PhD thesis, University of Cambridge, 1990. The
numbers are those of Gymnasium's MountainCar-v0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.fields import Count
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Axis, Environment, EnvironmentPart, EpisodeSettings, Outcome, StateGrid, quantity
from deeprok.environments.drawing import BLUE, GREEN, GREY, INK, PALE, Circle, Drawing, Line, Polygon, turned
from deeprok.environments.spaces import Choices

_WALL = -1.2  # at the left, where the car stops
_END = 0.6  # of the road, behind the goal
_GOAL = 0.5
_SPEED_LIMIT = 0.07


@pytree_dataclass
class MountainCar:
    """The parameters of a car between two hills."""

    force: Any = quantity(0.001, "1/step²", "acceleration by the engine")
    gravity: Any = quantity(0.0025, "1/step²", "acceleration by the slope, at its steepest")


def mountain_car(horizon: int = 300) -> Environment:
    """Drive a car up the right hill: push left (0), roll (1) or push right (2).

    Each step costs 1 until the car is there. An episode succeeds if it gets there before time is up.

    Args:
      horizon: steps after which an episode is cut off.
    """

    def reset(key: jax.Array, params: MountainCar) -> tuple[jax.Array, jax.Array]:
        del params
        state = jnp.stack([jax.random.uniform(key, (), minval=-0.6, maxval=-0.4), jnp.zeros(())])
        return state, state

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: MountainCar) -> Outcome:
        del key  # the dynamics are deterministic
        position, speed = state
        speed = speed + (action - 1) * params.force - params.gravity * jnp.cos(3.0 * position)
        speed = jnp.clip(speed, -_SPEED_LIMIT, _SPEED_LIMIT)
        position = jnp.clip(position + speed, _WALL, _END)
        speed = jnp.where((position <= _WALL) & (speed < 0.0), 0.0, speed)
        new_state = jnp.stack([position, speed])
        # Whoever is there with a speed below 0 came from behind the goal, which only a start there allows. A state
        # that is not a number has no future.
        terminated = ((position >= _GOAL) & (speed >= 0.0)) | jnp.isnan(position)
        return Outcome(state=new_state, obs=new_state, reward=jnp.asarray(-1.0, state.dtype), terminated=terminated)

    return Environment(
        name="mountain_car",
        reset=reset,
        step=step,
        nominal=MountainCar(),
        box={"force": (0.0004, 0.0011), "gravity": (0.0022, 0.0028)},
        observation_scale=(1.0, 0.07),
        actions=Choices(("left", "roll", "right")),
        horizon=horizon,
        success_return=-float(horizon),
        grid=StateGrid(axes=(Axis("position", _WALL, _END, 121), Axis("speed", -_SPEED_LIMIT, _SPEED_LIMIT, 321))),
        draw=draw,
    )


def _height(position: float) -> float:
    """Of the hill as Gymnasium draws it, whose slope is proportional to cos(3x)."""
    return 0.45 * math.sin(3.0 * position) + 0.55


def draw(states: Sequence[Any], params: MountainCar) -> Drawing:
    """The car on its hill, and the flag that it is to reach."""
    del params
    position = float(states[-1][0])
    slope = math.atan(1.35 * math.cos(3.0 * position))
    direction = math.cos(slope), math.sin(slope)
    at = position, _height(position)
    ridge = [(x, _height(x)) for x in (_WALL + (_END - _WALL) * i / 90 for i in range(91))]
    flag = _height(_GOAL)
    body = turned(
        [(-0.09, 0.03), (0.09, 0.03), (0.09, 0.07), (0.04, 0.11), (-0.05, 0.11), (-0.09, 0.07)], direction, at
    )
    return Drawing(
        shapes=[
            Polygon([(_WALL, 0.0), *ridge, (_END, 0.0)], PALE),
            Line(ridge, GREY),
            Line([(_GOAL, flag), (_GOAL, flag + 0.2)], INK),
            Polygon([(_GOAL, flag + 0.2), (_GOAL + 0.08, flag + 0.165), (_GOAL, flag + 0.13)], GREEN),
            Polygon(body, BLUE),
            *(Circle(wheel, 0.03, INK) for wheel in turned([(-0.05, 0.03), (0.05, 0.03)], direction, at)),
        ],
        view=(_WALL - 0.05, 0.0, _END + 0.05, 1.25),
    )


@dataclass(frozen=True)
class MountainCarSettings(EpisodeSettings):
    """Settings of the mountain car, besides its parameters."""

    horizon: Count = 300
    """Steps after which an episode is truncated."""


PART = EnvironmentPart(settings=MountainCarSettings, make=lambda settings: mountain_car(settings.horizon))
