"""Stateful simulators: the host driver against the scan, resuming, playing, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe_simulators import JAX_CARTPOLE, SIMULATED_CARTPOLE
from test_jobs import contents

import deeprok
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments import HostEnvironment
from deeprok.environments.host import model_of
from deeprok.estimators.covariance import LowRank
from deeprok.evaluation.play import cell_player, nominal_models
from deeprok.evaluation.policies import weights_policy
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training import host, scan
from deeprok.training.best import TRIAL, make_trial
from deeprok.training.jobs import train
from deeprok.training.loop import progress_of
from deeprok.uncertainty.models import example_range

pytestmark = pytest.mark.usefixtures("compiled_once")

SMALL = dict(
    steps=400,
    episodes=0,
    chunk_steps=100,
    hidden=(8,),
    batch_size=8,
    warm_up=20,
    models=3,
    trial_models=2,
    trial_episodes=1,
    settle=False,
    horizon=40,
)


NINE = {"episodes": 9, "steps": 0}


def settings(algorithm: str, env: str, **changes: Any) -> Config:
    return make_config(algorithm, "default", **{**SMALL, "env": env, **changes})


def advanced(module: Any, config: Config, chunks: int) -> Any:
    """The state of a run after some chunks, and their logs."""
    program = module.make_program(config)
    states = jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf)[None]), program.init(jax.random.key(config.seed)))
    logs = []
    for index in range(chunks):
        states, log = program.advance(states, index)
        logs.append(jax.tree.map(np.asarray, log))
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), states), logs


def signless(tree: Any) -> Any:
    """The same but for the signs of a covariance's directions, which mean nothing."""

    def change(leaf: Any) -> Any:
        return dataclasses.replace(leaf, factor=abs(leaf.factor)) if isinstance(leaf, LowRank) else leaf

    return jax.tree.map(change, tree, is_leaf=lambda leaf: isinstance(leaf, LowRank))


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("rtd_dqn", {}),
        ("rtd_dqn", {"memory": 2}),
        pytest.param("ddqn", {"acting": "nominal", "train_every": 1}, marks=pytest.mark.slow),
        pytest.param(
            "rtd_dqn",
            {"updates": 2, "acting": "member", "train_every": 4, "snapshot_every": 3, "episodes": 9, "steps": 0},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "ekf_dqn",
            {"explore": "thompson", "episodes": 7, "steps": 0, "recalibrate": False},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_two_drivers_agree(algorithm: str, changes: dict[str, Any]) -> None:
    """The same environment, as JAX functions and as a simulator, with the same random numbers."""
    changes = {"precision": "float64", **changes}
    with jax.enable_x64(True):
        in_scan, scan_logs = advanced(scan, settings(algorithm, "probe_simulators:JAX_CARTPOLE", **changes), 4)
        on_host, host_logs = advanced(host, settings(algorithm, "probe_simulators:SIMULATED_CARTPOLE", **changes), 4)
    assert (int(on_host.steps), int(on_host.episodes)) == (int(in_scan.steps), int(in_scan.episodes))
    assert on_host.episodes > 5
    for field in ("agent", "snapshots", "held", "key"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
            signless(getattr(on_host, field)),
            signless(getattr(in_scan, field)),
        )
    for field in ("obs", "acting", "models", "step", "earned"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
            getattr(on_host.episode, field),
            getattr(in_scan.episode, field),
        )
    for ours, theirs in zip(host_logs, scan_logs, strict=True):
        np.testing.assert_array_equal(ours.ended, theirs.ended)
        np.testing.assert_array_equal(ours.learned, theirs.learned)
        np.testing.assert_allclose(ours.earned[ours.ended], theirs.earned[theirs.ended])
        np.testing.assert_allclose(ours.fit.loss[ours.learned], theirs.fit.loss[theirs.learned], rtol=1e-7, atol=1e-12)


# --- resuming ------------------------------------------------------------------------------------------


def stopped_once(config: Config, folder: Path) -> None:
    """Trains until its first metrics, then stops as Ctrl-C does, with the chunk."""

    def report(where: Path, line: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, folder, jobs=1, report=report)


@pytest.mark.parametrize("memory", [0, 2])
def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: int
) -> None:
    """Bit for bit, in the middle of an episode, with a simulator in double precision and weights in single."""
    late = dict(trial_tail=0.5, refine_from=0.5, settle=True)
    config = settings("rtd_dqn", "CartPole-v1", trial_every=1, **late, memory=memory)
    stopped_once(config, tmp_path / "stopped")
    steps, _ = progress_of(tmp_path / "stopped")
    assert 0 < steps < config.steps
    assert main(["train", "--resume", str(tmp_path / "stopped")]) == 0
    assert "stopped goes on within its episode, with the simulator's state" in capsys.readouterr().err
    train(config, tmp_path / "whole", jobs=1)
    assert progress_of(tmp_path / "whole")[0] == config.steps
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("env", ["probe_simulators:FORGETFUL", "own_simulators:NOTED"])
def test_a_run_whose_simulator_cannot_be_read_goes_on_from_the_next_episode(
    env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never, or not in the step at which it was stopped."""
    config = settings("rtd_dqn", env)
    stopped_once(config, tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert "goes on from its next episode" in capsys.readouterr().err
    assert progress_of(tmp_path / "run")[0] == config.steps
    returns = [value for line in runs.read_metrics(tmp_path / "run") for value in line["returns"]]
    # What was played of the episode that was cut is in no return.
    assert len(returns) == progress_of(tmp_path / "run")[1]
    assert sum(returns) < config.steps


@pytest.mark.slow
def test_seeds_have_processes_and_runs_of_their_own(tmp_path: Path) -> None:
    config = settings("ddqn", "probe_simulators:SIMULATED_CARTPOLE", steps=200)
    assert not config.shares_program
    folders = train(config, tmp_path / "seeds", seeds=[3, 4], jobs=1)
    alone = train(config.replace(seed=3), tmp_path / "alone", jobs=1)
    assert contents(folders[0]) == contents(alone[0])
    assert contents(folders[0]) != contents(folders[1])


# --- playing -------------------------------------------------------------------------------------------


def test_host_play_is_that_of_the_rollout_where_nothing_is_random() -> None:
    """An agent that always pushes to the right, from a first state that does not depend on the seed."""
    calm = {"initial_range": 1e-9}
    envs = (JAX_CARTPOLE, SIMULATED_CARTPOLE)
    right = [
        env._replace(nominal=dataclasses.replace(env.nominal, **calm), box={"pole_length": (0.2, 1.4)}) for env in envs
    ]
    models = {"pole_length": np.linspace(0.2, 1.4, 7), "initial_range": np.full(7, 1e-9)}
    with jax.enable_x64(True):
        in_jax, on_host = (
            cell_player(env, lambda weights, params: lambda obs: jnp.ones(len(obs), jnp.int32), 3)(0, models, 0.0)
            for env in right
        )
    assert on_host.shape == (7, 3)
    np.testing.assert_array_equal(on_host, in_jax)
    assert len(np.unique(on_host)) > 2  # the length matters


def test_host_play_has_the_same_luck_on_each_model_and_repeats_itself() -> None:
    parts: list[float] = []
    play = cell_player(SIMULATED_CARTPOLE, lambda weights, params: lambda obs: jnp.zeros(len(obs), jnp.int32), 5)
    models = {"pole_length": np.array([0.5, 0.5, 1.3]), "cart_mass": np.array([1.0, 1.0, 1.0])}
    first = play(0, models, 0.5, seed=1, advance=parts.append)
    np.testing.assert_array_equal(first[0], first[1])
    assert (first[0] != first[2]).any()
    np.testing.assert_array_equal(play(0, models, 0.5, seed=1), first)
    assert (play(0, models, 0.5, seed=2) != first).any()
    assert sum(parts) == pytest.approx(1.0)
    assert len(np.unique(first[0])) > 1  # episodes differ


# --- parameters ----------------------------------------------------------------------------------------


def test_a_simulator_is_given_what_differs_and_nothing_else() -> None:
    config = settings("rtd_dqn", "CartPole-v1", nominal={"gravity": 8.0}, box={"cart_mass": (0.5, 2.0)})
    env = config.make_env()
    assert isinstance(env, HostEnvironment)
    assert model_of(env, {"cart_mass": np.float32(0.5)}) == {"gravity": 8.0, "cart_mass": 0.5}
    assert model_of(settings("rtd_dqn", "CartPole-v1").make_env(), {}) == {}


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        ("pg", {"simulators": 2}, "simulators is 2, but pg plays whole trajectories, all in one process; take 1"),
        (
            "pg",
            {"target": "cart_mass=2"},
            "env is 'CartPole-v1', a stateful simulator; target 'cart_mass=2' needs an environment in JAX",
        ),
        ("rtd_dqn", {"branching": "none"}, "branching is 'none', so that it can't answer for several models, which "),
        ("rtd_dqn", {"branching": "all"}, "unknown branching 'all': known are copies, none, restored"),
        ("rtd_dqn", {"env": "Pendulum-v1"}, "Pendulum-v1 has continuous actions; rtd_dqn needs"),
        (
            "rtd_td3",
            {"env": "Swimmer-v5"},
            "Swimmer-v5 has no box of its own; give the ranges of its uncertain parameters as box (on the command line "
            "--box mass_torso=28.5:44.5, for example: it is nominally 35.6), or take an algorithm on the nominal model,"
            " such as ddqn or td3; its parameters are gravity, mass_torso, length_torso, mass_mid, length_mid, "
            "mass_back, length_back, friction_floor, damping_slider1, damping_slider2, damping_free_body_rot, "
            "damping_motor1_rot and 10 more, which `deeprok environments Swimmer-v5` lists",
        ),
        ("ddqn_dr", {"env": "own_simulators:Bare"}, "own_simulators:Bare has no parameter, so that nothing of it is"),
        ("rtd_dqn", {"env": "CartPole-v7"}, "unknown env 'CartPole-v7': did you mean 'cartpole'? known are acrobot,"),
        (
            "rtd_dqn",
            {"env": "cartpole", "simulators": 2},
            "simulators is 2, but cartpole is an environment in JAX, not a",
        ),
        ("rtd_dqn", {"simulators": 3}, "simulators is 3; it must divide train_every, 2, or be a multiple of it"),
        (
            "rtd_dqn",
            {"simulators": 16, "chunk_steps": 1000},
            "chunk_steps is 1000; it must be a multiple of simulators",
        ),
        ("rtd_dqn", {"box": {"masscart": (1.0, 2.0)}}, "unknown parameter in box 'masscart': known are cart_mass,"),
    ],
)
def test_what_a_simulator_cannot_do_is_one_sentence(algorithm: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError) as error:
        make_config(algorithm, **{"env": "CartPole-v1", **changes})
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("algorithm", ["ddqn_dr", "epopt"])
def test_algorithms_without_a_robust_target_need_no_branching(algorithm: str) -> None:
    """Nor do those that weigh whole trajectories, each of which is played on one model."""
    assert make_config(algorithm, env="CartPole-v1", branching="none").make_env().branching == "none"


@pytest.mark.parametrize(
    ("name", "refused", "advice"),
    [
        ("own_simulators:Bare", "has no parameter, which a grid would vary", "deeprok export {} --out policy.json"),
        ("own_parts:UNBOXED", "has no box, which the grid would cover; give", "deeprok evaluate {} --grid {}:7"),
    ],
)
def test_nominal_agents_need_no_box(
    name: str, refused: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `deeprok train` advises in the end is a command that works."""
    config = settings("ddqn", name, steps=40, chunk_steps=20)
    run = deeprok.train(config, tmp_path / "run", jobs=1)
    assert np.isfinite(run.metrics.returns).all()
    with pytest.raises(DeeprokError, match=refused):
        deeprok.evaluate(run, episodes=1)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.endswith(advice.format(tmp_path / "run", example_range(config.make_env().nominal)))
    if "--grid" in advice:
        assert main([*said.partition("deeprok ")[2].split(), "--episodes", "1"]) == 0


def test_trials_without_a_box_are_on_the_nominal_model() -> None:
    """As many episodes as there would be, with other starts each."""
    config = settings("ddqn", "own_simulators:Boat", trial_models=3, trial_episodes=2)
    program = host.make_program(config)
    run = program.init(jax.random.key(0))
    beliefs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], run.agent.belief)
    env, view = config.make_env(), program.learner.view
    play = cell_player(env, weights_policy(view.network, env.actions, "mean"), 6)
    alone = play(view.mean(run.agent.belief)[None], nominal_models(env, 1), config.trial_epsilon, TRIAL.seed)
    assert float(make_trial(config, program, TRIAL)(beliefs)[0]) == pytest.approx(alone.mean(), rel=1e-6)


@pytest.mark.slow
def test_a_posterior_is_not_corrected_in_a_simulator(tmp_path: Path) -> None:
    config = settings("ekf_dqn", "probe_simulators:SIMULATED_CARTPOLE", steps=100, recalibrate=True)
    assert config.make_learner().corrected is None
    run = deeprok.train(config, tmp_path / "run", jobs=1)
    with pytest.raises(DeeprokError, match="a stateful simulator; the truth of its intervals needs an environment in"):
        deeprok.calibrate(run)


def test_screening_needs_an_environment_in_jax() -> None:
    with pytest.raises(DeeprokError, match=r"^env is 'Acrobot-v1', a stateful simulator; screening needs an"):
        deeprok.screen("Acrobot-v1")


# --- the command line ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Boat", "Windowed"])
def test_a_class_is_named_with_its_box_and_branching(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of which it has by itself; without them it is refused."""
    words = ["train", "rtd_dqn", "--env", f"own_simulators:{name}"]
    assert main(words) == 2
    said = "has no box of its own; give the ranges of its uncertain parameters as box (on the command line --box "
    assert said in capsys.readouterr().err
    words += ["--box", "current=-0.2:0.2"]
    if name == "Windowed":
        assert main(words) == 2
        assert "can't restore its state (TypeError: cannot pickle 'generator' object)" in capsys.readouterr().err
        words += ["--branching", "copies"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert "--branching {restored,copies,none}" in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.slow
def test_the_whole_life_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name not in ("settle", "hidden")]
    assert main(["train", "rtd_dqn", "--env", "CartPole-v1", *words, "--hidden", "8", "--no-settle", "--out", out]) == 0
    config = runs.read_config(tmp_path / "run")
    assert (config.env, config.environment.branching, config.environment.horizon) == ("CartPole-v1", "restored", 40)
    capsys.readouterr()
    grid = "cart_mass=0.5:2:2,pole_length=0.4:0.8:2"
    assert main(["evaluate", out, "--grid", grid, "--episodes", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.shape(found["mean_return"]) == (2, 2)
    assert (np.array(found["mean_return"]) > 0).all()
    assert (np.array(found["mean_return"]) <= 40).all()
    assert main(["export", out, "--out", str(tmp_path / "policy.json")]) == 0
    policy = json.loads((tmp_path / "policy.json").read_text())
    assert (policy["env"], policy["actions"]) == ("CartPole-v1", ["left", "right"])
    loaded = deeprok.load(out)
    assert loaded.act([0.0, 0.1, 0.02, -0.3]) in (0, 1)
    assert loaded.env.horizon == 40
