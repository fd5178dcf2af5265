from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
from finished_runs import LEFT, write_run
from rich.table import Table
from test_jobs import at_step

from deeprok import __version__
from deeprok.agents.algorithms import ALGORITHMS
from deeprok.cli import evaluate, options, streams, train
from deeprok.cli import main as cli
from deeprok.cli.main import main
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError, extra_missing
from deeprok.environments import ENVIRONMENTS
from deeprok.estimators import KalmanConfig
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.parts import SECTIONS
from deeprok.runs.run_settings import PRESETS
from deeprok.runs.settings import FORMAT, Config, make_config

SMALL = [
    *("--hidden", "4", "--episodes", "5", "--horizon", "30", "--models", "2", "--batch-size", "3"),
    *("--warm-up", "10", "--chunk-steps", "100", "--trial-models", "2"),
]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(streams, "out", WordConsole(width=200))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` makes its folders and stops."""
    monkeypatch.setattr(train, "_train_runs", lambda *_: None)


def exit_code(words: Sequence[str]) -> int:
    """The code that a shell would see."""
    try:
        return main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def config_of(*words: str, out: Path) -> Config:
    assert main(["train", *words, "--out", str(out)]) == 0
    return runs.read_config(out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "runs"
    words = ["train", "rtd_dqn", *SMALL, "--preset", "paper", "--seed", "3", "--seeds", "2"]
    assert main([*words, "--acting", "member", "--out", str(out), "--jobs", "1"]) == 0
    return out


def test_train_makes_a_run_folder_for_each_seed(trained: Path) -> None:
    assert sorted(path.name for path in trained.iterdir()) == ["seed-3", "seed-4"]
    for seed in (3, 4):
        folder = trained / f"seed-{seed}"
        assert {path.name for path in folder.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint.safetensors"}
        config = runs.read_config(folder)
        assert (config.algorithm, config.preset, config.acting, config.seed) == ("rtd_dqn", "paper", "member", seed)
        assert (config.episodes, config.layers.hidden, config.discount) == (5, (4,), 0.9)
        assert runs.read_metrics(folder)[-1]["episodes"] == 5
    first, second = (safetensors.numpy.load_file(trained / f"seed-{s}" / runs.CHECKPOINT) for s in (3, 4))
    assert not np.array_equal(first["run.agent.belief.theta"], second["run.agent.belief.theta"])


@pytest.mark.parametrize("words", [["--resume", "{}"], ["--resume={}"], ["--resume", "{}", "--jobs", "2"]])
def test_resuming_what_is_finished(trained: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    before = snapshot(trained)
    assert main(["train", *(word.format(trained) for word in words)]) == 0
    captured = capsys.readouterr()
    assert "finished" in captured.err
    assert f"deeprok evaluate {trained}" in captured.out
    for seed in (3, 4):
        folder = trained / f"seed-{seed}"
        best = safetensors.numpy.load_file(folder / runs.CHECKPOINT)["best.steps"]
        (trial,) = [line["trial_return"] for line in runs.read_metrics(folder) if line["steps"] == best]
        (line,) = [line for line in captured.out.splitlines() if str(folder) in line]
        assert line.split()[-3:] == ["step", f"{best:,}", f"{trial:.1f}"]
    assert "their mean return on 2 held-out models" in captured.out
    assert snapshot(trained) == before


def test_the_table_after_training_says_what_a_trial_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", trial_tail=0.1)
    assert main(["train", "--resume", str(run)]) == 0
    assert "their mean return on the worst 10 % of 64 held-out models" in capsys.readouterr().out


def test_resuming_without_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    (run / runs.METRICS).unlink()
    assert main(["train", "--resume", str(run)]) == 0
    assert "run" in capsys.readouterr().out


def test_evaluate_prints_tables(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(trained), "--grid", "pole_length=0.2:1.4:2,cart_mass=0.1:7:3", "--episodes", "3"]
    assert main(words) == 0
    out = capsys.readouterr().out
    for word in ("rtd_dqn", "2 seeds", "best weights", "pole_length", "cart_mass", "3.55", "whole grid", "nominal"):
        assert word in out
    (kept,) = {path.name for path in trained.glob("*/evaluation*.json")}
    assert f"kept in {trained}/seed-*/{kept}" in out


def test_more_parameters_than_a_map_has_are_left_to_stress(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(trained), "--grid", "pole_length=0.5,cart_mass=1:2:2,gravity=9", "--episodes", "1"]
    assert main(words) == 0
    said = f"a map has two parameters; where the policy breaks in all of them says: deeprok stress {trained}"
    assert said in capsys.readouterr().out.splitlines()
    assert main([*words, "--plot", "map.png"]) == 2
    assert "the grid has 3: pole_length, cart_mass, gravity; 'deeprok stress'" in capsys.readouterr().err


def test_evaluate_with_every_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", "deep_rok", best=LEFT)
    (run / runs.EVALUATION).write_text("precious")
    words = "--grid pole_length=0.2:1.4:2 --episodes 4 --epsilon 0.2 --policy vote --members 3 --keep last --seed 1"
    assert main(["evaluate", str(run), *words.split(), "--json", "--plot", str(run / "map.svg")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found = json.loads(out)
    expected = dict(algorithm="deep_rok", episodes=4, epsilon=0.2, policy="vote", members=3, keep="last")
    assert {name: found[name] for name in expected} == expected
    assert found["grid"] == {"pole_length": [0.2, 1.4]}
    assert {"mean_return", "success", "per_seed", "overall", "nominal"} <= set(found)
    assert np.shape(found["success"]) == (2,)
    assert json.loads((run / found["file"]).read_text()) == found
    assert (run / runs.EVALUATION).read_text() == "precious"
    assert (run / "map.svg").read_text().startswith("<?xml")


def test_default_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def fake(folder: Path, **options: Any) -> None:
        seen.update(options, folder=folder)
        raise DeeprokError("enough")

    monkeypatch.setattr(evaluate, "evaluate", fake)
    assert main(["evaluate", str(tmp_path)]) == 2
    seen.pop("advance")
    assert seen == dict(
        folder=tmp_path, grid=None, episodes=500, epsilon=0.1, policy="mean",
        members=20, kappa=1.0, keep="best", seed=0, save=True,
        sensor_noise=None, action_delay=None, parameter_noise=None, name=None,
    )  # fmt: skip


# --- settings ---------------------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[str, Any]] = {
    "seed": ("7", 7),
    "episodes": ("9", 9),
    "steps": ("90", 90),
    "env": ("cartpole", "cartpole"),
    "integrator": ("semi-implicit", "semi-implicit"),
    "failing_reward": ("-1.5", -1.5),
    "horizon": ("50", 50),
    "nominal": ("cart_mass=1", "cart_mass=1"),
    "box": ("gravity=8:11", "gravity=8:11"),
    "models": ("3", 3),
    "draw": ("product", "product"),
    "edges": ("0.5", 0.5),
    "fixed_models": ("cart_mass=1:3:3", "cart_mass=1:3:3"),
    "sensor_noise": ("0.05", 0.05),
    "action_delay": ("2", 2),
    "parameter_noise": ("force=0.3,gravity=0.1", "force=0.3,gravity=0.1"),
    "memory": ("4", 4),
    "acting": ("member", "member"),
    "robust_set": ("minimum", "minimum"),
    "robust_level": ("0.5", 0.5),
    "discount": ("0.5", 0.5),
    "network": ("mlp", "mlp"),
    "hidden": ("5 6", (5, 6)),
    "activation": ("relu", "relu"),
    "input_scale": ("1 2 3 4", (1.0, 2.0, 3.0, 4.0)),
    "batch_size": ("2", 2),
    "replay_size": ("500", 500),
    "warm_up": ("0", 0),
    "train_every": ("2", 2),
    "updates": ("4", 4),
    "target_period": ("3", 3),
    "target_rate": ("0.5", 0.5),
    "epsilon_start": ("0.5", 0.5),
    "epsilon_end": ("0", 0.0),
    "epsilon_steps": ("0", 0),
    "epsilon_fraction": ("0.5", 0.5),
    "longest_repeat": ("9", 9),
    "chunk_steps": ("40", 40),
    "snapshot_every": ("7", 7),
    "trial_every": ("3", 3),
    "trial_models": ("3", 3),
    "trial_episodes": ("3", 3),
    "trial_epsilon": ("0", 0.0),
    "trial_tail": ("0.5", 0.5),
    "refine_from": ("0.5", 0.5),
    "optimizer": ("sgd", "sgd"),
    "final_rate": ("0.5", 0.5),
    "averaging": ("0.5", 0.5),
    "observation_noise": ("0.5", 0.5),
    "process_noise": ("0", 0.0),
    "prior_covariance": ("2.5", 2.5),
    "batching": ("averaged", "averaged"),
    "learning_rate": ("0.5", 0.5),
    "covariance": ("low_rank", "low_rank"),
    "rank": ("3", 3),
    "remembered": ("0.5", 0.5),
    "window": ("50", 50),
    "noise_share": ("0.5", 0.5),
    "confidence": ("time", "time"),
    "level_start": ("0.9", 0.9),
    "level_steps": ("70", 70),
    "level_fraction": ("0.5", 0.5),
    "precision": ("float64", "float64"),
    "explore": ("ucb", "ucb"),
    "explore_scale": ("2", 2.0),
    "prior_part": ("mean", "mean"),
    "adversary": ("stress", "stress"),
}
#: Settings that need others, or a run.
TOGETHER = {"prior", "simulators"}
#: Settings that are on or off, tested below.
SWITCHES = {"double", "normalise", "recalibrate", "settle"}
SETTINGS = {name for algorithm in ("deep_rok", "ddqn") for name in make_config(algorithm).flat()}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_table_of_settings_is_complete() -> None:
    assert set(CHANGES) == SETTINGS - {"algorithm", "preset", *SWITCHES} - TOGETHER


@pytest.mark.parametrize(("name", "change"), CHANGES.items(), ids=CHANGES)
def test_every_setting_is_an_option(untrained, tmp_path: Path, name: str, change: tuple[str, Any]) -> None:
    text, value = change
    algorithm = "deep_rok" if name in make_config("deep_rok").flat() else "ddqn"
    config = config_of(algorithm, flag(name), *text.split(), out=tmp_path / "run")
    assert config == make_config(algorithm, **{name: value})


#: Of the other estimators, and of policy gradients, each with one of its agents.
OTHERS: dict[str, dict[str, tuple[str, Any]]] = {
    "bbb_dqn": {
        "observation_noise": ("0.5", 0.5),
        "learning_rate": ("0.01", 0.01),
        "initial_deviation": ("0.1", 0.1),
        "weight_prior": ("mixture", "mixture"),
        "prior_variance": ("2", 2.0),
        "narrow_variance": ("0.1", 0.1),
        "wide_share": ("0.2", 0.2),
        "samples": ("3", 3),
    },
    "psgld_rtd": {
        "observation_noise": ("0.5", 0.5),
        "learning_rate": ("0.01", 0.01),
        "decay": ("0.3", 0.3),
        "decay_updates": ("50", 50.0),
        "prior_variance": ("2", 2.0),
        "smoothing": ("0.9", 0.9),
        "damping": ("0.01", 0.01),
        "gamma_term": ("", True),
        "frozen": ("", True),
        "burn_in": ("7", 7),
        "thinning": ("3", 3),
        "members": ("5", 5),
    },
    "boot_dqn": {
        **{
            name: CHANGES[name]
            for name in (
                *("batch_size", "replay_size", "warm_up", "train_every", "updates", "chunk_steps"),
                *("epsilon_start", "epsilon_end", "epsilon_steps", "epsilon_fraction", "target_period", "target_rate"),
                "adversary",
            )
        },
        "double": ("", True),
        "members": ("3", 3),
        "mask": ("1", 1.0),
        "prior_scale": ("0", 0.0),
    },
    "rtd_td3": {
        **{
            name: CHANGES[name]
            for name in (
                *("batch_size", "replay_size", "warm_up", "train_every", "updates", "chunk_steps"),
                *("target_period", "target_rate", "robust_set", "robust_level", "confidence", "level_start"),
                *("level_steps", "level_fraction", "adversary"),
            )
        },
        "policy_delay": ("3", 3),
        "actor_rate": ("0.01", 0.01),
        "actor_final_rate": ("0.5", 0.5),
        "action_noise": ("0.3", 0.3),
        "smoothing_noise": ("0", 0.0),
        "smoothing_clip": ("1", 1.0),
        "normalise": ("", True),
    },
    "ktd_q": {
        "observation_noise": ("0.5", 0.5),
        "prior_covariance": ("2", 2.0),
        "adaptive_noise": ("0.1", 0.1),
        "process_noise": ("0.1", 0.1),
        "kappa": ("1", 1.0),
    },
    "epopt": {
        "inner": ("natural", "natural"),
        "trajectories": ("30", 30),
        "learning_rate": ("0.5", 0.5),
        "clip": ("0.1", 0.1),
        "epochs": ("3", 3),
        "minibatches": ("5", 5),
        "entropy": ("0.1", 0.1),
        "kl_bound": ("0.5", 0.5),
        "gae_lambda": ("1", 1.0),
        "adversary": ("0.5", 0.5),
        "source_spread": ("0.2", 0.2),
        "target": ("gravity=5", "gravity=5"),
        "adapt_every": ("3", 3),
        "target_trajectories": ("4", 4),
        "particles": ("20", 20),
        "target_noise": ("0.1", 0.1),
        "critic": ("kalman", "kalman"),
        "critic_hidden": ("8 4", (8, 4)),
        "critic_updates": ("7", 7),
        "critic_batch": ("9", 9),
        "critic_noise": ("0.5", 0.5),
        "critic_drift": ("0", 0.0),
        "trajectory_set": ("kl", "kl"),
        "trajectory_level": ("0.5", 0.5),
        "level_iterations": ("0", 0),
        "weigh": ("trajectories", "trajectories"),
    },
}


#: Refused beside a Kalman critic.
ADAM_CRITIC: dict[str, Any] = {"critic_rate": 0.5}
#: Refused with an actor.
NO_ACTOR = {"rtd_td3": {"double"}}


@pytest.mark.parametrize("algorithm", OTHERS)
def test_every_setting_of_a_part_is_an_option(untrained, tmp_path: Path, algorithm: str) -> None:
    changes = OTHERS[algorithm]
    config = make_config(algorithm)
    parts = (config.estimator,) if config.row.learner == "q_learning" else (config.learner, config.target)
    refused = {*ADAM_CRITIC, *NO_ACTOR.get(algorithm, ())}
    assert set(changes) == {f.name for part in parts for f in dataclasses.fields(part)} - refused
    words = [word for name, (text, _) in changes.items() for word in (flag(name), *text.split())]
    config = config_of(algorithm, *words, out=tmp_path / "run")
    assert config == make_config(algorithm, **{name: value for name, (_, value) in changes.items()})


def test_the_setting_of_another_critic_is_an_option(untrained, tmp_path: Path) -> None:
    config = config_of("pg", "--critic", "adam", "--critic-rate", "0.5", out=tmp_path / "run")
    assert config == make_config("pg", critic="adam", **ADAM_CRITIC)


def test_the_number_of_simulators_is_an_option(untrained, tmp_path: Path) -> None:
    config = config_of("ddqn", "--env", "CartPole-v1", "--simulators", "4", out=tmp_path / "run")
    assert config == make_config("ddqn", env="CartPole-v1", simulators=4)


@pytest.mark.parametrize(
    ("words", "budget"),
    [(["--steps", "90"], (0, 90)), (["--preset=tuned", "--steps=0"], (700, 0)), (["--episodes", "5"], (5, 0)),
     (["--episodes", "5", "--steps", "90"], (5, 90)), ([], (0, 150_000)), (["--preset=tuned"], (700, 0))],
)  # fmt: skip
def test_limits_of_a_run(untrained, tmp_path: Path, words: list[str], budget: tuple[int, int]) -> None:
    assert config_of("rtd_dqn", *words, out=tmp_path / "run").budget == budget


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("name", sorted(SWITCHES - {"double"}))
def test_switches(untrained, tmp_path: Path, name: str, on: bool) -> None:
    algorithm = "deep_rok" if name == "recalibrate" else "rtd_dqn"  # which has a posterior
    config = config_of(algorithm, f"--{'' if on else 'no-'}{name}", out=tmp_path / "run")
    assert config == make_config(algorithm, **{name: on})


@pytest.mark.parametrize(("option", "double"), [("--double", True), ("--no-double", False)])
@pytest.mark.parametrize("algorithm", ["ddqn", "rtd_dqn"])
def test_double(untrained, tmp_path: Path, algorithm: str, option: str, double: bool) -> None:
    assert config_of(algorithm, option, out=tmp_path / "run").target.double == double


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("words", "preset"),
    [("", "default"), *((f"--preset {preset}", preset) for preset in PRESETS), ("--preset=paper", "paper")],
)
def test_presets(untrained, tmp_path: Path, algorithm: str, words: str, preset: str) -> None:
    assert config_of(algorithm, *words.split(), out=tmp_path / "run") == make_config(algorithm, preset)


def test_default_folder(untrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "dqn"]) == 0
    assert runs.read_config(tmp_path / "runs" / "dqn") == make_config("dqn")


def test_seeds_begin_at_the_seed(untrained, tmp_path: Path) -> None:
    assert main(["train", "dqn", "--seeds", "3", "--seed", "2", "--out", str(tmp_path)]) == 0
    assert [(p.name, runs.read_config(p).seed) for p in runs.find(tmp_path)] == [(f"seed-{s}", s) for s in (2, 3, 4)]


PRIORS = {
    "vector.json": lambda n: [1.0 + i for i in range(n)],
    "matrix.json": lambda n: (np.eye(n) * 2 + 0.1).tolist(),
    "vector.npy": lambda n: np.arange(1.0, n + 1),
    "matrix.npy": lambda n: np.eye(n, dtype=np.float32) * 3,
}


def write_prior(path: Path, values: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(("name", "values"), PRIORS.items(), ids=PRIORS)
def test_prior_from_a_file(untrained, tmp_path: Path, name: str, values: Any) -> None:
    path = write_prior(tmp_path / name, values(9))
    words = ["--hidden", "1", "--covariance", "full", "--prior-covariance", str(path)]
    config = config_of("deep_rok", *words, out=tmp_path / "run")
    assert isinstance(config.estimator, KalmanConfig)
    np.testing.assert_allclose(config.estimator.prior_covariance, values(9))


class Trap:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


# --- help -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(words) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in cli.COMMANDS)


TRACKERS = {"tensorboard", "wandb", "mlflow", "tracker"}
HELPS: dict[str, set[str]] = {
    **{
        f"train {algorithm}": set(make_config(algorithm).flat()) - {"algorithm"} | {"seeds", "out", "jobs", *TRACKERS}
        for algorithm in ("deep_rok", "ddqn", "boot_dqn", "rtd_td3", "ktd_q", "epopt")
    },
    "train --resume x": {"resume", "jobs", "episodes", "steps", *TRACKERS},
    "evaluate": {"grid", "episodes", "epsilon", "policy", "members", "kappa", "keep", "json", "seed", "plot", "name"},
    "compare": {"grid", "episodes", "epsilon", "keep", "plot", "json", "by", "against", "tasks", "references", "table"},
    "tensorboard": {"out"},
    "identify": {"env", "data", "parameters", "confidence", "bootstrap", "seed", "out", "json"},
    "export": {"format", "out", "keep"},
    "plot": {"kind", "out", "grid", "episodes", "name"},
    "render": {"at", "out", "seed", "steps", "epsilon", "fps", "keep", "size"},
    "tune": {
        *("env", "budget", "trials", "metric", "preset", "fix", "search", "space", "out", "seeds", "rungs"),
        *("finalists", "fresh", "held_out", "episodes", "grid", "test_episodes", "epsilon", "seed", "jobs", "json"),
    },
    "sweep": {"out", "executor", "jobs", "address", "cpus", "gpus", "memory"},
    "reproduce": {"seeds", "preset", "out", "full", "resume", "episodes", "jobs"},
}


@pytest.mark.parametrize(("words", "options"), HELPS.items(), ids=HELPS)
def test_help_mentions_every_option(words: str, options: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code([*words.split(), "--help"]) == 0
    out = capsys.readouterr().out
    found = set(re.findall(r"--([a-z][a-z-]*)(?= |,|$)", out, re.MULTILINE))
    assert [name for name in sorted(options) if flag(name) not in out] == []
    if words.startswith("train"):
        known = {name.replace("_", "-") for name in options}
        assert found - known - {f"no-{name}" for name in known} == {"help"}


@pytest.mark.parametrize("command", ["train", "algorithms", "environments"])
def test_short_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code([command, "--help"]) == 0
    assert capsys.readouterr().out


def test_short_help_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["train", "--help"]) == 0
    assert f"[--preset {'|'.join(PRESETS)}|FILE]" in capsys.readouterr().out


def test_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, row in ALGORITHMS.items():
        found = [line for line in lines if line.split()[:1] == [name]]
        assert len(found) == 1
        assert all(word in found[0] for word in (row.summary, row.target, row.estimator or row.learner))


def test_one_environment_is_listed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["environments", "Swimmer-v5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Swimmer-v5: 2 numbers as action, 1000 steps, success above 360"
    assert [line.split()[0] for line in lines[1:4]] == ["parameter", "gravity", "mass_torso"]
    assert all(word in lines[3] for word in ("35.6047", "kg", "mass of torso"))


def test_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["environments"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    titles = {line.split(":")[0]: at for at, line in enumerate(lines) if line.split(":")[0] in ENVIRONMENTS}
    assert list(titles) == list(ENVIRONMENTS)
    assert lines[titles["cartpole"]] == "cartpole: 2 actions, 200 steps, success above 195"
    assert lines[titles["pendulum"]].startswith("pendulum: 1 number as action, 200 steps, success above ")
    assert "MountainCarContinuous-v0: 1 number as action, 999 steps, success above 90" in lines
    found = {line.split()[0]: line for line in lines[titles["cartpole"] : titles["deep_sea"]]}
    quantities = ["cart_mass", "pole_length", "pole_mass", "gravity", "force", "time_step", "initial_range"]
    assert set(quantities) <= set(found)
    assert all(word in found["cart_mass"] for word in ("1.5", "0.1 – 7", "kg"))
    assert all(word in found["pole_length"] for word in ("0.5", "0.2 – 1.4", "m"))


def test_environments_whose_extra_is_missing_are_named_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(settings: Any) -> Any:
        raise extra_missing("MuJoCo's environments need", "mujoco")

    without = SimpleNamespace(settings=lambda: None, make=make)
    monkeypatch.setattr("deeprok.cli.environments.MUJOCO_PARTS", {"Hopper-v5": without, "Reacher-v5": without})
    assert main(["environments"]) == 0
    said = "MuJoCo's environments need the extra mujoco; in a clone: pip install -c constraints.txt '.[mujoco]'"
    assert capsys.readouterr().err == f"Hopper-v5, Reacher-v5 are not shown: {said}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


# --- any width ----------------------------------------------------------------------------------------------------


def test_sentences_wrap_at_words_and_paths_stay_whole() -> None:
    path = "/a/path/that/is/longer/than/twenty/columns"
    sentence = f"[bold]all[/bold] is saved, go on with: {path} again"
    for terminal in (True, False):
        console = WordConsole(file=io.StringIO(), width=20, force_terminal=terminal, color_system=None)
        console.print(sentence, soft_wrap=True, highlight=False)
        shown = console.file.getvalue()
        lines = ["all is saved, go on", "with:", path, "again"]
        assert shown == ("\n" if terminal else " ").join(lines) + "\n"
    bold = WordConsole(file=io.StringIO(), width=20, force_terminal=True, color_system="standard")
    bold.print("plain words and then, a line below, [bold]these[/bold] two", soft_wrap=True, highlight=False)
    assert "\x1b[1mthese\x1b[0m" in bold.file.getvalue()


def test_tables_in_files_end_with_no_blanks() -> None:
    console = WordConsole(file=io.StringIO(), width=80)
    table = Table("name", "what it is", box=None)
    table.add_row("a", "longer than its heading")
    table.add_row("b", "short")
    console.print(table)
    lines = console.file.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert [line.split()[0] for line in lines] == ["name", "a", "b"]


@pytest.mark.parametrize(
    "words",
    [
        *("", "train", "algorithms", "environments", "problems", "train rtd_dqn --help"),
        *(f"{name} --help" for name in ("calibrate", "check-env", "compare", "evaluate", "export", "identify")),
        *(f"{name} --help" for name in ("plot", "render", "reproduce", "screen", "solve", "stress", "sweep")),
    ],
)
def test_pages_fit_eighty_columns(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(streams, "out", WordConsole(width=80, force_terminal=True, color_system=None))
    assert exit_code(words.split()) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("finished") / "run", "deep_rok")


def damage(kind: str, run: Path) -> None:
    """Does to a run folder what crashes, other versions and careless hands do."""
    config, check = run / runs.CONFIG, run / runs.CHECKPOINT
    if kind == "no config":
        config.unlink()
    elif kind == "half a config":
        config.write_text(config.read_text()[:200])
    elif kind == "empty config":
        config.write_text("")
    elif kind == "binary config":
        config.write_bytes(bytes(range(128, 256)))
    elif kind == "a list":
        config.write_text("[1, 2]")
    elif kind == "other version":
        config.write_text(config.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    elif kind == "unknown setting":
        config.write_text(config.read_text().replace('"discount"', '"discuont"'))
    elif kind == "no checkpoint":
        check.unlink()
    elif kind == "half a checkpoint":
        check.write_bytes(check.read_bytes()[: check.stat().st_size // 2])
    elif kind == "pickled checkpoint":
        check.write_bytes(pickle.dumps(Trap(run / "trapped")))
    elif kind == "other checkpoint":
        tensors = safetensors.numpy.load_file(check)
        safetensors.numpy.save_file(tensors, check, metadata={"format": "999"})


DAMAGES: dict[str, tuple[str, ...]] = {
    "no config": ("not a run folder", "config.json"),
    "half a config": ("config.json", "not a JSON object"),
    "empty config": ("config.json", "not a JSON object"),
    "binary config": ("config.json",),
    "a list": ("config.json", "not a JSON object"),
    "other version": ("config.json", f"format {FORMAT + 1}", f"reads formats 3 and {FORMAT}"),
    "unknown setting": ("config.json", "discuont"),
    "no checkpoint": ("checkpoint.safetensors",),
    "half a checkpoint": ("checkpoint.safetensors", "damaged or cut short"),
    "pickled checkpoint": ("checkpoint.safetensors", "damaged or cut short"),
    "other checkpoint": ("checkpoint.safetensors", "format 999"),
}
COMMANDS = {
    "evaluate": ["evaluate", "{run}"],
    "compare": ["compare", "{run}", "{run}"],
    "stress": ["stress", "{run}"],
    "render": ["render", "{run}"],
    "export": ["export", "{run}", "--out", "{out}"],
    "resume": ["train", "--resume", "{run}"],
}

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must fail with one sentence and change nothing; gives the sentence."""

    def refused(words: Sequence[str]) -> str:
        before = snapshot(tmp_path)
        assert main(words) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("deeprok: ")
        assert captured.err.count("\n") == 1
        assert "Traceback" not in captured.err
        assert snapshot(tmp_path) == before
        return captured.err

    return refused


@pytest.mark.parametrize(
    ("kind", "command"),
    [(k, c) for k, c in itertools.product(DAMAGES, COMMANDS) if (k, c) != ("no checkpoint", "resume")],
)
def test_damaged_run(refused: Refused, finished: Path, tmp_path: Path, kind: str, command: str) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    damage(kind, run)
    said = refused([word.format(run=run, out=tmp_path / "policy.json") for word in COMMANDS[command]])
    assert [word for word in (str(run), *DAMAGES[kind]) if word not in said] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_run(refused: Refused, tmp_path: Path, command: str) -> None:
    run = tmp_path / "nowhere"
    said = refused([word.format(run=run, out=tmp_path / "policy.json") for word in COMMANDS[command]])
    assert f"no run folder {run}" in said


WRONG_TYPES = {
    "hidden": 5, "box": 3, "algorithm": ["deep_rok"], "episodes": "many", "seed": 1.5, "input_scale": "abcd",
    "double": "yes", "nominal": None, "activation": {}, "estimator": 1, "discount": None, "fixed_models": 7,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG_TYPES.items(), ids=WRONG_TYPES)
def test_wrong_type_in_a_config(refused: Refused, finished: Path, tmp_path: Path, name: str, value: Any) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    fields = json.loads((run / runs.CONFIG).read_text())
    place = next((section for section in (fields[s] for s in SECTIONS) if name in section), fields)
    assert name in place
    place[name] = value
    (run / runs.CONFIG).write_text(json.dumps(fields))
    said = refused(["evaluate", str(run), "--grid", "cart_mass=1", "--episodes", "1"])
    assert name in said or "settings" in said


BAD: dict[str, tuple[str, tuple[str, ...]]] = {
    "algorithm": ("train deep_rock", ("algorithm 'deep_rock'", "'deep_rok'", "ddqn_dr")),
    "preset": ("train dqn --preset tunned", ("preset 'tunned'", "'tuned'", "paper")),
    "env": ("train dqn --env cartpol", ("env 'cartpol'", "'cartpole'")),
    "activation": ("train dqn --activation tahn", ("activation 'tahn'", "'tanh'", "relu")),
    "set": ("train rtd_dqn --robust-set cvarr", ("robust_set 'cvarr'", "'cvar'", "minimum")),
    "name in box": ("train dqn --box pole_lenght=0.2:1.4", ("box", "'pole_lenght'", "'pole_length'")),
    "name in nominal": ("train dqn --nominal cartmass=1", ("nominal", "'cartmass'", "'cart_mass'")),
    "empty box": ("train dqn --box pole_length=1:1", ("box", "pole_length=1:1", "empty")),
    "reversed box": ("train dqn --box pole_length=1.4:0.2", ("box", "pole_length=1.4:0.2", "reversed")),
    "half a box": ("train dqn --box pole_length=1.4", ("box", "pole_length=1.4", "name=low:high")),
    "unreadable box": ("train dqn --box pole_length=a:b", ("box", "pole_length=a:b", "can't be read")),
    "mass of zero": ("train dqn --box cart_mass=0:7", ("box", "cart_mass", "value 0", "positive")),
    "negative mass": ("train dqn --nominal cart_mass=-1", ("nominal", "cart_mass", "-1", "positive")),
    "infinite mass": ("train dqn --nominal cart_mass=inf", ("nominal", "cart_mass", "inf")),
    "sensor noise": ("train dqn --sensor-noise=-1", ("sensor_noise is -1", "at least 0")),
    "action delay": ("train dqn --action-delay 101", ("action_delay is 101", "from 0 to 100")),
    "name of noise": ("train dqn --parameter-noise forse=1", ("parameter_noise", "'forse'", "'force'")),
    "parameter noise": ("train dqn --parameter-noise force=-1", ("parameter_noise", "force", "-1", "at least 0")),
    "range of noise": ("train dqn --parameter-noise force=1:2", ("parameter_noise", "force=1:2", "name=deviation")),
    "delayed test": ("evaluate {run} --action-delay=-1", ("action_delay is -1", "from 0 to 100")),
    "memory": ("train rtd_dqn --models 100000", ("100000 models", "GB", "replay_size")),
    "other estimator": ("train ddqn --observation-noise 3", ("--observation-noise", "not a setting of ddqn")),
    "other filter": (
        "train rtd_dqn --process-noise 1",
        ("--process-noise is not a setting of rtd_dqn", "'deeprok train rtd_dqn --help'"),
    ),
    "other target": ("train dqn --robust-set=cvar", ("--robust-set is not a setting of dqn",)),
    "other learner": ("train epopt --batch-size 3", ("--batch-size is not a setting of epopt",)),
    "other environment": ("train epopt --env ferry --integrator euler", ("--integrator", "epopt on ferry")),
    "module": ("train dqn --env nosuch:thing", ("env is 'nosuch:thing'", "no module 'nosuch'")),
    "object": ("train dqn --env json:nothing", ("env is 'json:nothing'", "has no 'nothing'")),
    "no environment": (
        "train dqn --env json:dumps",
        ("env is 'json:dumps'", "is a function", "its one argument must be horizon"),
    ),
    "network": ("train dqn --network nope", ("network 'nope'", "mlp", "module:object")),
    "module of a network": ("train dqn --network=nosuch:net", ("network is 'nosuch:net'", "no module 'nosuch'")),
    "own algorithm": ("train nosuch:mine", ("algorithm is 'nosuch:mine'", "no module 'nosuch'")),
    "own set": ("train rtd_dqn --robust-set nosuch:ball", ("robust_set is 'nosuch:ball'", "no module 'nosuch'")),
    "ktd noise": ("train ktd_q --process-noise=-1", ("process_noise is -1", "at least 0")),
    "settings of a run": ("train --resume {run} --models 9", ("--models can't be given with --resume",)),
    "budget of a run": ("train --resume {run} --episodes 2", ("episodes is 2", "has done 3 already")),
    "models": ("train dqn --fixed-models cart_mass=3:1:2", ("fixed_models", "cart_mass=3:1", "reversed")),
    "prior": ("train deep_rok --prior-covariance 0", ("prior_covariance", "0", "positive")),
    "ktd prior": ("train ktd_q --prior-covariance 0", ("prior_covariance", "0", "positive")),
    "ktd double": ("train ktd_rtd --double", ("--double is not a setting of ktd_rtd",)),
    "ktd target": ("train ktd_q --target-period 5", ("--target-period is not a setting of ktd_q",)),
    "narrow": (
        "train bbb_dqn --weight-prior mixture --narrow-variance 2",
        ("narrow_variance is 2", "below prior_variance", "1"),
    ),
    "share": ("train bbb_dqn --wide-share 1", ("wide_share is 1", "below 1")),
    "thinning": ("train psgld_dqn --thinning 0", ("thinning is 0", "at least 1")),
    "of another": ("train psgld_dqn --prior-covariance 1", ("--prior-covariance is not a setting of psgld_dqn",)),
    "undefined prior": ("train deep_rok --prior-covariance nan", ("prior_covariance", "nan")),
    "no prior": ("train deep_rok --prior-covariance nowhere.json", ("prior_covariance", "nowhere.json", ".npy")),
    "noise": ("train deep_rok --observation-noise 0", ("observation_noise is 0", "positive")),
    "process noise": ("train deep_rok --process-noise -1", ("process_noise is -1", "at least 0")),
    "rate": ("train dqn --learning-rate 0", ("learning_rate is 0", "positive")),
    "episodes": ("train dqn --episodes=-1", ("episodes is -1", "at least 0")),
    "no limit": ("train dqn --steps 0", ("episodes and steps are both 0", "one of them must be a limit")),
    "no limit of episodes": ("train dqn --preset tuned --episodes 0", ("episodes and steps are both 0",)),
    "discount": ("train dqn --discount 1", ("discount is 1", "below 1")),
    "probability": ("train dqn --epsilon-end 1.5", ("epsilon_end is 1.5", "between 0 and 1")),
    "level": ("train rtd_dqn --robust-set cvar --robust-level 0", ("robust_level is 0", "above 0")),
    "layer": ("train dqn --hidden 0", ("hidden is (0,)", "at least 1")),
    "scale": ("train dqn --input-scale 1 2 3", ("input_scale", "4")),
    "chunk": ("train dqn --chunk-steps 5 --train-every 2", ("chunk_steps is 5", "train_every, which is 2")),
    "seed": ("train dqn --seed -1", ("seed is -1", "4294967295")),
    "seeds": ("train dqn --seeds 0", ("seeds is 0", "at least 1")),
    "too large a seed": ("train dqn --seed 4294967295 --seeds 2", ("seed", "4294967295")),
    "jobs": ("train dqn --jobs 0", ("jobs is 0", "at least 1")),
    "grid name": ("evaluate {run} --grid pole_lenght=0.2:1.4:7", ("grid", "'pole_lenght'", "'pole_length'")),
    "unreadable grid": ("evaluate {run} --grid pole_length", ("grid", "'pole_length'", "name=low:high:count")),
    "numbers of a grid": ("evaluate {run} --grid pole_length=1:x:3", ("grid", "pole_length=1:x:3", "can't be read")),
    "two numbers": ("evaluate {run} --grid pole_length=1:2", ("grid", "pole_length=1:2", "name=low:high:count")),
    "part of a point": ("evaluate {run} --grid pole_length=1:2:2.5", ("grid", "pole_length", "2.5", "whole")),
    "name twice": ("evaluate {run} --grid force=1,force=2", ("grid", "force", "twice")),
    "mass of a grid": ("evaluate {run} --grid cart_mass=-1:1:3", ("grid", "cart_mass", "-1", "positive")),
    "test episodes": ("evaluate {run} --episodes 0", ("episodes is 0", "at least 1")),
    "test epsilon": ("evaluate {run} --epsilon 2", ("epsilon is 2", "between 0 and 1")),
    "members": ("evaluate {run} --members 0", ("members is 0", "at least 1")),
    "large test seed": ("evaluate {run} --seed 99999999999999999999", ("seed is 99999999999999999999",)),
    "name of an evaluation": ("evaluate {run} --name ../x", ("name is '../x'", "letters, digits")),
    "plot of another kind": ("evaluate {run} --plot map.gif", ("plot is map.gif", ".png, .svg or .pdf")),
    "plot nowhere": ("evaluate {run} --plot no/map.png", ("plot is no/map.png", "no folder no")),
    "plot of three": (
        "evaluate {run} --plot map.png --grid force=1:2:2,gravity=9,cart_mass=1",
        ("plot", "one or two", "3: force, gravity, cart_mass"),
    ),
    "option": ("train dqn --episods 5", ("unknown option '--episods'", "'--episodes'", "deeprok train dqn --help")),
    "option of solve": ("solve inventory --raduis=0.2", ("unknown option '--raduis'", "'--radius'")),
    "unlike any option": ("evaluate {run} --zzz", ("unknown option '--zzz'", "'deeprok evaluate --help'")),
    "word": ("evaluate {run} again", ("unexpected word 'again'",)),
    "number": ("train dqn --episodes many", ("--episodes is 'many'", "whole number")),
    "optional number": ("solve inventory --discount=high", ("--discount is 'high'", "must be a number")),
    "numbers": ("train dqn --hidden 4 a --models 2", ("--hidden is '4 a'", "whole number")),
    "choice": ("train dqn --acting real", ("--acting is 'real'", "nominal, sampled or member")),
    "policy": ("evaluate x --policy median", ("--policy is 'median'", "mean, vote, mean_q, sample or lcb")),
    "no value": ("solve inventory --radius", ("--radius needs a value",)),
    "no run": ("evaluate", ("RUN must be given",)),
    "no run and no file": ("export", ("RUN and --out must be given",)),
    "processes of a resumed run": ("train --resume {run} --jobs two", ("--jobs is 'two'", "whole number")),
    "command": ("trian dqn", ("command 'trian'", "'train'")),
    "needless word": ("algorithms cartpole", ("algorithms", "'cartpole'")),
    "unknown environment to list": ("environments CartPoole-v1", ("env", "'CartPoole-v1'")),
}


@pytest.mark.parametrize(("words", "needed"), BAD.values(), ids=BAD)
def test_bad_input(
    refused: Refused,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    needed: tuple[str, ...],
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    said = refused(words.format(run=run).split())
    assert [word for word in needed if word not in said] == []


def test_tyro_that_says_nothing_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for events in (None, SimpleNamespace(**{**vars(options.events), "UnrecognizedArgs": SimpleNamespace})):
        monkeypatch.setattr(options, "events", events)
        assert exit_code(["evaluate", "x", "--zzz"]) == 2
        assert "--zzz" in capsys.readouterr().err


def indefinite(n: int) -> list[list[float]]:
    P = np.eye(n)
    P[0, 1] = P[1, 0] = 2.0
    return P.tolist()


BAD_PRIORS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "short": ("p.json", [1.0] * 8, ("(8,)", "9")),
    "wrong matrix": ("p.npy", np.eye(3), ("(3, 3)", "9 × 9")),
    "negative": ("p.json", [1.0] * 8 + [-1.0], ("-1", "positive")),
    "indefinite": ("p.json", indefinite(9), ("positive definite",)),
    "asymmetric": ("p.json", (np.eye(9) + np.eye(9, k=1)).tolist(), ("symmetric",)),
    "ragged": ("p.json", [[1.0, 2.0], [1.0]], ()),
    "words": ("p.json", ["a"] * 9, ()),
    "object": ("p.json", {"a": 1}, ()),
    "complex": ("p.npy", np.ones(9, complex), ()),
}


@pytest.mark.parametrize(("name", "values", "needed"), BAD_PRIORS.values(), ids=BAD_PRIORS)
def test_bad_prior(refused: Refused, tmp_path: Path, name: str, values: Any, needed: tuple[str, ...]) -> None:
    path = write_prior(tmp_path / name, values)
    said = refused(
        ["train", "deep_rok", "--hidden", "1", "--prior-covariance", str(path), "--out", str(tmp_path / "run")]
    )
    assert [word for word in ("prior_covariance", *needed) if word not in said] == []


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no array"])
def test_damaged_prior(refused: Refused, tmp_path: Path, content: bytes) -> None:
    for path in (tmp_path / "p.npy", tmp_path / "p.json"):
        path.write_bytes(content)
        words = ["train", "deep_rok", "--prior-covariance", str(path), "--out", str(tmp_path / "run")]
        assert str(path) in refused(words)


def test_pickled_prior_is_not_read(refused: Refused, tmp_path: Path) -> None:
    path, trap = tmp_path / "prior.npy", tmp_path / "trapped"
    np.save(path, np.array([Trap(trap)] * 9, dtype=object), allow_pickle=True)
    refused(["train", "deep_rok", "--hidden", "1", "--prior-covariance", str(path), "--out", str(tmp_path / "run")])
    assert not trap.exists()
    np.load(path, allow_pickle=True)  # the trap works
    assert trap.exists()


@pytest.mark.parametrize("seeds", [[], ["--seeds", "2"]])
def test_full_folder_is_kept(refused: Refused, tmp_path: Path, seeds: list[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    said = refused(["train", "dqn", "--out", str(tmp_path / "out"), *seeds])
    assert f"--resume {tmp_path / 'out'}" in said


def test_full_disk(refused: Refused, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "policy.json").write_text("old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for words in (
        ["export", str(run), "--out", str(tmp_path / "policy.json")],
        ["evaluate", str(run), "--grid", "cart_mass=1", "--episodes", "1"],
    ):
        assert "no space is left on the disk" in refused(words)


def test_onnx_says_what_it_is_for(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "policy.onnx"
    assert main(["export", str(finished), "--format", "onnx", "--out", str(out)]) == 0
    found = {each.key: each.value for each in onnx.load(out).metadata_props}
    assert (found["env"], found["algorithm"]) == ("cartpole", "deep_rok")
    assert json.loads(found["actions"]) == ["left", "right"]
    assert json.loads(found["input_scale"]) == [1.0] * 4
    assert len(json.loads(found["observation_scale"])) == 4


def test_export_into_a_file(refused: Refused, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    said = refused(["export", str(finished), "--out", str(tmp_path / "file" / "policy.json")])
    assert str(tmp_path / "file") in said


def test_ensemble_of_a_point(refused: Refused, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "rtd_dqn")
    assert "rtd_dqn has no posterior" in refused(["evaluate", str(run), "--policy", "vote"])


def test_interrupted(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "evaluate", stop)
    assert main(["evaluate", str(finished)]) == 130


@pytest.mark.parametrize(("steps", "episodes", "said"), [(0, 0, "nothing was trained yet"), (40, 1, "all is saved")])
def test_interrupted_training_says_what_is_saved(
    steps: int, episodes: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = at_step(tmp_path / "run", make_config("dqn", episodes=5), steps, episodes)
    with pytest.raises(KeyboardInterrupt):
        train._train_runs(run, [run], 1, interrupt)
    assert f"stopped; {said}, resume with: deeprok train --resume {run}" in capsys.readouterr().err


def test_interrupted_with_the_last_chunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = at_step(tmp_path / "run", make_config("dqn", episodes=5), 40, 1)

    def finish(*_: Any, **__: Any) -> None:
        counters = {"steps": np.int32(60), "episodes": np.int32(5)}
        checkpoint.save(run / runs.CHECKPOINT, {"run": counters, "best": {"steps": np.int32(0)}})
        raise KeyboardInterrupt

    train._train_runs(run, [run], 1, finish)
    captured = capsys.readouterr()
    assert "stopped" not in captured.err
    assert f"deeprok evaluate {run}" in captured.out


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_interrupted_while_it_imports(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, threading\n"
        "from deeprok.cli.main import program\n"  # which is quick: the rest is imported when it is called
        "threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
        f"sys.argv[1:] = ['train', 'dqn', '--out', '{tmp_path / 'out'}']\n"
        "sys.exit(program())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "export {run} --out {file}",
        "screen ferry --episodes 2 --out {file}",
        "solve river_swim --radius 0:0.5:3 --out {file}",
        "identify --env cartpole --data log.csv --out {file}",
    ],
    ids=lambda words: words.split()[0],
)
@pytest.mark.parametrize("place", ["config.json", "evaluation-nominal.json", "../metrics.jsonl.json"])
def test_what_a_run_keeps_is_not_overwritten(
    words: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "seeds" / "seed-0")
    file = (run / place).resolve()
    before = {path: path.read_bytes() for path in run.iterdir()}
    code = main(words.format(run=run, file=file).split())
    said = " ".join(capsys.readouterr().err.split())
    if ".." in place:  # a name that no run has
        assert "keeps for itself" not in said
    else:
        assert code == 2
        assert said == f"deeprok: out is {file}, which the run in {run} keeps for itself; give another file".replace(
            "out is", "--out is" if words.startswith("solve") else "out is"
        )
    assert {path: path.read_bytes() for path in run.iterdir()} == before
