"""How fast a filter forgets: schedules of η, by which P is divided as P / (1 − η) before an update."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

#: `(updates so far, fraction of the budget used) -> η` of the fading-memory filter.
Fading = Callable[[jax.Array, jax.Array | float], jax.Array]

#: Fraction of the budget after which the window of the filter's memory grows.
_SETTLES_FROM = 0.7


def fade(remembered: float, window: int = 0) -> Fading:
    """η such that about the last `remembered`·t of t updates count, and at most `window` of them.

    Over the end of the budget the window grows without bound, so that the steps of the mean fall to those of
    `remembered` alone.

    Args:
      remembered: fraction of the past updates.
      window: number of updates; 0 for no limit.
    """

    def fading(updates: jax.Array, progress: jax.Array | float) -> jax.Array:
        count = jnp.asarray(remembered * updates)
        if window:
            left = jnp.clip((1.0 - progress) / (1.0 - _SETTLES_FROM), 0.0, 1.0)
            count = jnp.minimum(count, window / jnp.maximum(left, 1e-30))
        return 1.0 / (2.0 + count)

    return fading
