"""Experience replay: a ring of transitions that lives on the device and is written in place.

A transition is stored as one row of numbers. With an array for each of its fields XLA copies
whole arrays at each step where it merges the write of one with the read of another.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from deeprok.environments.base import Transition


def empty(observations: int, models: int, capacity: int, numbers: int = 0) -> jax.Array:
    """A ring [capacity, width] for transitions with that many observations, models and numbers in an action."""
    return jnp.zeros((capacity, width(observations, models, numbers)))


def width(observations: int, models: int, numbers: int = 0) -> int:
    """The numbers of a row: of an action as many as it has, or its index."""
    return observations + (numbers or 1) + models * (observations + 2)


def write(ring: jax.Array, t: jax.Array, transition: Transition, active: jax.Array) -> jax.Array:
    """Stores the t-th transition, over the oldest when full; an inactive write changes nothing."""
    slot = t % ring.shape[0]
    leaves = jax.tree.leaves(transition)
    row = jnp.concatenate([leaf.reshape(-1).astype(ring.dtype) for leaf in leaves])
    # Guard the row, never the ring: a `where` over the ring would copy it.
    kept = jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(ring, jnp.where(active, row, kept), slot, 0)


def choose(capacity: int, bits: jax.Array, t: jax.Array) -> jax.Array:
    """The rows [B] of a mini-batch, drawn uniformly, with replacement, from what t + 1 writes have left.

    Args:
      capacity: rows of the replay.
      bits: [B] uint32, random; their remainders choose the transitions. With 2³² values for
        some 10⁵ transitions the remainder favours none by more than one part in 10⁴.
      t: number of the last write.
    """
    filled = jnp.minimum(t + 1, capacity).astype(jnp.uint32)
    return (bits % filled).astype(jnp.int32)


def sample(ring: jax.Array, bits: jax.Array, t: jax.Array, observations: int, numbers: int = 0) -> Transition:
    """A mini-batch of the replay: what `choose` has chosen.

    Args:
      ring: the replay.
      bits: [B] uint32, random.
      t: number of the last write.
      observations: D, the length of an observation.
      numbers: A, the length of an action of numbers; 0 if it is an index.
    """
    return unpack(ring[choose(ring.shape[0], bits, t)], observations, numbers)


def unpack(rows: jax.Array, observations: int, numbers: int = 0) -> Transition:
    """Transitions [B, ...] from rows [B, width]."""
    D = observations
    M = (rows.shape[-1] - D - (numbers or 1)) // (D + 2)
    action_shape = (numbers,) if numbers else ()
    shapes = [(D,), action_shape, (M,), (M, D), (M,)]  # the fields of Transition, in order
    parts = jax.lax.split(rows, [math.prod(shape) for shape in shapes], axis=1)
    fields = [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
    obs, action, reward, next_obs, terminated = fields
    return Transition(
        obs=obs,
        action=action if numbers else action.astype(jnp.int32),
        reward=reward,
        next_obs=next_obs,
        terminated=terminated != 0,
    )
