"""How two results are compared."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def bits(tree: Any) -> list[bytes]:
    """Equal where the same compiled program was given the same numbers."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def assert_equal_to_rounding(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Two programs may round differently, which after some tens of updates is still tiny.

    The tolerance is relative to the largest number of each array.
    """
    for (path, x), y in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        largest = np.abs(y).max(initial=0.0)
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * largest, err_msg=jax.tree_util.keystr(path))
