"""A pendulum to swing up and hold by a motor at its pivot, with every physical parameter an argument.

The numbers are those of Gymnasium's Pendulum-v1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Environment, EnvironmentPart, EpisodeSettings, Outcome, quantity
from deeprok.environments.drawing import BLUE, GREY, INK, Circle, Drawing, Line, Point
from deeprok.environments.spaces import Interval

SPEED_LIMIT = 8.0  # rad/s


@pytree_dataclass
class Pendulum:
    """The parameters of a rod on a motor."""

    mass: Any = quantity(1.0, "kg", "mass of the rod")
    length: Any = quantity(1.0, "m", "length of the rod")
    gravity: Any = quantity(10.0, "m/s²", "gravitational acceleration")
    torque: Any = quantity(2.0, "N·m", "the motor's largest torque")
    time_step: Any = quantity(0.05, "s", "time between two decisions")


def observe(state: jax.Array) -> jax.Array:
    """What is seen of a rod's angle and speed."""
    angle, speed = state
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])


def angle_and_speed(obs: jax.Array) -> jax.Array:
    """The state that an observation stands for."""
    return jnp.stack([jnp.arctan2(obs[1], obs[0]), obs[2]])


def start_anywhere(key: jax.Array) -> jax.Array:
    """A rod at any angle, that turns at up to 1 rad/s either way."""
    return jax.random.uniform(key, (2,), minval=-1.0) * jnp.array([math.pi, 1.0])


def from_upright(angle: jax.Array) -> jax.Array:
    """The same angle between −π and π."""
    return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi


def swing(state: jax.Array, torque: jax.Array, params: Pendulum) -> jax.Array:
    """The rod's angle and speed after a step in which the motor gives this torque."""
    angle, speed = state
    pull = 3.0 * params.gravity / (2.0 * params.length) * jnp.sin(angle)
    push = 3.0 / (params.mass * params.length**2) * torque
    new_speed = jnp.clip(speed + (pull + push) * params.time_step, -SPEED_LIMIT, SPEED_LIMIT)
    return jnp.stack([angle + new_speed * params.time_step, new_speed])


def rod_end(angle: float, length: float) -> Point:
    """Where the end of a rod is, with the pivot at (0, 0); angles grow anticlockwise, as torques do."""
    return -length * math.sin(angle), length * math.cos(angle)


def draw(states: Sequence[Any], params: Pendulum) -> Drawing:
    """The rod on its pivot, and the circle that its end moves on."""
    length = float(params.length)
    way = [rod_end(2 * math.pi * i / 72, length) for i in range(73)]
    reach = 1.15 * length
    return Drawing(
        shapes=[
            Line(way, GREY, 0.3),
            Line([(0.0, 0.0), rod_end(float(states[-1][0]), length)], BLUE, 5.0),
            Circle((0.0, 0.0), 0.05 * length, INK),
        ],
        view=(-reach, -reach, reach, reach),
    )


def pendulum(horizon: int = 200) -> Environment:
    """Swing a rod up and hold it there, by a torque between −1 and 1 times the motor's largest.

    Each step costs θ² + 0.1 θ̇² + 0.001 u², with the angle θ from upright and the torque u.

    Args:
      horizon: steps after which an episode is cut off.
    """

    def reset(key: jax.Array, params: Pendulum) -> tuple[jax.Array, jax.Array]:
        del params
        state = start_anywhere(key)
        return state, observe(state)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Pendulum) -> Outcome:
        del key  # the dynamics are deterministic
        angle, speed = state
        torque = params.torque * jnp.clip(action[0], -1.0, 1.0)
        cost = from_upright(angle) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
        new_state = swing(state, torque, params)
        return Outcome(state=new_state, obs=observe(new_state), reward=-cost, terminated=jnp.array(False))

    return Environment(
        name="pendulum",
        reset=reset,
        step=step,
        nominal=Pendulum(),
        box={"mass": (0.7, 1.3), "length": (0.7, 1.3)},
        observation_scale=(1.0, 1.0, 8.0),
        actions=Interval((-1.0,), (1.0,)),
        horizon=horizon,
        success_return=-400.0,
        state_of=angle_and_speed,
        draw=draw,
    )


PART = EnvironmentPart(
    settings=EpisodeSettings,
    make=lambda settings: pendulum(settings.horizon),
    presets={("tuned", "policy_gradient"): {"discount": 0.95}, ("paper", "policy_gradient"): {"discount": 0.95}},
)
