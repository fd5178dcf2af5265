"""Labels: what Q(s, a) is told to be, given what nature may do.

The functions are unbatched; `vmap` does the rest. Equation numbers are those of the Deep-RoK paper.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from deeprok.uncertainty import WorstCase


def max_value(q: jax.Array) -> jax.Array:
    """max Q(s', ·; θ') from the target network's values [A]."""
    return jnp.max(q)


def double_value(q: jax.Array, q_online: jax.Array) -> jax.Array:
    """The target network's value of the action that the online network prefers (van Hasselt, 2016)."""
    return q[jnp.argmax(q_online)]


def outcome_values(reward: jax.Array, terminated: jax.Array, next_value: jax.Array, discount: float) -> jax.Array:
    """r + γ (1 − terminated) V(s') of each outcome; all arrays [M]. Truncation does not enter."""
    return reward + discount * jnp.where(terminated, 0.0, next_value)


def label(
    reward: jax.Array,
    terminated: jax.Array,
    next_value: jax.Array,
    discount: float,
    worst_case: Callable[[jax.Array, jax.Array, float | jax.Array], WorstCase],
    level: float | jax.Array,
) -> jax.Array:
    """The robust label of Eq. 14; with M = 1 the nominal label of Eq. 4.

    Args:
      reward: [M] reward under each model. The paper's r(s, a) is the same for all.
      terminated: [M] whether each model's successor is terminal.
      next_value: [M] value of each model's successor.
      discount: γ.
      worst_case: the inner problem, from `deeprok.uncertainty`.
      level: the size of its set.
    """
    values = outcome_values(reward, terminated, next_value, discount)
    if values.shape == (1,):
        return values[0]  # one outcome leaves nature no choice, whatever the set
    uniform = jnp.full(values.shape, 1.0 / values.shape[0], values.dtype)
    return worst_case(uniform, values, level).value
