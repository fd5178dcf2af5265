"""Covariances whose memory and time grow linearly with the number of weights: diagonal and low-rank.

P. G. Chang et al., "Low-rank extended Kalman filtering for online learning of neural networks from
streaming data", CoLLAs 2023: the precision as a diagonal plus a few directions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import pytree_dataclass
from deeprok.estimators.covariance.base import Correction, Covariance, Evolution, Structure, evolve_rows
from deeprok.estimators.covariance.columns import change_columns, over_columns, sum_of_squares


@pytree_dataclass
class Diagonal:
    """A diagonal P."""

    variances: jax.Array  # [n]


def diagonal(n: int) -> Covariance:
    """A diagonal covariance: all weights are independent."""
    del n

    def init(prior: jax.Array) -> Diagonal:
        return Diagonal(variances=prior)

    def times(P: Diagonal, H: jax.Array) -> jax.Array:
        return H * P.variances

    def project(P: Diagonal, evolution: Evolution, H: jax.Array) -> jax.Array:
        return evolve_rows(lambda rows: times(P, rows), evolution, H)

    def correct(P: Diagonal, evolution: Evolution, correction: Correction) -> Diagonal:
        scaled = P.variances if evolution.scale is None else P.variances * evolution.scale**2
        new = scaled + evolution.noise - sum_of_squares(correction.whitening, correction.HP)
        return Diagonal(variances=jnp.where(correction.active, new, P.variances))

    def sample(P: Diagonal, key: jax.Array) -> jax.Array:
        return jnp.sqrt(P.variances) * jax.random.normal(key, P.variances.shape, P.variances.dtype)

    def definite(P: Diagonal) -> jax.Array:
        return jnp.all(jnp.isfinite(P.variances) & (P.variances > 0))

    def variances(P: Diagonal) -> jax.Array:
        return P.variances

    def rounding_scale(P: Diagonal, prior: jax.Array) -> jax.Array:
        return P.variances  # an update scales each variance, so rounding errors are relative to it

    def dense(P: Diagonal) -> jax.Array:
        return jnp.diag(P.variances)

    return Covariance(init, project, correct, times, variances, rounding_scale, sample, definite, dense, matrices=False)


@pytree_dataclass
class LowRank:
    """P⁻¹ = diag(precision) + Fᵀ F."""

    precision: jax.Array  # [n]
    factor: jax.Array  # [rank, n] F


def low_rank(rank: int = 10) -> Structure:
    """A precision of a diagonal plus `rank` directions.

    An update adds B directions of information. The strongest `rank` of all rank + B are retained; the others are
    replaced by their diagonal. With rank ≥ n nothing is lost.

    Args:
      rank: number of directions retained.
    """
    if rank < 1:
        raise DeeprokError(f"rank is {rank}; it must be at least 1")
    return lambda n: _low_rank(rank)


def _low_rank(rank: int) -> Covariance:
    def init(prior: jax.Array) -> LowRank:
        return LowRank(precision=1.0 / prior, factor=jnp.zeros((rank, prior.shape[0]), prior.dtype))

    unit = np.eye(rank)

    def inner(P: LowRank) -> jax.Array:
        """The Cholesky factor of I + F diag(precision)⁻¹ Fᵀ."""
        shared = over_columns(lambda F, precision: (F / precision) @ F.T, P.factor, P.precision)
        return jnp.linalg.cholesky(shared + unit.astype(shared.dtype))

    def times(P: LowRank, H: jax.Array) -> jax.Array:
        def products(F: jax.Array, precision: jax.Array, H: jax.Array) -> tuple[jax.Array, jax.Array]:
            weighted = F / precision
            return weighted @ F.T, weighted @ H.T

        # Woodbury: P = D⁻¹ − D⁻¹ Fᵀ (I + F D⁻¹ Fᵀ)⁻¹ F D⁻¹ with the diagonal precision D.
        shared, projected = over_columns(products, P.factor, P.precision, H)
        factor = jnp.linalg.cholesky(shared + unit.astype(shared.dtype))
        solved = jax.scipy.linalg.cho_solve((factor, True), projected)
        return (H - solved.T @ P.factor) / P.precision

    def project(P: LowRank, evolution: Evolution, H: jax.Array) -> jax.Array:
        return evolve_rows(lambda rows: times(P, rows), evolution, H)

    def correct(P: LowRank, evolution: Evolution, correction: Correction) -> LowRank:
        H, active = correction.H, correction.active
        scale = jnp.ones((), H.dtype) if evolution.scale is None else evolution.scale

        def evolve(F: jax.Array, precision: jax.Array, noise: jax.Array, scale: jax.Array) -> tuple[jax.Array, ...]:
            """(D P D + Q)⁻¹ as directions, up to a linear combination, and a diagonal; and by what Q shrank it."""
            precision = precision / scale**2
            shrink = 1.0 / (1.0 + noise * precision)
            return F * (shrink / scale), precision * shrink, shrink

        def products(F: jax.Array, precision: jax.Array, noise: jax.Array, scale: jax.Array, H: jax.Array) -> Any:
            V, _, shrink = evolve(F, precision, noise, scale)
            return (V * (noise / shrink)) @ V.T, V @ V.T, V @ H.T, H @ H.T

        state = (P.factor, P.precision)
        inputs = (evolution.noise, scale, H)
        lost, VV, VH, HH = over_columns(products, *state, *inputs)
        lost = jnp.linalg.cholesky(lost + unit.astype(lost.dtype))
        # The directions of precision after the update are linear combinations of the rows of V and H ...
        mix = jax.scipy.linalg.block_diag(
            jax.scipy.linalg.solve_triangular(lost, unit.astype(lost.dtype), lower=True), correction.information
        )
        # ... rotated such that the strongest come first; a rotation leaves the precision unchanged.
        _, axes = jnp.linalg.eigh(mix @ jnp.block([[VV, VH], [VH.T, HH]]) @ mix.T)
        mix = axes[:, ::-1].T @ mix

        def change(
            F: jax.Array, precision: jax.Array, noise: jax.Array, scale: jax.Array, H: jax.Array
        ) -> tuple[jax.Array, ...]:
            V, evolved, _ = evolve(F, precision, noise, scale)
            rows = mix @ jnp.concatenate([V, H])
            weakest = sum_of_squares(jnp.ones(len(H), H.dtype), rows[rank:])
            return jnp.where(active, rows[:rank], F), jnp.where(active, evolved + weakest, precision)

        factor, precision = change_columns(change, state, inputs)
        return LowRank(precision=precision, factor=factor)

    def variances(P: LowRank) -> jax.Array:
        half = jax.scipy.linalg.solve_triangular(inner(P), P.factor, lower=True)
        return (1.0 - jnp.sum(half**2, axis=0) / P.precision) / P.precision

    def rounding_scale(P: LowRank, prior: jax.Array) -> jax.Array:
        return 1.0 / P.precision

    def sample(P: LowRank, key: jax.Array) -> jax.Array:
        # x ~ N(0, P⁻¹) from the diagonal and from the directions; then P x ~ N(0, P). The directions are known but for
        # their signs, which rounding decides. So x has the root of FᵀF itself, Fᵀ (F Fᵀ)^(-1/2) F, which has none.
        own, shared = jax.random.normal(key, (2, *P.precision.shape), P.precision.dtype)
        gram, along = over_columns(lambda F, shared: (F @ F.T, F @ shared), P.factor, shared)
        sizes, axes = jnp.linalg.eigh(gram)
        seen = sizes > np.finfo(sizes.dtype).eps * rank * sizes[-1]
        weights = axes @ (jnp.where(seen, 1.0 / jnp.sqrt(jnp.where(seen, sizes, 1.0)), 0.0) * (axes.T @ along))
        return times(P, (jnp.sqrt(P.precision) * own + weights @ P.factor)[None])[0]

    def definite(P: LowRank) -> jax.Array:
        finite = jnp.all(jnp.isfinite(P.precision)) & jnp.all(jnp.isfinite(P.factor))
        return finite & jnp.all(P.precision > 0) & jnp.all(jnp.isfinite(inner(P)))

    def dense(P: LowRank) -> jax.Array:
        return jnp.linalg.inv(jnp.diag(P.precision) + P.factor.T @ P.factor)

    return Covariance(init, project, correct, times, variances, rounding_scale, sample, definite, dense, matrices=False)
