"""How likely a log is: the innovations of an extended Kalman filter over the true observations.

    z(t+1) = F(z(t), a(t); θ) + w,  w ~ N(0, Q)        the process
    y(t)   = z(t) + v,              v ~ N(0, R)        the sensors

with diagonal Q and R. One pass weighs one-step against many-step prediction by itself: the noisier the sensors, the
longer the past that a prediction rests on.

All unknowns stand in one vector x: the parameters θ (logarithms of those that are positive), then Q, then R. Where the
environment itself is random, Q has only its least value: the two could not be told apart. Variances are not taken as
logarithms, because the steps of Fisher scoring are nearly exact for them, and because a likelihood has a slope at 0.

What is maximised is ℓ + ¼ Σ log q over all variances q in x. Without the second term the variances of a short log are
too small, since parameters are fitted to it as well, and are often 0, which gives ranges that are too narrow. With
twice its weight, as in the reference, ranges are too wide where a system has no noise of its own.

Reference: Chung, Rabe-Hesketh, Dorie, Gelman and Liu, *A nondegenerate penalized likelihood estimator for variance
parameters in multilevel models*, Psychometrika 78, 2013.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.identification.dynamics import Dynamics, Predict
from deeprok.identification.log import Log
from deeprok.identification.surrogate import Surrogate, Table

#: Least standard deviation of the noises, as a share of an observation's typical size: a log without noise would be
#: infinitely likely.
_LEAST = 1e-5
#: And the largest.
_MOST = 10.0
#: Weight of the logarithm of each variance beside the log-likelihood.
_PENALTY = 0.25
#: Logs whose longest episodes differ by less share a compiled program.
_STEPS = 32


class Noise(NamedTuple):
    """Variances."""

    process: jax.Array  # [D] Q
    sensor: jax.Array  # [D] R


class Innovations(NamedTuple):
    """What the numbers of each observation add to all that is known before them, the D numbers one by one."""

    value: jax.Array  # [T, D] the number less its prediction; 0 beyond the end of an episode
    variance: jax.Array  # [T, D] of it; 1 beyond the end


class Data(NamedTuple):
    """A log on the device."""

    obs: jax.Array  # [E, T + 1, D]
    action: jax.Array  # [E, T] or [E, T, A]
    length: jax.Array  # [E]
    own: Any  # [E, T] what each step has for its prediction: a random key, or a simulator's `Table`
    weight: jax.Array  # [E] how often each episode counts


class Score(NamedTuple):
    """The log-likelihood at a point, and how it changes; `penalised` adds to all three."""

    log_likelihood: jax.Array  # []
    gradient: jax.Array  # [n]
    information: jax.Array  # [n, n] Fisher's, given the log: positive semidefinite


class Unknowns(NamedTuple):
    """What the vector x [n] stands for. It can be hashed, as the dynamics can."""

    dynamics: Dynamics | Surrogate
    positive: tuple[bool, ...]  # [N] the parameters whose logarithms are in x

    @property
    def parameters(self) -> int:
        """N, the number of parameters, which are the first of x."""
        return len(self.positive)

    @property
    def steady(self) -> np.ndarray:
        """The coordinates in which the environment itself is not random."""
        return np.flatnonzero(~np.array(self.dynamics.random))

    @property
    def least(self) -> np.ndarray:
        """[D] the least variances."""
        return (_LEAST * np.array(self.dynamics.scale)) ** 2

    def theta(self, x: Any) -> Any:
        """θ [N]."""
        arrays, positive, own = x.__array_namespace__(), np.array(self.positive), x[: self.parameters]
        return arrays.where(positive, arrays.exp(arrays.where(positive, own, 0.0)), own)

    def noise(self, x: jax.Array) -> Noise:
        """Q and R."""
        process, sensor = jnp.split(x[self.parameters :], [len(self.steady)])
        return Noise(jnp.asarray(self.least).at[self.steady].set(process), sensor)

    def pack(self, theta: np.ndarray, process: np.ndarray, sensor: np.ndarray) -> np.ndarray:
        """The vector x; noises are brought between their ends."""
        logs = [np.log(t) if positive else t for t, positive in zip(theta, self.positive, strict=True)]
        low, high = self.noise_ends()
        return np.concatenate([logs, np.clip([*process[self.steady], *sensor], low, high)])

    def noise_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest that the noises in x can be."""
        low = np.concatenate([self.least[self.steady], self.least])
        return low, low * (_MOST / _LEAST) ** 2


def penalised(unknowns: Unknowns, x: np.ndarray, score: Score) -> Score:
    """A score with ¼ Σ log q of the variances q in x.

    Args:
      unknowns: what x stands for.
      x: [n].
      score: of the log at x.
    """
    first = unknowns.parameters
    q, gradient, information = x[first:], np.array(score.gradient), np.array(score.information)
    gradient[first:] += _PENALTY / q
    information[np.arange(first, len(x)), np.arange(first, len(x))] += _PENALTY / q**2
    return Score(score.log_likelihood + _PENALTY * np.log(q).sum(), gradient, information)  # type: ignore[arg-type]


class Belief(NamedTuple):
    """What is known of the true observation z(t), given those seen up to t."""

    mean: jax.Array  # [D]
    covariance: jax.Array  # [D, D]


def filter_step(
    predict: Predict,
    theta: jax.Array,
    noise: Noise,
    before: Belief,
    obs: jax.Array,
    action: jax.Array,
    own: Any,
) -> tuple[Belief, Innovations]:
    """One step of the extended Kalman filter: what is known after it, and the innovations [D] of it.

    Sensor noise is independent, so that the D numbers of an observation are taken in one by one, without a matrix to
    invert.

    Args:
      predict: F with its slope, and the environment's own spread.
      theta: θ [N].
      noise: Q and R, their diagonals.
      before: what is known of z(t).
      obs: y(t+1) [D].
      action: a(t) [] or [A].
      own: what the step has for its prediction.
    """
    ahead = predict(theta, before.mean, action, own)
    m, P = ahead.mean, ahead.slope @ before.covariance @ ahead.slope.T + ahead.spread + jnp.diag(noise.process)
    value, variance = [], []
    for i in range(obs.shape[-1]):
        e, s = obs[i] - m[i], P[i, i] + noise.sensor[i]
        gain = P[:, i] / s
        m, P = m + gain * e, P - s * jnp.outer(gain, gain)
        value.append(e)
        variance.append(s)
    return Belief(m, P), Innovations(jnp.stack(value), jnp.stack(variance))


def filter_episode(
    predict: Predict,
    theta: jax.Array,
    noise: Noise,
    obs: jax.Array,
    action: jax.Array,
    length: jax.Array,
    own: Any,
) -> Innovations:
    """The extended Kalman filter over an episode, which begins with what the first observation tells.

    Args:
      predict: F with its slope, and the environment's own spread.
      theta: θ [N].
      noise: Q and R, their diagonals.
      obs: y [T + 1, D].
      action: a [T] or [T, A].
      length: steps of the episode, at most T.
      own: [T] what each step has for its prediction.
    """

    def step(before: Belief, now: Any) -> tuple[Belief, Innovations]:
        y, a, its_own, alive = now
        after, (e, s) = filter_step(predict, theta, noise, before, y, a, its_own)
        following = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after, before)
        return following, Innovations(jnp.where(alive, e, 0.0), jnp.where(alive, s, 1.0))

    alive = jnp.arange(action.shape[0]) < length
    first = Belief(obs[0], jnp.diag(noise.sensor))
    return jax.lax.scan(step, first, (obs[1:], action, own, alive))[1]


def as_data(log: Log, tables: Table | None = None) -> Data:
    """A log on the device, in double precision, which the caller turns on.

    Args:
      log: the log.
      tables: [E, T, …] what a simulator has answered in each step; None for environments in JAX.
    """
    episodes, steps = log.action.shape[:2]
    more = -steps % _STEPS
    pad, kind = [(0, 0), (0, more)], float if log.action.ndim > 2 else "int32"
    # The last step once more: numbers that no likelihood counts, but finite ones.
    padded = jax.tree.map(lambda part: jnp.asarray(np.pad(part, pad + [(0, 0)] * (part.ndim - 2), mode="edge")), tables)
    return Data(
        jnp.asarray(np.pad(log.obs, [*pad, (0, 0)])),
        jnp.asarray(np.pad(log.action, pad + [(0, 0)] * (log.action.ndim - 2)), kind),
        jnp.asarray(log.length),
        jax.random.split(jax.random.key(0), (episodes, steps + more)) if tables is None else padded,
        jnp.ones(episodes),
    )


@functools.lru_cache(maxsize=8)
def innovations_of(unknowns: Unknowns) -> Callable[[jax.Array, Data], Innovations]:
    """A compiled function that gives the innovations [E, T, D] of all episodes at a point x."""

    def innovations(x: jax.Array, data: Data) -> Innovations:
        theta, noise = unknowns.theta(x), unknowns.noise(x)
        each = functools.partial(filter_episode, unknowns.dynamics.predict, theta, noise)
        return jax.vmap(each)(data.obs, data.action, data.length, data.own)

    return jax.jit(innovations)


@functools.lru_cache(maxsize=8)
def score_of(unknowns: Unknowns) -> Callable[[jax.Array, Data], Score]:
    """A compiled function that gives the log-likelihood of a log at a point x, its gradient and its information.

    With the innovations e, their variances s and their derivatives e' and s' with respect to x,

        ℓ = −½ Σ log 2πs + e²/s,   ∇ℓ = −Σ e e'/s + ½ (1 − e²/s) s'/s,   I = Σ e' e'ᵀ/s + ½ s' s'ᵀ/s²

    where I is what −∇²ℓ is expected to be, so that first derivatives are enough for the steps of Newton's method.
    """
    innovations = innovations_of(unknowns)

    def score(x: jax.Array, data: Data) -> Score:
        def push(direction: jax.Array) -> tuple[Innovations, Innovations]:
            return jax.jvp(lambda at: innovations(at, data), (x,), (direction,))

        (e, s), (de, ds) = jax.vmap(push, out_axes=(None, 0))(jnp.eye(x.shape[0]))
        alive = (jnp.arange(e.shape[1]) < data.length[:, None]) * data.weight[:, None]
        w = jnp.broadcast_to(alive[..., None], e.shape)
        u = e / jnp.sqrt(s)
        of_mean, of_variance = (each.reshape(len(x), -1) for each in (de / jnp.sqrt(s), ds / s))
        w, u = w.ravel(), u.ravel()
        return Score(
            -0.5 * jnp.sum(w * (jnp.log(2 * jnp.pi * s.ravel()) + u**2)),
            -(of_mean @ (w * u) + 0.5 * of_variance @ (w * (1 - u**2))),
            (of_mean * w) @ of_mean.T + 0.5 * (of_variance * w) @ of_variance.T,
        )

    return jax.jit(score)


@functools.lru_cache(maxsize=8)
def one_step_of(unknowns: Unknowns) -> Callable[[jax.Array, Data], tuple[jax.Array, jax.Array]]:
    """A compiled function that tries parameters θ [K, N] by one-step prediction from the observations themselves.

    It gives how likely the log then is [K], as if the sensors were exact, and the mean squared errors [K, D].
    """
    predict = unknowns.dynamics.roughly
    least, random = unknowns.least, np.array(unknowns.dynamics.random)

    def tried(theta: jax.Array, data: Data) -> tuple[jax.Array, jax.Array]:
        ahead = jax.vmap(jax.vmap(functools.partial(predict, theta)))(data.obs[:, :-1], data.action, data.own)
        alive = (jnp.arange(data.action.shape[1]) < data.length[:, None])[..., None]
        squares = jnp.where(alive, (data.obs[:, 1:] - ahead.mean) ** 2, 0.0)
        errors = squares.sum((0, 1)) / data.length.sum()
        s = jnp.diagonal(ahead.spread, axis1=-2, axis2=-1) + jnp.where(random, 0.0, errors) + least
        return -0.5 * jnp.sum(jnp.where(alive, jnp.log(s) + squares / s, 0.0)), errors

    return jax.jit(lambda thetas, data: jax.lax.map(lambda theta: tried(theta, data), thetas))
