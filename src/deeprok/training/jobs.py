"""Many runs at once: which seeds share a compiled program within a process, and when each is trained.

Seeds of gradient agents are vmapped, because small networks leave a core idle. A Kalman agent's covariance, unless it
is diagonal, fills the cache by itself, so each of its seeds has a process of its own. Which seeds were begun together
belongs to the run: it is stored in the folder, and a resumed run has its place among them again, however many processes
there are then.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError, joined
from deeprok.core.files import write_atomically
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, check
from deeprok.tracking.track import Given, make_trackers, tracked
from deeprok.training.loop import OnInterrupt, Report, is_finished, progress_of, train_together
from deeprok.training.progress import training_line
from deeprok.training.workers import cores, side_by_side

T = TypeVar("T")


def train(
    config: Config,
    out: str | Path,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    report: Report | None = None,
    trackers: Sequence[Given] = (),
) -> list[Path]:
    """Trains an agent from the beginning.

    Args:
      config: the settings, from `make_config`.
      out: a new folder. It becomes the run folder or, if `seeds` is given, holds one for each.
      seeds: seeds to train instead of the settings' own.
      jobs: processes at once; by default as many as there are cores.
      report: called after each chunk with the run's folder and its new line of metrics. If it is None, a line on
        standard error shows the progress, where that is a terminal.
      trackers: where the metrics go too, as `deeprok.train` takes them.

    Returns:
      The run folders.
    """
    make_trackers(trackers)  # before anything is on the disk
    folders = create(config, out, seeds, jobs)
    with contextlib.nullcontext(report) if report else watched(folders) as shown:
        begin(folders, jobs, shown, trackers=trackers)
    return folders


@contextlib.contextmanager
def watched(folders: Sequence[Path]) -> Iterator[Report | None]:
    """For callers in Python: a line on standard error while runs train, if that is a terminal.

    Args:
      folders: run folders, each new or begun.
    """
    if not sys.stderr.isatty():
        yield None
        return
    configs = {folder: runs.read_config(folder) for folder in folders}
    done = {folder: progress_of(folder) for folder in folders}
    with training_line(WordConsole(stderr=True), configs, done) as report:
        yield report


def create(config: Config, out: str | Path, seeds: Sequence[int] | None = None, jobs: int | None = None) -> list[Path]:
    """Makes the folders of `train`, whose arguments it takes."""
    if not isinstance(config, Config):
        raise DeeprokError(f"config is {config!r}; it must be settings that make_config made")
    if seeds is not None and not isinstance(seeds, Sequence):
        raise DeeprokError(f"seeds is {seeds!r}; it must be a list of seeds, such as [0, 1, 2]")
    check(config)
    check_count(jobs)
    if seeds is None:
        runs.create(Path(out), config)
        return [Path(out)]
    # Decided here, so that a training that is killed before its first step keeps to it too.
    groups = shares(seeds, jobs or count_cores()) if config.shares_program else ()
    return runs.create_seeds(Path(out), config, seeds, groups)


def begin(
    folders: Sequence[Path],
    jobs: int | None = None,
    report: Report | None = None,
    on_interrupt: OnInterrupt | None = None,
    trackers: Sequence[Given] = (),
) -> None:
    """Trains new runs as `resume` does; if none of them can be started, their folders are removed again."""
    try:
        resume(folders, jobs, report, on_interrupt, trackers=trackers)
    except DeeprokError:
        runs.discard_unstarted(folders)
        raise


def extend(folders: Sequence[Path], episodes: int | None = None, steps: int | None = None) -> None:
    """Gives runs another budget, longer than what they have done: all of them, or none if one can't have it.

    Schedules that are fractions of the budget are those of the new one from then on.

    Args:
      folders: run folders, none of them in use by another process.
      episodes: episodes to train for; given alone, it replaces a limit of steps.
      steps: environment steps to train for; given alone, it replaces a limit of episodes.
    """
    given = {name: value for name, value in (("episodes", episodes), ("steps", steps)) if value is not None}
    _with_budget(folders, given)  # before a lock is left in a folder that is not changed
    with runs.hold(folders):
        # A kill on the way leaves some with the old budget, which the same call then changes.
        for folder, config in _with_budget(folders, given).items():
            write_atomically(folder / runs.CONFIG, config.to_json().encode())


def _with_budget(folders: Sequence[Path], given: Mapping[str, int]) -> dict[Path, Config]:
    """The settings of those runs that have another budget; raises unless they can be trained on with this one."""
    changed = {folder: runs.read_config(folder).replace(**given) for folder in folders}
    changed = {folder: config for folder, config in changed.items() if config != runs.read_config(folder)}
    for folder, config in changed.items():
        _check_longer(folder, config)
    return changed


def _check_longer(folder: Path, config: Config) -> None:
    """Raises unless a run can be trained on with these settings, which differ from its own by the budget."""
    if not (folder / runs.CHECKPOINT).exists():
        return
    runs.verify_checkpoint(folder)
    steps, episodes = progress_of(folder)
    for name, limit, done in (("episodes", config.episodes, episodes), ("steps", config.steps, steps)):
        if limit and done >= limit:
            raise DeeprokError(f"{name} is {limit}, but {folder} has done {done} already; give more")
    if steps % config.simulators:
        raise DeeprokError(
            f"{folder} ended between the steps of its {config.simulators} simulators, so that it can't be made longer; "
            "train a new run"
        )


def resume(
    folders: Sequence[Path],
    jobs: int | None = None,
    report: Report | None = None,
    on_interrupt: OnInterrupt | None = None,
    episodes: int | None = None,
    steps: int | None = None,
    trackers: Sequence[Given] = (),
) -> None:
    """Trains runs on from where they are, until each has used up its budget.

    Args:
      folders: run folders, of any settings, none of them in use by another process.
      jobs: processes at once; by default as many as there are cores.
      report: called after each chunk with the run's folder and its new line of metrics.
      on_interrupt: called with 1 when Ctrl-C is pressed, after which the training stops with the chunk, with 2 the
        next time, … It is called at once, from another thread.
      episodes: a longer budget for runs that have ended, or are under way, as `extend` takes it.
      steps: likewise.
      trackers: where the metrics go too, as `deeprok.train` takes them. What a tracker was not told of the runs before,
        it is told first.
    """
    check_count(jobs)
    with tracked(trackers, report, _warn) as told:
        _resume(folders, jobs, told, on_interrupt, episodes, steps)


def _warn(sentence: str) -> None:
    WordConsole(stderr=True).print(sentence, highlight=False, markup=False, soft_wrap=True)


def _resume(
    folders: Sequence[Path],
    jobs: int | None,
    report: Report | None,
    on_interrupt: OnInterrupt | None,
    episodes: int | None,
    steps: int | None,
) -> None:
    if episodes is not None or steps is not None:
        extend(folders, episodes, steps)
    jobs = jobs or count_cores()
    groups = plan(folders, jobs)
    problems: list[DeeprokError] = []
    if jobs == 1 or len(groups) <= 1:
        for group in groups:
            try:
                with runs.hold(group):
                    train_together(group, report, on_interrupt)
            except DeeprokError as error:  # the others are trained as if nothing had happened
                problems.append(error)
    else:
        side_by_side(groups, report, on_interrupt, lambda _, error: problems.extend([error] if error else []), jobs)
    if problems:
        raise joined(problems)


def check_count(jobs: int | None) -> None:
    """Raises unless this is a number of processes, or None for the default."""
    if jobs is not None and jobs < 1:
        raise DeeprokError(f"jobs is {jobs}; it must be at least 1")


def plan(folders: Sequence[Path], jobs: int) -> list[list[Path]]:
    """Unfinished runs, in the groups that are trained together; new runs are put into groups, which they keep.

    Args:
      folders: run folders, of any settings, none of them in use by another process.
      jobs: processes at once.
    """
    alone: list[list[Path]] = []
    sharing: dict[tuple[Path, str], list[Path]] = {}
    seeds: dict[Path, int] = {}
    for folder in folders:
        config = runs.read_config(folder)
        if is_finished(folder, config):
            runs.verify_checkpoint(folder)
            continue
        with runs.hold([folder]):  # refused before anything is begun
            seeds[folder] = config.seed
        if config.shares_program:
            sharing.setdefault((folder.parent, config.digest()), []).append(folder)
        else:
            alone.append([folder])
    groups: dict[tuple[Path, str, tuple[int, ...]], list[Path]] = {}
    for like, siblings in sharing.items():
        kept = {folder: runs.read_group(folder) or () for folder in siblings}
        if not all(kept.values()):
            # All that have no checkpoint, since the files of a plan that a kill cut short say nothing.
            new = [folder for folder in siblings if not kept[folder] or not (folder / runs.CHECKPOINT).exists()]
            for share in shares(new, jobs):
                for folder in share:
                    kept[folder] = tuple(seeds[each] for each in share)
                    runs.write_group(folder, kept[folder])
        for folder in siblings:
            groups.setdefault((*like, kept[folder]), []).append(folder)
    return alone + list(groups.values())


def shares(runs: Sequence[T], jobs: int) -> list[list[T]]:
    """One of the runs for each job, another for each, … until all are dealt out."""
    return [list(runs[start::jobs]) for start in range(min(jobs, len(runs)))]


def count_cores() -> int:
    """How many cores this process may use."""
    return len(cores())
