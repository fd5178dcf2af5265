"""The outcomes of M MuJoCo models cost less than M + 1 single steps."""

from __future__ import annotations

from functools import partial

from harness import Measure, Progress, Result, clock, race

STEPS = 200
MODELS = (5, 10)
ENVIRONMENTS = ("InvertedPendulum-v5", "Hopper-v5", "HalfCheetah-v5", "Reacher-v5")


def stepping(name: str, models: int) -> Measure:
    """Single steps of random episodes (with 0 models), or the outcomes of M models in each of their states."""
    import numpy as np

    from deeprok.environments.mujoco_tasks import MUJOCO

    env = MUJOCO[name]()
    simulator, random = env.make(), np.random.default_rng(0)
    actions = random.uniform(env.actions.low, env.actions.high, (STEPS, len(env.actions)))
    drawn = {parameter: random.uniform(low, high, models) for parameter, (low, high) in env.box.items()}

    def measure() -> float:
        spent = 0.0
        simulator.reset(0, {})
        if models:
            simulator.outcomes(actions[0], drawn)  # which sets the parameters, once an episode
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


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    counts = (0, *MODELS)
    contenders = {
        f"{name}: {f'{models} models' if models else 'a step'}": partial(stepping, name, models)
        for name in ENVIRONMENTS
        for models in counts
    }
    result = Result("Outcomes of MuJoCo models on one thread", race(contenders, repeats, progress))
    for name in ENVIRONMENTS:
        for models in MODELS:
            slow, fast = f"{name}: {models} models", f"{name}: a step"
            result.compare(f"{name}: the outcomes of {models} models over a step", slow, fast, "<=", models + 1)
    return result
