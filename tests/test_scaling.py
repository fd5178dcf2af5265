"""Running normalisation, repeated random actions and budgets: what the preset for every environment is made of."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeprok.agents.clock import Clock
from deeprok.agents.exploration import Repeats
from deeprok.agents.learner import Budget
from deeprok.agents.network import MLP
from deeprok.agents.scaling import (
    Scales,
    no_statistics,
    rescaled,
    scaled,
    scales_of,
    with_observation,
    with_targets,
)
from deeprok.agents.targets.base import action_value
from deeprok.core.errors import DeeprokError
from deeprok.environments import Transition
from deeprok.estimators import averaged, ekf, gradient, predict
from deeprok.runs.settings import make_config

NETWORK = MLP((3, 5, 4, 2), "tanh", (0.5, 2.0, 1.0))
RNG = np.random.default_rng(0)
OBS = RNG.normal(size=(40, 3)) * [2.0, 0.1, 30.0] + [5.0, 0.0, -100.0]


@pytest.fixture
def units(x64) -> Scales:
    return Scales(centre=jnp.array([5.0, 0.01, -90.0]), spread=jnp.array([2.0, 0.1, 25.0]), size=jnp.array(7.0))


def test_rescaled_weights_are_those_of_other_units(units: Scales) -> None:
    theta = NETWORK.init(jax.random.key(0))
    outside = NETWORK.rescale(theta, units.centre, units.spread, units.size)
    plain = NETWORK._replace(input_scale=(1.0,) * 3)
    expected = units.size * plain.apply(theta, (OBS - units.centre) / units.spread)
    np.testing.assert_allclose(NETWORK.apply(outside, jnp.asarray(OBS)), expected, rtol=1e-10, atol=1e-10)
    back = NETWORK.rescale(outside, units.centre, units.spread, units.size, back=True)
    np.testing.assert_allclose(back, theta, rtol=1e-10, atol=1e-12)


def test_statistics_are_those_of_the_data(x64) -> None:
    seen = no_statistics(3)
    for i, obs in enumerate(OBS):
        seen = with_observation(seen, jnp.asarray(obs), jnp.array(True))
        seen = with_targets(seen, jnp.asarray([i, 2.0 * i]), jnp.array(True))
    ignored = with_targets(with_observation(seen, jnp.ones(3), jnp.array(False)), jnp.ones(2), jnp.array(False))
    scales = scales_of(ignored, jnp.ones(3))
    np.testing.assert_allclose(scales.centre, OBS.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scales.spread, OBS.std(axis=0), rtol=1e-12)
    i = np.arange(len(OBS))
    np.testing.assert_allclose(scales.size, np.sqrt(np.mean([i**2, 4 * i**2])), rtol=1e-12)


def test_what_never_varies_has_its_typical_size() -> None:
    seen = no_statistics(2)
    for _ in range(3):
        seen = with_observation(seen, jnp.array([4.0, 0.0]), jnp.array(True))
    np.testing.assert_array_equal(scales_of(seen, jnp.array([2.0, 0.5])).spread, [2.0, 0.5])
    assert scales_of(seen, jnp.ones(2)).size == 1.0


def test_new_units_leave_the_function_as_it_is(units: Scales) -> None:
    inner = ekf(observation_noise=0.1, process_noise=0.0, prior_covariance=0.1)
    estimator = scaled(inner, NETWORK, (2.0, 0.5, 10.0))
    belief = estimator.init(NETWORK.init(jax.random.key(1)))
    before = NETWORK.apply(estimator.mean(belief), jnp.asarray(OBS))
    moved = rescaled(inner, NETWORK, belief, units)
    np.testing.assert_allclose(NETWORK.apply(estimator.mean(moved), jnp.asarray(OBS)), before, rtol=1e-9, atol=1e-9)
    assert moved.scales is units
    # The first units are the typical sizes, with the weights as they were drawn.
    plain = NETWORK._replace(input_scale=(0.5, 2.0, 0.1))
    np.testing.assert_allclose(before, plain.apply(NETWORK.init(jax.random.key(1)), jnp.asarray(OBS)), rtol=1e-9)


@pytest.mark.parametrize("name", ["gradient", "ekf"])
def test_learning_within_units_is_learning_on_scaled_data(units: Scales, name: str) -> None:
    inner = gradient("sgd", 0.05) if name == "gradient" else ekf(0.1, 0.0, 0.1, batching="joint")
    plain = NETWORK._replace(input_scale=(1.0,) * 3)
    theta = NETWORK.init(jax.random.key(2))
    obs, action, ys = jnp.asarray(OBS[:8]), jnp.arange(8) % 2, jnp.linspace(-9.0, 9.0, 8)
    estimator = scaled(inner, NETWORK, (1.0, 1.0, 1.0))
    belief = dataclasses.replace(estimator.init(theta), scales=units)
    outside, fit = jax.jit(lambda b: estimator.update(b, action_value(NETWORK), (obs, action), ys))(belief)
    within = (obs - units.centre) / units.spread
    expected, own = jax.jit(
        lambda b: inner.update(b, action_value(plain), (within, action), ys / units.size)
    )(inner.init(theta))  # fmt: skip
    np.testing.assert_allclose(outside.inner.theta, expected.theta, rtol=1e-9, atol=1e-12)
    assert fit.loss == pytest.approx(float(own.loss) * 49.0)
    if name == "ekf":
        found = predict(estimator, outside, action_value(NETWORK), (obs, action))
        inside = predict(inner, expected, action_value(plain), (within, action))
        np.testing.assert_allclose(found.mean, 7.0 * inside.mean, rtol=1e-8)
        np.testing.assert_allclose(found.variance, 49.0 * inside.variance, rtol=1e-8)
        J = jax.jacobian(lambda t: NETWORK.rescale(t, units.centre, units.spread, units.size))(expected.theta)
        np.testing.assert_allclose(
            estimator.posterior.covariance(outside), J @ inner.posterior.covariance(expected) @ J.T, atol=1e-10
        )


PLAIN = {"adam": gradient("adam", 0.1, final_rate=0.2), "ekf": ekf(observation_noise=0.1, process_noise=0.01)}


@pytest.mark.parametrize("name", PLAIN)
def test_averaged_weights_are_the_moving_average(name: str, x64) -> None:
    plain = PLAIN[name]
    estimator = averaged(plain, 0.3)
    xs, ys = jnp.asarray(OBS[:6]), jnp.linspace(-1.0, 1.0, 6)
    first = mean = jnp.array([0.1, -0.2, 0.0])
    belief, other = plain.init(first), estimator.init(first)
    for k in range(5):
        belief, _ = plain.update(belief, jnp.dot, xs, ys, progress=k / 5)
        other, _ = estimator.update(other, jnp.dot, xs, ys, progress=k / 5)
        mean = mean + 0.3 * (belief.theta - mean)
        np.testing.assert_allclose(estimator.mean(other), mean, rtol=1e-12)
    still, _ = estimator.update(other, jnp.dot, xs, ys, active=False)
    assert all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(still), jax.tree.leaves(other), strict=True))
    doubled = estimator.map_weights(other, lambda theta: 2.0 * theta)
    np.testing.assert_allclose(estimator.mean(doubled), 2.0 * mean, rtol=1e-12)
    np.testing.assert_allclose(doubled.inner.theta, 2.0 * other.inner.theta, rtol=1e-12)
    assert averaged(plain, 0.0) is plain


def test_a_step_falls_to_its_final_rate(x64) -> None:
    xs, ys = jnp.asarray(OBS[:6]), jnp.linspace(-1.0, 1.0, 6)
    falling, steady = PLAIN["adam"], gradient("adam", 0.1)
    belief, _ = steady.update(steady.init(jnp.array([0.1, -0.2, 0.0])), jnp.dot, xs, ys)
    whole, _ = steady.update(belief, jnp.dot, xs, ys, progress=1.0)
    for progress, share in ((0.0, 1.0), (0.5, 0.6), (1.0, 0.2)):
        moved, _ = falling.update(belief, jnp.dot, xs, ys, progress=progress)
        np.testing.assert_allclose(moved.theta - belief.theta, share * (whole.theta - belief.theta), rtol=1e-9)


def test_the_posterior_is_around_the_averaged_weights(x64) -> None:
    """The covariance is the filter's, and samples have the same deviations from the average as from its mean."""
    plain = PLAIN["ekf"]
    estimator = averaged(plain, 0.3)
    belief = estimator.init(jnp.array([0.1, -0.2, 0.0]))
    for _ in range(3):
        belief, _ = estimator.update(belief, jnp.dot, jnp.asarray(OBS[:6]), jnp.linspace(-1.0, 1.0, 6))
    own, key = plain.posterior, jax.random.key(3)
    found = estimator.posterior.sample(belief, key) - estimator.mean(belief)
    np.testing.assert_allclose(found, own.sample(belief.inner, key) - belief.inner.theta, atol=1e-12)
    assert not np.allclose(estimator.mean(belief), belief.inner.theta)
    np.testing.assert_array_equal(estimator.posterior.covariance(belief), own.covariance(belief.inner))
    H = jnp.eye(3)
    np.testing.assert_array_equal(
        estimator.posterior.predictive_variance(belief, H), own.predictive_variance(belief.inner, H)
    )


def test_repeats_have_a_zeta_distribution_and_keep_epsilon() -> None:
    repeats = Repeats(20)
    uniform = (np.arange(200_000) + 0.5) / 200_000
    lengths = np.asarray(repeats.length(jnp.asarray(uniform)))
    share = 1.0 / np.arange(1, 21) ** 2
    np.testing.assert_allclose(np.bincount(lengths, minlength=21)[1:] / len(lengths), share / share.sum(), atol=1e-4)
    # A cycle is a repetition, or one greedy step: the steps of repetitions are a fraction ε of all.
    begins = float(repeats.begins(jnp.asarray(0.3)))
    random_steps = begins * lengths.mean()
    assert random_steps / (random_steps + 1 - begins) == pytest.approx(0.3, abs=1e-3)
    assert repeats.begins(jnp.asarray(1.0)) == 1.0


def test_a_random_action_is_repeated_until_its_time_or_the_episode_is_over() -> None:
    config = make_config(
        "dqn", "tuned", hidden=(2,), longest_repeat=50, epsilon_start=1.0, epsilon_end=0.2, epsilon_fraction=0.5
    )
    agent = config.make_learner()
    state = agent.init(jax.random.key(0))
    program = jax.jit(agent.act), jax.jit(agent.plays.observe)
    length = float(Repeats(50).cumulative[2]) - 1e-3  # of three steps
    taken, more = [], []
    for t in range(60):
        draw = agent.draw(jax.random.key(t))
        draw = dataclasses.replace(draw, explore=draw.explore.at[2].set(length))
        clock = Clock(jnp.int32(t), 0.1)
        action, _ = program[0](state, draw, jnp.zeros(4), clock)
        transition = Transition(
            obs=jnp.zeros(4), action=action, reward=jnp.zeros(1), next_obs=jnp.zeros((1, 4)),
            terminated=jnp.zeros(1, bool),
        )  # fmt: skip
        state = program[1](state, transition, draw, clock, jnp.array(t == 40), jnp.array(True))
        taken.append(int(action))
        more.append(int(state.repeating[1]))
    assert {0, 1, 2} == set(more)
    for t in range(59):
        if more[t]:
            assert taken[t + 1] == taken[t]
            assert more[t + 1] == more[t] - 1 or t == 39
    assert more[40] == 0


@given(st.integers(0, 50), st.integers(1, 400), st.integers(0, 60), st.integers(0, 500))
def test_a_budget_lasts_until_its_first_limit(most: int, steps: int, episodes: int, done: int) -> None:
    budget = Budget(most, steps)
    assert budget.lasts(episodes, done) == ((most == 0 or episodes < most) and done < steps)
    assert budget.lasts(episodes, done) == (float(budget.progress(episodes, done)) < 1)
    assert budget.most_steps(7) == (min(7 * most, steps) if most else steps)


def test_one_limit_replaces_the_other() -> None:
    config = make_config("dqn", "tuned", steps=500)
    assert config.budget == (0, 500)
    assert config.replace(episodes=7).budget == (7, 0)
    assert config.replace(episodes=7, steps=9).budget == (7, 9)
    assert config.snapshots == 0
    with pytest.raises(DeeprokError, match="episodes and steps are both 0"):
        config.replace(steps=0)
