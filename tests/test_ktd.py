"""Kalman Temporal Differences: the filters of the textbook, regressions, and values by dynamic programming."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.agents.ktd import KTD, ktd
from deeprok.agents.network import MLP
from deeprok.agents.targets.differences import (
    SarsaTransition,
    q_difference,
    robust_difference,
    sarsa_difference,
    v_difference,
)
from deeprok.core.errors import DeeprokError
from deeprok.environments.base import Transition
from deeprok.estimators import Fit
from deeprok.estimators.unscented import UnscentedBelief, condition, predict, unscented
from deeprok.uncertainty import SETS, minimum


def linear_v(theta: jax.Array, obs: jax.Array) -> jax.Array:
    return theta @ obs


def linear_q(theta: jax.Array, obs: jax.Array) -> jax.Array:
    """Two actions, each with weights of its own."""
    return theta.reshape(2, -1) @ obs


def bent_v(theta: jax.Array, obs: jax.Array) -> jax.Array:
    return jnp.tanh(theta[:3] @ obs) * theta[3] + theta[4]


def transitions(obs: Any, reward: Any, next_obs: Any, terminated: Any, action: Any = None) -> Transition:
    """A stack of T transitions with one outcome each."""
    action = np.zeros(len(reward)) if action is None else action
    return Transition(
        obs=jnp.asarray(obs),
        action=jnp.asarray(action, jnp.int32),
        reward=jnp.asarray(reward)[:, None],
        next_obs=jnp.asarray(next_obs)[:, None],
        terminated=jnp.asarray(terminated, bool)[:, None],
    )


@functools.partial(jax.jit, static_argnames="learner")
def scan(
    learner: KTD, belief: UnscentedBelief, data: Any, cut: jax.Array | None = None
) -> tuple[UnscentedBelief, tuple[Any, Fit]]:
    """Learns on line; returns the last belief and, of every step, the belief after it and the fit."""

    def step(
        belief: UnscentedBelief, item: tuple[Any, jax.Array]
    ) -> tuple[UnscentedBelief, tuple[UnscentedBelief, Fit]]:
        transition, ended = item
        belief, fit = learner.update(belief, transition)
        return learner.restart(belief, ended), (belief, fit)

    steps = jax.tree.leaves(data)[0].shape[0]
    return jax.lax.scan(step, belief, (data, jnp.zeros(steps, bool) if cut is None else cut))


def walk(rng: np.random.Generator, steps: int, features: int) -> tuple[np.ndarray, ...]:
    """Features, rewards, next features and ends of steps that follow each other within episodes."""
    states = rng.normal(size=(steps + 1, features))
    terminated = rng.uniform(size=steps) < 0.2
    return states[:-1], rng.normal(size=steps), states[1:], terminated


# --- the filters of the textbook -------------------------------------------------------------------------


def kalman_filter(
    theta: np.ndarray, P: np.ndarray, H: np.ndarray, y: np.ndarray, R: float, adaptive: float, constant: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The linear filter in its plain form, one scalar observation after the other."""
    history = []
    for h, observed in zip(H, y, strict=True):
        P = (1 + adaptive) * P + np.diag(constant)
        S = h @ P @ h + R
        K = P @ h / S
        theta = theta + K * (observed - h @ theta)
        P = P - np.outer(K, K) * S
        history.append((theta, P))
    return history


@pytest.mark.parametrize(
    ("adaptive", "constant"), [(0.0, 0.0), (0.03, 0.0), (0.0, 0.02), (0.01, [0.1, 0, 0.2, 0, 0.3])]
)
@pytest.mark.usefixtures("x64")
def test_linear_model_is_the_exact_kalman_filter(adaptive: float, constant: Any) -> None:
    rng, n, discount = np.random.default_rng(0), 5, 0.9
    obs, reward, next_obs, terminated = walk(rng, 60, n)
    root = rng.normal(size=(n, n))
    prior, theta = root @ root.T + np.eye(n), rng.normal(size=n)
    noise = constant if np.ndim(constant) == 0 else np.asarray(constant)
    learner = ktd(v_difference(linear_v), discount, 0.3, prior, adaptive, noise)
    _, (beliefs, _) = scan(learner, learner.init(jnp.asarray(theta)), transitions(obs, reward, next_obs, terminated))
    H = obs - discount * np.where(terminated, 0.0, 1.0)[:, None] * next_obs
    expected = kalman_filter(theta, prior, H, reward, 0.3, adaptive, np.broadcast_to(noise, n))
    for t, (mean, P) in enumerate(expected):
        S = np.asarray(beliefs.S[t])
        np.testing.assert_allclose(beliefs.theta[t], mean, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(S @ S.T, P, rtol=1e-10, atol=1e-10)
        assert np.all(np.triu(S, 1) == 0)
        assert np.all(np.diagonal(S) > 0)


class Plain(NamedTuple):
    mean: np.ndarray
    P: np.ndarray


def unscented_step(state: Plain, h: Callable[[np.ndarray], float], y: float, R: float, kappa: float) -> Plain:
    """A correction of the unscented filter as the paper writes it: points, weights, P − K Pᵣ Kᵀ."""
    n, root = len(state.mean), np.linalg.cholesky(state.P)
    points, weights = [state.mean], [kappa / (n + kappa)]
    for sign in (1, -1):
        for j in range(n):
            points.append(state.mean + sign * np.sqrt(n + kappa) * root[:, j])
            weights.append(1 / (2 * (n + kappa)))
    values = np.array([h(point) for point in points])
    mean = np.dot(weights, values)
    cross = sum(w * (x - state.mean) * (v - mean) for w, x, v in zip(weights, points, values, strict=True))
    variance = np.dot(weights, (values - mean) ** 2) + R
    K = cross / variance
    return Plain(state.mean + K * (y - mean), state.P - np.outer(K, K) * variance)


def bent(theta: np.ndarray, obs: np.ndarray) -> float:
    return float(np.tanh(theta[:3] @ obs) * theta[3] + theta[4])


@pytest.mark.parametrize("kappa", [0.0, 1.5])
@pytest.mark.parametrize("coloured", [False, True])
@pytest.mark.usefixtures("x64")
def test_bent_model_is_the_plain_unscented_filter(coloured: bool, kappa: float) -> None:
    """XKTD is checked against the augmented state (θ, ω, n) of the paper, with F and the noise written out."""
    rng, n, discount, R, adaptive, constant = np.random.default_rng(1), 5, 0.9, 0.3, 0.02, 0.01
    obs, reward, next_obs, terminated = walk(rng, 40, 3)
    theta = rng.normal(size=n)
    learner = ktd(v_difference(bent_v), discount, R, 0.5, adaptive, constant, coloured, kappa)
    _, (beliefs, fits) = scan(learner, learner.init(jnp.asarray(theta)), transitions(obs, reward, next_obs, terminated))
    assert np.ptp(fits.health.gain) > 0.1

    size = n + 2 if coloured else n
    state = Plain(np.zeros(size), np.zeros((size, size)))
    state.mean[:n], state.P[:n, :n] = theta, 0.5 * np.eye(n)
    if coloured:
        state.P[n, n] = R
    for t in range(len(reward)):
        future = 0.0 if terminated[t] else discount
        F, Q = np.eye(size), np.zeros((size, size))
        Q[:n, :n] = adaptive * state.P[:n, :n] + constant * np.eye(n)
        if coloured:
            F[n:, n:] = [[0, 0], [1, 0]]
            Q[n:, n:] = R * np.array([[1, -future], [-future, future**2]])

        def h(x: np.ndarray, t: int = t, future: float = future) -> float:
            noise = x[n + 1] if coloured else 0.0
            return bent(x[:n], obs[t]) - future * bent(x[:n], next_obs[t]) + noise

        predicted = Plain(F @ state.mean, F @ state.P @ F.T + Q)
        state = unscented_step(predicted, h, reward[t], 0.0 if coloured else R, kappa)
        S = np.asarray(beliefs.S[t])
        np.testing.assert_allclose(beliefs.theta[t], state.mean[:n], rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(S @ S.T, state.P[:n, :n], rtol=1e-8, atol=1e-9)
        if coloured:
            assert beliefs.memory is not None
            np.testing.assert_allclose(beliefs.memory.mean[t], state.mean[n], rtol=1e-8, atol=1e-9)
            np.testing.assert_allclose(S @ beliefs.memory.shared[t], state.P[:n, n], rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_unscented_moments_of_a_square() -> None:
    """E x² = 1 + m² and Var x² = 2 + 4 m² of a normal number are exact with n + κ = 3."""
    mean, d, excess_variance = unscented(lambda x: x[0] ** 2, jnp.array([0.7]), jnp.eye(1), kappa=2.0)
    np.testing.assert_allclose([mean, d[0] ** 2 + excess_variance], [1 + 0.7**2, 2 + 4 * 0.7**2], rtol=1e-12)
    np.testing.assert_allclose(d, [1.4], rtol=1e-12)


def test_never_indefinite_in_single_precision() -> None:
    """The same few inputs again and again, almost without noise: the plain form would lose P within a few steps."""
    rng = np.random.default_rng(2)
    obs = np.tile(rng.normal(size=(3, 6)), (2000, 1)).astype(np.float32)
    data = transitions(obs, np.ones(6000, np.float32), np.zeros_like(obs), np.ones(6000))
    learner = ktd(v_difference(linear_v), 0.9, 1e-9, 100.0)
    belief, (beliefs, _) = scan(learner, learner.init(jnp.zeros(6)), data)
    assert bool(jnp.all(jax.vmap(learner.posterior.definite)(beliefs)))
    np.testing.assert_allclose(obs[:3] @ belief.theta, 1.0, atol=1e-3)

    P, lost = np.eye(6, dtype=np.float32) * 100, False
    for h in obs[:300]:
        K = P @ h / (h @ P @ h + np.float32(1e-9))
        P = P - np.outer(K, h @ P)
        lost |= bool(np.min(np.linalg.eigvalsh((P + P.T) / 2)) <= 0)
    assert lost


@pytest.mark.usefixtures("x64")
def test_condition_is_the_cholesky_factor_of_what_is_left() -> None:
    rng = np.random.default_rng(3)
    S, d, rest = np.linalg.cholesky(np.cov(rng.normal(size=(4, 20)))), rng.normal(size=4), 0.2
    left = S @ (np.eye(4) - np.outer(d, d) / (d @ d + rest)) @ S.T
    np.testing.assert_allclose(condition(jnp.asarray(S), jnp.asarray(d), 0.2), np.linalg.cholesky(left), atol=1e-14)


# --- regressions -----------------------------------------------------------------------------------------


def residual_ridge(H: np.ndarray, y: np.ndarray, noise: np.ndarray, prior: float) -> Plain:
    """The posterior of y = H θ + N(0, noise), θ ~ N(0, prior I): with white noise, Bellman residuals with a ridge."""
    precision = H.T @ np.linalg.solve(noise, H) + np.eye(H.shape[1]) / prior
    return Plain(np.linalg.solve(precision, H.T @ np.linalg.solve(noise, y)), np.linalg.inv(precision))


def lstd(phi: np.ndarray, H: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.solve(phi.T @ H, phi.T @ y)


@pytest.mark.usefixtures("x64")
def test_deterministic_chain_is_lstd() -> None:
    """States 0 → 1 → … → 5 → end, one weight each."""
    n, discount, prior, R = 6, 0.9, 1e6, 1e-3
    eye, reward = np.eye(n), np.array([1.0, -0.5, 2.0, 0.0, 0.3, 1.5])
    next_obs, terminated = np.roll(eye, 1, axis=1), np.arange(n) == n - 1
    H = eye - discount * np.where(terminated, 0.0, 1.0)[:, None] * next_obs
    learner = ktd(v_difference(linear_v), discount, R, prior)
    data = jax.tree.map(
        lambda leaf: jnp.tile(leaf, (3,) + (1,) * (leaf.ndim - 1)), transitions(eye, reward, next_obs, terminated)
    )
    belief, _ = scan(learner, learner.init(jnp.zeros(n)), data)
    ridge = residual_ridge(np.tile(H, (3, 1)), np.tile(reward, 3), R * np.eye(3 * n), prior)
    np.testing.assert_allclose(belief.theta, ridge.mean, rtol=1e-9)
    np.testing.assert_allclose(learner.posterior.covariance(belief), ridge.P, rtol=1e-9)
    np.testing.assert_allclose(belief.theta, lstd(eye, H, reward), atol=1e-7)  # the prior's share
    np.testing.assert_allclose(lstd(eye, H, reward), np.linalg.solve(H, reward), rtol=1e-12)


class Chain(NamedTuple):
    """Episodes of a chain whose every step is one or two states long, each as likely."""

    phi: np.ndarray
    reward: np.ndarray
    next_phi: np.ndarray
    terminated: np.ndarray
    cut: np.ndarray  # where an episode was stopped before its end
    truth: np.ndarray  # V
    discount: float


def chain(episodes: int, horizon: int = 100, states: int = 6, discount: float = 0.95) -> Chain:
    rng, rows = np.random.default_rng(4), []
    gain = rng.normal(size=states + 2)  # reward of the state arrived in
    for _ in range(episodes):
        state = 0
        for t in range(horizon):
            arrived = state + int(rng.integers(1, 3))
            over = arrived >= states
            rows.append(
                (state, gain[min(arrived, states)] * 2, min(arrived, states), over, t == horizon - 1 and not over)
            )
            state = arrived
            if over:
                break
    at, reward, after, terminated, cut = (np.array(column) for column in zip(*rows, strict=True))
    kernel = np.zeros((states, states + 1))
    for state in range(states):
        for jump in (1, 2):
            kernel[state, min(state + jump, states)] += 0.5
    expected = kernel @ gain[: states + 1] * 2
    truth = np.linalg.solve(np.eye(states) - discount * kernel[:, :states], expected)
    eye = np.eye(states + 1)[:, :states]
    return Chain(eye[at], reward, eye[after], terminated, cut, truth, discount)


@pytest.mark.usefixtures("x64")
def test_stochastic_chain_is_biased_and_coloured_noise_is_not() -> None:
    c = chain(400)
    data, R, prior = transitions(c.phi, c.reward, c.next_phi, c.terminated), 0.5, 100.0
    H = c.phi - c.discount * np.where(c.terminated, 0.0, 1.0)[:, None] * c.next_phi
    found = {}
    for coloured in (False, True):
        learner = ktd(v_difference(linear_v), c.discount, R, prior, coloured=coloured)
        found[coloured], _ = scan(learner, learner.init(jnp.zeros(6)), data)

    ridge = residual_ridge(H, c.reward, R * np.eye(len(H)), prior)
    np.testing.assert_allclose(found[False].theta, ridge.mean, rtol=1e-9)
    # With coloured noise it is regression on the returns: Monte Carlo, or LSTD(1).
    returns, following = np.zeros(len(H)), 0.0
    for t in reversed(range(len(H))):
        following = returns[t] = c.reward[t] + (0.0 if c.terminated[t] else c.discount * following)
    monte_carlo = residual_ridge(c.phi, returns, R * np.eye(len(H)), prior)
    np.testing.assert_allclose(found[True].theta, monte_carlo.mean, rtol=1e-9)
    np.testing.assert_allclose(found[True].S @ found[True].S.T, monte_carlo.P, rtol=1e-9, atol=1e-14)

    unbiased = lstd(c.phi, H, c.reward)
    bias, error = (np.max(np.abs(np.asarray(found[k].theta) - unbiased)) for k in (False, True))
    assert np.max(np.abs(unbiased - c.truth)) < 0.25
    assert bias > 0.5
    assert error < 0.05


@pytest.mark.usefixtures("x64")
def test_episodes_that_are_cut_off_share_no_noise() -> None:
    """The noise of a step is uᵢ − γ uᵢ₊₁: B u with a row for each step and columns anew for each episode."""
    c = chain(30, horizon=3)
    assert c.cut.any()
    assert c.terminated.any()
    H = c.phi - c.discount * np.where(c.terminated, 0.0, 1.0)[:, None] * c.next_phi
    B, column = np.zeros((len(H), 2 * len(H))), 0
    for t in range(len(H)):
        B[t, column] = 1.0
        if not c.terminated[t]:
            B[t, column + 1] = -c.discount
        column += 2 if c.cut[t] else 1
    learner = ktd(v_difference(linear_v), c.discount, 0.5, 2.0, coloured=True)
    data = transitions(c.phi, c.reward, c.next_phi, c.terminated)
    belief, _ = scan(learner, learner.init(jnp.zeros(6)), data, jnp.asarray(c.cut))
    expected = residual_ridge(H, c.reward, 0.5 * B @ B.T, 2.0)
    np.testing.assert_allclose(belief.theta, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(learner.posterior.covariance(belief), expected.P, rtol=1e-9, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_uncertainty_shrinks_where_it_has_been() -> None:
    """Features of a line, seen on its left half."""
    centres = np.linspace(0, 1, 11)

    def features(x: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * ((np.asarray(x)[..., None] - centres) / 0.05) ** 2)

    x = np.random.default_rng(5).uniform(0, 0.5, 200)
    learner = ktd(v_difference(linear_v), 0.9, 0.1)
    before = learner.init(jnp.zeros(11))
    data = transitions(features(x), x, features(np.minimum(x + 0.02, 0.5)), np.zeros(200))
    after, _ = scan(learner, before, data)
    places = jnp.asarray(features(np.array([0.1, 0.2, 0.3, 0.8, 0.9, 1.0])))
    was, now = predict(linear_v, before, places), predict(linear_v, after, places)
    assert np.all(now.variance[:3] < 0.2 * was.variance[:3])
    np.testing.assert_allclose(now.variance[3:], was.variance[3:], rtol=1e-3)
    np.testing.assert_allclose(now.variance, learner.posterior.predictive_variance(after, places), rtol=1e-9)
    np.testing.assert_allclose(now.mean, places @ after.theta, rtol=1e-9, atol=1e-12)
    P = learner.posterior.covariance(after)
    np.testing.assert_allclose(learner.posterior.variances(after), jnp.diagonal(P), rtol=1e-12)
    draws = jax.vmap(lambda key: learner.posterior.sample(after, key))(jax.random.split(jax.random.key(0), 10_000))
    np.testing.assert_allclose(np.cov(draws.T), P, atol=0.05)


# --- control ---------------------------------------------------------------------------------------------

STATES, ACTIONS, DISCOUNT = 4, 2, 0.8


class Tables(NamedTuple):
    """M deterministic models of one problem."""

    after: np.ndarray  # [M, S, A] int
    reward: np.ndarray  # [M, S, A]
    terminated: np.ndarray  # [M, S, A]


def problem(models: int) -> Tables:
    rng = np.random.default_rng(10)
    shape = (models, STATES, ACTIONS)
    return Tables(rng.integers(0, STATES, shape), rng.normal(size=shape), rng.uniform(size=shape) < 0.15)


def best_values(tables: Tables, worst: Callable[[np.ndarray], float]) -> np.ndarray:
    """Q* [S, A] by value iteration."""
    q = np.zeros((STATES, ACTIONS))
    for _ in range(400):
        future = DISCOUNT * np.where(tables.terminated, 0.0, np.max(q, axis=1)[tables.after])
        q = np.apply_along_axis(worst, 0, tables.reward + future)
    return q


def sweep(tables: Tables, times: int) -> Transition:
    """Every state and action, again and again, with the answers of all models."""
    pairs = np.array([(s, a) for s in range(STATES) for a in range(ACTIONS)] * times)
    s, a = np.random.default_rng(8).permutation(pairs).T
    eye = np.eye(STATES)
    return Transition(
        obs=jnp.asarray(eye[s]),
        action=jnp.asarray(a, jnp.int32),
        reward=jnp.asarray(tables.reward[:, s, a].T),
        next_obs=jnp.asarray(eye[tables.after[:, s, a].T]),
        terminated=jnp.asarray(tables.terminated[:, s, a].T),
    )


def table_of(theta: jax.Array) -> np.ndarray:
    return np.asarray(theta).reshape(ACTIONS, STATES).T


@pytest.mark.usefixtures("x64")
def test_ktd_q_finds_the_best_values() -> None:
    tables = problem(1)
    assert tables.terminated.any()
    learner = ktd(q_difference(linear_q), DISCOUNT, 1e-6, 10.0, adaptive_noise=0.05)
    belief, _ = scan(learner, learner.init(jnp.zeros(8)), sweep(tables, 100))
    np.testing.assert_allclose(table_of(belief.theta), best_values(tables, lambda v: v[0]), atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_ktd_q_with_a_network() -> None:
    tables = problem(1)
    network = MLP((STATES, 8, ACTIONS), "tanh", (1.0,) * STATES)
    learner = ktd(q_difference(network.apply), DISCOUNT, 1e-4, 0.01)
    theta = network.init(jax.random.key(0)).astype(float)
    belief, _ = scan(learner, learner.init(theta), sweep(tables, 150))
    np.testing.assert_allclose(
        network.apply(belief.theta, jnp.eye(STATES)), best_values(tables, lambda v: v[0]), atol=0.03
    )


@pytest.mark.usefixtures("x64")
def test_ktd_sarsa_evaluates_the_policy_that_acts() -> None:
    tables, policy = problem(1), np.array([1, 0, 0, 1])
    data = sweep(tables, 5)
    following = policy[np.argmax(np.asarray(data.next_obs[:, 0]), axis=1)]
    taken = SarsaTransition(
        **{name: getattr(data, name) for name in ("obs", "action", "reward", "next_obs", "terminated")},
        next_action=jnp.asarray(following, jnp.int32),
    )
    learner = ktd(sarsa_difference(linear_q), DISCOUNT, 1e-3, 1e6)
    belief, _ = scan(learner, learner.init(jnp.zeros(8)), taken)
    kernel = np.zeros((8, 8))
    for s in range(STATES):
        for a in range(ACTIONS):
            if not tables.terminated[0, s, a]:
                after = tables.after[0, s, a]
                kernel[2 * s + a, 2 * after + policy[after]] = 1.0
    expected = np.linalg.solve(np.eye(8) - DISCOUNT * kernel, tables.reward[0].ravel())
    np.testing.assert_allclose(table_of(belief.theta).ravel(), expected, atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_robust_twin_with_one_model_is_the_plain_one() -> None:
    data, settings = sweep(problem(1), 10), (DISCOUNT, 0.1, 10.0, 0.05)
    plain, robust = ktd(q_difference(linear_q), *settings), ktd(robust_difference(linear_q, minimum), *settings)
    start = plain.init(jnp.zeros(8))
    (_, (one, fit)), (_, (other, twin)) = scan(plain, start, data), scan(robust, start, data)
    for a, b in zip(jax.tree.leaves((one, fit)), jax.tree.leaves((other, twin)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "level", "worst"),
    [
        ("minimum", 0.0, np.min),
        ("cvar", 2 / 3, lambda v: np.mean(np.sort(v)[:2])),
        ("contamination", 0.4, lambda v: 0.6 * np.mean(v) + 0.4 * np.min(v)),
    ],
)
@pytest.mark.usefixtures("x64")
def test_robust_twin_finds_the_robust_values(name: str, level: float, worst: Callable[[np.ndarray], float]) -> None:
    tables = problem(3)
    learner = ktd(robust_difference(linear_q, SETS[name].worst_case, level), DISCOUNT, 1e-6, 10.0, 0.05)
    belief, _ = scan(learner, learner.init(jnp.zeros(8)), sweep(tables, 100))
    robust = best_values(tables, worst)
    np.testing.assert_allclose(table_of(belief.theta), robust, atol=1e-9)
    assert np.max(np.abs(robust - best_values(tables, lambda v: v[0]))) > 0.5


# --- the rest --------------------------------------------------------------------------------------------


def one(terminated: bool, next_obs: float) -> Transition:
    arrived = np.full((1, 3), next_obs, np.float32)
    return jax.tree.map(
        lambda leaf: leaf[0], transitions(np.ones((1, 3), np.float32), np.ones(1, np.float32), arrived, [terminated])
    )


@pytest.mark.parametrize("coloured", [False, True])
def test_inactive_updates_change_nothing_and_the_end_has_no_future(coloured: bool) -> None:
    learner = ktd(v_difference(linear_v), 0.9, 0.1, coloured=coloured, adaptive_noise=0.1, process_noise=0.1)
    update = jax.jit(learner.update)
    belief, _ = update(learner.init(jnp.arange(3.0)), one(False, 0.5))
    still, fit = update(belief, one(False, np.nan), active=jnp.asarray(False))
    for a, b in zip(jax.tree.leaves(belief), jax.tree.leaves(still), strict=True):
        assert np.array_equal(a, b)
    assert np.isinf(fit.health.variance)

    ends = [update(belief, one(True, value))[0] for value in (0.0, 100.0)]
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        assert np.array_equal(a, b)
    assert int(ends[0].updates) == 2
    if coloured:  # what follows a terminal state begins anew
        fresh = learner.init(jnp.zeros(3)).memory
        for a, b in zip(jax.tree.leaves(ends[0].memory), jax.tree.leaves(fresh), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(discount=1.5), "discount is 1.5; it must be between 0 and 1"),
        (dict(observation_noise=0.0), "observation_noise is 0; it must be above 0"),
        (dict(adaptive_noise=-0.1), "adaptive_noise is -0.1; it must be at least 0"),
        (dict(process_noise=np.array([0.1, -0.2])), "process_noise is -0.2; it must be at least 0"),
        (dict(kappa=-1.0), "kappa is -1; it must be at least 0"),
        (dict(coloured=True), "coloured is True; it must be False where a maximum over actions is learned, off policy"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DeeprokError) as error:
        ktd(q_difference(linear_q), **{"discount": 0.9, **settings})
    assert str(error.value) == message
