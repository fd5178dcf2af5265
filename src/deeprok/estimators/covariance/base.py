"""The protocol of a covariance structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Evolution(NamedTuple):
    """The prediction step of the filter: P becomes D P D + Q."""

    scale: jax.Array | None  # [n] the diagonal of D; None for D = I
    noise: jax.Array  # Q: [] or [n] its diagonal, or [n, n]


class Correction(NamedTuple):
    """The update step of the filter for a mini-batch of B observations.

    The covariance becomes P − Wᵀ W with W = A H P, and the precision P⁻¹ + (C H)ᵀ C H.
    """

    H: jax.Array  # [B, n] gradients of the observations, as rows
    HP: jax.Array  # [B, n] H times the predicted covariance
    whitening: jax.Array  # A: [B, B], or [B] its diagonal
    information: jax.Array  # [B, B] C
    active: jax.Array  # [] bool; where it is false nothing changes, bit for bit


def whiten(A: jax.Array, rows: jax.Array) -> jax.Array:
    """A times rows [B, ...], for a matrix A [B, B] or its diagonal [B]."""
    return (A * rows.T).T if A.ndim == 1 else A @ rows


class Covariance(NamedTuple):
    """A structure of P. Its functions take and return the structure's own record, a pytree that stands for P.

    Attributes:
      init: `prior -> P`, from variances [n], or from a matrix [n, n] where `matrices` is true.
      project: `(P, evolution, H) -> H (D P D + Q)`, rows [B, n].
      correct: `(P, evolution, correction) -> P`, after prediction and update.
      times: `(P, H) -> H P`, rows [B, n].
      variances: `P -> [n]`, its diagonal.
      rounding_scale: `(P, prior) -> [n]`, the magnitude of the numbers from which each variance was computed, given the
        prior variances. Rounding errors are proportional to it. It is at least the variance.
      sample: `(P, key) -> [n]`, a sample from N(0, P).
      definite: `P -> []`, whether P is finite and positive definite.
      dense: `P -> [n, n]`.
      matrices: whether the prior covariance and the process noise may be matrices.
    """

    init: Callable[[jax.Array], Any]
    project: Callable[[Any, Evolution, jax.Array], jax.Array]
    correct: Callable[[Any, Evolution, Correction], Any]
    times: Callable[[Any, jax.Array], jax.Array]
    variances: Callable[[Any], jax.Array]
    rounding_scale: Callable[[Any, jax.Array], jax.Array]
    sample: Callable[[Any, jax.Array], jax.Array]
    definite: Callable[[Any], jax.Array]
    dense: Callable[[Any], jax.Array]
    matrices: bool


#: `n -> Covariance`: a structure for any number n of weights.
Structure = Callable[[int], Covariance]


def evolve_rows(times: Callable[[jax.Array], jax.Array], evolution: Evolution, H: jax.Array) -> jax.Array:
    """H (D P D + Q) from `times`, the product with P."""
    scale, noise = evolution
    scaled = times(H) if scale is None else times(H * scale) * scale
    return scaled + (H @ noise if noise.ndim == 2 else H * noise)
