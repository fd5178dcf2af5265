"""Many tanks at once: one step of numpy moves the level of all of them."""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from deeprok.environments import from_gymnasium


class Tanks(gymnasium.vector.VectorEnv):
    """A Gymnasium vector environment like any other; a parameter may be an array, with a number for each row."""

    single_observation_space = gymnasium.spaces.Box(0.0, 2.0, (1,), np.float64)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs=4):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.leak, self.area, self.pump = 0.15, 1.2, 0.8

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.level = self.np_random.uniform(0.9, 1.1, self.num_envs)
        return self.level[:, None].copy(), {}

    def step(self, actions):
        self.level = self.level + 0.1 * (actions * self.pump / self.area - self.leak * self.level)
        left = np.abs(self.level - 1.0) > 0.3
        return self.level[:, None].copy(), np.where(left, 0.0, 1.0), left, np.zeros_like(left), {}


TANKS = from_gymnasium(
    Tanks,
    box={"leak": (0.1, 0.2), "area": (1.0, 1.5)},
    actions=("off", "on"),
    observation_scale=[1.0],
    horizon=100,
    success_return=95.0,
)
