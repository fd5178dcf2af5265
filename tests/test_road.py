from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grids import coarse, play, solve, tabulate

from deeprok.environments import ENVIRONMENTS, Environment, check_quantity, with_model
from deeprok.environments.road import Road, curvature, road

KEY = jax.random.key(0)
BRAKE, COAST, THROTTLE = range(3)
ENV = road()
CURVES = [(50.0, 25.0, 12.0), (110.0, 12.0, 10.0), (165.0, 40.0, 12.0)]  # centre, radius, width


@jax.jit
def drive(state, actions, params):
    """Plays a list of actions, whatever happens on the way."""

    def step(state, action):
        outcome = ENV.step(KEY, state, action, params)
        return outcome.state, outcome

    return jax.lax.scan(step, state, actions)[1]


def bend(place: float) -> float:
    return sum(math.exp(-(((place - centre) / width) ** 4)) / radius for centre, radius, width in CURVES)


def rules(place: float, speed: float, action: int, physics: dict[str, float]) -> tuple[float, float, float, bool]:
    """A step in plain numbers: place, speed, reward, end."""
    grip = physics["friction"] * physics["gravity"]
    if action == BRAKE:
        push = -physics["braking"] * grip
    else:
        push = physics["throttle"] if action == THROTTLE else 0.0
    faster = speed + physics["time_step"] * (push - physics["drag"] * speed * speed)
    faster = min(max(faster, 0.0), 40.0)
    place += physics["time_step"] * (speed + faster) / 2
    if faster * faster * bend(place) > grip:
        return place, faster, -1.0, True
    if place >= 200.0:
        return place, faster, 1.0, True
    return place, faster, -0.01, False


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_rules(x64, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f.name for f in dataclasses.fields(Road)]
    physics = {name: getattr(Road(), name) * (rng.uniform(0.5, 1.5) if seed else 1.0) for name in names}
    place, speed = rng.uniform(0, 100), rng.uniform(0, 15)
    actions = rng.choice(3, size=200, p=[0.1, 0.3, 0.6])
    outcome = drive(jnp.array([place, speed]), jnp.asarray(actions), with_model(Road(), physics))
    expected, ahead = [], []
    for action in actions:
        place, speed, reward, end = rules(place, speed, action, physics)
        expected.append((place, speed, reward, end))
        ahead.append([bend(place + distance) for distance in (0, 10, 20, 40)])
    places, speeds, rewards, ends = np.array(expected).T
    np.testing.assert_allclose(outcome.state, np.stack([places, speeds], axis=1), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(outcome.obs[:, :2], outcome.state)
    np.testing.assert_allclose(outcome.obs[:, 2:], ahead, rtol=1e-8, atol=1e-12)
    np.testing.assert_array_equal(outcome.reward, rewards)
    np.testing.assert_array_equal(outcome.terminated, ends)
    assert 0 < ends.sum() < len(ends)


# Place, speed and action; then place, speed, reward and end, computed by hand for the nominal car.
STEPS = {
    "brake": ((0.0, 10.0, BRAKE), (1.854736, 10 - 0.2 * (0.9 * 7.848 + 0.2), -0.01, False)),
    "coast": ((0.0, 10.0, COAST), (1.996, 9.96, -0.01, False)),
    "throttle": ((0.0, 10.0, THROTTLE), (2.066, 10.66, -0.01, False)),
    "not backwards": ((20.0, 1.0, BRAKE), (20.1, 0.0, -0.01, False)),
    "starting again": ((20.0, 0.0, THROTTLE), (20.07, 0.7, -0.01, False)),
    "arrival": ((199.5, 10.0, COAST), (201.496, 9.96, 1.0, True)),
    "just not": ((197.9, 10.0, COAST), (199.896, 9.96, -0.01, False)),
    "too fast for the narrow curve": ((108.0, 10.0, COAST), (109.996, 9.96, -1.0, True)),
    "slow enough for it": ((108.5, 9.0, COAST), (110.29676, 8.9676, -0.01, False)),
}


@pytest.mark.parametrize(("before", "after"), STEPS.values(), ids=STEPS)
def test_known_steps(x64, before: tuple, after: tuple) -> None:
    place, speed, action = before
    outcome = drive(jnp.array([place, speed]), jnp.array([action]), with_model(Road(), {}))
    found = (*outcome.state[0], outcome.reward[0], outcome.terminated[0])
    np.testing.assert_allclose(np.array(found, float), np.array(after, float), rtol=0, atol=1e-9)


def test_curves_have_their_radii() -> None:
    # The curves hardly overlap: in the middle of each the radius is its own, and between them the road is straight.
    np.testing.assert_allclose(1 / jax.jit(curvature)(jnp.array([50.0, 110.0, 165.0])), [25, 12, 40], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(curvature)(jnp.array([0.0, 80.0, 137.0, 200.0])), 0.0, atol=1e-4)
    # The smallest friction takes the narrow curve at √(μ g r) and no faster.
    limit = math.sqrt(0.3 * 9.81 * 12)
    grippy = with_model(Road(), {"friction": 0.3, "drag": 0.0})
    for speed, ends in [(limit - 0.01, False), (limit + 0.01, True)]:
        outcome = drive(jnp.array([110.0 - 0.2 * speed, speed]), jnp.array([COAST]), grippy)
        assert bool(outcome.terminated[0]) == ends


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Road)])
def test_every_quantity_matters(name: str) -> None:
    actions = jnp.array([THROTTLE, BRAKE])
    start = jnp.array([10.0, 12.0])
    changed = {name: getattr(Road(), name) * 1.1}
    before, after = (drive(start, actions, with_model(Road(), model)).state for model in ({}, changed))
    moved = np.abs(np.asarray(after - before)).max(axis=1) > 1e-4
    # Friction, gravity and the brakes are felt when braking only.
    assert list(moved) == [name in ("drag", "throttle", "time_step"), True]


def test_friction_decides_on_a_crash() -> None:
    for friction, ends in [(0.79, True), (0.81, False)]:
        params = with_model(Road(), {"friction": friction, "drag": 0.0})
        speed = math.sqrt(0.8 * 9.81 * 12)
        outcome = drive(jnp.array([110 - 0.2 * speed, speed]), jnp.array([COAST]), params)
        assert bool(outcome.terminated[0]) == ends


def test_time_never_terminates() -> None:
    outcome = drive(jnp.array([30.0, 0.0]), jnp.full(1000, BRAKE), with_model(Road(), {}))
    assert not np.any(outcome.terminated)
    np.testing.assert_array_equal(outcome.state[-1], [30.0, 0.0])


@pytest.mark.parametrize("state", [(math.nan, 1.0), (1.0, math.nan)])
def test_not_a_number_is_a_crash(state: tuple[float, float]) -> None:
    outcome = drive(jnp.array(state), jnp.array([COAST]), with_model(Road(), {}))
    assert bool(outcome.terminated[0])
    assert float(outcome.reward[0]) == -1.0


def test_starts_and_part() -> None:
    states, obs = jax.jit(jax.vmap(lambda key: ENV.reset(key, ENV.nominal)))(jax.random.split(KEY, 2000))
    assert np.all(states[:, 0] == 0)
    assert 5 <= states[:, 1].min() < 5.05
    assert 14.95 < states[:, 1].max() <= 15
    np.testing.assert_array_equal(obs[:, :2], states)
    assert obs.shape == (2000, len(ENV.observation_scale))
    part = ENVIRONMENTS["road"]
    env: Environment = part.make(part.settings(horizon=120))
    assert (env.name, env.horizon) == ("road", 120)
    for name, edges in env.box.items():
        for value in edges:
            check_quantity(env.nominal, name, value, "box")


@pytest.mark.parametrize("horizon", [50, 100, 200])
def test_success_is_arrival(horizon: int) -> None:
    limit = road(horizon).success_return
    last = 1.0 - 0.01 * (horizon - 1)  # an arrival in the last step
    assert limit < last - 5e-3
    for failure in (-1.01, -0.01 * horizon):  # the earliest crash, and no end at all
        assert failure < limit - 5e-3


FRICTIONS = {"friction": [0.3, 0.5, 0.8, 1.0]}


@pytest.mark.slow
def test_margins_for_slippery_roads(x64) -> None:
    # On a coarse grid: the nominal policy crashes on every slipperier road, the mean one on the most slippery, and
    # the worst-case one nowhere, at the price of more time.
    grid = coarse(ENV, 101, 81)
    tables = tabulate(ENV, grid, FRICTIONS)
    natures = {"nominal": lambda q: q[2], "mean": lambda q: q.mean(axis=0), "worst": lambda q: q.min(axis=0)}
    found = {
        name: play(ENV, grid, solve(tables, choose, 0.99, 1e-3), FRICTIONS, 20) for name, choose in natures.items()
    }
    success = {name: (returns > ENV.success_return).mean(axis=1) for name, returns in found.items()}
    np.testing.assert_array_equal(success["worst"], 1.0)
    np.testing.assert_array_equal(success["nominal"], [0, 0, 1, 1])
    assert success["mean"][0] < 0.5
    assert success["mean"][1:].min() > 0.9
    for slower, faster in [("worst", "mean"), ("mean", "nominal")]:
        assert found[slower][2].mean() < found[faster][2].mean() - 0.02
