from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_tabular_solve import coin_toss, forest

from deeprok.core.errors import DeeprokError
from deeprok.tabular import from_transitions, solve
from deeprok.tabular.q_learning import BallLearner, ModelsLearner, learn, start_ball, update_ball, update_models
from deeprok.uncertainty import SETS


def test_finite_set_tends_to_dynamic_programming() -> None:
    exact = solve(coin_toss(), "finite", discount=0.8, method="vi")
    parts: list[float] = []
    learnt = learn(coin_toss(), "finite", discount=0.8, steps=300_000, advance=parts.append)
    assert learnt.visits.sum() == 300_000
    assert learnt.visits.min() > 200
    assert sum(parts) == pytest.approx(1.0)
    np.testing.assert_allclose(learnt.values, exact.values, atol=0.1)
    assert np.abs(learnt.q - exact.q).max() < 0.25
    sure = np.diff(np.sort(exact.q, axis=1), axis=1)[:, -1] > 0.3
    np.testing.assert_array_equal(learnt.policy[sure], exact.policy[sure])
    assert sure.sum() > 5


@pytest.mark.parametrize(("set", "radius"), [("l1", 0.2), ("kl", 0.05)])
def test_balls_tend_to_dynamic_programming(set: str, radius: float) -> None:
    exact = solve(forest(), set, radius, discount=0.9, method="vi")
    learnt = learn(forest(), set, radius, discount=0.9, steps=100_000, seed=1)
    np.testing.assert_allclose(learnt.values, exact.values, rtol=0.02)
    np.testing.assert_array_equal(learnt.policy, exact.policy)
    plain = solve(forest(), objective="nominal", discount=0.9, method="vi")
    assert (learnt.values < 0.85 * plain.values).all()


def test_more_steps_come_closer() -> None:
    exact = solve(forest(), "l1", 0.2, discount=0.9, method="vi").q
    errors = [
        np.mean([np.abs(learn(forest(), "l1", 0.2, 0.9, steps, seed).q - exact).max() for seed in range(5)])
        for steps in (1_000, 10_000, 100_000)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_seeds_differ_and_repeat() -> None:
    one, again, other = (learn(forest(), "l1", 0.2, 0.9, steps=1000, seed=seed).q for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_first_updates_by_hand(x64) -> None:
    """A step of size 1/(1 + (1 − γ) n) towards the worst case of what has been seen."""
    update = jax.jit(lambda *x: update_ball(*x, 0.5, SETS["l1"].worst_case, 1.0))
    learner: BallLearner = start_ball(jnp.array([[True, True], [True, False]]))
    learner = update(learner, 0, 1, 4.0, 0)
    first = 4.0 / 1.5
    assert learner.q[0, 1] == pytest.approx(first)
    learner = update(learner, 0, 1, 1.0, 1)
    # Seen: state 0 with reward 4, state 1 with reward 1, each half of the time. L1 1 moves all to the worse.
    second = first + (1.0 - first) / 2
    assert learner.q[0, 1] == pytest.approx(second)
    learner = update(learner, 1, 0, 0.0, 0)
    assert learner.q[1, 0] == pytest.approx(0.5 * second / 1.5)
    assert learner.q[1, 1] == -jnp.inf
    np.testing.assert_array_equal(learner.counts.sum(-1), [[0, 2], [1, 0]])
    for reward in (5.0, 1.0):
        learner = update(learner, 1, 0, reward, 0)
    assert learner.reward[1, 0, 0] == pytest.approx(2.0)  # the mean of 0, 5 and 1


def test_first_updates_of_models_by_hand(x64) -> None:
    """An action is worth its worst model, and the best action is taken: not the worst of the best actions."""
    q = jnp.array([[[0.0, 0.0], [8.0, 0.0]], [[0.0, 0.0], [2.0, 4.0]]])  # [K, S, A]; in state 1 min is [2, 0]
    update = jax.jit(update_models)
    learner = update(ModelsLearner(q, jnp.zeros((2, 2))), 0, 1, jnp.array([1.0, 3.0]), jnp.array([1, 0]), 0.5)
    rate = 1 / 1.5
    np.testing.assert_allclose(learner.q[:, 0, 1], [rate * (1 + 0.5 * 2), rate * (3 + 0.5 * 0)])
    np.testing.assert_array_equal(learner.q[:, 1], q[:, 1])
    np.testing.assert_array_equal(learner.visits, [[0, 1], [0, 0]])


def test_missing_actions_are_never_taken() -> None:
    problem = from_transitions([0, 0, 1, 1], [0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 0.5, 0.5], [1.0, 0.0, 1.0, 0.0])
    learnt = learn(problem, "l1", 0.1, 0.5, steps=500, exploration=1.0)
    np.testing.assert_array_equal(learnt.visits > 0, problem.valid)
    assert learnt.q[1, 0] == -np.inf


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"set": "l4"}, "unknown set 'l4'"),
        ({"discount": 1.0}, "discount is 1; it must be above 0 and below 1"),
        ({"exploration": 1.2}, "exploration is 1.2; it must lie between 0 and 1"),
        ({"restart": -0.1}, "restart is -0.1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"radius": -1.0}, "radius is -1"),
        ({"set": "finite"}, "no models"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        learn(forest(), **{"set": "l1", "radius": 0.1, "discount": 0.9, **settings})
