"""Records as few arrays: each array that goes into a jitted call, or comes out, takes some microseconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

#: Arrays of more numbers take longer to copy than to be handed over.
_SMALL = 4096


class Packing(NamedTuple):
    """How a record is packed: all small arrays of a type into one, large ones as they are.

    Attributes:
      pack: `record -> list` of arrays, to be jitted.
      unpack: the record of such a list, of JAX's or of numpy's arrays.
    """

    pack: Callable[[Any], list[jax.Array]]
    unpack: Callable[[list[Any]], Any]


def make_packing(template: Any) -> Packing:
    """The packing of records like a template: of arrays, or of their shapes."""
    leaves, tree = jax.tree.flatten(template)
    small: dict[Any, list[int]] = {}  # type -> places among the leaves
    for i, leaf in enumerate(leaves):
        if math.prod(leaf.shape) <= _SMALL:
            small.setdefault(leaf.dtype, []).append(i)
    packed = {i for places in small.values() for i in places}
    large = [i for i in range(len(leaves)) if i not in packed]

    def pack(record: Any) -> list[jax.Array]:
        found = jax.tree.leaves(record)
        parts = [jnp.concatenate([jnp.ravel(found[i]) for i in places]) for places in small.values()]
        return parts + [found[i] for i in large]

    def unpack(arrays: list[Any]) -> Any:
        found: list[Any] = [None] * len(leaves)
        for places, array in zip(small.values(), arrays[: len(small)], strict=True):
            start = 0
            for i in places:
                end = start + math.prod(leaves[i].shape)
                found[i], start = array[start:end].reshape(leaves[i].shape), end
        for i, array in zip(large, arrays[len(small) :], strict=True):
            found[i] = array
        return jax.tree.unflatten(tree, found)

    return Packing(pack, unpack)
