"""The noise that a guard assumes: given, identified, or a guess that it owns up to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.base import AnyEnvironment, Environment, Outcome
from deeprok.environments.host import HostEnvironment, HostOutcome
from deeprok.environments.host_wrappers import Disturbances, DisturbedSimulator, action_sampler, remembering_simulator
from deeprok.environments.wrappers import with_memory
from deeprok.identification.result import Identified, Noise, read_identified

#: Standard deviations where nothing is known, as shares of an observation's typical size.
_SENSOR, _PROCESS = 0.01, 0.001

#: Sensor noise of each observation, or both noises by name.
GivenNoise = Sequence[float] | Mapping[str, Sequence[float]]


def assumed_noise(
    env: AnyEnvironment,
    name: str,
    sensor_noise: float,
    noise: GivenNoise | None,
    identified: str | os.PathLike[str] | Identified | None,
) -> tuple[Noise, str]:
    """The standard deviations of the noise, and a sentence that says where they are from.

    Args:
      env: the environment.
      name: what the run calls it.
      sensor_noise: the run's own, as a share of the typical sizes.
      noise: as the user gives it.
      identified: the result of `deeprok identify`, or its file.
    """
    scale = np.array(env.observation_scale)
    if noise is not None and identified is not None:
        raise DeeprokError("noise and identified are both given; give one of them")
    if identified is not None:
        found = identified if isinstance(identified, Identified) else read_identified(Path(identified))
        if found.env != name:
            raise DeeprokError(f"identified is for env {shown(found.env)}, but the run has {shown(name)}")
        return _checked("identified", found.noise.process, found.noise.sensor, env), "the noise is that identified"
    if noise is not None:
        given = noise if isinstance(noise, Mapping) else {"sensor": noise}
        if wrong := set(given) - {"sensor", "process"}:
            raise DeeprokError(f"noise has {shown(sorted(wrong)[0])}; it may have sensor and process")
        none = np.zeros(len(scale))
        return _checked("noise", given.get("process", none), given.get("sensor", none), env), "the noise is that given"
    sensor = sensor_noise or _SENSOR
    origin = "that of training, " if sensor_noise else ""
    return Noise(tuple((_PROCESS * scale).tolist()), tuple((sensor * scale).tolist())), (
        f"no noise was given: sensor noise is assumed to be {origin}{100 * sensor:g} % of each observation's typical "
        f"size, and process noise {100 * _PROCESS:g} %"
    )


def _checked(origin: str, process: Any, sensor: Any, env: AnyEnvironment) -> Noise:
    size, found = len(env.observation_scale), []
    for kind, values in (("process", process), ("sensor", sensor)):
        try:
            numbers = np.asarray(values, float)
        except (TypeError, ValueError):
            numbers = np.array(np.nan)
        if numbers.shape != (size,) or not np.all(np.isfinite(numbers) & (numbers >= 0)):
            raise DeeprokError(
                f"{origin} has the {kind} noise {shown(values)}; it must be {size} standard deviations, one for each "
                f"observation of {env.name}, finite and not negative"
            )
        found.append(tuple(numbers.tolist()))
    return Noise(*found)


def with_noise(env: AnyEnvironment, noise: Noise) -> AnyEnvironment:
    """The environment as a guard assumes the real system to be.

    Process noise is added to what the state would be observed as without sensor noise, as identification has it.

    Args:
      env: the environment, whose observations determine its state.
      noise: standard deviations.
    """
    process, sensor = (np.array(each) for each in (noise.process, noise.sensor))
    if isinstance(env, HostEnvironment):
        return env._replace(make=lambda: _Noisy(env, process, sensor), branched=None, place=None)
    return _in_jax(env, process, sensor)


def with_past(env: AnyEnvironment, steps: int) -> AnyEnvironment:
    """The environment with the memory of a policy."""
    return remembering_simulator(env, steps) if isinstance(env, HostEnvironment) else with_memory(env, steps)


class _Noisy(DisturbedSimulator):
    """A simulator with sensor noise, and with process noise that moves its state."""

    def __init__(self, env: HostEnvironment, process: np.ndarray, sensor: np.ndarray) -> None:
        super().__init__(env.make(), Disturbances(sensor, 0, {}, {}, {}, action_sampler(env)))
        self._place, self._process = env.place, process

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action on the model of the episode, which moves on from where the noise puts it."""
        outcome = self.inner.step(action)
        self._t += 1
        obs = self._moved(outcome.obs)
        if self._process.any() and self._place and not outcome.terminated:
            self._place(self.inner, obs)
        return outcome._replace(obs=self._blurred(obs))

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """The outcomes under each of M models, all with the noise that the step has."""
        found = self.inner.outcomes(action, models)
        return found._replace(obs=self._blurred(self._moved(found.obs, 1), 1))

    def _moved(self, obs: np.ndarray, later: int = 0) -> np.ndarray:
        return obs + self._process * self._random(3, later).standard_normal(len(self._process))


def _in_jax(env: Environment, process: np.ndarray, sensor: np.ndarray) -> Environment:
    state_of = env.state_of or (lambda obs: obs)

    def blurred(key: jax.Array, obs: jax.Array, deviation: np.ndarray) -> jax.Array:
        return obs + jnp.asarray(deviation, obs.dtype) * jax.random.normal(key, obs.shape, obs.dtype)

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        env_key, sensor_key = jax.random.split(key)
        state, obs = env.reset(env_key, params)
        return state, blurred(sensor_key, obs, sensor)

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        env_key, process_key, sensor_key = jax.random.split(key, 3)
        outcome = env.step(env_key, state, action, params)
        obs, moved = outcome.obs, outcome.state
        if process.any():
            obs = blurred(process_key, obs, process)
            moved = jax.tree.map(lambda own, read: jnp.asarray(read).astype(own.dtype), moved, state_of(obs))
        return dataclasses.replace(outcome, state=moved, obs=blurred(sensor_key, obs, sensor))

    return env._replace(reset=reset, step=step, grid=None)
