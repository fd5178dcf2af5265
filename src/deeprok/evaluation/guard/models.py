"""How likely what was seen is: under the best model of the box, and under models and noises that are not of it.

A bank of models runs side by side, each with the extended Kalman filter of `identification.likelihood`. Some lie in the
box, some around it, and a few places are for the most likely models, once they are found. With what was seen of a
segment, y, and a mixture q over the alternatives whose weights never look ahead,

    E = q(y) / max p(y; θ, c)    over θ in the box and 1 ≤ c ≤ 1.5

is 1 or less on average for every system of the box (L. Wasserman, A. Ramdas and S. Balakrishnan, "Universal inference",
PNAS, 2020). All noises are c times as large as stated, which multiplies the innovations' variances and changes nothing
else. The bank's own maximum is at most the true one. So it only says when to look closer: before E counts, the maximum
is climbed to.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from deeprok.environments.base import Environment
from deeprok.identification.dynamics import make_dynamics
from deeprok.identification.fit import Bounds, Point, climb
from deeprok.identification.identify import search_ends
from deeprok.identification.likelihood import (
    Belief,
    Innovations,
    Score,
    Unknowns,
    filter_step,
)
from deeprok.identification.result import Noise

#: How many models of the box, how many around it, and how many places for those that are found.
_INSIDE, _OUTSIDE, _FOUND = 32, 32, 8
#: A noise that is up to so many times as large as stated counts as that of the box.
NOISE_UP_TO = 1.5
#: The noises of the alternatives. Those beyond `NOISE_UP_TO` are for models of the box too: no parameter explains them.
_SCALES = np.array([1.0, NOISE_UP_TO, 3.0, 8.0, 30.0])
_LARGER = _SCALES > NOISE_UP_TO
#: The share of the alternatives' weight that a found model gets, and that the first weights get back in a new segment.
_SHARE, _FORGOTTEN = 0.25, 0.1
#: Models around a range go as far from it as it is wide, or as this share of its middle.
_LEAST_WIDTH = 1 / 3


class Bank(NamedTuple):
    """K models, and what a segment has said of each."""

    x: np.ndarray  # [K, N] parameters, as `Unknowns` has them
    mean: np.ndarray  # [K, D] of the true observation
    covariance: np.ndarray  # [K, D, D]
    logs: np.ndarray  # [K] Σ log 2πs, of the innovations' variances s
    squares: np.ndarray  # [K] Σ e²/s, of the innovations e
    weight: np.ndarray  # [K, C] log of the alternatives' weights times their likelihoods, for each noise


class Segment(NamedTuple):
    """What was seen since an episode or a part of it began; what is beyond its steps is 0."""

    obs: np.ndarray  # [T + 1, D]
    action: np.ndarray  # [T] or [T, A]
    steps: int


class _Found(NamedTuple):
    """A model, and what a segment has said of it."""

    x: np.ndarray  # [N]
    logs: float  # as those of a `Bank`
    squares: float


class Watched(NamedTuple):
    """The models of a box and those around it."""

    unknowns: Unknowns
    box: Bounds  # [N]
    around: Bounds  # [N]
    noises: np.ndarray  # the noises of `Unknowns.pack`
    first: Bank

    @property
    def numbers(self) -> int:
        """D, how many numbers a step is seen by."""
        return self.first.mean.shape[1]

    def inside(self, x: np.ndarray) -> np.ndarray:
        """[…] bool, which models […, N] are of the box."""
        return _inside(self.box, x)

    def theta(self, x: np.ndarray) -> dict[str, float]:
        """A model's parameters by name."""
        return dict(zip(self.unknowns.dynamics.names, np.asarray(self.unknowns.theta(x)).tolist(), strict=True))


def noise_scale(index: int) -> float:
    """How many times as large as stated the noise of an alternative is."""
    return float(_SCALES[index])


def watch(env: Environment, box: dict[str, tuple[float, float]], noise: Noise) -> Watched:
    """The models that a guard compares.

    Args:
      env: the environment, without disturbances and memory.
      box: the ranges of its uncertain parameters.
      noise: standard deviations.
    """
    names, fields = tuple(box), {field.name: field for field in dataclasses.fields(env.nominal)}
    positive = tuple(bool(fields[name].metadata["positive"]) for name in names)
    unknowns = Unknowns(make_dynamics(env, names, "a guard"), positive)
    nominal = np.array([float(getattr(env.nominal, name)) for name in names])

    def as_x(theta: np.ndarray) -> np.ndarray:
        return np.array([np.log(t) if p else t for t, p in zip(theta, positive, strict=True)])

    wide = env._replace(box={name: _not_narrow(*ends) for name, ends in box.items() if ends[0] < ends[1]})
    ends = np.array([search_ends(wide, name, each) for name, each in zip(names, positive, strict=True)])
    low, high = (as_x(np.array([box[name][end] for name in names])) for end in (0, 1))
    inner, outer = Bounds(low, high), Bounds(np.minimum(ends[:, 0], low), np.maximum(ends[:, 1], high))
    process, sensor = (np.square(each) for each in (noise.process, noise.sensor))
    noises = unknowns.pack(nominal, process, sensor)[len(names) :]
    cube = qmc.Sobol(len(names), seed=0).random(2048)
    around = outer.low + cube * outer.width
    around = around[~_inside(inner, around)][:_OUTSIDE]
    within = np.vstack([np.clip(as_x(nominal), low, high), inner.low + cube[: _INSIDE - 1] * inner.width])
    x = np.vstack([within, around, np.repeat(within[:1], _FOUND, axis=0)])
    size = len(env.observation_scale)
    kinds = np.concatenate([np.zeros(len(within)), np.ones(len(around)), np.full(_FOUND, np.nan)])
    first = Bank(
        x=x,
        mean=np.zeros((len(x), size)),
        covariance=np.zeros((len(x), size, size)),
        logs=np.zeros(len(x)),
        squares=np.zeros(len(x)),
        weight=_first_weights(kinds),
    )
    return Watched(unknowns, inner, outer, noises, first)


def _not_narrow(low: float, high: float) -> tuple[float, float]:
    """A range, or one around it: what lies around a range that a log has made narrow may be far from it."""
    middle = (low + high) / 2
    half = max(high - low, _LEAST_WIDTH * abs(middle)) / 2
    return middle - half, middle + half


def _inside(box: Bounds, x: np.ndarray) -> np.ndarray:
    return np.all((x >= box.low) & (x <= box.high), axis=-1)


def _first_weights(kinds: np.ndarray) -> np.ndarray:
    """Half the weight is for models around the box, and half for larger noises anywhere.

    Args:
      kinds: [K] 0 in the box, 1 around it; not a number where no model is found yet.
    """
    weight = np.zeros((len(kinds), len(_SCALES)))
    weight[np.ix_(kinds == 1, ~_LARGER)] = 1.0
    weight /= 2 * max(weight.sum(), 1.0)
    larger = np.zeros_like(weight)
    larger[np.ix_(~np.isnan(kinds), _LARGER)] = 1.0
    weight += larger / larger.sum() * (1 - weight.sum())
    with np.errstate(divide="ignore"):
        return np.log(weight)


# --- a step --------------------------------------------------------------------------------------------------------


def begin(watched: Watched, bank: Bank, obs: np.ndarray) -> Bank:
    """The bank at the start of a segment, which knows what its first observation tells.

    Weights are those of the segment before, and a share of the first ones, so that a system may change.
    """
    after = bank.weight - _log_sum(bank.weight)
    sensor = np.asarray(watched.unknowns.noise(jnp.asarray(np.append(bank.x[0], watched.noises))).sensor)
    count = len(bank.x)
    return bank._replace(
        mean=np.tile(obs, (count, 1)),
        covariance=np.tile(np.diag(sensor), (count, 1, 1)),
        logs=np.zeros(count),
        squares=np.zeros(count),
        weight=np.logaddexp(np.log(1 - _FORGOTTEN) + after, np.log(_FORGOTTEN) + watched.first.weight),
    )


@functools.lru_cache(maxsize=8)
def _step_of(unknowns: Unknowns) -> Callable[..., tuple[jax.Array, ...]]:
    """A compiled step of all models: beliefs after it, Σ log 2πs and Σ e²/s of it."""

    def step(x: Any, noises: Any, before: Belief, obs: Any, action: Any, keys: Any, t: Any) -> tuple[jax.Array, ...]:
        noise, theta = unknowns.noise(jnp.append(x, noises)), unknowns.theta(x)
        after, (e, s) = filter_step(unknowns.dynamics.predict, theta, noise, before, obs, action, keys[t])
        return *after, jnp.sum(jnp.log(2 * jnp.pi * s)), jnp.sum(e**2 / s)

    return jax.jit(jax.vmap(step, (0, None, 0, None, None, None, None)))


def advance(watched: Watched, bank: Bank, segment: Segment, keys: jax.Array) -> Bank:
    """The bank after the last step of a segment.

    Args:
      watched: the models.
      bank: what is known of them before it.
      segment: what was seen.
      keys: [T] random keys, for environments that are themselves random.
    """
    last, before = segment.steps - 1, Belief(bank.mean, bank.covariance)  # type: ignore[arg-type]
    found = _step_of(watched.unknowns)(
        bank.x, watched.noises, before, segment.obs[last + 1], segment.action[last], keys, last
    )
    mean, covariance, logs, squares = map(np.asarray, found)
    # A model whose prediction is no number explains nothing.
    logs, squares = np.where(np.isfinite(logs), logs, 0.0), np.where(np.isfinite(squares + logs), squares, np.inf)
    gained = _log_likelihood(logs[:, None], squares[:, None], watched.numbers, _SCALES)
    return Bank(bank.x, mean, covariance, bank.logs + logs, bank.squares + squares, bank.weight + gained)


def _log_likelihood(logs: Any, squares: Any, count: int, scale: Any) -> Any:
    """Of `count` innovations, if all noises are `scale` times as large."""
    return -0.5 * logs - count * np.log(scale) - 0.5 * squares / scale**2


def _best_scale(squares: Any, count: int) -> Any:
    """The most likely scale of the noises, of those that count as that of the box."""
    return np.clip(np.sqrt(squares / max(count, 1)), 1.0, NOISE_UP_TO)


def _best_likelihood(found: Bank | _Found, count: int) -> Any:
    """With the most likely of these scales."""
    return _log_likelihood(found.logs, found.squares, count, _best_scale(found.squares, count))


def _log_sum(logs: np.ndarray) -> float:
    most = logs.max()
    return float(most + np.log(np.sum(np.exp(logs - most)))) if np.isfinite(most) else float(most)


def likelihoods(watched: Watched, bank: Bank, steps: int) -> np.ndarray:
    """[K] how likely the segment is under each model, with its most likely noise."""
    return np.asarray(_best_likelihood(bank, steps * watched.numbers))


def log_e_value(watched: Watched, bank: Bank, steps: int) -> float:
    """The logarithm of E, with the best model of the bank for the best of the box: at least what E is."""
    null = likelihoods(watched, bank, steps)[watched.inside(bank.x)].max()
    return _log_sum(bank.weight) - float(null) if np.isfinite(null) else np.inf


# --- the most likely model -----------------------------------------------------------------------------------------


def add_most_likely(watched: Watched, bank: Bank, segment: Segment, keys: jax.Array, in_box: bool) -> Bank:
    """The bank with the model that makes the segment most likely, of the box or of all around it.

    It takes the place of the least likely one that was found before, and a share of the weight of the alternatives:
    with any noise of theirs, or in the box with a larger one.

    Args:
      watched: the models.
      bank: what is known of them.
      segment: what was seen.
      keys: [T] random keys, for environments that are themselves random.
      in_box: whether it must be of the box.
    """
    bounds = watched.box if in_box else watched.around
    likely = likelihoods(watched, bank, segment.steps)
    order = np.argsort(-likely)
    best = [order[0], *order[watched.inside(bank.x[order])][:in_box]]  # of all, and of the box
    starts = {tuple(np.clip(bank.x[k], bounds.low, bounds.high)) for k in best}
    found = [_climb(watched, segment, keys, np.array(start), bounds) for start in sorted(starts)]
    x, logs, squares = max(found, key=lambda each: _best_likelihood(each, segment.steps * watched.numbers))
    slots = np.arange(len(likely) - _FOUND, len(likely))
    # Of a slot that was never taken, the weight of the alternatives is 0, and its likelihood that of the nominal model.
    slot = slots[np.argmin(np.where(np.isneginf(bank.weight[slots].max(axis=1)), -np.inf, likely[slots]))]
    nearest = order[
        np.argmin(np.linalg.norm((bank.x[order[:8]] - x) / np.maximum(watched.around.width, 1e-12), axis=1))
    ]
    allowed = _LARGER if watched.inside(x) else np.ones(len(_SCALES), bool)
    total = _log_sum(bank.weight)
    weight = bank.weight + np.log(1 - _SHARE)
    weight[slot] = np.where(allowed, total + np.log(_SHARE / allowed.sum()), -np.inf)
    return bank._replace(
        x=_with(bank.x, slot, x),
        # Not quite its own; it soon is, as a filter forgets where it began.
        mean=_with(bank.mean, slot, bank.mean[nearest]),
        covariance=_with(bank.covariance, slot, bank.covariance[nearest]),
        logs=_with(bank.logs, slot, logs),
        squares=_with(bank.squares, slot, squares),
        weight=weight,
    )


class _Sums(NamedTuple):
    """Sums over a segment."""

    logs: jax.Array  # [] Σ log 2πs
    squares: jax.Array  # [] Σ e²/s
    gradient: jax.Array  # [N] of the log-likelihood
    information: jax.Array  # [N, N]


@functools.lru_cache(maxsize=8)
def _sums_of(unknowns: Unknowns) -> Callable[..., _Sums]:
    """A compiled function that gives the sums over a segment, for parameters x [N].

    It has the formulas of `identification.likelihood.score_of`, for as many steps as there are.
    """

    def sums(x: jax.Array, noises: jax.Array, obs: jax.Array, action: jax.Array, keys: jax.Array, steps: Any) -> _Sums:
        def at(x: jax.Array, before: Belief, t: jax.Array) -> tuple[Belief, Innovations]:
            noise, theta = unknowns.noise(jnp.append(x, noises)), unknowns.theta(x)
            return filter_step(unknowns.dynamics.predict, theta, noise, before, obs[t + 1], action[t], keys[t])

        def step(t: jax.Array, carry: Any) -> Any:
            before, slope, so_far = carry  # the slope has an axis N of the parameters

            def push(direction: jax.Array, along: Belief) -> Any:
                return jax.jvp(lambda x, before: at(x, before, t), (x, before), (direction, along))

            (after, (e, s)), (slope, (de, ds)) = jax.vmap(push, out_axes=(None, 0))(jnp.eye(len(x)), slope)
            u, of_mean, of_variance = e / jnp.sqrt(s), de / jnp.sqrt(s), ds / s
            gained = _Sums(
                jnp.sum(jnp.log(2 * jnp.pi * s)),
                jnp.sum(u**2),
                -(of_mean @ u + 0.5 * of_variance @ (1 - u**2)),
                of_mean @ of_mean.T + 0.5 * of_variance @ of_variance.T,
            )
            return after, slope, jax.tree.map(jnp.add, so_far, gained)

        count, first = len(x), Belief(obs[0], jnp.diag(unknowns.noise(jnp.append(x, noises)).sensor))
        none = _Sums(jnp.zeros(()), jnp.zeros(()), jnp.zeros(count), jnp.zeros((count, count)))
        start = (first, jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape)), first), none)
        found: _Sums = jax.lax.fori_loop(0, steps, step, start)[2]
        return found

    return jax.jit(sums)


def _climb(watched: Watched, segment: Segment, keys: jax.Array, start: np.ndarray, bounds: Bounds) -> _Found:
    """The optimum over parameters and the scale of the noises."""
    count, sums = segment.steps * watched.numbers, _sums_of(watched.unknowns)

    def climbed(start: np.ndarray, scale: float) -> _Found:
        def at(x: np.ndarray) -> Point:
            found = sums(x, scale**2 * watched.noises, segment.obs, segment.action, keys, segment.steps)
            logs, squares, gradient, information = map(np.asarray, found)
            return Point(x, Score(-0.5 * (logs + squares), gradient, information))  # type: ignore[arg-type]

        x = climb(at, start, bounds).x
        found = sums(x, watched.noises, segment.obs, segment.action, keys, segment.steps)
        return _Found(x, float(found.logs), float(found.squares))

    first = climbed(start, 1.0)
    scale = float(_best_scale(first.squares, count))
    # The best scale hardly changes with the parameters once these are the best for it.
    return climbed(first.x, scale) if scale > 1 else first


def _with(array: np.ndarray, index: int, value: Any) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed
