"""Progress on the terminal: a live line where there is one, a line now and then where there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from deeprok.config import Config
from deeprok.trainer import Report

_QUIET_SECONDS = 10.0


@contextlib.contextmanager
def fraction_bar(console: Console, what: str) -> Iterator[Callable[[float], None]]:
    """A bar for a task whose work is known; yields `advance(fraction)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda fraction: bar.advance(task, fraction)


@contextlib.contextmanager
def work_bar(console: Console, total: float) -> Iterator[Callable[[str, float], None]]:
    """A bar over a job of many parts; yields `done(what, work)`, to be called as work gets done.

    Args:
      console: where to write.
      total: the work to do, in any unit; parts count by how long they are likely to take.
    """
    spoken = time.monotonic()
    finished = 0.0
    # Where counting begins: the first piece of work holds what is done once, such as compiling.
    first: tuple[float, float] | None = None
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total, left="")

        def done(what: str, work: float) -> None:
            nonlocal finished, spoken, first
            finished += work
            now = time.monotonic()
            if first is None and work:
                first = now, finished
            share = min(1.0, finished / total) if total else 1.0
            left = ""
            if first and finished > first[1]:
                pace = (now - first[0]) / (finished - first[1])
                left = f" · {_minutes(pace * max(0.0, total - finished))} left"
            status = f"{100 * share:3.0f} %{left}"
            bar.update(task, description=what, completed=finished, left=status)
            if not console.is_terminal and now - spoken > _QUIET_SECONDS:
                console.print(f"{what}: {status}", soft_wrap=True, highlight=False)
                spoken = now

        yield done


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def training_line(console: Console, configs: Mapping[Path, Config], done: Mapping[Path, int]) -> Iterator[Report]:
    """A line that follows the training of several runs together.

    Args:
      console: where to write.
      configs: settings of each run folder.
      done: episodes that each run has already behind it.
    """
    total = sum(config.episodes for config in configs.values())
    last: dict[Path, dict[str, Any]] = {folder: {"episodes": n, "steps": 0} for folder, n in done.items()}
    clock = _Clock(configs)
    names = sorted({config.algorithm for config in configs.values()})
    what = names[0] if len(names) == 1 else f"{len(names)} agents"
    if len(configs) > 1:
        what += f" × {len(configs) // len(names)} seeds"
    name = TextColumn("{task.description}", table_column=Column(min_width=len(what), no_wrap=True))
    columns = (name, BarColumn(bar_width=10), TextColumn("{task.fields[status]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, completed=sum(done.values()), status="compiling …")
        if not console.is_terminal:
            console.print(f"{what}: compiling …", soft_wrap=True, highlight=False)
        spoken = time.monotonic()

        def report(folder: Path, line: dict[str, Any]) -> None:
            nonlocal spoken
            last[folder] = line
            episodes = sum(x["episodes"] for x in last.values())
            left, rate = clock.speak(folder, line, last)
            # What matters least stands last, where a narrow terminal cuts it off.
            status = f"{left}{episodes}/{total} episodes{_status(last)}{rate}"
            bar.update(task, completed=episodes, status=status)
            if not console.is_terminal and time.monotonic() - spoken > _QUIET_SECONDS:
                console.print(f"{what}: {status}", soft_wrap=True, highlight=False)
                spoken = time.monotonic()

        yield report


def _status(last: Mapping[Path, Mapping[str, Any]]) -> str:
    """Return, ε and loss of the runs' last chunks, averaged."""
    text = ""
    for name, symbol, form in (("returns", "return", ".1f"), ("epsilon", "ε", ".2f"), ("loss", "loss", ".3g")):
        values = [x[name] for x in last.values() if x.get(name)]
        flat = [v for x in values for v in (x if isinstance(x, list) else [x])]
        if flat:
            text += f" · {symbol} {sum(flat) / len(flat):{form}}"
    return text


class _Clock:
    """Steps a second, and the time left; both without the first chunk of a run, which is compiled before.

    Episodes grow longer as an agent learns, so what is left is counted in steps: the mean of the
    present length of an episode and the longest possible.
    """

    def __init__(self, configs: Mapping[Path, Config]) -> None:
        self.configs = configs
        self.taken = 0
        self.first = time.monotonic()
        self.steps: dict[Path, int] = {}
        self.length: dict[Path, float] = {}

    def speak(self, folder: Path, line: Mapping[str, Any], last: Mapping[Path, Mapping[str, Any]]) -> tuple[str, str]:
        """Takes a new line into account; says the time left, and the steps a second, once they are known."""
        now = time.monotonic()
        if not self.steps:
            self.first = now
        chunk = self.configs[folder].chunk_steps
        taken = line["steps"] - self.steps.get(folder, line["steps"] - chunk)
        self.taken += taken if folder in self.steps else 0
        self.steps[folder] = line["steps"]
        self.length[folder] = taken / max(1, len(line["returns"]))
        if not self.taken:
            return "", ""
        rate = self.taken / max(1e-9, now - self.first)
        left = sum(
            (config.episodes - last[path]["episodes"])
            * (min(self.length.get(path, config.horizon), config.horizon) + config.horizon)
            / 2
            for path, config in self.configs.items()
        )
        return f"{_minutes(left / max(rate, 1e-9))} left · ", f" · {rate:,.0f} steps/s"
