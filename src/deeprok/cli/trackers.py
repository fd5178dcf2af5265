"""Options of commands that train: experiment trackers, which are told the metrics too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from deeprok.core.errors import DeeprokError, shown
from deeprok.tracking.track import make_trackers


@dataclass(frozen=True)
class Trackers:
    """Experiment trackers that are told the metrics, too; each seed is a run of its own."""

    tensorboard: bool = False
    """Write event files for TensorBoard into the run folders."""
    wandb: Annotated[str | None, tyro.conf.arg(metavar="PROJECT", help_behavior_hint="(default: none)")] = None
    """Log to this project of Weights & Biases."""
    mlflow: Annotated[str | None, tyro.conf.arg(metavar="EXPERIMENT", help_behavior_hint="(default: none)")] = None
    """Log to this experiment of MLflow."""
    tracker: Annotated[str | None, tyro.conf.arg(metavar="MODULE:OBJECT", help_behavior_hint="(default: none)")] = None
    """Log to a tracker of your own."""

    def names(self) -> list[str]:
        """The trackers that were asked for, by name; raises if one can't be."""
        found = ["tensorboard"] if self.tensorboard else []
        found += [f"{name}:{value}" for name in ("wandb", "mlflow") if (value := getattr(self, name)) is not None]
        if self.tracker is not None:
            if ":" not in self.tracker:
                raise DeeprokError(f"tracker is {shown(self.tracker)}; it must be your own, named module:object")
            found.append(self.tracker)
        make_trackers(found)
        return found
