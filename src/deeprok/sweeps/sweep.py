"""`deeprok.sweep`: trains what a sweep is to try, in a folder that holds a run folder for each trial and seed.

What the folder already holds is not trained again. The truth about a run is its own folder; `sweep.json` sums it up.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from deeprok.core import cache
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.files import write_atomically
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config
from deeprok.sweeps.design import Trial, is_trial_name, make_trials
from deeprok.sweeps.executors import Executor, local, prepare
from deeprok.sweeps.on_ray import Resources, on_ray
from deeprok.sweeps.spec import Spec, read_spec
from deeprok.tracking.track import Given, make_trackers, tracked
from deeprok.training import jobs as processes
from deeprok.training.advance import Advance
from deeprok.training.loop import OnInterrupt, is_finished
from deeprok.training.progress import work_bar

#: The summary of a sweep, in its folder.
SUMMARY = "sweep.json"
FORMAT = 1

State = Literal["finished", "failed", "unfinished"]

EXECUTORS = ("local", "ray")

_SUMMARY_SECONDS = 2.0  # between two summaries while trials end

# A chunk of a full covariance takes about this many times as long as one without.
_POSTERIOR_WORK = 5.0


class TrialResult(NamedTuple):
    """A trial and what has become of it."""

    trial: Trial
    folder: Path  # of its seeds
    state: State
    problem: str  # why it failed; empty if it did not

    @property
    def runs(self) -> list[Path]:
        """The run folders of its seeds."""
        return [self.folder / f"seed-{seed}" for seed in self.trial.seeds]


class SweepResult(NamedTuple):
    """The trials of a sweep."""

    out: Path
    spec: Spec
    trials: tuple[TrialResult, ...]
    others: tuple[Path, ...]  # trials and seeds in the folder that the sweep no longer has

    def in_state(self, state: State) -> list[TrialResult]:
        """The trials in this state."""
        return [trial for trial in self.trials if trial.state == state]

    def to_dict(self) -> dict[str, Any]:
        """As `sweep.json` has it."""
        spec = self.spec
        return {
            "format": FORMAT,
            "spec": spec.written,
            "design": {"kind": "grid"}
            if spec.draws is None
            else {"kind": "random", "trials": spec.draws, "seed": spec.design_seed},
            "trials": [
                {
                    "folder": each.folder.name,
                    "varies": each.trial.varies,
                    "settings": each.trial.digest,
                    "seeds": list(each.trial.seeds),
                    "state": each.state,
                    "problem": each.problem,
                }
                for each in self.trials
            ],
            "others": [str(path.relative_to(self.out)) for path in self.others],
        }


def sweep(
    spec: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    executor: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    memory: float = 0.0,
    trackers: Sequence[Given] = (),
) -> SweepResult:
    """Trains every trial of a sweep that is not finished; those that were begun go on from their checkpoints.

    Args:
      spec: a TOML file that says what to try, or a dictionary of the same form.
      out: the folder of the sweep. If it holds trials already, those that are equal are kept.
      executor: `local`, processes of this machine; or `ray`, tasks of a Ray cluster.
      address: of a Ray cluster; without it one is started on this machine.
      jobs: processes at once on this machine; by default as many as there are cores.
      cpus: cores that Ray keeps for each group of seeds.
      gpus: accelerators that Ray keeps for it.
      memory: memory in GB that Ray keeps for it; 0 for any.
      trackers: where the metrics of each run go too, as `deeprok.train` takes them.

    Returns:
      The trials, each with its state. One that failed is reported there, and does not stop the others.

    Example:
      >>> spec = {"algorithm": ["ddqn", "rtd_dqn"], "seeds": 2, "settings": {"episodes": 50}}
      >>> found = deeprok.sweep(spec, "runs/two")
      >>> tuple(trial.state for trial in found.trials)
      ('finished', 'finished')
    """
    cache.enable_if_asked()
    console = WordConsole(stderr=True, quiet=not sys.stderr.isatty())
    made = make_executor(Path(out), executor, address, jobs, Resources(cpus, gpus, memory))
    return run_sweep(read_spec(spec), Path(out), made, console, trackers=trackers)


def make_executor(
    out: Path, executor: str, address: str | None, jobs: int | None, resources: Resources
) -> AbstractContextManager[Executor]:
    """An executor by name; raises if an option is not for it."""
    if executor not in EXECUTORS:
        raise unknown("executor", str(executor), EXECUTORS)
    if executor == "ray":
        return on_ray(out, address, jobs, resources)
    if address is not None:
        raise DeeprokError(f"address is {address}, but executor is local; take the executor ray")
    if resources != Resources():
        raise DeeprokError("cpus, gpus and memory are for the executor ray; executor is local")
    processes.check_count(jobs)
    return local(jobs)


def run_sweep(
    spec: Spec,
    out: Path,
    executor: AbstractContextManager[Executor],
    console: Console,
    on_interrupt: OnInterrupt | None = None,
    trackers: Sequence[Given] = (),
) -> SweepResult:
    """Trains what is missing of a sweep.

    Args:
      spec: what it is to try.
      out: its folder.
      executor: where its runs are trained; entered only if there is something to train.
      console: where progress and remarks go.
      on_interrupt: called when the sweep is interrupted, at once.
      trackers: where the metrics of each run go too, told by this process.
    """
    make_trackers(trackers)
    trials = make_trials(spec)
    runs.refuse_foreign(out, SUMMARY, "sweep")  # all of it before anything is written
    with runs.own_folder(out):
        board = _Board(out, spec, trials)
        board.write()
        for sentence in _remarks(board):
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        try:
            if not all(board.finished(trial) for trial in trials):
                with executor as entered:
                    _train(board, entered, console, on_interrupt, trackers)
        finally:
            board.write()
    return board.result()


class _Board:
    """What has become of the trials so far."""

    def __init__(self, out: Path, spec: Spec, trials: Sequence[Trial]) -> None:
        self.out, self.spec, self.trials = out, spec, trials
        # A trial keeps its folder also when something else varies in the sweep, as its settings are the same.
        there = {name.rpartition("-")[2]: name for name in sorted(os.listdir(out)) if is_trial_name(name)}
        self.folders = {trial.digest: out / there.get(trial.digest, trial.name) for trial in trials}
        self.problems: dict[str, list[str]] = {}
        self.done: set[str] = set()  # trials that were seen to be finished
        self.others = tuple(self._others())
        self.written = -math.inf

    def runs(self, trial: Trial) -> dict[Path, Config]:
        """The run folders of a trial's seeds, and their settings."""
        folder = self.folders[trial.digest]
        return {folder / f"seed-{seed}": dataclasses.replace(trial.config, seed=seed) for seed in trial.seeds}

    def finished(self, trial: Trial) -> bool:
        """Whether all seeds of a trial have used up their budget."""
        if trial.digest not in self.done and all(is_finished(*run) for run in self.runs(trial).items()):
            self.done.add(trial.digest)
        return trial.digest in self.done

    def _others(self) -> Iterator[Path]:
        """Trials in the folder that the sweep no longer has, and seeds of those that it has."""
        own = set(self.folders.values())
        for path in sorted(self.out.iterdir()):
            if path not in own and path.is_dir() and is_trial_name(path.name):
                yield path
        for trial in self.trials:
            folder = self.folders[trial.digest]
            yield from sorted(set(folder.glob("seed-*")) - set(self.runs(trial)))

    def result(self) -> SweepResult:
        """The trials as they are."""
        found = []
        for trial in self.trials:
            problem = "; ".join(self.problems.get(trial.digest, ()))
            state: State = "finished" if self.finished(trial) else "failed" if problem else "unfinished"
            found.append(TrialResult(trial, self.folders[trial.digest], state, problem))
        return SweepResult(self.out, self.spec, tuple(found), self.others)

    def write(self) -> None:
        """Writes the summary."""
        text = json.dumps(self.result().to_dict(), indent=1) + "\n"
        write_atomically(self.out / SUMMARY, text.encode())
        self.written = time.monotonic()


def _remarks(board: _Board) -> Iterator[str]:
    """What a user may not expect of the folder."""
    if finished := sum(map(board.finished, board.trials)):
        yield f"{finished} of {len(board.trials)} trials in {board.out} are finished already"
    if board.others:
        more = f" and {len(board.others) - 1} more" if len(board.others) > 1 else ""
        verb = "are" if more else "is"
        yield f"{board.others[0]}{more} {verb} no longer part of {board.spec.origin}, and left as before"


def _train(
    board: _Board,
    executor: Executor,
    console: Console,
    on_interrupt: OnInterrupt | None,
    trackers: Sequence[Given],
) -> None:
    """Trains the trials that are not finished."""
    left = [trial for trial in board.trials if not board.finished(trial)]
    prepared = prepare({board.folders[trial.digest]: (trial.config, trial.seeds) for trial in left}, executor.slots)
    configs, groups = prepared
    trial_of = {folder: trial for trial in left for folder in board.runs(trial)}
    work = {trial.digest: _work(trial.config) for trial in left}
    advance = Advance(configs, lambda config: work[config.digest()])
    with work_bar(console, advance.left, _what(board)) as done:

        def report(folder: Path, line: dict[str, Any]) -> None:
            done(_what(board), advance.since_last(folder, line))

        def on_end(group: Sequence[Path], error: DeeprokError | None) -> None:
            trial = trial_of[group[0]]
            if error:
                board.problems.setdefault(trial.digest, []).extend(error.args)
            board.finished(trial)
            done(_what(board), sum(map(advance.ended, group)))
            if time.monotonic() > board.written + _SUMMARY_SECONDS:
                board.write()

        def warn(sentence: str) -> None:
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)

        with tracked(trackers, report, warn) as told:
            assert told
            executor.train(groups, told, on_interrupt, on_end)


def _work(config: Config) -> float:
    """How long a run takes, in a unit of its own."""
    return config.task().most_steps * (_POSTERIOR_WORK if config.has_posterior else 1.0)


def _what(board: _Board) -> str:
    return f"{len(board.done)}/{len(board.trials)} trials"
