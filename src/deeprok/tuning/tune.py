"""`deeprok.tune`: what settings suit an algorithm on an environment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from deeprok.core import cache, figure_files
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError, shown
from deeprok.runs import folder as runs
from deeprok.sweeps.executors import Executor, local
from deeprok.training import jobs as processes
from deeprok.training.loop import OnInterrupt
from deeprok.training.progress import work_bar
from deeprok.tuning.record import SUMMARY, Record, read_record, write_record
from deeprok.tuning.report import write_report
from deeprok.tuning.result import FIGURE, Tuning
from deeprok.tuning.sampler import optuna
from deeprok.tuning.search import Search
from deeprok.tuning.task import Metric, Options, Task, make_task, seconds_of


def tune(
    algorithm: str,
    env: str | None = None,
    budget: str | float | None = None,
    trials: int | None = None,
    metric: Metric = "worst",
    preset: str = "default",
    fix: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | Sequence[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    seeds: int = 3,
    rungs: int = 3,
    finalists: int = 3,
    fresh: int = 10,
    held_out: int | None = None,
    episodes: int | None = None,
    grid: str | Mapping[str, Any] | None = None,
    test_episodes: int | None = None,
    epsilon: float = 0.1,
    seed: int = 0,
    jobs: int | None = None,
) -> Tuning:
    """Searches for settings that suit an algorithm on an environment, and tests what it finds on fresh seeds.

    Settings are tried with short trainings and few seeds first; the best third of each rung goes on to the next. The
    best few are trained with other seeds, by which one is chosen. That one and the presets are trained with fresh
    seeds, on which nothing was chosen, and are tested on models that the search has not used. Needs the extra `tune`.

    The same call goes on with a tuning that was stopped; with more time or trials also with one that has ended.

    Args:
      algorithm: a name of `ALGORITHMS`, or your own `module:object`.
      env: the environment; by default the algorithm's own.
      budget: how long it may take, as "2h", "20m" or seconds, all trainings and tests included.
      trials: how many settings are tried, at most. One of `budget` and `trials` must be given.
      metric: the score: the mean return on the `worst` model or on the worst tenth of them (`cvar10`), or over all
        models the `success` or the mean `return`.
      preset: the preset that the search begins with, and whose values all other settings have.
      fix: settings that all runs have, the presets' too, by name.
      search: what is tried, by name: (low, high) as {"low": …, "high": …, "log": …}, a list of values, or None for what
        the part itself states; or a list of names. By default all that the parts state.
      out: the folder; by default runs/tune-ALGORITHM-ENV.
      seeds: seeds of the longest rung, and of the finalists.
      rungs: how many times settings are trained, each for twice as long as before; the last with all of the budget.
      finalists: how many are trained with other seeds, to choose one.
      fresh: fresh seeds of the winner and of the presets.
      held_out: models drawn from the box that settings are scored on; by default 64, and 16 in stateful simulators.
      episodes: episodes on each of them; by default 10, and 2 in stateful simulators.
      grid: the models of the report, as for `evaluate`.
      test_episodes: episodes on each of them; by default 100, and 10 in stateful simulators.
      epsilon: probability of a random action.
      seed: decides what is tried; trainings have seeds from this one on.
      jobs: processes at once; by default as many as there are cores.

    Example:
      >>> found = deeprok.tune("rtd_dqn", "ferry", budget="20m")
      >>> found.score.value > found.presets["tuned"].value
      True
    """
    cache.enable_if_asked()
    processes.check_count(jobs)
    given = search or {}
    options = Options(
        budget=budget,
        trials=trials,
        metric=metric,
        preset=preset,
        seeds=seeds,
        rungs=rungs,
        finalists=finalists,
        fresh=fresh,
        held_out=held_out,
        episodes=episodes,
        grid=grid,
        test_episodes=test_episodes,
        epsilon=epsilon,
        seed=seed,
    )
    named = given if isinstance(given, Mapping) else dict.fromkeys(given)
    task = make_task(algorithm, env, fix or {}, named, options)
    console = WordConsole(stderr=True, quiet=not sys.stderr.isatty())
    return run_tuning(task, Path(out) if out else usual_folder(task), local(jobs), console)


def usual_folder(task: Task) -> Path:
    """The folder of a tuning for which none is given."""
    names = (name.rpartition(":")[2] for name in (task.base.algorithm, task.base.env))
    return Path("runs") / "-".join(("tune", *(name.replace("/", "-") for name in names)))


def run_tuning(
    task: Task,
    out: Path,
    executor: AbstractContextManager[Executor],
    console: Console,
    on_interrupt: OnInterrupt | None = None,
) -> Tuning:
    """Does what is left of a tuning.

    Args:
      task: what is tuned.
      out: its folder.
      executor: where runs are trained; entered only if there is something to train.
      console: where progress and remarks go.
      on_interrupt: called when it is interrupted, at once.
    """
    optuna()  # or it is said at once that it is missing
    runs.refuse_foreign(out, SUMMARY, "tuning")
    with runs.own_folder(out):
        record = _begin(task, out)
        stop = _stop(task)
        if record.winner and record.stop == stop:
            console.print(f"{out} is finished: nothing to do", highlight=False, markup=False, soft_wrap=True)
            return _finish(Tuning(out, task, record))
        record = record._replace(stop=stop)
        if record.trials:
            said = f"{out} goes on: {len(record.trials)} trials, {record.seconds / 60:.1f} minutes so far"
            console.print(said, highlight=False, markup=False, soft_wrap=True)

        def save(record: Record) -> None:
            write_record(out, record, Tuning(out, task, record).summary() if record.winner else {})

        save(record)
        total = stop["budget"] or float(stop["trials"])
        began = time.monotonic() - record.seconds
        with executor as entered, work_bar(console, total, "the presets") as done:
            shown = 0.0

            def tell(what: str, ended: int) -> None:
                nonlocal shown
                reached = time.monotonic() - began if stop["budget"] else float(ended)
                done(what, reached - shown)
                shown = reached

            under_way = Search(task, record, out, entered, save, tell, on_interrupt)
            try:
                under_way.run()
            finally:
                save(under_way.record._replace(seconds=under_way.seconds))
        return _finish(Tuning(out, task, under_way.record._replace(seconds=under_way.seconds)))


def _begin(task: Task, out: Path) -> Record:
    """What has been done in a folder; raises if that was another task."""
    record = read_record(out)
    wanted = task.to_dict()
    if record is None:
        return Record(wanted)
    for name, value in wanted.items():
        if record.task.get(name) != value:
            raise DeeprokError(
                f"{out} was tuned with {name} {shown(record.task.get(name))}, not {shown(value)}; choose another --out"
            )
    return record


def _stop(task: Task) -> dict[str, Any]:
    """When the search ends, and how the winner is tested."""
    options = task.options
    budget = None if options.budget is None else seconds_of(options.budget)
    return {"budget": budget, "trials": options.trials, "fresh": options.fresh, "finalists": options.finalists}


def _finish(found: Tuning) -> Tuning:
    """Writes what a reader wants to have."""
    write_record(found.out, found.record, found.summary())
    found.write_preset()
    figure_files.save(found.plot(), found.out / FIGURE)
    write_report(found)
    return found
