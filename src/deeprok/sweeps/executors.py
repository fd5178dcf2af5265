"""Where the runs of a sweep are trained: an executor takes groups of run folders and trains each to its end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

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


@contextlib.contextmanager
def local(processes: int | None) -> Iterator[Executor]:
    """Processes of this machine, each on a core of its own.

    Args:
      processes: how many at once; by default as many as there are cores.
    """
    slots = processes or jobs.count_cores()
    yield Executor(slots, functools.partial(side_by_side, jobs=slots))
