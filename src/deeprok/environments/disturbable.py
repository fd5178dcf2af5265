"""Sensor noise and action delay as two more parameters, so that models can differ by them.

`wrappers` and `host_wrappers` put a fixed noise and delay around an environment. Here both are part of a model, beside
the physical parameters: one compiled program plays models of any noise and delay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments.base import AnyEnvironment, Environment, Outcome, quantity
from deeprok.environments.drawing import draw_inner
from deeprok.environments.host import HostEnvironment, Simulator, make_parameters
from deeprok.environments.host_wrappers import (
    Disturbances,
    DisturbedSimulator,
    action_sampler,
    remembering_simulator,
)
from deeprok.environments.past import without_memory
from deeprok.environments.wrappers import with_memory

#: The names that an environment's parameters gain.
SENSOR_NOISE, ACTION_DELAY = "sensor_noise", "action_delay"

_STREAM = 0x5E45  # what the random numbers of noise and delay are told apart by from the environment's


def disturbable(env: AnyEnvironment, sensor_noise: float, action_delay: int, longest_delay: int) -> AnyEnvironment:
    """The environment with `sensor_noise` and `action_delay` among its parameters.

    Where both are 0 it is the environment itself, with the same random numbers. As elsewhere, noise and delay go
    beneath a memory, and until the first action arrives actions are random.

    Args:
      env: the environment, without a noise or a delay of its own.
      sensor_noise: nominal standard deviation of the noise on each observation, in units of `observation_scale`.
      action_delay: nominal number of steps by which each action is late.
      longest_delay: the longest delay that a model may have.
    """
    if env.past:
        beneath = disturbable(without_memory(env), sensor_noise, action_delay, longest_delay)
        steps = env.past.steps
        return (
            remembering_simulator(beneath, steps)
            if isinstance(beneath, HostEnvironment)
            else with_memory(beneath, steps)
        )
    nominal = disturbable_parameters(env.nominal, sensor_noise, action_delay)
    if isinstance(env, HostEnvironment):
        return env._replace(
            nominal=nominal,
            make=lambda: DisturbableSimulator(env.make(), np.asarray(env.observation_scale), action_sampler(env)),
        )
    return _in_jax(env, nominal, max(1, longest_delay))


def disturbable_parameters(nominal: Any, sensor_noise: float, action_delay: int) -> Any:
    """The parameters of an environment and, after them, its noise and delay."""
    own = dataclasses.fields(nominal)
    quantities = {field.name: dataclasses.field(default=field.default, metadata=field.metadata) for field in own}
    quantities[SENSOR_NOISE] = quantity(0.0, "", "noise on each observation, in typical sizes", positive=False)
    quantities[ACTION_DELAY] = quantity(0.0, "steps", "by which each action is late", positive=False)
    values = {field.name: getattr(nominal, field.name) for field in own}
    parameters = make_parameters(type(nominal).__name__, quantities)
    return dataclasses.replace(parameters, **values, **{SENSOR_NOISE: sensor_noise, ACTION_DELAY: float(action_delay)})


def _in_jax(env: Environment, nominal: Any, longest: int) -> Environment:
    scale = np.asarray(env.observation_scale)
    names = [field.name for field in dataclasses.fields(env.nominal)]

    def own(params: Any) -> Any:
        return dataclasses.replace(env.nominal, **{name: getattr(params, name) for name in names})

    def blurred(key: jax.Array, obs: jax.Array, params: Any) -> jax.Array:
        noise = jax.random.normal(key, obs.shape, obs.dtype)
        return obs + (params.sensor_noise * scale).astype(obs.dtype) * noise

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        state, obs = env.reset(key, own(params))
        noise_key, action_key = jax.random.split(jax.random.fold_in(key, _STREAM))
        before = jax.vmap(env.actions.sample)(jax.random.split(action_key, longest))
        return (state, before), blurred(noise_key, obs, params)

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        inner, before = state  # [longest] the actions decided so far, the last one first
        decided = jnp.concatenate([action.astype(before.dtype)[None], before])
        late = jnp.clip(jnp.round(params.action_delay).astype(jnp.int32), 0, longest)
        outcome = env.step(key, inner, decided[late], own(params))
        obs = blurred(jax.random.fold_in(key, _STREAM), outcome.obs, params)
        return dataclasses.replace(outcome, state=(outcome.state, decided[:-1]), obs=obs)

    # The states of a grid lack the pending actions.
    draw = draw_inner(env.draw, own)
    return env._replace(reset=reset, step=step, nominal=nominal, grid=None, draw=draw)


class DisturbableSimulator(DisturbedSimulator):
    """A `Simulator` around another one, whose noise and delay are those of the episode's model."""

    def __init__(self, inner: Simulator, scale: np.ndarray, sample: Any) -> None:
        none = Disturbances(blur=np.zeros(len(scale)), delay=0, noise={}, nominal={}, least={}, sample=sample)
        super().__init__(inner, none)
        self._scale = scale

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode with these parameters, of which noise and delay are not the simulator's own."""
        noise, late = model.get(SENSOR_NOISE, 0.0), model.get(ACTION_DELAY, 0.0)
        self._changes = self._changes._replace(blur=noise * self._scale, delay=round(late))
        physical = {name: value for name, value in model.items() if name not in (SENSOR_NOISE, ACTION_DELAY)}
        return super().reset(seed, physical)
