"""How likely what was seen is: under the best model of the box, and under models and noises that are not of it.

A bank of models runs side by side, each with the extended Kalman filter of `identification.likelihood`. Some lie in the
box, some around it, and a few places are for the most likely models, once they are found. With what was seen of a
segment, y, and a mixture q over the alternatives whose weights never look ahead,

    E = q(y) / max p(y; θ, c)    over θ in the box and 1 ≤ c ≤ 1.5

is 1 or less on average for every system of the box (L. Wasserman, A. Ramdas and S. Balakrishnan, "Universal inference",
PNAS, 2020). All noises are c times as large as stated, which multiplies the innovations' variances and changes nothing
else. The bank's own maximum is at most the true one. So it only says when to look closer: before E counts, the maximum
is climbed to (`likeliest`).

A stateful simulator is asked about each step before it counts, and what it predicts are polynomials of the parameters
(`identification.surrogate`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from deeprok.core.errors import DeeprokError
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.host import HostEnvironment, asked, model_of
from deeprok.environments.simulation import random_action
from deeprok.identification.dynamics import Dynamics, make_dynamics
from deeprok.identification.fit import Bounds
from deeprok.identification.identify import is_positive, search_ends
from deeprok.identification.likelihood import Belief, Unknowns, filter_step
from deeprok.identification.result import Noise
from deeprok.identification.surrogate import Asker, FailsError, Surrogate, check_simulator

#: How many models of the box, how many around it, and how many places for those that are found: of all, and of the box.
_INSIDE, _OUTSIDE, _FOUND, FOUND_INSIDE = 32, 32, 4, 4
#: A noise that is up to so many times as large as stated counts as that of the box.
NOISE_UP_TO = 1.5
#: The noises of the alternatives. Those beyond `NOISE_UP_TO` are for models of the box too: no parameter explains them.
_SCALES = np.array([1.0, NOISE_UP_TO, 3.0, 8.0, 30.0])
LARGER = _SCALES > NOISE_UP_TO
#: The share of the alternatives' weight that a found model gets, and that the first weights get back in a new segment.
SHARE, _FORGOTTEN = 0.25, 0.1
#: Models around a range go as far from it as it is wide, or as this share of its middle.
_LEAST_WIDTH = 1 / 3
#: Steps by which a simulator is tried, and how often models around the box are brought nearer to it, by half, where it
#: fails or its polynomials are this wrong, as a share of the noise.
_TRIED_STEPS, _NEARER, WRONG = 10, 4, 0.1
#: What the noise is at least taken for there, of an observation's typical size.
_LEAST_NOISE = 1e-5


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
    own: Any  # [T, …] what each step has for its prediction: a simulator's `Table`, or a number for its random key
    steps: int


class Watched(NamedTuple):
    """The models of a box and those around it."""

    unknowns: Unknowns
    box: Bounds  # [N]
    around: Bounds  # [N]
    noises: np.ndarray  # the noises of `Unknowns.pack`
    first: Bank
    asker: Asker | None  # of a simulator
    wrong: float  # error of the polynomials of its answers, as a share of the noise

    @property
    def numbers(self) -> int:
        """D, how many numbers a step is seen by."""
        return self.first.mean.shape[1]

    @property
    def found(self) -> slice:
        """The places of the bank for the most likely models."""
        return slice(-_FOUND - FOUND_INSIDE, -FOUND_INSIDE)

    @property
    def found_inside(self) -> slice:
        """And for those of the box."""
        return slice(-FOUND_INSIDE, None)

    def empty(self, length: int, action: np.ndarray) -> Segment:
        """A segment of at most so many steps, in which nothing was seen yet; with an example of an action."""
        surrogate = self.unknowns.dynamics
        return Segment(
            obs=np.zeros((length + 1, self.numbers)),
            action=np.zeros((length, *action.shape), action.dtype),
            own=surrogate.empty(length) if isinstance(surrogate, Surrogate) else np.arange(length),
            steps=0,
        )

    def inside(self, x: np.ndarray) -> np.ndarray:
        """[…] bool, which models […, N] are of the box."""
        return _inside(self.box, x)

    def theta(self, x: np.ndarray) -> dict[str, float]:
        """A model's parameters by name."""
        return dict(zip(self.unknowns.dynamics.names, np.asarray(self.unknowns.theta(x)).tolist(), strict=True))


def noise_scale(index: int) -> float:
    """How many times as large as stated the noise of an alternative is."""
    return float(_SCALES[index])


def watch(env: AnyEnvironment, box: dict[str, tuple[float, float]], noise: Noise) -> Watched:
    """The models that a guard compares.

    Args:
      env: the environment, without disturbances and memory; of a simulator the observations must determine the state.
      box: the ranges of its uncertain parameters.
      noise: standard deviations.
    """
    names, env = tuple(box), env._replace(box=box)
    positive = tuple(is_positive(env, name) for name in names)
    dynamics: Dynamics | Surrogate
    if isinstance(env, HostEnvironment):
        check_simulator(env, "a guard")
    else:
        dynamics = make_dynamics(env, names, "a guard")
    nominal = np.array([float(getattr(env.nominal, name)) for name in names])

    def as_x(theta: np.ndarray) -> np.ndarray:
        return np.array([np.log(t) if p else t for t, p in zip(theta, positive, strict=True)])

    wide = env._replace(box={name: _not_narrow(*ends) for name, ends in box.items() if ends[0] < ends[1]})
    ends = np.array([search_ends(wide, name, each) for name, each in zip(names, positive, strict=True)])
    low, high = (as_x(np.array([box[name][end] for name in names])) for end in (0, 1))
    inner, outer = Bounds(low, high), Bounds(np.minimum(ends[:, 0], low), np.maximum(ends[:, 1], high))
    process, sensor = (np.square(each) for each in (noise.process, noise.sensor))
    asker, wrong = None, 0.0
    if isinstance(env, HostEnvironment):
        dynamics, asker, outer, wrong = _way_to_ask(env, positive, inner, outer, noise)
    unknowns = Unknowns(dynamics, positive)
    noises = unknowns.pack(nominal, process, sensor)[len(names) :]
    cube = qmc.Sobol(len(names), seed=0).random(2048)
    around = outer.low + cube * outer.width
    around = around[~_inside(inner, around)][:_OUTSIDE]
    within = np.vstack([np.clip(as_x(nominal), low, high), inner.low + cube[: _INSIDE - 1] * inner.width])
    x = np.vstack([within, around, np.repeat(within[:1], _FOUND + FOUND_INSIDE, axis=0)])
    size = len(env.observation_scale)
    kinds = np.concatenate([np.zeros(len(within)), np.ones(len(around)), np.full(_FOUND + FOUND_INSIDE, np.nan)])
    first = Bank(
        x=x,
        mean=np.zeros((len(x), size)),
        covariance=np.zeros((len(x), size, size)),
        logs=np.zeros(len(x)),
        squares=np.zeros(len(x)),
        weight=_first_weights(kinds),
    )
    return Watched(unknowns, inner, outer, noises, first, asker, wrong)


class _Asked(NamedTuple):
    """How a simulator is asked."""

    surrogate: Surrogate
    asker: Asker
    around: Bounds  # models that it is asked for
    wrong: float  # error of its polynomials, as a share of the noise


def _way_to_ask(env: HostEnvironment, positive: tuple[bool, ...], box: Bounds, around: Bounds, noise: Noise) -> _Asked:
    """How to ask a simulator: by few questions if they do, and as far from the box as its polynomials are good.

    Args:
      env: the simulator.
      positive: which parameters have their logarithms in x.
      box: where they must be good.
      around: the models that are wanted.
      noise: standard deviations.
    """
    process, sensor = (np.array(each) for each in (noise.process, noise.sensor))
    unpredicted = np.sqrt(process**2 + 2 * sensor**2) + _LEAST_NOISE * np.array(env.observation_scale)
    played, found = _random_play(env), []
    for quick in (True, False):
        surrogate, wanted = Surrogate(tuple(env.box), positive, tuple(env.observation_scale), quick), around
        for _ in range(_NEARER):
            asker = Asker(env, surrogate, *wanted, seed=0, sensor=sensor)
            try:
                errors = [asker.table(obs, action).error for obs, action in played]
                wrong = float(np.max(np.sqrt(np.mean(errors, axis=0)) / unpredicted))
                found.append(_Asked(surrogate, asker, wanted, wrong))
                if wrong < WRONG:
                    return found[-1]
            except FailsError:
                pass
            wanted = Bounds((wanted.low + box.low) / 2, (wanted.high + box.high) / 2)
    if not found:
        raise DeeprokError(
            f"{env.name} fails under models of the box, or very close to it; a guard needs a box in which it works"
        )
    return min(found, key=lambda each: each.wrong)


def _random_play(env: HostEnvironment) -> list[tuple[np.ndarray, Any]]:
    """Observations and actions of some steps on the nominal model."""
    simulator, draws, played = env.make(), np.random.default_rng(0), []
    obs = asked(simulator.reset, 0, model_of(env, {}))
    for _ in range(_TRIED_STEPS):
        played.append((obs, random_action(env.actions, draws)))
        taken = asked(simulator.step, played[-1][1])
        obs = asked(simulator.reset, 0, model_of(env, {})) if taken.terminated else taken.obs
    return played


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
    weight[np.ix_(kinds == 1, ~LARGER)] = 1.0
    weight /= 2 * max(weight.sum(), 1.0)
    larger = np.zeros_like(weight)
    larger[np.ix_(~np.isnan(kinds), LARGER)] = 1.0
    weight += larger / larger.sum() * (1 - weight.sum())
    with np.errstate(divide="ignore"):
        return np.log(weight)


# --- a step --------------------------------------------------------------------------------------------------------


def begin(watched: Watched, bank: Bank, obs: np.ndarray) -> Bank:
    """The bank at the start of a segment, which knows what its first observation tells.

    Weights are those of the segment before, and a share of the first ones, so that a system may change.
    """
    after = bank.weight - log_sum(bank.weight)
    sensor = np.asarray(watched.unknowns.noise(jnp.asarray(np.append(bank.x[0], watched.noises))).sensor)
    count = len(bank.x)
    return bank._replace(
        mean=np.tile(obs, (count, 1)),
        covariance=np.tile(np.diag(sensor), (count, 1, 1)),
        logs=np.zeros(count),
        squares=np.zeros(count),
        weight=np.logaddexp(np.log(1 - _FORGOTTEN) + after, np.log(_FORGOTTEN) + watched.first.weight),
    )


def own_of(unknowns: Unknowns, own: Any) -> Any:
    """What a step has for its prediction, of that in a segment."""
    return own if isinstance(unknowns.dynamics, Surrogate) else jax.random.fold_in(jax.random.key(0), own)


@functools.lru_cache(maxsize=8)
def _step_of(unknowns: Unknowns) -> Callable[..., tuple[jax.Array, ...]]:
    """A compiled step of all models: beliefs after it, Σ log 2πs and Σ e²/s of it."""

    def step(x: Any, noises: Any, before: Belief, obs: Any, action: Any, own: Any) -> tuple[jax.Array, ...]:
        noise, theta = unknowns.noise(jnp.append(x, noises)), unknowns.theta(x)
        predict, its_own = unknowns.dynamics.predict, own_of(unknowns, own)
        after, (e, s) = filter_step(predict, theta, noise, before, obs, action, its_own)
        return *after, jnp.sum(jnp.log(2 * jnp.pi * s)), jnp.sum(e**2 / s)

    return jax.jit(jax.vmap(step, (0, None, 0, None, None, None)))


def extended(watched: Watched, segment: Segment, obs: np.ndarray, action: np.ndarray, following: np.ndarray) -> Segment:
    """The segment with one more step; raises `FailsError` if a simulator fails in it.

    Args:
      watched: the models.
      segment: what was seen before.
      obs: [D] before the action.
      action: [] or [A].
      following: [D] after it.
    """
    seen, acted, own = jax.tree.map(np.copy, segment[:3])
    t = segment.steps
    seen[t], seen[t + 1], acted[t] = obs, following, action
    if watched.asker:
        for kept, found in zip(own, watched.asker.table(obs, action), strict=True):
            kept[t] = found
    return Segment(seen, acted, own, t + 1)


def advance(watched: Watched, bank: Bank, segment: Segment) -> Bank:
    """The bank after the last step of a segment.

    Args:
      watched: the models.
      bank: what is known of them before it.
      segment: what was seen.
    """
    last, before = segment.steps - 1, Belief(bank.mean, bank.covariance)  # type: ignore[arg-type]
    own = jax.tree.map(lambda part: part[last], segment.own)
    found = _step_of(watched.unknowns)(bank.x, watched.noises, before, segment.obs[last + 1], segment.action[last], own)
    mean, covariance, logs, squares = map(np.asarray, found)
    # A model whose prediction is no number explains nothing.
    logs, squares = np.where(np.isfinite(logs), logs, 0.0), np.where(np.isfinite(squares + logs), squares, np.inf)
    gained = log_likelihood(logs[:, None], squares[:, None], watched.numbers, _SCALES)
    return Bank(bank.x, mean, covariance, bank.logs + logs, bank.squares + squares, bank.weight + gained)


def log_likelihood(logs: Any, squares: Any, count: int, scale: Any) -> Any:
    """Of `count` innovations, if all noises are `scale` times as large."""
    return -0.5 * logs - count * scale.__array_namespace__().log(scale) - 0.5 * squares / scale**2


def best_scale(squares: Any, count: Any) -> Any:
    """The most likely scale of the noises, of those that count as that of the box."""
    arrays = squares.__array_namespace__()
    return arrays.clip(arrays.sqrt(squares / count), 1.0, NOISE_UP_TO)


def best_likelihood(logs: Any, squares: Any, count: Any) -> Any:
    """Of `count` innovations, with the most likely of these scales."""
    return log_likelihood(logs, squares, count, best_scale(squares, count))


def log_sum(logs: np.ndarray) -> float:
    """The logarithm of a sum."""
    most = logs.max()
    return float(most + np.log(np.sum(np.exp(logs - most)))) if np.isfinite(most) else float(most)


def likelihoods(watched: Watched, bank: Bank, steps: int) -> np.ndarray:
    """[K] how likely the segment is under each model, with its most likely noise."""
    return np.asarray(best_likelihood(bank.logs, bank.squares, max(steps * watched.numbers, 1)))


def log_e_value(watched: Watched, bank: Bank, steps: int, climbed: float = -np.inf) -> float:
    """The logarithm of E, with the best model of the bank for the best of the box: at least what E is.

    Args:
      watched: the models.
      bank: what is known of them.
      steps: of the segment.
      climbed: the largest likelihood in the box, if it was climbed to.
    """
    null = max(climbed, likelihoods(watched, bank, steps)[watched.inside(bank.x)].max())
    return log_sum(bank.weight) - float(null) if np.isfinite(null) else np.inf
