"""Weights & Biases: a run of a project for each seed. Mode, server and key are its own environment variables'."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from deeprok.tracking.base import TrackedRun


class WeightsAndBiases:
    """A run of a project of Weights & Biases.

    Args:
      project: its name.
    """

    def __init__(self, project: str) -> None:
        self._project = project
        self._run: Any = None

    def open(self, run: TrackedRun) -> int:
        """Begins a run, or goes on with the one of this folder."""
        wandb = import_module("wandb")
        identity = run.notes.setdefault("id", uuid.uuid4().hex[:8])
        self._run = wandb.init(
            project=self._project,
            name=run.name,
            group=run.folder.resolve().parent.name if run.folder.name.startswith("seed-") else None,
            id=identity,
            resume="allow",
            reinit="create_new",  # seeds that train together are runs side by side
            config=run.config,
            settings=wandb.Settings(silent=True, console="off"),
        )
        return run.last_step

    def log(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Logs the numbers at a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.finish()
