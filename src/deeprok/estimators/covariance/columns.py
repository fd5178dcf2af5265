"""Sums over the columns of long rows, tile by tile, so that the tiles stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.estimators.covariance.base import whiten

#: Columns of a tile.
_TILE = 4096

ColumnFunction = Callable[..., Any]


#: A product with a matrix of at most so many rows is written out, so that it becomes one fused loop over long rows.
_WRITTEN_OUT = 16


def sum_of_squares(A: jax.Array, rows: jax.Array) -> jax.Array:
    """[n] the sum of the squared rows of A @ rows."""
    if len(A) > _WRITTEN_OUT:
        return jnp.sum(whiten(A, rows) ** 2, axis=0)
    mixed = [
        sum(a * r for a, r in zip(w, rows, strict=True)) if A.ndim == 2 else w * r for w, r in zip(A, rows, strict=True)
    ]
    return sum(r * r for r in mixed)


def over_columns(f: ColumnFunction, *arrays: jax.Array) -> Any:
    """f(*arrays) for a function that is a sum over columns; tile by tile if there are many.

    Args:
      f: a function of the same columns of all arrays.
      arrays: [..., n], or numbers.
    """
    tiles, n = _tiles(arrays)
    if tiles < 2:
        return f(*arrays)

    def add(i: jax.Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, f(*_cut(arrays, i * _TILE, _TILE)))

    return jax.lax.fori_loop(0, tiles, add, f(*_cut(arrays, tiles * _TILE, n - tiles * _TILE)))


def change_columns(
    f: ColumnFunction, state: tuple[jax.Array, ...], inputs: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """The new state f(*state, *inputs) for a column-wise function; in place and tile by tile if there are many.

    Args:
      f: a function of the same columns of all arrays.
      state: [..., n] each.
      inputs: [..., n], or numbers.
    """
    tiles, n = _tiles(state)
    if tiles < 2:
        return f(*state, *inputs)

    def put(state: tuple[jax.Array, ...], start: jax.Array | int, size: int) -> tuple[jax.Array, ...]:
        new = f(*_cut((*state, *inputs), start, size))
        return tuple(jax.lax.dynamic_update_slice_in_dim(a, b, start, axis=-1) for a, b in zip(state, new, strict=True))

    state = jax.lax.fori_loop(0, tiles, lambda i, state: put(state, i * _TILE, _TILE), state)
    return put(state, tiles * _TILE, n - tiles * _TILE)


def _tiles(arrays: Sequence[jax.Array]) -> tuple[int, int]:
    """The number of whole tiles and the number of columns; a single row is not split."""
    n = max(a.shape[-1] for a in arrays if a.ndim)
    rows = max(math.prod(a.shape[:-1]) for a in arrays if a.ndim)
    return (n // _TILE if rows > 1 else 0), n


def _cut(arrays: Sequence[jax.Array], start: jax.Array | int, size: int) -> list[jax.Array]:
    return [jax.lax.dynamic_slice_in_dim(a, start, size, axis=-1) if a.ndim else a for a in arrays]
