"""The likelihood of a log: against the textbook's Kalman filter, and its derivatives against differences."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from identified import POINT_MASS, Slider, played
from scipy import stats

from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Environment
from deeprok.environments.cartpole import cartpole
from deeprok.identification.dynamics import make_dynamics
from deeprok.identification.likelihood import Unknowns, as_data, innovations_of, score_of
from deeprok.identification.log import Log

pytestmark = pytest.mark.usefixtures("x64")


def textbook(log: Log, slider: Slider, process: np.ndarray, sensor: np.ndarray) -> float:
    """The log-likelihood of a linear system's log, by a Kalman filter with matrices and whole observations."""
    A = np.array([[1.0, slider.time_step], [0.0, 1.0 - slider.friction * slider.time_step]])
    B = np.array([0.0, slider.push * slider.time_step])
    Q, R = np.diag(process), np.diag(sensor)
    total = 0.0
    for obs, action, length in zip(*log, strict=True):
        m, P = obs[0], R
        for t in range(length):
            m, P = A @ m + B * action[t, 0], A @ P @ A.T + Q
            S = P + R
            total += stats.multivariate_normal(m, S).logpdf(obs[t + 1])
            K = P @ np.linalg.inv(S)
            m, P = m + K @ (obs[t + 1] - m), P - K @ S @ K.T
    return total


class Case(NamedTuple):
    unknowns: Unknowns
    log: Log
    x: np.ndarray


@pytest.fixture(scope="module")
def linear() -> Case:
    with jax.enable_x64(True):
        log = played(POINT_MASS, {"push": 1.2, "friction": 0.3}, (30, 12), seed=1, process=0.02, sensor=0.05)
        unknowns = Unknowns(make_dynamics(POINT_MASS, ("push", "friction")), (True, False))
    x = unknowns.pack(np.array([1.1, 0.4]), np.array([1e-4, 4e-4]), np.array([2e-3, 3e-3]))
    return Case(unknowns, log, x)


def test_a_linear_systems_likelihood_is_the_textbooks(linear: Case) -> None:
    found = score_of(linear.unknowns)(jnp.asarray(linear.x), as_data(linear.log)).log_likelihood
    slider = Slider(push=1.1, friction=0.4)
    expected = textbook(linear.log, slider, np.array([1e-4, 4e-4]), np.array([2e-3, 3e-3]))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_an_episode_that_counts_twice_is_there_twice(linear: Case) -> None:
    log, score = linear.log, score_of(linear.unknowns)
    twice = Log(*(np.concatenate([part, part[:1]]) for part in log))
    weighted = as_data(log)._replace(weight=jnp.array([2.0, 1.0]))
    for one, other in zip(
        score(jnp.asarray(linear.x), weighted), score(jnp.asarray(linear.x), as_data(twice)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-7)


def differences(function: Any, x: np.ndarray) -> np.ndarray:
    """Central differences, times x: relative changes."""
    steps = 1e-5 * np.diag(x)
    return np.stack([(function(x + step) - function(x - step)) / 2e-5 for step in steps])


@pytest.mark.parametrize("system", ["linear", "cartpole"])
def test_the_gradient_is_that_of_differences(linear: Case, system: str) -> None:
    if system == "linear":
        unknowns, log, x = linear
    else:
        env = cartpole()
        unknowns = Unknowns(make_dynamics(env, tuple(env.box)), (True, True))
        log = played(env, {"pole_length": 0.6}, (20, 9), seed=0, process=0.003, sensor=0.003)
        x = unknowns.pack(np.array([0.5, 1.4]), np.full(4, 1e-4), np.full(4, 2e-4))
    score, data = score_of(unknowns), as_data(log)
    found = score(jnp.asarray(x), data)
    expected = differences(lambda at: float(score(jnp.asarray(at), data).log_likelihood), x)
    np.testing.assert_allclose(found.gradient * x, expected, rtol=1e-5, atol=1e-4)
    assert np.linalg.eigvalsh(found.information * np.outer(x, x)).min() > 0


def test_the_information_is_the_variance_of_the_gradient(linear: Case) -> None:
    """At the truth, over many logs: E ∇ℓ = 0 and E ∇ℓ ∇ℓᵀ = E I."""
    truth = {"push": 1.2, "friction": 0.3}
    scale = np.array(POINT_MASS.observation_scale)
    x = jnp.asarray(linear.unknowns.pack(np.array([1.2, 0.3]), (0.02 * scale) ** 2, (0.05 * scale) ** 2))
    score = score_of(linear.unknowns)
    # The first observation is known up to its own noise, with nothing before it: as the filter takes it.
    log = played(POINT_MASS, truth, (20,) * 600, seed=3, process=0.02, sensor=0.05, flat_start=True)
    whole = as_data(log)
    per_log = jax.vmap(lambda *part: score(x, type(whole)(*(each[None] for each in part))))(*whole)
    gradients = np.asarray(per_log.gradient)
    expected = np.asarray(per_log.information).mean(axis=0)
    error = np.sqrt(np.diag(expected) / len(gradients))
    assert np.all(np.abs(gradients.mean(axis=0)) < 4 * error)
    scaled = gradients / np.sqrt(np.diag(expected))
    correlation = expected / np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(scaled.T @ scaled / len(gradients), correlation, atol=0.25)


def test_innovations_beyond_the_end_say_nothing(linear: Case) -> None:
    found = innovations_of(linear.unknowns)(jnp.asarray(linear.x), as_data(linear.log))
    assert not np.any(found.value[1, 12:])
    assert np.all(found.variance[1, 12:] == 1)
    assert np.all(np.asarray(found.value)[1, :12] != 0)


@pytest.mark.parametrize(
    "name", ["acrobot", "cartpole", "market", "mountain_car", "pendulum", "road", "rocket", "swing_up"]
)
def test_observations_of_built_in_environments_are_states(name: str) -> None:
    part = ENVIRONMENTS[name]
    dynamics = make_dynamics(part.make(part.settings()), ())
    assert dynamics.random == ((True, False) if name == "market" else (False,) * len(dynamics.scale))


@pytest.mark.parametrize("name", ["ferry", "deep_sea"])
def test_an_observation_that_is_no_state_is_refused(name: str) -> None:
    part = ENVIRONMENTS[name]
    with pytest.raises(DeeprokError, match=rf"^env is '{name}', and its observation is not its state; .*state_of=…"):
        make_dynamics(part.make(part.settings()), ())


def test_few_draws_do_not_make_noise_look_smaller() -> None:
    """The mean of e²/s is 1, for new outcomes and what is predicted of them."""
    part = ENVIRONMENTS["market"]
    market = part.make(part.settings())
    assert isinstance(market, Environment)
    dynamics, at = make_dynamics(market, ("volatility",)), jnp.array([0.1, 0.5])
    keys, others = jax.random.split(jax.random.key(0), (2, 20_000))
    hold = jnp.int32(0)
    predicted = jax.lax.map(lambda key: dynamics.predict(jnp.array([0.4]), at, hold, key, 8), keys, batch_size=2000)
    params = dataclasses.replace(market.nominal, volatility=0.4)
    seen = jax.vmap(lambda key: market.step(key, at, hold, params).obs[0])(others)
    ratio = (seen - predicted.mean[:, 0]) ** 2 / predicted.spread[:, 0, 0]
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.05)


def test_a_wrong_state_is_refused() -> None:
    wrong: Environment = POINT_MASS._replace(state_of=lambda obs: 2.0 * obs)
    with pytest.raises(DeeprokError, match="what its state_of makes of an observation is not its state"):
        make_dynamics(wrong, ())
