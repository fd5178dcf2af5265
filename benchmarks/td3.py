"""TD3 with one update per step, against stable-baselines3's TD3."""

from __future__ import annotations

from functools import partial

from contenders import training
from harness import Measure, Prepare, Progress, Result, clock, race

REPLAY = 100_000
WARM_UP = 100
SB3_STEPS = 300


def stable_baselines3() -> Measure:
    """stable-baselines3's TD3 at the networks, batch and update frequency of deeprok's."""
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3 import TD3
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    model = TD3(
        "MlpPolicy",
        gymnasium.make("Pendulum-v1"),
        policy_kwargs={"net_arch": [64, 64]},
        learning_rate=1e-3,
        buffer_size=REPLAY,
        learning_starts=WARM_UP,
        batch_size=64,
        tau=0.005,
        gamma=0.99,
        train_freq=1,
        gradient_steps=1,
        policy_delay=2,
        action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)),
        seed=0,
        device="cpu",
        verbose=0,
    )
    model.learn(2 * WARM_UP)  # past the steps without learning

    def measure() -> float:
        start = clock()
        model.learn(SB3_STEPS, reset_num_timesteps=False)
        return (clock() - start) / SB3_STEPS

    return measure


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    ours = partial(training, chunks=1, env="pendulum", hidden=(64, 64), batch_size=64, train_every=1, warm_up=WARM_UP)
    ours = partial(ours, replay_size=REPLAY, policy_delay=2, target_period=2, activation="relu")
    contenders: dict[str, Prepare] = {
        "stable-baselines3 TD3": stable_baselines3,
        "deeprok td3, 1 seed": partial(ours, "td3"),
        "deeprok rtd_td3, 10 models, 1 seed": partial(ours, "rtd_td3", models=10),
    }
    sb3, plain, robust = contenders
    result = Result("TD3, one update per step", race(contenders, repeats, progress))
    result.compare("1 seed, times as fast as stable-baselines3", sb3, plain, ">=", 20)
    result.compare("10 models, times as fast as stable-baselines3 with none", sb3, robust)
    return result
