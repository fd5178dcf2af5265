"""What every ambiguity set is made of: its protocol, and helpers that its file may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from deeprok.core.errors import DeeprokError
from deeprok.uncertainty.sets.shared_budget import SharedBudget

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


#: Which outcomes can gain mass: those that have some in p, the worst of all besides, or any.
Reach = Literal["support", "worst", "all"]


class AmbiguitySet(NamedTuple):
    """A family of sets of distributions around `p`, one for each level.

    Attributes:
      worst_case: `(p, values, level) -> WorstCase`, with `p` and `values` of shape [M].
      check_level: raises unless the level is one the family can take.
      nominal_level: the level at which the set holds nothing but p; None for a set without a level.
      reach: which outcomes can gain mass. `support`: those that have some in p. `worst`: besides these the one of
        least value. `all`: any.
      coherent: whether the value is the least expectation over a set. If not, nature pays a penalty for leaving p, and
        the value is above the expectation of the distribution that comes with it.
      of_models: whether it is built on K distributions [K, M] instead of one p, which are all that it holds.
      level_rules: the rules of `deeprok.uncertainty.RULES` that give its level from counts.
      weighted: the same with a weight for each outcome, [M], as a fourth argument of its functions.
      takes_cost: whether its functions take as a fourth argument what it costs to move mass, [M, M].
      tangent: `(p, values, level) -> Tangent`, if it is known how fast the worst case falls with the level.
      shared: how actions share a budget, if the set has a method of its own; with a `tangent` it needs none.
      worst_values: `(columns [M, R], values [M], level [R]) -> [R]`, the values of R worst cases that share their
        values, if that takes less than to compute each.
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

    @property
    def has_level(self) -> bool:
        """Whether the level is used."""
        return self.nominal_level is not None

    @property
    def shares_budget(self) -> bool:
        """Whether the actions of a state can share the level."""
        return self.shared is not None or self.tangent is not None


def level_check(name: str, allows: Callable[[float], bool], words: str) -> CheckLevel:
    """A check of levels for the set of that name; `words` say what it allows."""

    def check_level(level: float, field: str = "robust_level") -> None:
        if not allows(level):
            raise DeeprokError(f"{field} is {level:g}; for the set {name} it is {words}")

    return check_level


def radius_check(name: str) -> CheckLevel:
    """The check of a set whose level is a radius."""
    return level_check(name, lambda level: level >= 0.0, "a radius of at least 0")


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
