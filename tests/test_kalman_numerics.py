"""Single precision: a belief stays a distribution, whatever it is told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deeprok.estimators import block, diagonal, ekf, float32_risk, full, low_rank
from deeprok.estimators.covariance import BlockDiagonal

N, B, T = 12, 3, 24
STRUCTURES = {
    "full": full,
    "blocks": block(slice(0, 1), slice(1, N, 2), slice(2, N, 2)),
    "diagonal": diagonal,
    "low_rank": low_rank(3),
}
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
every_batching = pytest.mark.parametrize("batching", ["averaged", "joint"])


class Stream(NamedTuple):
    """What a belief is told, and what it was told of its noises."""

    observation_noise: float
    process_noise: float
    prior: float
    active: np.ndarray  # [T] bool
    xs: np.ndarray  # [T, B, n] gradients
    ys: np.ndarray  # [T, B]


class Seen(NamedTuple):
    """Whether all is well after each of T updates."""

    finite: jax.Array  # the mean
    symmetric: jax.Array
    definite: jax.Array
    variance: jax.Array  # the least of any weight
    innovation: jax.Array  # the least innovation variance
    kept: jax.Array  # whether no bit changed
    floored: jax.Array


def straight(theta: jax.Array, x: jax.Array) -> jax.Array:
    return theta @ x


def symmetric(P: Any) -> jax.Array:
    """To the last bit; the diagonal, and a diagonal with directions, are so as they are kept."""
    if not isinstance(P, BlockDiagonal):
        return jnp.bool_(True)
    squares = [group[..., : group.shape[-2]] for group in P.groups]
    return jnp.all(jnp.array([jnp.all(square == square.mT) for square in squares]))


def same(a: Any, b: Any) -> jax.Array:
    return jnp.all(jnp.array([jnp.all(x == y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)]))


@functools.cache
def program(structure: str, batching: str) -> Callable[[Stream], Seen]:
    @jax.jit
    def run(stream: Stream) -> Seen:
        estimator = ekf(
            stream.observation_noise,
            stream.process_noise,
            stream.prior,
            batching,
            covariance=STRUCTURES[structure],
        )
        posterior = estimator.posterior
        assert posterior is not None

        def step(belief: Any, told: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Any, Seen]:
            active, xs, ys = told
            moved, fit = estimator.update(belief, straight, xs, ys, active)
            return moved, Seen(
                finite=jnp.all(jnp.isfinite(moved.theta)),
                symmetric=symmetric(moved.P),
                definite=posterior.definite(moved),
                variance=posterior.variances(moved).min(),
                innovation=fit.health.variance,
                kept=same(belief, moved),
                floored=fit.health.extras["floored"],
            )

        return jax.lax.scan(step, estimator.init(jnp.zeros(N)), (stream.active, stream.xs, stream.ys))[1]

    return lambda stream: jax.tree.map(np.asarray, run(jax.tree.map(np.float32, stream)._replace(active=stream.active)))


#: What the gradients of a mini-batch may be, from normal numbers [B, n] and the stream's own direction [n].
KINDS: list[Callable[[np.ndarray, np.ndarray], np.ndarray]] = [
    lambda fresh, own: fresh,
    lambda fresh, own: np.broadcast_to(own, fresh.shape),
    lambda fresh, own: np.broadcast_to(fresh[0], fresh.shape),
    lambda fresh, own: own + 1e-4 * fresh,
    lambda fresh, own: np.zeros_like(fresh),
    lambda fresh, own: np.eye(N)[np.abs(fresh).argmax(axis=1)],
    lambda fresh, own: fresh * 10.0 ** np.linspace(-4, 4, N),
    lambda fresh, own: 1e4 * fresh,
    lambda fresh, own: 1e-4 * fresh,
]


def make_stream(
    seed: int, kinds: list[int], observation_noise: float, process_noise: float, prior: float, labels: float
) -> Stream:
    rng = np.random.default_rng(seed)
    own = rng.normal(size=N)
    kinds = [kinds[t % len(kinds)] for t in range(T)]
    return Stream(
        observation_noise=observation_noise,
        process_noise=process_noise,
        prior=prior,
        active=rng.random(T) < 0.9,
        xs=np.stack([KINDS[kind](rng.normal(size=(B, N)), own) for kind in kinds]),
        ys=labels * rng.normal(size=(T, B)),
    )


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    prior = 10.0 ** draw(st.integers(-6, 6))
    return make_stream(
        seed=draw(st.integers(0, 10**6)),
        kinds=draw(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=6)),
        # P₀ / R up to 1e12.
        observation_noise=max(1e-12, prior * 10.0 ** -draw(st.integers(0, 12))),
        process_noise=draw(st.sampled_from([0.0, 1e-12, 1e-8, 1e-4, 1e-2, 1.0])),
        prior=prior,
        labels=10.0 ** draw(st.integers(0, 8)),
    )


REPEATED, EVERYTHING = [1], list(range(len(KINDS)))


@pytest.mark.bits
@every_structure
@every_batching
@example(stream=make_stream(0, REPEATED, 1e-12, 0.0, 1.0, 1.0))
@example(stream=make_stream(0, REPEATED, 1e-12, 1.0, 1e-3, 1.0))  # what is added is all there is
@example(stream=make_stream(0, [0], 1e-12, 1e-2, 1.0, 1e8))
@example(stream=make_stream(0, EVERYTHING, 1e-6, 0.0, 1e6, 1e8))
@given(stream=streams())
def test_a_belief_stays_a_distribution(structure: str, batching: str, stream: Stream) -> None:
    seen = program(structure, batching)(stream)
    assert np.all(seen.finite)
    assert np.all(seen.symmetric)
    assert np.all(seen.definite)
    assert np.all(seen.variance > 0)
    assert np.all(seen.innovation > 0)
    np.testing.assert_array_equal(seen.kept, ~stream.active)
    assert np.all(np.isinf(seen.innovation) == ~stream.active)


@pytest.mark.bits
@every_batching
@pytest.mark.parametrize("structure", ["full", "blocks"])
@pytest.mark.parametrize("batch", [1, 7, 40])
def test_covariance_is_symmetric_for_every_batch(batching: str, structure: str, batch: int) -> None:
    # Forty are so many that the covariance's fall is a matrix product; 71 is a multiple of no vector's length.
    n = 71
    kept = {"full": full, "blocks": block(slice(0, 30), slice(30, 60), slice(60, n))}[structure]
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n, n))
    prior = (np.eye(n) + root @ root.T).astype(np.float32)
    prior[0, 1] *= 1 + 1e-7  # as symmetric as a file's digits are
    estimator = ekf(1e-3, 1e-4, prior, batching, covariance=kept, fading=1e-3, variance_cap=100.0)

    @jax.jit
    def run(xs: jax.Array) -> Any:
        def step(belief: Any, x: jax.Array) -> tuple[Any, None]:
            return estimator.update(belief, straight, x, jnp.ones(batch))[0], None

        return jax.lax.scan(step, estimator.init(jnp.zeros(n)), xs)[0]

    belief = run(rng.normal(size=(20, batch, n)).astype(np.float32))
    assert symmetric(belief.P)
    assert estimator.posterior is not None
    assert estimator.posterior.definite(belief)


def test_rounding_is_measured_by_what_a_variance_was() -> None:
    """What subtraction leaves of a large variance keeps that one's rounding errors."""
    prior = jnp.array([1e6, 1.0, 1e-3], jnp.float32)
    structure = full(3)
    fallen = structure.init(jnp.array([1e-2, 2.0, 1e-4], jnp.float32))
    np.testing.assert_array_equal(structure.rounding_scale(fallen, prior), np.float32([1e6, 2.0, 1e-3]))


def test_estimated_noise_is_of_the_last_linearisation(x64: None) -> None:
    def h(theta: Any, x: Any) -> Any:
        return x * jnp.exp(theta[0])

    x, y, R, P, iterations = 2.0, 7.0, 0.3, 0.5, 3
    estimator = ekf(R, 0.0, P, adapt_noise=1.0, iterations=iterations)
    belief, _ = estimator.update(estimator.init(jnp.zeros(1)), h, jnp.array([x]), jnp.array([y]))
    # The iterated filter of the textbook: linearised at its last result, always seen from the prior's mean 0.
    mean = 0.0
    for _ in range(iterations):
        H = x * np.exp(mean)
        innovation = y - x * np.exp(mean) + H * mean
        mean = P * H / (H * P * H + R) * innovation
    residual, left = innovation - H * mean, P - (P * H) ** 2 / (H * P * H + R)
    assert belief.theta[0] == pytest.approx(mean, rel=1e-12)
    assert belief.observation_noise == pytest.approx(residual**2 + H * left * H, rel=1e-12)


def test_directions_not_seen_again_stay_positive() -> None:
    # Half of the space is learned as precisely as can be, then the other; rounding errors add up over thousands of
    # updates. Without process noise nothing else lifts the first half again.
    n, batch, updates = 30, 2, 10_000
    estimator = ekf(1e-12, 0.0, 1.0)
    posterior = estimator.posterior
    assert posterior is not None
    halves = np.random.default_rng(0).normal(size=(2, n // 2, n)).astype(np.float32) / np.sqrt(n)

    @jax.jit
    def run() -> tuple[Any, jax.Array]:
        def step(belief: Any, update: jax.Array) -> tuple[Any, jax.Array]:
            fresh = jax.random.normal(jax.random.fold_in(jax.random.key(0), update), (batch, n // 2))
            xs = fresh @ jnp.where(update < updates // 100, *halves)
            belief, _ = estimator.update(belief, straight, xs, jnp.ones(batch))
            return belief, posterior.definite(belief)

        return jax.lax.scan(step, estimator.init(jnp.zeros(n)), jnp.arange(updates))

    belief, definite = run()
    assert np.all(definite)
    assert posterior.predictive_variance(belief, halves.reshape(n, n)).max() < 1e-4  # it has learned


# What can be said beforehand


def floored(kind: int) -> Callable[[float, float, float], bool]:
    """Whether a filter of given noises is held back within RISK_UPDATES."""
    rng = np.random.default_rng(0)
    own = rng.normal(size=N)
    xs = np.stack([KINDS[kind](rng.normal(size=(1, N)), own) for _ in range(RISK_UPDATES)])
    # All of one length, so that the rule can be told of it.
    xs = (np.sqrt(N) * xs / np.linalg.norm(xs, axis=2, keepdims=True)).astype(np.float32)

    @jax.jit
    def run(R: jax.Array, process_noise: jax.Array, prior: jax.Array) -> jax.Array:
        estimator = ekf(R, process_noise, prior)

        def step(belief: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            belief, fit = estimator.update(belief, straight, x, jnp.zeros(1))
            return belief, fit.health.extras["floored"]

        return jnp.any(jax.lax.scan(step, estimator.init(jnp.zeros(N)), xs)[1] > 0)

    return lambda *noises: bool(run(*map(np.float32, noises)))


RISK_UPDATES = 2000
RISK_NOISES = [
    (R, process_noise, prior)
    for R in 10.0 ** np.arange(-12, 2, 2)
    for process_noise in (0.0, 1e-8, 1e-4, 1e-2)
    for prior in (1e-3, 1.0, 1e3)
]


@pytest.mark.parametrize("kind", [0, 1], ids=["fresh", "repeated"])
def test_what_is_called_safe_is_never_held_back(kind: int) -> None:
    risky, held_back = (
        np.array([judge(*noises) for noises in RISK_NOISES])
        for judge in (
            lambda *noises: float32_risk(*noises, RISK_UPDATES, weights=N, squared_gradient=N),
            floored(kind),
        )
    )
    assert not np.any(held_back & ~risky)
    assert np.sum(~risky) > 20
    if kind == 1:  # the stream that the rule is made for
        assert np.mean(held_back[risky]) > 0.9


TUNED, PAPER = (0.12, 4e-9, 0.004), (1e-3, 0.01, 1.0)


def test_risk_of_the_presets() -> None:
    network = dict(weights=562, batch_size=10)
    assert not float32_risk(*TUNED, 140_000, **network)
    assert not float32_risk(*TUNED, 1_000_000, **network)
    assert not float32_risk(*PAPER, 140_000, **network)
    # The variance of what is never seen has grown to 10,000 by then.
    assert float32_risk(*PAPER, 1_000_000, **network)


@every_batching
def test_no_noise_is_a_risk(batching: str) -> None:
    assert float32_risk(1e-12, 0.0, 1.0, 1000, weights=562, batch_size=10, batching=batching)
    assert float32_risk(1e-12, 0.0, 1.0, 1, weights=1)
