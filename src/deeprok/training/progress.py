"""Progress: a live line on a terminal, a line every ten seconds where there is none."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

if TYPE_CHECKING:
    from deeprok.runs.settings import Config
    from deeprok.training.loop import Report

_SECONDS = 10.0


class Show(Protocol):
    """Shows how far a task is."""

    def __call__(self, completed: float, status: str, what: str | None = None) -> None:
        """Shows it.

        Args:
          completed: the work done, all in all.
          status: what to say of it; what matters least last, where a narrow terminal cuts it off.
          what: a new name for the task.
        """
        ...


@contextlib.contextmanager
def _line(console: Console, what: str, total: float, completed: float, status: str) -> Iterator[Show]:
    """Shows a task until it ends: by a bar, or by lines from a thread, which speaks also while nothing else can."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}", table_column=Column(ratio=1, no_wrap=True)),  # what room is left
    )
    said = f"{what}: {status}"
    ended, began = threading.Event(), time.monotonic()

    def speak() -> None:
        while not ended.wait(_SECONDS):
            console.print(f"{said} · {_minutes(time.monotonic() - began)} so far", soft_wrap=True, highlight=False)

    with Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, completed=int(completed), status=status)

        def show(completed: float, status: str, what: str | None = None) -> None:
            nonlocal said
            bar.update(task, completed=completed, status=status, description=what)
            said = f"{what or bar.tasks[0].description}: {status}"

        speaker = threading.Thread(target=speak, daemon=True)
        if not console.is_terminal:
            speaker.start()
        try:
            yield show
        finally:
            ended.set()
            if speaker.is_alive():
                speaker.join()


class Pace:
    """The time left, judged by the pace so far; unknown until there is a pace.

    The clock starts with the first report, since what comes before it is done once: compiling,
    mostly. Reports within a second of the first, by seeds that advance together, are one with it.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forgets the pace so far."""
        self.first: float | None = None
        self.start = (0.0, 0.0)
        self.reports = 0

    def left(self, done: float, total: float) -> float | None:
        """Takes a report into account; the seconds left, if they can be known.

        Args:
          done: work done by now.
          total: all there is to do.
        """
        now = time.monotonic()
        if self.first is None:
            self.first = now
        if now < self.first + 1.0:
            self.start = now, done
            return None
        self.reports += 1
        if self.reports < 2 or done <= self.start[1]:
            return None
        return (now - self.start[0]) / (done - self.start[1]) * max(0.0, total - done)


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def work_bar(console: Console, total: float, what: str = "starting") -> Iterator[Callable[[str, float], None]]:
    """A bar over a job of many parts; yields `done(what, work)`, to be called as work gets done.

    Args:
      console: where to write.
      total: the work to do, in any unit; parts count by how long they are likely to take.
      what: what is being done at first.
    """
    finished, left, pace = 0.0, None, Pace()
    with _line(console, what, total, 0.0, "compiling, then the first part …") as show:

        def done(what: str, work: float) -> None:
            nonlocal finished, left
            finished += work
            left = pace.left(finished, total) if work else left
            share = min(1.0, finished / total) if total else 1.0
            show(finished, f"{100 * share:3.0f} %" + (f" · {_minutes(left)} left" if left is not None else ""), what)

        yield done


@contextlib.contextmanager
def fraction_bar(console: Console, what: str) -> Iterator[Callable[[float], None]]:
    """A bar for one task; yields `advance(fraction)`, to be called as a fraction of it is done."""
    with work_bar(console, 1.0, what) as done:
        yield lambda fraction: done(what, fraction)


@contextlib.contextmanager
def training_line(
    console: Console, configs: Mapping[Path, Config], done: Mapping[Path, tuple[int, int]]
) -> Iterator[Report]:
    """A line that follows the training of several runs together.

    Args:
      console: where to write.
      configs: settings of each run folder.
      done: steps and episodes that each run has already behind it.
    """
    counted = "episodes" if all(config.episodes for config in configs.values()) else "steps"
    total = sum(config.episodes if counted == "episodes" else config.task().most_steps for config in configs.values())
    last: dict[Path, dict[str, Any]] = {
        folder: {"episodes": episodes, "steps": steps} for folder, (steps, episodes) in done.items()
    }
    names = sorted({config.algorithm for config in configs.values()})
    what = names[0] if len(names) == 1 else f"{len(names)} agents"
    if len(configs) > 1:
        what += f" × {len(configs) // len(names)} seeds"
    begun = sum(x[counted] for x in last.values())
    clock = _TimeLeft(configs)
    with _line(console, what, total, begun, f"compiling, then the first {_chunk(configs)} …") as show:

        def report(folder: Path, line: dict[str, Any]) -> None:
            last[folder] = line
            reached = sum(x[counted] for x in last.values())
            left, rate = clock.speak(folder, line, last)
            show(reached, f"{left}{reached}/{total} {counted}{_status(last)}{rate}")

        yield report


def _chunk(configs: Mapping[Path, Config]) -> str:
    """What comes before the first report."""
    steps = {config.make_learner().chunk_steps for config in configs.values()}
    return f"{steps.pop():,} steps" if len(steps) == 1 else "chunk of steps"


def _status(last: Mapping[Path, Mapping[str, Any]]) -> str:
    """Return, ε and loss of the runs' last chunks, averaged."""
    text = ""
    for name, symbol, form in (("returns", "return", ".1f"), ("epsilon", "ε", ".2f"), ("loss", "loss", ".3g")):
        values = [x[name] for x in last.values() if x.get(name)]
        flat = [v for x in values for v in (x if isinstance(x, list) else [x])]
        if flat:
            text += f" · {symbol} {sum(flat) / len(flat):{form}}"
    return text


class _TimeLeft:
    """Steps a second, and the time left.

    What is left is counted in steps. Episodes grow longer as an agent learns, so that those to come are taken to be as
    long as the mean of the present length of an episode and the longest possible.
    """

    def __init__(self, configs: Mapping[Path, Config]) -> None:
        self.configs = configs
        self.chunk_steps = {path: config.make_learner().chunk_steps for path, config in configs.items()}
        self.horizon = {path: config.make_env().horizon for path, config in configs.items()}
        self.pace = Pace()
        self.taken = 0
        self.tried = False
        self.steps: dict[Path, int] = {}
        self.length: dict[Path, float] = {}

    def speak(self, folder: Path, line: Mapping[str, Any], last: Mapping[Path, Mapping[str, Any]]) -> tuple[str, str]:
        """Takes a new line into account; says the time left, and the steps a second, once they are known."""
        taken = line["steps"] - self.steps.get(folder, line["steps"] - self.chunk_steps[folder])
        self.taken += taken
        self.steps[folder] = line["steps"]
        self.length[folder] = taken / max(1, len(line["returns"]))
        if "trial_return" in line and not self.tried:
            self.tried = True
            self.pace.restart()  # the first trial was compiled, too
        left = sum(self._steps_left(path, config, last[path]) for path, config in self.configs.items())
        seconds = self.pace.left(self.taken, self.taken + left)
        if not seconds:
            return "", ""
        return f"{_minutes(seconds)} left · ", f" · {left / seconds:,.0f} steps/s"

    def _steps_left(self, path: Path, config: Config, last: Mapping[str, Any]) -> float:
        horizon = self.horizon[path]
        length = (min(self.length.get(path, horizon), horizon) + horizon) / 2
        limits = [(config.episodes - last["episodes"]) * length] if config.episodes else []
        limits += [config.steps - last["steps"]] if config.steps else []
        return min(limits)
