"""A rocket that lands upright on its engine, whose thrust and weight are not known.

Landing needs the right moment to brake: a rocket that pulls strongly must brake late, or it rises again, and a weak one
early, or it crashes. Whoever knows the parameters lands. Against a nature that may choose other parameters in every
step no policy lands for certain, so that the minimum over the box in every step teaches nothing but to stay in the air.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Axis, Environment, EnvironmentPart, EpisodeSettings, Outcome, StateGrid, quantity
from deeprok.environments.drawing import BLUE, GREY, INK, ORANGE, PALE, Circle, Drawing, Line, Polygon, Text, rectangle
from deeprok.environments.spaces import Choices

_CEILING = 120.0  # altitude at which the rocket is lost, in m
_ALTITUDES = (5.0, 80.0)  # of starts, in m
_SPEEDS = (-2.0, 0.0)  # of starts, in m/s; slow enough for the weakest engine to brake from
_SOFT = 2.0  # largest speed of a landing, in m/s
_STEP_COST = 0.005


@pytree_dataclass
class Rocket:
    """The parameters of a rocket with one engine."""

    thrust: Any = quantity(16.0, "m/s²", "acceleration by the engine")
    gravity: Any = quantity(9.8, "m/s²", "gravitational acceleration")
    time_step: Any = quantity(0.2, "s", "time between two decisions")


def rocket(horizon: int = 200) -> Environment:
    """Land a falling rocket softly: engine off (0) or on (1).

    Touching down at 2 m/s or less is a landing and earns 1, faster is a crash and costs 1, as does leaving upwards at
    120 m. Every other step costs 0.005.

    The pilot observes the altitude, its root and the vertical speed: the speed from which a rocket can just brake is
    proportional to the root.

    Args:
      horizon: steps after which an episode is cut off. A landing counts as success within the first 200.
    """

    def observe(state: jax.Array) -> jax.Array:
        altitude, speed = state
        above = altitude > 0.0  # and so the root has a derivative on the ground, too
        return jnp.stack([altitude, jnp.where(above, jnp.sqrt(jnp.where(above, altitude, 1.0)), 0.0), speed])

    def reset(key: jax.Array, params: Rocket) -> tuple[jax.Array, jax.Array]:
        del params
        low, high = jnp.array([_ALTITUDES, _SPEEDS]).T
        state = low + (high - low) * jax.random.uniform(key, (2,))
        return state, observe(state)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Rocket) -> Outcome:
        del key  # the dynamics are deterministic
        altitude, speed = state
        acceleration = jnp.where(action == 1, params.thrust, 0.0) - params.gravity
        new_speed = speed + params.time_step * acceleration
        new_altitude = altitude + params.time_step * 0.5 * (speed + new_speed)
        down = new_altitude <= 0.0
        # Energy gives the speed at the ground, which is reached within the step.
        impact = jnp.sqrt(jnp.maximum(speed**2 - 2.0 * acceleration * altitude, 0.0))
        landed = down & (impact <= _SOFT)
        # Written as "not within", so that a state that is not a number counts as a failure.
        flying = (new_altitude > 0.0) & (new_altitude < _CEILING)
        reward = jnp.where(landed, 1.0, jnp.where(flying, -_STEP_COST, -1.0)).astype(state.dtype)
        new_state = jnp.stack([new_altitude, new_speed]).astype(state.dtype)
        return Outcome(state=new_state, obs=observe(new_state), reward=reward, terminated=~flying)

    return Environment(
        name="rocket",
        reset=reset,
        step=step,
        nominal=Rocket(),
        box={"thrust": (12.0, 20.0), "gravity": (8.0, 11.5)},
        observation_scale=(50.0, 5.0, 10.0),
        actions=Choices(("off", "on")),
        horizon=horizon,
        success_return=0.0,
        # The root of the altitude, so that points lie densest where the rocket lands.
        grid=StateGrid(
            (Axis("root of altitude", 0.0, _CEILING**0.5, 161), Axis("speed", -40.0, 20.0, 241)),
            to_state=lambda coordinates: coordinates * jnp.stack([coordinates[0], jnp.ones(())]),
            from_state=lambda state: jnp.stack([jnp.sqrt(jnp.maximum(state[0], 0.0)), state[1]]),
        ),
        state_of=lambda obs: jnp.stack([obs[0], obs[2]]),
        draw=draw,
    )


def draw(states: Sequence[Any], params: Rocket) -> Drawing:
    """The rocket above its landing place, larger than it is, with a dot where it was after each step."""
    del params
    altitude, speed = (float(number) for number in states[-1])
    foot = max(altitude, 0.0)  # the step in which it lands ends below the ground
    burning = len(states) > 1 and speed > float(states[-2][1])
    flame = [Polygon([(-2.2, foot + 1.0), (0.0, foot - 7.0), (2.2, foot + 1.0)], ORANGE)] if burning else []
    marks = range(0, int(_CEILING) + 1, 20)
    return Drawing(
        shapes=[
            Polygon(rectangle(-90.0, -12.0, 90.0, 0.0), PALE),
            Line([(-18.0, 0.0), (18.0, 0.0)], INK, 1.0),
            *(Line([(-64.0, mark), (-61.0, mark)], GREY) for mark in marks),
            *(Text((-66.0, mark), f"{mark} m", GREY, "right", 4.0) for mark in marks[1:]),
            *(Circle((0.0, max(float(before), 0.0)), 0.7, GREY) for before, _ in states[:-1]),
            *flame,
            Polygon([(-3.0, foot), (3.0, foot), (3.0, foot + 10.0), (0.0, foot + 15.0), (-3.0, foot + 10.0)], BLUE),
            Polygon([(-5.5, foot), (-3.0, foot + 5.0), (-3.0, foot)], INK),
            Polygon([(5.5, foot), (3.0, foot + 5.0), (3.0, foot)], INK),
            Text((84.0, 110.0), f"altitude {foot:.1f} m", INK, "right"),
            Text((84.0, 101.0), f"speed {speed:.1f} m/s".replace("-", "−"), INK, "right"),
        ],
        view=(-90.0, -12.0, 90.0, _CEILING + 4.0),
    )


PART = EnvironmentPart(settings=EpisodeSettings, make=lambda settings: rocket(settings.horizon))
