"""Cart-Pole with gravity and force unknown, starts far from upright, and episodes of 500 steps."""

from __future__ import annotations

from dataclasses import dataclass

from deeprok.core.fields import Count
from deeprok.environments.base import Environment, EnvironmentPart
from deeprok.environments.cartpole import CartPole, CartPoleSettings, Integrator, cartpole


def hard_cartpole(integrator: Integrator = "euler", failing_reward: float = 0.0, horizon: int = 500) -> Environment:
    """Balance a pole by pushing its cart left (0) or right (1), from up to 0.15 rad on.

    Where gravity is strong and the push weak, some starts are lost whatever is done. An episode succeeds if the pole
    stays up for more than 95 % of the steps.

    Args:
      integrator: `euler` or `semi-implicit`, as in `cartpole`.
      failing_reward: reward of the step in which the pole falls or the cart leaves.
      horizon: steps after which an episode is cut off.
    """
    return cartpole(integrator, failing_reward, horizon)._replace(
        name="hard_cartpole",
        nominal=CartPole(initial_range=0.15),
        box={"gravity": (5.0, 20.0), "force": (4.0, 12.0)},
        success_return=0.95 * horizon,
    )


@dataclass(frozen=True)
class HardCartPoleSettings(CartPoleSettings):
    """Settings of the harder Cart-Pole, besides its parameters."""

    horizon: Count = 500
    """Steps after which an episode is truncated."""


PART = EnvironmentPart(
    settings=HardCartPoleSettings,
    make=lambda settings: hard_cartpole(settings.integrator, settings.failing_reward, settings.horizon),
)
