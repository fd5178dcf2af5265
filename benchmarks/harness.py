"""Things measured side by side: each in a process of its own, all on one core, in turns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

#: One repeat: does some work and returns its seconds per step. Its attribute `memory`, if it has
#: one, is the bytes that it needs.
Measure = Callable[[], float]
#: Sets a contender up, compiled and warm. Called in the contender's own process, so it can be
#: pickled: a function of a module, or a `functools.partial` of one.
Prepare = Callable[[], Measure]
#: Told of every repeat taken.
Progress = Callable[[str], None]

#: Processor time of the whole process: on one core it is the time on the wall of an idle machine,
#: and it leaves out what other processes take.
clock = time.process_time

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class BenchmarkError(Exception):
    """A contender that could not be set up or measured."""


class Ratio(NamedTuple):
    """One claim: a ratio of two times, and the bar it is held to."""

    name: str
    value: float
    sense: Literal[">=", "<=", ""]  # empty for a ratio that is only reported
    bar: float | None

    @property
    def met(self) -> bool | None:
        """Whether the ratio keeps to its bar; None without one."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.sense == ">=" else self.value <= self.bar


@dataclass
class Result:
    """What a benchmark found."""

    title: str
    times: dict[str, list[float]]  # contender -> seconds per step of every repeat
    ratios: list[Ratio] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)  # contender -> bytes, where it says so

    def best(self, name: str) -> float:
        """A contender's least time: what it takes when nothing else disturbs it."""
        return min(self.times[name])

    def median(self, name: str) -> float:
        """A contender's median time."""
        return statistics.median(self.times[name])

    def compare(
        self,
        name: str,
        slow: str,
        fast: str,
        sense: Literal[">=", "<=", ""] = "",
        bar: float | None = None,
        scale: float = 1.0,
    ) -> None:
        """Notes how many times the time of `fast` that of `slow` is, times `scale`."""
        self.ratios.append(Ratio(name, scale * self.best(slow) / self.best(fast), sense, bar))

    def to_json(self) -> dict[str, Any]:
        """The result as plain numbers."""
        return {
            "title": self.title,
            "times": {
                name: {
                    "best_us": _short(1e6 * self.best(name)),
                    "median_us": _short(1e6 * self.median(name)),
                    "steps_per_second": _short(1 / self.best(name)),
                    "repeats": len(times),
                    **({"memory_mb": _short(1e-6 * self.memory[name])} if name in self.memory else {}),
                }
                for name, times in self.times.items()
            },
            "ratios": [
                {"name": r.name, "value": _short(r.value), "sense": r.sense, "bar": r.bar, "met": r.met}
                for r in self.ratios
            ],
        }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def use_one_core() -> None:
    """Confines this process, and those it starts, to one core and one thread each.

    To be called before any numerical library is loaded: thread pools are sized when they start.
    """
    for name in ONE_THREAD:
        os.environ[name] = "1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def race(
    contenders: Mapping[str, Prepare], repeats: int, progress: Progress, memory: dict[str, float] | None = None
) -> dict[str, list[float]]:
    """Measures contenders in turns, so that whatever else the machine does falls on all alike.

    Args:
      contenders: name -> how to set it up.
      repeats: rounds, in each of which every contender is measured once.
      progress: told of every repeat.
      memory: where to put name -> bytes, of contenders that know.

    Returns:
      name -> seconds per step in each round.
    """
    workers: dict[str, _Worker] = {}
    try:
        for name, prepare in contenders.items():
            progress(f"preparing {name}")
            workers[name] = _Worker(name, prepare)
            if memory is not None and workers[name].memory:
                memory[name] = workers[name].memory
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for repeat in range(repeats):
            for name, worker in workers.items():
                progress(f"round {repeat + 1} of {repeats}: {name}")
                times[name].append(worker.measure())
        return times
    finally:
        for worker in workers.values():
            worker.close()


def scan_measure(step: Callable[..., Any], learner: Any, theta: Any, data: Any, steps: int) -> Measure:
    """The time of one of `steps` updates inside a compiled scan, and its memory.

    Args:
      step: `(belief, data of an update) -> (belief, …)`.
      learner: what `step` learns with: its `init` and `mean` are used.
      theta: weights to begin with.
      data: of all updates, stacked.
      steps: how many they are.
    """
    import jax
    import jax.numpy as jnp

    belief = jax.jit(learner.init)(theta)
    scan = jax.jit(lambda belief, data: jax.lax.scan(step, belief, data), donate_argnums=0).lower(belief, data)
    compiled = scan.compile()
    sizes = compiled.memory_analysis()
    belief, _ = compiled(belief, data)
    if not jnp.all(jnp.isfinite(learner.mean(belief))):
        raise BenchmarkError("the weights became infinite or not a number")

    def measure() -> float:
        nonlocal belief
        start = clock()
        belief, _ = jax.block_until_ready(compiled(belief, data))
        return (clock() - start) / steps

    measure.memory = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes  # type: ignore[attr-defined]
    return measure


class _Worker:
    """A contender in its own process, idle except when asked to measure."""

    def __init__(self, name: str, prepare: Prepare) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, prepare), daemon=True)
        self._process.start()
        theirs.close()
        self.memory = self._receive()

    def measure(self) -> float:
        self._pipe.send(True)
        return self._receive()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended by itself
            self._pipe.send(False)
        self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()

    def _receive(self) -> float:
        try:
            answer = self._pipe.recv()
        except EOFError:
            answer = "the process ended unexpectedly"
        if isinstance(answer, str):
            self.close()
            raise BenchmarkError(f"{self._name}: {answer}")
        return answer


def _serve(pipe: Connection, prepare: Prepare) -> None:
    """A worker's life: set up, say so, then one measurement for each request."""
    try:
        measure = prepare()
        pipe.send(float(getattr(measure, "memory", 0.0)))
        while pipe.recv():
            pipe.send(measure())
    except (KeyboardInterrupt, EOFError):
        pass
    except ModuleNotFoundError as error:
        pipe.send(f"{error}; the benchmarks need the extra: pip install -c constraints.txt '.[bench]'")
    except BenchmarkError as error:
        pipe.send(str(error))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        pipe.send(f"{type(error).__name__}: {error}")
