"""Worker processes: each trains one group of runs, reports through their folders, and ends when its parent does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, DivergedError
from deeprok.runs import folder as runs
from deeprok.training.loop import OnInterrupt, Report, interruptions, progress_of, train_together

#: Run folders, in groups that are trained together.
Groups = Sequence[Sequence[Path]]

#: Called when the process of a group has ended, with the group and what went wrong.
OnEnd = Callable[[Sequence[Path], DeeprokError | None], None]

#: What a worker process ends with if runs diverged, and nothing else was wrong.
_DIVERGED = 3


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def side_by_side(
    groups: Groups, report: Report | None, on_interrupt: OnInterrupt | None, on_end: OnEnd, jobs: int
) -> None:
    """Trains each group in a process of its own, as many at a time as there are jobs.

    Args:
      groups: run folders, in groups that are trained together.
      report: called after each chunk with the run's folder and its new line of metrics.
      on_interrupt: called when the training is interrupted, at once.
      on_end: called when a group has ended. One that fails does not stop the others.
      jobs: processes at once.
    """
    free = list(itertools.islice(itertools.cycle(cores()), jobs))
    waiting = list(groups)
    workers: list[Worker] = []
    # Seeds share their programs: compiling takes half as long as training does.
    with interruptions(on_interrupt) as interrupted, cache.shared() as environment:
        try:
            while (waiting or workers) and not interrupted.is_set():
                while waiting and free:
                    group = waiting.pop(0)
                    try:
                        workers.append(start_worker(group, free[-1], environment))
                        free.pop()
                    except DeeprokError as error:  # another process got hold of its folder
                        on_end(group, error)
                time.sleep(0.2)
                for worker in list(workers):
                    ended = worker.process.poll() is not None
                    worker.report_new(report)
                    if ended:
                        workers.remove(worker)
                        assert worker.core is not None
                        free.append(worker.core)
                        on_end(worker.group, worker.join())
        finally:  # whatever happened here, workers save and stop
            try:
                for worker in workers:
                    worker.process.send_signal(signal.SIGTERM)
                for worker in workers:
                    worker.join()
            except KeyboardInterrupt:  # asked twice
                for worker in workers:
                    worker.process.kill()
                raise
        if interrupted.is_set():
            raise KeyboardInterrupt


class Worker(NamedTuple):
    """A process that trains a group of runs."""

    process: subprocess.Popen[bytes]
    core: int | None  # the one that it has for itself
    told: dict[Path, int]  # how many bytes of each run's metrics have been reported
    locks: contextlib.ExitStack  # on its folders, which the process holds too

    @property
    def group(self) -> list[Path]:
        """The run folders."""
        return list(self.told)

    def report_new(self, report: Report | None) -> None:
        """Reports the lines of metrics that are new since the last call."""
        if report is None:
            return
        for folder, told in self.told.items():
            path = folder / runs.METRICS
            if _size(path) == told:
                continue
            with open(path, "rb") as file:
                file.seek(told)
                for line in file:
                    if not line.endswith(b"\n"):  # half a line: wait for the rest
                        break
                    self.told[folder] += len(line)
                    report(folder, json.loads(line))

    def join(self) -> DeeprokError | None:
        """Waits for the process's end; what it had to say if it was not a good one."""
        assert self.process.stdin
        assert self.process.stderr
        while self.process.poll() is None:  # in steps, so that a signal is seen whichever thread it reaches
            time.sleep(0.05)
        errors = self.process.stderr.read().decode().strip()
        self.process.stdin.close()
        self.process.stderr.close()
        self.locks.close()
        if self.process.returncode in (0, 130):
            return None
        kind = DivergedError if self.process.returncode == _DIVERGED else DeeprokError
        return kind(errors or f"a worker ended with code {self.process.returncode}")


# A worker ends as soon as its parent has, however that was: nobody else writes to its input. On Linux the kernel sees
# to it too, for a thread of Python may have to wait for a library. Both are arranged before anything that takes long
# is imported.
_WORKER = """
import ctypes, os, signal, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
from deeprok.training.workers import work
work()
"""

_NO_CORE = "any"


def start_worker(
    group: Sequence[Path],
    core: int | None,
    environment: Mapping[str, str],
    here: Path | None = None,
    modules: Sequence[str] = (),
) -> Worker:
    """Starts a process that trains a group of runs.

    Args:
      group: run folders that are trained together.
      core: the core that it has for itself; None for whichever is free, one at a time.
      environment: its environment variables.
      here: the folder that it runs in, if not this process's.
      modules: where it finds modules that this process does not.
    """
    locks = contextlib.ExitStack()
    held = locks.enter_context(runs.hold(group))
    for folder in group:
        runs.trim_metrics(folder, progress_of(folder)[0])  # or lines that will come again were told twice
    told = {folder: _size(folder / runs.METRICS) for folder in group}
    # A worker has one core: threads that BLAS starts for the others would wait for each other there,
    # which makes a small Cholesky a hundred times slower. XLA counts the cores unless it is told their number.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP")}
    if core is None:
        threads["NPROC"] = "1"
    # A session of its own, so that the terminal's Ctrl-C reaches it through us, once.
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, _NO_CORE if core is None else str(core), *map(str, group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**environment, **threads, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, *modules]))},
        cwd=here,
        start_new_session=True,
        pass_fds=held,
    )
    return Worker(process, core, told, locks)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def work() -> None:
    """What a worker process does: its arguments are a core and run folders."""
    core, folders = sys.argv[1], [Path(name) for name in sys.argv[2:]]
    if core != _NO_CORE and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core)})
    cache.enable(warn=lambda said: None)  # the parent warned
    try:
        train_together(folders)
    except KeyboardInterrupt:
        sys.exit(130)
    except DeeprokError as error:
        print(error, file=sys.stderr)
        sys.exit(_DIVERGED if isinstance(error, DivergedError) else 2)
    except Exception as error:  # of a user's own part, most likely
        print(f"{type(error).__name__}: {error}; train with --jobs 1 to see where", file=sys.stderr)
        sys.exit(1)
