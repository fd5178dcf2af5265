from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.environments import Choices, Environment, check_quantity, with_model
from deeprok.environments.base import Outcome
from deeprok.environments.deep_sea import DeepSea, deep_sea

KEY = jax.random.key(0)


def dive(env: Environment, actions: np.ndarray, params: DeepSea | None = None) -> Outcome:
    """The outcomes of each of K lists of N actions: leaves [K, N, ...]."""
    params = with_model(env.nominal if params is None else params, {})

    def one(actions: jax.Array) -> Outcome:
        def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, Outcome]:
            outcome = env.step(KEY, state, action, params)
            return outcome.state, outcome

        return jax.lax.scan(step, env.reset(KEY, params)[0], actions)[1]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jnp.asarray(actions)))


def all_ways(size: int) -> np.ndarray:
    return np.array(list(itertools.product([0, 1], repeat=size)))


@pytest.mark.parametrize(("treasure", "move_cost"), [(1.0, 0.01), (0.5, 0.01), (1.5, 3.0)])
def test_best_return_is_that_of_dynamic_programming(x64, treasure: float, move_cost: float) -> None:
    size = 10
    # Backwards through the rows: what is still to come, from each column.
    values = np.zeros(size + 1)
    for row in reversed(range(size)):
        before = values.copy()
        for column in range(row + 1):
            prize = treasure if row == column == size - 1 else 0.0
            left, right = before[max(column - 1, 0)], before[column + 1] + prize - move_cost / size
            values[column] = max(left, right)
    returns = dive(deep_sea(horizon=size), all_ways(size), DeepSea(treasure=treasure, move_cost=move_cost)).reward.sum(
        1
    )
    assert returns.max() == pytest.approx(values[0], abs=1e-12)
    assert values[0] == pytest.approx(max(treasure - move_cost, 0.0))  # left all the way, if moving is too dear


@pytest.mark.parametrize("size", [1, 2, 10])
def test_one_way_of_all_finds_the_treasure(size: int) -> None:
    env = deep_sea(horizon=size)
    ways = all_ways(size)
    outcome = dive(env, ways)
    returns, moves = outcome.reward.sum(1), ways.sum(1)
    np.testing.assert_allclose(returns, (moves == size) - 0.01 * moves / size, atol=1e-6)
    success = returns > env.success_return
    # Random play succeeds with probability 2⁻ᴺ, and ε-greedy that goes left with (ε/2)ᴺ.
    assert success.mean() == 2.0**-size
    epsilon = 0.1
    weights = np.where(ways == 1, epsilon / 2, 1 - epsilon / 2).prod(axis=1)
    assert weights @ success == pytest.approx((epsilon / 2) ** size)


def test_first_steps_speak_against_going_right() -> None:
    outcome = dive(deep_sea(horizon=10), np.array([[0] * 10, [1] * 10]))
    assert np.all(outcome.reward[0] == 0)
    np.testing.assert_allclose(outcome.reward[1], [-0.001] * 9 + [0.999], rtol=1e-5)


def test_each_step_is_a_row_and_the_last_ends() -> None:
    size = 6
    outcome = dive(deep_sea(horizon=size), all_ways(size))
    np.testing.assert_array_equal(outcome.terminated, np.broadcast_to(np.arange(1, size + 1) == size, (2**size, size)))
    np.testing.assert_array_equal(outcome.state[:, :, 0], np.broadcast_to(np.arange(1, size + 1), (2**size, size)))
    way = [0, 1, 1, 0, 0, 0]
    (number,) = np.flatnonzero((all_ways(size) == way).all(axis=1))
    np.testing.assert_array_equal(outcome.state[number, :, 1], [0, 1, 2, 1, 0, 0])


@pytest.mark.parametrize("size", [1, 5, 20])
def test_observations_tell_the_cells_apart(size: int) -> None:
    env = deep_sea(horizon=size)
    start, obs = env.reset(KEY, env.nominal)
    assert obs.shape == (len(env.observation_scale),)
    np.testing.assert_array_equal(obs, [-1, -1])
    ways = all_ways(size) if size < 10 else np.tril(np.ones((size + 1, size), int), -1)
    outcome = dive(env, ways)
    assert outcome.obs.dtype == np.float32
    assert np.abs(outcome.obs).max() <= 1
    np.testing.assert_allclose((outcome.obs + 1) * size / 2, outcome.state, atol=1e-5)
    np.testing.assert_array_equal(start, [0, 0])


def test_settings_are_as_any_envs() -> None:
    env = deep_sea(14)
    assert (env.name, env.horizon, env.actions) == ("deep_sea", 14, Choices(("left", "right")))
    assert env.success_return == 0.5
    for name, edges in env.box.items():
        for value in edges:
            check_quantity(env.nominal, name, value, "box")
