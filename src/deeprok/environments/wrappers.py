"""Environment wrappers: sensor noise, noisy parameters and action delay."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.environments.base import Environment, Outcome


def with_sensor_noise(env: Environment, deviation: float) -> Environment:
    """Adds Gaussian noise to each observation; the state is not affected.

    Args:
      env: the environment.
      deviation: the noise's standard deviation, in units of `Environment.observation_scale`.
    """
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


def with_parameter_noise(env: Environment, name: str, deviation: float) -> Environment:
    """Multiplies one of the parameters by a fresh Gaussian factor in each step.

    Args:
      env: the environment.
      name: the parameter, `force` for example.
      deviation: standard deviation of the factor, whose mean is 1.
    """

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        env_key, noise_key = jax.random.split(key)
        factor = 1.0 + deviation * jax.random.normal(noise_key)
        disturbed = dataclasses.replace(params, **{name: factor * getattr(params, name)})
        return env.step(env_key, state, action, disturbed)

    return env._replace(step=step)


def with_delay(env: Environment) -> Environment:
    """Delays each action by one step; the first step takes a random action."""

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        env_key, action_key = jax.random.split(key)
        state, obs = env.reset(env_key, params)
        first = env.actions.sample(action_key)
        return (state, first), obs

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        inner, pending = state
        outcome = env.step(key, inner, pending, params)
        return dataclasses.replace(outcome, state=(outcome.state, action.astype(pending.dtype)))

    return env._replace(reset=reset, step=step)
