"""What runs must have in common to be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.runs.settings import Config


def check_same_environment(name: object, config: Config, other: object, others: Config) -> None:
    """Raises unless two runs have the same environment, whatever their nominal parameters and disturbances.

    Args:
      name: what the first is called in messages.
      config: its settings.
      other: what the second is called.
      others: its settings.
    """
    if config.env != others.env:
        raise DeeprokError(
            f"{name} has the environment {shown(config.env)} and {other} {shown(others.env)}; runs are compared in"
            " the same environment only"
        )
    for field in dataclasses.fields(config.environment):
        ours, theirs = (getattr(one.environment, field.name) for one in (config, others))
        if ours != theirs:
            raise DeeprokError(
                f"{name} has the {field.name} {shown(ours)} and {other} {shown(theirs)}; runs are compared in the"
                " same environment only"
            )


def check_same_nominal(name: object, config: Config, other: object, others: Config, varied: Collection[str]) -> None:
    """Raises unless two runs of one environment have the same nominal parameters, but for those that are varied."""
    ours, theirs = config.make_env().nominal, others.make_env().nominal
    for field in dataclasses.fields(ours):
        # Rounded alike: those of a run that has changed some are in the run's precision.
        values = [np.float32(getattr(nominal, field.name)) for nominal in (ours, theirs)]
        if field.name not in varied and values[0] != values[1]:
            raise DeeprokError(
                f"{name} has the nominal {field.name} {values[0]:g} and {other} {values[1]:g}; a grid that varies "
                f"{field.name} would be the same for both"
            )
