"""Full and block-diagonal covariances.

G. V. Puskorius and L. A. Feldkamp, "Neurocontrol of nonlinear dynamical systems with Kalman filter
trained recurrent networks", IEEE Transactions on Neural Networks, 1994: the decoupled filter.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import pytree_dataclass
from deeprok.estimators.covariance.base import Correction, Covariance, Evolution, Structure, evolve_rows, whiten


@pytree_dataclass
class BlockDiagonal:
    """A block-diagonal P; successive blocks of one size are stored as one array."""

    groups: tuple[jax.Array, ...]  # [blocks, size, width], rows padded with zeros


# Rows aligned to cache lines make both passes over a large P a fifth faster. For small blocks the
# padding would cost more than that.
_COLUMNS = 16
_LARGE = 256
#: Up to so many rank-one terms are subtracted in one fused loop over P; more by a matrix product.
_CHAIN = 32


def _batched(part: jax.Array, group: jax.Array) -> jax.Array:
    """Rows [B, blocks, size] times blocks [blocks, size, width]."""
    size, width = group.shape[1:]
    if len(group) == 1:  # a plain product is faster than a batch of one
        return (part[:, 0] @ group[0])[:, None, :size]
    if size == width:  # blocks are symmetric, and the product along their rows is faster
        return jnp.einsum("bkj,kij->bki", part, group)
    return jnp.einsum("bki,kij->bkj", part, group)[..., :size]


def _width(size: int) -> int:
    return size if size < _LARGE else size + -size % _COLUMNS


def block(*partition: slice) -> Structure:
    """A block-diagonal covariance, as in the decoupled filter: weights of different blocks are independent.

    All blocks share one innovation covariance.

    Args:
      partition: slices of θ that contain each weight exactly once; steps are allowed.
    """
    return lambda n: _blocks(n, partition)


def _blocks(n: int, partition: Sequence[slice]) -> Covariance:
    places = np.arange(n)
    members = [places[s] for s in partition]  # views: no memory, however many blocks
    order = np.concatenate([np.zeros(0, int), *members])
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise DeeprokError(
            f"the partition has {len(partition)} slices with {len(order)} weights in all; "
            f"it must contain each of the {n} weights exactly once"
        )
    ordered = np.array_equal(order, np.arange(n))
    inverse = np.argsort(order)
    # Runs of successive blocks of one size: (first weight, number of blocks, size).
    runs: list[tuple[int, int, int]] = []
    for size, same in itertools.groupby(len(m) for m in members):
        first = runs[-1][0] + runs[-1][1] * runs[-1][2] if runs else 0
        runs.append((first, len(list(same)), size))

    def cut(rows: jax.Array) -> list[jax.Array]:
        """Splits rows [..., n] into [..., blocks, size] for each group."""
        rows = rows if ordered else rows[..., order]
        return [rows[..., a : a + k * s].reshape(*rows.shape[:-1], k, s) for a, k, s in runs]

    def join(parts: Sequence[jax.Array]) -> jax.Array:
        rows = jnp.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)
        return rows if ordered else rows[..., inverse]

    def pad(part: jax.Array) -> jax.Array:
        size = part.shape[-1]
        return jnp.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, _width(size) - size)])

    def init(prior: jax.Array) -> BlockDiagonal:
        if prior.ndim == 1:
            return BlockDiagonal(groups=tuple(pad(part[..., None] * jnp.eye(part.shape[-1])) for part in cut(prior)))
        prior = (prior + prior.T) / 2  # the given matrix may be symmetric up to rounding only
        rows = prior if ordered else prior[order][:, order]
        return BlockDiagonal(
            groups=tuple(
                pad(jnp.stack([rows[i : i + s, i : i + s] for i in range(a, a + k * s, s)])) for a, k, s in runs
            )
        )

    def times(P: BlockDiagonal, H: jax.Array) -> jax.Array:
        return join([_batched(part, group) for part, group in zip(cut(H), P.groups, strict=True)])

    def matrix_blocks(noise: jax.Array) -> tuple[jax.Array, ...]:
        return init(noise).groups

    def project(P: BlockDiagonal, evolution: Evolution, H: jax.Array) -> jax.Array:
        scale, noise = evolution
        if noise.ndim < 2:
            return evolve_rows(lambda rows: times(P, rows), evolution, H)
        scaled = times(P, H) if scale is None else times(P, H * scale) * scale
        return scaled + times(BlockDiagonal(groups=matrix_blocks(noise)), H)

    def correct(P: BlockDiagonal, evolution: Evolution, correction: Correction) -> BlockDiagonal:
        # A select between the old and the new P would copy it. So where the update is inactive, the terms are 0.
        active = correction.active
        W = jnp.where(active, whiten(correction.whitening, correction.HP), 0.0)
        noise = jnp.where(active, evolution.noise, 0.0)
        scales = None if evolution.scale is None else cut(jnp.where(active, evolution.scale, 1.0))
        added = matrix_blocks(noise) if noise.ndim == 2 else None
        variance_noise = cut(jnp.broadcast_to(jnp.diagonal(noise) if noise.ndim == 2 else noise, W.shape[1:]))
        groups = []
        for i, (group, part) in enumerate(zip(P.groups, cut(W), strict=True)):
            size, wide = part.shape[-1], pad(part)
            if scales is not None:
                both = scales[i][:, :, None] * pad(scales[i])[:, None, :]
                group = group * both  # P times the scales one after the other would not stay symmetric
            # Rounding errors accumulate, also along directions that are not observed again. Add back one ulp
            # per update to a variance that falls, so that rounding can't make P indefinite.
            rounding = np.finfo(group.dtype).eps * jnp.diagonal(group, axis1=-2, axis2=-1)
            least = jnp.minimum(jnp.sum(part**2, axis=0), rounding)
            if len(part) <= _CHAIN:
                # A chain of rank-one terms is fused into one loop; a matrix product would be two passes over P.
                # Both factors come from the padded rows: with one consumer XLA would fuse the padding, which is slow.
                for w in wide:
                    group = group - w[:, :size, None] * w[:, None, :]
            else:
                # The product may sum an entry and its mirror image in different orders; restore the symmetry.
                fall = jnp.einsum("bki,bkj->kij", part, part)
                group = group - pad((fall + fall.mT) / 2)
            growth = jnp.maximum(variance_noise[i], least)
            if added is not None:
                group, growth = group + added[i], growth - variance_noise[i]
            # Not a scatter, which would copy P.
            on_diagonal = jnp.arange(size)[:, None] == jnp.arange(group.shape[-1])
            groups.append(group + growth[:, :, None] * on_diagonal)
        return BlockDiagonal(groups=tuple(groups))

    def squares(P: BlockDiagonal) -> list[jax.Array]:
        return [group[..., : group.shape[-2]] for group in P.groups]

    def variances(P: BlockDiagonal) -> jax.Array:
        return join([jnp.diagonal(group, axis1=-2, axis2=-1) for group in squares(P)])

    def rounding_scale(P: BlockDiagonal, prior: jax.Array) -> jax.Array:
        # Subtraction from a large number leaves its absolute rounding error.
        return jnp.maximum(variances(P), prior)

    def sample(P: BlockDiagonal, key: jax.Array) -> jax.Array:
        noise = cut(jax.random.normal(key, (n,), P.groups[0].dtype))
        return join(
            [
                jnp.einsum("kij,kj->ki", jnp.linalg.cholesky(group), part)
                for group, part in zip(squares(P), noise, strict=True)
            ]
        )

    def definite(P: BlockDiagonal) -> jax.Array:
        # The Cholesky factor of a matrix that is not positive definite is NaN.
        return jnp.all(jnp.array([jnp.all(jnp.isfinite(jnp.linalg.cholesky(group))) for group in squares(P)]))

    def dense(P: BlockDiagonal) -> jax.Array:
        rows = [jax.scipy.linalg.block_diag(*group) for group in squares(P)]
        whole = jax.scipy.linalg.block_diag(*rows)
        return whole if ordered else whole[inverse][:, inverse]

    return Covariance(init, project, correct, times, variances, rounding_scale, sample, definite, dense, matrices=True)


def full(n: int) -> Covariance:
    """The full covariance: one block of n weights."""
    return block(slice(0, n))(n)
