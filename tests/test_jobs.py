from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from deeprok import checkpoint, jobs, runs, trainer
from deeprok.cli import main
from deeprok.config import Config, make_config
from deeprok.errors import DeeprokError
from deeprok.trainer import progress_of

#: Short chunks and many of them, so that there is time to stop a run half way.
SETTINGS: dict[str, Any] = dict(
    hidden=(4,), episodes=300, horizon=40, models=3, batch_size=4, warm_up=20, target_period=50, epsilon_steps=300,
    chunk_steps=20, trial_every=50, trial_models=4, observation_noise=1.0, process_noise=1e-4,
)  # fmt: skip
CONFIG = make_config("deep_rok", **SETTINGS)


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Iterator[None]:
    """Runs in this process whose settings differ by their seed only share compiled functions."""
    program = functools.cache(trainer.make_program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "make_program", lambda config: program(dataclasses.replace(config, seed=0)))
        yield


@pytest.fixture(scope="module")
def in_this_process(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return jobs.train(CONFIG, tmp_path_factory.mktemp("jobs") / "one", seeds=[0, 1], jobs=1)


def contents(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Every tensor, and the metrics but for the time they took."""
    tensors = safetensors.numpy.load_file(folder / runs.CHECKPOINT)
    lines = [{**line, "seconds": None} for line in runs.read_metrics(folder)]
    return {name: value.tobytes() for name, value in tensors.items()}, lines


def test_folders_of_seeds(in_this_process: list[Path]) -> None:
    assert [folder.name for folder in in_this_process] == ["seed-0", "seed-1"]
    for seed, folder in enumerate(in_this_process):
        assert runs.read_config(folder) == dataclasses.replace(CONFIG, seed=seed)
        assert progress_of(folder)[1] == CONFIG.episodes
    assert contents(in_this_process[0]) != contents(in_this_process[1])


def test_processes_give_what_one_gives(
    in_this_process: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "train_together", lambda *_: pytest.fail("trained in this process"))
    reported: dict[Path, list[Any]] = {}
    folders = jobs.train(
        CONFIG, tmp_path, seeds=[0, 1], jobs=2, report=lambda path, line: reported.setdefault(path, []).append(line)
    )
    assert [contents(folder) for folder in folders] == [contents(folder) for folder in in_this_process]
    assert reported == {folder: runs.read_metrics(folder) for folder in folders}


def test_stopped_processes_can_be_resumed(in_this_process: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = [
        word
        for name, value in SETTINGS.items()
        for word in (f"--{name.replace('_', '-')}", "4" if name == "hidden" else str(value))
    ]
    command = ["train", "deep_rok", *options, "--seeds", "2", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "deeprok", *command], stderr=subprocess.PIPE, text=True)
    try:
        folders = [out / f"seed-{seed}" for seed in (0, 1)]
        deadline = time.monotonic() + 300
        while not any(runs.read_metrics(folder) for folder in folders) and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert f"go on with: deeprok train --resume {out}" in errors
    assert "Traceback" not in errors
    stopped = [progress_of(folder) for folder in folders]
    assert max(stopped)[0] > 0
    assert min(episodes for _, episodes in stopped) < CONFIG.episodes
    assert main(["train", "--resume", str(out), "--jobs", "1"]) == 0
    assert [contents(folder) for folder in folders] == [contents(folder) for folder in in_this_process]


def at_step(folder: Path, config: Config, steps: int = 0, episodes: int = 0) -> Path:
    """A run folder whose checkpoint holds nothing but how far it is."""
    runs.create(folder, config)
    if steps:
        counters = {"steps": np.int32(steps), "episodes": np.int32(episodes)}
        checkpoint.save(folder / runs.CHECKPOINT, {"run": counters})
    return folder


def test_errors_of_processes_are_sentences(tmp_path: Path) -> None:
    folders = [at_step(tmp_path / str(seed), dataclasses.replace(CONFIG, seed=seed), 40, 1) for seed in (0, 1)]
    with pytest.raises(DeeprokError) as error:
        jobs.resume(folders, jobs=2)
    first, second = str(error.value).split("; was it written with other settings or by another version?")[:2]
    assert {first.partition(" has no")[0], second.removeprefix("; ").partition(" has no")[0]} == {
        str(folder / runs.CHECKPOINT) for folder in folders
    }
    assert "\n" not in str(error.value)


@pytest.fixture
def trained_groups(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the folders that were trained together, without training them."""
    groups: list[list[str]] = []
    monkeypatch.setattr(jobs, "train_together", lambda folders, _: groups.append([f.name for f in folders]))
    monkeypatch.setattr(jobs, "_side_by_side", lambda found, *_: groups.extend([f.name for f in g] for g in found))
    return groups


def test_runs_that_can_go_in_step_do(tmp_path: Path, trained_groups: list[list[str]]) -> None:
    ddqn, rtd = make_config("ddqn"), make_config("rtd_dqn")
    folders = [
        at_step(tmp_path / "a", ddqn),
        at_step(tmp_path / "kalman", CONFIG),
        at_step(tmp_path / "b", dataclasses.replace(ddqn, seed=1)),
        at_step(tmp_path / "other settings", rtd),
        at_step(tmp_path / "later", dataclasses.replace(ddqn, seed=2), 2000, 90),
        at_step(tmp_path / "as late", dataclasses.replace(ddqn, seed=3), 2000, 80),
        at_step(tmp_path / "finished", dataclasses.replace(ddqn, seed=4), 60_000, 700),
        at_step(tmp_path / "kalman too", dataclasses.replace(CONFIG, seed=1)),
    ]
    jobs.resume(folders, jobs=1)
    assert sorted(trained_groups) == [
        ["a", "b"], ["kalman"], ["kalman too"], ["later", "as late"], ["other settings"],
    ]  # fmt: skip


def test_seeds_are_shared_out_among_processes(tmp_path: Path, trained_groups: list[list[str]]) -> None:
    folders = [at_step(tmp_path / str(seed), make_config("ddqn", seed=seed)) for seed in range(5)]
    jobs.resume(folders, jobs=2)
    assert sorted(itertools.chain(*trained_groups)) == list("01234")
    assert sorted(map(len, trained_groups)) == [2, 3]


def test_nothing_to_do(tmp_path: Path, trained_groups: list[list[str]]) -> None:
    jobs.resume([at_step(tmp_path / "run", CONFIG, 9000, CONFIG.episodes)])
    assert trained_groups == []


@pytest.mark.parametrize("seeds", [None, [0, 1]])
def test_full_folder_is_refused(tmp_path: Path, seeds: list[int] | None, trained_groups: list[list[str]]) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(DeeprokError, match="already exists and is not empty"):
        jobs.train(CONFIG, tmp_path, seeds=seeds, jobs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert trained_groups == []


def test_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(DeeprokError, match="out"):
            jobs.train(CONFIG, out, jobs=1)
    assert (tmp_path / "out").read_text() == "precious"


BAD: dict[str, dict[str, Any]] = {
    "settings": dict(config=dataclasses.replace(CONFIG, discount=2.0)),
    "seed": dict(seeds=[-1]),
    "one seed of several": dict(seeds=[0, 2**32]),
    "jobs": dict(jobs=0),
    "fewer jobs": dict(jobs=-1),
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_bad_arguments_make_no_folder(tmp_path: Path, changes: dict[str, Any], trained_groups: list[list[str]]) -> None:
    with pytest.raises(DeeprokError):
        jobs.train(**dict(config=CONFIG, out=tmp_path / "out", seeds=[0, 1], jobs=1) | changes)
    assert list(tmp_path.iterdir()) == []


def test_cores_are_this_processs() -> None:
    cores = jobs._cores()
    assert len(cores) >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores == sorted(os.sched_getaffinity(0))


def test_half_a_line_is_not_reported(tmp_path: Path) -> None:
    path, seen = tmp_path / runs.METRICS, []
    worker = jobs._Worker(None, 0, {tmp_path: 0})
    for text, expected in (('{"steps": 1}\n{"ste', [1]), ('ps": 2}', [1]), ("\n", [1, 2]), ("", [1, 2])):
        with open(path, "a") as file:
            file.write(text)
        jobs._report_new(worker, lambda folder, line: seen.append(line["steps"]))
        assert seen == expected
