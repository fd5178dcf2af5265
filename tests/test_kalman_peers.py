"""The filter against filterpy's on the same problems; the benchmarks check it against dynamax's too."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.estimators import ekf

with warnings.catch_warnings():
    # Of the peer and of what it imports, here only.
    warnings.simplefilter("ignore", DeprecationWarning)
    from filterpy.kalman import ExtendedKalmanFilter

HIDDEN, INPUTS, T = 3, 2, 25
N = HIDDEN * (INPUTS + 2)


def network(theta: jax.Array, x: jax.Array) -> jax.Array:
    """One hidden layer of tanh units."""
    weights, bias, out = jnp.split(theta, [HIDDEN * INPUTS, HIDDEN * (INPUTS + 1)])
    return out @ jnp.tanh(weights.reshape(HIDDEN, INPUTS) @ x + bias)


class Problem(NamedTuple):
    theta: np.ndarray  # [n]
    P: np.ndarray  # [n, n]
    R: float
    process_noise: float | np.ndarray
    xs: np.ndarray  # [T, B, inputs]
    ys: np.ndarray  # [T, B]

    @property
    def Q(self) -> np.ndarray:
        return np.diag(np.broadcast_to(self.process_noise, N))


def some_problem(batch: int, process_noise: float | np.ndarray) -> Problem:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(N, N))
    xs = rng.normal(size=(T, batch, INPUTS))
    return Problem(
        theta=0.5 * rng.normal(size=N),
        P=root @ root.T / N + np.eye(N),
        R=0.5,
        process_noise=process_noise,
        xs=xs,
        ys=np.sin(2 * xs[..., 0]) + 0.1 * rng.normal(size=(T, batch)),
    )


class Filtered(NamedTuple):
    theta: np.ndarray  # [T, n]
    P: np.ndarray  # [T, n, n]


def ours(problem: Problem, batching: str) -> Filtered:
    estimator = ekf(problem.R, problem.process_noise, problem.P, batching)
    posterior = estimator.posterior
    assert posterior is not None

    @jax.jit
    def run(theta: jax.Array, xs: jax.Array, ys: jax.Array) -> Filtered:
        def step(belief, batch):
            belief, _ = estimator.update(belief, network, *batch)
            return belief, Filtered(estimator.mean(belief), posterior.covariance(belief))

        return jax.lax.scan(step, estimator.init(theta), (xs, ys))[1]

    return run(*map(jnp.asarray, (problem.theta, problem.xs, problem.ys)))


def filterpy(problem: Problem) -> Filtered:
    batch = problem.ys.shape[1]
    values = jax.jit(jax.vmap(network, (None, 0)))
    jacobian = jax.jit(jax.vmap(jax.grad(network), (None, 0)))
    peer = ExtendedKalmanFilter(dim_x=N, dim_z=batch)
    peer.x, peer.P, peer.Q, peer.R = problem.theta.copy(), problem.P.copy(), problem.Q, problem.R * np.eye(batch)
    thetas, covariances = [], []
    for xs, ys in zip(problem.xs, problem.ys, strict=True):
        peer.predict()
        peer.update(ys, lambda x, xs=xs: np.asarray(jacobian(x, xs)), lambda x, xs=xs: np.asarray(values(x, xs)))
        thetas.append(peer.x)
        covariances.append(peer.P)
    return Filtered(np.array(thetas), np.array(covariances))


@pytest.mark.parametrize(
    ("batch", "batching", "process_noise"),
    [
        (1, "averaged", 0.01),
        (4, "joint", 0.0),
        (4, "joint", np.linspace(0.0, 0.05, N)),
    ],
    ids=["scalar", "vector-still", "vector-uneven"],
)
def test_same_filter(x64, batch: int, batching: str, process_noise: float | np.ndarray) -> None:
    problem = some_problem(batch, process_noise)
    found, expected = ours(problem, batching), filterpy(problem)
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.P, expected.P, rtol=1e-10, atol=1e-10)
    assert np.abs(found.theta[-1] - problem.theta).max() > 0.1
