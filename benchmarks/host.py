"""Training in a stateful simulator against stable-baselines3's DQN, outcomes of several models, and leaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ddqn import REPLAY, stable_baselines3
from harness import Measure, Prepare, Progress, Ratio, Result, clock, race

STEPS = 2000
MODELS = (5, 10)
#: Steps in which resident memory must not grow, after some that warm up.
LONG, WARM = 1_000_000, 100_000


def learning(algorithm: str, **changes: Any) -> Measure:
    """The time of a step of training on Gymnasium's Cart-Pole."""
    advance, steps = _trainer(algorithm, env="CartPole-v1", hidden=(20, 20), replay_size=REPLAY, **changes)
    advance()  # compiles, and in part of it nothing is learned yet

    def measure() -> float:
        start = clock()
        advance()
        return (clock() - start) / steps

    return measure


def _trainer(algorithm: str, **changes: Any) -> tuple[Callable[[], None], int]:
    """What trains for a chunk, and its number of steps."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from deeprok.runs.settings import make_config
    from deeprok.training.host import make_program

    sizes = dict(episodes=10_000_000, snapshot_every=0, batch_size=10, train_every=1, chunk_steps=STEPS)
    program = make_program(make_config(algorithm, "tuned", **{**sizes, **changes}))
    states = jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf)[None]), program.init(jax.random.key(0)))
    index = 0

    def advance() -> None:
        nonlocal states, index
        states, _ = program.advance(states, index)
        jax.block_until_ready(states)
        index += 1

    return advance, STEPS


def stepping(models: int) -> Measure:
    """Single steps of random episodes (with 0 models), or the outcomes of M models in each of their states."""
    import numpy as np

    from deeprok.environments import ENVIRONMENTS

    part = ENVIRONMENTS["CartPole-v1"]
    env: Any = part.make(part.settings())
    simulator, random = env.make(), np.random.default_rng(0)
    actions = random.integers(2, size=STEPS)
    drawn = {parameter: random.uniform(low, high, models) for parameter, (low, high) in env.box.items()}

    def measure() -> float:
        spent = 0.0
        simulator.reset(0, {})
        for action in actions:
            start = clock()
            if models:
                simulator.outcomes(action, drawn)
                spent += clock() - start
            moved = simulator.step(action)
            if not models:
                spent += clock() - start
            if moved.terminated:
                simulator.reset(0, {})
        return spent / STEPS

    measure()
    return measure


def growth() -> Measure:
    """Megabytes of resident memory that training adds, which is no time."""
    changes: dict[str, Any] = dict(env="CartPole-v1", hidden=(4,), replay_size=1000, models=2, train_every=4)
    advance, steps = _trainer("rtd_dqn", **changes)

    def measure() -> float:
        for _ in range(WARM // steps):
            advance()
        before = _resident()
        for _ in range(LONG // steps):
            advance()
        return (_resident() - before) / 1e6

    return measure


def _resident() -> int:
    """Bytes of this process that are in memory, on Linux."""
    import os

    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    contenders: dict[str, Prepare] = {
        "stable-baselines3 DQN": stable_baselines3,
        "deeprok ddqn in CartPole-v1": partial(learning, "ddqn"),
        "deeprok rtd_dqn in CartPole-v1, 5 models": partial(learning, "rtd_dqn", models=5),
    }
    sb3, plain, robust = contenders
    counts = {f"CartPole-v1: {f'{models} models' if models else 'a step'}": models for models in (0, *MODELS)}
    contenders |= {name: partial(stepping, models) for name, models in counts.items()}
    result = Result("Stateful simulators", race(contenders, repeats, progress))
    result.compare("ddqn: times as fast as stable-baselines3", sb3, plain, ">=", 5)
    result.compare("rtd_dqn, 5 models: times as fast as stable-baselines3 with none", sb3, robust, ">=", 2)
    single, *several = counts
    for name, models in zip(several, MODELS, strict=True):
        result.compare(f"the outcomes of {models} models over a step", name, single, "<=", 2 * (models + 1))
    if Path("/proc/self/statm").exists():
        grown = race({"growth": growth}, 1, progress)["growth"][0]
        result.ratios.append(Ratio(f"resident memory that {LONG:,} steps add, in MB", grown, "<=", 5))
    return result
