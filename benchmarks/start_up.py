"""How long a command takes to start: help and lists, and the first against the second time with an empty cache."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import BenchmarkError, Progress, Ratio, Result

#: Commands that compute nothing: seconds of processor time each may take.
LISTS = {"--help": 0.5, "algorithms": 0.5}
#: Commands that compile; those that train do so for a few episodes, in a new folder.
COMMANDS = {
    "solve": ("solve", "inventory", "--set", "l1", "--radius", "0.2"),
    "train deep_rok": ("train", "deep_rok", "--preset", "tuned", "--episodes", "3", "--out", "{run}"),
    "train rtd_dqn": ("train", "rtd_dqn", "--preset", "tuned", "--episodes", "3", "--out", "{run}"),
}


def seconds(words: tuple[str, ...], folder: Path) -> float:
    """The processor time of one command, which stores its programs in the folder."""
    # As for any user, modules are compiled once.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder.parent / "modules"), "DEEPROK_CACHE": str(folder / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    run = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-m", "deeprok", *(word.format(run=f"{run}/run") for word in words)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(words)}: {done.stderr.strip()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    times: dict[str, list[float]] = {}

    def measure(name: str, words: tuple[str, ...], folder: Path) -> None:
        measured = times.setdefault(name, [])
        progress(f"round {len(measured) + 1} of {repeats}: {name}")
        measured.append(seconds(words, folder))

    with tempfile.TemporaryDirectory() as whole:
        before = Path(whole) / "before"
        before.mkdir()
        for words in [*((name,) for name in LISTS), COMMANDS["solve"], COMMANDS["train rtd_dqn"]]:
            progress("modules")  # are compiled by this
            seconds(words, before)
        for _ in range(repeats):
            for name in LISTS:
                measure(f"deeprok {name}", (name,), before)
            for name, words in COMMANDS.items():
                with tempfile.TemporaryDirectory(dir=whole) as folder:
                    measure(f"{name}, first", words, Path(folder))
                    measure(f"{name}, second", words, Path(folder))
    result = Result("Starting a command (a step is a whole command)", times)
    for name, bar in LISTS.items():
        result.ratios.append(Ratio(f"deeprok {name}: seconds", result.best(f"deeprok {name}"), "<=", bar))
    for name in COMMANDS:
        result.compare(f"{name}: second time over the first", f"{name}, second", f"{name}, first", "<=", 0.5)
    return result
