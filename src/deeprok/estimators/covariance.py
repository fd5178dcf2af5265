"""How the covariance P of a belief is kept: whole, in blocks, as a diagonal, or as a diagonal and a few directions.

Every structure answers the same questions, so that the filter need not know which it has.

G. V. Puskorius and L. A. Feldkamp, "Neurocontrol of nonlinear dynamical systems with Kalman filter
trained recurrent networks", IEEE Transactions on Neural Networks, 1994: the decoupled filter.
P. G. Chang et al., "Low-rank extended Kalman filtering for online learning of neural networks from
streaming data", CoLLAs 2023: precision as a diagonal and a few directions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import record


class Evolution(NamedTuple):
    """What happens to P before an update: it becomes D P D + Q."""

    scale: jax.Array | None  # [n] the diagonal of D; None leaves P as it is
    noise: jax.Array  # Q: [] or [n] its diagonal, or [n, n]


class Correction(NamedTuple):
    """What a mini-batch tells: it leaves P − Wᵀ W with W = A H P, which has the precision P⁻¹ + (C H)ᵀ C H."""

    H: jax.Array  # [B, n] gradients of the observations, as rows
    HP: jax.Array  # [B, n] their product with the predicted covariance
    whitening: jax.Array  # A: [B, B], or [B] its diagonal
    information: jax.Array  # [B, B] C
    active: jax.Array  # [] bool; where it is false nothing changes, bit for bit


def whiten(A: jax.Array, rows: jax.Array) -> jax.Array:
    """A times rows [B, ...], for a matrix A [B, B] or its diagonal [B]."""
    return (A * rows.T).T if A.ndim == 1 else A @ rows


class Covariance(NamedTuple):
    """A structure for P, whose record the functions below take and give.

    Attributes:
      init: `prior -> P`, from variances [n], or a matrix [n, n] where `matrices` is true.
      project: `(P, evolution, H) -> H (D P D + Q)`, rows [B, n].
      correct: `(P, evolution, correction) -> P`, evolved and corrected.
      times: `(P, H) -> H P`, rows [B, n].
      variances: `P -> [n]`, its diagonal.
      magnitudes: `(P, prior) -> [n]`, the size of the numbers whose rounding errors P carries, given
        the variances it began with; at least the variances.
      deviate: `(P, key) -> [n]`, a draw from N(0, P).
      definite: `P -> []`, whether P is finite and positive definite.
      dense: `P -> [n, n]`.
      matrices: whether a prior or a process noise may be a matrix.
    """

    init: Callable[[jax.Array], Any]
    project: Callable[[Any, Evolution, jax.Array], jax.Array]
    correct: Callable[[Any, Evolution, Correction], Any]
    times: Callable[[Any, jax.Array], jax.Array]
    variances: Callable[[Any], jax.Array]
    magnitudes: Callable[[Any, jax.Array], jax.Array]
    deviate: Callable[[Any, jax.Array], jax.Array]
    definite: Callable[[Any], jax.Array]
    dense: Callable[[Any], jax.Array]
    matrices: bool


#: A structure for any number n of weights.
Structure = Callable[[int], Covariance]


def _evolve_rows(times: Callable[[jax.Array], jax.Array], evolution: Evolution, H: jax.Array) -> jax.Array:
    """H (D P D + Q) from `times`, the product with P."""
    scale, noise = evolution
    kept = times(H) if scale is None else times(H * scale) * scale
    return kept + (H @ noise if noise.ndim == 2 else H * noise)


# Blocks


@record
class Blocks:
    """A block-diagonal P; blocks of equal size lie together."""

    groups: tuple[jax.Array, ...]  # [blocks, size, width], rows padded with zeros


# Rows that begin on cache lines make both passes over a large P a fifth faster. For small blocks
# the padding would cost more than that.
_COLUMNS = 16
_LARGE = 256
#: Up to so many rank-one terms become one fused loop over P; more are a matrix product.
_CHAIN = 32


def _batched(part: jax.Array, group: jax.Array) -> jax.Array:
    """Rows [B, blocks, size] times blocks [blocks, size, width]."""
    size, width = group.shape[1:]
    if len(group) == 1:  # a plain product is faster than a batch of one
        return (part[:, 0] @ group[0])[:, None, :size]
    if size == width:  # blocks are symmetric, and along their rows the product is faster
        return jnp.einsum("bkj,kij->bki", part, group)
    return jnp.einsum("bki,kij->bkj", part, group)[..., :size]


def _width(size: int) -> int:
    return size if size < _LARGE else size + -size % _COLUMNS


def block(*partition: slice) -> Structure:
    """The decoupled filter: weights of different blocks are taken as independent.

    All blocks share one innovation covariance.

    Args:
      partition: slices of θ that together hold each weight once; steps are allowed.
    """
    return lambda n: _blocks(n, partition)


def _blocks(n: int, partition: Sequence[slice]) -> Covariance:
    places = np.arange(n)
    members = [places[s] for s in partition]  # views, so that many blocks take no more memory than few
    order = np.concatenate([np.zeros(0, int), *members])
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise DeeprokError(
            f"the partition has {len(partition)} slices with {len(order)} weights in all; "
            f"it must hold each of the {n} weights once"
        )
    ordered = np.array_equal(order, np.arange(n))
    inverse = np.argsort(order)
    # Successive blocks of one size: (first place, blocks, size).
    runs: list[tuple[int, int, int]] = []
    for size, same in itertools.groupby(len(m) for m in members):
        first = runs[-1][0] + runs[-1][1] * runs[-1][2] if runs else 0
        runs.append((first, len(list(same)), size))

    def cut(rows: jax.Array) -> list[jax.Array]:
        """Rows [..., n] as [..., blocks, size] for each group."""
        rows = rows if ordered else rows[..., order]
        return [rows[..., a : a + k * s].reshape(*rows.shape[:-1], k, s) for a, k, s in runs]

    def join(parts: Sequence[jax.Array]) -> jax.Array:
        rows = jnp.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)
        return rows if ordered else rows[..., inverse]

    def pad(part: jax.Array) -> jax.Array:
        size = part.shape[-1]
        return jnp.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, _width(size) - size)])

    def init(prior: jax.Array) -> Blocks:
        if prior.ndim == 1:
            return Blocks(groups=tuple(pad(part[..., None] * jnp.eye(part.shape[-1])) for part in cut(prior)))
        prior = (prior + prior.T) / 2  # what is given may be symmetric to rounding only
        rows = prior if ordered else prior[order][:, order]
        return Blocks(
            groups=tuple(
                pad(jnp.stack([rows[i : i + s, i : i + s] for i in range(a, a + k * s, s)])) for a, k, s in runs
            )
        )

    def times(P: Blocks, H: jax.Array) -> jax.Array:
        return join([_batched(part, group) for part, group in zip(cut(H), P.groups, strict=True)])

    def matrix_blocks(noise: jax.Array) -> tuple[jax.Array, ...]:
        return init(noise).groups

    def project(P: Blocks, evolution: Evolution, H: jax.Array) -> jax.Array:
        scale, noise = evolution
        if noise.ndim < 2:
            return _evolve_rows(lambda rows: times(P, rows), evolution, H)
        kept = times(P, H) if scale is None else times(P, H * scale) * scale
        return kept + times(Blocks(groups=matrix_blocks(noise)), H)

    def correct(P: Blocks, evolution: Evolution, correction: Correction) -> Blocks:
        # P is never copied, so the choice whether to change is made on what changes it.
        active = correction.active
        W = jnp.where(active, whiten(correction.whitening, correction.HP), 0.0)
        noise = jnp.where(active, evolution.noise, 0.0)
        scales = None if evolution.scale is None else cut(jnp.where(active, evolution.scale, 1.0))
        added = matrix_blocks(noise) if noise.ndim == 2 else None
        spread = cut(jnp.broadcast_to(jnp.diagonal(noise) if noise.ndim == 2 else noise, W.shape[1:]))
        groups = []
        for i, (group, part) in enumerate(zip(P.groups, cut(W), strict=True)):
            size, wide = part.shape[-1], pad(part)
            if scales is not None:
                both = scales[i][:, :, None] * pad(scales[i])[:, None, :]
                group = group * both  # the product of the two first, or P would not stay symmetric
            # The errors of rounding add up, also along directions that are not observed again. So a
            # variance that falls gets at least one of them back, as noise of that size would give.
            rounding = np.finfo(group.dtype).eps * jnp.diagonal(group, axis1=-2, axis2=-1)
            least = jnp.minimum(jnp.sum(part**2, axis=0), rounding)
            if len(part) <= _CHAIN:
                # A chain of rank-one terms becomes one fused loop; as a matrix product it would be two passes.
                # Both factors from the padded rows: with a single user the padding would be fused, and slow.
                for w in wide:
                    group = group - w[:, :size, None] * w[:, None, :]
            else:
                # The product may sum an entry and the one across the diagonal in different orders.
                fall = jnp.einsum("bki,bkj->kij", part, part)
                group = group - pad((fall + fall.mT) / 2)
            given = jnp.maximum(spread[i], least)
            if added is not None:
                group, given = group + added[i], given - spread[i]
            # Not a scatter, for which P would be copied.
            on_diagonal = jnp.arange(size)[:, None] == jnp.arange(group.shape[-1])
            groups.append(group + given[:, :, None] * on_diagonal)
        return Blocks(groups=tuple(groups))

    def squares(P: Blocks) -> list[jax.Array]:
        return [group[..., : group.shape[-2]] for group in P.groups]

    def variances(P: Blocks) -> jax.Array:
        return join([jnp.diagonal(group, axis1=-2, axis2=-1) for group in squares(P)])

    def magnitudes(P: Blocks, prior: jax.Array) -> jax.Array:
        # What is left of a large number by subtraction keeps its absolute error.
        return jnp.maximum(variances(P), prior)

    def deviate(P: Blocks, key: jax.Array) -> jax.Array:
        noise = cut(jax.random.normal(key, (n,), P.groups[0].dtype))
        return join(
            [
                jnp.einsum("kij,kj->ki", jnp.linalg.cholesky(group), part)
                for group, part in zip(squares(P), noise, strict=True)
            ]
        )

    def definite(P: Blocks) -> jax.Array:
        # Of a matrix that is not positive definite the factor is not a number.
        return jnp.all(jnp.array([jnp.all(jnp.isfinite(jnp.linalg.cholesky(group))) for group in squares(P)]))

    def dense(P: Blocks) -> jax.Array:
        rows = [jax.scipy.linalg.block_diag(*group) for group in squares(P)]
        whole = jax.scipy.linalg.block_diag(*rows)
        return whole if ordered else whole[inverse][:, inverse]

    return Covariance(init, project, correct, times, variances, magnitudes, deviate, definite, dense, matrices=True)


def full(n: int) -> Covariance:
    """All of P: one block of n weights."""
    return block(slice(0, n))(n)


# The diagonal


@record
class Diagonal:
    """A diagonal P."""

    variances: jax.Array  # [n]


def diagonal(n: int) -> Covariance:
    """Every weight on its own: n blocks of one."""
    del n

    def init(prior: jax.Array) -> Diagonal:
        return Diagonal(variances=prior)

    def times(P: Diagonal, H: jax.Array) -> jax.Array:
        return H * P.variances

    def project(P: Diagonal, evolution: Evolution, H: jax.Array) -> jax.Array:
        return _evolve_rows(lambda rows: times(P, rows), evolution, H)

    def correct(P: Diagonal, evolution: Evolution, correction: Correction) -> Diagonal:
        kept = P.variances if evolution.scale is None else P.variances * evolution.scale**2
        new = kept + evolution.noise - _sum_of_squares(correction.whitening, correction.HP)
        return Diagonal(variances=jnp.where(correction.active, new, P.variances))

    def deviate(P: Diagonal, key: jax.Array) -> jax.Array:
        return jnp.sqrt(P.variances) * jax.random.normal(key, P.variances.shape, P.variances.dtype)

    def definite(P: Diagonal) -> jax.Array:
        return jnp.all(jnp.isfinite(P.variances) & (P.variances > 0))

    def variances(P: Diagonal) -> jax.Array:
        return P.variances

    def magnitudes(P: Diagonal, prior: jax.Array) -> jax.Array:
        return P.variances  # each is multiplied by a share at every update: no error stays behind

    def dense(P: Diagonal) -> jax.Array:
        return jnp.diag(P.variances)

    return Covariance(init, project, correct, times, variances, magnitudes, deviate, definite, dense, matrices=False)


#: A product with a matrix of at most so many rows is written out, to be one fused loop over long rows.
_WRITTEN_OUT = 16


def _sum_of_squares(A: jax.Array, rows: jax.Array) -> jax.Array:
    """[n] Over the rows of A rows."""
    if len(A) > _WRITTEN_OUT:
        return jnp.sum(whiten(A, rows) ** 2, axis=0)
    mixed = [
        sum(a * r for a, r in zip(w, rows, strict=True)) if A.ndim == 2 else w * r for w, r in zip(A, rows, strict=True)
    ]
    return sum(r * r for r in mixed)


# A diagonal and a few directions


@record
class LowRank:
    """P⁻¹ = diag(precision) + Fᵀ F."""

    precision: jax.Array  # [n]
    factor: jax.Array  # [rank, n] F


def low_rank(rank: int = 10) -> Structure:
    """A diagonal and `rank` directions of precision; memory and time grow linearly with n.

    An update adds B directions of information. Of all rank + B the strongest `rank` are kept; of
    the others the diagonal is. With rank ≥ n nothing is lost.

    Args:
      rank: directions kept.
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

        shared, seen = over_columns(products, P.factor, P.precision, H)
        known = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(shared + unit.astype(shared.dtype)), True), seen)
        return (H - known.T @ P.factor) / P.precision

    def project(P: LowRank, evolution: Evolution, H: jax.Array) -> jax.Array:
        return _evolve_rows(lambda rows: times(P, rows), evolution, H)

    def correct(P: LowRank, evolution: Evolution, correction: Correction) -> LowRank:
        H, active = correction.H, correction.active
        scale = jnp.ones((), H.dtype) if evolution.scale is None else evolution.scale

        def evolve(F: jax.Array, precision: jax.Array, noise: jax.Array, scale: jax.Array) -> tuple[jax.Array, ...]:
            """(D P D + Q)⁻¹ has again a diagonal, the second, and `rank` directions: a mixture of the first."""
            precision = precision / scale**2
            shrink = 1.0 / (1.0 + noise * precision)
            return F * (shrink / scale), precision * shrink, shrink

        def products(F: jax.Array, precision: jax.Array, noise: jax.Array, scale: jax.Array, H: jax.Array) -> Any:
            V, _, shrink = evolve(F, precision, noise, scale)
            return (V * (noise / shrink)) @ V.T, V @ V.T, V @ H.T, H @ H.T

        state = (P.factor, P.precision)
        given = (evolution.noise, scale, H)
        lost, VV, VH, HH = over_columns(products, *state, *given)
        lost = jnp.linalg.cholesky(lost + unit.astype(lost.dtype))
        # Rows [V; H] mixed are the directions of precision after the update ...
        mix = jax.scipy.linalg.block_diag(
            jax.scipy.linalg.solve_triangular(lost, unit.astype(lost.dtype), lower=True), correction.information
        )
        # ... and rotated they have the strongest first; a rotation changes nothing of their sum of squares.
        _, axes = jnp.linalg.eigh(mix @ jnp.block([[VV, VH], [VH.T, HH]]) @ mix.T)
        mix = axes[:, ::-1].T @ mix

        def change(
            F: jax.Array, precision: jax.Array, noise: jax.Array, scale: jax.Array, H: jax.Array
        ) -> tuple[jax.Array, ...]:
            V, kept, _ = evolve(F, precision, noise, scale)
            rows = mix @ jnp.concatenate([V, H])
            weakest = _sum_of_squares(jnp.ones(len(H), H.dtype), rows[rank:])
            return jnp.where(active, rows[:rank], F), jnp.where(active, kept + weakest, precision)

        factor, precision = change_columns(change, state, given)
        return LowRank(precision=precision, factor=factor)

    def variances(P: LowRank) -> jax.Array:
        half = jax.scipy.linalg.solve_triangular(inner(P), P.factor, lower=True)
        return (1.0 - jnp.sum(half**2, axis=0) / P.precision) / P.precision

    def magnitudes(P: LowRank, prior: jax.Array) -> jax.Array:
        return 1.0 / P.precision

    def deviate(P: LowRank, key: jax.Array) -> jax.Array:
        # x with variance P⁻¹, then P x: the noise of the diagonal and of each direction.
        own_key, shared_key = jax.random.split(key)
        own = jax.random.normal(own_key, P.precision.shape, P.precision.dtype)
        shared = jax.random.normal(shared_key, (rank,), P.precision.dtype)
        return times(P, (jnp.sqrt(P.precision) * own + shared @ P.factor)[None])[0]

    def definite(P: LowRank) -> jax.Array:
        finite = jnp.all(jnp.isfinite(P.precision)) & jnp.all(jnp.isfinite(P.factor))
        return finite & jnp.all(P.precision > 0) & jnp.all(jnp.isfinite(inner(P)))

    def dense(P: LowRank) -> jax.Array:
        return jnp.linalg.inv(jnp.diag(P.precision) + P.factor.T @ P.factor)

    return Covariance(init, project, correct, times, variances, magnitudes, deviate, definite, dense, matrices=False)


# Long rows

#: Columns that are taken at a time, so that they stay in the cache from one operation to the next.
_TILE = 4096

Columns = Callable[..., Any]


def over_columns(f: Columns, *arrays: jax.Array) -> Any:
    """f(*arrays) for an f that is a sum over columns, tile by tile if they are many.

    Args:
      f: takes some columns of all arrays.
      arrays: [..., n], or numbers.
    """
    tiles, n = _tiles(arrays)
    if tiles < 2:
        return f(*arrays)

    def add(i: jax.Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, f(*_cut(arrays, i * _TILE, _TILE)))

    return jax.lax.fori_loop(0, tiles, add, f(*_cut(arrays, tiles * _TILE, n - tiles * _TILE)))


def change_columns(f: Columns, state: tuple[jax.Array, ...], given: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """f(*state, *given), a new state, for an f that is the same for each column; in place, tile by tile if many.

    Args:
      f: takes some columns of all arrays.
      state: [..., n] each.
      given: [..., n], or numbers.
    """
    tiles, n = _tiles(state)
    if tiles < 2:
        return f(*state, *given)

    def put(state: tuple[jax.Array, ...], start: jax.Array | int, size: int) -> tuple[jax.Array, ...]:
        new = f(*_cut((*state, *given), start, size))
        return tuple(jax.lax.dynamic_update_slice_in_dim(a, b, start, axis=-1) for a, b in zip(state, new, strict=True))

    state = jax.lax.fori_loop(0, tiles, lambda i, state: put(state, i * _TILE, _TILE), state)
    return put(state, tiles * _TILE, n - tiles * _TILE)


def _tiles(arrays: Sequence[jax.Array]) -> tuple[int, int]:
    """How many whole tiles there are, and how many columns; one row alone is best taken at once."""
    n = max(a.shape[-1] for a in arrays if a.ndim)
    rows = max(math.prod(a.shape[:-1]) for a in arrays if a.ndim)
    return (n // _TILE if rows > 1 else 0), n


def _cut(arrays: Sequence[jax.Array], start: jax.Array | int, size: int) -> list[jax.Array]:
    return [jax.lax.dynamic_slice_in_dim(a, start, size, axis=-1) if a.ndim else a for a in arrays]
