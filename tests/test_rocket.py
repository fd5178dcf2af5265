from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grids import coarse, play, points_of, solve, tabulate

from deeprok.environments import ENVIRONMENTS, Environment, check_quantity, with_model
from deeprok.environments.rocket import Rocket, rocket

KEY = jax.random.key(0)
OFF, ON = range(2)
ENV = rocket()


@jax.jit
def fly(states, actions, params):
    """One step of each of some rockets."""
    return jax.vmap(lambda state, action: ENV.step(KEY, state, action, params))(states, actions)


def rules(altitude: float, speed: float, action: int, physics: dict[str, float]) -> tuple[float, float, float, bool]:
    """A step in plain numbers: altitude, speed, reward, end. The ground is met where the fall's parabola meets it."""
    pull = (physics["thrust"] if action == ON else 0.0) - physics["gravity"]
    time = physics["time_step"]
    after, faster = altitude + speed * time + 0.5 * pull * time**2, speed + pull * time
    if after <= 0:
        met = min(t for t in np.roots([0.5 * pull, speed, altitude]) if t >= 0)
        return after, faster, (1.0 if abs(speed + pull * met) <= 2.0 else -1.0), True
    return after, faster, (-1.0 if after >= 120 else -0.005), after >= 120


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_rules(x64, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f.name for f in dataclasses.fields(Rocket)]
    physics = {name: getattr(Rocket(), name) * (rng.uniform(0.8, 1.2) if seed else 1.0) for name in names}
    # Near the ground, where it is met gently and hard, and near the ceiling.
    altitudes = np.concatenate([rng.uniform(0.01, 1.0, 60), rng.uniform(118, 120, 20), rng.uniform(1, 100, 20)])
    speeds = np.concatenate([rng.uniform(-6, 1, 60), rng.uniform(-10, 20, 40)])
    actions = rng.integers(0, 2, 100)
    outcome = fly(jnp.stack([altitudes, speeds], axis=1), jnp.asarray(actions), with_model(Rocket(), physics))
    expected = [rules(*state, physics) for state in zip(altitudes, speeds, actions, strict=True)]
    after, faster, rewards, ends = np.array(expected).T
    np.testing.assert_allclose(outcome.state, np.stack([after, faster], axis=1), rtol=1e-10, atol=1e-10)
    root = np.sqrt(np.maximum(after, 0))
    np.testing.assert_allclose(outcome.obs, np.stack([after, root, faster], axis=1), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(outcome.reward, rewards)
    np.testing.assert_array_equal(outcome.terminated, ends)
    assert {-1.0, -0.005, 1.0} == set(rewards)


# Altitude, speed and action; then altitude, speed, reward and end, computed by hand for the nominal rocket.
STEPS = {
    "falling": ((50.0, 0.0, OFF), (49.804, -1.96, -0.005, False)),
    "braking": ((50.0, -10.0, ON), (48.124, -8.76, -0.005, False)),
    "landing": ((0.1, -0.3, OFF), (-0.156, -2.26, 1.0, True)),  # at 1.43 m/s on the ground
    "crash": ((0.5, -3.0, OFF), (-0.296, -4.96, -1.0, True)),
    "braked too late": ((0.1, -2.5, ON), (-0.276, -1.26, -1.0, True)),  # at 2.24 m/s on the ground
    "lost": ((119.0, 8.0, OFF), (120.404, 6.04, -1.0, True)),
}


def test_known_steps(x64) -> None:
    before, after = (np.array(list(column), float) for column in zip(*STEPS.values(), strict=True))
    outcome = fly(jnp.asarray(before[:, :2]), jnp.asarray(before[:, 2], int), with_model(Rocket(), {}))
    found = np.column_stack([outcome.state, outcome.reward, outcome.terminated])
    np.testing.assert_allclose(found, after, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Rocket)])
def test_every_quantity_matters(x64, name: str) -> None:
    states, actions = jnp.array([[50.0, -5.0]] * 2), jnp.array([OFF, ON])
    changed = {name: getattr(Rocket(), name) * 1.1}
    before, after = (fly(states, actions, with_model(Rocket(), model)).state for model in ({}, changed))
    moved = np.abs(np.asarray(after - before)).max(axis=1) > 1e-3
    assert list(moved) == [name != "thrust", True]


def test_time_never_terminates() -> None:
    # With a thrust that is its weight the rocket stays where it is.
    @jax.jit
    def hover(params):
        def step(state, _):
            outcome = ENV.step(KEY, state, jnp.int32(ON), params)
            return outcome.state, outcome

        return jax.lax.scan(step, jnp.array([50.0, 0.0]), None, 1000)[1]

    outcome = hover(with_model(Rocket(), {"thrust": 9.0, "gravity": 9.0}))
    assert not np.any(outcome.terminated)
    np.testing.assert_array_equal(outcome.state[-1], [50.0, 0.0])
    # What staying in the air costs is no success, and what landing in the last step earns is.
    assert float(outcome.reward[:200].sum()) < ENV.success_return < 1.0 - 0.005 * 199


def test_not_a_number_is_a_crash() -> None:
    states = jnp.array([[math.nan, 0.0], [50.0, math.nan], [50.0, math.inf], [50.0, -math.inf]])
    outcome = fly(states, jnp.zeros(4, int), with_model(Rocket(), {}))
    assert np.all(outcome.terminated)
    assert np.all(outcome.reward == -1.0)


def test_starts_and_part() -> None:
    states, obs = jax.jit(jax.vmap(lambda key: ENV.reset(key, ENV.nominal)))(jax.random.split(KEY, 2000))
    np.testing.assert_allclose(states.min(axis=0), [5, -2], atol=0.1)
    np.testing.assert_allclose(states.max(axis=0), [80, 0], atol=0.1)
    assert obs.shape == (2000, len(ENV.observation_scale))
    part = ENVIRONMENTS["rocket"]
    env: Environment = part.make(part.settings(horizon=150))
    assert (env.name, env.horizon) == ("rocket", 150)
    for name, edges in env.box.items():
        for value in edges:
            check_quantity(env.nominal, name, value, "box")


def test_grid_is_finest_at_the_ground(x64) -> None:
    grid = coarse(ENV, 5, 3)
    points = points_of(grid)
    states = jax.vmap(grid.to_state)(jnp.asarray(points))
    np.testing.assert_allclose(np.unique(states[:, 0]), 120 * np.array([0, 1, 4, 9, 16]) / 16, atol=1e-12)
    np.testing.assert_allclose(jax.vmap(grid.from_state)(states), points, atol=1e-12)


CELLS = {"thrust": [12.0, 20.0, 12.0, 20.0, 16.0], "gravity": [8.0, 8.0, 11.5, 11.5, 9.8]}  # the last is nominal


@pytest.mark.slow
def test_minimum_in_every_step_stays_in_the_air(x64) -> None:
    grid = coarse(ENV, 81, 121)
    tables = tabulate(ENV, grid, CELLS)

    def returns(q: np.ndarray) -> np.ndarray:
        return play(ENV, grid, q, CELLS, 20)

    # A policy for each cell lands there.
    own = [returns(solve(tables.only(cell), lambda q: q[0], 0.99, 1e-3)) for cell in range(5)]
    assert min((own[cell][cell] > ENV.success_return).mean() for cell in range(5)) >= 0.9
    # The nominal one lands in its own cell, and crashes where the engine is weak and the rocket heavy.
    nominal = own[4]
    assert (nominal[4] > ENV.success_return).all()
    assert (nominal[2] < -1.0).all()
    # Against a nature that draws anew in every step none can land: the policy waits, without a crash.
    worst = returns(solve(tables, lambda q: q.min(axis=0), 0.99, 1e-3))
    assert (worst > ENV.success_return).mean() <= 0.05
    assert np.isclose(worst, -0.005 * ENV.horizon, rtol=0, atol=1e-9).mean() >= 0.95
