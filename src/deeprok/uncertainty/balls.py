"""The inner problem: the worst expectation over a set of distributions.

Each set is one function `worst_case(p, values, level) -> WorstCase`, unbatched. Labels of the
deep agents call it with uniform `p` over the M outcomes of a step.

G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research, 2005.
R. T. Rockafellar and S. Uryasev, "Optimization of conditional value-at-risk", Journal of Risk, 2000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from deeprok.errors import DeeprokError


class WorstCase(NamedTuple):
    """The least expectation and a distribution that attains it."""

    value: jax.Array  # []
    distribution: jax.Array  # [M]


class AmbiguitySet(NamedTuple):
    """A family of sets of distributions around `p`.

    Attributes:
      worst_case: `(p, values, level) -> WorstCase`, with `p` and `values` of shape [M].
      check_level: `(level, field="robust_level")` raises unless the level is one the family can take.
    """

    worst_case: Callable[[jax.Array, jax.Array, float | jax.Array], WorstCase]
    check_level: Callable[..., None]


def minimum(p: jax.Array, values: jax.Array, level: float | jax.Array = 0.0) -> WorstCase:
    """All distributions on the outcomes: the hard minimum of the paper. The level is not used."""
    worst = jnp.argmin(values)
    return WorstCase(jnp.min(values), jax.nn.one_hot(worst, values.shape[0], dtype=p.dtype))


def cvar(p: jax.Array, values: jax.Array, level: float | jax.Array) -> WorstCase:
    """Distributions with p' ≤ p / level: the mean of the worst fraction `level` of the mass.

    The outcome at the boundary of the fraction counts with the part of its mass that lies inside.

    Args:
      p: [M] the distribution the set is built on.
      values: [M] the value of each outcome.
      level: the fraction, in (0, 1]; 1 is the mean, and small levels approach the minimum over
        the outcomes that have mass.
    """
    taken = jnp.clip(level - _mass_before(p, values), 0.0, p) / level
    return WorstCase(jnp.sum(taken * values), taken)


def _mass_before(p: jax.Array, values: jax.Array) -> jax.Array:
    """The mass of all outcomes worse than each one; equal ones count in the order they stand."""
    if values.shape[0] <= 64:  # comparing all pairs is one fused loop, sorting is not
        place = jnp.arange(values.shape[0])
        worse = values[None, :] < values[:, None]
        earlier = (values[None, :] == values[:, None]) & (place[None, :] < place[:, None])
        return jnp.sum(jnp.where(worse | earlier, p[None, :], 0.0), axis=1)
    order = jnp.argsort(values)
    mass = p[order]
    return jnp.zeros_like(p).at[order].set(jnp.cumsum(mass) - mass)


def _any_level(level: float, field: str = "robust_level") -> None:
    del level, field


def _fraction(level: float, field: str = "robust_level") -> None:
    if not 0.0 < level <= 1.0:
        raise DeeprokError(f"{field} is {level:g}; for the set cvar it is a fraction above 0 and at most 1")


SETS: dict[str, AmbiguitySet] = {
    "minimum": AmbiguitySet(minimum, _any_level),
    "cvar": AmbiguitySet(cvar, _fraction),
}
