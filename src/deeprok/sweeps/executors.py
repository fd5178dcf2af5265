"""Where the runs of a sweep are trained: an executor takes groups of run folders and trains each to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from deeprok.training import jobs
from deeprok.training.loop import OnInterrupt, Report
from deeprok.training.workers import OnEnd, side_by_side


class Executor(Protocol):
    """Trains groups of runs."""

    @property
    def slots(self) -> int:
        """How many groups are trained at once."""
        ...

    def train(
        self,
        groups: Sequence[Sequence[Path]],
        report: Report,
        on_interrupt: OnInterrupt | None,
        on_end: OnEnd,
    ) -> None:
        """Trains groups on from where they are, until each has ended; a group that fails does not stop the others.

        Ctrl-C and SIGTERM have every group save and stop, after which a `KeyboardInterrupt` is raised.

        Args:
          groups: run folders that exist, in groups that are trained together.
          report: called after each chunk with the run's folder and its new line of metrics.
          on_interrupt: called when the training is interrupted, at once.
          on_end: called when a group has ended, with the sentences about what went wrong.
        """
        ...


class Local(NamedTuple):
    """Processes of this machine, each on a core of its own."""

    slots: int

    def train(
        self,
        groups: Sequence[Sequence[Path]],
        report: Report,
        on_interrupt: OnInterrupt | None,
        on_end: OnEnd,
    ) -> None:
        """As the protocol says."""
        side_by_side(groups, self.slots, report, on_interrupt, on_end)


@contextlib.contextmanager
def local(processes: int | None) -> Iterator[Local]:
    """Processes of this machine.

    Args:
      processes: how many at once; by default as many as there are cores.
    """
    jobs.check_count(processes)
    yield Local(processes or jobs.count_cores())
