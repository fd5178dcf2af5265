"""A car on a road with curves, on tyres whose friction is not known.

The faster the car, the sooner it arrives, and the wider the margin that it needs where the road is slippery. Friction
matters twice: it limits the speed in a curve, and it is what the brakes slow the car down by.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Axis, Environment, EnvironmentPart, EpisodeSettings, Outcome, StateGrid, quantity
from deeprok.environments.spaces import Choices

_LENGTH = 200.0  # of the road, in m
_TOP_SPEED = 40.0  # m/s
_STARTS = (5.0, 15.0)  # speeds, in m/s
_CURVES = ((50.0, 25.0, 12.0), (110.0, 12.0, 10.0), (165.0, 40.0, 12.0))  # centre, radius and width, in m
_AHEAD = (0.0, 10.0, 20.0, 40.0)  # where the driver sees the curvature, in m from the car
_STEP_COST = 0.01


@pytree_dataclass
class Road:
    """The parameters of a car and its road."""

    friction: Any = quantity(0.8, "", "friction coefficient of the tyres on the road")
    drag: Any = quantity(0.002, "1/m", "deceleration by air drag for each squared m/s of speed", positive=False)
    gravity: Any = quantity(9.81, "m/s²", "gravitational acceleration")
    throttle: Any = quantity(3.5, "m/s²", "acceleration of the engine")
    braking: Any = quantity(
        0.9, "", "deceleration of the brakes, as a share of the largest that the tyres can transmit"
    )
    time_step: Any = quantity(0.2, "s", "time between two decisions")


def road(horizon: int = 200) -> Environment:
    """Drive 200 m through three curves: brake (0), coast (1) or open the throttle (2).

    Arriving earns 1. Leaving the road costs 1: it happens where v² κ(s), the lateral acceleration at speed v and
    curvature κ, is beyond μ g, the largest that the tyres can transmit. Every other step costs 0.01. The curve of 12 m
    is the narrowest: it can be taken at 9.7 m/s with the nominal friction and at 5.9 m/s with the smallest.

    The driver observes place, speed, and the curvature here and 10, 20 and 40 m ahead.

    Args:
      horizon: steps after which an episode is cut off. An arrival counts as success within the first 200.
    """

    def observe(state: jax.Array) -> jax.Array:
        return jnp.stack([*state, *(curvature(state[0] + distance) for distance in _AHEAD)])

    def reset(key: jax.Array, params: Road) -> tuple[jax.Array, jax.Array]:
        del params
        low, high = _STARTS
        state = jnp.stack([jnp.zeros(()), jax.random.uniform(key, minval=low, maxval=high)])
        return state, observe(state)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Road) -> Outcome:
        del key  # the physics is deterministic
        place, speed = state
        grip = params.friction * params.gravity
        push = jnp.where(action == 0, -params.braking * grip, jnp.where(action == 2, params.throttle, 0.0))
        acceleration = push - params.drag * speed**2
        new_speed = jnp.clip(speed + params.time_step * acceleration, 0.0, _TOP_SPEED)
        new_place = place + params.time_step * 0.5 * (speed + new_speed)
        # Written as "not within", so that a state that is not a number counts as a crash.
        crashed = ~(new_speed**2 * curvature(new_place) <= grip)
        arrived = ~crashed & (new_place >= _LENGTH)
        reward = jnp.where(crashed, -1.0, jnp.where(arrived, 1.0, -_STEP_COST)).astype(state.dtype)
        new_state = jnp.stack([new_place, new_speed]).astype(state.dtype)
        return Outcome(state=new_state, obs=observe(new_state), reward=reward, terminated=crashed | arrived)

    return Environment(
        name="road",
        reset=reset,
        step=step,
        nominal=Road(),
        box={"friction": (0.3, 1.0), "drag": (0.0, 0.004)},
        observation_scale=(100.0, 10.0, 0.04, 0.04, 0.04, 0.04),
        actions=Choices(("brake", "coast", "throttle")),
        horizon=horizon,
        # A crash returns at most −1, a car still on its way the cost of its steps: an arrival is above both.
        success_return=max(-1.0, 0.5 - _STEP_COST * horizon),
        grid=StateGrid((Axis("place", 0.0, _LENGTH, 201), Axis("speed", 0.0, _TOP_SPEED, 161))),
        state_of=lambda obs: obs[:2],
    )


def curvature(place: jax.Array) -> jax.Array:
    """κ(s) = Σ exp(−((s − c) / w)⁴) / r over the curves, in 1/m.

    Args:
      place: s [...], in m from the start.
    """
    bends = [jnp.exp(-(((place - centre) / width) ** 4)) / radius for centre, radius, width in _CURVES]
    return sum(bends, jnp.zeros_like(place))


PART = EnvironmentPart(settings=EpisodeSettings, make=lambda settings: road(settings.horizon))
