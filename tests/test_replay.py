from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from deeprok.agents import replay
from deeprok.environments.base import Transition

D, M, CAPACITY = 3, 2, 7
ON, OFF = jnp.array(True), jnp.array(False)
write = jax.jit(replay.write)
sample = jax.jit(replay.sample, static_argnums=3)


def transition(t: int, models: int = M) -> Transition:
    rng = np.random.default_rng(t)
    return Transition(
        obs=jnp.asarray(rng.normal(size=D), jnp.float32),
        action=jnp.int32(t),
        reward=jnp.asarray(rng.normal(size=models), jnp.float32),
        next_obs=jnp.asarray(rng.normal(size=(models, D)), jnp.float32),
        terminated=jnp.asarray(rng.integers(0, 2, models).astype(bool)),
    )


def filled(writes: int) -> jax.Array:
    ring = replay.empty(D, M, CAPACITY)
    for t in range(writes):
        ring = write(ring, t, transition(t), ON)
    return ring


@pytest.mark.parametrize("models", [1, 2, 5])
def test_unpack_inverts_write(models: int) -> None:
    ring = write(replay.empty(D, models, CAPACITY), 3, transition(3, models), ON)
    found = replay.unpack(ring[3:4], D)
    for got, put in zip(jax.tree.leaves(found), jax.tree.leaves(transition(3, models)), strict=True):
        assert got.dtype == put.dtype
        np.testing.assert_array_equal(got[0], put)


def test_oldest_goes_first() -> None:
    actions = replay.unpack(filled(10), D).action
    assert actions.tolist() == [7, 8, 9, 3, 4, 5, 6]


def test_a_write_touches_one_row() -> None:
    before, after = filled(9), filled(10)
    changed = np.any(np.asarray(before != after), axis=1)
    assert changed.tolist() == [False, False, True, False, False, False, False]


@pytest.mark.parametrize("t", [3, 10])
def test_inactive_write_changes_no_bit(t: int) -> None:
    ring = filled(10).at[3, 0].set(jnp.nan)
    assert np.asarray(write(ring, t, transition(99), OFF)).tobytes() == np.asarray(ring).tobytes()


@pytest.mark.parametrize(
    ("writes", "expected"), [(1, {0}), (4, {0, 1, 2, 3}), (7, set(range(7))), (12, set(range(5, 12)))]
)
def test_sample_sees_all_that_is_kept_and_nothing_else(writes: int, expected: set[int]) -> None:
    bits = jax.random.bits(jax.random.key(0), (500,), "uint32")
    batch = sample(filled(writes), bits, jnp.int32(writes - 1), D)
    assert set(batch.action.tolist()) == expected
    for row in range(20):
        true = transition(int(batch.action[row]))
        for got, put in zip(jax.tree.leaves(batch), jax.tree.leaves(true), strict=True):
            np.testing.assert_array_equal(got[row], put)


@pytest.mark.parametrize("writes", [5, 20])
def test_sample_is_uniform(writes: int) -> None:
    bits = jax.random.bits(jax.random.key(1), (7000,), "uint32")
    actions = np.asarray(sample(filled(writes), bits, jnp.int32(writes - 1), D).action)
    counts = np.unique(actions, return_counts=True)[1]
    assert len(counts) == min(writes, CAPACITY)
    assert chisquare(counts).pvalue > 0.01


def test_large_bits_are_not_negative_places() -> None:
    bits = jnp.array([2**32 - 1, 2**31, 2**31 - 1], jnp.uint32)
    batch = sample(filled(5), bits, jnp.int32(4), D)
    assert batch.action.tolist() == [int(b) % 5 for b in (2**32 - 1, 2**31, 2**31 - 1)]
