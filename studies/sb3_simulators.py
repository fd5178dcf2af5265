"""stable-baselines3 in stateful simulators: DQN where actions are choices, TD3 and SAC where they are numbers.

They have the library's defaults or some settings instead, but that TD3 always explores: by default it adds no noise to
its actions, and gets that of the TD3 paper.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.ensemble import ActorCritic
from deeprok.agents.network import MLP, Network
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.host import HostEnvironment, model_of
from deeprok.evaluation.policies import weights_policy
from deeprok.runs.checkpoint import load, save
from deeprok.uncertainty import sample_box
from studies.sb3 import flat_weights

Kind = Literal["dqn", "td3", "sac"]

#: Standard deviation of TD3's exploration, of which −1 and 1 are the ends of an action.
ACTION_NOISE = 0.1
#: Hidden layers of the networks that the library's defaults give.
_HIDDEN: dict[Kind, tuple[int, ...]] = {"dqn": (64, 64), "td3": (400, 300), "sac": (256, 256)}


class Settings(NamedTuple):
    """What an agent has in place of the library's defaults.

    Attributes:
      hidden: units of each hidden layer, of all its networks.
      batch_size: transitions in a mini-batch.
      learning_rate: step size of Adam, for all that is learned.
      final_rate: what the step size has become when the budget is used up, relative to the first; it falls linearly.
      discount: γ.
      warm_up: environment steps with random actions, before the first update.
      train_every: environment steps between updates.
      updates: gradient steps each time.
    """

    hidden: tuple[int, ...]
    batch_size: int
    learning_rate: float
    final_rate: float
    discount: float
    warm_up: int
    train_every: int
    updates: int

    def rate(self, left: float) -> float:
        """The step size when this share of the budget is left."""
        return self.learning_rate * (self.final_rate + (1.0 - self.final_rate) * left)

    def arguments(self) -> dict[str, Any]:
        """As the library names them."""
        return {
            "policy_kwargs": {"net_arch": [*self.hidden]},
            "batch_size": self.batch_size,
            "learning_rate": self.rate,
            "gamma": self.discount,
            "learning_starts": self.warm_up,
            "train_freq": self.train_every,
            "gradient_steps": self.updates,
        }


def named_simulator(name: str) -> HostEnvironment:
    """The simulator of that name, with its default settings."""
    part = ENVIRONMENTS.find(name, "env")
    env = part.make(part.settings())
    if not isinstance(env, HostEnvironment):
        raise DeeprokError(f"{name} is no simulator from outside")
    return env


def network_of(env: AnyEnvironment, kind: Kind, settings: Settings | None = None) -> Network:
    """The network of an agent, of TD3 and SAC an actor and both critics.

    Inputs are divided by their typical sizes. SAC's actor acts as in a test: by the mean of its actions, before the
    tanh.
    """
    hidden = settings.hidden if settings else _HIDDEN[kind]
    numbers, inputs = len(env.actions), tuple(1.0 / size for size in env.observation_scale)
    policy = MLP((len(inputs), *hidden, numbers), "relu", inputs)
    if kind == "dqn":
        return policy
    return ActorCritic(policy, MLP((len(inputs) + numbers, *hidden, 1), "relu", (*inputs, *(1.0,) * numbers)))


def make_environment(env: HostEnvironment, seed: int, edges: float | None) -> Any:
    """A simulator as an environment of Gymnasium, with a fresh model of the box in each episode or the nominal one.

    Args:
      env: the simulator.
      seed: decides the models, the first states and the noise.
      edges: the probability that a value drawn from its range is one of the two ends; None for the nominal model.
    """
    import gymnasium

    factors = np.array([1.0 / size for size in env.observation_scale], np.float32)
    ends: Any = env.actions  # an `Interval` where actions are numbers
    space: Any = (
        gymnasium.spaces.Box(np.array(ends.low, np.float32), np.array(ends.high, np.float32))
        if env.actions.continuous
        else gymnasium.spaces.Discrete(len(env.actions))
    )
    draw = jax.jit(lambda key: {} if edges is None else sample_box(key, env.box, (), edges))

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


def make_agent(kind: Kind, played: Any, seed: int, settings: Settings | None = None) -> Any:
    """An agent of the library that has learned nothing yet.

    Args:
      kind: the algorithm.
      played: the environment that it is to learn in.
      seed: of its weights, its exploration and its mini-batches.
      settings: in place of the library's defaults.
    """
    from stable_baselines3 import DQN, SAC, TD3
    from stable_baselines3.common.noise import NormalActionNoise

    given = settings.arguments() if settings else {}
    if kind == "td3":
        size = played.action_space.shape
        given["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, ACTION_NOISE))
    agents: dict[Kind, Any] = {"dqn": DQN, "td3": TD3, "sac": SAC}
    return agents[kind]("MlpPolicy", played, seed=seed, device="cpu", verbose=0, **given)


def weights_of(kind: Kind, agent: Any) -> np.ndarray:
    """The weights [n] of an agent, flat as `network_of` takes them."""
    policy = agent.policy
    if kind == "dqn":
        return flat_weights(policy.q_net.q_net)
    actor = policy.actor.mu if kind == "td3" else [*policy.actor.latent_pi, policy.actor.mu]
    return flat_weights([*actor, *policy.critic.qf0, *policy.critic.qf1])


def check_actions(agent: Any, env: HostEnvironment, network: Network, theta: np.ndarray) -> None:
    """Raises unless the weights that were brought over act as the agent itself does.

    Args:
      agent: an agent of the library, or what predicts like it.
      env: the simulator.
      network: as `network_of` gives it.
      theta: [n] the weights.
    """
    scaled = np.random.default_rng(0).normal(size=(64, len(env.observation_scale))).astype(np.float32)
    ours = weights_policy(network, env.actions, "mean")(jnp.asarray(theta)[None], env.nominal)(
        jnp.asarray(scaled * np.asarray(env.observation_scale))
    )
    theirs, _ = agent.predict(scaled, deterministic=True)
    if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
        raise DeeprokError("stable-baselines3's agent acts otherwise than the weights that were taken from it")


def train(
    path: Path, seed: int, kind: Kind, env: str, steps: int, edges: float | None, settings: Settings | None = None
) -> None:
    """Trains one agent, and writes its weights and how many seconds it took, by the clock and of the processor.

    Args:
      path: the file; its weights are flat, as `network_of` takes them.
      seed: of everything.
      kind: the algorithm.
      env: name of the simulator.
      steps: environment steps.
      edges: as in `make_environment`.
      settings: in place of the library's defaults.
    """
    import torch

    torch.set_num_threads(1)
    made = named_simulator(env)
    agent = make_agent(kind, make_environment(made, seed, edges), seed, settings)
    began, used = time.monotonic(), time.process_time()
    agent.learn(steps)
    seconds = {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - used}
    theta = weights_of(kind, agent)
    check_actions(agent, made, network_of(made, kind, settings), theta)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, {"theta": theta} | {name: np.float32(its) for name, its in seconds.items()})


def read(path: Path, network: Network, seconds: str = "seconds") -> tuple[np.ndarray, float]:
    """The weights [n] that `train` wrote, and how long it took.

    Args:
      path: the file.
      network: as `network_of` gives it.
      seconds: by the clock, or as `processor_seconds` those of the processor.
    """
    theta: Any
    scalar: Any
    theta, scalar = (jax.ShapeDtypeStruct(shape, np.dtype("float32")) for shape in ((network.num_weights,), ()))
    return np.asarray(load(path, "theta", theta)), float(load(path, seconds, scalar))
