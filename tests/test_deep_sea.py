from __future__ import annotations

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.environments import ENVIRONMENTS, Choices, Environment, check_quantity, with_model
from deeprok.environments.base import Outcome
from deeprok.environments.deep_sea import DeepSea, Observation, deep_sea
from deeprok.runs.settings import make_config

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


# --- as in bsuite ---------------------------------------------------------------------------------------------------


def map_of(env: Environment) -> np.ndarray:
    """[N, N] the action that goes right in each cell that can be reached, from one step; elsewhere 0."""
    size, params = env.horizon, with_model(env.nominal, {})
    cells = np.array([(row, column) for row in range(size) for column in range(row + 1)])
    step = jax.jit(jax.vmap(lambda cell, action: env.step(KEY, cell, action, params), (0, None)))
    first, second = (np.asarray(step(jnp.asarray(cells, jnp.int32), jnp.int32(a)).state)[:, 1] for a in (0, 1))
    right = cells[:, 1] + 1
    assert np.all((first == right) != (second == right))  # one of the two, whatever the cell
    found = np.zeros((size, size), int)
    found[tuple(cells.T)] = second == right
    return found


@pytest.mark.parametrize("observation", get_args(Observation))
def test_a_random_map_hides_one_way_of_all(observation: Observation) -> None:
    size = 8
    env = deep_sea(size, observation, "random", action_seed=3)
    best = map_of(env).diagonal()
    assert 0 < best.sum() < size  # no constant policy finds it
    ways = all_ways(size)
    outcome = dive(env, ways)
    returns = outcome.reward.sum(1)
    (found,) = np.flatnonzero(returns > env.success_return)
    np.testing.assert_array_equal(ways[found], best)
    assert returns[found] == returns.max() == pytest.approx(1.0 - 0.01)
    assert outcome.terminated[:, -1].all()
    assert not outcome.terminated[:, :-1].any()


def test_maps_are_fixed_by_their_seed_and_fair() -> None:
    first, same, other = (map_of(deep_sea(30, action_map="random", action_seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    below = np.tril_indices(30)
    assert 0.4 < (first == other)[below].mean() < 0.6
    assert 0.4 < first[below].mean() < 0.6
    np.testing.assert_array_equal(map_of(deep_sea(30, action_seed=1)), np.tril(np.ones((30, 30), int)))


def test_one_hot_observations_are_of_the_cell() -> None:
    size = 5
    env = deep_sea(size, "one_hot")
    assert env.observation_scale == (1.0,) * size**2
    np.testing.assert_array_equal(env.reset(KEY, env.nominal)[1], np.eye(size**2)[0])
    outcome = dive(env, all_ways(size))
    assert outcome.obs.dtype == np.float32
    cells = outcome.state[:, :-1] @ [size, 1]
    np.testing.assert_array_equal(outcome.obs[:, :-1], np.eye(size**2)[cells])
    assert not outcome.obs[:, -1].any()  # that of the end is never acted on
    plain = dive(deep_sea(size), all_ways(size))
    np.testing.assert_array_equal(outcome.state, plain.state)
    np.testing.assert_array_equal(outcome.reward, plain.reward)


def test_settings_choose_the_version() -> None:
    part = ENVIRONMENTS["deep_sea"]
    env = part.make(part.settings(horizon=6, observation="one_hot", action_map="random", action_seed=5))
    np.testing.assert_array_equal(map_of(env), map_of(deep_sea(6, action_map="random", action_seed=5)))
    assert len(env.observation_scale) == 36
    assert len(part.make(part.settings()).observation_scale) == 2


def test_inputs_are_scaled_as_many_as_there_are() -> None:
    """The command line replaces settings of a run whose inputs are those of the environment's defaults."""
    config = make_config("ekf_dqn", "tuned", env="deep_sea")
    assert config.input_scale == (1.0,) * 2
    changed = config.replace(observation="one_hot", horizon=4, input_scale=config.input_scale)
    assert changed.input_scale == (1.0,) * 16
    assert changed == make_config("ekf_dqn", "tuned", env="deep_sea", observation="one_hot", horizon=4)
    assert changed.replace(observation="coordinates", horizon=10) == config
    assert config.replace(input_scale=(3.0, 2.0), horizon=4).input_scale == (3.0, 2.0)
