"""The extended Kalman filter as a belief N(θ, P) over a network's weights.

S. Di-Castro Shashua and S. Mannor, "Deep Robust Kalman Filter", 2017, Algorithm 2.
S. Singhal and L. Wu, "Training multilayer perceptrons with the extended Kalman algorithm", 1988.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.estimators.base import Estimator, Fit, Observation
from deeprok.types import record

Batching = Literal["averaged", "joint"]
BATCHINGS: tuple[str, ...] = get_args(Batching)


@record
class GaussianBelief:
    """A normal distribution over the weights."""

    theta: jax.Array  # [n] mean
    padded: jax.Array  # [n, width] covariance, and zeros up to a multiple of 16 columns

    @property
    def P(self) -> jax.Array:  # noqa: N802
        """The covariance [n, n], whatever axes stand before."""
        return self.padded[..., : self.theta.shape[-1]]


class Correction(NamedTuple):
    """What a mini-batch changes: θ + step, and P + Pᵥ − WᵀW."""

    step: jax.Array  # [n]
    W: jax.Array  # [B, n]
    variance: jax.Array  # [B] innovation variances


def averaged_gains(H: jax.Array, HP: jax.Array, innovation: jax.Array, R: float | jax.Array) -> Correction:
    """The mean of the samples' own Kalman steps, as Algorithm 2 is written (lines 8 and 9).

    It minimises the paper's objective for B = 1 only. The covariance falls by the mean of the
    samples' decrements K S Kᵀ, which keeps it positive definite (their sum would not).

    Args:
      H: [B, n] gradients of the observations, as rows.
      HP: [B, n] the product with the predicted covariance P + Pᵥ.
      innovation: [B] y − h(θ, x).
      R: observation noise Pₙ of each observation.
    """
    variance = jnp.sum(HP * H, axis=1) + R  # Eq. 16
    batch = innovation.shape[0]
    step = (innovation / variance / batch) @ HP  # mean of K (y − h), K = P q / variance (Eq. 17)
    return Correction(step, HP / jnp.sqrt(batch * variance)[:, None], variance)


def joint_update(H: jax.Array, HP: jax.Array, innovation: jax.Array, R: float | jax.Array) -> Correction:
    """The Kalman step of the mini-batch as one vector of observations.

    With R = B Pₙ it minimises the objective of Theorems 1 and 2 for any B.

    Args:
      H: [B, n] gradients of the observations, as rows.
      HP: [B, n] the product with the predicted covariance P + Pᵥ.
      innovation: [B] y − h(θ, x).
      R: observation noise of each observation.
    """
    identity = jnp.eye(innovation.shape[0], dtype=H.dtype)
    L = jnp.linalg.cholesky(HP @ H.T + R * identity)
    # The explicit inverse of the small factor: with W straight from a triangular solve, XLA
    # fails to fuse the n × n update below.
    inverse = jax.scipy.linalg.solve_triangular(L, identity, lower=True)
    W = inverse @ HP
    # The squared pivots are the innovation variances of the samples taken one after the other.
    return Correction((inverse @ innovation) @ W, W, jnp.diagonal(L) ** 2)


# Rows that begin on cache lines make both passes over P a fifth faster.
_COLUMNS = 16


def _pad(rows: jax.Array) -> jax.Array:
    """Rows [·, n] with zeros up to a multiple of 16 columns."""
    return jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % _COLUMNS)))


def _downdate(P: jax.Array, W: jax.Array, process_noise: float | jax.Array) -> jax.Array:
    """P + process_noise I − WᵀW in one pass over P, symmetric by construction; both are padded."""
    # A chain of rank-one terms becomes one fused loop; as a matrix product it would be two passes.
    n = P.shape[0]
    for w in W:
        P = P - w[:n, None] * w[None, :]
    diagonal = jnp.arange(n)
    return P.at[diagonal, diagonal].add(process_noise)


def ekf(
    observation_noise: float = 1e-3,
    process_noise: float = 0.01,
    prior_covariance: float | np.ndarray = 1.0,
    batching: Batching = "averaged",
    learning_rate: float = 1.0,
) -> Estimator:
    """The extended Kalman filter with a full covariance.

    Args:
      observation_noise: R, the variance of each observation's noise.
      process_noise: Pᵥ, added to every variance before an update.
      prior_covariance: P₀, a scalar or a vector (its diagonal) or a full matrix.
      batching: `averaged` as the paper's algorithm is written, or `joint`.
      learning_rate: α, multiplies the step of the mean; 1 is the filter.
    """
    correct = averaged_gains if batching == "averaged" else joint_update

    def init(theta: jax.Array) -> GaussianBelief:
        prior = jnp.asarray(prior_covariance, theta.dtype)
        n = theta.shape[0]
        P = prior if prior.ndim == 2 else jnp.diag(jnp.broadcast_to(prior, (n,)))
        return GaussianBelief(theta=theta, padded=_pad(P))

    def update(
        belief: GaussianBelief, h: Observation, xs: Any, ys: jax.Array, active: jax.Array | bool = True
    ) -> tuple[GaussianBelief, Fit]:
        # An inactive filter corrects nothing and adds no noise. P is never copied, so the choice is
        # made on what is added to it, not on P.
        active = jnp.asarray(active)
        values, H = jax.vmap(jax.value_and_grad(h), (None, 0))(belief.theta, xs)
        innovation = ys - values
        HP = H @ belief.padded + process_noise * _pad(H)
        correction = correct(_pad(H), HP, innovation, observation_noise)
        step = learning_rate * correction.step[: belief.theta.shape[0]]
        noise = jnp.asarray(process_noise, step.dtype)
        moved = GaussianBelief(
            theta=belief.theta + jnp.where(active, step, 0.0),
            padded=_downdate(belief.padded, jnp.where(active, correction.W, 0.0), jnp.where(active, noise, 0.0)),
        )
        variance = jnp.where(active, jnp.min(correction.variance), jnp.inf)
        return moved, Fit(0.5 * jnp.mean(innovation**2), variance)

    def sample(belief: GaussianBelief, key: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, belief.theta.shape, belief.theta.dtype)
        return belief.theta + jnp.linalg.cholesky(belief.P) @ noise

    return Estimator(init, update, lambda b: b.theta, sample, posterior=True)
