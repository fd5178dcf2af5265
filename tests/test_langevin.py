"""Preconditioned SGLD: each update against numpy, its stationary distribution against the exact one, its bank."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from scipy import linalg

from deeprok.core.errors import DeeprokError
from deeprok.estimators import psgld
from deeprok.estimators.randomness import key_at
from deeprok.runs import checkpoint

N, B, R = 3, 4, 0.5
BURN_IN, THINNING, MEMBERS = 7, 3, 4
OPTIONS: dict[str, Any] = dict(
    observation_noise=R, step=2e-3, delay=2.0, decay=0.6, data_size=lambda t: 20.0 + t, prior_variance=1.5,
    smoothing=0.8, damping=0.1, burn_in=BURN_IN, thinning=THINNING, members=MEMBERS,
)  # fmt: skip
UPDATES = 26  # six are kept, of which the bank holds four


def bent(theta: Any, x: Any) -> Any:
    u = theta @ x
    return jnp.sin(u) + 0.5 * u**2


def batches(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, B, N)), rng.normal(size=(count, B))


THETA = np.array([0.5, -0.3, 0.8])


def slope_of(theta: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Mean gradient of the log likelihood of `bent`."""
    u = xs @ theta
    return np.mean(((ys - np.sin(u) - 0.5 * u**2) / R * (np.cos(u) + u))[:, None] * xs, axis=0)


def preconditioner(V: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return 1.0 / (OPTIONS["damping"] + np.sqrt(OPTIONS["smoothing"] * V + (1 - OPTIONS["smoothing"]) * slope**2))


def by_hand(noise: np.ndarray, gamma_term: bool, frozen: bool) -> tuple[np.ndarray, np.ndarray]:
    """θ and V after each update, as the paper's Algorithm 1 says; Γ by finite differences of G."""
    xs, ys = batches(len(noise))
    theta, V, path, squares = THETA, np.zeros(N), [], []
    for t, xi in enumerate(noise):
        epsilon = 2e-3 * (2.0 + t) ** -0.6
        slope = slope_of(theta, xs[t], ys[t])
        adapting = not frozen or t < BURN_IN
        G = preconditioner(V, slope) if adapting else 1.0 / (OPTIONS["damping"] + np.sqrt(V))
        drift = G * ((20.0 + t) * slope - theta / OPTIONS["prior_variance"])
        if gamma_term and adapting:
            for i, e in enumerate(1e-6 * np.eye(N)):
                above, below = (preconditioner(V, slope_of(theta + s * e, xs[t], ys[t]))[i] for s in (1, -1))
                drift[i] += (above - below) / 2e-6
        if adapting:
            V = OPTIONS["smoothing"] * V + (1 - OPTIONS["smoothing"]) * slope**2
        theta = theta + 0.5 * epsilon * drift + np.sqrt(epsilon * G) * xi
        path.append(theta)
        squares.append(V)
    return np.array(path), np.array(squares)


@pytest.mark.parametrize(("gamma_term", "frozen"), [(False, False), (True, False), (True, True)])
def test_updates_and_bank_are_those_of_a_plain_loop(x64, gamma_term: bool, frozen: bool) -> None:
    estimator = psgld(**OPTIONS, gamma_term=gamma_term, frozen=frozen)
    xs, ys = batches(UPDATES)

    @jax.jit
    def run(theta: jax.Array) -> Any:
        def one(belief: Any, batch: Any) -> Any:
            noise = jax.random.normal(key_at(belief.stream, belief.updates), (N,))
            belief, fit = estimator.update(belief, bent, *batch)
            return belief, (noise, belief.theta, belief.V, belief.bank, estimator.mean(belief), fit.loss)

        return jax.lax.scan(one, estimator.init(theta), (xs, ys))[1]

    noise, theta, V, bank, mean, loss = map(np.asarray, run(jnp.asarray(THETA)))
    path, squares = by_hand(noise, gamma_term, frozen)
    tolerance = 1e-6 if gamma_term else 1e-10
    np.testing.assert_allclose(theta, path, rtol=tolerance)
    np.testing.assert_allclose(V, squares, rtol=tolerance)
    assert len(np.unique(noise)) == noise.size
    np.testing.assert_allclose(loss[0], 0.5 * np.mean((ys[0] - [bent(THETA, x) for x in xs[0]]) ** 2), rtol=1e-10)

    ring, kept = np.zeros((MEMBERS, N)), 0
    for t in range(UPDATES):
        if t + 1 > BURN_IN and (t + 1 - BURN_IN) % THINNING == 0:
            ring[kept % MEMBERS] = theta[t]
            kept += 1
        np.testing.assert_array_equal(bank[t], ring)
        expected = ring[: min(kept, MEMBERS)].mean(axis=0) if kept else theta[t]
        np.testing.assert_allclose(mean[t], expected, rtol=1e-12)
    assert kept > MEMBERS


# Where the chain goes


def straight(theta: jax.Array, x: jax.Array) -> jax.Array:
    return theta @ x


class Target(NamedTuple):
    """A linear regression and its exact posterior."""

    xs: np.ndarray
    ys: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


def target() -> Target:
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(10, N)) @ np.array([[1.0, 0.7, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.5]])
    ys = xs @ np.array([1.0, -0.5, 0.2]) + np.sqrt(R) * rng.normal(size=10)
    return Target(xs, ys, *oracles.bayesian_regression(np.zeros(N), np.eye(N), xs, ys, R))


V = np.array([4.0, 1.0, 0.25])
DAMPING = 0.01
STEP = 0.058
G = 1.0 / (DAMPING + np.sqrt(V))


def recursion(step: float) -> np.ndarray:
    """The stationary covariance of θ ← θ − ½ ε G Λ (θ − m) + N(0, ε G)."""
    precision = np.linalg.inv(target().covariance)
    return linalg.solve_discrete_lyapunov(np.eye(N) - 0.5 * step * np.diag(G) @ precision, step * np.diag(G))


def stationary(step: float, chains: int, updates: int, **options: Any) -> np.ndarray:
    """Where chains are at each eighth update, [updates / 8 · chains, n]; they begin with draws of the posterior."""
    xs, ys, mean, covariance = target()
    estimator = psgld(R, step, decay=0.0, data_size=len(ys), damping=DAMPING, members=1, **options)

    @jax.jit
    def run(theta: jax.Array) -> jax.Array:
        def one(belief: Any, _: None) -> Any:
            belief, _ = jax.lax.scan(
                lambda belief, _: (estimator.update(belief, straight, xs, ys)[0], None), belief, None, 8
            )
            return belief, belief.theta

        start = dataclasses.replace(estimator.init(theta), V=jnp.asarray(V))
        return jax.lax.scan(one, start, None, updates // 8)[1]

    draws = np.random.default_rng(2).multivariate_normal(mean, covariance, size=chains)
    return np.asarray(jax.vmap(run)(jnp.asarray(draws)))


def test_frozen_chain_has_the_stationary_moments_of_its_recursion(x64) -> None:
    _, _, mean, covariance = target()
    whiten = np.linalg.inv(np.linalg.cholesky(recursion(STEP)))
    # Along one direction the step is so large that the posterior's own variance is less than half of the chain's.
    assert np.linalg.eigvalsh(whiten @ covariance @ whiten.T)[0] < 0.5
    path = stationary(STEP, chains=600, updates=1600, frozen=True, burn_in=0)[:, 25:].reshape(-1, N)
    np.testing.assert_allclose(whiten @ (path.mean(axis=0) - mean), 0.0, atol=0.04)
    np.testing.assert_allclose(np.cov(whiten @ path.T), np.eye(N), atol=0.05)


def test_error_of_the_stationary_covariance_is_of_the_order_of_the_step() -> None:
    exact = target().covariance
    errors = [np.abs(recursion(step) - exact).max() for step in (2e-3, 1e-3, 5e-4)]
    np.testing.assert_allclose(np.array(errors[:-1]) / errors[1:], 2.0, rtol=0.02)
    # In closed form: (Λ − ε/4 Λ G Λ)⁻¹.
    precision = np.linalg.inv(exact)
    closed = np.linalg.inv(precision - STEP / 4 * precision @ np.diag(G) @ precision)
    np.testing.assert_allclose(recursion(STEP), closed, rtol=1e-10)


def test_bias_of_the_adaptive_chain_is_bounded(x64) -> None:
    """Where gradients are small the chain moves fast, and without all of Γ it is there too seldom: it is too wide."""
    _, _, mean, covariance = target()
    exact = np.sqrt(np.diag(covariance))
    path = stationary(2e-3, chains=400, updates=2400, smoothing=0.99)[:, 100:].reshape(-1, N)
    assert np.max(np.abs(path.mean(axis=0) - mean) / exact) < 0.1
    ratio = path.std(axis=0) / exact
    assert np.all((ratio > 1.0) & (ratio < 1.1)), ratio


def test_page_runs() -> None:
    page = Path(__file__).parent.parent / "docs" / "algorithms" / "psgld.md"
    names: dict[str, Any] = {}
    exec(page.read_text().split("```python\n")[1].split("```")[0], names)
    assert names["estimator"].posterior.definite(names["state"])
    assert names["weights"].shape == names["theta"].shape


# As an estimator


ESTIMATOR = psgld(**OPTIONS)


@functools.cache
def compiled() -> Callable[..., Any]:
    return jax.jit(lambda belief, xs, ys, active: ESTIMATOR.update(belief, bent, xs, ys, active))


def leaves_equal(a: Any, b: Any) -> list[bool]:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return [np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs]


@functools.cache
def beliefs() -> list[Any]:
    """In single precision, before each update and after the last, and what the updates were."""
    found = [ESTIMATOR.init(jnp.asarray(THETA, jnp.float32))]
    for xs, ys in zip(*batches(UPDATES), strict=True):
        found.append(compiled()(found[-1], xs.astype(np.float32), ys.astype(np.float32), True)[0])
    return found


def test_protocol() -> None:
    first, second = beliefs()[:2]
    np.testing.assert_array_equal(ESTIMATOR.mean(first), np.float32(THETA))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for before, after in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
    assert np.all(first.theta != second.theta)
    other = ESTIMATOR.init(second.theta)
    assert not np.any(other.stream == first.stream)  # other weights, other noise


def test_health_takes_the_chain_for_a_draw() -> None:
    belief, (xs, ys) = beliefs()[-1], (part[0].astype(np.float32) for part in batches(1))
    fit = compiled()(belief, xs, ys, True)[1]
    assert all(leaf.shape == () and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(fit))
    theta, bank = np.asarray(belief.theta, float), np.asarray(belief.bank, float)
    u = xs @ theta
    known = (((np.cos(u) + u)[:, None] * xs) @ bank.T).var(axis=1)
    innovation = ys - np.sin(u) - 0.5 * u**2
    np.testing.assert_allclose(fit.health.variance, R + 2 * known.min(), rtol=1e-4)
    np.testing.assert_allclose(fit.health.consistency, np.mean(innovation**2 / (R + 2 * known)), rtol=1e-4)
    np.testing.assert_allclose(fit.health.gain, np.mean(known / (R + known)), rtol=1e-4)


@pytest.mark.parametrize("when", [3, BURN_IN + THINNING - 1, UPDATES])
def test_inactive_update_changes_no_bit(when: int) -> None:
    belief, (xs, ys) = beliefs()[when], (part[0].astype(np.float32) for part in batches(1))
    still, fit = compiled()(belief, xs, ys, False)
    assert all(leaves_equal(still, belief))
    assert fit.health.variance == np.inf


def test_belief_from_a_file_goes_on_bit_for_bit(tmp_path: Path) -> None:
    every, half = beliefs(), 12
    checkpoint.save(tmp_path / "belief", {"belief": every[half]})
    belief = checkpoint.load(tmp_path / "belief", "belief", every[0])
    for xs, ys in zip(*(part[half:].astype(np.float32) for part in batches(UPDATES)), strict=True):
        belief, _ = compiled()(belief, xs, ys, True)
    assert all(leaves_equal(belief, every[-1]))


@pytest.mark.parametrize("kept", [0, 1, 3, MEMBERS])
def test_posterior_is_the_bank(kept: int) -> None:
    belief, posterior = beliefs()[BURN_IN + kept * THINNING], ESTIMATOR.posterior
    members = np.asarray(belief.bank)[:kept] if kept else np.asarray(belief.theta)[None]
    keys = jax.random.split(jax.random.key(0), 400)
    draws = np.asarray(jax.jit(jax.vmap(posterior.sample, (None, 0)))(belief, keys))
    found, counts = np.unique(draws, axis=0, return_counts=True)
    np.testing.assert_array_equal(found, np.unique(members, axis=0))
    assert counts.min() > 0.7 * 400 / max(kept, 1)
    H = np.random.default_rng(0).normal(size=(5, N)).astype(np.float32)
    np.testing.assert_allclose(ESTIMATOR.mean(belief), members.mean(axis=0), rtol=1e-5)
    covariance = np.cov(members.T, bias=True) if len(members) > 1 else np.zeros((N, N))
    size = max(covariance.max(), 1e-9)
    np.testing.assert_allclose(posterior.covariance(belief) / size, covariance / size, atol=1e-4)
    np.testing.assert_allclose(posterior.variances(belief) / size, np.diag(covariance) / size, atol=1e-4)
    np.testing.assert_allclose(
        posterior.predictive_variance(belief, H) / size, np.diag(H @ covariance @ H.T) / size, atol=1e-3
    )
    assert posterior.definite(belief)


def test_belief_that_is_no_number_is_no_distribution() -> None:
    belief = beliefs()[-1]
    for field in ("theta", "V", "bank"):
        broken = dataclasses.replace(belief, **{field: getattr(belief, field) * np.nan})
        assert not ESTIMATOR.posterior.definite(broken)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("observation_noise", 0.0, "above 0"),
        ("step", -1.0, "above 0"),
        ("delay", 0.0, "above 0"),
        ("data_size", 0.0, "above 0"),
        ("prior_variance", 0.0, "above 0"),
        ("damping", 0.0, "above 0"),
        ("decay", -0.5, "at least 0"),
        ("smoothing", 1.0, "at least 0 and below 1"),
        ("burn_in", -1, "at least 0"),
        ("thinning", 0, "at least 1"),
        ("members", 0, "at least 1"),
    ],
)
def test_refusals(field: str, value: float, allowed: str) -> None:
    with pytest.raises(DeeprokError, match=f"{field} is {value:g}; it must be {allowed}"):
        psgld(**{field: value})
