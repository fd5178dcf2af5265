"""Double-DQN with one update per step, against stable-baselines3's DQN; and seeds that share a core."""

from __future__ import annotations

from functools import partial

from contenders import training
from harness import Measure, Prepare, Progress, Result, clock, race

REPLAY = 100_000
SB3_STEPS = 1000


def stable_baselines3() -> Measure:
    """stable-baselines3's DQN at the network, batch and update frequency of deeprok's."""
    import gymnasium
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy",
        gymnasium.make("CartPole-v1"),
        policy_kwargs={"net_arch": [20, 20], "activation_fn": torch.nn.Tanh},
        learning_rate=3e-4,
        buffer_size=REPLAY,
        learning_starts=100,
        batch_size=10,
        gamma=0.9,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=2000,
        exploration_initial_eps=0.1,
        exploration_final_eps=0.1,
        seed=0,
        device="cpu",
        verbose=0,
    )
    model.learn(300)  # past the steps without learning

    def measure() -> float:
        start = clock()
        model.learn(SB3_STEPS, reset_num_timesteps=False)
        return (clock() - start) / SB3_STEPS

    return measure


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    ours = partial(training, "ddqn", hidden=(20, 20), batch_size=10, train_every=1, replay_size=REPLAY)
    contenders: dict[str, Prepare] = {
        "stable-baselines3 DQN": stable_baselines3,
        "deeprok ddqn, 1 seed": partial(ours, seeds=1),
        "deeprok ddqn, 8 seeds": partial(ours, seeds=8),
    }
    sb3, one, eight = contenders
    result = Result("Double-DQN, one update per step", race(contenders, repeats, progress))
    result.compare("1 seed, times as fast as stable-baselines3", sb3, one, ">=", 50)
    result.compare("8 seeds vmapped, times the throughput of 1", one, eight, ">=", 1.5)
    return result
