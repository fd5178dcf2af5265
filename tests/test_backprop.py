"""Bayes by Backprop: its parts against closed forms, what it must find, and what every estimator must do."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from scipy import optimize, special, stats

from deeprok.core.errors import DeeprokError
from deeprok.estimators import bayes_by_backprop, gaussian_prior, mixture_prior, predict
from deeprok.estimators.bayes_by_backprop import free_energy, kl_share, sampled_kl
from deeprok.estimators.randomness import key_at
from deeprok.runs import checkpoint

N, R, PRIOR = 3, 0.5, 2.0


def straight(theta: jax.Array, x: jax.Array) -> jax.Array:
    return theta @ x


def bent(theta: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sin(theta @ x) + 0.5 * (theta @ x) ** 2


def data(size: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Inputs that go together, so that the mean field is much narrower than the posterior's own deviations."""
    rng = np.random.default_rng(3)
    xs = rng.normal(size=(size, N)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, 0.7]])
    return xs, xs @ np.array([1.0, -0.7, 0.4]) + np.sqrt(R) * rng.normal(size=size)


def inverse_softplus(deviation: np.ndarray) -> np.ndarray:
    return np.log(np.expm1(deviation))


def signs(n: int) -> np.ndarray:
    """Noise with the moments of a standard normal one up to the third, without chance."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


def leaves_equal(a: Any, b: Any) -> list[bool]:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return [np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs]


# Its parts


def test_priors_equal_scipy(x64) -> None:
    w = np.r_[np.linspace(-0.02, 0.02, 9), np.linspace(-60.0, 60.0, 9)]
    np.testing.assert_allclose(gaussian_prior(0.3)(w), stats.norm.logpdf(w, scale=np.sqrt(0.3)), rtol=1e-12)
    for share, wide, narrow in ((0.25, 1.0, np.exp(-12)), (0.75, 3.0, 0.01)):
        parts = np.stack([stats.norm.logpdf(w, scale=np.sqrt(variance)) for variance in (wide, narrow)])
        expected = special.logsumexp(parts, axis=0, b=[[share], [1 - share]])
        np.testing.assert_allclose(mixture_prior(share, wide, narrow)(w), expected, rtol=1e-12)


@pytest.mark.parametrize("batches", [1, 2, 7, 60])
def test_a_round_of_mini_batches_is_charged_the_whole_divergence(x64, batches: int) -> None:
    rounds = np.arange(3 * batches)
    geometric = np.asarray(jax.jit(kl_share, static_argnums=(0, 1))("geometric", batches, rounds))
    exact = [float(Fraction(2 ** (batches - i), 2**batches - 1)) for i in range(1, batches + 1)]
    np.testing.assert_allclose(geometric, exact * 3, rtol=1e-12)
    np.testing.assert_allclose(geometric.reshape(3, batches).sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(batches * kl_share("uniform", batches, rounds[1]), 1.0, rtol=1e-12)


def closed_kl(theta: jax.Array, rho: jax.Array) -> jax.Array:
    """KL(N(θ, σ²) ‖ N(0, PRIOR)) of independent weights."""
    variance = jax.nn.softplus(rho) ** 2
    return 0.5 * jnp.sum((variance + theta**2) / PRIOR - 1.0 - jnp.log(variance / PRIOR))


def closed_energy(theta: jax.Array, rho: jax.Array, xs: np.ndarray, ys: np.ndarray, share: float) -> jax.Array:
    squares = jnp.sum((ys - xs @ theta) ** 2) + jnp.sum(xs**2 @ jax.nn.softplus(rho) ** 2)
    return squares / (2 * R) + share * closed_kl(theta, rho)


def test_sampled_divergence_is_the_closed_form(x64) -> None:
    theta, rho = jnp.array([0.3, -1.2, 2.0]), jnp.array([-3.0, 0.1, 1.5])
    # Two opposite draws suffice: the prior is quadratic, one weight at a time.
    pair = signs(N)[[0, -1]]

    @jax.jit
    def both(theta: jax.Array, rho: jax.Array) -> tuple[Any, Any]:
        sampled = jax.value_and_grad(lambda *q: sampled_kl(*q, pair, gaussian_prior(PRIOR)), (0, 1))
        return sampled(theta, rho), jax.value_and_grad(closed_kl, (0, 1))(theta, rho)

    for found, expected in zip(*map(jax.tree.leaves, both(theta, rho)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@functools.cache
def slopes(share: float) -> Callable[..., Any]:
    """Gradients of the sampled objective, without chance, and of its closed form."""
    xs, ys = data()

    def sampled(theta: jax.Array, rho: jax.Array) -> jax.Array:
        return free_energy(theta, rho, signs(N), straight, xs, ys, R, share, gaussian_prior(PRIOR))

    closed = functools.partial(closed_energy, xs=xs, ys=ys, share=share)
    return jax.jit(lambda *q: (jax.grad(sampled, (0, 1))(*q), jax.grad(closed, (0, 1))(*q)))


def test_gradient_of_the_objective_is_the_closed_form(x64) -> None:
    found, expected = slopes(0.25)(np.array([0.3, -1.2, 2.0]), np.array([-3.0, 0.1, 1.5]))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def optimum() -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviations of the best independent weights: the posterior's mean, and 1/√Λᵢᵢ of its precision."""
    xs, ys = data()
    mean, covariance = oracles.bayesian_regression(np.zeros(N), PRIOR * np.eye(N), xs, ys, R)
    deviation = 1.0 / np.sqrt(np.diag(np.linalg.inv(covariance)))
    assert np.all(deviation < 0.85 * np.sqrt(np.diag(covariance)))  # so that the two can be told apart
    return mean, deviation


def test_objective_has_its_optimum_at_the_mean_field(x64) -> None:
    mean, deviation = optimum()
    np.testing.assert_allclose(slopes(1.0)(mean, inverse_softplus(deviation))[0], 0.0, atol=1e-10)


# What it finds


def learned(estimator: Any, xs: np.ndarray, ys: np.ndarray, updates: int) -> Any:
    """The belief after updates with mini-batches xs [M, B, n] in turn."""

    @jax.jit
    def run(theta: jax.Array) -> Any:
        def one(belief: Any, t: jax.Array) -> tuple[Any, None]:
            which = t % len(xs)
            return estimator.update(belief, straight, jnp.asarray(xs)[which], jnp.asarray(ys)[which])[0], None

        return jax.lax.scan(one, estimator.init(theta), jnp.arange(updates))[0]

    return run(jnp.zeros(xs.shape[-1]))


@pytest.mark.parametrize(("batches", "reweighting"), [(1, "uniform"), (4, "uniform"), (4, "geometric")])
def test_linear_gaussian_case_ends_at_the_mean_field_optimum(batches: int, reweighting: Any) -> None:
    (mean, deviation), (xs, ys) = optimum(), data()
    estimator = bayes_by_backprop(
        observation_noise=R,
        learning_rate=optax.cosine_decay_schedule(0.03, 6000),
        prior=gaussian_prior(PRIOR),
        samples=16,
        batches=batches,
        reweighting=reweighting,
    )
    belief = learned(estimator, xs.reshape(batches, -1, N), ys.reshape(batches, -1), 6000)
    assert np.max(np.abs(belief.theta - mean) / deviation) < 0.03
    np.testing.assert_allclose(np.sqrt(estimator.posterior.variances(belief)), deviation, rtol=0.03)


def test_mixture_prior_ends_where_quadrature_has_the_optimum() -> None:
    """One weight between the two parts of the prior, whose divergence has no closed form."""
    share, wide, narrow, x, y = 0.5, 1.0, 0.01, 1.0, 0.45
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)

    def energy(q: np.ndarray) -> float:
        w = q[0] + np.exp(q[1]) * nodes
        density = share * stats.norm.pdf(w, scale=np.sqrt(wide)) + (1 - share) * stats.norm.pdf(
            w, scale=np.sqrt(narrow)
        )
        return float(((y - x * w) ** 2 / (2 * R) - np.log(density)) @ weights / weights.sum() - q[1])

    best = optimize.minimize(energy, [0.1, np.log(0.2)], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    assert best.success
    estimator = bayes_by_backprop(
        R, optax.cosine_decay_schedule(0.02, 4000), 0.2, mixture_prior(share, wide, narrow), samples=16
    )
    belief = learned(estimator, np.full((1, 1, 1), x), np.full((1, 1), y), 4000)
    deviation = np.sqrt(estimator.posterior.variances(belief))
    np.testing.assert_allclose(deviation, np.exp(best.x[1]), rtol=0.03)
    assert abs(belief.theta[0] - best.x[0]) < 0.05 * deviation[0]
    assert best.x[0] < 0.8 * y / (1 + R)  # the narrow part pulls further to 0 than the wide one alone


def test_page_runs() -> None:
    page = Path(__file__).parent.parent / "docs" / "algorithms" / "bayes_by_backprop.md"
    names: dict[str, Any] = {}
    exec(page.read_text().split("```python\n")[1].split("```")[0], names)
    assert np.all(names["variance"] > 0)
    assert names["weights"].shape == names["theta"].shape


# As an estimator


ESTIMATOR = bayes_by_backprop(
    R, 0.01, 0.1, mixture_prior(0.5, 1.0, 0.01), samples=2, batches=3, reweighting="geometric"
)


@functools.cache
def compiled() -> Callable[..., Any]:
    return jax.jit(lambda belief, xs, ys, active: ESTIMATOR.update(belief, bent, xs, ys, active))


def single(size: int = 6) -> tuple[jax.Array, jax.Array, jax.Array]:
    xs, ys = data(size)
    return jnp.array([0.5, -0.3, 0.8], jnp.float32), jnp.asarray(xs, jnp.float32), jnp.asarray(ys, jnp.float32)


def test_protocol() -> None:
    theta, xs, ys = single()
    belief = ESTIMATOR.init(theta)
    np.testing.assert_array_equal(ESTIMATOR.mean(belief), theta)
    np.testing.assert_allclose(ESTIMATOR.posterior.variances(belief), 0.01, rtol=1e-5)
    moved, fit = compiled()(belief, xs, ys, True)
    assert jax.tree.structure(moved) == jax.tree.structure(belief)
    for before, after in zip(jax.tree.leaves(belief), jax.tree.leaves(moved), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
    assert np.all(moved.theta != theta)
    assert np.all(moved.rho != belief.rho)
    assert all(leaf.shape == () and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(fit))
    mean, variance = predict(ESTIMATOR, belief, bent, xs)
    np.testing.assert_allclose(fit.loss, 0.5 * np.mean((ys - mean) ** 2), rtol=1e-5)
    np.testing.assert_allclose(fit.health.variance, R + np.min(variance), rtol=1e-5)
    np.testing.assert_allclose(fit.health.consistency, np.mean((ys - mean) ** 2 / (variance + R)), rtol=1e-5)
    np.testing.assert_allclose(fit.health.gain, np.mean(variance / (variance + R)), rtol=1e-5)


def test_updates_are_adams_on_the_sampled_objective(x64) -> None:
    xs, ys = data(6)
    prior, rule = mixture_prior(0.5, 1.0, 0.01), optax.adam(0.01)
    q = (jnp.array([0.5, -0.3, 0.8]), jnp.full(N, inverse_softplus(np.array(0.1))))
    belief, memory, seen = ESTIMATOR.init(q[0]), rule.init(q), []
    update, slope = compiled(), jax.jit(jax.grad(lambda q, noise, share: free_energy(
        *q, noise, bent, xs, ys, R, share, prior
    )))  # fmt: skip
    for t in range(5):
        noise = jax.random.normal(key_at(belief.stream, jnp.int32(t)), (2, N))
        seen.append(noise)
        change, memory = rule.update(slope(q, noise, 2 ** (2 - t % 3) / 7), memory)
        q = optax.apply_updates(q, change)
        belief, _ = update(belief, jnp.asarray(xs), jnp.asarray(ys), True)
        np.testing.assert_allclose(belief.theta, q[0], rtol=1e-10)
        np.testing.assert_allclose(belief.rho, q[1], rtol=1e-10)
    assert len(np.unique(seen)) == 5 * 2 * N  # no noise comes twice
    assert not np.any(ESTIMATOR.init(q[0]).stream == belief.stream)  # nor for other weights


def test_inactive_update_changes_no_bit() -> None:
    theta, xs, ys = single()
    belief, _ = compiled()(ESTIMATOR.init(theta), xs, ys, True)
    still, fit = compiled()(belief, xs, ys, False)
    assert all(leaves_equal(still, belief))
    assert fit.health.variance == np.inf
    moved, _ = compiled()(belief, xs, ys, True)
    assert not any(leaves_equal((moved.theta, moved.rho, moved.updates), (belief.theta, belief.rho, belief.updates)))


def test_belief_from_a_file_goes_on_bit_for_bit(tmp_path: Path) -> None:
    theta, xs, ys = single()
    beliefs = [ESTIMATOR.init(theta)]
    for _ in range(6):
        beliefs.append(compiled()(beliefs[-1], xs, ys, True)[0])
    checkpoint.save(tmp_path / "belief", {"belief": beliefs[3]})
    belief = checkpoint.load(tmp_path / "belief", "belief", beliefs[0])
    for _ in range(3):
        belief, _ = compiled()(belief, xs, ys, True)
    assert all(leaves_equal(belief, beliefs[-1]))


def test_posterior_is_a_normal_distribution_of_independent_weights() -> None:
    theta, xs, ys = single()
    belief, _ = compiled()(ESTIMATOR.init(theta), xs, ys, True)
    posterior = ESTIMATOR.posterior
    draws = np.asarray(
        jax.jit(jax.vmap(posterior.sample, (None, 0)))(belief, jax.random.split(jax.random.key(0), 20_000))
    )
    covariance = np.asarray(posterior.covariance(belief))
    deviation = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(covariance, np.diag(np.log1p(np.exp(np.asarray(belief.rho))) ** 2), rtol=1e-5)
    np.testing.assert_allclose((draws.mean(axis=0) - theta) / deviation, (belief.theta - theta) / deviation, atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T) / np.outer(deviation, deviation), np.eye(N), atol=0.03)
    np.testing.assert_allclose(posterior.predictive_variance(belief, xs), np.diag(xs @ covariance @ xs.T), rtol=1e-5)
    assert posterior.definite(belief)
    for broken in (jax.tree.map(lambda leaf: leaf * np.nan, belief), ESTIMATOR.init(theta * np.inf)):
        assert not posterior.definite(broken)


def test_schedules_count_updates() -> None:
    theta, xs, ys = single()
    falling = bayes_by_backprop(lambda t: 1.0 / (1.0 + t), batches=lambda t: 5.0 + t)
    update, belief = jax.jit(lambda belief: falling.update(belief, bent, xs, ys)), falling.init(theta)
    for t in range(2):
        belief, fit = update(belief)
        assert np.isclose(fit.health.variance, 1.0 / (1.0 + t), rtol=0.2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bayes_by_backprop(0.0), "observation_noise is 0; it must be above 0"),
        (lambda: bayes_by_backprop(initial_deviation=-1.0), "initial_deviation is -1; it must be above 0"),
        (lambda: bayes_by_backprop(samples=0), "samples is 0; it must be at least 1"),
        (lambda: bayes_by_backprop(batches=0.5), "batches is 0.5; it must be at least 1"),
        (
            lambda: bayes_by_backprop(batches=2.5, reweighting="geometric"),
            "batches is 2.5; it must be a whole number if reweighting is geometric",
        ),
        (
            lambda: bayes_by_backprop(batches=lambda t: t, reweighting="geometric"),
            "batches is a schedule; it must be a whole number if reweighting is geometric",
        ),
        (lambda: bayes_by_backprop(reweighting="geometrical"), "did you mean 'geometric'"),  # type: ignore[arg-type]
        (lambda: gaussian_prior(0.0), "variance is 0; it must be above 0"),
        (lambda: mixture_prior(share=1.0), "share is 1; it must be above 0 and below 1"),
        (lambda: mixture_prior(narrow=-1.0), "narrow is -1; it must be above 0"),
        (lambda: mixture_prior(wide=0.1, narrow=0.2), "wide is 0.1; it must be above narrow, which is 0.2"),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DeeprokError, match=message):
        make()
