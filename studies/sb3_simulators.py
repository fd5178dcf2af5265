"""stable-baselines3 with domain randomisation in stateful simulators: DQN where actions are choices, TD3 where numbers.

Both have the library's defaults, but that TD3 explores: by default it adds no noise to its actions, and gets that of
the TD3 paper.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from deeprok.agents.ensemble import ActorCritic
from deeprok.agents.network import MLP, Network
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS
from deeprok.environments.host import HostEnvironment, model_of
from deeprok.runs.checkpoint import save
from deeprok.uncertainty import sample_box
from studies.sb3 import flat_weights, usual_network

Kind = Literal["dqn", "td3"]

#: Standard deviation of TD3's exploration, of which −1 and 1 are the ends of an action.
ACTION_NOISE = 0.1
_HIDDEN = (400, 300)  # of TD3's networks


def named_simulator(name: str) -> HostEnvironment:
    """The simulator of that name, with its default settings."""
    part = ENVIRONMENTS.find(name, "env")
    env = part.make(part.settings())
    if not isinstance(env, HostEnvironment):
        raise DeeprokError(f"{name} is no simulator from outside")
    return env


def network_of(env: HostEnvironment, kind: Kind) -> Network:
    """The network that the library's defaults give, of TD3 an actor and both critics.

    Inputs are divided by their typical sizes.
    """
    if kind == "dqn":
        return usual_network(env, "dqn")
    numbers, inputs = len(env.actions), tuple(1.0 / size for size in env.observation_scale)
    actor = MLP((len(inputs), *_HIDDEN, numbers), "relu", inputs)
    critic = MLP((len(inputs) + numbers, *_HIDDEN, 1), "relu", (*inputs, *(1.0,) * numbers))
    return ActorCritic(actor, critic)


def make_environment(env: HostEnvironment, seed: int, edges: float) -> Any:
    """A simulator as an environment of Gymnasium, with a fresh model of the box in each episode.

    Args:
      env: the simulator.
      seed: decides the models, the first states and the noise.
      edges: the probability that a value drawn from its range is one of the two ends.
    """
    import gymnasium

    factors = np.array([1.0 / size for size in env.observation_scale], np.float32)
    ends: Any = env.actions  # an `Interval` where actions are numbers
    space: Any = (
        gymnasium.spaces.Box(np.array(ends.low, np.float32), np.array(ends.high, np.float32))
        if env.actions.continuous
        else gymnasium.spaces.Discrete(len(env.actions))
    )
    draw = jax.jit(lambda key: sample_box(key, env.box, (), edges))

    class Uncertain(gymnasium.Env):  # type: ignore[misc]
        """The simulator, with the parameters of the episode as `model`."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, factors.shape, np.float32)
        action_space = space
        rng = np.random.default_rng(seed)
        simulator = env.make()

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            drawn = draw(jax.random.key(self.rng.integers(2**32)))
            self.model = {name: float(value) for name, value in drawn.items()}
            obs = self.simulator.reset(int(self.rng.integers(2**32)), model_of(env, self.model))
            return (factors * obs).astype(np.float32), {}

        def step(self, action: Any) -> Any:
            outcome = self.simulator.step(action)
            truncated = bool(getattr(self.simulator, "truncated", False))
            obs = (factors * outcome.obs).astype(np.float32)
            return obs, float(outcome.reward), bool(outcome.terminated), truncated, {}

    return gymnasium.wrappers.TimeLimit(Uncertain(), env.horizon)


def train(path: Path, seed: int, kind: Kind, env: str, steps: int, edges: float) -> None:
    """Trains one agent, and writes its weights and how many seconds it took.

    Args:
      path: the file; its weights are flat, as `network_of` takes them.
      seed: of everything.
      kind: the algorithm.
      env: name of the simulator.
      steps: environment steps.
      edges: as in `make_environment`.
    """
    import torch
    from stable_baselines3 import DQN, TD3
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    made = named_simulator(env)
    played = make_environment(made, seed, edges)
    began = time.monotonic()
    if kind == "dqn":
        model = DQN("MlpPolicy", played, seed=seed, device="cpu", verbose=0)
        model.learn(steps)
        modules = [*model.policy.q_net.q_net]
    else:
        size = len(made.actions)
        noise = NormalActionNoise(np.zeros(size), np.full(size, ACTION_NOISE))
        model = TD3("MlpPolicy", played, action_noise=noise, seed=seed, device="cpu", verbose=0)
        model.learn(steps)
        modules = [*model.policy.actor.mu, *model.policy.critic.qf0, *model.policy.critic.qf1]
    seconds = np.float32(time.monotonic() - began)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, {"theta": flat_weights(modules), "seconds": np.asarray(seconds)})
