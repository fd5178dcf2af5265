"""Cart-Pole with every physical parameter an argument.

A. G. Barto, R. S. Sutton and C. W. Anderson, "Neuronlike adaptive elements that can solve
difficult learning control problems", IEEE Transactions on Systems, Man, and Cybernetics, 1983.
The numbers are those of Gymnasium's CartPole, but for the cart, which weighs 1.5 kg as in the
Deep-RoK paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from deeprok.core.fields import Finite
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Environment, EnvironmentPart, EpisodeSettings, Outcome, quantity
from deeprok.environments.drawing import BLUE, GREY, INK, PALE, Circle, Drawing, Line, Polygon, rectangle
from deeprok.environments.spaces import Choices

Integrator = Literal["euler", "semi-implicit"]

_POSITION_LIMIT = 2.4
_ANGLE_LIMIT = 12 * 2 * math.pi / 360


@pytree_dataclass
class CartPole:
    """The parameters of a cart with a pole on it."""

    cart_mass: Any = quantity(1.5, "kg", "mass of the cart")
    pole_length: Any = quantity(0.5, "m", "from the pivot to the pole's centre, as Gymnasium counts it")
    pole_mass: Any = quantity(0.1, "kg", "mass of the pole")
    gravity: Any = quantity(9.8, "m/s²", "gravitational acceleration")
    force: Any = quantity(10.0, "N", "push of either action")
    time_step: Any = quantity(0.02, "s", "time between two decisions")
    initial_range: Any = quantity(0.05, "", "each coordinate starts uniformly within ± this")


def cartpole(integrator: Integrator = "euler", failing_reward: float = 0.0, horizon: int = 200) -> Environment:
    """Balance a pole by pushing its cart left (0) or right (1).

    Args:
      integrator: `euler` or `semi-implicit`, Gymnasium's two.
      failing_reward: reward of the step in which the pole falls or the cart leaves; the paper's
        is 0, Gymnasium's 1. Every other step earns 1.
      horizon: steps after which an episode is cut off.
    """

    def reset(key: jax.Array, params: CartPole) -> tuple[jax.Array, jax.Array]:
        state = jax.random.uniform(key, (4,), minval=-1.0) * params.initial_range
        return state, state

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: CartPole) -> Outcome:
        del key  # the dynamics are deterministic
        x, x_dot, theta, theta_dot = state
        force = jnp.where(action == 1, params.force, -params.force).astype(state.dtype)
        total_mass = params.cart_mass + params.pole_mass
        moment = params.pole_mass * params.pole_length
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        push = (force + moment * theta_dot**2 * sin) / total_mass
        theta_acc = (params.gravity * sin - cos * push) / (
            params.pole_length * (4.0 / 3.0 - params.pole_mass * cos**2 / total_mass)
        )
        x_acc = push - moment * theta_acc * cos / total_mass
        new_x_dot = x_dot + params.time_step * x_acc
        new_theta_dot = theta_dot + params.time_step * theta_acc
        # Explicit Euler moves with the velocity before the push, semi-implicit with the one after.
        moved = (x_dot, theta_dot) if integrator == "euler" else (new_x_dot, new_theta_dot)
        new_x = x + params.time_step * moved[0]
        new_theta = theta + params.time_step * moved[1]
        new_state = jnp.stack([new_x, new_x_dot, new_theta, new_theta_dot])
        # Written as "not within", so that a state that is not a number counts as a failure.
        terminated = ~((jnp.abs(new_x) <= _POSITION_LIMIT) & (jnp.abs(new_theta) <= _ANGLE_LIMIT))
        reward = jnp.where(terminated, failing_reward, 1.0).astype(state.dtype)
        return Outcome(state=new_state, obs=new_state, reward=reward, terminated=terminated)

    return Environment(
        name="cartpole",
        reset=reset,
        step=step,
        nominal=CartPole(),
        box={"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)},
        observation_scale=(2.4, 2.0, 0.2, 2.0),
        actions=Choices(("left", "right")),
        horizon=horizon,
        success_return=0.975 * horizon,  # 195 of 200
        draw=draw,
    )


def draw(states: Sequence[Any], params: CartPole) -> Drawing:
    """The cart between the ends of its track, and the pole, which falls where it leaves the grey sector."""
    x, _, theta, _ = (float(number) for number in states[-1])
    length = 2 * float(params.pole_length)  # twice what is from the pivot to its centre
    axle = 0.15
    fan = [_ANGLE_LIMIT * share for share in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    sector = [(x, axle), *((x + length * math.sin(angle), axle + length * math.cos(angle)) for angle in fan)]
    posts = [Line([(end, 0.0), (end, 0.25)], GREY) for end in (-_POSITION_LIMIT, _POSITION_LIMIT)]
    return Drawing(
        shapes=[
            Polygon(sector, PALE),
            Line([(-_POSITION_LIMIT, 0.0), (_POSITION_LIMIT, 0.0)], GREY),
            *posts,
            Polygon(rectangle(x - 0.3, 0.0, x + 0.3, 0.3), INK),
            Line([(x, axle), (x + length * math.sin(theta), axle + length * math.cos(theta))], BLUE, 1.8),
            Circle((x, axle), 0.05, PALE),
        ],
        view=(-_POSITION_LIMIT - 0.4, -0.2, _POSITION_LIMIT + 0.4, axle + max(length, 1.0) + 0.2),
    )


@dataclass(frozen=True)
class CartPoleSettings(EpisodeSettings):
    """Settings of Cart-Pole, besides its parameters."""

    integrator: Integrator = "euler"
    """Integration scheme of Cart-Pole, as in Gymnasium."""
    failing_reward: Finite = 0.0
    """Reward of the failing step: 0 in the paper, 1 in Gymnasium."""


_SCALED = {"input_scale": (0.5, 0.5, 5.0, 0.5)}

PART = EnvironmentPart(
    settings=CartPoleSettings,
    make=lambda settings: cartpole(settings.integrator, settings.failing_reward, settings.horizon),
    presets={
        ("tuned", "q_learning"): _SCALED,
        ("tuned", "policy_gradient"): _SCALED,
        ("paper", "policy_gradient"): _SCALED,
    },
)
