"""Critics of a policy gradient against textbook formulas, and as parts of a run."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from deeprok.agents.policy.critic import (
    critic_network,
    draw_steps,
    explained_variance,
    linear_critic,
    network_critic,
    scaled_inputs,
)
from deeprok.agents.policy.gradient import PolicySettings, make_critic
from deeprok.agents.policy.steps import advantages, returns_to_go, ridge, time_features
from deeprok.core.errors import DeeprokError
from deeprok.estimators import ekf, full
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.training.loop import train_together

pytestmark = pytest.mark.usefixtures("compiled_once")

T, N, D = 6, 5, 2
SCALE = (0.5, 2.0)


def some_steps(seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Observations, targets and equal shares of trajectories of different lengths."""
    rng = np.random.default_rng(seed)
    alive = np.arange(T)[:, None] < [6, 3, 1, 4, 6]
    share = alive / alive.sum()
    return tuple(jnp.asarray(x) for x in (rng.normal(size=(T, N, D)), 30 + 20 * rng.normal(size=(T, N)), share))


# --- the linear critic is the one there was ------------------------------------------------------------


def test_the_linear_critic_is_ridge_regression_operation_by_operation() -> None:
    obs, targets, share = some_steps()
    critic, key = linear_critic(SCALE), jax.random.key(0)

    def found(weights: jax.Array, obs: jax.Array, targets: jax.Array, share: jax.Array) -> Any:
        x = critic.inputs(obs)
        return critic.value(weights, x), critic.fit(weights, x, targets, share, key)

    def expected(weights: jax.Array, obs: jax.Array, targets: jax.Array, share: jax.Array) -> Any:
        x = time_features(obs, SCALE)
        return x @ weights, ridge(x, targets, share)

    weights = critic.init(key)
    assert weights.shape == time_features(obs, SCALE).shape[-1:]
    assert not weights.any()
    traced = [str(jax.make_jaxpr(function)(weights, obs, targets, share)) for function in (found, expected)]
    assert traced[0] == traced[1]
    assert critic.deviation is None
    assert not critic.bootstraps


#: Of the settings as they were before there was a choice of critics.
DIGESTS = {
    ("pg", "paper"): "88aaac17a57a",
    ("pg", "tuned"): "773ae3765ec6",
    ("epopt", "tuned"): "ea92506eddb8",
    ("robust_pg", "default"): "453873cf46ed",
}


@pytest.mark.parametrize(("algorithm", "preset"), DIGESTS)
def test_settings_without_a_critic_are_written_as_before(algorithm: str, preset: str) -> None:
    config = make_config(algorithm, preset)
    assert config.digest() == DIGESTS[algorithm, preset]
    assert "critic" not in config.to_json()
    assert make_config(algorithm, preset, critic="adam").digest() != config.digest()


# --- which steps are learned from ------------------------------------------------------------------------


def test_steps_are_drawn_as_often_as_their_shares_say(x64) -> None:
    rng = np.random.default_rng(1)
    share = rng.uniform(size=(T, N)) * (np.arange(T)[:, None] < [6, 3, 1, 4, 6])
    share[:, 4] = 0.0  # a trajectory that does not count
    share /= share.sum()
    for seed in range(5):
        drawn = np.asarray(draw_steps(jnp.asarray(share), 200, jax.random.key(seed)))
        counts = np.bincount(drawn, minlength=T * N).reshape(T, N)
        assert (counts[share == 0] == 0).all()
        # Systematic sampling: the expected number, rounded down or up.
        assert (np.abs(counts - 200 * share) < 1 + 1e-6).all()
    assert (np.diff(drawn) < 0).any()  # in random order


@pytest.mark.parametrize("size", [(200, 60), (1000, 240)])
def test_no_rounding_draws_a_step_without_a_share(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    alive = np.arange(size[0])[:, None] < rng.integers(1, size[0], size[1])
    share = jnp.asarray(alive / alive.sum(), jnp.float32)
    drawn = np.asarray(draw_steps(share, 5000, jax.random.key(0)))
    assert alive.reshape(-1)[drawn].all()
    # Neither the first steps nor the last ones are left out.
    assert np.abs(drawn.mean() / alive.size - np.flatnonzero(alive).mean() / alive.size) < 0.01


def test_inputs_are_scaled_observations_and_the_time() -> None:
    obs = jnp.asarray(np.random.default_rng(3).normal(size=(5, 2, D)), jnp.float32).at[0, 0, 0].set(1e6)
    x = np.asarray(scaled_inputs(obs, SCALE))
    np.testing.assert_allclose(x[1:, :, :D], np.asarray(obs)[1:] / SCALE, rtol=1e-6)
    assert x[0, 0, 0] == 10.0
    np.testing.assert_allclose(x[:, 1, D], [-1, -0.5, 0, 0.5, 1])


def test_explained_variance() -> None:
    rng = np.random.default_rng(4)
    goal, value, share = rng.normal(size=(3, T, N)) ** 2
    share /= share.sum()
    mean, error = np.sum(share * goal), goal - value
    expected = 1 - np.sum(share * (error - np.sum(share * error)) ** 2) / np.sum(share * (goal - mean) ** 2)
    found = explained_variance(*(jnp.asarray(x, jnp.float32) for x in (value, goal, share)))
    assert float(found) == pytest.approx(expected, rel=1e-4)
    # A constant error is none; and of a constant nothing can be explained.
    assert float(explained_variance(jnp.asarray(goal) + 3, jnp.asarray(goal), jnp.asarray(share))) == pytest.approx(1)
    assert float(explained_variance(jnp.ones((T, N)), jnp.ones((T, N)), jnp.asarray(share))) == 0.0


# --- the Kalman critic is Bayesian regression ---------------------------------------------------------------


@pytest.mark.parametrize("repeats", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_network_linear_in_its_weights_is_bayesian_linear_regression(x64, repeats: int) -> None:
    """Only the last layer is uncertain, so that V is linear in what is learned."""
    obs, targets, share = some_steps()
    network = critic_network(D, (4,))
    last = network.slices[-1]
    prior, noise = 0.3, 0.2
    variances = np.zeros(network.num_weights)
    variances[last] = prior
    estimator = ekf(noise, 0.0, variances, "joint", covariance=full)
    # Every step that was taken, so many times.
    count = repeats * int((share > 0).sum())
    critic = network_critic(SCALE, network, estimator, updates=count // 5, batch=5)
    key = jax.random.key(1)
    before = critic.init(key)
    x = critic.inputs(obs)
    after = jax.jit(critic.fit)(before, x, targets, share, key)

    theta = np.asarray(network.init(key))
    first = np.asarray(x) @ theta[: (D + 1) * 4].reshape(D + 1, 4) + theta[(D + 1) * 4 : last.start]
    phi = np.concatenate([np.tanh(first), np.ones((T, N, 1))], axis=-1)
    taken = np.asarray(share) > 0
    rows, ys = phi[taken], np.asarray(targets)[taken]
    size = np.sqrt(np.mean(ys**2))
    precision = repeats * rows.T @ rows / noise + np.eye(5) / prior
    step = np.linalg.solve(precision, repeats * rows.T @ (ys / size - rows @ theta[last]) / noise)
    np.testing.assert_allclose(critic.value(after, x), size * phi @ (theta[last] + step), rtol=1e-8)
    assert critic.deviation
    variance = np.sum(phi @ np.linalg.inv(precision) * phi, axis=-1)[taken]
    # A mini-batch of all steps that were taken, to compare with the mean over them.
    everything = network_critic(SCALE, network, estimator, updates=1, batch=int(taken.sum()))
    assert everything.deviation
    found = everything.deviation(after, x, share, key)
    np.testing.assert_allclose(found, size * np.sqrt(variance).mean(), rtol=1e-6)


def test_units_follow_the_targets_and_leave_the_function_alone(x64) -> None:
    obs, targets, share = some_steps()
    critic = make_critic(PolicySettings(critic="kalman", critic_hidden=(3,), critic_updates=4, critic_batch=5), SCALE)
    x, key = critic.inputs(obs), jax.random.key(0)
    fit = jax.jit(critic.fit)
    state = fit(critic.init(key), x, targets, share, key)
    square = np.sum(np.asarray(share) * np.asarray(targets) ** 2)
    np.testing.assert_allclose(state.belief.scales.size, np.sqrt(square))
    value = np.asarray(critic.value(state, x))
    # Targets a hundred times as large, so noisy that nothing is learned from them.
    deaf = dataclasses.replace(state.belief.inner, observation_noise=jnp.asarray(1e12))
    state = dataclasses.replace(state, belief=dataclasses.replace(state.belief, inner=deaf))
    moved = fit(state, x, 100 * targets, share, key)
    np.testing.assert_allclose(moved.belief.scales.size, np.sqrt(square + 0.1 * (1e4 - 1) * square))
    np.testing.assert_allclose(critic.value(moved, x), value, rtol=1e-6)


# --- a problem whose values are known --------------------------------------------------------------------


def random_walk(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places [T, N], rewards and whether a step was taken: from 0 … 4, one to either side, until one falls off.

    Falling off at the right earns 1; every step costs a tenth.
    """
    place = rng.integers(0, 5, count)
    alive = np.ones(count, bool)
    places, rewards, taken = [], [], []
    for _ in range(WALK):
        new = place + rng.choice([-1, 1], count)
        places.append(place)
        rewards.append(np.where(alive, -0.1 + (new == 5), 0.0))
        taken.append(alive)
        alive = alive & (new >= 0) & (new <= 4)
        place = np.clip(new, 0, 4)
    return np.stack(places), np.stack(rewards), np.stack(taken)


WALK, GAMMA = 12, 0.95


def walk_values() -> np.ndarray:
    """V(t, s) [WALK, 5] by backward induction."""
    values = np.zeros((WALK + 1, 7))  # and 0 beyond either end
    for t in reversed(range(WALK)):
        ahead = GAMMA * values[t + 1]
        values[t, 1:6] = -0.1 + 0.5 * ahead[:5] + 0.5 * (ahead[2:] + np.array([0, 0, 0, 0, 1.0]))
    return values[:WALK, 1:6]


@pytest.mark.parametrize(
    "settings",
    [
        dict(critic="adam", critic_rate=0.005),
        pytest.param(dict(critic="kalman", critic_noise=0.3), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("decay", [pytest.param(0.5, marks=pytest.mark.slow), 1.0])
def test_the_values_of_a_random_walk_are_learned(settings: dict[str, Any], decay: float) -> None:
    rng = np.random.default_rng(0)
    critic = make_critic(PolicySettings(critic_hidden=(16,), critic_updates=100, **settings), (2.0,))
    assert critic.bootstraps

    @jax.jit
    def iteration(state: Any, obs: jax.Array, reward: jax.Array, alive: jax.Array, key: jax.Array) -> Any:
        x = critic.inputs(obs)
        value = critic.value(state, x)
        targets = value + advantages(reward, value, alive, GAMMA, decay)
        share = jnp.where(alive, 1.0, 0.0) / jnp.sum(alive)
        explained = explained_variance(value, returns_to_go(reward, GAMMA), share)
        return critic.fit(state, x, targets, share, key), explained

    state = critic.init(jax.random.key(0))
    explained = []
    for i in range(30):
        places, reward, alive = random_walk(rng, 2000)
        obs = jnp.asarray(places[..., None] - 2.0, jnp.float32)
        state, share = iteration(state, obs, jnp.asarray(reward, jnp.float32), alive, jax.random.key(i))
        explained.append(float(share))
    every = np.broadcast_to(np.arange(5.0)[None, :, None] - 2, (WALK, 5, 1))
    value = np.asarray(critic.value(state, critic.inputs(jnp.asarray(every, jnp.float32))))
    known = walk_values()
    # A place can't be reached, or a walker hardly still be there, at times far from the start: the early ones.
    np.testing.assert_allclose(value[:6], known[:6], atol=0.1)
    assert np.ptp(known[:6]) > 0.7
    # Most of a return is chance. What can be known of the last ones, V has learned before.
    share = alive / alive.sum()
    exact = np.take_along_axis(known, places, axis=1)
    possible = float(explained_variance(*(jnp.asarray(x) for x in (exact, returns_to_go(reward, GAMMA), share))))
    assert possible - 0.03 < explained[-1] < possible + 0.03
    assert explained[0] < 0.5 * possible
    if critic.deviation:
        x, share = critic.inputs(obs), jnp.where(alive, 1.0, 0.0) / jnp.sum(alive)
        key = jax.random.key(0)
        after, before = (float(critic.deviation(s, x, share, key)) for s in (state, critic.init(key)))
        assert 0 < after < 0.5 * before


# --- runs -----------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=24, horizon=15, trajectories=6, minibatches=2, epochs=2, snapshot_every=0, trial_models=2,
    critic_hidden=(3,), critic_updates=3, critic_batch=4,
)  # fmt: skip


def interrupt_after(chunks: int) -> Any:
    seen = []

    def report(folder: Path, line: dict[str, Any]) -> None:
        seen.append(line)
        if len(seen) == chunks:
            signal.raise_signal(signal.SIGINT)

    return report


@pytest.mark.slow
def test_a_resumed_run_with_a_kalman_critic_is_the_uninterrupted_one(tmp_path: Path) -> None:
    config = make_config("epopt", "tuned", **SMALL, critic="kalman", level_iterations=1, seed=3)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        runs.create(folder, config)
    train_together([whole])
    with pytest.raises(KeyboardInterrupt):
        train_together([cut], interrupt_after(2))
    train_together([cut])
    one, other = (safetensors.numpy.load_file(folder / runs.CHECKPOINT) for folder in (whole, cut))
    assert one.keys() == other.keys()
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []
    assert one["run.agent.baseline.fits"] == 4
    lines = [json.loads(line) for line in (whole / runs.METRICS).read_text().splitlines()]
    assert len(lines) == 4
    assert all(line["explained_variance"] <= 1 for line in lines)
    assert all(line["critic_deviation"] > 0 for line in lines)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": (dict(critic="ekf"), "unknown critic 'ekf'"),
    "linear with units": (dict(critic_hidden=(8,)), "critic_hidden is .*, but critic is 'linear'; use critic 'adam'"),
    "linear with noise": (dict(critic_noise=1.0), "critic_noise is 1.0, but critic is 'linear'; use critic 'kalman'$"),
    "adam with noise": (dict(critic="adam", critic_noise=1.0), "critic_noise is 1.0, but critic is 'adam'"),
    "kalman with a rate": (dict(critic="kalman", critic_rate=0.1), "but critic is 'kalman'; use critic 'adam'$"),
    "no units": (dict(critic="adam", critic_hidden=()), "critic_hidden is .*; it must be at least one hidden layer"),
    "drift": (dict(critic="kalman", critic_drift=1.0), "critic_drift is 1.0; it must be at least 0 and below 1"),
    "memory": (dict(critic="kalman", critic_hidden=(3000, 3000)), "GB a seed.* lower critic_hidden or critic_batch"),
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_critics_that_cant_be_are_refused_in_a_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        make_config("pg", "tuned", **changes)
    assert "\n" not in str(error.value)


def test_the_remedy_names_the_critics_setting() -> None:
    def remedy(**changes: Any) -> str:
        return make_config("pg", "tuned", **changes).make_learner().remedy

    assert remedy() == "lower --learning-rate (now 0.001)"
    assert remedy(critic="adam", inner="natural") == "lower --kl-bound (now 0.01) or --critic-rate (now 0.001)"
    assert remedy(critic="kalman").endswith("or raise --critic-noise (now 0.1)")
