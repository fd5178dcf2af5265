from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest

from deeprok.estimators import Estimator, ekf, gradient

N, B = 5, 4
ESTIMATORS: dict[str, Estimator] = {
    "adam": gradient("adam", 0.01),
    "sgd": gradient("sgd", 0.1),
    "averaged": ekf(0.5, 0.01, 1.0, "averaged"),
    "joint": ekf(0.5, 0.01, 1.0, "joint"),
}
BATCHINGS = ["averaged", "joint"]
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
every_batching = pytest.mark.parametrize("batching", BATCHINGS)


def bent(theta: jax.Array, x: jax.Array) -> jax.Array:
    """A nonlinear observation whose gradient is (cos u + u) x at u = θ·x."""
    u = theta @ x
    return jnp.sin(u) + 0.5 * u**2


def bent_and_gradient(theta: np.ndarray, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u = xs @ theta
    return np.sin(u) + 0.5 * u**2, (np.cos(u) + u)[:, None] * xs


def straight(theta: jax.Array, x: jax.Array) -> jax.Array:
    return theta @ x


def batches(count: int, n: int = N, size: int = B, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(size, n)), rng.normal(size=size)) for _ in range(count)]


def some_prior(n: int = N, seed: int = 1) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(n, n))
    P = root @ root.T / n + 0.3 * np.eye(n)
    return (P + P.T) / 2


def theta_of(n: int = N) -> np.ndarray:
    return np.random.default_rng(2).normal(size=n)


def leaves_equal(a: Any, b: Any) -> list[bool]:
    return [
        x.tobytes() == y.tobytes() for x, y in zip(*(map(np.asarray, jax.tree.leaves(t)) for t in (a, b)), strict=True)
    ]


@every_estimator
def test_protocol(estimator: Estimator) -> None:
    theta = jnp.asarray(theta_of(), jnp.float32)
    xs, ys = (jnp.asarray(a, jnp.float32) for a in batches(1)[0])
    belief = estimator.init(theta)
    np.testing.assert_array_equal(estimator.mean(belief), theta)
    moved, fit = jax.jit(lambda belief, xs, ys: estimator.update(belief, bent, xs, ys))(belief, xs, ys)
    assert jax.tree.structure(moved) == jax.tree.structure(belief)
    assert [leaf.shape for leaf in jax.tree.leaves(moved)] == [leaf.shape for leaf in jax.tree.leaves(belief)]
    assert [leaf.dtype for leaf in jax.tree.leaves(moved)] == [leaf.dtype for leaf in jax.tree.leaves(belief)]
    assert np.all(estimator.mean(moved) != theta)
    values, _ = bent_and_gradient(np.asarray(theta), np.asarray(xs))
    np.testing.assert_allclose(fit.loss, 0.5 * np.mean((ys - values) ** 2), rtol=1e-4)
    assert fit.variance.shape == ()
    draws = [estimator.sample(moved, jax.random.key(k)) for k in range(2)]
    assert draws[0].shape == theta.shape
    if estimator.posterior:
        assert not np.any(draws[0] == draws[1])
    else:
        np.testing.assert_array_equal(draws[0], estimator.mean(moved))
        assert fit.variance == np.inf


@every_estimator
def test_an_update_lowers_the_loss(estimator: Estimator) -> None:
    xs, ys = (jnp.asarray(a, jnp.float32) for a in batches(1)[0])
    belief, losses = estimator.init(jnp.asarray(theta_of(), jnp.float32)), []
    update = jax.jit(lambda belief: estimator.update(belief, bent, xs, ys))
    for _ in range(30):
        belief, fit = update(belief)
        losses.append(float(fit.loss))
    assert losses[-1] < 0.9 * losses[0]


@every_estimator
def test_inactive_update_changes_no_bit(estimator: Estimator) -> None:
    xs, ys = (jnp.asarray(a, jnp.float32) for a in batches(1)[0])
    update = jax.jit(lambda belief, active: estimator.update(belief, bent, xs, ys, active)[0])
    belief = update(estimator.init(jnp.asarray(theta_of(), jnp.float32)), jnp.array(True))
    assert all(leaves_equal(update(belief, jnp.array(False)), belief))
    assert not any(leaves_equal(update(belief, jnp.array(True)), belief))


def test_adam_equals_optax(x64) -> None:
    rule, estimator = optax.adam(0.02), gradient("adam", 0.02)
    theta = jnp.asarray(theta_of())
    memory, belief = rule.init(theta), estimator.init(theta)
    for xs, ys in batches(5):

        def loss(theta, xs=xs, ys=ys):
            return sum((y - bent(theta, jnp.asarray(x))) ** 2 for x, y in zip(xs, ys, strict=True)) / (2 * len(ys))

        change, memory = rule.update(jax.grad(loss)(theta), memory)
        theta = optax.apply_updates(theta, change)
        belief, _ = estimator.update(belief, bent, jnp.asarray(xs), jnp.asarray(ys))
        np.testing.assert_allclose(estimator.mean(belief), theta, rtol=1e-10)


def test_sgd_is_algorithm_1(x64) -> None:
    estimator = gradient("sgd", 0.05)
    theta = theta_of()
    belief = estimator.init(jnp.asarray(theta))
    for xs, ys in batches(5):
        values, H = bent_and_gradient(theta, xs)
        theta = theta + 0.05 * np.mean((ys - values)[:, None] * H, axis=0)
        belief, _ = estimator.update(belief, bent, jnp.asarray(xs), jnp.asarray(ys))
        np.testing.assert_allclose(estimator.mean(belief), theta, rtol=1e-10)


@every_batching
@pytest.mark.parametrize("size", [1, 4, 9])
@pytest.mark.parametrize("process_noise", [0.0, 0.07])
def test_ekf_equals_the_textbook(x64, batching: str, size: int, process_noise: float) -> None:
    theta, P, R = theta_of(), some_prior(), 0.3
    estimator = ekf(R, process_noise, P, batching)
    belief = estimator.init(jnp.asarray(theta))
    update = jax.jit(lambda belief, xs, ys: estimator.update(belief, bent, xs, ys))
    for xs, ys in batches(6, size=size):
        values, H = bent_and_gradient(theta, xs)
        theta, P, variances = oracles.FILTERS[batching](theta, P, H, ys - values, R, process_noise)
        belief, fit = update(belief, jnp.asarray(xs), jnp.asarray(ys))
        np.testing.assert_allclose(belief.theta, theta, rtol=1e-10)
        np.testing.assert_allclose(belief.P, P, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(fit.variance, variances.min(), rtol=1e-9)
        np.testing.assert_allclose(fit.loss, 0.5 * np.mean((ys - values) ** 2), rtol=1e-10)


@every_batching
def test_learning_rate_scales_the_mean_alone(x64, batching: str) -> None:
    theta = theta_of()
    xs, ys = map(jnp.asarray, batches(1)[0])
    full, half = (
        estimator.update(estimator.init(jnp.asarray(theta)), bent, xs, ys)[0]
        for estimator in (ekf(0.3, 0.01, 1.0, batching, rate) for rate in (1.0, 0.5))
    )
    np.testing.assert_allclose(half.theta - theta, 0.5 * (full.theta - theta), rtol=1e-10)
    np.testing.assert_allclose(half.P, full.P, rtol=1e-12)


@every_batching
def test_scaling_all_noises_scales_the_covariance_alone(batching: str) -> None:
    scale = 2.0**-8  # a power of 4, so that not even rounding differs
    beliefs = []
    for c in (1.0, scale):
        estimator = ekf(0.3 * c, 0.01 * c, some_prior() * c, batching)
        belief = estimator.init(jnp.asarray(theta_of(), jnp.float32))
        for xs, ys in batches(6):
            belief, _ = estimator.update(belief, bent, jnp.asarray(xs, jnp.float32), jnp.asarray(ys, jnp.float32))
        beliefs.append(belief)
    np.testing.assert_array_equal(beliefs[1].theta, beliefs[0].theta)
    np.testing.assert_array_equal(beliefs[1].P, scale * beliefs[0].P)


def test_linear_joint_is_bayesian_regression(x64) -> None:
    theta, P, R = theta_of(), some_prior(), 0.2
    xs, ys = batches(1, size=7)[0]
    estimator = ekf(R, 0.0, P, "joint")
    belief, _ = estimator.update(estimator.init(jnp.asarray(theta)), straight, jnp.asarray(xs), jnp.asarray(ys))
    mean, covariance = oracles.bayesian_regression(theta, P, xs, ys, R)
    np.testing.assert_allclose(belief.theta, mean, rtol=1e-10)
    np.testing.assert_allclose(belief.P, covariance, rtol=1e-10)


@every_batching
def test_linear_one_by_one_is_bayesian_regression(x64, batching: str) -> None:
    theta, P, R = theta_of(), some_prior(), 0.2
    xs, ys = batches(1, size=7)[0]
    estimator = ekf(R, 0.0, P, batching)
    belief = estimator.init(jnp.asarray(theta))
    for x, y in zip(xs, ys, strict=True):
        belief, _ = estimator.update(belief, straight, jnp.asarray(x[None]), jnp.asarray(y[None]))
    mean, covariance = oracles.bayesian_regression(theta, P, xs, ys, R)
    np.testing.assert_allclose(belief.theta, mean, rtol=1e-10)
    np.testing.assert_allclose(belief.P, covariance, rtol=1e-10)


@every_batching
def test_prior_may_be_scalar_vector_or_matrix(batching: str) -> None:
    xs, ys = (jnp.asarray(a, jnp.float32) for a in batches(1)[0])
    theta = jnp.asarray(theta_of(), jnp.float32)

    def posterior(prior) -> Any:
        estimator = ekf(0.5, 0.01, prior, batching)
        return estimator.update(estimator.init(theta), bent, xs, ys)[0]

    same = [posterior(prior) for prior in (0.25, np.full(N, 0.25), 0.25 * np.eye(N))]
    assert all(leaves_equal(same[0], same[1]))
    assert all(leaves_equal(same[0], same[2]))
    uneven = np.arange(1.0, N + 1)
    assert all(leaves_equal(posterior(uneven), posterior(np.diag(uneven))))
    assert not any(leaves_equal(same[0], posterior(uneven)))


def test_prior_matrix_is_kept() -> None:
    P = some_prior()
    np.testing.assert_allclose(ekf(prior_covariance=P).init(jnp.zeros(N)).P, P, rtol=1e-6)


@every_batching
def test_covariance_stays_symmetric_and_positive_definite(batching: str) -> None:
    n = 20
    estimator = ekf(0.05, 1e-3, 1.0, batching)
    rng = np.random.default_rng(0)
    xs, ys = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((300, 10, n), (300, 10)))

    @jax.jit
    def run(belief):
        return jax.lax.scan(lambda belief, batch: (estimator.update(belief, bent, *batch)[0], None), belief, (xs, ys))[
            0
        ]

    belief = run(estimator.init(0.1 * jnp.ones(n)))
    assert belief.P.dtype == jnp.float32
    np.testing.assert_array_equal(belief.P, belief.P.T)
    eigenvalues = np.linalg.eigvalsh(np.asarray(belief.P, float))
    assert eigenvalues.min() > 0
    assert eigenvalues.max() < 1.0


@every_batching
def test_samples_have_the_beliefs_mean_and_covariance(batching: str) -> None:
    theta, P = jnp.array([1.0, -2.0, 0.5]), np.array([[4.0, 1.9, 0.0], [1.9, 1.0, 0.3], [0.0, 0.3, 1.0]])
    L = np.linalg.cholesky(P)
    assert np.abs(L.T @ L - P).max() > 0.5  # so that the wrong factor would be seen
    estimator = ekf(prior_covariance=P, batching=batching)
    belief = estimator.init(theta)
    draws = np.asarray(jax.vmap(lambda key: estimator.sample(belief, key))(jax.random.split(jax.random.key(0), 40_000)))
    np.testing.assert_allclose(draws.mean(axis=0), theta, atol=0.04)
    np.testing.assert_allclose(np.cov(draws.T), P, atol=0.12)


@every_estimator
def test_inputs_may_be_any_tree(estimator: Estimator) -> None:
    def h(theta: jax.Array, x: dict[str, jax.Array]) -> jax.Array:
        return theta[x["which"]] * x["size"]

    xs = {"which": jnp.array([0, 2]), "size": jnp.array([1.0, 2.0])}
    fit = jax.jit(lambda theta: estimator.update(estimator.init(theta), h, xs, jnp.ones(2))[0])
    first, second, third = estimator.mean(fit(jnp.zeros(3)))
    assert second == 0
    assert first > 0
    assert third > 0
