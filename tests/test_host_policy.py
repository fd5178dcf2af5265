"""Policy gradients in stateful simulators: against the scan, resuming, learning, and simulations that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_host import advanced, stopped_once
from test_host_disturbances import known  # noqa: F401
from test_jobs import contents

import deeprok
from deeprok.cli.main import main
from deeprok.environments.host import HostEnvironment
from deeprok.environments.host_rollout import Start, make_host_rollout
from deeprok.runs.settings import Config, make_config
from deeprok.training import host, scan
from deeprok.training.jobs import train
from deeprok.training.loop import progress_of

pytestmark = pytest.mark.usefixtures("compiled_once")

SMALL: dict[str, Any] = dict(
    trajectories=8,
    minibatches=2,
    epochs=2,
    episodes=32,
    snapshot_every=8,
    hidden=(8,),
    trial_models=2,
    trial_episodes=1,
)


def settings(algorithm: str, env: str, **changes: Any) -> Config:
    return make_config(algorithm, **{**SMALL, "env": env, **changes})


@pytest.mark.parametrize(
    ("algorithm", "env", "changes"),
    [
        ("epopt", "CARTPOLE", {"level_iterations": 1}),
        ("pg", "PENDULUM", {"memory": 1}),
        pytest.param("robust_pg", "CARTPOLE", {"acting": "member", "models": 4}, marks=pytest.mark.slow),
        pytest.param("pg", "PENDULUM", {"critic": "kalman", "critic_updates": 5}, marks=pytest.mark.slow),
    ],
)
def test_the_two_drivers_agree(algorithm: str, env: str, changes: dict[str, Any]) -> None:
    """The same environment, as JAX functions and as a simulator, with the same random numbers."""
    changes = {"precision": "float64", **changes}
    with jax.enable_x64(True):
        in_scan, scan_logs = advanced(scan, settings(algorithm, f"probe_simulators:JAX_{env}", **changes), 3)
        on_host, host_logs = advanced(host, settings(algorithm, f"probe_simulators:SIMULATED_{env}", **changes), 3)
    assert on_host.episodes == 24
    assert on_host.agent.belief.updates == 3
    for ours, theirs in zip(jax.tree.leaves(on_host), jax.tree.leaves(in_scan), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)
    for ours, theirs in zip(host_logs, scan_logs, strict=True):
        assert ours.failed.tolist() == [[0, 0]]
        for one, other in zip(jax.tree.leaves(ours[:4]), jax.tree.leaves(theirs[:4]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bit for bit, also where the simulator's state can't be stored."""
    config = settings("epopt", "CartPole-v1", branching="copies", horizon=30, trial_every=1)
    stopped_once(config, tmp_path / "stopped")
    assert progress_of(tmp_path / "stopped")[1] == 8
    assert main(["train", "--resume", str(tmp_path / "stopped")]) == 0
    assert "stopped goes on with its next trajectories" in capsys.readouterr().err
    train(config, tmp_path / "whole", jobs=1)
    assert progress_of(tmp_path / "whole")[1] == 32
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("known")
def test_it_learns_to_push(tmp_path: Path) -> None:
    """Each of ten pushes earns the model's strength."""
    learning = dict(trajectories=20, episodes=400, learning_rate=0.02, horizon=10)
    run = deeprok.train(settings("pg", "host_pushes", **learning), tmp_path / "run", jobs=1)
    assert run.metrics.returns[:20].mean() < 8 < run.metrics.returns[-20:].mean()
    result = deeprok.evaluate(run, grid={"strength": [0.5, 1.5]}, episodes=3, epsilon=0.0)
    np.testing.assert_allclose(result.mean_return, [5.0, 15.0])


def test_simulations_that_fail_end_their_trajectories() -> None:
    """Every other one is lost in its first step, for which it gets its reward; each step earns 1."""
    models: dict[str, Any] = dict(box={"current": (0.0, 2.0)}, fixed_models="current=0;current=1.5", acting="member")
    run, (log,) = advanced(host, settings("pg", "own_simulators:Explosive", **models, horizon=10), 1)
    assert log.failed.tolist() == [[4, 4]]
    earned = log.earned.reshape(4, 2)
    assert (earned[:, 1] == 1.0).all()
    assert (earned[:, 0] > 1.0).all()
    assert run.steps == earned.sum()
    assert np.isfinite(run.agent.belief.theta).all()


def test_more_episodes_than_simulators_are_played_one_after_the_other() -> None:
    """Each as if it was alone, whatever the others do."""
    env = make_config("pg", env="CartPole-v1", horizon=30).make_env()
    assert isinstance(env, HostEnvironment)
    starts = [Start(seed, {"cart_mass": 0.5 + seed / 50}) for seed in range(150)]
    asked: set[tuple[int, int]] = set()

    def act(episodes: np.ndarray, steps: np.ndarray, obs: np.ndarray) -> np.ndarray:
        assert steps.max() < 30  # also where nothing is played any more
        asked.update((int(e), int(t)) for e, t in zip(episodes, steps, strict=True) if e >= 0)
        return (obs[:, 2] > 0).astype(int) ^ (episodes % 7 == steps % 7)  # some fall, some do not

    taken = list(make_host_rollout(env)(starts, act))
    assert {(step.episode, step.step) for step in taken} == asked
    assert len(taken) == len(asked)
    assert sorted(step.episode for step in taken if step.ended) == list(range(150))
    simulator = env.make()
    for episode in (0, 77, 149):
        obs = simulator.reset(*starts[episode])
        own = [step for step in taken if step.episode == episode]
        for t, step in enumerate(own):
            action = int(obs[2] > 0) ^ int(episode % 7 == t % 7)
            outcome = simulator.step(action)
            np.testing.assert_array_equal(step.outcome.obs, outcome.obs)
            obs = outcome.obs
            assert step.ended == (bool(outcome.terminated) or t == 29) == (t == len(own) - 1)
