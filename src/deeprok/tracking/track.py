"""Trackers beside a training: each is told every line of `metrics.jsonl` once, and none can stop or change it."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from deeprok.core.errors import DeeprokError, shortened, shown
from deeprok.core.files import parse_json, read_bytes, write_atomically
from deeprok.core.registry import Registry
from deeprok.runs import folder as runs
from deeprok.tracking.base import MakeTracker, Tracker, describe, numbers_of
from deeprok.tracking.mlflow import MLflow
from deeprok.tracking.tensorboard import TensorBoard
from deeprok.tracking.wandb import WeightsAndBiases

#: In a run folder: what each tracker was told so far.
TRACKING = "tracking.json"

#: Called after each chunk with the run's folder and its new line of metrics.
Report = Callable[[Path, dict[str, Any]], None]

#: A tracker by name: tensorboard, wandb:PROJECT, mlflow:EXPERIMENT or your own module:object; or what makes one.
Given = str | MakeTracker


def _accept(found: Any) -> MakeTracker:
    if not callable(found):
        raise DeeprokError(
            f"that object is of type {type(found).__name__}; it must be a class of trackers, or make one"
        )
    make: MakeTracker = found
    return make


_OWN: Registry[MakeTracker] = Registry("tracker", {"tensorboard": TensorBoard}, _accept)
_WITH_NAME: dict[str, tuple[Callable[[str], Tracker], str]] = {
    "wandb": (WeightsAndBiases, "PROJECT"),
    "mlflow": (MLflow, "EXPERIMENT"),
}


def make_trackers(given: Sequence[Given]) -> dict[str, MakeTracker]:
    """Name -> what makes the tracker of a run; raises for a name that is not known, before anything is trained."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise DeeprokError(f"trackers is {shown(given)}; it must be a list, such as ['tensorboard']")
    found: dict[str, MakeTracker] = {}
    for one in given:
        if not isinstance(one, str):
            found[getattr(one, "__qualname__", type(one).__qualname__)] = _accept(one)
            continue
        name, _, argument = one.partition(":")
        if name in _WITH_NAME:
            make, what = _WITH_NAME[name]
            if not argument:
                raise DeeprokError(f"tracker is {shown(one)}; it must be {name}:{what}")
            found[one] = functools.partial(make, argument)
        else:
            found[one] = _OWN.find(one, "tracker")
    return found


@contextlib.contextmanager
def tracked(trackers: Sequence[Given], report: Report | None, warn: Callable[[str], None]) -> Iterator[Report | None]:
    """What a training reports to: trackers, and then whoever else wants to know.

    Args:
      trackers: where metrics go.
      report: whom else to tell.
      warn: called with a sentence when a tracker fails, once for each; it is then left alone.
    """
    makers = make_trackers(trackers)
    if not makers:
        yield report
        return
    sinks = [_Sink(name, make, warn) for name, make in makers.items()]

    def tell(folder: Path, line: dict[str, Any]) -> None:
        for sink in sinks:
            sink.tell(folder, line)
        if report:
            report(folder, line)

    try:
        yield tell
    finally:
        for sink in sinks:
            sink.close()


class _Sink:
    """A tracker's instances, one for each run."""

    def __init__(self, name: str, make: MakeTracker, warn: Callable[[str], None]) -> None:
        self.name, self.make, self.warn = name, make, warn
        self.works = True
        self.runs: dict[Path, _Told] = {}

    def tell(self, folder: Path, line: dict[str, Any]) -> None:
        """Tells a run's tracker of a line."""
        if self.works:
            self._try(lambda: self._tell(folder, line))

    def _tell(self, folder: Path, line: dict[str, Any]) -> None:
        if folder not in self.runs:
            self.runs[folder] = _Told(self.name, self.make(), folder)
            self.runs[folder].begin(line["steps"])
        self.runs[folder].tell(line)
        if not self.runs[folder].budget.lasts(line["episodes"], line["steps"]):  # a sweep has hundreds of runs
            self.runs.pop(folder).tracker.close()

    def close(self) -> None:
        """Ends the trackers of all runs."""
        for told in self.runs.values():
            self._try(told.tracker.close)

    def _try(self, do: Callable[[], None]) -> None:
        """Does it; a failure is said, once, and ends the tracking."""
        try:
            do()
        except (Exception, SystemExit) as error:  # whatever a tracker does
            if self.works:
                self.warn(f"the tracker {self.name} is switched off, and the training goes on: {_problem(error)}")
            self.works = False


class _Told:
    """A run's tracker, and what it was told."""

    def __init__(self, name: str, tracker: Tracker, folder: Path) -> None:
        self.name, self.tracker, self.folder = name, tracker, folder
        self.budget = runs.read_config(folder).budget
        self.last, self.seconds = -1, 0.0
        self.notes: dict[str, str] = {}

    def begin(self, step: int) -> None:
        """Opens it, and tells it of what was before this step."""
        noted = _read_notes(self.folder).get(self.name, {})
        run = describe(self.folder, noted.get("last_step", -1), noted.get("notes", {}))
        self.notes = run.notes
        self.last = self.tracker.open(run)
        if type(self.last) is not int:
            raise DeeprokError(f"its open returns {shown(self.last)}; it must be a step, such as run.last_step")
        for line in runs.read_metrics(self.folder):
            if line["steps"] < step:
                self.tell(line)

    def tell(self, line: dict[str, Any]) -> None:
        """Tells it of a line, unless it knows it from before an interruption."""
        self.seconds += line.get("seconds", 0.0)
        if line["steps"] > self.last:
            self.tracker.log(line["steps"], numbers_of(line), self.seconds)
            self.last = line["steps"]
            every = _read_notes(self.folder) | {self.name: {"last_step": self.last, "notes": self.notes}}
            write_atomically(self.folder / TRACKING, (json.dumps(every) + "\n").encode())


def _read_notes(folder: Path) -> dict[str, Any]:
    """What was noted of the trackers of a run; nothing if the file is damaged."""
    path = folder / TRACKING
    found = parse_json(read_bytes(path)) if path.exists() else {}
    if not isinstance(found, dict):
        return {}
    return {name: each for name, each in found.items() if _is_note(each)}


def _is_note(each: Any) -> bool:
    return isinstance(each, dict) and type(each.get("last_step")) is int and isinstance(each.get("notes"), dict)


def _problem(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed; pip install {error.name}"
    return shortened(str(error) if isinstance(error, DeeprokError) else f"{type(error).__name__}: {error}", 300)
