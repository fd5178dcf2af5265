"""Exploration: the schedule of ε-greedy."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def linear_epsilon(t: jax.Array | int, start: float, end: float, steps: int) -> jax.Array:
    """ε at step t: falls linearly from `start` to `end` over `steps` steps, then stays."""
    done = jnp.clip(jnp.asarray(t, float) / steps, 0.0, 1.0) if steps else 1.0
    return jnp.asarray(start + (end - start) * done)
