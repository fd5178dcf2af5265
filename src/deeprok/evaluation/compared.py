"""Runs that are compared: all in the same environment, of which noise and delay may be parameters like any other."""

from __future__ import annotations

import dataclasses
from typing import Any

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.disturbable import ACTION_DELAY, SENSOR_NOISE, disturbable_parameters
from deeprok.evaluation.trained import Run
from deeprok.runs.settings import Config


def check_same(one: Run, other: Run) -> None:
    """Raises unless two runs can be compared."""
    a, b = one.settings, other.settings
    if a.env != b.env:
        raise DeeprokError(
            f"{one.folder} has the environment {shown(a.env)} and {other.folder} {shown(b.env)}; runs are compared in"
            " the same environment only"
        )
    for field in dataclasses.fields(a.environment):
        ours, theirs = (getattr(config.environment, field.name) for config in (a, b))
        if ours != theirs:
            raise DeeprokError(
                f"{one.folder} has the {field.name} {shown(ours)} and {other.folder} {shown(theirs)}; runs are"
                " compared in the same environment only"
            )


def undisturbed(config: Config) -> AnyEnvironment:
    """A run's environment without the noise and the delay that it was trained with."""
    return config.disturbed(**{SENSOR_NOISE: 0.0, ACTION_DELAY: 0}).make_env()


def can_be_disturbed(env: AnyEnvironment) -> bool:
    """Whether its parameters leave the names of noise and delay free."""
    return not {SENSOR_NOISE, ACTION_DELAY} & {field.name for field in dataclasses.fields(env.nominal)}


def parameters_of(config: Config, env: AnyEnvironment) -> Any:
    """The parameters that a model of the run's environment may name, with the run's own values."""
    if not can_be_disturbed(env):
        return env.nominal
    return disturbable_parameters(env.nominal, config.sensor_noise, config.action_delay)
