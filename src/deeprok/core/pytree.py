"""Records that travel through jit."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass whose fields JAX can trace."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def select(flag: jax.Array, new: T, old: T) -> T:
    """`new` where the flag is set, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jax.numpy.where(flag, a, b), new, old)
