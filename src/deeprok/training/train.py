"""`deeprok.train`: train an agent and get it back, ready to act."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from deeprok.core import cache
from deeprok.evaluation.trained import Run, load
from deeprok.runs.settings import Config
from deeprok.tracking.track import Given
from deeprok.training import jobs as processes
from deeprok.training.loop import Report


@overload
def train(
    config: Config,
    out: str | os.PathLike[str] | None = None,
    seeds: None = None,
    jobs: int | None = None,
    report: Report | None = None,
    trackers: Sequence[Given] = (),
) -> Run: ...


@overload
def train(
    config: Config,
    out: str | os.PathLike[str] | None = None,
    *,
    seeds: Sequence[int],
    jobs: int | None = None,
    report: Report | None = None,
    trackers: Sequence[Given] = (),
) -> list[Run]: ...


def train(
    config: Config,
    out: str | os.PathLike[str] | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    report: Report | None = None,
    trackers: Sequence[Given] = (),
) -> Run | list[Run]:
    """Trains an agent from the beginning.

    Args:
      config: the settings, from `make_config`.
      out: a new folder. It becomes the run folder or, if `seeds` is given, holds one for each. Without it the run is
        kept in a temporary folder, which is removed when Python exits.
      seeds: seeds to train instead of the settings' own.
      jobs: processes at once; by default as many as there are cores.
      report: called after each chunk with the run's folder and its new line of metrics. If it is None, a line on
        standard error shows the progress, where that is a terminal.
      trackers: where the metrics go too, beside `metrics.jsonl`: "tensorboard", "wandb:PROJECT", "mlflow:EXPERIMENT",
        your own "module:object", or what makes the tracker of a run. One that fails is switched off with a sentence,
        and the training goes on as if it had not been given.

    Returns:
      The trained run, with its best weights; if `seeds` is given, a list with the run of each.

    Example:
      >>> run = deeprok.train(deeprok.make_config("rtd_dqn", episodes=50))
      >>> run.metrics.returns.shape
      (50,)
    """
    cache.enable_if_asked()
    folders = processes.train(config, _temporary_folder() if out is None else Path(out), seeds, jobs, report, trackers)
    trained = [load(folder) for folder in folders]
    return trained[0] if seeds is None else trained


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="deeprok-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "run"
