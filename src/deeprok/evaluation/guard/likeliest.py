"""The most likely model of a segment, and how much more likely there may be one.

A climb costs a pass over the segment for each of its steps. So it goes on from several models side by side, in one
compiled program, and for a few passes only; the next climb goes on from where this one ended. It is Fisher scoring as
that of `identification.fit`, of the likelihood with its most likely noise.

The maximum in the box must not be taken for too small, since evidence against the box is divided by it. Where a climb
has not arrived, its next step tells what is still to be gained, and twice of that counts as gained.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.evaluation.guard.models import (
    FOUND_INSIDE,
    LARGER,
    SHARE,
    Bank,
    Segment,
    Watched,
    best_likelihood,
    best_scale,
    likelihoods,
    log_sum,
    own_of,
)
from deeprok.identification.fit import Bounds
from deeprok.identification.likelihood import Belief, Innovations, Unknowns, filter_step

#: How far models that are climbed from are apart, as a share of the bounds' widths.
_APART = 0.1
#: Passes of a climb: over so many steps in all, but at least and at most so many of them.
_STEPS, _LEAST_PASSES, MOST_PASSES = 512, 3, 30
#: A climb ends where the next step would gain less log-likelihood.
_GAIN = 1e-4
_DAMPING = 1e-3


class Climbed(NamedTuple):
    """Where a climb from several models has ended, the most likely first, and what a segment has said of them."""

    x: np.ndarray  # [S, N]
    logs: np.ndarray  # [S] as those of a `Bank`
    squares: np.ndarray  # [S]
    bound: float  # the log-likelihood of the first, with twice what its next step would gain


def passes_for(steps: int) -> int:
    """Passes of a climb in one check of a guard, over a segment of so many steps."""
    return int(np.clip(_STEPS // max(steps, 1), _LEAST_PASSES, MOST_PASSES))


def climb_to_likeliest(
    watched: Watched, bank: Bank, segment: Segment, in_box: bool, passes: int = MOST_PASSES
) -> Climbed:
    """Climbs to the model that makes the segment most likely, of the box or of all around it.

    Args:
      watched: the models.
      bank: what is known of them.
      segment: what was seen.
      in_box: whether it must be of the box.
      passes: over the segment.
    """
    bounds = watched.box if in_box else watched.around
    starts = _starts(watched, bank, segment, bounds)
    x, logs, squares, left = map(
        np.asarray, _climb_of(watched.unknowns)(starts, *bounds, watched.noises, segment, passes)
    )
    reached = best_likelihood(logs, squares, segment.steps * watched.numbers)
    order = np.argsort(-reached)
    return Climbed(x[order], logs[order], squares[order], float((reached + left)[order[0]]))


def _starts(watched: Watched, bank: Bank, segment: Segment, bounds: Bounds) -> np.ndarray:
    """[S, N] the most likely models of the bank, brought between the bounds, and not close together if possible."""
    order = np.argsort(-likelihoods(watched, bank, segment.steps))
    allowed = np.all((bank.x >= bounds.low) & (bank.x <= bounds.high), axis=1)[order]
    x = np.clip(bank.x[np.concatenate([order[allowed][:1], order])], bounds.low, bounds.high)
    chosen = [0]
    for i in range(1, len(x)):
        apart = np.abs(x[chosen] - x[i]) / np.maximum(bounds.width, 1e-12)
        if len(chosen) < FOUND_INSIDE and apart.max(axis=1).min() > _APART:
            chosen.append(i)
    return x[(chosen * FOUND_INSIDE)[:FOUND_INSIDE]]


def with_found(watched: Watched, bank: Bank, found: Climbed, steps: int, in_box: bool) -> Bank:
    """The bank with what a climb has found.

    Of models of the box all take the places of the climb before, so that the next one goes on from them. Of a climb
    everywhere the best takes the place of the least likely of those before, and a share of the weight of the
    alternatives: with any noise of theirs, or in the box with a larger one.

    Args:
      watched: the models.
      bank: what is known of them.
      found: where the climb has ended.
      steps: of the segment.
      in_box: whether it was in the box only.
    """
    likely, places = likelihoods(watched, bank, steps), np.arange(len(bank.x))
    weight = bank.weight
    if in_box:
        slots = places[watched.found_inside]
    else:
        before = places[watched.found]
        # Of a slot that was never taken, the weight is 0, and its likelihood that of the nominal model.
        slots = before[[np.argmin(np.where(np.isneginf(weight[before].max(axis=1)), -np.inf, likely[before]))]]
        allowed = LARGER if watched.inside(found.x[0]) else np.ones_like(LARGER)
        shared = np.where(allowed, log_sum(weight) + np.log(SHARE / allowed.sum()), -np.inf)
        weight = _with(weight + np.log(1 - SHARE), slots, shared)
    x, order = found.x[: len(slots)], np.argsort(-likely)[:8]
    apart = np.linalg.norm((bank.x[order] - x[:, None]) / watched.around.width, axis=2)
    nearest = order[np.argmin(apart, axis=1)]
    return Bank(
        x=_with(bank.x, slots, x),
        # Not quite their own; they soon are, as a filter forgets where it began.
        mean=_with(bank.mean, slots, bank.mean[nearest]),
        covariance=_with(bank.covariance, slots, bank.covariance[nearest]),
        logs=_with(bank.logs, slots, found.logs[: len(slots)]),
        squares=_with(bank.squares, slots, found.squares[: len(slots)]),
        weight=weight,
    )


def _with(array: np.ndarray, index: np.ndarray, value: Any) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


# --- compiled ------------------------------------------------------------------------------------------------------


class _Sums(NamedTuple):
    """Sums over the innovations e of a segment and their variances s, with derivatives e' and s' by the parameters."""

    logs: jax.Array  # [] Σ log 2πs
    squares: jax.Array  # [] Σ e²/s
    errors: jax.Array  # [N] Σ e e'/s
    growth: jax.Array  # [N] Σ s'/s
    spent: jax.Array  # [N] Σ e² s'/s²
    of_mean: jax.Array  # [N, N] Σ e' e'ᵀ/s
    of_variance: jax.Array  # [N, N] Σ s' s'ᵀ/s²


class _Place(NamedTuple):
    """A model, and what the segment says there."""

    x: jax.Array  # [N]
    logs: jax.Array  # []
    squares: jax.Array  # []
    likelihood: jax.Array  # []
    gradient: jax.Array  # [N]
    information: jax.Array  # [N, N]


@functools.lru_cache(maxsize=8)
def _climb_of(unknowns: Unknowns) -> Callable[..., tuple[jax.Array, ...]]:
    """A compiled climb from models [S, N]: where it ends, Σ log 2πs and Σ e²/s there, and what may still be gained."""

    def climb(
        starts: jax.Array, low: jax.Array, high: jax.Array, noises: jax.Array, segment: Segment, passes: Any
    ) -> tuple[jax.Array, ...]:
        at: Callable[..., _Place] = jax.vmap(lambda x: _place(unknowns, noises, segment, x))
        ahead: Callable[..., tuple[jax.Array, jax.Array]] = jax.vmap(functools.partial(_ahead, low, high))

        def more(state: Any) -> jax.Array:
            done, here, _, (_, left) = state
            return (done < passes) & jnp.any(here.likelihood + left > jnp.max(here.likelihood) + 2 * _GAIN)

        def step(state: Any) -> Any:
            done, here, damping, (there, _) = state
            tried = at(there)
            better = tried.likelihood > here.likelihood  # false if it is not a number
            here = jax.tree.map(
                lambda new, old: jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old), tried, here
            )
            damping = jnp.where(better, damping / 10, 100 * damping)
            return done + 1, here, damping, ahead(here, damping)

        here, first = at(starts), jnp.full(len(starts), _DAMPING)
        _, here, _, _ = jax.lax.while_loop(more, step, (1, here, first, ahead(here, first)))
        # What is left is asked with little damping, however often steps were refused.
        return here.x, here.logs, here.squares, ahead(here, first)[1]

    return jax.jit(climb)


def _ahead(low: jax.Array, high: jax.Array, here: _Place, damping: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next model, and twice what it is expected to gain."""
    x, gradient = here.x, here.gradient
    free = ~(((x <= low) & (gradient < 0)) | ((x >= high) & (gradient > 0)))
    diagonal = jnp.diag(here.information)
    added = jnp.where(free, damping * jnp.where(diagonal > 0, diagonal, 1.0), 1.0)
    slope = jnp.where(free, gradient, 0.0)
    step = jnp.linalg.solve(here.information * jnp.outer(free, free) + jnp.diag(added), slope)
    step = jnp.where(jnp.isfinite(step), step, 0.0)
    return jnp.clip(x + step, low, high), jnp.nan_to_num(slope @ step)


def _place(unknowns: Unknowns, noises: jax.Array, segment: Segment, x: jax.Array) -> _Place:
    sums = _sums(unknowns, noises, segment, x)
    count = segment.steps * segment.obs.shape[1]
    variance = best_scale(sums.squares, count) ** 2
    return _Place(
        x,
        sums.logs,
        sums.squares,
        best_likelihood(sums.logs, sums.squares, count),
        -(sums.errors / variance + 0.5 * (sums.growth - sums.spent / variance)),
        sums.of_mean / variance + 0.5 * sums.of_variance,
    )


def _sums(unknowns: Unknowns, noises: jax.Array, segment: Segment, x: jax.Array) -> _Sums:
    """The sums of `identification.likelihood.score_of`, for as many steps as there are."""
    obs, action, own, steps = segment

    def at(x: jax.Array, before: Belief, t: jax.Array) -> tuple[Belief, Innovations]:
        noise, theta = unknowns.noise(jnp.append(x, noises)), unknowns.theta(x)
        its_own = own_of(unknowns, jax.tree.map(lambda part: jnp.asarray(part)[t], own))
        predict = unknowns.dynamics.predict
        return filter_step(predict, theta, noise, before, jnp.asarray(obs)[t + 1], jnp.asarray(action)[t], its_own)

    def step(t: jax.Array, carry: Any) -> Any:
        before, slope, so_far = carry  # the slope has an axis N of the parameters

        def push(direction: jax.Array, along: Belief) -> Any:
            return jax.jvp(lambda x, before: at(x, before, t), (x, before), (direction, along))

        (after, (e, s)), (slope, (de, ds)) = jax.vmap(push, out_axes=(None, 0))(jnp.eye(len(x)), slope)
        u, of_mean, of_variance = e / jnp.sqrt(s), de / jnp.sqrt(s), ds / s
        gained = _Sums(
            jnp.sum(jnp.log(2 * jnp.pi * s)),
            jnp.sum(u**2),
            of_mean @ u,
            jnp.sum(of_variance, axis=1),
            of_variance @ u**2,
            of_mean @ of_mean.T,
            of_variance @ of_variance.T,
        )
        return after, slope, jax.tree.map(jnp.add, so_far, gained)

    count, first = len(x), Belief(jnp.asarray(obs)[0], jnp.diag(unknowns.noise(jnp.append(x, noises)).sensor))
    none = _Sums(*(jnp.zeros((count,) * axes) for axes in (0, 0, 1, 1, 1, 2, 2)))
    start = (first, jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape)), first), none)
    found: _Sums = jax.lax.fori_loop(0, steps, step, start)[2]
    return found
