"""What has been tried: the contents of `tuning.json`, which is all that a tuning needs to go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.files import parse_json, read_bytes, write_atomically

SUMMARY = "tuning.json"
FORMAT = 1

#: `running` is waiting for its next rung; `pruned` was not promoted; `failed` gave no score.
TrialState = Literal["running", "pruned", "finished", "failed"]


class Scored(NamedTuple):
    """What settings scored at a rung, or in the end."""

    scores: tuple[float, ...]  # of each seed; empty if it failed
    problem: str = ""  # why it failed
    round: int = 0  # when, in the order in which results came

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None if it failed."""
        return sum(self.scores) / len(self.scores) if self.scores else None


class TrialRecord(NamedTuple):
    """Settings that were tried."""

    number: int
    settings: dict[str, Any]
    rungs: tuple[Scored, ...]
    state: TrialState

    @property
    def problem(self) -> str:
        """Why it failed; empty if it did not."""
        return self.rungs[-1].problem if self.rungs else ""

    @property
    def rank(self) -> tuple[int, float]:
        """How good it is: first how far it came, then its score there; what failed at a rung was not there."""
        scored = [rung.mean for rung in self.rungs if rung.mean is not None]
        return len(scored), scored[-1] if scored else 0.0


class Rerun(NamedTuple):
    """Settings that were trained with all of the budget, on seeds of their own."""

    name: str
    settings: dict[str, Any]  # that differ from the preset's
    steps: int  # environment steps of a run, at most
    seeds: tuple[int, ...]
    scored: Scored
    seconds: float = 0.0  # of its training, as a share of that of all that were trained together


class Record(NamedTuple):
    """The state of a tuning."""

    task: dict[str, Any]
    stop: Mapping[str, Any] = {}  # when the search was to end
    seconds: float = 0.0
    trials: tuple[TrialRecord, ...] = ()
    presets: tuple[Rerun, ...] = ()
    finalists: tuple[Rerun, ...] = ()
    winner: Rerun | None = None

    def to_dict(self) -> dict[str, Any]:
        """As `tuning.json` has it."""
        return {
            "format": FORMAT,
            "task": self.task,
            "stop": dict(self.stop),
            "seconds": round(self.seconds, 1),
            "trials": [_trial_dict(trial) for trial in self.trials],
            "presets": [_rerun_dict(rerun) for rerun in self.presets],
            "finalists": [_rerun_dict(rerun) for rerun in self.finalists],
            "winner": self.winner and _rerun_dict(self.winner),
        }


def write_record(out: Path, record: Record, more: dict[str, Any]) -> None:
    """Writes `tuning.json`, whole or not at all, with more that is for readers alone."""
    write_atomically(out / SUMMARY, (json.dumps({**record.to_dict(), **more}, indent=1) + "\n").encode())


def read_record(out: Path) -> Record | None:
    """What `tuning.json` holds; None if there is none."""
    path = out / SUMMARY
    if not path.exists():
        return None
    content = parse_json(read_bytes(path))
    if isinstance(content, dict) and content.get("format") not in (FORMAT, None):
        raise DeeprokError(f"{path} has format {shown(content['format'])}; this version of deeprok reads {FORMAT}")
    try:
        return Record(
            task=dict(content["task"]),
            stop=dict(content["stop"]),
            seconds=float(content["seconds"]),
            trials=tuple(_trial(each) for each in content["trials"]),
            presets=tuple(read_rerun(each) for each in content["presets"]),
            finalists=tuple(read_rerun(each) for each in content["finalists"]),
            winner=content["winner"] and read_rerun(content["winner"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DeeprokError(f"{path} is damaged: it does not hold what tuning writes; remove the folder") from error


def _scored_dict(scored: Scored) -> dict[str, Any]:
    return {"scores": list(scored.scores), "mean": scored.mean, "problem": scored.problem, "round": scored.round}


def _scored(given: dict[str, Any]) -> Scored:
    return Scored(tuple(float(score) for score in given["scores"]), str(given["problem"]), int(given["round"]))


def _trial_dict(trial: TrialRecord) -> dict[str, Any]:
    return {**trial._asdict(), "rungs": [_scored_dict(rung) for rung in trial.rungs]}


def _trial(given: dict[str, Any]) -> TrialRecord:
    rungs = tuple(_scored(rung) for rung in given["rungs"])
    return TrialRecord(int(given["number"]), _settings(given["settings"]), rungs, given["state"])


def _rerun_dict(rerun: Rerun) -> dict[str, Any]:
    return {**rerun._asdict(), "seeds": list(rerun.seeds), "scored": _scored_dict(rerun.scored)}


def read_rerun(given: dict[str, Any]) -> Rerun:
    """One from what `tuning.json` holds of it."""
    seeds = tuple(int(seed) for seed in given["seeds"])
    scored, seconds = _scored(given["scored"]), float(given["seconds"])
    return Rerun(str(given["name"]), _settings(given["settings"]), int(given["steps"]), seeds, scored, seconds)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
