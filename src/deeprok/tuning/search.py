"""The search: settings are proposed, trained for longer if they do well, chosen, and tested on fresh seeds.

What is trained is a run folder, by the same executors as a sweep's, so that a tuning that was stopped trains nothing
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deeprok.core.errors import DeeprokError
from deeprok.runs.settings import Config
from deeprok.sweeps.executors import Executor, prepare
from deeprok.training.loop import OnInterrupt, is_finished
from deeprok.tuning.record import Record, Rerun, Scored, TrialRecord, TrialState
from deeprok.tuning.sampler import Sampler
from deeprok.tuning.scoring import Scorer, held_out, reported
from deeprok.tuning.task import Rung, Task, is_whole, presets_of, seconds_of

_MARGIN = 1.3  # how much longer than estimated what follows the search may take

#: Called with what is being done, and how many trials have ended.
Tell = Callable[[str, int], None]


class Job(NamedTuple):
    """Settings to train with several seeds."""

    folder: Path  # of the seeds
    config: Config
    seeds: Sequence[int]


class Search:
    """A tuning under way.

    Args:
      task: what is tuned.
      record: what has been done.
      out: the folder.
      executor: where runs are trained.
      save: stores the record.
      tell: says what is being done.
      on_interrupt: called when the training is interrupted, at once.
    """

    def __init__(
        self,
        task: Task,
        record: Record,
        out: Path,
        executor: Executor,
        save: Callable[[Record], None],
        tell: Tell,
        on_interrupt: OnInterrupt | None,
    ) -> None:
        self.record = record
        self._task, self._out, self._executor = task, out, executor
        self._save, self._tell, self._on_interrupt = save, tell, on_interrupt
        self._began, self._before = time.monotonic(), record.seconds
        self._on_held_out, self._on_reported = Scorer(task, held_out(task)), Scorer(task, reported(task))
        self._longest: dict[int, float] = {}  # seconds of a round, by its longest rung

    def run(self) -> None:
        """Does all that is left."""
        self._test_presets()
        self._try_settings()
        self._choose()

    @property
    def seconds(self) -> float:
        """How long it has taken, all in all."""
        return self._before + time.monotonic() - self._began

    def _note(self, **changes: Any) -> None:
        self.record = self.record._replace(seconds=self.seconds, **changes)
        self._save(self.record)

    # --- the presets -------------------------------------------------------------------------------------

    def _test_presets(self) -> None:
        """Trains the presets on the fresh seeds, which also tells how long the winner will take."""
        presets = presets_of(self._task)
        wanted = [(name, self._out / "presets" / name, dict[str, Any](), config) for name, config in presets.items()]
        found = self._rerun("presets", wanted, self._task.fresh_seeds, self._on_reported, self.record.presets)
        self._note(presets=found)

    def _rerun(
        self,
        what: str,
        wanted: Sequence[tuple[str, Path, Mapping[str, Any], Config]],
        seeds: Sequence[int],
        scorer: Scorer,
        known: Sequence[Rerun],
    ) -> tuple[Rerun, ...]:
        """Trains settings with all of the budget and the same seeds; those that were are left alone."""
        done = {each.name: each for each in known if each.seeds == tuple(seeds)}
        left = [each for each in wanted if each[0] not in done]
        began = time.monotonic()
        scores = self._train(what, [Job(folder, config, seeds) for _, folder, _, config in left], scorer)
        took = time.monotonic() - began
        for (name, _, settings, config), scored in zip(left, scores, strict=True):
            steps = config.task().most_steps
            done[name] = Rerun(name, dict(settings), steps, tuple(seeds), scored, round(took / len(left), 1))
        return tuple(done[name] for name, _, _, _ in wanted)

    # --- the search --------------------------------------------------------------------------------------

    def _try_settings(self) -> None:
        """Proposes and trains settings, in rounds of as many as there are slots, until time or trials are used up."""
        task = self._task
        whole = [name for name in task.space if is_whole(name, task.base)]
        sampler = Sampler(task.space, whole, len(task.rungs), task.options.seed, task.start(), self.record.trials)
        trials = {trial.number: trial for trial in self.record.trials}
        number = max((scored.round for trial in trials.values() for scored in trial.rungs), default=0)
        while True:
            due = [trial for trial in trials.values() if trial.state == "running"]
            if trials and not self._has_time(max((len(trial.rungs) for trial in due), default=0)):
                break
            while len(due) < self._executor.slots and len(trials) < (task.options.trials or len(trials) + 1):
                fresh, settings = sampler.ask()
                due.append(TrialRecord(fresh, settings, (), "running"))
                trials[fresh] = due[-1]
            if not due:
                break
            began, number = time.monotonic(), number + 1
            longest = max(len(trial.rungs) for trial in due)
            for trial, scored in zip(due, self._train_rungs(due), strict=True):
                trials[trial.number] = _after(trial, scored._replace(round=number), sampler, len(task.rungs))
            self._longest[longest] = max(self._longest.get(longest, 0.0), time.monotonic() - began)
            self._note(trials=tuple(trials[each] for each in sorted(trials)))

    def _train_rungs(self, due: Sequence[TrialRecord]) -> list[Scored]:
        """Trains each trial at its next rung; settings that can't be had together have failed."""
        task, jobs, problems = self._task, dict[int, Job](), dict[int, str]()
        for trial in due:
            rung = task.rungs[len(trial.rungs)]
            try:
                config = task.config(trial.settings, rung)
                folder = self._folder("trials", trial) / f"rung-{len(trial.rungs)}"
                jobs[trial.number] = Job(folder, config, task.tuning_seeds(rung))
            except DeeprokError as error:
                problems[trial.number] = str(error)
        best = max((trial.rank for trial in self.record.trials), default=(0, 0.0))
        said = f"trial {max(trial.number for trial in due) + 1}" + (f", best {best[1]:.4g}" if best[0] else "")
        scores = dict(zip(jobs, self._train(said, list(jobs.values()), self._on_held_out), strict=True))
        return [scores.get(trial.number) or Scored((), problems[trial.number]) for trial in due]

    def _folder(self, kind: str, trial: TrialRecord) -> Path:
        """The folder of a trial, named by its number and the hash of its settings."""
        return self._out / kind / f"{trial.number:04d}-{self._task.config(trial.settings).digest()}"

    def _has_time(self, longest: int) -> bool:
        """Whether there is time for another round, whose longest rung is given, and all that follows the search."""
        if self._task.options.budget is None:
            return True
        left = seconds_of(self._task.options.budget) - self.seconds
        return left > self._round_seconds(longest) + _MARGIN * self._final_seconds()

    def _round_seconds(self, rung: int) -> float:
        """How long a round may take whose longest rung is given, at the most."""
        if rung in self._longest:
            return self._longest[rung]
        rungs, options, presets = self._task.rungs, self._task.options, self.record.presets
        # Start and compiling take as long for any rung, so that a longer one takes less than in proportion.
        known = (seconds * _work(rungs[rung]) / _work(rungs[other]) for other, seconds in self._longest.items())
        # A slot that trained presets did more than one that trains a rung, with start and compiling too.
        both = sum(preset.seconds for preset in presets)
        done = options.fresh * sum(preset.steps for preset in presets) / self._executor.slots
        wanted = _work(rungs[rung]) * self._task.base.task().most_steps
        return min([*known, both * max(1.0, wanted / done)] if done else known, default=0.0)

    def _final_seconds(self) -> float:
        """How long the finalists and the winner will take, judged by the presets."""
        presets, options = self.record.presets, self._task.options
        work = sum(preset.steps for preset in presets) * options.fresh
        runs = options.finalists * options.seeds * (options.finalists > 1) + options.fresh
        seconds = sum(preset.seconds for preset in presets)
        return seconds * runs * self._task.base.task().most_steps / work if work else 0.0

    # --- the winner --------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Trains the best few on other seeds, chooses one of them, and tests it on the fresh ones."""
        task = self._task
        ranked = sorted((trial for trial in self.record.trials if trial.rank[0]), key=lambda trial: trial.rank)[::-1]
        if not ranked:
            problem = next((trial.problem for trial in self.record.trials if trial.problem), "none was tried")
            raise DeeprokError(f"all {len(self.record.trials)} trials failed, the first with: {problem}")
        best = ranked[: task.options.finalists]
        if len(best) > 1:
            wanted = [
                (_name(trial), self._folder("finalists", trial), trial.settings, task.config(trial.settings))
                for trial in best
            ]
            finalists = self._rerun("finalists", wanted, task.final_seeds, self._on_held_out, self.record.finalists)
            self._note(finalists=finalists)
            means = {each.name: mean for each in finalists if (mean := each.scored.mean) is not None}
            best = sorted(best, key=lambda trial: -means.get(_name(trial), float("-inf")))
        winner = best[0]
        chosen = (_name(winner), self._folder("winner", winner), winner.settings, task.config(winner.settings))
        known = [self.record.winner] if self.record.winner else []
        (tested,) = self._rerun("the winner", [chosen], task.fresh_seeds, self._on_reported, known)
        self._note(winner=tested)

    # --- training ----------------------------------------------------------------------------------------

    def _train(self, what: str, jobs: Sequence[Job], scorer: Scorer) -> list[Scored]:
        """Trains what is not finished, and scores all of it."""
        if not jobs:
            return []
        ended = sum(trial.state != "running" for trial in self.record.trials)
        self._tell(what, ended)
        problems: dict[Path, list[str]] = {}
        configs, groups = prepare({job.folder: (job.config, job.seeds) for job in jobs}, self._executor.slots)

        def on_end(group: Sequence[Path], error: DeeprokError | None) -> None:
            if error:
                problems.setdefault(group[0].parent, []).extend(error.args)
            self._tell(what, ended)

        if groups:
            self._executor.train(groups, lambda folder, line: self._tell(what, ended), self._on_interrupt, on_end)
        found = []
        for job in jobs:
            folders = [job.folder / f"seed-{seed}" for seed in job.seeds]
            if not all(is_finished(folder, configs[folder]) for folder in folders):
                found.append(Scored((), "; ".join(problems.get(job.folder, ())) or "a training did not end"))
                continue
            try:
                found.append(Scored(scorer(job.config, folders)))
            except DeeprokError as error:
                found.append(Scored((), str(error)))
            self._tell(what, ended)
        return found


def _name(trial: TrialRecord) -> str:
    return f"trial {trial.number}"


def _work(rung: Rung) -> float:
    return rung.fraction * rung.seeds


def _after(trial: TrialRecord, scored: Scored, sampler: Sampler, rungs: int) -> TrialRecord:
    """A trial after its next rung."""
    rung = len(trial.rungs)
    promoted = sampler.tell(trial.number, rung, scored.mean)
    state: TrialState = (
        "failed" if scored.mean is None else "finished" if rung == rungs - 1 else "running" if promoted else "pruned"
    )
    return trial._replace(rungs=(*trial.rungs, scored), state=state)
