from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.core.errors import DeeprokError
from deeprok.environments import check_quantity, with_model
from deeprok.environments.ferry import exact_robust_q, ferry

KEY = jax.random.key(0)
UPSTREAM, ACROSS, DOWNSTREAM = range(3)
DISCOUNT = 0.95
ENV = ferry()


def river(row: int, place: int, action: int, current: int) -> tuple[float, tuple[int, int] | None]:
    """The rules once more, in words: reward, and the next cell or None."""
    if action == ACROSS:
        row += 1
    if row == 4:
        return 1.0 - 0.2 * abs(place - 4) - 0.02, None
    along = {UPSTREAM: -1, ACROSS: 0, DOWNSTREAM: 1}[action]
    if row == 0:
        return -0.02, (row, min(max(place + along, 0), 6))
    place = max(place + 2 * along + current, 0)
    if place > 6:
        return -1.02, None
    return -0.02, (row, place)


def play_out(currents: tuple[int, ...], moves: int) -> np.ndarray:
    """Q of games that end after so many moves, nature answering each move of the ferry."""
    cells = [(row, place) for row in range(4) for place in range(7)]
    answers = {(cell, a): [river(*cell, a, current) for current in currents] for cell in cells for a in range(3)}
    values = dict.fromkeys([*cells, None], 0.0)
    for _ in range(moves):
        q = {key: min(reward + DISCOUNT * values[to] for reward, to in answers[key]) for key in answers}
        values.update({cell: max(q[cell, a] for a in range(3)) for cell in cells})
    return np.array([[q[cell, a] for a in range(3)] for cell in cells])


def models(*currents: float) -> dict[str, np.ndarray]:
    return {"current": np.array(currents)}


@pytest.fixture(scope="module")
def robust():
    return exact_robust_q(ENV, models(0, 1, 2), DISCOUNT)


@pytest.fixture(scope="module")
def nominal():
    return exact_robust_q(ENV, models(1), DISCOUNT)


@pytest.fixture(scope="module")
def fast():
    return exact_robust_q(ENV, models(2), DISCOUNT)


def at(table: np.ndarray, row: int, place: int) -> np.ndarray:
    return table.reshape(4, 7, *table.shape[1:])[row, place]


@pytest.mark.parametrize("currents", [(1,), (0, 1, 2), (2, 1), (0, 3), (-2, 0, 1)])
def test_exact_q_is_that_of_games_played_out(currents: tuple[int, ...]) -> None:
    found = exact_robust_q(ENV, models(*currents), DISCOUNT)
    np.testing.assert_allclose(found.q, play_out(currents, 600), rtol=0, atol=1e-11)


def test_exact_q_has_the_values_found_by_hand(robust, nominal, fast) -> None:
    # Row 3: landing is certain. At the dock, and two places off.
    assert at(robust.q, 3, 4)[ACROSS] == pytest.approx(0.98, abs=1e-12)
    assert at(robust.q, 3, 6)[ACROSS] == pytest.approx(0.58, abs=1e-12)
    # Three places above the dock, a stroke downstream ends one off at worst, in still water or in fast;
    # on the nominal river it meets the dock.
    assert at(robust.q, 3, 1)[DOWNSTREAM] == pytest.approx(-0.02 + DISCOUNT * 0.78, abs=1e-12)
    assert at(nominal.q, 3, 1)[DOWNSTREAM] == pytest.approx(-0.02 + DISCOUNT * 0.98, abs=1e-12)
    # The nominal passage: from place 1 the current brings the ferry to the dock in four steps.
    to_dock = -0.02 * (1 + DISCOUNT + DISCOUNT**2) + DISCOUNT**3 * 0.98
    assert at(nominal.q, 0, 1)[ACROSS] == pytest.approx(to_dock, abs=1e-12)
    # The falls: below place 5 a current of 2 takes the ferry over, whatever else is known of it.
    assert at(robust.q, 1, 5)[ACROSS] == pytest.approx(-1.02, abs=1e-12)
    # Upstream it can be held where it is, for ever.
    assert at(robust.q, 1, 6)[UPSTREAM] == pytest.approx(-0.02 / (1 - DISCOUNT), abs=1e-11)
    # A river without a choice: pushed by two places in each row from place 0, it lands two below the dock.
    pushed = -0.02 * (1 + DISCOUNT + DISCOUNT**2) + DISCOUNT**3 * 0.58
    assert at(fast.q, 0, 0)[ACROSS] == pytest.approx(pushed, abs=1e-12)


def test_robust_and_nominal_policies_differ(robust, nominal) -> None:
    best, believed = robust.q.argmax(axis=1), nominal.q.argmax(axis=1)
    chosen = np.take_along_axis(robust.q, believed[:, None], axis=1)[:, 0]
    clear = robust.q.max(axis=1) - chosen > 0.05
    assert np.sum(clear & nominal.reachable) >= 6
    assert (at(best, 0, 1), at(believed, 0, 1)) == (UPSTREAM, ACROSS)  # where they embark
    assert np.all(robust.q <= nominal.q + 1e-12)


def passage(policy: np.ndarray, place: int, current: float) -> tuple[float, float]:
    """Return and discounted return of a policy on one river, through the environment's own steps."""
    params = with_model(ENV.nominal, {"current": jnp.float32(current)})
    state, total, discounted = jnp.array([0, place]), 0.0, 0.0
    for t in range(ENV.horizon):
        outcome = step(state, jnp.int32(policy[int(state[0]) * 7 + int(state[1])]), params)
        total += float(outcome.reward)
        discounted += DISCOUNT**t * float(outcome.reward)
        state = outcome.state
        if outcome.terminated:
            break
    return total, discounted


@jax.jit
def step(state, action, params):
    return ENV.step(KEY, state, action, params)


def test_what_it_buys_and_costs(robust, nominal) -> None:
    wary, sanguine = robust.q.argmax(axis=1), nominal.q.argmax(axis=1)
    # On the river believed in, the nominal policy is worth its Q and better than the robust one.
    assert passage(sanguine, 1, 1.0)[1] == pytest.approx(at(nominal.q, 0, 1).max(), abs=1e-6)
    assert passage(sanguine, 1, 1.0)[1] > passage(wary, 1, 1.0)[1]
    # On a faster one it never lands, wherever it begins; the robust one always does.
    for place in range(7):
        assert passage(sanguine, place, 2.0)[0] < ENV.success_return
        for current in (0.0, 0.7, 1.0, 2.0):
            total, discounted = passage(wary, place, current)
            assert total > ENV.success_return
            assert discounted >= at(robust.q, 0, place).max() - 1e-6


def test_reachable_cells_are_those_that_play_comes_to(robust, fast) -> None:
    assert robust.reachable.all()
    seen = {(0, place) for place in range(7)}
    for _ in range(40):
        seen |= {to for cell in seen for a in range(3) if (to := river(*cell, a, 2)[1])}
    expected = [(row, place) in seen for row in range(4) for place in range(7)]
    np.testing.assert_array_equal(fast.reachable, expected)
    assert 7 < sum(expected) < 28


def test_cells_are_what_the_agent_sees(robust) -> None:
    states, obs = jax.vmap(lambda key: ENV.reset(key, ENV.nominal))(jax.random.split(KEY, 200))
    assert obs.shape == (200, len(ENV.observation_scale))
    assert obs.dtype == jnp.float32
    np.testing.assert_array_equal(np.unique(states, axis=0), [[0, place] for place in range(7)])
    index = np.asarray(states) @ [7, 1]
    np.testing.assert_allclose(robust.cells[index], obs, atol=1e-6)
    assert robust.cells.shape == (28, 2)
    assert np.abs(robust.cells).max() <= 1
    assert len(np.unique(robust.cells, axis=0)) == 28
    outcome = ENV.step(KEY, jnp.array([1, 5]), jnp.int32(DOWNSTREAM), ENV.nominal)
    np.testing.assert_array_equal(outcome.state, [1, 7])  # over the falls
    np.testing.assert_allclose(outcome.obs, [-0.5, 1.0])
    assert (outcome.obs.dtype, outcome.state.dtype) == (jnp.float32, jnp.int32)


@pytest.mark.parametrize(("current", "whole"), [(0.4, 0), (0.6, 1), (1.4, 1), (1.6, 2), (-0.6, -1), (2.0, 2)])
def test_current_is_rounded(current: float, whole: int) -> None:
    params = with_model(ENV.nominal, {"current": current})
    for action in range(3):
        outcome = step(jnp.array([2, 2]), jnp.int32(action), params)
        reward, cell = river(2, 2, action, whole)
        assert tuple(map(int, outcome.state)) == cell
        assert float(outcome.reward) == pytest.approx(reward)
        assert not outcome.terminated


@pytest.mark.parametrize(
    ("name", "state", "action"),
    [
        ("fare", (3, 2), ACROSS),
        ("detour", (3, 2), ACROSS),
        ("delay", (0, 3), UPSTREAM),
        ("wreck", (1, 6), DOWNSTREAM),
    ],
)
def test_every_price_matters(name: str, state: tuple[int, int], action: int) -> None:
    rewards = [
        float(step(jnp.array(state), jnp.int32(action), with_model(ENV.nominal, model)).reward)
        for model in ({}, {name: getattr(ENV.nominal, name) + 1.0})
    ]
    far = abs(state[1] - 4) if name == "detour" else 1
    assert rewards[1] - rewards[0] == pytest.approx(far if name == "fare" else -far, abs=1e-6)


def test_settings_are_as_any_envs() -> None:
    env = ferry(25)
    assert (env.name, env.horizon) == ("ferry", 25)
    for name, edges in env.box.items():
        for value in edges:
            check_quantity(env.nominal, name, value, "box")


@pytest.mark.parametrize("discount", [1.0, -0.1, float("nan")])
def test_impossible_discounts_are_refused(discount: float) -> None:
    with pytest.raises(DeeprokError, match="discount is"):
        exact_robust_q(ENV, models(1), discount)
