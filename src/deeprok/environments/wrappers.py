"""What a real plant does to a policy beside having other parameters: noise, and a late hand.

Each function makes a world out of a world.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.environments.base import Interval, Outcome, World


def with_sensor_noise(world: World, deviation: float) -> World:
    """The agent sees each observation with normal noise on it; the world itself is as it was.

    Args:
      world: the world.
      deviation: the noise's standard deviation, in units of `World.observation_scale`.
    """
    scale = deviation * jnp.asarray(world.observation_scale)

    def blur(key: jax.Array, obs: jax.Array) -> jax.Array:
        return obs + scale.astype(obs.dtype) * jax.random.normal(key, obs.shape, obs.dtype)

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        world_key, noise_key = jax.random.split(key)
        state, obs = world.reset(world_key, params)
        return state, blur(noise_key, obs)

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        world_key, noise_key = jax.random.split(key)
        outcome = world.step(world_key, state, action, params)
        return dataclasses.replace(outcome, obs=blur(noise_key, outcome.obs))

    return world._replace(reset=reset, step=step)


def with_parameter_noise(world: World, name: str, deviation: float) -> World:
    """In each step one of the parameters is off by a fresh normal factor.

    Args:
      world: the world.
      name: the parameter, `force` for example.
      deviation: standard deviation of the factor, whose mean is 1.
    """

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        world_key, noise_key = jax.random.split(key)
        factor = 1.0 + deviation * jax.random.normal(noise_key)
        disturbed = dataclasses.replace(params, **{name: factor * getattr(params, name)})
        return world.step(world_key, state, action, disturbed)

    return world._replace(step=step)


def with_delay(world: World) -> World:
    """Each action takes effect one step late; the first step takes a random one."""

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        world_key, action_key = jax.random.split(key)
        state, obs = world.reset(world_key, params)
        if isinstance(world.actions, Interval):
            first = world.actions.at(jax.random.uniform(action_key, (len(world.actions),), minval=-1.0))
        else:
            first = jax.random.randint(action_key, (), 0, len(world.actions))
        return (state, first), obs

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        inner, pending = state
        outcome = world.step(key, inner, pending, params)
        return dataclasses.replace(outcome, state=(outcome.state, action.astype(pending.dtype)))

    return world._replace(reset=reset, step=step)
