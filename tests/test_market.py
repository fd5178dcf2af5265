from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grids import play, points_of, solve, tabulate
from scipy.stats import norm

from deeprok.environments import ENVIRONMENTS, Environment, check_quantity, with_model
from deeprok.environments.market import Market, market

KEY = jax.random.key(0)
HOLD, EXERCISE = range(2)
ENV = market()
DISCOUNT = 0.99


@jax.jit
def trade(keys, states, actions, params):
    """One step of each of some contracts."""
    return jax.vmap(ENV.step, (0, 0, 0, None))(keys, states, actions, params)


@jax.jit
def hold(key, params):
    """Sixty steps without exercising, whether the contract is over or not."""

    def step(state, key):
        outcome = ENV.step(key, state, jnp.int32(HOLD), params)
        return outcome.state, outcome

    return jax.lax.scan(step, ENV.reset(key, params)[0], jax.random.split(key, 60))[1]


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_rules(x64, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f.name for f in dataclasses.fields(Market)]
    p = Market(**{name: getattr(Market(), name) * (rng.uniform(0.5, 1.5) if seed else 1.0) for name in names})
    prices, steps_left = p.strike * rng.uniform(0.6, 1.4, 200), rng.integers(1, 5, 200)
    actions, keys = rng.integers(0, 2, 200), jax.random.split(jax.random.key(seed), 200)
    states = np.stack([np.log(prices / p.strike), steps_left * p.time_step], axis=1)
    outcome = trade(keys, jnp.asarray(states), jnp.asarray(actions), with_model(p, {}))
    # Prices instead of their logarithms, and whole steps instead of times.
    normal = np.asarray(jax.vmap(jax.random.normal)(keys))
    shocks = p.volatility * math.sqrt(p.time_step) * normal
    moved = prices * np.exp(p.drift * p.time_step) * np.exp(shocks - 0.5 * p.volatility**2 * p.time_step)
    after = np.where(actions == EXERCISE, prices, moved)
    ends = (actions == EXERCISE) | (steps_left == 1)
    np.testing.assert_allclose(p.strike * np.exp(outcome.state[:, 0]), after, rtol=1e-10)
    np.testing.assert_allclose(outcome.state[:, 1], (steps_left - 1) * p.time_step, atol=1e-12)
    np.testing.assert_array_equal(outcome.obs, outcome.state)
    np.testing.assert_array_equal(outcome.terminated, ends)
    np.testing.assert_allclose(outcome.reward, np.where(ends, np.maximum(p.strike - after, 0), 0), atol=1e-10)


def test_known_steps(x64) -> None:
    states = jnp.array([[math.log(0.8), 0.5], [math.log(1.2), 0.5], [math.log(0.8), 0.5], [math.log(0.5), 0.02]])
    actions = jnp.array([EXERCISE, EXERCISE, HOLD, HOLD])
    calm = with_model(Market(), {"volatility": 1e-12, "drift": 50 * math.log(0.9)})  # −10 % in a step
    outcome = trade(jax.random.split(KEY, 4), states, actions, calm)
    np.testing.assert_allclose(outcome.reward, [2.0, 0.0, 0.0, 5.5], atol=1e-9)
    np.testing.assert_array_equal(outcome.terminated, [True, True, False, True])
    np.testing.assert_allclose(outcome.state[2], [math.log(0.72), 0.48], atol=1e-9)


@pytest.mark.parametrize("maturity", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_expiry_ends_the_contract_and_the_horizon_does_not(maturity: float, seed: int) -> None:
    # In single precision, in which the times left are rounded.
    outcome = hold(jax.random.key(seed), with_model(Market(), {"maturity": maturity}))
    expiry = round(maturity / 0.02)
    np.testing.assert_array_equal(outcome.terminated, np.arange(1, 61) >= expiry)
    assert np.all(outcome.reward[: expiry - 1] == 0)
    final = float(outcome.state[expiry - 1, 0])
    assert float(outcome.reward[expiry - 1]) == pytest.approx(max(10 - 10 * math.exp(final), 0), abs=1e-4)
    # Another horizon is another number of steps, and the same contract.
    for horizon in (30, 80):
        short = market(horizon)
        assert short.horizon == horizon
        np.testing.assert_array_equal(short.reset(KEY, Market())[0], ENV.reset(KEY, Market())[0])


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Market)])
def test_every_quantity_matters(name: str) -> None:
    before, after = (hold(KEY, with_model(Market(), m)) for m in ({}, {name: getattr(Market(), name) * 1.1}))
    moneyness = np.allclose(before.state[:, 0], after.state[:, 0], atol=1e-5)
    times = np.allclose(before.state[:, 1], after.state[:, 1], atol=1e-5)
    assert (moneyness, times) == (name in ("strike", "maturity"), name not in ("maturity", "time_step"))
    if name == "strike":
        payoffs = [
            float(trade(KEY[None], jnp.array([[-0.3, 0.5]]), jnp.array([EXERCISE]), with_model(Market(), m)).reward[0])
            for m in ({}, {"strike": 11.0})
        ]
        assert payoffs[1] == pytest.approx(1.1 * payoffs[0])


def test_steps_are_lognormal(x64) -> None:
    count = 20_000
    params = with_model(Market(), {"drift": 0.3, "volatility": 0.4})
    states = jnp.tile(jnp.array([0.1, 0.5]), (count, 1))
    outcome = trade(jax.random.split(KEY, count), states, jnp.zeros(count, int), params)
    growth = np.asarray(outcome.state[:, 0]) - 0.1
    deviation = 0.4 * math.sqrt(0.02)
    assert growth.std() == pytest.approx(deviation, rel=0.02)
    assert np.exp(growth).mean() == pytest.approx(math.exp(0.3 * 0.02), abs=4 * deviation / math.sqrt(count))


def test_not_a_number_ends_the_contract_without_a_payoff() -> None:
    states = jnp.array([[math.nan, 0.5], [math.nan, 0.5], [0.0, math.nan]])
    outcome = trade(jax.random.split(KEY, 3), states, jnp.array([HOLD, EXERCISE, EXERCISE]), with_model(Market(), {}))
    assert np.all(outcome.terminated)
    assert np.all(outcome.reward == 0)


def test_starts_and_part() -> None:
    states, obs = jax.jit(jax.vmap(lambda key: ENV.reset(key, Market())))(jax.random.split(KEY, 2000))
    prices = np.exp(states[:, 0])
    assert (prices.min(), prices.max()) == (pytest.approx(0.9, abs=1e-3), pytest.approx(1.1, abs=1e-3))
    assert np.all(states[:, 1] == 1.0)
    np.testing.assert_array_equal(obs, states)
    part = ENVIRONMENTS["market"]
    env: Environment = part.make(part.settings())
    assert (env.name, env.horizon, env.success_return) == ("market", 50, 0.0)
    for name, edges in env.box.items():
        for value in edges:
            check_quantity(env.nominal, name, value, "box")


def quadrature(nodes: int) -> tuple[jax.Array, np.ndarray]:
    """Keys whose normal numbers lie next to the nodes of Gauss and Hermite, and the weights."""
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    keys = jax.random.split(jax.random.key(7), 100_000)
    drawn = np.asarray(jax.jit(jax.vmap(jax.random.normal))(keys))
    nearest = np.abs(drawn[:, None] - places).argmin(axis=0)
    np.testing.assert_allclose(drawn[nearest], places, atol=0.02)
    return keys[nearest], weights / weights.sum()


def black_scholes(moneyness: np.ndarray, drift: float, volatility: float) -> np.ndarray:
    """What the European put pays on average after a year, discounted: expected growth is the drift."""
    d1 = (moneyness + drift + 0.5 * volatility**2) / volatility
    d2 = d1 - volatility
    return 10 * DISCOUNT**50 * (norm.cdf(-d2) - np.exp(moneyness + drift) * norm.cdf(-d1))


def binomial(moneyness: float, drift: float, volatility: float, inner: int = 20) -> float:
    """The tree of Cox, Ross and Rubinstein, with so many of its steps between two of the fifty dates of exercise."""
    time = 0.02 / inner
    up = math.exp(volatility * math.sqrt(time))
    chance = (math.exp(drift * time) - 1 / up) / (up - 1 / up)
    steps = 50 * inner

    def payoff(level: int) -> np.ndarray:
        return 10 * np.maximum(1 - np.exp(moneyness) * up ** np.arange(-level, level + 1, 2.0), 0)

    values = payoff(steps)
    for level in reversed(range(steps)):
        values = DISCOUNT ** (1 / inner) * (chance * values[1:] + (1 - chance) * values[:-1])
        if level % inner == 0:
            values = np.maximum(values, payoff(level))
    return float(values[0])


# The nominal market, the one that is best for the holder, one that rises in leaps, and the worst.
MARKETS = {"drift": [-0.2, -0.3, 0.2, 0.2], "volatility": [0.3, 0.45, 0.45, 0.15]}
NOMINAL, WORST = 0, 3


@pytest.fixture(scope="module")
def solved():
    with jax.enable_x64(True):
        keys, weights = quadrature(7)
        return ENV.grid, tabulate(ENV, ENV.grid, MARKETS, keys, weights)


def at_start(grid, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moneyness near the strike and the values there, with all the time left."""
    points, values = points_of(grid), q.max(axis=1)
    near = (np.abs(points[:, 0]) < 0.15) & (points[:, 1] == 1.0)
    return points[near, 0], values[near]


@pytest.mark.parametrize("cell", range(4))
def test_holding_is_worth_black_and_scholes(solved, cell: int) -> None:
    grid, tables = solved
    free = tables.only(cell)
    bound = free._replace(rewards=free.rewards[:, :, [HOLD]], moves=[move[HOLD::2] for move in free.moves])
    moneyness, values = at_start(grid, solve(bound, lambda q: q[0], DISCOUNT, 1e-9))
    expected = black_scholes(moneyness, MARKETS["drift"][cell], MARKETS["volatility"][cell])
    np.testing.assert_allclose(values, expected, rtol=0.01, atol=0.002)


@pytest.mark.parametrize("cell", range(4))
def test_exercising_in_time_is_worth_the_binomial_tree(solved, cell: int) -> None:
    grid, tables = solved
    moneyness, values = at_start(grid, solve(tables.only(cell), lambda q: q[0], DISCOUNT, 1e-9))
    model = MARKETS["drift"][cell], MARKETS["volatility"][cell]
    for i in (0, len(values) // 2, -1):
        assert values[i] == pytest.approx(binomial(moneyness[i], *model), rel=0.01, abs=0.002)
    # Being free to exercise is worth something.
    assert np.all(values > 1.005 * black_scholes(moneyness, *model))


def test_worst_market_is_always_the_calm_and_rising_one(solved) -> None:
    grid, tables = solved
    robust = at_start(grid, solve(tables, lambda q: q.min(axis=0), DISCOUNT, 1e-9))[1]
    corner = at_start(grid, solve(tables.only(WORST), lambda q: q[0], DISCOUNT, 1e-9))[1]
    np.testing.assert_allclose(robust, corner, rtol=0.01)


@pytest.mark.slow
def test_waiting_is_paid_for_where_the_market_rises(x64, solved) -> None:
    grid, tables = solved
    natures = {"nominal": lambda q: q[NOMINAL], "mean": lambda q: q.mean(axis=0), "worst": lambda q: q.min(axis=0)}
    returns = {
        name: play(ENV, grid, solve(tables, choose, DISCOUNT, 1e-9), MARKETS, 250).mean(axis=1)
        for name, choose in natures.items()
    }
    worst = {name: values.min() for name, values in returns.items()}
    assert worst["worst"] > 2 * max(worst["nominal"], worst["mean"])
    # The price: in the market that was expected, the nominal policy earns much more, and the mean one is in between.
    assert returns["nominal"][NOMINAL] > returns["mean"][NOMINAL] + 0.1 > 2 * returns["worst"][NOMINAL]
