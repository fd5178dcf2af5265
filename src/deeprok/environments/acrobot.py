"""A double pendulum with a motor at its elbow, to be swung up, with every physical parameter an argument.

R. S. Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding", Advances in
Neural Information Processing Systems, 1996; the equations are those of R. S. Sutton and A. G. Barto, "Reinforcement
learning: an introduction", 1998. The numbers are those of Gymnasium's Acrobot-v1, and so is the goal, a height in
lengths of a link: the length of the lower link is in none of the equations, which know where its mass is.
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
from deeprok.environments.base import Environment, EnvironmentPart, EpisodeSettings, Outcome, quantity
from deeprok.environments.drawing import BLUE, GREEN, GREY, INK, ORANGE, Circle, Drawing, Line
from deeprok.environments.spaces import Choices

_SPEED_LIMITS = (4 * math.pi, 9 * math.pi)  # rad/s


@pytree_dataclass
class Acrobot:
    """The parameters of two links, the upper of which hangs on a pivot."""

    link_length_1: Any = quantity(1.0, "m", "length of the upper link")
    link_mass_1: Any = quantity(1.0, "kg", "mass of the upper link")
    link_mass_2: Any = quantity(1.0, "kg", "mass of the lower link")
    link_centre_1: Any = quantity(0.5, "m", "from the pivot to the upper link's centre of mass")
    link_centre_2: Any = quantity(0.5, "m", "from the elbow to the lower link's centre of mass")
    link_inertia: Any = quantity(1.0, "kg·m²", "moment of inertia of either link about its centre of mass")
    gravity: Any = quantity(9.8, "m/s²", "gravitational acceleration")
    torque: Any = quantity(1.0, "N·m", "the motor's torque")
    time_step: Any = quantity(0.2, "s", "time between two decisions")
    initial_range: Any = quantity(0.1, "", "each coordinate starts uniformly within ± this")


def acrobot(horizon: int = 500) -> Environment:
    """Swing the tip up above a bar by a torque at the elbow: clockwise (0), none (1) or the other way (2).

    Each step costs 1 but the one that reaches the bar, which is a link's length above the pivot. An episode succeeds
    if it gets there before time is up.

    Args:
      horizon: steps after which an episode is cut off.
    """

    def observe(state: jax.Array) -> jax.Array:
        upper, lower, upper_speed, lower_speed = state
        return jnp.stack([jnp.cos(upper), jnp.sin(upper), jnp.cos(lower), jnp.sin(lower), upper_speed, lower_speed])

    def reset(key: jax.Array, params: Acrobot) -> tuple[jax.Array, jax.Array]:
        state = jax.random.uniform(key, (4,), minval=-1.0) * params.initial_range
        return state, observe(state)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Acrobot) -> Outcome:
        del key  # the dynamics are deterministic
        torque = params.torque * (action - 1)
        half = 0.5 * params.time_step
        # The classical Runge-Kutta method, with one step for each decision.
        k1 = _derivative(state, torque, params)
        k2 = _derivative(state + half * k1, torque, params)
        k3 = _derivative(state + half * k2, torque, params)
        k4 = _derivative(state + params.time_step * k3, torque, params)
        moved = state + params.time_step / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        angles = jnp.mod(moved[:2] + math.pi, 2 * math.pi) - math.pi
        limits = jnp.array(_SPEED_LIMITS, state.dtype)
        new_state = jnp.concatenate([angles, jnp.clip(moved[2:], -limits, limits)])
        arrived = -jnp.cos(angles[0]) - jnp.cos(angles[0] + angles[1]) > 1.0
        reward = jnp.where(arrived, 0.0, -1.0).astype(state.dtype)
        # A state that is not a number has no future, and is not the goal.
        terminated = arrived | jnp.any(jnp.isnan(new_state))
        return Outcome(state=new_state, obs=observe(new_state), reward=reward, terminated=terminated)

    return Environment(
        name="acrobot",
        reset=reset,
        step=step,
        nominal=Acrobot(),
        box={"link_mass_2": (0.5, 2.0), "torque": (0.5, 1.5)},
        observation_scale=(1.0, 1.0, 1.0, 1.0, 4.0, 9.0),
        actions=Choices(("clockwise", "none", "anticlockwise")),
        horizon=horizon,
        success_return=-float(horizon),
        state_of=lambda obs: jnp.stack([jnp.arctan2(obs[1], obs[0]), jnp.arctan2(obs[3], obs[2]), obs[4], obs[5]]),
        draw=draw,
    )


def draw(states: Sequence[Any], params: Acrobot) -> Drawing:
    """Both links, and the bar that the tip is to reach. The lower link is as long as the upper one, as for the goal."""
    upper, lower = (float(angle) for angle in states[-1][:2])
    length = float(params.link_length_1)
    elbow = length * math.sin(upper), -length * math.cos(upper)
    tip = elbow[0] + length * math.sin(upper + lower), elbow[1] - length * math.cos(upper + lower)
    reach = 2.2 * length
    return Drawing(
        shapes=[
            Line([(-reach, length), (reach, length)], GREEN, 0.8),
            Line([(0.0, 0.0), elbow], INK, 2.4),
            Line([elbow, tip], BLUE, 2.4),
            Circle((0.0, 0.0), 0.08 * length, GREY),
            Circle(elbow, 0.08 * length, ORANGE),
        ],
        view=(-reach, -reach, reach, reach),
    )


def _derivative(state: jax.Array, torque: jax.Array, params: Acrobot) -> jax.Array:
    """Speeds and accelerations; in the book's symbols, which Gymnasium has too."""
    theta1, theta2, dtheta1, dtheta2 = state
    m1, m2, l1, g = params.link_mass_1, params.link_mass_2, params.link_length_1, params.gravity
    lc1, lc2, inertia = params.link_centre_1, params.link_centre_2, params.link_inertia
    cos, sin = jnp.cos(theta2), jnp.sin(theta2)
    d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2.0 * l1 * lc2 * cos) + 2.0 * inertia
    d2 = m2 * (lc2**2 + l1 * lc2 * cos) + inertia
    phi2 = m2 * lc2 * g * jnp.sin(theta1 + theta2)
    phi1 = (
        -m2 * l1 * lc2 * dtheta2**2 * sin
        - 2.0 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin
        + (m1 * lc1 + m2 * l1) * g * jnp.sin(theta1)
        + phi2
    )
    ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * dtheta1**2 * sin - phi2) / (
        m2 * lc2**2 + inertia - d2**2 / d1
    )
    ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
    return jnp.stack([dtheta1, dtheta2, ddtheta1, ddtheta2])


@dataclass(frozen=True)
class AcrobotSettings(EpisodeSettings):
    """Settings of the acrobot, besides its parameters."""

    horizon: Count = 500
    """Steps after which an episode is truncated."""


PART = EnvironmentPart(settings=AcrobotSettings, make=lambda settings: acrobot(settings.horizon))
