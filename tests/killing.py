"""Trainings in processes that save after every chunk, to be killed and looked at."""

from __future__ import annotations

import json
import os
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
    if hasattr(loop, "CHECKPOINT_SECONDS"):
        loop.CHECKPOINT_SECONDS = 0.0
    return module
builtins.__import__ = eager
"""

SEEDS = (0, 1)


def eager_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of processes: what they compile is shared, and checkpoints are eager."""
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
    command = [sys.executable, "-m", "deeprok", *words.split(), str(out)]
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
        found.append([{**line, "seconds": None, "processor_seconds": None} for line in lines])
    return found


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
    return [path.stat().st_size for path in out.rglob(runs.METRICS)]
