"""Records that travel through jit: what a world answers and what a learner remembers."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")

#: A model of the world: the physical quantities in which it differs from the nominal one.
Model = dict[str, jax.Array]


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass whose fields JAX can trace."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@record
class Outcome:
    """What one model of the world answers to an action."""

    state: Any  # the world's own state, a pytree
    obs: jax.Array  # [D] what the agent sees of it
    reward: jax.Array  # []
    terminated: jax.Array  # [] bool; never true merely because time is up


@record
class Transition:
    """One step, with the answer of each of the M models that label it.

    A nominal label has the one model that the agent acted on (M = 1).
    """

    obs: jax.Array  # [D]
    action: jax.Array  # [] int32
    reward: jax.Array  # [M]
    next_obs: jax.Array  # [M, D]
    terminated: jax.Array  # [M] bool


def select(flag: jax.Array, new: T, old: T) -> T:
    """`new` where the flag is set, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jax.numpy.where(flag, a, b), new, old)
