"""A tank that is filled by one of two pumps while it leaks: keep its level near the middle."""

import gymnasium
import numpy as np

from deeprok.environments import from_gymnasium


class Tank(gymnasium.Env):
    """A Gymnasium environment like any other; its parameters are attributes."""

    observation_space = gymnasium.spaces.Box(0.0, 2.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.leak = 0.3  # share of the level that is lost per second
        self.area = 1.0  # m²
        self.small_pump = 0.2  # m³/s
        self.large_pump = 0.5
        self.update()

    def update(self):
        """What follows from the parameters and is stored."""
        self.rates = np.array([self.small_pump, self.large_pump]) / self.area

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.level = self.np_random.uniform(0.9, 1.1)
        return np.array([self.level]), {}

    def step(self, action):
        self.level += 0.1 * (self.rates[action] - self.leak * self.level) + 0.01 * self.np_random.normal()
        left = bool(abs(self.level - 1.0) > 0.5)
        return np.array([self.level]), 0.0 if left else 1.0, left, False, {}


TANK = from_gymnasium(
    Tank,
    box={"leak": (0.1, 0.45), "area": (0.5, 2.0)},
    state=["unwrapped.level"],  # all that the next step depends on, besides Gymnasium's random numbers
    derive=lambda env: env.unwrapped.update(),
    observation_scale=[1.0],
    horizon=100,
    success_return=95.0,
)
