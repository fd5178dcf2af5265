from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from deeprok.core.errors import DeeprokError, DivergedError, joined
from deeprok.core.files import partial
from deeprok.runs import checkpoint, lock
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training import jobs, workers
from deeprok.training import loop as trainer
from deeprok.training.loop import progress_of

#: Short chunks and many of them, so that there is time to stop a run half way.
SETTINGS: dict[str, Any] = dict(
    hidden=(4,), episodes=150, horizon=40, models=3, batch_size=4, warm_up=20, target_period=50, epsilon_steps=300,
    chunk_steps=20, trial_every=50, trial_models=4, observation_noise=1.0, process_noise=1e-4,
)  # fmt: skip
CONFIG = make_config("deep_rok", "tuned", **SETTINGS)

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def in_this_process(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return jobs.train(CONFIG, tmp_path_factory.mktemp("jobs") / "one", seeds=[0, 1], jobs=1)


def contents(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Every tensor, and the metrics but for the time they took."""
    tensors = safetensors.numpy.load_file(folder / runs.CHECKPOINT)
    lines = [{**line, "seconds": None, "processor_seconds": None} for line in runs.read_metrics(folder)]
    return {name: value.tobytes() for name, value in tensors.items()}, lines


@pytest.mark.slow
def test_folders_of_seeds(in_this_process: list[Path]) -> None:
    assert [folder.name for folder in in_this_process] == ["seed-0", "seed-1"]
    for seed, folder in enumerate(in_this_process):
        assert runs.read_config(folder) == dataclasses.replace(CONFIG, seed=seed)
        assert progress_of(folder)[1] == CONFIG.episodes
    assert contents(in_this_process[0]) != contents(in_this_process[1])


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "deeprok", "train", *words], stderr=subprocess.PIPE, text=True)


def wait_for_metrics(process: subprocess.Popen[str], folders: list[Path], lines: int) -> None:
    deadline = time.monotonic() + 300
    while max(len(runs.read_metrics(folder)) for folder in folders) < lines and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.slow
def test_stopped_and_killed_processes_give_what_one_process_gives(
    in_this_process: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    options = [
        word
        for name, value in SETTINGS.items()
        for word in (f"--{name.replace('_', '-')}", "4" if name == "hidden" else str(value))
    ]
    folders = [out / f"seed-{seed}" for seed in (0, 1)]
    process = start("deep_rok", "--preset", "tuned", *options, "--seeds", "2", "--jobs", "2", "--out", str(out))
    try:
        wait_for_metrics(process, folders, 1)
        with pytest.raises(DeeprokError, match=rf"seed-0 is in use by process {process.pid}; wait until it has ended"):
            jobs.resume(folders)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "stopping after this chunk" in errors
    assert f"resume with: deeprok train --resume {out}" in errors
    assert "Traceback" not in errors
    stopped = [progress_of(folder) for folder in folders]
    assert max(stopped)[0] > 0
    assert min(episodes for _, episodes in stopped) < CONFIG.episodes
    process = start("--resume", str(out), "--jobs", "2")
    try:
        wait_for_metrics(process, folders, max(len(runs.read_metrics(folder)) for folder in folders) + 1)
    finally:
        process.kill()  # which leaves the workers nothing to do but to end
        process.communicate()
    monkeypatch.setattr(jobs, "train_together", lambda *_: pytest.fail("trained in this process"))
    reported: dict[Path, list[Any]] = {folder: [] for folder in folders}
    saved = {folder: progress_of(folder)[0] for folder in folders}
    assert max(saved.values()) > 0
    jobs.resume(folders, jobs=2, report=lambda folder, line: reported[folder].append(line))
    assert [contents(folder) for folder in folders] == [contents(folder) for folder in in_this_process]
    for folder, lines in reported.items():
        # Those since its checkpoint, which on a busy machine only one of the two may have had.
        assert lines == [line for line in runs.read_metrics(folder) if line["steps"] > saved[folder]]
    assert any(reported.values())


def test_a_worker_without_a_parent_ends_before_it_has_imported_anything(tmp_path: Path) -> None:
    command = [sys.executable, "-c", workers._WORKER, "0", str(tmp_path / "nowhere")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")  # and not 2, with a word about the folder


@pytest.mark.parametrize("error", [DivergedError("seed 3 broke down"), DeeprokError("the disk is full")])
def test_a_worker_process_tells_whether_a_run_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: DeeprokError
) -> None:
    def fails(folders: Any) -> None:
        raise error

    monkeypatch.setattr(workers, "train_together", fails)
    monkeypatch.setattr(workers.cache, "enable", lambda warn: None)
    monkeypatch.setattr(sys, "argv", ["", "any", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        workers.work()
    same = f"import sys; sys.stderr.write({capsys.readouterr().err!r}); sys.exit({ended.value.code})"
    monkeypatch.setattr(workers, "_WORKER", same)
    runs.create(tmp_path / "run", CONFIG)
    found: list[Any] = []
    workers.side_by_side([[tmp_path / "run"]], None, None, lambda group, said: found.append(said), jobs=1)
    assert [(type(each), str(each)) for each in found] == [(type(error), str(error))]
    assert type(joined([error, DivergedError("another")])) is type(error)


def test_a_lock_ends_with_the_last_process_that_holds_it(tmp_path: Path) -> None:
    # Processes that were killed may have left a child that is about to end.
    code = (
        "import os, sys, time; from pathlib import Path; from deeprok.runs import folder as runs\n"
        "with runs.hold([Path(sys.argv[1])]) as held:\n"
        "    if not os.fork():\n"
        "        time.sleep(1.5); os._exit(0)\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(DeeprokError, match=f"in use by process {process.pid}"), runs.hold([tmp_path]):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    began = time.monotonic()
    with runs.hold([tmp_path]):
        assert time.monotonic() - began > 0.1  # it waited for the child
        assert (tmp_path / runs.LOCK).read_text() == str(os.getpid())
        with pytest.raises(DeeprokError, match=f"in use by process {os.getpid()}"), runs.hold([tmp_path]):
            pass
    with runs.hold([tmp_path]):
        pass


@pytest.mark.parametrize("text", ["", "junk", "9" * 40])
def test_a_lock_that_names_nobody(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_ENDING_SECONDS", 0.1)
    with runs.hold([tmp_path]):
        (tmp_path / runs.LOCK).write_text(text)
        with pytest.raises(DeeprokError, match="is in use by "), runs.hold([tmp_path]):
            pass
    with runs.hold([tmp_path]):
        pass


@pytest.mark.parametrize("seeds", [None, [0, 1]])
def test_a_start_that_fails_leaves_nothing(
    tmp_path: Path, seeds: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise DeeprokError("it can't be made")

    monkeypatch.setattr(trainer, "make_program", fail)
    with pytest.raises(DeeprokError, match="it can't be made"):
        jobs.train(CONFIG, tmp_path / "out", seeds=seeds, jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_breaks_down_later_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folders: list[Path], *_: Any) -> None:
        (folders[0] / runs.METRICS).write_text("{}\n")
        raise DeeprokError("it broke down")

    monkeypatch.setattr(jobs, "train_together", fail)
    with pytest.raises(DeeprokError, match="it broke down"):
        jobs.train(CONFIG, tmp_path / "out", seeds=[0, 1], jobs=1)
    assert [folder.name for folder in runs.find(tmp_path / "out")] == ["seed-0", "seed-1"]


def test_interrupted_twice_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signalled = []

    def sleeper(group: Any, core: int, cache: str) -> workers.Worker:
        said = "signal.signal(15, lambda *_: print('asked', flush=True)); print('x', flush=True)"
        code = f"import signal, time; {said}; time.sleep(60)"
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process = subprocess.Popen([sys.executable, "-c", code], **pipes)
        process.stdout.readline()

        def interrupt_twice() -> None:
            signal.raise_signal(signal.SIGINT)
            process.stdout.readline()  # the first has been passed on: two at once might be taken for one
            signal.raise_signal(signal.SIGINT)

        threading.Timer(0.3, interrupt_twice).start()
        worker = workers.Worker(process, core, {}, contextlib.ExitStack())
        signalled.append(worker)
        return worker

    monkeypatch.setattr(workers, "start_worker", sleeper)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        workers.side_by_side([[tmp_path]], None, seen.append, lambda *_: None, jobs=1)
    (worker,) = signalled
    assert worker.process.wait(5) == -signal.SIGKILL
    for pipe in (worker.process.stdin, worker.process.stdout, worker.process.stderr):
        pipe.close()
    assert seen == [1, 2]


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
    monkeypatch.setattr(jobs, "train_together", lambda folders, *_: groups.append([f.name for f in folders]))
    monkeypatch.setattr(jobs, "side_by_side", lambda found, *_: groups.extend([f.name for f in g] for g in found))
    return groups


def test_runs_that_can_go_in_step_do(tmp_path: Path, trained_groups: list[list[str]]) -> None:
    ddqn, rtd = make_config("ddqn", "tuned"), make_config("rtd_dqn", "tuned")
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
        ["a", "b", "later", "as late"], ["kalman"], ["kalman too"], ["other settings"],
    ]  # fmt: skip


def test_seeds_are_shared_out_among_processes(tmp_path: Path, trained_groups: list[list[str]]) -> None:
    folders = [at_step(tmp_path / str(seed), make_config("ddqn", "tuned", seed=seed)) for seed in range(5)]
    jobs.resume(folders, jobs=2)
    assert sorted(itertools.chain(*trained_groups)) == list("01234")
    assert sorted(map(len, trained_groups)) == [2, 3]
    first = sorted(trained_groups)
    trained_groups.clear()
    jobs.resume(folders, jobs=4)  # they keep their groups, however many processes there are
    assert sorted(trained_groups) == first
    trained_groups.clear()
    (folders[3] / runs.GROUP).unlink()  # as if killed before all were told their groups
    jobs.resume(folders, jobs=2)
    assert sorted(trained_groups) == first
    assert [runs.read_group(folder) for folder in folders] == [(0, 2, 4), (1, 3)] * 2 + [(0, 2, 4)]


def test_groups_are_those_of_the_command_that_began(tmp_path: Path, trained_groups: list[list[str]]) -> None:
    """A training that was killed before its first step is no other one, however many processes go on with it."""
    folders = jobs.create(make_config("ddqn", "tuned"), tmp_path / "out", seeds=[4, 0, 3], jobs=2)
    assert [folder.name for folder in folders] == ["seed-4", "seed-0", "seed-3"]
    jobs.resume(folders, jobs=1)
    assert trained_groups == [["seed-4", "seed-3"], ["seed-0"]]


@pytest.mark.parametrize("seeds", [None, [0, 1]])
def test_start_that_was_killed_does_not_block_the_next(tmp_path: Path, seeds: list[int] | None) -> None:
    (first, *_) = jobs.create(CONFIG, tmp_path / "out", seeds, jobs=1)
    partial(first / runs.PRIOR).write_text("half of it")
    with runs.hold([first]), pytest.raises(DeeprokError, match=f"in use by process {os.getpid()}"):
        jobs.create(CONFIG, tmp_path / "out", seeds)
    other = dataclasses.replace(CONFIG, discount=0.5)
    folders = jobs.create(other, tmp_path / "out", seeds)
    assert [runs.read_config(folder).discount for folder in folders] == [0.5] * len(folders)
    (first / runs.METRICS).write_text("")
    with runs.hold([first]), pytest.raises(DeeprokError, match=f"in use by process {os.getpid()}"):
        jobs.create(CONFIG, tmp_path / "out", seeds)
    with pytest.raises(DeeprokError, match="already exists and is not empty"):
        jobs.create(CONFIG, tmp_path / "out", seeds)
    assert runs.read_config(first) == other


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
    cores = workers.cores()
    assert len(cores) >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores == sorted(os.sched_getaffinity(0))


def test_half_a_line_is_not_reported(tmp_path: Path) -> None:
    path, seen = tmp_path / runs.METRICS, []
    worker = workers.Worker(None, 0, {tmp_path: 0}, contextlib.ExitStack())
    for text, expected in (('{"steps": 1}\n{"ste', [1]), ('ps": 2}', [1]), ("\n", [1, 2]), ("", [1, 2])):
        with open(path, "a") as file:
            file.write(text)
        worker.report_new(lambda folder, line: seen.append(line["steps"]))
        assert seen == expected
