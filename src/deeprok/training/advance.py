"""How much of the training of several runs is done, in a unit in which they can be added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deeprok.runs.settings import Config
from deeprok.training.loop import progress_of


class Advance:
    """The work that runs have behind them.

    Args:
      configs: settings of each run folder.
      work: the work of a whole run; only the ratios between runs count.
    """

    def __init__(self, configs: Mapping[Path, Config], work: Callable[[Config], float]) -> None:
        self._configs = configs
        self._work = {folder: work(config) for folder, config in configs.items()}
        self._done = {folder: self._at(folder, *progress_of(folder)) for folder in configs}

    @property
    def left(self) -> float:
        """The work of all runs that is still to do."""
        return sum(self._work.values()) - sum(self._done.values())

    def since_last(self, folder: Path, line: Mapping[str, Any]) -> float:
        """Takes a new line of metrics into account; the work done since the run's last one."""
        before, self._done[folder] = self._done[folder], self._at(folder, line["steps"], line["episodes"])
        return self._done[folder] - before

    def ended(self, folder: Path) -> float:
        """Takes a run as over, however far it came; the work that was still to do."""
        before, self._done[folder] = self._done[folder], self._work[folder]
        return self._done[folder] - before

    def _at(self, folder: Path, steps: int, episodes: int) -> float:
        return min(1.0, float(self._configs[folder].budget.progress(episodes, steps))) * self._work[folder]
