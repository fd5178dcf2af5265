"""How an agent tries what it does not believe in."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from deeprok.environments.base import Interval


def linear_epsilon(t: jax.Array | int, start: float, end: float, steps: int) -> jax.Array:
    """ε at step t: falls linearly from `start` to `end` over `steps` steps, then stays."""
    done = jnp.clip(jnp.asarray(t, float) / steps, 0.0, 1.0) if steps else 1.0
    return jnp.asarray(start + (end - start) * done)


def epsilon_greedy(draw: jax.Array, epsilon: jax.Array | float, greedy: jax.Array, actions: int) -> jax.Array:
    """A uniformly random action with probability ε, else the greedy one.

    Args:
      draw: [2] uniform random numbers: a coin, and the action should it fall so.
      epsilon: ε.
      greedy: [] the greedy action.
      actions: how many actions there are.
    """
    coin, choice = draw
    anything = jnp.minimum((choice * actions).astype(jnp.int32), actions - 1)
    return jnp.where(coin < epsilon, anything, greedy.astype(jnp.int32))


def epsilon_uniform(draw: jax.Array, epsilon: jax.Array | float, greedy: jax.Array, interval: Interval) -> jax.Array:
    """An action anywhere between the ends with probability ε, else the greedy one.

    Args:
      draw: [1 + A] uniform random numbers: a coin, and the action should it fall so.
      epsilon: ε.
      greedy: [A] the greedy action.
      interval: the ends.
    """
    return jnp.where(draw[0] < epsilon, interval.at(2.0 * draw[1:] - 1.0), greedy)
