"""Sweeps on Ray: each group of runs is a task, which trains it in a worker process as on one machine.

A node that sees the sweep's folder trains in it, so that a task that is tried again goes on from the last checkpoint.
On any other node the group's files travel there and back as bytes. What goes to the driver on the way are lines of
metrics, through an actor that also says when to stop. Ray is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, extra_missing, shown
from deeprok.core.files import write_atomically
from deeprok.runs import folder as runs
from deeprok.sweeps.executors import Executor
from deeprok.sweeps.parcels import CHANGED, NEEDED, Parcel, own_modules, pack, unpack
from deeprok.training import jobs
from deeprok.training.loop import OnInterrupt, Report, interruptions
from deeprok.training.workers import Groups, OnEnd, start_worker

#: How often a task is tried again whose worker or node has died.
RETRIES = 3

#: In the folder of a sweep while it runs on Ray: by this file a node can tell that it sees the folder.
TOKEN = ".ray-token"

_POLL_SECONDS = 0.5  # between two reports of a task
_ANSWER_SECONDS = 10.0  # that a cluster has to answer


class Resources(NamedTuple):
    """What Ray keeps for each group of runs."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: float = 0.0  # in GB; 0 for any

    def check(self) -> None:
        """Raises unless these are amounts."""
        for name, amount in self._asdict().items():
            least = "above 0" if name == "cpus" else "at least 0"
            number = isinstance(amount, int | float) and 0 <= amount < math.inf
            if not number or (name == "cpus" and amount == 0):
                raise DeeprokError(f"{name} is {shown(amount)}; it must be a finite number, {least}")

    def of_ray(self) -> dict[str, float]:
        """By Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * 1e9}


class WorkerDiedError(Exception):
    """The process of a group was killed; a task that ends with this is tried again."""


def on_ray(
    out: Path, address: str | None, processes: int | None, resources: Resources
) -> AbstractContextManager[Executor]:
    """Tasks of a Ray cluster; raises if Ray is not installed.

    Args:
      out: the folder of the sweep.
      address: of the cluster; None to start one on this machine, which ends with the context.
      processes: tasks at once in a cluster that is started here; by default as many as there are cores.
      resources: what each task needs.
    """
    resources.check()
    jobs.check_count(processes)
    if address is not None and processes is not None:
        raise DeeprokError(f"jobs is {processes}, but the cluster at {address} has its own size; leave it out")
    try:
        import ray
    except ImportError as error:
        raise extra_missing("sweeps on Ray need", "ray") from error
    return _cluster(ray, out, address, processes, resources)


@contextlib.contextmanager
def _cluster(
    ray: Any, out: Path, address: str | None, processes: int | None, resources: Resources
) -> Iterator[Executor]:
    made = _OnRay(ray, out, resources)
    if ray.is_initialized():  # a user's script has its own
        yield Executor(made.slots(), made.train)
        return
    options: dict[str, Any] = dict(log_to_driver=False, logging_level=logging.ERROR)
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone
        cores = math.ceil(processes * resources.cpus) if processes else jobs.count_cores()
        options |= dict(num_cpus=cores, include_dashboard=False)
    try:
        _check_answers(address or "")
        with forking():
            ray.init(address=address or "local", **options)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"reach the Ray cluster at {address}" if address else "start Ray on this machine"
        raise DeeprokError(f"can't {where}: {error}") from error
    try:
        yield Executor(made.slots(), made.train)
    except ray.exceptions.RayError as error:  # tasks that end with one are told of by themselves
        said = f"the Ray cluster no longer answers ({type(error).__name__}); go on with the same command when it does"
        raise DeeprokError(said) from error
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raises an `OSError` if nobody listens at host:port, which Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Without JAX's warning of forks: those by which Ray starts its processes become other programs at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


class _OnRay(NamedTuple):
    """Tasks of the cluster that this process is connected with."""

    ray: Any
    out: Path
    resources: Resources

    def slots(self) -> int:
        """How many tasks the cluster has room for; raises if it has none."""
        if not (room := self._room()):
            wanted = ", ".join(f"{name} {amount:g}" for name, amount in self._asked().items())
            raise DeeprokError(f"no node of the Ray cluster has what a task needs: {wanted}; ask for less")
        return room

    def _asked(self) -> dict[str, float]:
        return {name: amount for name, amount in self.resources.of_ray().items() if amount}

    def _room(self) -> int:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(min(int(node.get(name, 0) / amount) for name, amount in self._asked().items()) for node in nodes)

    def train(self, groups: Groups, report: Report, on_interrupt: OnInterrupt | None, on_end: OnEnd) -> None:
        """Trains groups of runs, as an executor does."""
        ray, waiting, running = self.ray, list(groups), dict[Any, Sequence[Path]]()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        mailbox = ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        asked = self.resources.of_ray()
        task = ray.remote(train_group).options(
            num_cpus=asked["CPU"],
            num_gpus=asked["GPU"],
            memory=int(asked["memory"]) or None,
            max_retries=RETRIES,
            retry_exceptions=[WorkerDiedError],
        )
        place = _Place(str(self.out.absolute()), _write_token(self.out), os.getcwd(), [p for p in sys.path if p])
        modules = ray.put(own_modules())
        stopping = False
        with interruptions(on_interrupt) as interrupted, _removed_at_end(self.out / TOKEN):
            while waiting or running:
                if interrupted.is_set() and not stopping:
                    stopping = True
                    waiting.clear()
                    ray.get(mailbox.stop.remote())
                # As many wait as are running, so that no core is idle; more would fill the memory with their files.
                while waiting and len(running) < max(1, 2 * self._room()):
                    group = waiting.pop(0)
                    names = [str(folder.relative_to(self.out)) for folder in group]
                    running[task.remote(place, names, pack(self.out, names, NEEDED), modules, mailbox)] = group
                ended, _ = ray.wait(list(running), num_returns=len(running), timeout=_POLL_SECONDS)
                for name, line in ray.get(mailbox.collect.remote()):
                    report(self.out / name, line)
                for each in ended:
                    group = running.pop(each)
                    on_end(group, self._gather(each, group))
        if interrupted.is_set():
            raise KeyboardInterrupt

    def _gather(self, task: Any, group: Sequence[Path]) -> DeeprokError | None:
        """Takes what a task has brought back; what went wrong."""
        try:
            problem, parcel = self.ray.get(task)
            if parcel:
                with runs.hold(group):
                    unpack(parcel, self.out)
        except self.ray.exceptions.RayTaskError as error:
            cause: Any = error.cause
            known = isinstance(cause, DeeprokError)
            return cause if known else DeeprokError(f"on its node: {type(cause).__name__}: {cause}")
        except self.ray.exceptions.RayError as error:
            return DeeprokError(f"its worker or node died more than {RETRIES} times ({type(error).__name__})")
        except DeeprokError as error:  # of this machine's disk
            return error
        else:
            return problem


def _write_token(out: Path) -> str:
    token = secrets.token_hex()
    write_atomically(out / TOKEN, token.encode())
    return token


@contextlib.contextmanager
def _removed_at_end(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


class _Mailbox:
    """An actor on the driver's node: tasks post lines of metrics there, and learn from it when to stop."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.stopping = False

    def post(self, lines: list[tuple[str, dict[str, Any]]]) -> bool:
        """Takes lines of metrics by the run's folder; whether to stop."""
        self.lines += lines
        return self.stopping

    def collect(self) -> list[tuple[str, dict[str, Any]]]:
        """The lines since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def stop(self) -> None:
        """Has every task save and end."""
        self.stopping = True


class _Place(NamedTuple):
    """Where a sweep is, as its driver sees it."""

    out: str
    token: str
    here: str
    path: list[str]  # where it finds modules

    def is_seen(self) -> bool:
        """Whether this process sees the same folder."""
        try:
            return (Path(self.out) / TOKEN).read_text() == self.token
        except OSError:
            return False


def train_group(
    place: _Place, group: Sequence[str], parcel: Parcel, modules: Parcel, mailbox: Any
) -> tuple[DeeprokError | None, Parcel]:
    """What a task does: trains a group of runs, in the sweep's folder or in one of its own.

    Args:
      place: where the sweep is.
      group: run folders, by their paths below the sweep's folder.
      parcel: their files.
      modules: users' modules.
      mailbox: where lines of metrics go.

    Returns:
      What went wrong, and the files that have changed, unless they are in the sweep's folder.
    """
    with cache.shared() as environment, tempfile.TemporaryDirectory(prefix="deeprok-") as made:
        scratch, own = Path(made) / "out", Path(made) / "modules"
        own.mkdir()
        unpack(modules, own)
        if place.is_seen():
            here = Path(place.here) if os.path.isdir(place.here) else own
            return _train(Path(place.out), group, environment, here, [*place.path, str(own)], mailbox), {}
        scratch.mkdir()
        unpack(parcel, scratch)
        problem = _train(scratch, group, environment, own, [str(own)], mailbox)
        return problem, pack(scratch, group, CHANGED)


def _train(
    out: Path, group: Sequence[str], environment: dict[str, str], here: Path, path: list[str], mailbox: Any
) -> DeeprokError | None:
    """Trains a group of runs in a process, until it ends or is to stop; what went wrong."""
    import ray

    if ray.get(mailbox.post.remote([])):  # it waited for its turn until the sweep was stopped
        return None
    lines: list[tuple[str, dict[str, Any]]] = []

    def collect(folder: Path, line: dict[str, Any]) -> None:
        lines.append((str(folder.relative_to(out)), line))

    worker = start_worker([out / name for name in group], None, environment, here, path)
    ended = stopping = False
    try:
        while not (ended or stopping):
            time.sleep(_POLL_SECONDS)
            ended = worker.process.poll() is not None
            worker.report_new(collect)
            stopping = ray.get(mailbox.post.remote(lines))
            lines.clear()
    finally:  # whatever happened here, the process saves and stops
        if not ended:
            worker.process.send_signal(signal.SIGTERM)
        problem = worker.join()
    if not ended:
        return None
    if worker.process.returncode < 0:
        raise WorkerDiedError(str(problem))
    return problem
