"""Trainings that are killed at any moment, and go on as if nothing had happened."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import SEEDS, contents, eager_environment, finish, running, sizes, start, wait_for, workers_of
from sweeping import FAST, as_toml

from deeprok.runs import folder as runs

SMALL = (
    "--preset tuned --hidden 4 --horizon 40 --models 3 --batch-size 4 --warm-up 20 --target-period 50 "
    "--epsilon-steps 300 --chunk-steps 20 --trial-every 20 --trial-models 4 --episodes 250"
)
COMMANDS = {
    # In step in one process, or in a process each.
    "rtd_dqn in step": f"rtd_dqn {SMALL} --jobs 1",
    "rtd_dqn": f"rtd_dqn {SMALL} --jobs 2",
    "deep_rok": f"deep_rok {SMALL} --observation-noise 1 --process-noise 1e-4 --jobs 2",
    "epopt": "epopt --preset tuned --hidden 4 --horizon 40 --trajectories 4 --minibatches 2 --level-iterations 2 "
    "--trial-every 20 --trial-models 4 --episodes 800 --jobs 2",
}

#: What is killed, and when.
HOW = ("parent", "all", "writing")
#: Kills of one training, and how many trainings of a kind are killed so.
KILLS, PARTS = 5, 4


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return eager_environment(tmp_path_factory)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Callable[[str], list[Any]]:
    @functools.cache
    def run(name: str) -> list[Any]:
        out = tmp_path_factory.mktemp("undisturbed") / "out"
        finish(start(f"train {COMMANDS[name]} --seeds {len(SEEDS)} --out", out, environment))
        return contents(out)

    return run


def kill(process: subprocess.Popen[bytes], how: str, out: Path, chance: random.Random) -> bool:
    """Kills a training, or only its parent, at a moment that chance decides; false if it had ended by then."""
    before = sizes(out)
    if chance.random() < 0.8:  # else while it compiles
        wait_for(lambda: sizes(out) != before, process, 0.02)
    time.sleep(chance.uniform(0.0, 0.8))
    if how == "writing":
        wait_for(lambda: any(out.rglob("seed-*/.*.partial")), process, 0.001)
    if process.poll() is not None:
        return False
    workers = workers_of(process.pid)
    process.kill()
    for worker in workers if how != "parent" else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    process.wait()
    ended = time.monotonic()
    while any(map(running, workers)):
        assert time.monotonic() < ended + 2.0, "a worker outlives its parent"
        time.sleep(0.01)
    return True


def survive(name: str, how: str, part: int, out: Path, environment: dict[str, str], undisturbed: Any) -> None:
    chance = random.Random(f"{name} {how} {part}")
    first = f"train {COMMANDS[name]} --seeds {len(SEEDS)} --out"
    process = start(first, out, environment)
    for i in range(KILLS):
        assert kill(process, how, out, chance), f"it was over before kill {i}"
        process.stderr.close()
        begun = (out / "seed-1" / runs.CONFIG).exists()  # else there is nothing to go on with
        process = start(f"train --jobs {chance.choice((1, 2))} --resume" if begun else first, out, environment)
    finish(process)
    assert contents(out) == undisturbed(name)


def test_killed_five_times(tmp_path: Path, environment: Any, undisturbed: Any) -> None:
    survive("rtd_dqn in step", "all", 0, tmp_path / "out", environment, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 1 + PARTS))
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_two_hundred_times(
    name: str, how: str, part: int, tmp_path: Path, environment: Any, undisturbed: Any
) -> None:
    assert len(COMMANDS) * len(HOW) * PARTS * KILLS >= 200
    survive(name, how, part, tmp_path / "out", environment, undisturbed)


SWEEP = as_toml({"algorithm": ["ddqn", "rtd_dqn"], "seeds": 2, "settings": {**FAST, "learning_rate": [1e-3, 1e-2]}})


@pytest.fixture(scope="module")
def undisturbed_sweep(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "spec.toml").write_text(SWEEP)
    finish(start(f"sweep {folder / 'spec.toml'} --jobs 2 --out", folder / "out", environment))
    return sweep_contents(folder / "out")


def sweep_contents(out: Path) -> dict[str, list[Any]]:
    summary = json.loads((out / "sweep.json").read_text())
    assert {trial["state"] for trial in summary["trials"]} == {"finished"}
    return {trial["folder"]: contents(out / trial["folder"]) for trial in summary["trials"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_sweep_killed_three_times(how: str, tmp_path: Path, environment: Any, undisturbed_sweep: Any) -> None:
    out, chance = tmp_path / "out", random.Random(f"sweep {how}")
    (tmp_path / "spec.toml").write_text(SWEEP)
    for i in range(3):
        process = start(f"sweep {tmp_path / 'spec.toml'} --jobs {chance.choice((1, 2))} --out", out, environment)
        assert kill(process, how, out, chance), f"it was over before kill {i}"
        process.stderr.close()
    finish(start(f"sweep {tmp_path / 'spec.toml'} --jobs 2 --out", out, environment))
    assert sweep_contents(out) == undisturbed_sweep


@pytest.mark.slow
def test_a_sweep_outlives_a_worker_and_is_refused_a_second_time(
    tmp_path: Path, environment: Any, undisturbed_sweep: Any
) -> None:
    out = tmp_path / "out"
    (tmp_path / "spec.toml").write_text(SWEEP)
    command = f"sweep {tmp_path / 'spec.toml'} --jobs 2 --out"
    process = start(command, out, environment)
    wait_for(lambda: sizes(out), process, 0.02)
    second = start(command, out, environment)
    said = second.communicate(timeout=120)[1].decode()
    assert (second.returncode, said) == (
        2, f"deeprok: {out} is in use by process {process.pid}; wait until it has ended, or stop it\n"
    )  # fmt: skip
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    errors = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 2
    assert "a worker ended with code -9" in errors
    states = [trial["state"] for trial in json.loads((out / "sweep.json").read_text())["trials"]]
    assert sorted(states) == ["failed", "finished", "finished", "finished"]
    finish(start(command, out, environment))
    assert sweep_contents(out) == undisturbed_sweep


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_goes_on(tmp_path: Path, environment: Any, undisturbed_sweep: Any) -> None:
    out = tmp_path / "out"
    (tmp_path / "spec.toml").write_text(SWEEP)
    command = f"sweep {tmp_path / 'spec.toml'} --jobs 2 --out"
    process = start(command, out, environment)
    wait_for(lambda: sizes(out), process, 0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 130
    assert "stopped; what was trained is saved, go on with the same command" in errors
    finish(start(command, out, environment))
    assert sweep_contents(out) == undisturbed_sweep


# --- tuning -------------------------------------------------------------------------------------------------------

TUNE = (
    "tune rtd_dqn --env ferry --trials 5 --preset tuned --rungs 2 --seeds 2 --finalists 2 --fresh 2 --test-episodes 5 "
    "--search learning_rate batch_size --fix episodes=60 hidden=[4] warm_up=20 chunk_steps=20 trial_models=4 "
    "--held-out 8 --jobs 2 --out"
)


def tune_contents(out: Path) -> dict[str, Any]:
    """All but the time it took."""
    found = json.loads((out / "tuning.json").read_text())
    for each in (found, *found["presets"], *found["finalists"], found["winner"]):
        each["seconds"] = None
    return {"record": found, "preset": (out / "preset.toml").read_text()}


@pytest.mark.slow
def test_a_tuning_killed_three_times_ends_as_an_undisturbed_one(tmp_path: Path, environment: Any) -> None:
    finish(start(TUNE, tmp_path / "undisturbed", environment))
    out, chance = tmp_path / "out", random.Random("tune")
    for i, how in enumerate(("parent", "all", "writing")):
        process = start(TUNE, out, environment)
        assert kill(process, how, out, chance), f"it was over before kill {i}"
        process.stderr.close()
    process, before = start(TUNE, out, environment), sizes(out)
    wait_for(lambda: sizes(out) != before, process, 0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 130
    assert "stopped; what was trained is saved, go on with the same command" in errors
    finish(start(TUNE, out, environment))
    assert tune_contents(out) == tune_contents(tmp_path / "undisturbed")
    finish(start(f"train rtd_dqn --preset {out / 'preset.toml'} --out", tmp_path / "run", environment))
    assert (tmp_path / "run" / "config.json").exists()
