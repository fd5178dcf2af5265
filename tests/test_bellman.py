from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.agents.targets import bootstrapped as bellman
from deeprok.uncertainty import SETS

REWARD = jnp.array([1.0, 0.0, 2.0])
TERMINATED = jnp.array([False, True, False])
NEXT = jnp.array([10.0, -50.0, 3.0])


def robust_label(reward, terminated, next_value, family: str = "minimum", level: float = 0.5, discount: float = 0.9):
    return bellman.robust_target(reward, terminated, next_value, discount, SETS[family].worst_case, level)


def test_outcome_values() -> None:
    values = bellman.outcome_values(REWARD, TERMINATED, NEXT, 0.9)
    np.testing.assert_allclose(values, [10.0, 0.0, 4.7], rtol=1e-6)


@pytest.mark.parametrize(
    ("family", "level", "label"),
    [
        ("minimum", 0.5, 0.0),
        ("cvar", 0.5, (0 / 3 + 4.7 / 6) / 0.5),
        ("cvar", 1 / 3, 0.0),
        ("cvar", 1.0, 14.7 / 3),
    ],
)
def test_known_labels(family: str, level: float, label: float) -> None:
    np.testing.assert_allclose(robust_label(REWARD, TERMINATED, NEXT, family, level), label, rtol=1e-5, atol=1e-5)


def test_reward_of_each_model_counts() -> None:
    assert robust_label(jnp.array([5.0, 1.0]), jnp.array([False, False]), jnp.zeros(2)) == 1.0


@pytest.mark.parametrize("beyond", [1e30, float("inf"), float("nan")])
def test_termination_cuts_whatever_lies_beyond(beyond: float) -> None:
    assert robust_label(jnp.array([1.0, 3.0]), jnp.array([True, True]), jnp.array([beyond, beyond])) == 1.0


@pytest.mark.parametrize("family", SETS)
@pytest.mark.parametrize("level", [1e-3, 0.3, 1.0])
def test_one_model_is_the_nominal_label(family: str, level: float) -> None:
    reward, value = np.float32(0.3), np.float32(1.7)
    label = robust_label(jnp.array([reward]), jnp.array([False]), jnp.array([value]), family, level)
    assert label == reward + np.float32(0.9) * value


def test_max_and_double_differ() -> None:
    q, online = jnp.array([1.0, 4.0, 2.0]), jnp.array([0.0, -1.0, 0.5])
    assert bellman.max_value(q) == 4.0
    assert bellman.double_value(q, online) == 2.0
    assert bellman.double_value(q, q) == 4.0
