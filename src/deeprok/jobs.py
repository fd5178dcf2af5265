"""Many runs at once: seeds in step within a process, and processes side by side.

Seeds of gradient agents run in step, because small networks leave a core idle. A Kalman agent's
covariance, unless it is a diagonal, fills the cache by itself, so each of its seeds has a process of
its own. Either way a run is what it would be alone, bit for bit.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deeprok import runs
from deeprok.config import Config, check
from deeprok.errors import DeeprokError
from deeprok.trainer import Report, interruptions, progress_of, train_together


def train(
    config: Config,
    out: str | Path,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    report: Report | None = None,
) -> list[Path]:
    """Trains an agent from the beginning.

    Args:
      config: the settings, from `make_config`.
      out: a new folder. It becomes the run folder or, if `seeds` is given, holds one for each.
      seeds: seeds to train instead of the settings' own.
      jobs: processes at once; by default as many as there are cores.
      report: called after each chunk with the run's folder and its new line of metrics.

    Returns:
      The run folders.
    """
    if not isinstance(config, Config):
        raise DeeprokError(f"config is {config!r}; it must be settings that make_config made")
    if seeds is not None and not isinstance(seeds, Sequence):
        raise DeeprokError(f"seeds is {seeds!r}; it must be a list of seeds, such as [0, 1, 2]")
    check(config)
    check_count(jobs)
    out = Path(out)
    if seeds is None:
        runs.create(out, config)
        folders = [out]
    else:
        folders = runs.create_seeds(out, config, seeds)
    resume(folders, jobs, report)
    return folders


def resume(folders: Sequence[Path], jobs: int | None = None, report: Report | None = None) -> None:
    """Trains runs on from where they are, until each has done its episodes.

    Args:
      folders: run folders, of any settings.
      jobs: processes at once; by default as many as there are cores.
      report: called after each chunk with the run's folder and its new line of metrics.
    """
    check_count(jobs)
    jobs = jobs or count_cores()
    groups = _groups(folders, jobs)
    if jobs == 1 or len(groups) <= 1:
        for group in groups:
            train_together(group, report)
    else:
        _side_by_side(groups, jobs, report)


def check_count(jobs: int | None) -> None:
    """Raises unless this is a number of processes, or None for the default."""
    if jobs is not None and jobs < 1:
        raise DeeprokError(f"jobs is {jobs}; it must be at least 1")


def _groups(folders: Sequence[Path], jobs: int) -> list[list[Path]]:
    """Unfinished runs in groups that can go in step: equal settings, equal step, and no large covariance."""
    groups: dict[tuple[str, int], list[Path]] = {}
    alone: list[list[Path]] = []
    for folder in folders:
        config = runs.read_config(folder)
        steps, episodes = progress_of(folder)
        if episodes >= config.episodes:
            continue
        if not config.in_step:
            alone.append([folder])
        else:
            groups.setdefault((config.digest(), steps), []).append(folder)
    split = [group[start::jobs] for group in groups.values() for start in range(min(jobs, len(group)))]
    return alone + split


def count_cores() -> int:
    """How many cores this process may use."""
    return len(_cores())


def _cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    core: int
    told: dict[Path, int]  # how many bytes of each run's metrics have been reported


def _side_by_side(groups: Sequence[Sequence[Path]], jobs: int, report: Report | None) -> None:
    """Trains each group in a process of its own, as many at a time as there are jobs."""
    free = list(itertools.islice(itertools.cycle(_cores()), jobs))
    waiting = list(groups)
    workers: list[_Worker] = []
    problems: list[str] = []
    with interruptions() as interrupted, tempfile.TemporaryDirectory(prefix="deeprok-") as cache:
        try:
            while (waiting or workers) and not interrupted.is_set():
                while waiting and free:
                    workers.append(_start_worker(waiting.pop(0), free.pop(), cache))
                time.sleep(0.2)
                for worker in list(workers):
                    ended = worker.process.poll() is not None
                    _report_new(worker, report)
                    if ended:
                        workers.remove(worker)
                        free.append(worker.core)
                        problems += _problem(worker)
        finally:  # whatever happened here, workers save and stop
            for worker in workers:
                worker.process.send_signal(signal.SIGTERM)
            for worker in workers:
                _problem(worker)
        if interrupted.is_set():
            raise KeyboardInterrupt
    if problems:
        raise DeeprokError(*problems)


def _problem(worker: _Worker) -> list[str]:
    """Waits for a worker's end; what it had to say if it was not a good one."""
    errors = worker.process.communicate()[1].decode().strip()
    if worker.process.returncode in (0, 130):
        return []
    return [errors or f"a worker ended with code {worker.process.returncode}"]


def _start_worker(group: Sequence[Path], core: int, cache: str) -> _Worker:
    for folder in group:
        runs.trim_metrics(folder, progress_of(folder)[0])  # or lines that will come again were told twice
    told = {folder: _size(folder / runs.METRICS) for folder in group}
    # A worker has one core: threads that BLAS starts for the others would wait for each other there,
    # which makes a small Cholesky a hundred times slower.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP")}
    # Seeds share their programs: compiling takes half as long as training does.
    compiled = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    # A session of its own, so that the terminal's Ctrl-C reaches it through us, once.
    process = subprocess.Popen(
        [sys.executable, "-c", "from deeprok.jobs import work; work()", str(core), *map(str, group)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**compiled, **os.environ, **threads},
        start_new_session=True,
    )
    return _Worker(process, core, told)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _report_new(worker: _Worker, report: Report | None) -> None:
    if report is None:
        return
    for folder, told in worker.told.items():
        path = folder / runs.METRICS
        if _size(path) == told:
            continue
        with open(path, "rb") as file:
            file.seek(told)
            for line in file:
                if not line.endswith(b"\n"):  # half a line: wait for the rest
                    break
                worker.told[folder] += len(line)
                report(folder, json.loads(line))


def work() -> None:
    """What a worker process does: its arguments are a core and run folders."""
    core, folders = int(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    parent = os.getppid()

    def stop_if_orphaned(folder: Path, line: object) -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train_together(folders, stop_if_orphaned)
    except KeyboardInterrupt:
        sys.exit(130)
    except DeeprokError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
