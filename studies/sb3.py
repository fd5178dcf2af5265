"""What people use today: stable-baselines3's DQN, on the nominal model or with domain randomisation.

A. Raffin et al., "Stable-Baselines3: reliable reinforcement learning implementations", JMLR 2021.
Settings are those that RL Baselines3 Zoo publishes for DQN on CartPole-v1, which fit the task
better than the library's defaults do. It trains for as many episodes as the other agents, on
Gymnasium's CartPole with this library's nominal physics, rewards and horizon.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deeprok.agents.network import MLP
from deeprok.core.errors import DeeprokError
from deeprok.environments import Environment, cartpole
from deeprok.runs.checkpoint import save

_HIDDEN = (256, 256)
_STEPS = 50_000  # the zoo's budget, which its exploration fraction refers to


def network() -> MLP:
    """The zoo's network."""
    return MLP((4, *_HIDDEN, 2), "relu", (1.0,) * 4)


def check_installed() -> None:
    """Raises unless the extra is there."""
    try:
        import gymnasium
        import stable_baselines3
    except ImportError as error:
        raise DeeprokError(
            f"--full compares with stable-baselines3, but {error.name} is not installed; "
            "install it with: pip install 'deeprok[bench]'"
        ) from error
    del gymnasium, stable_baselines3


def make_environment(env: Environment, sampled: bool, seed: int) -> Any:
    """Gymnasium's CartPole with our rules; if `sampled`, with a fresh model of the box in each episode."""
    import gymnasium
    from gymnasium.envs.classic_control import CartPoleEnv

    class Uncertain(CartPoleEnv):  # type: ignore[misc]
        """Gymnasium computes what follows from masses and lengths once; here it is anew in each episode."""

        rng = np.random.default_rng(seed)

        def reset(self, **options: Any) -> Any:
            nominal, box = env.nominal, env.box if sampled else {}
            drawn = {name: self.rng.uniform(low, high) for name, (low, high) in box.items()}
            self.masscart = drawn.get("cart_mass", nominal.cart_mass)
            self.length = drawn.get("pole_length", nominal.pole_length)
            self.masspole, self.gravity, self.force_mag = nominal.pole_mass, nominal.gravity, nominal.force
            self.total_mass = self.masspole + self.masscart
            self.polemass_length = self.masspole * self.length
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            obs, _, terminated, truncated, info = super().step(action)
            return obs, 0.0 if terminated else 1.0, terminated, truncated, info

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
    layers = [layer for layer in model.q_net.q_net if isinstance(layer, torch.nn.Linear)]
    # torch keeps a layer's matrix as [outputs, inputs], `MLP` as [inputs, outputs].
    parts = [x for layer in layers for x in (layer.weight.detach().numpy().T, layer.bias.detach().numpy())]
    theta = np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, {"theta": theta})
