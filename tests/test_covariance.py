"""Each structure of the covariance against the textbook, and against the full one where the maths says they agree."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from deeprok.agents.network import MLP
from deeprok.core.errors import DeeprokError
from deeprok.estimators import block, covariance, diagonal, ekf, full, low_rank
from deeprok.estimators.covariance import blocks, columns

NETWORK = MLP((2, 3, 2), "tanh", (1.0, 1.0))
N, B, T = NETWORK.num_weights, 4, 5


class Case(NamedTuple):
    structure: covariance.Structure
    keep: np.ndarray  # which entries of P it keeps
    rank: int | None = None  # how many directions of precision


def in_blocks(*partition: slice) -> Case:
    return Case(block(*partition), oracles.kept_in_blocks(N, partition))


def directions(rank: int) -> Case:
    return Case(low_rank(rank), np.ones((N, N)), rank)


CASES = {
    "full": Case(full, np.ones((N, N))),
    "layers": in_blocks(*NETWORK.slices),
    "neurons": in_blocks(*NETWORK.neurons),
    "odd": in_blocks(slice(0, 1), slice(N - 1, 8, -1), slice(1, 9, 3), slice(2, 9, 3), slice(3, 9, 3)),
    "diagonal": Case(diagonal, np.eye(N)),
    "rank_3": directions(3),
    "rank_n": directions(N),
    "rank_above_n": directions(N + 3),
}
BATCHINGS = ["averaged", "joint"]
every_case = pytest.mark.parametrize("name", CASES)
every_batching = pytest.mark.parametrize("batching", BATCHINGS)


def bent(theta: jax.Array, x: dict[str, jax.Array]) -> jax.Array:
    """Nonlinear by `bend`; its gradient is (1 + bend (cos u + u)) times the direction, at u = θ · direction."""
    u = theta @ x["direction"]
    return u + x["bend"] * (jnp.sin(u) + 0.5 * u**2)


def bent_and_gradient(theta: np.ndarray, directions: np.ndarray, bend: float) -> tuple[np.ndarray, np.ndarray]:
    u = directions @ theta
    return u + bend * (np.sin(u) + 0.5 * u**2), (1 + bend * (np.cos(u) + u))[:, None] * directions


class Seen(NamedTuple):
    """A belief after an update."""

    theta: jax.Array
    P: jax.Array
    variances: jax.Array
    spread: jax.Array  # [B] of the update's own directions
    definite: jax.Array


class Run(NamedTuple):
    belief: Any  # the last
    seen: Seen  # [T, ...]


def make_program(structure: covariance.Structure, batching: str) -> Callable[..., Run]:
    @jax.jit
    def run(theta: Any, prior: Any, R: Any, process_noise: Any, directions: Any, ys: Any, bend: Any) -> Run:
        estimator = ekf(R, process_noise, prior, batching, covariance=structure)
        posterior = estimator.posterior
        assert posterior is not None

        def step(belief: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[Any, Seen]:
            H, y = batch
            belief, _ = estimator.update(belief, bent, {"direction": H, "bend": jnp.full(len(H), bend)}, y)
            return belief, Seen(
                estimator.mean(belief),
                posterior.covariance(belief),
                posterior.variances(belief),
                posterior.predictive_variance(belief, H),
                posterior.definite(belief),
            )

        return Run(*jax.lax.scan(step, estimator.init(theta), (directions, ys)))

    return run


@functools.cache
def program(name: str, batching: str) -> Callable[..., Run]:
    return make_program(CASES[name].structure, batching)


class Problem(NamedTuple):
    theta: np.ndarray
    prior: np.ndarray
    R: float
    process_noise: np.ndarray
    directions: np.ndarray
    ys: np.ndarray
    bend: float


def some_problem(batch: int = B, n: int = N) -> Problem:
    rng = np.random.default_rng(0)
    return Problem(
        theta=0.3 * rng.normal(size=n),
        prior=rng.uniform(0.2, 1.5, n),
        R=0.3,
        process_noise=rng.uniform(0.0, 0.05, n),
        directions=0.5 * rng.normal(size=(T, batch, n)),
        ys=rng.normal(size=(T, batch)),
        bend=0.7,
    )


def assert_is_the_textbook(seen: Seen, problem: Problem, case: Case, batching: str) -> None:
    theta, P = problem.theta, np.diag(problem.prior)
    precision = oracles.LowRankPrecision(1.0 / problem.prior, np.zeros_like(P))
    for t, (xs, ys) in enumerate(zip(problem.directions, problem.ys, strict=True)):
        values, H = bent_and_gradient(theta, xs, problem.bend)
        if case.rank is None:
            theta, P, _ = oracles.FILTERS[batching](
                theta, P, H, ys - values, problem.R, problem.process_noise, case.keep
            )
        else:
            theta, precision = oracles.low_rank_filter(
                theta, precision, H, ys - values, problem.R, problem.process_noise, batching, case.rank
            )
            P = precision.P
        np.testing.assert_allclose(seen.theta[t], theta, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(seen.P[t], P, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(seen.variances[t], np.diagonal(P), rtol=1e-10)
        np.testing.assert_allclose(seen.spread[t], np.einsum("bi,ij,bj->b", xs, P, xs), rtol=1e-10)
    assert np.all(seen.definite)


@every_case
@every_batching
def test_equals_the_textbook(x64, name: str, batching: str) -> None:
    problem = some_problem()
    assert_is_the_textbook(program(name, batching)(*problem).seen, problem, CASES[name], batching)


@pytest.mark.parametrize(("name", "batching"), [("full", "joint"), ("odd", "averaged"), ("rank_3", "joint")])
def test_what_is_done_for_speed_changes_nothing(x64, monkeypatch, name: str, batching: str) -> None:
    # The sizes at which P is padded, at which its fall is a matrix product and at which long rows are cut into tiles.
    monkeypatch.setattr(blocks, "_LARGE", 4)
    monkeypatch.setattr(blocks, "_CHAIN", 2)
    monkeypatch.setattr(columns, "_TILE", 4)
    problem = some_problem()
    seen = make_program(CASES[name].structure, batching)(*problem).seen
    assert_is_the_textbook(seen, problem, CASES[name], batching)


@every_batching
def test_a_batch_larger_than_the_weights(x64, batching: str) -> None:
    n, batch = 3, 7
    problem, case = some_problem(batch, n), Case(low_rank(2), np.ones((n, n)), 2)
    assert_is_the_textbook(make_program(case.structure, batching)(*problem).seen, problem, case, batching)


# Where the maths says that a structure loses nothing


@pytest.mark.parametrize("name", ["rank_n", "rank_above_n"])
@every_batching
def test_all_directions_are_the_full_covariance(x64, name: str, batching: str) -> None:
    problem = some_problem()
    assert_same(program(name, batching)(*problem).seen, program("full", batching)(*problem).seen)


@pytest.mark.parametrize("name", ["layers", "neurons", "odd", "diagonal"])
@every_batching
def test_gradients_in_one_block_at_a_time_are_the_full_covariance(x64, name: str, batching: str) -> None:
    problem = some_problem()
    # Each sample's gradient is cut down to the block of a weight drawn for it.
    chosen = np.random.default_rng(1).integers(N, size=(T, B))
    problem = problem._replace(directions=problem.directions * CASES[name].keep[chosen])
    assert_same(program(name, batching)(*problem).seen, program("full", batching)(*problem).seen)


@pytest.mark.parametrize("name", ["layers", "neurons", "odd", "diagonal", "rank_3"])
@every_batching
def test_other_gradients_are_not(x64, name: str, batching: str) -> None:
    problem = some_problem()
    seen, whole = program(name, batching)(*problem).seen, program("full", batching)(*problem).seen
    assert np.abs(seen.theta[-1] - whole.theta[-1]).max() > 1e-3


def assert_same(a: Seen, b: Seen) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@every_case
def test_first_step_is_the_full_one(x64, name: str) -> None:
    # From a diagonal prior every structure has the same gain; they differ in what they remember of it.
    problem = some_problem()
    for batching in BATCHINGS:
        first, whole = (program(which, batching)(*problem).seen.theta[0] for which in (name, "full"))
        np.testing.assert_allclose(first, whole, rtol=1e-10)


# Draws


@every_case
def test_samples_have_the_beliefs_mean_and_covariance(x64, name: str) -> None:
    draws = 20_000
    belief, seen = program(name, "joint")(*some_problem())
    posterior = ekf(covariance=CASES[name].structure).posterior
    assert posterior is not None
    sample = jax.jit(jax.vmap(posterior.sample, (None, 0)))
    drawn = np.asarray(sample(belief, jax.random.split(jax.random.key(0), draws)))
    P = np.asarray(seen.P[-1])
    # In coordinates where the covariance is the identity each moment has a known error.
    L = np.linalg.cholesky(P)
    white = np.linalg.solve(L, (drawn - np.asarray(belief.theta)).T)
    np.testing.assert_allclose(white.mean(axis=1), 0.0, atol=4.5 / np.sqrt(draws))
    np.testing.assert_allclose(white @ white.T / draws, np.eye(N), atol=4.5 * np.sqrt(2 / draws))
    if name == "full":  # so that a draw with the factor's transpose would be seen
        assert np.abs(np.linalg.solve(L, np.linalg.solve(L, L.T @ L).T) - np.eye(N)).max() > 0.2


def test_draws_do_not_depend_on_signs_that_mean_nothing(x64) -> None:
    """Nor on a rotation of a low-rank covariance's directions, nor on directions that are still empty."""
    rng = np.random.default_rng(0)
    structure, key = low_rank(4)(N), jax.random.key(3)
    factor = np.concatenate([rng.normal(size=(3, N)), np.zeros((1, N))])
    P = dataclasses.replace(structure.init(jnp.ones(N)), factor=jnp.asarray(factor))
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    turned = dataclasses.replace(P, factor=jnp.asarray(turn @ factor))
    np.testing.assert_allclose(structure.sample(turned, key), structure.sample(P, key), rtol=1e-9, atol=1e-12)
    empty = dataclasses.replace(P, factor=jnp.zeros((4, N)))
    np.testing.assert_allclose(structure.sample(empty, key), jax.random.normal(key, (2, N))[0], rtol=1e-12)


# Priors, size and refusals


@pytest.mark.parametrize("name", ["full", "odd"])
def test_prior_matrix_is_kept_in_blocks(x64, name: str) -> None:
    root = np.random.default_rng(1).normal(size=(N, N))
    P = root @ root.T + np.eye(N)
    estimator = ekf(prior_covariance=P, covariance=CASES[name].structure)
    assert estimator.posterior is not None
    belief = estimator.init(jnp.zeros(N))
    np.testing.assert_allclose(estimator.posterior.covariance(belief), CASES[name].keep * P, rtol=1e-12)


def test_memory() -> None:
    n = 100_000

    def numbers(structure: covariance.Structure) -> int:
        P = jax.eval_shape(ekf(covariance=structure).init, jax.ShapeDtypeStruct((n,), jnp.float32)).P
        return sum(leaf.size for leaf in jax.tree.leaves(P))

    assert numbers(diagonal) == n
    assert numbers(low_rank(10)) == 11 * n
    assert numbers(block(*(slice(i, i + 50) for i in range(0, n, 50)))) == 50 * n


@pytest.mark.parametrize(
    "partition",
    [
        (slice(0, N - 1),),
        (slice(0, 10), slice(9, N)),
        (slice(0, N), slice(0, 1)),
        (),
    ],
)
def test_partition_must_hold_each_weight_once(partition: tuple[slice, ...]) -> None:
    with pytest.raises(DeeprokError, match=f"it must contain each of the {N} weights exactly once"):
        ekf(covariance=block(*partition)).init(jnp.zeros(N))


def test_rank_must_be_positive() -> None:
    with pytest.raises(DeeprokError, match="rank is 0; it must be at least 1"):
        low_rank(0)


@pytest.mark.parametrize("structure", [diagonal, low_rank(2)])
@pytest.mark.parametrize("field", ["prior_covariance", "process_noise"])
def test_matrices_need_blocks(structure: covariance.Structure, field: str) -> None:
    with pytest.raises(DeeprokError, match="matrix"):
        ekf(**{field: np.eye(N)}, covariance=structure).init(jnp.zeros(N))
