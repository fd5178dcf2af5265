"""A pendulum to swing up and keep up with a motor of unknown strength: three torques, and a reward for being upright.

The rod is that of `pendulum`. A policy for the nominal motor lifts the rod at once where that motor could; a weaker one
gets stuck half-way, and needs more swings before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.environments.base import Axis, Environment, EnvironmentPart, EpisodeSettings, Outcome, StateGrid
from deeprok.environments.drawing import MEADOW, Drawing, Polygon
from deeprok.environments.pendulum import (
    SPEED_LIMIT,
    Pendulum,
    angle_and_speed,
    draw,
    from_upright,
    observe,
    rod_end,
    start_anywhere,
    swing,
)
from deeprok.environments.spaces import Choices

_UPRIGHT = 0.3  # rad from upright


def swing_up(horizon: int = 200) -> Environment:
    """Swing a rod up and keep it there: full torque clockwise (0), none (1) or full torque the other way (2).

    Each step after which the rod is within 0.3 rad of upright earns 1, the others 0. An episode begins anywhere, as
    that of `pendulum`, and succeeds if the rod is upright in more than a quarter of the steps: a rod that turns round
    and round is so in fewer.

    Args:
      horizon: steps after which an episode is cut off.
    """

    def reset(key: jax.Array, params: Pendulum) -> tuple[jax.Array, jax.Array]:
        del params
        state = start_anywhere(key)
        return state, observe(state)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Pendulum) -> Outcome:
        del key  # the dynamics are deterministic
        new_state = swing(state, params.torque * (action - 1), params)
        upright = jnp.abs(from_upright(new_state[0])) <= _UPRIGHT
        reward = jnp.where(upright, 1.0, 0.0).astype(state.dtype)
        # There is nothing to fail at; only a state that is not a number has no future.
        return Outcome(state=new_state, obs=observe(new_state), reward=reward, terminated=jnp.any(jnp.isnan(new_state)))

    return Environment(
        name="swing_up",
        reset=reset,
        step=step,
        nominal=Pendulum(),
        box={"torque": (0.8, 2.5), "mass": (0.6, 1.6)},
        observation_scale=(1.0, 1.0, 8.0),
        actions=Choices(("clockwise", "none", "anticlockwise")),
        horizon=horizon,
        success_return=0.25 * horizon,
        grid=StateGrid(
            axes=(
                Axis("angle", -math.pi, math.pi, 180, periodic=True),
                Axis("speed", -SPEED_LIMIT, SPEED_LIMIT, 201),
            )
        ),
        state_of=angle_and_speed,
        draw=draw_goal,
    )


def draw_goal(states: Sequence[Any], params: Pendulum) -> Drawing:
    """The rod, and the sector in which it earns."""
    rod = draw(states, params)
    fan = [rod_end(_UPRIGHT * share, float(params.length)) for share in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    return rod._replace(shapes=[Polygon([(0.0, 0.0), *fan], MEADOW), *rod.shapes])


PART = EnvironmentPart(settings=EpisodeSettings, make=lambda settings: swing_up(settings.horizon))
