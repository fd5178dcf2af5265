"""Environment wrappers: sensor noise, noisy parameters, action delay, and memory.

A run has them as settings, and so has its evaluation (`disturbed`). What is remembered is what was observed and
decided, so that noise and delay come before memory: put around an environment with memory, they go beneath it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.errors import DeeprokError
from deeprok.environments.base import Environment, Outcome
from deeprok.environments.drawing import draw_inner
from deeprok.environments.past import make_past, without_memory

#: Smallest factor by which noise may change a parameter that must be positive.
_LEAST_FACTOR = 0.01


def disturbed(
    env: Environment, sensor_noise: float = 0.0, action_delay: int = 0, parameter_noise: Mapping[str, float] = {}
) -> Environment:
    """The environment with all that may disturb it; the environment itself if nothing does.

    Args:
      env: the environment.
      sensor_noise: the deviation of `with_sensor_noise`.
      action_delay: the steps of `with_delay`.
      parameter_noise: name -> the deviation of `with_parameter_noise`. A parameter that must be positive stays so.
    """
    for name, deviation in parameter_noise.items():
        if deviation:
            env = with_parameter_noise(env, name, deviation, least_factor(env.nominal, name))
    if action_delay:
        env = with_delay(env, action_delay)
    return with_sensor_noise(env, sensor_noise) if sensor_noise else env


def least_factor(nominal: Any, name: str) -> float | None:
    """The smallest factor that noise may multiply a parameter by; None for no bound."""
    positive = next(field.metadata["positive"] for field in dataclasses.fields(nominal) if field.name == name)
    return _LEAST_FACTOR if positive else None


def with_sensor_noise(env: Environment, deviation: float) -> Environment:
    """Adds Gaussian noise to each observation; the state is not affected.

    Args:
      env: the environment.
      deviation: the noise's standard deviation, in units of `Environment.observation_scale`.
    """
    if env.past:
        return _beneath(env, lambda plain: with_sensor_noise(plain, deviation))
    scale = deviation * jnp.asarray(env.observation_scale)

    def blur(key: jax.Array, obs: jax.Array) -> jax.Array:
        return obs + scale.astype(obs.dtype) * jax.random.normal(key, obs.shape, obs.dtype)

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        env_key, noise_key = jax.random.split(key)
        state, obs = env.reset(env_key, params)
        return state, blur(noise_key, obs)

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        env_key, noise_key = jax.random.split(key)
        outcome = env.step(env_key, state, action, params)
        return dataclasses.replace(outcome, obs=blur(noise_key, outcome.obs))

    return env._replace(reset=reset, step=step)


def with_parameter_noise(env: Environment, name: str, deviation: float, least: float | None = None) -> Environment:
    """Multiplies one of the parameters by a fresh Gaussian factor in each step.

    Args:
      env: the environment.
      name: the parameter, `force` for example.
      deviation: standard deviation of the factor, whose mean is 1.
      least: the smallest factor; None for no bound.
    """

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        env_key, noise_key = jax.random.split(key)
        factor = 1.0 + deviation * jax.random.normal(noise_key)
        factor = factor if least is None else jnp.maximum(factor, least)
        disturbed = dataclasses.replace(params, **{name: factor * getattr(params, name)})
        return env.step(env_key, state, action, disturbed)

    return env._replace(step=step)


def with_delay(env: Environment, steps: int = 1) -> Environment:
    """Delays each action; until the first one arrives, actions are random.

    Args:
      env: the environment.
      steps: by how many steps an action is late.
    """
    if steps < 1:
        raise DeeprokError(f"steps is {steps}; a delay must have at least 1")
    if env.past:
        return _beneath(env, lambda plain: with_delay(plain, steps))
    if steps > 1:
        return with_delay(with_delay(env, steps - 1))

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        env_key, action_key = jax.random.split(key)
        state, obs = env.reset(env_key, params)
        first = env.actions.sample(action_key)
        return (state, first), obs

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        inner, pending = state
        outcome = env.step(key, inner, pending, params)
        return dataclasses.replace(outcome, state=(outcome.state, action.astype(pending.dtype)))

    # The states of a grid lack the pending action.
    return env._replace(reset=reset, step=step, grid=None, draw=draw_inner(env.draw))


def with_memory(env: Environment, steps: int) -> Environment:
    """Lets each observation be followed by the last steps' observations and actions, as `Past` describes.

    A policy can then tell the parameters of the model that it is on by what its actions did.

    Args:
      env: the environment.
      steps: K, how many steps are remembered; at most its horizon.
    """
    past = make_past(env, steps)

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        state, obs = env.reset(key, params)
        seen = past.begin(obs)
        return (state, seen), seen

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        inner, before = state
        outcome = env.step(key, inner, action, params)
        seen = jnp.concatenate([outcome.obs, past.after(before, action)])
        return dataclasses.replace(outcome, state=(outcome.state, seen), obs=seen)

    # The states of a grid lack the past.
    return env._replace(
        reset=reset,
        step=step,
        observation_scale=past.widen(env.observation_scale),
        grid=None,
        past=past,
        draw=draw_inner(env.draw),
    )


def _beneath(env: Environment, change: Callable[[Environment], Environment]) -> Environment:
    """The environment with memory whose environment without it is changed."""
    assert env.past
    return with_memory(change(without_memory(env)), env.past.steps)
