"""Where the runs of a sweep are trained: an executor takes groups of run folders and trains each to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deeprok.runs import folder as runs
from deeprok.runs.settings import Config
from deeprok.training import jobs
from deeprok.training.loop import OnInterrupt, Report
from deeprok.training.workers import Groups, OnEnd, side_by_side


class Executor(NamedTuple):
    """Trains groups of runs.

    `train(groups, report, on_interrupt, on_end)` trains groups on from where they are, until each has ended. A group
    that fails does not stop the others. Ctrl-C and SIGTERM have every group save and stop, after which a
    `KeyboardInterrupt` is raised. Its arguments are those of `workers.side_by_side`, the executor of one machine.
    """

    slots: int  # how many groups are trained at once
    train: Callable[[Groups, Report, OnInterrupt | None, OnEnd], None]


def prepare(
    wanted: Mapping[Path, tuple[Config, Sequence[int]]], slots: int
) -> tuple[dict[Path, Config], list[list[Path]]]:
    """Makes the run folders that are missing, and says which of the unfinished ones are trained together.

    Args:
      wanted: a folder of seeds -> the settings of its runs, whatever the seed, and their seeds.
      slots: how many groups are trained at once.

    Returns:
      The settings of each run folder, and the groups in the order of the folders.
    """
    configs: dict[Path, Config] = {}
    for folder, (config, seeds) in wanted.items():
        its = {folder / f"seed-{seed}": dataclasses.replace(config, seed=seed) for seed in seeds}
        together = _groups(config, seeds, its, math.ceil(slots / len(wanted)))
        for run, own in its.items():
            runs.ensure(run, own, next((group for group in together if own.seed in group), ()))
        configs |= its
    order = {folder: i for i, folder in enumerate(configs)}
    return configs, sorted(jobs.plan(list(configs), slots), key=lambda group: order[group[0]])


def _groups(config: Config, seeds: Sequence[int], folders: Iterable[Path], parts: int) -> list[Sequence[int]]:
    """Which seeds are trained together: all, unless there are more slots than folders of seeds.

    Groups of runs that are there stay as they were planned, also if only some of them were made before a kill.
    """
    if not config.shares_program:
        return []
    kept = [group for folder in folders if (group := runs.read_group(folder))]
    fresh = [seed for seed in seeds if not any(seed in group for group in kept)]
    return [*kept, *jobs.shares(fresh, parts)]


@contextlib.contextmanager
def local(processes: int | None) -> Iterator[Executor]:
    """Processes of this machine, each on a core of its own.

    Args:
      processes: how many at once; by default as many as there are cores.
    """
    slots = processes or jobs.count_cores()
    yield Executor(slots, functools.partial(side_by_side, jobs=slots))
