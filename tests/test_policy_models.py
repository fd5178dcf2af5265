from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from deeprok.agents.policy.sources import (
    Source,
    cut_moments,
    draw,
    log_density,
    posterior,
    seek_worst,
    to_models,
    to_points,
    wide_source,
)

BOX = {"mass": (1.0, 5.0), "length": (0.2, 0.4)}
SOURCES = {
    "inside": ([0.5, 0.3], [0.1, 0.05]),
    "at the sides": ([0.0, 0.95], [0.2, 0.5]),
    "uniform": ([0.5, 0.5], [100.0, 100.0]),
}


draw_many = jax.jit(draw, static_argnums=2)


def source_of(mean: list[float], deviation: list[float]) -> Source:
    return Source(mean=jnp.array(mean), deviation=jnp.array(deviation))


@pytest.mark.parametrize(("mean", "deviation"), SOURCES.values(), ids=SOURCES)
def test_a_source_is_scipys_truncated_normal(mean: list[float], deviation: list[float]) -> None:
    source = source_of(mean, deviation)
    m, s = np.array(mean), np.array(deviation)
    expected = scipy.stats.truncnorm(-m / s, (1 - m) / s, m, s)
    points = draw_many(jax.random.key(0), source, 20_000)
    assert float(points.min()) >= 0
    assert float(points.max()) <= 1
    np.testing.assert_allclose(points.mean(axis=0), expected.mean(), atol=0.01)
    np.testing.assert_allclose(points.std(axis=0), expected.std(), rtol=0.02)
    some = np.asarray(points[:50], float)
    np.testing.assert_allclose(jax.jit(log_density)(source, points[:50]), expected.logpdf(some).sum(axis=1), atol=2e-3)
    moments = jax.jit(cut_moments)(source)
    np.testing.assert_allclose(moments.mean, expected.mean(), atol=1e-3)
    np.testing.assert_allclose(moments.deviation, expected.std(), rtol=1e-3)


def test_points_are_models() -> None:
    points = jnp.array([[0.0, 1.0], [0.25, 0.5]])
    models = to_models(points, BOX)
    np.testing.assert_allclose(models["mass"], [1.0, 2.0])
    np.testing.assert_allclose(models["length"], [0.4, 0.3], rtol=1e-6)
    np.testing.assert_allclose(to_points(models, BOX), points, atol=1e-6)


density = jax.jit(log_density)


def grid_posterior(prior: Source, log_likelihood, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bayes' rule by brute force, on a fine grid over where the mass is."""
    axes = [np.linspace(max(a, 0), min(b, 1), 201) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    points = points.astype(np.float32)
    log = np.asarray(density(prior, points) + log_likelihood(points), float)
    p = np.exp(log - log.max())
    p /= p.sum()
    mean = p @ points
    return mean, np.sqrt(p @ (points - mean) ** 2)


LIKELIHOODS = {
    # truth, deviations of the likelihood along x + y and x − y
    "blunt": ([0.4, 0.6], [0.3, 0.3]),
    "sharp": ([0.8, 0.25], [0.003, 0.003]),
    "correlated": ([0.5, 0.5], [0.02, 0.1]),
    "at a side": ([0.0, 0.5], [0.05, 0.05]),
}


PRIORS = {"uniform": ([0.5, 0.5], [100.0, 100.0]), "normal": ([0.6, 0.4], [0.2, 0.2])}


def ellipse(points: jax.Array, truth: jax.Array, widths: jax.Array) -> jax.Array:
    x = points - truth
    along = jnp.stack([x[:, 0] + x[:, 1], x[:, 0] - x[:, 1]], axis=1) / jnp.sqrt(2.0)
    return -0.5 * jnp.sum((along / widths) ** 2, axis=1)


@jax.jit
def elliptic_posterior(prior: Source, truth: jax.Array, widths: jax.Array, seed: int = 0) -> Source:
    return posterior(prior, lambda points: ellipse(points, truth, widths), jax.random.key(seed), 2000)


@pytest.mark.parametrize(("truth", "widths"), LIKELIHOODS.values(), ids=LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_the_posterior_is_that_of_a_grid(prior, truth: list[float], widths: list[float]) -> None:
    before, at, wide = source_of(*prior), jnp.array(truth), jnp.array(widths)
    found = jax.jit(cut_moments)(elliptic_posterior(before, at, wide))
    reach = 6 * max(widths)
    low, high = np.array(truth) - reach, np.array(truth) + reach
    mean, deviation = grid_posterior(before, lambda points: ellipse(points, at, wide), low, high)
    np.testing.assert_allclose(found.mean, mean, atol=0.15 * deviation.max())
    np.testing.assert_allclose(found.deviation, deviation, rtol=0.15)


def test_what_says_nothing_changes_nothing() -> None:
    source = wide_source(2)
    for seed in range(5):
        source = elliptic_posterior(source, jnp.full(2, 0.5), jnp.full(2, 1e4), seed)
    np.testing.assert_allclose(jax.jit(cut_moments)(source).deviation, 1 / np.sqrt(12), rtol=0.05)
    np.testing.assert_allclose(jax.jit(cut_moments)(source).mean, 0.5, atol=0.05)


@jax.jit
def search(source: Source, signs: jax.Array, keys: jax.Array) -> Source:
    def once(source: Source, key: jax.Array) -> tuple[Source, None]:
        points = draw(key, source, 20)
        return seek_worst(source, points, points @ signs), None

    return jax.lax.scan(once, source, keys)[0]


@pytest.mark.parametrize("corner", [(0, 0), (0, 1), (1, 1)])
def test_the_adversary_finds_the_worst_corner(corner: tuple[int, int]) -> None:
    signs = 1.0 - 2.0 * jnp.array(corner)  # the return grows away from the corner
    found = search(wide_source(2), signs, jax.random.split(jax.random.key(0), 60))
    np.testing.assert_allclose(found.mean, corner, atol=0.1)
    assert float(found.deviation.min()) >= 0.05 - 1e-6
    # When the policy's weakness moves, so does the search.
    for seed in range(3):
        found = search(found, -signs, jax.random.split(jax.random.key(seed), 60))
    np.testing.assert_allclose(found.mean, 1 - np.array(corner), atol=0.1)
