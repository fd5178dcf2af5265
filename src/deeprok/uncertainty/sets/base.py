"""What every ambiguity set is made of: its protocol, and helpers that its file may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from deeprok.core.errors import DeeprokError

Level = float | jax.Array


class WorstCase(NamedTuple):
    """The least expectation and a distribution that attains it."""

    value: jax.Array  # []
    distribution: jax.Array  # [M]


class Tangent(NamedTuple):
    """A worst case and the line that supports it: at another level x it is at least value − steepness (x − level)."""

    value: jax.Array  # []
    distribution: jax.Array  # [M]
    steepness: jax.Array  # [] how fast the value falls with the level; any that holds, where it has a kink


class CheckLevel(Protocol):
    """A check of levels."""

    def __call__(self, level: float, field: str = "robust_level") -> None:
        """Raises a `DeeprokError` that names the field unless the level is one the family can take."""


class AmbiguitySet(NamedTuple):
    """A family of sets of distributions around `p`.

    Attributes:
      worst_case: `(p, values, level) -> WorstCase`, with `p` and `values` of shape [M].
      check_level: raises unless the level is one the family can take.
    """

    worst_case: Callable[[jax.Array, jax.Array, Level], WorstCase]
    check_level: CheckLevel


def level_check(name: str, allows: Callable[[float], bool], words: str) -> CheckLevel:
    """A check of levels for the set of that name; `words` say what it allows."""

    def check_level(level: float, field: str = "robust_level") -> None:
        if not allows(level):
            raise DeeprokError(f"{field} is {level:g}; for the set {name} it is {words}")

    return check_level


def ball(name: str, worst_case: Callable[..., WorstCase]) -> AmbiguitySet:
    """The entry of a set whose level is a radius."""
    return AmbiguitySet(worst_case, level_check(name, lambda level: level >= 0.0, "a radius of at least 0"))


def optimistic(worst_case: Callable[..., WorstCase]) -> Callable[..., WorstCase]:
    """The best case over the same set: the greatest expectation and a distribution that attains it.

    An `order` given to the result is that of the values from the greatest.
    """

    def best_case(p: jax.Array, values: jax.Array, *args: Any, **options: Any) -> WorstCase:
        value, distribution = worst_case(p, -values, *args, **options)
        return WorstCase(-value, distribution)

    return best_case


def on_support(worst_case: Callable[..., WorstCase]) -> Callable[..., WorstCase]:
    """The same set, cut down to the outcomes that have mass in p; rows can then be padded with zeros.

    The others are given a value above all, and so no mass: no set here puts any on the one greatest
    value where p has none.
    """

    def restricted(p: jax.Array, values: jax.Array, *args: Any, **options: Any) -> WorstCase:
        high = jnp.max(jnp.where(p > 0.0, values, -jnp.inf))
        span = high - jnp.min(jnp.where(p > 0.0, values, jnp.inf))
        above = high + jnp.where(span > 0.0, span, 1.0)
        return worst_case(p, jnp.where(p > 0.0, values, above), *args, **options)

    return restricted


def expectation(q: jax.Array, values: jax.Array) -> jax.Array:
    """Σ q v, measured from the least value: equal values give exactly theirs."""
    least = jnp.min(values)
    return least + jnp.sum(q * (values - least))


def to_unit(values: jax.Array, support: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values moved and scaled to [0, 1] over a support, 0 elsewhere; and the scale."""
    low = jnp.min(jnp.where(support, values, jnp.inf))
    span = jnp.max(jnp.where(support, values, -jnp.inf)) - low
    scale = jnp.where(span > 0.0, span, 1.0)
    return jnp.where(support, (values - low) / scale, 0.0), scale
