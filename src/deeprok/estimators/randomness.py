"""Random numbers of estimators that sample during updates: the key is part of their state, so runs can be resumed."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def stream_of(theta: jax.Array) -> jax.Array:
    """Key data [2] uint32, a hash of all bits of the initial weights: other weights, other random numbers."""
    bits = jax.lax.bitcast_convert_type(theta, "uint32").reshape(-1)
    odd = 2 * jnp.arange(bits.size, dtype="uint32") + 1
    return jax.random.key_data(jax.random.fold_in(jax.random.key(0), jnp.sum(bits * odd, dtype="uint32")))


def key_at(stream: jax.Array, updates: jax.Array) -> jax.Array:
    """The random key of one update."""
    return jax.random.fold_in(jax.random.wrap_key_data(stream), updates)


def stream_after(stream: jax.Array, seed: int) -> jax.Array:
    """The key data of a run that starts from the posterior of another run."""
    return jax.random.key_data(jax.random.fold_in(jax.random.split(jax.random.wrap_key_data(stream))[1], seed))
