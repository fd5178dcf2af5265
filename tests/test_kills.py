"""Trainings that are killed at any moment, and go on as if nothing had happened."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from deeprok.runs import folder as runs

#: Checkpoints after every chunk, so that a kill can meet one that is being written. The module is not imported here:
#: that takes seconds, in which a worker would not yet watch for its parent's end.
EAGER = """
import builtins, sys
original = builtins.__import__
def eager(*args, **options):
    module = original(*args, **options)
    loop = sys.modules.get("deeprok.training.loop")
    if hasattr(loop, "_CHECKPOINT_SECONDS"):
        loop._CHECKPOINT_SECONDS = 0.0
    return module
builtins.__import__ = eager
"""

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
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of the processes: what they compile is shared, and checkpoints are eager."""
    folder = tmp_path_factory.mktemp("eager")
    (folder / "sitecustomize.py").write_text(EAGER)
    cache = str(tmp_path_factory.mktemp("cache"))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **dict(JAX_COMPILATION_CACHE_DIR=cache, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0"),
        **os.environ,
        "PYTHONPATH": path,
    }


def start(words: str, out: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "deeprok", "train", *words.split(), str(out)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    errors = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 0, errors


def contents(out: Path) -> list[Any]:
    """Every tensor, and every line of metrics but for the time it took."""
    found: list[Any] = []
    for seed in SEEDS:
        folder = out / f"seed-{seed}"
        tensors = safetensors.numpy.load_file(folder / runs.CHECKPOINT)
        lines = [json.loads(line) for line in (folder / runs.METRICS).read_text().splitlines()]
        found.append({name: value.tobytes() for name, value in tensors.items()})
        found.append([{**line, "seconds": None} for line in lines])
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Callable[[str], list[Any]]:
    @functools.cache
    def run(name: str) -> list[Any]:
        out = tmp_path_factory.mktemp("undisturbed") / "out"
        finish(start(f"{COMMANDS[name]} --seeds {len(SEEDS)} --out", out, environment))
        return contents(out)

    return run


def workers_of(parent: int) -> list[int]:
    """Processes whose parent this is (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes], pause: float) -> None:
    """Until something has happened, or the training has ended without it; a pause in seconds is between two looks."""
    deadline = time.monotonic() + 120.0
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(pause)


def sizes(out: Path) -> list[int]:
    return [path.stat().st_size for path in out.glob(f"seed-*/{runs.METRICS}")]


def kill(process: subprocess.Popen[bytes], how: str, out: Path, chance: random.Random) -> bool:
    """Kills a training, or only its parent, at a moment that chance decides; false if it had ended by then."""
    before = sizes(out)
    if chance.random() < 0.8:  # else while it compiles
        wait_for(lambda: sizes(out) != before, process, 0.02)
    time.sleep(chance.uniform(0.0, 0.8))
    if how == "writing":
        wait_for(lambda: any(out.glob("seed-*/.*.partial")), process, 0.001)
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


def survive(name: str, how: str, kills: int, out: Path, environment: dict[str, str], undisturbed: Any) -> None:
    chance = random.Random(f"{name} {how}")
    first = f"{COMMANDS[name]} --seeds {len(SEEDS)} --out"
    process = start(first, out, environment)
    for i in range(kills):
        assert kill(process, how, out, chance), f"it was over before kill {i}"
        process.stderr.close()
        begun = (out / "seed-1" / runs.CONFIG).exists()  # else there is nothing to go on with
        process = start(f"--jobs {chance.choice((1, 2))} --resume" if begun else first, out, environment)
    finish(process)
    assert contents(out) == undisturbed(name)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["parent", "all", "writing"])
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_five_times(name: str, how: str, tmp_path: Path, environment: Any, undisturbed: Any) -> None:
    survive(name, how, 5, tmp_path / "out", environment, undisturbed)
