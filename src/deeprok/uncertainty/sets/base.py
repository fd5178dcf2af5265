"""The protocol of an ambiguity set, and functions that several families use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from deeprok.core.errors import DeeprokError
from deeprok.core.search import Range
from deeprok.uncertainty.sets.shared_budget import SharedBudget

Level = float | jax.Array


class WorstCase(NamedTuple):
    """The smallest expectation over a set, and a distribution that attains it."""

    value: jax.Array  # []
    distribution: jax.Array  # [M]


class Tangent(NamedTuple):
    """A worst case and its tangent: at another level x the value is at least value − steepness (x − level)."""

    value: jax.Array  # []
    distribution: jax.Array  # [M]
    steepness: jax.Array  # [] minus the derivative by the level; any subgradient at a kink


class CheckLevel(Protocol):
    """The type of `AmbiguitySet.check_level`."""

    def __call__(self, level: float, field: str = "robust_level") -> None:
        """Raises a `DeeprokError` that names the field if the level is not allowed."""


#: Which outcomes can gain mass: those with mass in p, also the worst of all, or any.
Reach = Literal["support", "worst", "all"]


class AmbiguitySet(NamedTuple):
    """A family of sets of distributions around `p`, one for each level.

    Attributes:
      worst_case: `(p, values, level) -> WorstCase`, with `p` and `values` of shape [M].
      check_level: raises if a level is not allowed.
      nominal_level: the level at which the set is {p}; None for a set without a level.
      reach: which outcomes can gain mass. `support`: those with mass in p. `worst`: these and the one of least value.
        `all`: any.
      coherent: whether the value is the smallest expectation over a set. If not, there is a penalty for deviating from
        p instead, and the value is larger than the expectation under the distribution returned with it.
      of_models: whether the set consists of K given distributions [K, M] instead of a neighbourhood of one p.
      level_rules: the rules of `deeprok.uncertainty.RULES` that compute its level from counts.
      weighted: the same family with a weight for each outcome, [M], as a fourth argument of its functions.
      takes_cost: whether its functions take as a fourth argument the cost of moving mass, [M, M].
      tangent: `(p, values, level) -> Tangent`, if it is known.
      shared: the set's own method for a budget shared by actions, if it has one; a `tangent` is enough.
      worst_values: `(columns [M, R], values [M], level [R]) -> [R]`, the values of R worst cases with the same
        `values`, if there is a faster way than one by one.
      levels: levels of a robust target that `deeprok tune` tries; None for none.
    """

    worst_case: Callable[..., WorstCase]
    check_level: CheckLevel
    nominal_level: float | None
    reach: Reach
    coherent: bool = True
    of_models: bool = False
    level_rules: tuple[str, ...] = ()
    weighted: AmbiguitySet | None = None
    takes_cost: bool = False
    tangent: Callable[..., Tangent] | None = None
    shared: SharedBudget | None = None
    worst_values: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None
    levels: Range | None = None

    @property
    def has_level(self) -> bool:
        """Whether the set has a level."""
        return self.nominal_level is not None

    @property
    def shares_budget(self) -> bool:
        """Whether the level can be a budget shared by the actions of a state."""
        return self.shared is not None or self.tangent is not None


def level_check(name: str, allows: Callable[[float], bool], words: str) -> CheckLevel:
    """A check of levels for the set of that name; `words` describe what is allowed."""

    def check_level(level: float, field: str = "robust_level") -> None:
        if not allows(level):
            raise DeeprokError(f"{field} is {level:g}; for the set {name} it must be {words}")

    return check_level


def radius_check(name: str) -> CheckLevel:
    """The check of a set whose level is a radius."""
    return level_check(name, lambda level: level >= 0.0, "a radius of at least 0")


def optimistic(worst_case: Callable[..., WorstCase]) -> Callable[..., WorstCase]:
    """The best case over the same set: the largest expectation and a distribution that attains it.

    An `order` passed to the result sorts the values from the largest.
    """

    def best_case(p: jax.Array, values: jax.Array, *args: Any, **options: Any) -> WorstCase:
        value, distribution = worst_case(p, -values, *args, **options)
        return WorstCase(-value, distribution)

    return best_case


def on_support(worst_case: Callable[..., WorstCase]) -> Callable[..., WorstCase]:
    """The same set, restricted to outcomes with mass in p, so that rows can be padded with zeros.

    The other outcomes are given a value above all others. Then they get no mass: no set here moves mass to the largest
    value.
    """

    def restricted(p: jax.Array, values: jax.Array, *args: Any, **options: Any) -> WorstCase:
        high = jnp.max(jnp.where(p > 0.0, values, -jnp.inf))
        span = high - jnp.min(jnp.where(p > 0.0, values, jnp.inf))
        above = high + jnp.where(span > 0.0, span, 1.0)
        return worst_case(p, jnp.where(p > 0.0, values, above), *args, **options)

    return restricted


def expectation(q: jax.Array, values: jax.Array) -> jax.Array:
    """Σ q v, computed relative to the smallest value, so that equal values give exactly that value."""
    least = jnp.min(values)
    return least + jnp.sum(q * (values - least))


def to_unit(values: jax.Array, support: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values shifted and scaled to [0, 1] on a support, 0 elsewhere; and the scale."""
    low = jnp.min(jnp.where(support, values, jnp.inf))
    span = jnp.max(jnp.where(support, values, -jnp.inf)) - low
    scale = jnp.where(span > 0.0, span, 1.0)
    return jnp.where(support, (values - low) / scale, 0.0), scale
