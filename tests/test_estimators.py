from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from scipy import optimize, stats

from deeprok.core.errors import DeeprokError
from deeprok.estimators import (
    Estimator,
    Fit,
    Health,
    Prediction,
    block,
    diagonal,
    ekf,
    full,
    gradient,
    low_rank,
    predict,
    stack_outputs,
)

N, B = 5, 4
ESTIMATORS: dict[str, Estimator] = {
    "adam": gradient("adam", 0.01),
    "sgd": gradient("sgd", 0.1),
    "averaged": ekf(0.5, 0.01, 1.0, "averaged"),
    "joint": ekf(0.5, 0.01, 1.0, "joint"),
    "blocks": ekf(0.5, 0.01, 1.0, covariance=block(slice(0, N, 2), slice(1, N, 2))),
    "diagonal": ekf(0.5, 0.01, 1.0, "joint", covariance=diagonal),
    "low_rank": ekf(0.5, 0.01, 1.0, covariance=low_rank(2)),
    "every_option": ekf(0.5, 0.01, 1.0, "joint", 0.9, fading=0.01, variance_cap=1.0, adapt_noise=0.1, iterations=2),
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


@functools.cache
def compiled_update(estimator: Estimator) -> Callable[..., tuple[Any, Fit]]:
    return jax.jit(lambda belief, xs, ys, active: estimator.update(belief, bent, xs, ys, active))


def single(count: int = 1) -> tuple[jax.Array, list[tuple[jax.Array, jax.Array]]]:
    """Weights and mini-batches in single precision."""
    data = [(jnp.asarray(xs, jnp.float32), jnp.asarray(ys, jnp.float32)) for xs, ys in batches(count)]
    return jnp.asarray(theta_of(), jnp.float32), data


@every_estimator
def test_protocol(estimator: Estimator) -> None:
    theta, [(xs, ys)] = single()
    belief = estimator.init(theta)
    np.testing.assert_array_equal(estimator.mean(belief), theta)
    moved, fit = compiled_update(estimator)(belief, xs, ys, True)
    assert jax.tree.structure(moved) == jax.tree.structure(belief)
    assert [leaf.shape for leaf in jax.tree.leaves(moved)] == [leaf.shape for leaf in jax.tree.leaves(belief)]
    assert [leaf.dtype for leaf in jax.tree.leaves(moved)] == [leaf.dtype for leaf in jax.tree.leaves(belief)]
    assert np.all(estimator.mean(moved) != theta)
    values, _ = bent_and_gradient(np.asarray(theta), np.asarray(xs))
    np.testing.assert_allclose(fit.loss, 0.5 * np.mean((ys - values) ** 2), rtol=1e-4)
    assert fit.loss.shape == ()
    if estimator.posterior is None:
        assert fit.health is None
    else:
        assert all(leaf.shape == () and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(fit.health))
        draws = jax.jit(jax.vmap(estimator.posterior.sample, (None, 0)))(moved, jax.random.split(jax.random.key(0)))
        assert draws.shape == (2, N)
        assert not np.any(draws[0] == draws[1])


@every_estimator
def test_an_update_lowers_the_loss(estimator: Estimator) -> None:
    theta, [(xs, ys)] = single()
    belief, losses = estimator.init(theta), []
    for _ in range(30):
        belief, fit = compiled_update(estimator)(belief, xs, ys, True)
        losses.append(float(fit.loss))
    assert losses[-1] < 0.9 * losses[0]


@every_estimator
def test_inactive_update_changes_no_bit(estimator: Estimator) -> None:
    theta, [(xs, ys)] = single()
    update = compiled_update(estimator)
    belief, _ = update(estimator.init(theta), xs, ys, True)
    still, fit = update(belief, xs, ys, False)
    assert all(leaves_equal(still, belief))
    moved, _ = update(belief, xs, ys, True)
    assert not any(leaves_equal(moved.theta, belief.theta))
    if estimator.posterior:
        assert not any(leaves_equal(moved.P, belief.P))
        assert moved.updates == belief.updates + 1
        assert fit.health.variance == np.inf


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


class Seen(NamedTuple):
    """A filter after each of its updates."""

    theta: np.ndarray  # [T, n]
    P: np.ndarray  # [T, n, n]
    observation_noise: np.ndarray  # [T]
    loss: np.ndarray  # [T]
    health: Health  # [T] each


@functools.cache
def compiled_filter(h: Any, options: tuple[tuple[str, Any], ...]) -> Callable[..., Seen]:
    @jax.jit
    def run(settings: dict[str, Any], theta: jax.Array, xs: jax.Array, ys: jax.Array) -> Seen:
        estimator = ekf(**settings, **dict(options))
        posterior = estimator.posterior
        assert posterior is not None

        def step(belief: Any, batch: Any) -> Any:
            belief, fit = estimator.update(belief, h, *batch)
            return belief, Seen(
                belief.theta, posterior.covariance(belief), belief.observation_noise, fit.loss, fit.health
            )

        return jax.lax.scan(step, estimator.init(theta), (xs, ys))[1]

    return run


def filtered(
    data: list[tuple[np.ndarray, np.ndarray]],
    theta: np.ndarray,
    observation_noise: Any,
    process_noise: Any,
    prior_covariance: Any,
    h: Any = None,
    **options: Any,
) -> Seen:
    """Runs a filter over mini-batches of one size; noises that are numbers don't compile it anew."""
    settings = {
        "observation_noise": observation_noise,
        "process_noise": process_noise,
        "prior_covariance": prior_covariance,
    }
    schedules = {name: settings.pop(name) for name in list(settings) if callable(settings[name])}
    run = compiled_filter(h or bent, tuple((options | schedules).items()))
    xs, ys = (np.stack(part) for part in zip(*data, strict=True))
    return jax.tree.map(np.asarray, run(settings, theta, xs, ys))


# The filter as such


@every_batching
@pytest.mark.parametrize("size", [1, 4, 9])
def test_ekf_equals_the_textbook(x64, batching: str, size: int) -> None:
    theta, P, R, process_noise = theta_of(), some_prior(), 0.3, 0.07
    data = batches(6, size=size)
    seen = filtered(data, theta, R, process_noise, P, batching=batching)
    for t, (xs, ys) in enumerate(data):
        values, H = bent_and_gradient(theta, xs)
        theta, P, variances = oracles.FILTERS[batching](theta, P, H, ys - values, R, process_noise)
        np.testing.assert_allclose(seen.theta[t], theta, rtol=1e-10)
        np.testing.assert_allclose(seen.P[t], P, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(seen.health.variance[t], variances.min(), rtol=1e-9)
        np.testing.assert_allclose(seen.loss[t], 0.5 * np.mean((ys - values) ** 2), rtol=1e-10)
    assert set(seen.health.extras) == {"floored"}
    assert not np.any(seen.health.extras["floored"])


def test_learning_rate_scales_the_mean_alone(x64) -> None:
    theta, data = theta_of(), batches(1)
    whole, half = (filtered(data, theta, 0.3, 0.01, some_prior(), learning_rate=rate) for rate in (1.0, 0.5))
    np.testing.assert_allclose(half.theta[0] - theta, 0.5 * (whole.theta[0] - theta), rtol=1e-10)
    np.testing.assert_allclose(half.P, whole.P, rtol=1e-12)


@every_batching
def test_scaling_all_noises_scales_the_covariance_alone(batching: str) -> None:
    scale = 2.0**-8  # a power of 4, so that not even rounding differs
    data = [(xs.astype(np.float32), ys.astype(np.float32)) for xs, ys in batches(6)]
    theta = theta_of().astype(np.float32)
    one, small = (filtered(data, theta, 0.3 * c, 0.01 * c, some_prior() * c, batching=batching) for c in (1.0, scale))
    np.testing.assert_array_equal(small.theta, one.theta)
    np.testing.assert_array_equal(small.P, scale * one.P)


def test_linear_joint_is_bayesian_regression(x64) -> None:
    theta, P, R = theta_of(), some_prior(), 0.2
    data = batches(1, size=7)
    seen = filtered(data, theta, R, 0.0, P, straight, batching="joint")
    mean, covariance = oracles.bayesian_regression(theta, P, *data[0], R)
    np.testing.assert_allclose(seen.theta[-1], mean, rtol=1e-10)
    np.testing.assert_allclose(seen.P[-1], covariance, rtol=1e-10)


@every_batching
def test_linear_one_by_one_is_bayesian_regression(x64, batching: str) -> None:
    theta, P, R = theta_of(), some_prior(), 0.2
    xs, ys = batches(1, size=7)[0]
    data = list(zip(xs[:, None], ys[:, None], strict=True))
    seen = filtered(data, theta, R, 0.0, P, straight, batching=batching)
    mean, covariance = oracles.bayesian_regression(theta, P, xs, ys, R)
    np.testing.assert_allclose(seen.theta[-1], mean, rtol=1e-10)
    np.testing.assert_allclose(seen.P[-1], covariance, rtol=1e-10)


def test_prior_may_be_scalar_vector_or_matrix() -> None:
    def begin(prior: Any) -> Any:
        return ekf(prior_covariance=prior).init(jnp.zeros(N))

    assert all(leaves_equal(begin(0.25), begin(np.full(N, 0.25))))
    assert all(leaves_equal(begin(0.25), begin(0.25 * np.eye(N))))
    uneven = np.arange(1.0, N + 1)
    assert all(leaves_equal(begin(uneven), begin(np.diag(uneven))))
    assert not any(leaves_equal(begin(uneven).P, begin(0.25).P))


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("fading", 1.0, "at least 0 and below 1"),
        ("fading", -0.1, "at least 0 and below 1"),
        ("adapt_noise", 1.5, "between 0 and 1"),
        ("adapt_noise", -0.1, "between 0 and 1"),
        ("noise_share", -0.1, "at least 0"),
        ("iterations", 0, "at least 1"),
    ],
)
def test_refusals(field: str, value: float, allowed: str) -> None:
    with pytest.raises(DeeprokError, match=f"{field} is {value:g}; it must be {allowed}"):
        ekf(**{field: value})


def test_the_noise_is_found_in_one_way() -> None:
    with pytest.raises(DeeprokError, match="noise_share and adapt_noise are both ways to find R; give one of them"):
        ekf(noise_share=0.2, adapt_noise=0.1)


# Evolution noise


def some_noise(n: int = N) -> np.ndarray:
    return np.random.default_rng(5).uniform(0.0, 0.1, n)


falling = optax.exponential_decay(0.05, 2, 0.5)


#: Settings of the evolution: of the estimator, and of the textbook at an update.
EVOLUTIONS: dict[str, tuple[dict[str, Any], Callable[[int], dict[str, Any]]]] = {
    "vector": ({"process_noise": some_noise()}, lambda t: {"process_noise": some_noise()}),
    "matrix": ({"process_noise": 0.1 * some_prior()}, lambda t: {"process_noise": 0.1 * some_prior()}),
    "schedule": ({"process_noise": falling}, lambda t: {"process_noise": float(falling(jnp.int32(t)))}),
    "fading": ({"process_noise": 0.01, "fading": 0.05}, lambda t: {"process_noise": 0.01, "fading": 0.05}),
    "cap": (
        {"process_noise": some_noise(), "variance_cap": 0.7},
        lambda t: {"process_noise": some_noise(), "cap": 0.7},
    ),
    "capped_fading": (
        {"process_noise": some_noise(), "fading": 0.05, "variance_cap": 0.7},
        lambda t: {"process_noise": some_noise(), "fading": 0.05, "cap": 0.7},
    ),
    "capped_matrix": (
        {"process_noise": 0.1 * some_prior(), "fading": 0.05, "variance_cap": 0.7},
        lambda t: {"process_noise": 0.1 * some_prior(), "fading": 0.05, "cap": 0.7},
    ),
}
ODD = (slice(0, N, 2), slice(1, N, 2))
EVOLVING: list[tuple[str, str]] = [
    *(("full", evolution) for evolution in EVOLUTIONS),
    ("blocks", "capped_matrix"),
    ("diagonal", "capped_fading"),
    ("low_rank", "capped_fading"),
]
KEPT = {
    "full": (full, 1.0),
    "blocks": (block(*ODD), oracles.kept_in_blocks(N, ODD)),
    "diagonal": (diagonal, np.eye(N)),
    "low_rank": (low_rank(N), 1.0),
}


@pytest.mark.parametrize(("structure", "evolution"), EVOLVING)
def test_evolution_noise(x64, structure: str, evolution: str) -> None:
    made, keep = KEPT[structure]
    options, textbook = EVOLUTIONS[evolution]
    # Weights 0 and 1 are never seen; the variance of weight 1 begins above the cap.
    theta, prior, R = theta_of(), np.linspace(0.4, 0.69, N), 0.3
    prior[1] = 0.9
    data = [(xs * np.r_[0.0, 0.0, np.ones(N - 2)], ys) for xs, ys in batches(8)]
    options = dict(options)
    noise = options.pop("process_noise")
    seen = filtered(data, theta, R, noise, prior, batching="joint", covariance=made, **options)
    # Of the room below the cap a matrix takes the square root, and so that of its rounding errors.
    tolerance = 1e-7 if evolution == "capped_matrix" else 1e-10
    P, counts = np.diag(prior), []
    for t, (xs, ys) in enumerate(data):
        values, H = bent_and_gradient(theta, xs)
        predicted, capped = oracles.evolved(P, **textbook(t))
        counts.append(capped)
        theta, P, _ = oracles.joint_filter(theta, predicted, H, ys - values, R, 0.0, keep)
        np.testing.assert_allclose(seen.theta[t], theta, rtol=tolerance)
        np.testing.assert_allclose(seen.P[t], P, rtol=tolerance, atol=0.1 * tolerance)
    assert ("capped" in seen.health.extras) == ("variance_cap" in options)
    if "variance_cap" in options:
        np.testing.assert_array_equal(seen.health.extras["capped"], counts)
        variances = np.diagonal(seen.P, axis1=1, axis2=2)
        assert counts[-1] >= 2
        assert np.delete(variances, 1, axis=1).max() <= options["variance_cap"] * (1 + 1e-12)
        np.testing.assert_allclose(variances[-1, 1], 0.9)  # growth is stopped, not reversed
        if evolution != "capped_matrix":  # by its matrix weight 0 is learned of through the others
            np.testing.assert_allclose(variances[-1, 0], options["variance_cap"])
    else:
        assert not np.any(counts)


def test_fading_of_a_low_rank_belief(x64) -> None:
    theta, R, rank, fading = theta_of(), 0.3, 2, 0.05
    data = batches(5)
    seen = filtered(data, theta, R, some_noise(), 1.0, batching="joint", covariance=low_rank(rank), fading=fading)
    belief = oracles.LowRankPrecision(np.ones(N), np.zeros((N, N)))
    for t, (xs, ys) in enumerate(data):
        values, H = bent_and_gradient(theta, xs)
        theta, belief = oracles.low_rank_filter(
            theta, belief, H, ys - values, R, some_noise(), "joint", rank, growth=1 / (1 - fading)
        )
        np.testing.assert_allclose(seen.theta[t], theta, rtol=1e-10)
        np.testing.assert_allclose(seen.P[t], belief.P, rtol=1e-10, atol=1e-12)


# Observation noise


def test_scheduled_observation_noise(x64) -> None:
    theta, P, data = theta_of(), some_prior(), batches(6)
    schedule = optax.linear_schedule(1.0, 0.1, 4)
    seen = filtered(data, theta, schedule, 0.01, P)
    for t, (xs, ys) in enumerate(data):
        R = float(schedule(jnp.int32(t)))
        np.testing.assert_allclose(R, max(0.1, 1.0 - 0.9 * t / 4), rtol=1e-6)  # optax counts in single precision
        values, H = bent_and_gradient(theta, xs)
        theta, P, _ = oracles.averaged_filter(theta, P, H, ys - values, R, 0.01)
        np.testing.assert_allclose(seen.theta[t], theta, rtol=1e-10)
        np.testing.assert_allclose(seen.P[t], P, rtol=1e-10)


@every_batching
def test_estimated_observation_noise(x64, batching: str) -> None:
    theta, P, R, rate, data = theta_of(), some_prior(), 0.5, 0.2, batches(8)
    seen = filtered(data, theta, R, 0.01, P, batching=batching, adapt_noise=rate)
    for t, (xs, ys) in enumerate(data):
        values, H = bent_and_gradient(theta, xs)
        before = theta
        theta, P, _ = oracles.FILTERS[batching](theta, P, H, ys - values, R, 0.01)
        residual = ys - values - H @ (theta - before)
        R = (1 - rate) * R + rate * np.mean(residual**2 + np.einsum("bi,ij,bj->b", H, P, H))
        np.testing.assert_allclose(seen.theta[t], theta, rtol=1e-10)
        np.testing.assert_allclose(seen.observation_noise[t], R, rtol=1e-10)


@every_batching
@pytest.mark.parametrize("first", [1e-3, 100.0])
def test_estimated_observation_noise_finds_the_true_one(x64, batching: str, first: float) -> None:
    rng = np.random.default_rng(0)
    true, noise, T = theta_of(), 0.25, 3000
    xs = rng.normal(size=(T, B, N))
    ys = xs @ true + np.sqrt(noise) * rng.normal(size=(T, B))
    data = list(zip(xs, ys, strict=True))
    seen = filtered(data, np.zeros(N), first, 0.0, 1.0, straight, batching=batching, adapt_noise=0.01)
    assert seen.observation_noise.min() > 0
    # 1,500 · B squared residuals: a standard error of 1.8 %.
    np.testing.assert_allclose(seen.observation_noise[T // 2 :].mean(), noise, rtol=0.06)


@every_batching
def test_noise_that_follows_the_innovations(x64, batching: str) -> None:
    """R is a share of the mean of the first hundred squared innovations, then of their moving average."""
    theta, P, share, data = theta_of(), some_prior(), 0.3, batches(120)
    least = 0.02
    seen = filtered(data, theta, least, 0.01, P, batching=batching, noise_share=share)
    R, followed = 0.0, 0
    for t, (xs, ys) in enumerate(data):
        values, H = bent_and_gradient(theta, xs)
        R += max(1 / (t + 1), 0.01) * (share * np.mean((ys - values) ** 2) - R)
        followed += bool(least < R)
        R = max(R, least)
        theta, P, _ = oracles.FILTERS[batching](theta, P, H, ys - values, R, 0.01)
        np.testing.assert_allclose(seen.theta[t], theta, rtol=1e-9)
        np.testing.assert_allclose(seen.observation_noise[t], R, rtol=1e-9)
    assert followed > 100


def test_noise_that_follows_has_a_least(x64) -> None:
    data, least = batches(3), 1e6
    followed, given = (filtered(data, theta_of(), least, 0.01, 1.0, noise_share=share) for share in (0.5, 0.0))
    np.testing.assert_allclose(followed.theta, given.theta, rtol=1e-12)
    np.testing.assert_allclose(followed.observation_noise, least, rtol=1e-12)


def test_noise_is_estimated_from_where_its_schedule_begins(x64) -> None:
    data = batches(1)
    schedule, number = (
        filtered(data, theta_of(), noise, 0.01, 1.0, adapt_noise=0.1)
        for noise in (optax.linear_schedule(0.75, 0.25, 4), 0.75)
    )
    for a, b in zip(jax.tree.leaves(schedule), jax.tree.leaves(number), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


# The iterated update


@every_batching
def test_iterating_changes_nothing_on_a_linear_model(x64, batching: str) -> None:
    theta, data = theta_of(), batches(4)
    once, often = (
        filtered(data, theta, 0.3, 0.01, some_prior(), straight, batching=batching, iterations=k) for k in (1, 4)
    )
    np.testing.assert_allclose(often.theta, once.theta, rtol=1e-10)
    np.testing.assert_allclose(often.P, once.P, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(often.loss, once.loss, rtol=1e-10)


@every_batching
def test_iterating_is_gauss_newton_from_the_prior(x64, batching: str) -> None:
    theta, P, R, iterations, data = 0.3 * theta_of(), 0.2 * some_prior(), 0.3, 3, batches(3)
    seen = filtered(data, theta, R, 0.01, P, batching=batching, iterations=iterations)
    for t, (xs, ys) in enumerate(data):
        at = theta
        for _ in range(iterations):
            values, H = bent_and_gradient(at, xs)
            at, after, _ = oracles.FILTERS[batching](theta, P, H, ys - values - H @ (theta - at), R, 0.01)
        loss = 0.5 * np.mean((ys - bent_and_gradient(theta, xs)[0]) ** 2)
        theta, P = at, after
        np.testing.assert_allclose(seen.theta[t], theta, rtol=1e-9)
        np.testing.assert_allclose(seen.P[t], P, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(seen.loss[t], loss, rtol=1e-10)


def cube(theta: jax.Array, x: jax.Array) -> jax.Array:
    return (theta @ x) ** 3


def test_iterating_finds_the_most_likely_weights(x64) -> None:
    # One linearisation of θ³ at 1 jumps from 1 past √[3]{20} ≈ 2.7 to 7.
    theta, P, R, y = 1.0, 4.0, 0.1, 20.0

    def loss(at: float) -> float:
        return (y - at**3) ** 2 / (2 * R) + (at - theta) ** 2 / (2 * P)

    best = optimize.minimize_scalar(loss, (2.0, 3.0), tol=1e-12).x
    data = [(np.ones((1, 1)), np.array([y]))]
    once, often = (filtered(data, np.array([theta]), R, 0.0, P, cube, iterations=k).theta[0, 0] for k in (1, 8))
    assert abs(once - best) > 4
    np.testing.assert_allclose(often, best, rtol=1e-6)


# Diagnostics


def drawn(
    batch: int, updates: int, R: float, process_noise: float, n: int = N
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Data as the filter believes them to be made: weights that drift from N(θ₀, I), noisy linear labels."""
    rng = np.random.default_rng(3)
    theta = theta_of(n)
    true = theta + rng.normal(size=n)
    data = []
    for _ in range(updates):
        true = true + np.sqrt(process_noise) * rng.normal(size=n)
        xs = rng.normal(size=(batch, n))
        data.append((xs, xs @ true + np.sqrt(R) * rng.normal(size=batch)))
    return theta, data


@pytest.mark.parametrize(("batching", "batch"), [("averaged", 1), ("joint", B)])
def test_consistency_is_one_where_the_belief_is_right(x64, batching: str, batch: int) -> None:
    R, process_noise, updates = 0.3, 0.01, 1500
    theta, data = drawn(batch, updates, R, process_noise)
    right = filtered(data, theta, R, process_noise, 1.0, straight, batching=batching)
    wrong = filtered(data, theta, R / 4, process_noise, 1.0, straight, batching=batching)
    count = updates * batch
    low, high = stats.chi2.ppf([0.0005, 0.9995], count) / count
    assert low < right.health.consistency.mean() < high
    assert wrong.health.consistency.mean() > 1.3 * high


@every_batching
def test_diagnostics_are_their_formulas(x64, batching: str) -> None:
    theta, P, R, process_noise = theta_of(), some_prior(), 0.3, 0.02
    data = batches(6)
    seen = filtered(data, theta, R, process_noise, P, batching=batching)
    for t, (xs, ys) in enumerate(data):
        values, H = bent_and_gradient(theta, xs)
        e = ys - values
        G = H @ (P + process_noise * np.eye(N)) @ H.T
        if batching == "joint":
            S = G + R * np.eye(B)
            consistency = e @ np.linalg.inv(S) @ e / B
            gain = np.trace(G @ np.linalg.inv(S)) / B
        else:
            S = np.diagonal(G) + R
            consistency, gain = np.mean(e**2 / S), np.mean(np.diagonal(G) / S)
        np.testing.assert_allclose(seen.health.consistency[t], consistency, rtol=1e-10)
        np.testing.assert_allclose(seen.health.gain[t], gain, rtol=1e-10)
        assert 0 < gain < 1
        theta, P, _ = oracles.FILTERS[batching](theta, P, H, e, R, process_noise)


@every_batching
def test_gain_between_nothing_and_all(x64, batching: str) -> None:
    data = batches(1, size=3)
    doubtful, sure = (filtered(data, theta_of(), R, 0.0, 1.0, straight, batching=batching).health for R in (1e6, 1e-6))
    assert 0 < doubtful.gain[0] < 1e-4
    assert 1 - 1e-4 < sure.gain[0] < 1


# What a belief says of h


def test_prediction(x64) -> None:
    theta, data = theta_of(), batches(2)
    (xs, ys), (others, _) = data
    estimator = ekf(0.3, 0.0, some_prior(), "joint")

    @jax.jit
    def run(theta: jax.Array, xs: jax.Array, ys: jax.Array, others: jax.Array) -> Prediction:
        belief, _ = estimator.update(estimator.init(theta), bent, xs, ys)
        return predict(estimator, belief, bent, others)

    prediction = run(theta, xs, ys, others)
    values, H = bent_and_gradient(theta, xs)
    theta, P, _ = oracles.joint_filter(theta, some_prior(), H, ys - values, 0.3, 0.0)
    values, H = bent_and_gradient(theta, others)
    np.testing.assert_allclose(prediction.mean, values, rtol=1e-10)
    np.testing.assert_allclose(prediction.variance, np.einsum("bi,ij,bj->b", H, P, H), rtol=1e-10)
    point = gradient()
    prediction = jax.jit(lambda theta, xs: predict(point, point.init(theta), bent, xs))(theta, others)
    np.testing.assert_allclose(prediction.mean, values, rtol=1e-10)
    np.testing.assert_array_equal(prediction.variance, np.zeros(B))


def test_stacked_outputs_are_multi_output_regression(x64) -> None:
    inputs, outputs, R = 2, 3, 0.2
    n = inputs * outputs
    theta, P = theta_of(n), some_prior(n)
    xs = np.random.default_rng(0).normal(size=(B, inputs))
    ys = np.random.default_rng(1).normal(size=(B, outputs))

    def f(theta: jax.Array, x: jax.Array) -> jax.Array:
        return theta.reshape(outputs, inputs) @ x

    estimator = ekf(R, 0.0, P, "joint")
    assert estimator.posterior is not None

    @jax.jit
    def run(theta: jax.Array, xs: jax.Array, ys: jax.Array) -> tuple[jax.Array, jax.Array, Prediction]:
        h, pairs, labels = stack_outputs(f, xs, ys)
        belief, _ = estimator.update(estimator.init(theta), h, pairs, labels)
        return belief.theta, estimator.posterior.covariance(belief), predict(estimator, belief, h, pairs)

    found, uncertainty, prediction = run(theta, xs, ys)
    # Output i of an input x is the row of the weights that x meets there.
    H = np.array([np.kron(np.eye(outputs)[i], x) for x in xs for i in range(outputs)])
    mean, covariance = oracles.bayesian_regression(theta, P, H, ys.ravel(), R)
    np.testing.assert_allclose(found, mean, rtol=1e-10)
    np.testing.assert_allclose(uncertainty, covariance, rtol=1e-10)
    np.testing.assert_allclose(prediction.mean.reshape(B, outputs), xs @ mean.reshape(outputs, inputs).T, rtol=1e-10)


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
