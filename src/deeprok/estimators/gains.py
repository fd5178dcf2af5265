"""Kalman gains of a mini-batch: averaged over the samples or joint, and the noise that rounding errors require.

S. Di-Castro Shashua and S. Mannor, "Deep Robust Kalman Filter", 2017, Algorithm 2 and Theorems 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.estimators.covariance import whiten

Batching = Literal["averaged", "joint"]
BATCHINGS: tuple[str, ...] = get_args(Batching)


class Gains(NamedTuple):
    """The update of a mini-batch: θ + (A e) W and P − Wᵀ W, with W = A H P and innovations e."""

    whitening: jax.Array  # A: [B, B], or [B] its diagonal
    information: jax.Array  # [B, B] C: the precision grows by (C H)ᵀ C H
    variance: jax.Array  # [B] innovation variances
    gain: jax.Array  # [] mean Kalman gain in observation space, diag(H P Hᵀ S⁻¹)
    weight: float  # times (A e)²: the mean of the squared innovations over their variances


def averaged_gains(G: jax.Array, R: jax.Array) -> Gains:
    """The mean of the samples' own Kalman steps, as Algorithm 2 is written (lines 8 and 9).

    It minimises the paper's objective for B = 1 only. The covariance falls by the mean of the
    samples' decrements K S Kᵀ, so it stays positive definite (with their sum it would not).

    Args:
      G: [B, B] H P Hᵀ with the predicted covariance P.
      R: [B] observation noise Pₙ of each observation.
    """
    batch = len(R)
    variance = jnp.diagonal(G) + R  # Eq. 16
    scale = 1.0 / jnp.sqrt(batch * variance)  # the gain is K = P q / variance (Eq. 17)
    rest = jnp.eye(batch, dtype=G.dtype) - scale[:, None] * G * scale
    if batch == 1:
        rest = (R / variance)[:, None]  # the same without cancellation
    information = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(rest), jnp.diag(scale), lower=True)
    return Gains(scale, information, variance, jnp.mean(jnp.diagonal(G) / variance), 1.0)


def joint_update(G: jax.Array, R: jax.Array) -> Gains:
    """The Kalman step of the mini-batch as one vector of observations.

    With R = B Pₙ it minimises the objective of Theorems 1 and 2 for any B.

    Args:
      G: [B, B] H P Hᵀ with the predicted covariance P.
      R: [B] observation noise of each observation.
    """
    batch = len(R)
    L = jnp.linalg.cholesky(G + jnp.diag(R))
    # The explicit inverse of the small factor: with W straight from a triangular solve, XLA
    # fails to fuse the n × n update.
    inverse = jax.scipy.linalg.solve_triangular(L, jnp.eye(batch, dtype=G.dtype), lower=True)
    gain = 1.0 - jnp.sum(inverse**2 * R) / batch
    # The squared pivots are the innovation variances of the samples processed one after another.
    return Gains(inverse, jnp.diag(1.0 / jnp.sqrt(R)), jnp.diagonal(L) ** 2, gain, 1.0 / batch)


def posterior_variance(G: jax.Array, gains: Gains) -> jax.Array:
    """The variance [B] of each observation's prediction after the update.

    Args:
      G: [B, B] H P Hᵀ with the predicted covariance P.
      gains: the update.
    """
    return jnp.diagonal(G) - jnp.sum(whiten(gains.whitening, G) ** 2, axis=0)


# A variance is computed as a difference of numbers of the size of P's entries. It is trusted down to this many
# rounding errors of theirs, times √n.
_ROUNDINGS = 4


def inflate_noise(
    G: jax.Array, gains: Callable[[jax.Array, jax.Array], Gains], scale: jax.Array, R: jax.Array, n: int
) -> jax.Array:
    """R [B], raised for observations after which the posterior variance would be below rounding error.

    Args:
      G: [B, B] H P Hᵀ with the predicted covariance P.
      gains: `averaged_gains` or `joint_update`.
      scale: [B] Σ h² m over the weights, with gradients h and the rounding scale m of each weight's variance.
      R: [] observation noise.
      n: number of weights.
    """
    precision = np.finfo(G.dtype)
    variance = jnp.diagonal(G)
    noise = jnp.full_like(variance, R)
    size = jnp.maximum(math.sqrt(n) * scale, variance)
    least = _ROUNDINGS * precision.eps * size
    # The worst case is that all observations are equal: then an update leaves v R / (v + R) of a variance v. The
    # noise `enough` leaves `least`.
    copies = 1 if gains is averaged_gains else len(noise)
    bound = copies * least
    above = jnp.maximum(variance, bound)
    enough = bound * above / jnp.maximum(jnp.maximum(above - bound, precision.eps * above), precision.tiny)
    # A failed factorisation gives NaN, which is no variance above the bound either.
    lost = ~(posterior_variance(G, gains(G, noise)) >= least)
    return jnp.where(lost, jnp.maximum(noise, enough), noise)


def float32_risk(
    observation_noise: float,
    process_noise: float,
    prior_variance: float,
    updates: int,
    weights: int,
    batch_size: int = 1,
    batching: Batching = "averaged",
    squared_gradient: float = 10.0,
) -> bool:
    """Whether `inflate_noise` may have to raise the noise in single precision before training ends.

    It does where the posterior variance along a gradient is below the rounding error of the largest variance of a
    weight. The estimate of the first assumes a direction observed at every update, by √B of the B samples. The second
    is that of a weight that is never observed, with all process noise added. Only mini-batches of B equal samples can
    leave less variance.

    Args:
      observation_noise: R of each observation.
      process_noise: Pᵥ, added to every variance before an update.
      prior_variance: P₀ of each weight.
      updates: number of updates of the run.
      weights: n.
      batch_size: B.
      batching: how the gains of a mini-batch are combined.
      squared_gradient: |∇h|², about the number of units that feed the output.
    """
    alike = math.sqrt(batch_size)
    # An update lowers a variance v by v² / (dilution (v + R)), with R per unit of squared gradient.
    dilution = batch_size / alike if batching == "averaged" else 1.0
    R = observation_noise / squared_gradient / (1.0 if batching == "averaged" else alike)
    added = dilution * process_noise
    steady = (added + math.sqrt(added**2 + 4.0 * added * R)) / 2.0
    falling = 1.0 / (1.0 / prior_variance + updates / (dilution * R))
    before = max(falling, min(steady, prior_variance))
    after = before * (1.0 - before / (dilution * (before + R)))
    largest = prior_variance + process_noise * updates
    return after < _ROUNDINGS * math.sqrt(weights) * float(np.finfo(np.float32).eps) * largest
