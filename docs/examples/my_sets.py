"""An ambiguity set: a part of the probability moves to the worst outcome that can happen at all."""

import jax
import jax.numpy as jnp

from deeprok.uncertainty import AmbiguitySet, WorstCase
from deeprok.uncertainty.sets.base import level_check


def worst_case(p, values, level):
    """The least expectation over (1 − level) p + level q, for any q on the outcomes with p > 0.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the part of the mass that may move.
    """
    worst = jnp.argmin(jnp.where(p > 0.0, values, jnp.inf))
    q = (1.0 - level) * p + level * jax.nn.one_hot(worst, p.shape[0], dtype=p.dtype)
    return WorstCase(jnp.sum(q * values), q)


SHIFT = AmbiguitySet(
    worst_case=worst_case,
    check_level=level_check("shift", lambda level: 0.0 <= level <= 1.0, "a part between 0 and 1"),
    nominal_level=0.0,  # at this level the set holds p alone
    reach="support",  # only outcomes with p > 0 gain mass
)
