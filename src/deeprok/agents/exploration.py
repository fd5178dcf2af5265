"""Exploration: the schedule of ε-greedy, and random actions that are repeated.

W. Dabney, G. Ostrovski and A. Barreto, "Temporally-extended ε-greedy exploration", ICLR, 2021.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def linear_epsilon(t: jax.Array | float, start: float, end: float, steps: float) -> jax.Array:
    """ε at time t: falls linearly from `start` to `end` over a time of `steps`, then stays."""
    done = jnp.clip(jnp.asarray(t, float) / steps, 0.0, 1.0) if steps else 1.0
    return jnp.asarray(start + (end - start) * done)


class Repeats:
    """How long a random action is repeated: n steps with a probability that falls as 1/n², up to a longest.

    Args:
      longest: the most steps.
    """

    def __init__(self, longest: int) -> None:
        lengths = np.arange(1, longest + 1)
        probability = lengths**-2.0 / np.sum(lengths**-2.0)
        self.cumulative = np.cumsum(probability)
        self.mean = float(probability @ lengths)

    def length(self, uniform: jax.Array) -> jax.Array:
        """A length [] int32 for a uniform number."""
        place = jnp.searchsorted(jnp.asarray(self.cumulative, uniform.dtype), uniform, side="right")
        return jnp.minimum(place, len(self.cumulative) - 1).astype(jnp.int32) + 1

    def begins(self, epsilon: jax.Array) -> jax.Array:
        """The probability to begin with a random action, so that a fraction ε of all steps takes one."""
        return epsilon / (self.mean - epsilon * (self.mean - 1.0))
