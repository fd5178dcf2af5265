"""MLflow: a run of an experiment for each seed. The server or folder is that of its own environment variables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from deeprok.tracking.base import TrackedRun

_MOST_PARAMS = 100  # in one call
_LONGEST = 500  # characters of a setting


class MLflow:
    """A run of an experiment of MLflow.

    Args:
      experiment: its name; it is made where it is missing.
    """

    def __init__(self, experiment: str) -> None:
        self._experiment = experiment
        self._client: Any = None
        self._run_id = ""

    def open(self, run: TrackedRun) -> int:
        """Begins a run, or goes on with the one of this folder."""
        client = import_module("mlflow").MlflowClient()
        entities = import_module("mlflow.entities")
        self._metric = entities.Metric
        if "id" in run.notes:
            self._run_id = run.notes["id"]
            client.update_run(self._run_id, status="RUNNING")
        else:
            experiment = client.get_experiment_by_name(self._experiment)
            number = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
            self._run_id = client.create_run(number, run_name=run.name).info.run_id
            run.notes["id"] = self._run_id
            params = [entities.Param(name, str(value)[:_LONGEST]) for name, value in run.config.items()]
            for start in range(0, len(params), _MOST_PARAMS):
                client.log_batch(self._run_id, params=params[start : start + _MOST_PARAMS])
        self._client = client
        return run.last_step

    def log(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Logs the numbers at a step."""
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Ends the run."""
        if self._client is not None:
            self._client.set_terminated(self._run_id)
