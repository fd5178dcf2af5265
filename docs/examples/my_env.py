"""A block on top of a smooth hill: push it left or right so that it does not slide down."""

from typing import Any

import jax
import jax.numpy as jnp

from deeprok.environments import Axis, Choices, Environment, Outcome, StateGrid, pytree_dataclass, quantity
from deeprok.environments.drawing import Circle, Drawing, Line


@pytree_dataclass
class Slider:
    """The parameters: nominal value, unit and meaning of each."""

    mass: Any = quantity(1.0, "kg", "mass of the block")
    friction: Any = quantity(0.5, "N·s/m", "friction of the rail")
    slope: Any = quantity(2.0, "N/m", "how steep the hill becomes with the distance from its top")


def reset(key, params):
    """A state near the top; the agent sees all of it."""
    state = jax.random.uniform(key, (2,), minval=-0.1, maxval=0.1)  # position, velocity
    return state, state


def step(key, state, action, params):
    """One step of 0.05 s; action 0 pushes to the left, 1 to the right."""
    position, velocity = state
    push = jnp.where(action == 1, 5.0, -5.0)
    force = push + params.slope * position - params.friction * velocity
    velocity = velocity + 0.05 * force / params.mass
    position = position + 0.05 * velocity
    state = jnp.stack([position, velocity])
    fell = jnp.abs(position) > 1.0
    return Outcome(state=state, obs=state, reward=jnp.where(fell, 0.0, 1.0), terminated=fell)


def draw(states, params):
    """The block on its hill, after the last of these states."""
    hill = [(x / 10, -(x**2) / 200) for x in range(-10, 11)]
    position = float(states[-1][0])
    block = Circle((position, 0.08 - position**2 / 2), 0.08, "#0072B2")
    return Drawing([Line(hill), block], view=(-1.2, -0.6, 1.2, 0.4))


SLIDER = Environment(
    name="slider",
    reset=reset,
    step=step,
    nominal=Slider(),
    box={"mass": (0.3, 3.0), "friction": (0.0001, 2.0)},
    observation_scale=(0.5, 1.0),  # typical sizes; networks divide by them
    actions=Choices(("left", "right")),
    horizon=100,
    success_return=95.0,
    grid=StateGrid((Axis("position", -1.0, 1.0, 81), Axis("velocity", -4.0, 4.0, 81))),  # for `deeprok screen`
    draw=draw,  # for `deeprok render`
)
