"""A car on a road with curves, on tyres whose friction is not known.

The faster the car, the sooner it arrives, and the wider the margin that it needs where the road is slippery. Friction
matters twice: it limits the speed in a curve, and it is what the brakes slow the car down by.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Axis, Environment, EnvironmentPart, EpisodeSettings, Outcome, StateGrid, quantity
from deeprok.environments.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE,
    RED,
    Circle,
    Drawing,
    Line,
    Point,
    Polygon,
    Text,
    rectangle,
    turned,
)
from deeprok.environments.spaces import Choices

_LENGTH = 200.0  # of the road, in m
_TOP_SPEED = 40.0  # m/s
_STARTS = (5.0, 15.0)  # speeds, in m/s
_CURVES = ((50.0, 25.0, 12.0), (110.0, 12.0, 10.0), (165.0, 40.0, 12.0))  # centre, radius and width, in m
_AHEAD = (0.0, 10.0, 20.0, 40.0)  # where the driver sees the curvature, in m from the car
_STEP_COST = 0.01

_TURNS = (-1.0, -1.0, 1.0)  # how the curves are drawn: −1 to the right, 1 to the left
_SIDES: tuple[Literal["left", "right"], ...] = ("right", "left", "right")  # where words beside them end
_FIRST_HEADING = 1.25  # rad


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
        del key  # the dynamics are deterministic
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
        draw=draw,
    )


def curvature(place: jax.Array) -> jax.Array:
    """κ(s) = Σ exp(−((s − c) / w)⁴) / r over the curves, in 1/m.

    Args:
      place: s [...], in m from the start.
    """
    return sum(_bends(place, jnp.exp), jnp.zeros_like(place))


def _bends(place: Any, exp: Any) -> list[Any]:
    """The curvature of each curve by itself."""
    return [exp(-(((place - centre) / width) ** 4)) / radius for centre, radius, width in _CURVES]


class _Plan(NamedTuple):
    """The road from above."""

    places: np.ndarray  # [N] in m from the start
    x: np.ndarray  # [N]
    y: np.ndarray  # [N]
    heading: np.ndarray  # [N] in rad

    def at(self, place: float, beside: float = 0.0) -> tuple[Point, Point]:
        """A point of the road, or so many m to the left of it, and the direction there."""
        x, y, heading = (float(np.interp(place, self.places, each)) for each in (self.x, self.y, self.heading))
        direction = math.cos(heading), math.sin(heading)
        return (x - beside * direction[1], y + beside * direction[0]), direction


@functools.cache
def _plan() -> _Plan:
    """Two curves to the right and one to the left, which no equation asks for."""
    places = np.linspace(0.0, _LENGTH + 8.0, 833)
    step = places[1]
    turns = np.array(_TURNS) @ np.array(_bends(places, np.exp)) * step
    heading = np.concatenate([[0.0], np.cumsum(turns[:-1])]) + _FIRST_HEADING
    x, y = (np.concatenate([[0.0], np.cumsum(f(heading[:-1]) * step)]) for f in (np.cos, np.sin))
    return _Plan(places, x, y, heading)


def draw(states: Sequence[Any], params: Road) -> Drawing:
    """The road from above with the car, larger than it is, a dot for each step, and the fastest that a curve allows."""
    plan, grip = _plan(), float(params.friction) * float(params.gravity)
    place, speed = (float(number) for number in states[-1])
    skids = not speed**2 * sum(_bends(place, math.exp)) <= grip
    bend = int(np.argmin([abs(place - centre) for centre, _, _ in _CURVES]))
    outwards = -_TURNS[bend]
    at, (cos, sin) = plan.at(place, 8.0 * outwards if skids else 0.0)
    tilt = 0.7 * outwards if skids else 0.0
    direction = cos * math.cos(tilt) - sin * math.sin(tilt), sin * math.cos(tilt) + cos * math.sin(tilt)
    line = list(zip(plan.x.tolist(), plan.y.tolist(), strict=True))
    before = [float(state[0]) for state in states[:-1]]
    way = zip(*(np.interp(before, plan.places, each).tolist() for each in (plan.x, plan.y)), strict=True)
    goal, across = plan.at(_LENGTH)
    limits = [
        Text(plan.at(centre, -10.0 * turn)[0], f"≤ {math.sqrt(grip * radius):.1f} m/s", GREY, side)
        for (centre, radius, _), turn, side in zip(_CURVES, _TURNS, _SIDES, strict=True)
    ]
    left, bottom, right, top = plan.x.min() - 30.0, plan.y.min() - 6.0, plan.x.max() + 6.0, plan.y.max() + 8.0
    return Drawing(
        shapes=[
            Line(line[::16], PALE, 6.0),
            Polygon(turned(rectangle(-1.0, -4.5, 1.0, 4.5), across, goal), GREEN),
            *(Circle((x, y), 0.6, BLUE) for x, y in way),
            Polygon(turned(rectangle(-3.6, -1.8, 3.6, 1.8), direction, at), RED if skids else INK),
            Polygon(turned(rectangle(0.2, -1.3, 1.8, 1.3), direction, at), PALE),
            *limits,
            Text((0.5 * (left + right), bottom + 4.0), f"{speed:.1f} m/s", INK, size=6.0),
        ],
        view=(left, bottom, right, top),
    )


PART = EnvironmentPart(settings=EpisodeSettings, make=lambda settings: road(settings.horizon))
