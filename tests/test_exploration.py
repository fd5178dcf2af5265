from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.agents.exploration import linear_epsilon
from deeprok.environments import Choices


@pytest.mark.parametrize(
    ("t", "epsilon"), [(0, 1.0), (25, 0.775), (50, 0.55), (99, 0.109), (100, 0.1), (101, 0.1), (10**6, 0.1)]
)
def test_epsilon_falls_linearly_then_stays(t: int, epsilon: float) -> None:
    np.testing.assert_allclose(linear_epsilon(t, 1.0, 0.1, 100), epsilon, rtol=1e-5)


def test_epsilon_may_rise() -> None:
    np.testing.assert_allclose(linear_epsilon(jnp.int32(5), 0.0, 0.5, 10), 0.25, rtol=1e-6)


def test_no_fall_is_the_end_at_once() -> None:
    np.testing.assert_allclose(linear_epsilon(jnp.arange(3), 1.0, 0.1, 0), 0.1, rtol=1e-6)


ACTIONS = Choices(("a", "b", "c"))


@pytest.mark.parametrize(
    ("draw", "epsilon", "action"),
    [
        ([0.5, 0.9], 0.4, 1),  # the coin is above ε: greedy
        ([0.5, 0.9], 0.6, 2),
        ([0.5, 0.4], 0.6, 1),
        ([0.5, 0.1], 0.6, 0),
        ([0.0, 0.0], 0.0, 1),  # ε = 0 never explores
        ([0.9999999, 0.0], 1.0, 0),  # ε = 1 always does
        ([0.0, 0.99999994], 1.0, 2),  # the last action, not one beyond
    ],
)
def test_known_choices(draw: list[float], epsilon: float, action: int) -> None:
    assert ACTIONS.explore(jnp.array(draw), epsilon, jnp.int32(1)) == action


def test_frequencies() -> None:
    draws = jax.random.uniform(jax.random.key(0), (60_000, 2))
    actions = np.asarray(jax.vmap(lambda draw: ACTIONS.explore(draw, 0.3, jnp.int32(1)))(draws))
    np.testing.assert_allclose(np.bincount(actions) / len(actions), [0.1, 0.8, 0.1], atol=0.006)
