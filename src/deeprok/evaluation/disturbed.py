"""The environment of runs that are compared, in which noise and delay are parameters like any other."""

from __future__ import annotations

import dataclasses
from typing import Any

from deeprok.environments.base import AnyEnvironment
from deeprok.environments.disturbable import ACTION_DELAY, SENSOR_NOISE, disturbable_parameters
from deeprok.runs.settings import Config


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
