from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats

from deeprok.agents.network import MLP
from deeprok.agents.policy.steps import (
    Steps,
    advantages,
    categorical,
    gaussian,
    make_surrogate,
    natural_step,
    proximal_steps,
    returns_to_go,
    ridge,
    time_features,
)

T, N, D, A = 5, 4, 3, 2
NETWORK = MLP((D, 4, A), "tanh", (1.0,) * D)


@functools.cache
def some_steps(kind: str, seed: int = 0) -> tuple[Any, jax.Array, Steps]:
    """A distribution, weights, and steps that the policy of these weights took."""
    rng = np.random.default_rng(seed)
    distribution = categorical(A) if kind == "categorical" else gaussian(A)
    weights = jnp.asarray(rng.normal(size=NETWORK.num_weights + distribution.deviations) * 0.5)
    n = NETWORK.num_weights
    obs = jnp.asarray(rng.normal(size=(T, N, D)))
    outputs = NETWORK.apply(weights[:n], obs)
    action = distribution.draw(outputs, weights[n:], distribution.noise(jax.random.key(seed), (T, N)))
    share = rng.uniform(size=(T, N)) * (np.arange(T)[:, None] < [5, 3, 1, 4])
    steps = Steps(
        obs=obs,
        action=action,
        outputs=outputs,
        log_density=distribution.log_density(outputs, weights[n:], action),
        advantage=jnp.asarray(rng.normal(size=(T, N))),
        share=jnp.asarray(share / share.sum()),
    )
    return distribution, weights, steps


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_the_gradient_is_reinforce(x64, kind: str) -> None:
    distribution, weights, steps = some_steps(kind)
    surrogate = make_surrogate(NETWORK, distribution)
    found = jax.jit(jax.grad(surrogate.gain))(weights, steps)
    clipped = jax.jit(jax.grad(lambda w: surrogate.clipped(w, steps, 0.2, 0.0)))(weights)
    n = NETWORK.num_weights
    expected = np.zeros(len(weights))
    jacobian = np.asarray(jax.jit(jax.jacobian(NETWORK.apply))(weights[:n], steps.obs))  # [T, N, A, n]
    taken = jax.tree.map(np.asarray, steps)
    for t, i in np.ndindex(T, N):
        J, out = jacobian[t, i], taken.outputs[t, i]
        if kind == "categorical":
            # The score of a softmax: the action taken less what was expected.
            own = J.T @ (np.eye(A)[taken.action[t, i]] - scipy.special.softmax(out))
        else:
            deviation = np.exp(np.asarray(weights[n:]))
            z = (taken.action[t, i] - out) / deviation
            own = np.concatenate([J.T @ (z / deviation), z**2 - 1])
        expected += taken.share[t, i] * taken.advantage[t, i] * own
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(clipped, expected, rtol=1e-9, atol=1e-12)


def test_clipping_takes_away_what_went_too_far(x64) -> None:
    distribution, weights, steps = some_steps("categorical")
    surrogate = make_surrogate(NETWORK, distribution)
    moved = weights + 0.3 * jax.random.normal(jax.random.key(1), weights.shape)
    ratio, share, advantage = (np.asarray(x) for x in (surrogate.ratio(moved, steps), steps.share, steps.advantage))
    assert ratio.min() < 0.9 < 1.1 < ratio.max()
    least = np.minimum(ratio * advantage, np.clip(ratio, 0.9, 1.1) * advantage)
    entropy = scipy.stats.entropy(scipy.special.softmax(NETWORK.apply(moved, steps.obs), axis=-1), axis=-1)
    expected = np.sum(share * (least + 0.5 * entropy))
    assert float(surrogate.clipped(moved, steps, 0.1, 0.5)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_divergence_and_density_are_scipys(x64, kind: str) -> None:
    rng = np.random.default_rng(1)
    old, new = rng.normal(size=(2, 7, A))
    if kind == "categorical":
        distribution, log_old, log_new = categorical(A), jnp.zeros(0), jnp.zeros(0)
        p, q = scipy.special.softmax(old, axis=-1), scipy.special.softmax(new, axis=-1)
        expected = scipy.stats.entropy(p, q, axis=-1)
        action = rng.integers(0, A, 7)
        density = np.log(p[np.arange(7), action])
        entropy = scipy.stats.entropy(p, axis=-1)
    else:
        log_old, log_new = rng.normal(size=(2, A)) * 0.3
        distribution = gaussian(A)
        nodes, mass = np.polynomial.hermite_e.hermegauss(20)  # exact for a quadratic
        mass = mass / mass.sum()
        at = old[..., None] + np.exp(log_old)[:, None] * nodes
        before = scipy.stats.norm.logpdf(at, old[..., None], np.exp(log_old)[:, None])
        after = scipy.stats.norm.logpdf(at, new[..., None], np.exp(log_new)[:, None])
        expected = np.sum((before - after) @ mass, axis=-1)
        action = rng.normal(size=(7, A))
        density = scipy.stats.norm.logpdf(action, old, np.exp(log_old)).sum(axis=-1)
        entropy = np.full(7, scipy.stats.norm.entropy(scale=np.exp(log_old)).sum())
    found = distribution.divergence(jnp.asarray(old), jnp.asarray(log_old), jnp.asarray(new), jnp.asarray(log_new))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    own = distribution.log_density(jnp.asarray(old), jnp.asarray(log_old), jnp.asarray(action))
    np.testing.assert_allclose(own, density, rtol=1e-9)
    np.testing.assert_allclose(distribution.entropy(jnp.asarray(old), jnp.asarray(log_old)), entropy, rtol=1e-9)


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_draws_have_their_distribution(kind: str) -> None:
    outputs = jnp.array([0.3, -0.9])
    count = 20_000
    if kind == "categorical":
        draws = categorical(2).draw(outputs, jnp.zeros(0), categorical(2).noise(jax.random.key(0), (count,)))
        assert float(draws.mean()) == pytest.approx(float(jax.nn.softmax(outputs)[1]), abs=0.01)
    else:
        log_deviation = jnp.log(jnp.array([0.5, 2.0]))
        draws = gaussian(2).draw(outputs, log_deviation, gaussian(2).noise(jax.random.key(0), (count,)))
        np.testing.assert_allclose(draws.mean(axis=0), outputs, atol=0.05)
        np.testing.assert_allclose(draws.std(axis=0), [0.5, 2.0], rtol=0.03)


@pytest.mark.parametrize(("discount", "decay"), [(0.9, 0.8), (0.99, 1.0), (0.95, 0.0)])
def test_advantages_are_the_loops(x64, discount: float, decay: float) -> None:
    rng = np.random.default_rng(2)
    lengths = np.array([1, 4, 9, 9, 6])
    alive = np.arange(9)[:, None] < lengths
    reward, value = rng.normal(size=(2, 9, 5)) * alive + [[[0]], [[0.0]]]
    # What the baseline says of steps that were not taken must not matter.
    value = np.where(alive, value, 100.0)
    found = advantages(jnp.asarray(reward), jnp.asarray(value), jnp.asarray(alive), discount, decay)
    goals = returns_to_go(jnp.asarray(reward), discount)
    for i, length in enumerate(lengths):
        advantage = goal = 0.0
        for t in reversed(range(length)):
            following = value[t + 1, i] if t + 1 < length else 0.0
            delta = reward[t, i] + discount * following - value[t, i]
            advantage = delta + discount * decay * advantage
            goal = reward[t, i] + discount * goal
            assert float(found[t, i]) == pytest.approx(advantage, rel=1e-12)
            assert float(goals[t, i]) == pytest.approx(goal, rel=1e-12)
        assert np.all(found[length:, i] == 0)
    if decay == 1.0:  # telescopes to what came less the baseline
        np.testing.assert_allclose(found, np.where(alive, goals - value, 0.0), rtol=1e-9, atol=1e-12)


def test_the_baseline_is_weighted_least_squares(x64) -> None:
    rng = np.random.default_rng(3)
    obs = jnp.asarray(rng.normal(size=(6, 5, 2)) * [1.0, 30.0])
    x = np.asarray(time_features(obs, (1.0, 10.0)))
    a, b, time = np.asarray(obs[..., 0]), np.clip(np.asarray(obs[..., 1]) / 10, -10, 10), np.linspace(0, 1, 6)[:, None]
    ones = np.ones_like(a)
    expected = [a, b, a * a, a * b, b * b, ones, ones * time, ones * time**2, ones * time**3]
    np.testing.assert_allclose(x, np.stack(expected, axis=-1), rtol=1e-12)
    share, y = rng.uniform(size=(6, 5)), rng.normal(size=(6, 5))
    share[2:, 1] = 0
    share = share / share.sum()
    root = np.sqrt(share).reshape(-1, 1)
    rows = np.concatenate([root * x.reshape(-1, x.shape[-1]), np.sqrt(1e-5) * np.eye(x.shape[-1])])
    labels = np.concatenate([root[:, 0] * y.reshape(-1), np.zeros(x.shape[-1])])
    found = ridge(jnp.asarray(x), jnp.asarray(y), jnp.asarray(share))
    np.testing.assert_allclose(found, np.linalg.lstsq(rows, labels)[0], rtol=1e-6, atol=1e-8)


# A bandit whose logits are the weights: its Fisher matrix is known.
REWARD = np.array([1.0, 0.3, -0.5, 0.2])
LOGITS = np.array([0.1, -0.4, 0.5, 0.0])


def bandit(logits: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.softmax(logits) * REWARD)


def bandit_divergence(logits: jax.Array) -> jax.Array:
    return categorical(4).divergence(jnp.asarray(LOGITS), jnp.zeros(0), logits, jnp.zeros(0))


@jax.jit
def bandit_step(weights: jax.Array, bound: float, damping: float) -> jax.Array:
    return natural_step(bandit, bandit_divergence, weights, bound, damping)


def test_the_natural_step_is_the_dense_one(x64) -> None:
    p = scipy.special.softmax(LOGITS)
    fisher = np.diag(p) - np.outer(p, p) + 1e-3 * np.eye(4)
    slope = p * (REWARD - p @ REWARD)
    direction = np.linalg.solve(fisher, slope)
    bound = 1e-6  # so small that the divergence is the quadratic form
    expected = np.sqrt(2 * bound / (direction @ fisher @ direction)) * direction
    found = bandit_step(jnp.asarray(LOGITS), bound, 1e-3) - LOGITS
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("bound", [1e-4, 1e-2, 1.0])
def test_the_natural_step_keeps_its_bound_and_gains(x64, bound: float) -> None:
    before = jnp.asarray(LOGITS)
    after = bandit_step(before, bound, 1e-5)
    assert 0.1 * bound < float(bandit_divergence(after)) <= bound
    assert float(bandit(after)) > float(bandit(before))


def test_without_a_slope_there_is_no_step(x64) -> None:
    before = jnp.asarray(LOGITS)
    after = natural_step(lambda w: jnp.sum(w) * 0.0, bandit_divergence, before, 0.01)
    np.testing.assert_array_equal(after, before)


def test_natural_steps_solve_the_bandit(x64) -> None:
    step = jax.jit(
        lambda w: natural_step(
            bandit, lambda new: categorical(4).divergence(w, jnp.zeros(0), new, jnp.zeros(0)), w, 0.05
        )
    )
    weights = jnp.asarray(LOGITS)
    for _ in range(30):
        weights = step(weights)
    assert float(bandit(weights)) > 0.99 * REWARD.max()


def test_minibatches_are_whole_trajectories_and_add_up(x64) -> None:
    _, _, steps = some_steps("categorical")
    rule = optax.sgd(0.1)

    def objective(weights: jax.Array, some: Steps) -> jax.Array:
        assert some.share.shape[0] == T
        return jnp.sum(some.share * some.advantage) * weights[0]

    slope = float(jnp.sum(steps.share * steps.advantage))
    for minibatches, epochs in ((1, 1), (2, 3)):
        weights, _ = proximal_steps(
            objective, rule, jnp.zeros(1), rule.init(jnp.zeros(1)), steps, jax.random.key(0), epochs, minibatches
        )
        # Each part stands for the whole, so a pass goes as far as so many steps on the whole.
        assert float(weights[0]) == pytest.approx(0.1 * epochs * minibatches * slope, rel=1e-9)
