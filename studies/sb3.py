"""What people use today: stable-baselines3's DQN and PPO, on the nominal model or with domain randomisation.

A. Raffin et al., "Stable-Baselines3: reliable reinforcement learning implementations", JMLR 2021.

On Cart-Pole its DQN has the settings that RL Baselines3 Zoo publishes for CartPole-v1, which fit the task better than
the library's defaults do, and trains for as many episodes as the other agents. On any environment both have the
library's defaults and a number of steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.network import MLP
from deeprok.core.errors import DeeprokError, extra_missing
from deeprok.environments import Environment, cartpole, with_model
from deeprok.environments.base import AnyEnvironment
from deeprok.evaluation.screening.screen import named_environment
from deeprok.runs.checkpoint import save
from deeprok.uncertainty import sample_box

#: Deep Q-learning, or proximal policy optimisation.
Kind = Literal["dqn", "ppo"]

_HIDDEN = (256, 256)
_STEPS = 50_000  # the zoo's budget, which its exploration fraction refers to


def network() -> MLP:
    """The zoo's network."""
    return MLP((4, *_HIDDEN, 2), "relu", (1.0,) * 4)


def usual_network(env: AnyEnvironment, kind: Kind) -> MLP:
    """The network that the library's defaults give; inputs are divided by their typical sizes."""
    inputs = tuple(1.0 / size for size in env.observation_scale)
    return MLP((len(inputs), 64, 64, len(env.actions)), "relu" if kind == "dqn" else "tanh", inputs)


def is_installed() -> bool:
    """Whether the extra is there."""
    try:
        check_installed()
    except DeeprokError:
        return False
    return True


def check_installed() -> None:
    """Raises unless the extra is there."""
    try:
        import gymnasium
        import stable_baselines3
    except ImportError as error:
        raise extra_missing(
            f"--full compares with stable-baselines3, but {error.name} is not installed: it needs", "bench"
        ) from error
    del gymnasium, stable_baselines3


def make_environment(
    env: Environment, sampled: bool, seed: int, edges: float = 0.0, scale: tuple[float, ...] | None = None
) -> Any:
    """An environment of this library as one of Gymnasium.

    Args:
      env: the environment, whose actions are choices.
      sampled: with a fresh model of the box in each episode, instead of the nominal one.
      seed: decides the models, the initial states and the noise.
      edges: the probability that a value drawn from its range is one of the two ends.
      scale: what each observation is multiplied by; None for nothing.
    """
    import gymnasium

    factors = np.asarray(scale if scale else (1.0,) * len(env.observation_scale), np.float32)

    @jax.jit
    def begin(key: jax.Array) -> tuple[Any, Any, jax.Array]:
        model_key, reset_key = jax.random.split(key)
        params = with_model(env.nominal, sample_box(model_key, env.box, (), edges) if sampled else {})
        return (params, *env.reset(reset_key, params))

    @jax.jit
    def advance(key: jax.Array, t: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        return env.step(jax.random.fold_in(key, t), state, action, params)

    class Uncertain(gymnasium.Env):  # type: ignore[misc]
        """The environment, with the parameters of the episode as `params`."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, factors.shape, np.float32)
        action_space = gymnasium.spaces.Discrete(len(env.actions))
        rng = np.random.default_rng(seed)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.key, self.t = jax.random.key(self.rng.integers(2**32)), 0
            self.params, self.state, obs = begin(self.key)
            return factors * np.asarray(obs), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            outcome = advance(self.key, jnp.int32(self.t), self.state, jnp.int32(action), self.params)
            self.state = outcome.state
            return factors * np.asarray(outcome.obs), float(outcome.reward), bool(outcome.terminated), False, {}

    return gymnasium.wrappers.TimeLimit(Uncertain(), env.horizon)


def train(path: Path, sampled: bool, seed: int, episodes: int = 700) -> None:
    """Trains one agent and writes its weights, flat as `network` takes them, to a file."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes

    torch.set_num_threads(1)
    env = cartpole()
    model = DQN(
        "MlpPolicy",
        make_environment(env, sampled, seed),
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16 * _STEPS / (episodes * env.horizon),
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": list(_HIDDEN)},
        seed=seed,
        device="cpu",
        verbose=0,
    )
    model.learn(episodes * env.horizon, StopTrainingOnMaxEpisodes(episodes))
    _save(path, model.q_net.q_net)


def train_usual(path: Path, seed: int, kind: Kind, env: str, steps: int, edges: float) -> None:
    """Trains one agent with the library's defaults and domain randomisation, and writes its weights.

    Args:
      path: the file; its weights are flat, as `usual_network` takes them.
      seed: of everything.
      kind: the algorithm.
      env: name of the environment.
      steps: environment steps.
      edges: as in `make_environment`.
    """
    import torch
    from stable_baselines3 import DQN, PPO

    torch.set_num_threads(1)
    made = named_environment(env)
    played = make_environment(made, True, seed, edges, usual_network(made, kind).input_scale)
    model = {"dqn": DQN, "ppo": PPO}[kind]("MlpPolicy", played, seed=seed, device="cpu", verbose=0)
    model.learn(steps)
    policy = model.policy
    _save(path, policy.q_net.q_net if kind == "dqn" else [*policy.mlp_extractor.policy_net, policy.action_net])


def _save(path: Path, modules: Iterable[Any]) -> None:
    """Writes the weights of some modules' linear layers as `MLP` has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, {"theta": flat_weights(modules)})


def flat_weights(modules: Iterable[Any]) -> np.ndarray:
    """The weights [n] of some modules' linear layers, one after the other, as `MLP` has them."""
    import torch

    layers = [module for module in modules if isinstance(module, torch.nn.Linear)]
    # torch keeps a layer's matrix as [outputs, inputs], `MLP` as [inputs, outputs].
    parts = [x for layer in layers for x in (layer.weight.detach().numpy().T, layer.bias.detach().numpy())]
    return np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)
