"""Gymnasium's Lunar Lander: its steps, its parameters, its copies, and a run in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from test_gymnasium import made

import deeprok
from deeprok.environments import Simulator
from deeprok.runs.settings import make_config

NAME = "LunarLander-v3"


def simulator(seed: int, **model: float) -> Simulator:
    """A simulation at the beginning of an episode."""
    found = made(NAME).make()
    found.reset(seed, model)
    return found


@pytest.mark.parametrize("seed", [7, 8])
def test_at_nominal_parameters_it_is_gymnasiums(seed: int) -> None:
    """To the end of an episode of random actions, on the ground."""
    env, theirs, rng = made(NAME), gymnasium.make(NAME), np.random.default_rng(seed)
    assert theirs.spec
    assert (env.horizon, env.success_return) == (theirs.spec.max_episode_steps, theirs.spec.reward_threshold)
    ours: Any = env.make()
    np.testing.assert_array_equal(ours.reset(seed, {}), theirs.reset(seed=seed)[0])
    assert ours._nominal == vars(env.nominal)
    terminated, steps = False, 0
    while not terminated:
        action, steps = int(rng.integers(4)), steps + 1
        obs, reward, terminated, _, _ = theirs.step(action)
        found = ours.step(action)
        np.testing.assert_array_equal(found.obs, obs)
        assert (found.reward, found.terminated) == (reward, terminated)
    assert steps > 40


def test_gravity_and_density_do_what_their_names_say() -> None:
    """In free fall the velocity grows by g Δt in a step; an engine's thrust accelerates by its force over the mass."""
    unit = (400 / 30 / 2) / 50  # of a vertical velocity, in which Gymnasium has it, with 50 steps a second

    def change(action: int, **model: float) -> float:
        lander = simulator(3, **model)
        before, after = (lander.step(action).obs[3] for _ in range(2))
        return float(after - before) / unit

    for gravity in (6.0, 12.0):
        assert change(0, gravity=gravity) == pytest.approx(-gravity / 50, rel=0.01)
    lifts = [change(2, density=density) - change(0, density=density) for density in (3.0, 8.0)]
    assert lifts[0] > 1.5 * lifts[1] > 0
    masses = [simulator(3, density=density)._env.unwrapped.lander.mass for density in (4.0, 8.0)]  # type: ignore[attr-defined]
    assert masses[1] == pytest.approx(2 * masses[0])


def test_models_are_copies_from_a_common_reset() -> None:
    models = {"gravity": np.array([10.0, 6.0, 12.0]), "density": np.array([5.0, 3.0, 8.0])}
    lander: Any = simulator(5)
    alone = [simulator(5, gravity=g, density=d) for g, d in zip(*models.values(), strict=True)]
    assert lander.read() is None
    rng, steps = np.random.default_rng(0), 0
    while not lander.truncated:
        action, steps = int(rng.integers(4)), steps + 1
        found, own = lander.outcomes(action, models), [one.step(action) for one in alone]
        taken = lander.step(action)
        for column, name in zip(found, found._fields, strict=True):
            np.testing.assert_array_equal(column, [getattr(one, name) for one in own])
            np.testing.assert_array_equal(column[0], getattr(taken, name))  # the first is the episode's own model
        assert lander.truncated == found.terminated.any()  # the first that has landed ends the episode
    assert steps > 40
    assert len(np.unique(found.obs, axis=0)) == 3


def test_it_is_trained_and_evaluated(tmp_path: Path) -> None:
    small = dict(hidden=(4,), batch_size=8, warm_up=20, trial_models=1, trial_episodes=1, settle=False, train_every=1)
    config = make_config("rtd_dqn", "tuned", env=NAME, horizon=60, steps=150, chunk_steps=50, models=2, **small)
    run = deeprok.train(config, tmp_path / "run", jobs=1)
    assert len(run.metrics.returns) >= 2
    result = deeprok.evaluate(run, grid={"gravity": [6.0, 12.0]}, episodes=2)
    assert np.isfinite(result.mean_return).all()
    assert result.mean_return[0] != result.mean_return[1]
