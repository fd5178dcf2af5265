"""What an experiment tracker is, and the numbers that it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from deeprok.runs import folder as runs


class TrackedRun(NamedTuple):
    """The run that a tracker is opened for."""

    folder: Path
    name: str  # such as rok/seed-0
    config: dict[str, Any]  # every setting by its name
    last_step: int  # that the tracker was told before the run was interrupted; -1 if it is new to it
    notes: dict[str, str]  # the tracker's own, such as an id: kept in the run folder, and there again after a resume


class Tracker(Protocol):
    """Where the metrics of one run go, beside `metrics.jsonl`.

    Whatever it raises ends the tracking, and not the training.
    """

    def open(self, run: TrackedRun) -> int:
        """Begins, or goes on after an interruption; called before the first `log`.

        Returns:
          The last step that it has already, which is `run.last_step` unless it keeps count itself. It is told of all
          later ones, also those that were before it.
        """
        ...

    def log(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Takes the numbers of a chunk of training.

        Args:
          step: environment steps so far; larger in each call.
          values: name -> number.
          seconds: of training so far.
        """
        ...

    def close(self) -> None:
        """Ends, when the training has ended or was interrupted."""
        ...


#: Makes the tracker of one run.
MakeTracker = Callable[[], Tracker]


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl` by name: pairs as two of them, returns as their mean."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if name == "returns":
            if value:
                found["mean_return"] = float(np.mean(value))
        elif isinstance(value, list):
            found |= {f"{name}_{i}": float(each) for i, each in enumerate(value)}
        elif name != "steps":
            found[name] = float(value)
    return found


def describe(folder: Path, last_step: int = -1, notes: Mapping[str, str] = {}) -> TrackedRun:
    """What a tracker is told of a run."""
    path = folder.resolve()
    name = f"{path.parent.name}/{path.name}" if path.name.startswith("seed-") else path.name
    return TrackedRun(folder, name, runs.read_config(folder).flat(), last_step, dict(notes))
