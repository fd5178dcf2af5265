"""A tank that leaks, with a pump that is off or on: keep its level near 1 m."""

from typing import Any

import gymnasium
import numpy as np

from deeprok.environments import from_gymnasium, pytree_dataclass, quantity


class Tank(gymnasium.Env):
    """A Gymnasium environment like any other; its parameters are attributes."""

    observation_space = gymnasium.spaces.Box(0.0, 2.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.leak = 0.15  # share of the level that is lost per second
        self.area = 1.2  # m²
        self.pump = 0.8  # m³/s
        self.update()

    def update(self):
        """What follows from the parameters and is stored."""
        self.rates = np.array([0.0, self.pump]) / self.area

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.level = self.np_random.uniform(0.9, 1.1)
        return np.array([self.level]), {}

    def step(self, action):
        self.level += 0.1 * (self.rates[action] - self.leak * self.level) + 0.01 * self.np_random.normal()
        left = bool(abs(self.level - 1.0) > 0.3)
        return np.array([self.level]), 0.0 if left else 1.0, left, False, {}


@pytree_dataclass
class Parameters:
    """Nominal value, unit and meaning of each parameter."""

    leak: Any = quantity(0.15, "1/s", "share of the level that is lost per second")
    area: Any = quantity(1.2, "m²", "area of the tank")
    pump: Any = quantity(0.8, "m³/s", "what the pump delivers")


TANK = from_gymnasium(
    Tank,
    box={"leak": (0.1, 0.2), "area": (1.0, 1.5)},
    state=["unwrapped.level"],  # all that the next step depends on, besides Gymnasium's random numbers
    derive=lambda env: env.unwrapped.update(),
    nominal=Parameters(),
    actions=("off", "on"),
    observation_scale=[1.0],
    horizon=100,
    success_return=95.0,
)
