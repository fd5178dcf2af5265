"""Records packed into few arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.pytree import pytree_dataclass
from deeprok.training.packing import make_packing


@pytree_dataclass
class Record:
    weights: jax.Array
    count: jax.Array
    large: jax.Array
    parts: dict[str, jax.Array]


def record() -> Record:
    random = np.random.default_rng(0)
    return Record(
        weights=jnp.asarray(random.normal(size=(3, 4)), jnp.float32),
        count=jnp.int32(7),
        large=jnp.asarray(random.normal(size=(100, 50)), jnp.float32),
        parts={
            "none": jnp.zeros((0, 5), jnp.float32),
            "flags": jnp.array([True, False]),
            "bits": jnp.array([2**32 - 1], jnp.uint32),
            "more": jnp.asarray(random.normal(size=2), jnp.float32),
        },
    )


def test_what_was_packed_comes_back_bit_for_bit() -> None:
    """On the device and on the host, whichever types and shapes there are."""
    before = record()
    packing = make_packing(jax.eval_shape(record))
    packed = jax.jit(packing.pack)(before)
    assert sorted((str(array.dtype), array.shape) for array in packed) == [
        ("bool", (2,)),
        ("float32", (14,)),
        ("float32", (100, 50)),
        ("int32", (1,)),
        ("uint32", (1,)),
    ]
    for after in (jax.jit(packing.unpack)(packed), packing.unpack([np.asarray(array) for array in packed])):
        assert str(jax.tree.structure(after)) == str(jax.tree.structure(before))
        for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_array_equal(one, other)
