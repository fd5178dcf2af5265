"""What a simulator predicts, as polynomials of the parameters.

A simulator has no derivatives, and a step of it is slow beside one that is compiled. So it is asked once, before the
likelihood is searched: what follows each observation of a log under some models, and how that changes with the
observation. In between, the answers of a step are Chebyshev polynomials of the parameters.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from deeprok.core.errors import DeeprokError
from deeprok.environments.host import HostEnvironment, asked, model_of
from deeprok.environments.simulation import random_action
from deeprok.identification.dynamics import Prediction
from deeprok.identification.log import Log

#: Degrees of the polynomials for so many parameters; the last are for any more. How the answers change with the
#: observation matters less, and takes more questions.
_DEGREES = (12, 8, 6, 5, 4, 3)
_SLOPE_DEGREES = (3, 2, 1)
#: Models by which the polynomials are tried.
_TRIED = 8
#: Half a difference of observations, as a share of their typical size; Gymnasium rounds them to single precision.
_DIFFERENCE = 1e-3
_CHECKED_STEPS, _TOLERANCE = 10, 1e-4  # the latter as a share of an observation's typical size


class Table(NamedTuple):
    """What a simulator answers from one observation."""

    obs: Any  # [D] the observation
    mean: Any  # [K, D] coefficients of the next one
    slope: Any  # [L, D, D] coefficients of its derivative with respect to the observation
    centre: Any  # [N] of the parameters that it was asked for, as logarithms where they are positive
    half: Any  # [N] half the width of their range


class Surrogate(NamedTuple):
    """A simulator in which some parameters are arguments, in the place of `Dynamics`. It can be hashed."""

    names: tuple[str, ...]  # of the N parameters that are arguments
    positive: tuple[bool, ...]  # [N] whose polynomials are those of their logarithms
    scale: tuple[float, ...]  # [D] typical sizes of the observations

    @property
    def random(self) -> tuple[bool, ...]:
        """[D] whether the simulator itself is random there; none that is can be asked."""
        return (False,) * len(self.scale)

    def predict(self, theta: Any, obs: Any, action: Any, table: Table) -> Prediction:
        """What follows an observation that is not far from the table's."""
        del action  # the table's
        arrays, positive = theta.__array_namespace__(), np.array(self.positive)
        x = arrays.where(positive, arrays.log(arrays.where(positive, theta, 1.0)), theta)
        at = (x - table.centre) / table.half
        slope = arrays.tensordot(basis(at, self._slope_terms), table.slope, 1)
        mean = basis(at, self._terms) @ table.mean + slope @ (obs - table.obs)
        return Prediction(mean, slope, jnp.zeros((len(self.scale),) * 2))

    @property
    def roughly(self) -> Callable[..., Prediction]:
        """The same; there is nothing to save."""
        return self.predict

    @property
    def _terms(self) -> np.ndarray:
        return terms(len(self.names), _DEGREES[: len(self.names)][-1])

    @property
    def _slope_terms(self) -> np.ndarray:
        return terms(len(self.names), _SLOPE_DEGREES[: len(self.names)][-1])


class FailsError(Exception):
    """The simulator fails under some of the models that it is asked for."""


class Asked(NamedTuple):
    """A log with what the simulator answers in each of its steps."""

    tables: Table  # [E, T, …]; 0 beyond the end of an episode
    error: np.ndarray  # [D] of the polynomials, the root of the mean square over models that were not fitted


@functools.cache
def terms(count: int, degree: int) -> np.ndarray:
    """[K, N] the degrees in each of N variables of all products of at most this degree."""
    each = itertools.product(range(degree + 1), repeat=count)
    return np.array([powers for powers in each if sum(powers) <= degree])


def basis(at: Any, powers: np.ndarray) -> Any:
    """[K] products of Chebyshev polynomials.

    Args:
      at: [N] variables between −1 and 1.
      powers: [K, N] their degrees.
    """
    arrays = at.__array_namespace__()
    each = [arrays.ones_like(at), at]
    while len(each) <= powers.max():
        each.append(2 * at * each[-1] - each[-2])
    return arrays.prod(arrays.stack(each)[powers, np.arange(powers.shape[1])], axis=1)


def ask(
    env: HostEnvironment,
    surrogate: Surrogate,
    low: np.ndarray,
    high: np.ndarray,
    log: Log,
    seed: int,
    advance: Callable[[float], None],
) -> Asked:
    """Asks a simulator what follows each observation of a log; raises `FailsError` if it fails under a model.

    Args:
      env: the simulator.
      surrogate: what is to be known of it.
      low: [N] least values of the parameters, as logarithms where they are positive.
      high: [N] largest values.
      log: the log.
      seed: of the models.
      advance: called with the fraction of the work done since its last call.
    """
    mean_terms, slope_terms = surrogate._terms, surrogate._slope_terms
    centre, half = (low + high) / 2, (high - low) / 2
    count, few = _models_for(mean_terms), _models_for(slope_terms)
    cube = qmc.Sobol(len(low), seed=seed).random(2 * count)
    # Dense at the ends, where polynomials go astray otherwise; those that they are tried by are even.
    at = np.vstack([np.cos(np.pi * cube[:count]), 2 * cube[count : count + _TRIED] - 1])
    x = centre + half * at
    models = dict(zip(surrogate.names, np.where(surrogate.positive, np.exp(x), x).T, strict=True))
    fewer = {name: values[:few] for name, values in models.items()}
    fit, fit_slope = (
        np.linalg.pinv(np.stack([basis(point, powers) for point in at[:nodes]]))
        for powers, nodes in ((mean_terms, count), (slope_terms, few))
    )
    tried = np.stack([basis(point, mean_terms) for point in at[count:]])
    simulator, size = _Questions(env), len(surrogate.scale)
    shifts = _DIFFERENCE * np.diag(surrogate.scale)
    steps = np.argwhere(np.arange(log.action.shape[1]) < log.length[:, None])
    mean = np.zeros((*log.action.shape[:2], len(mean_terms), size))
    slope = np.zeros((*log.action.shape[:2], len(slope_terms), size, size))
    squares = np.zeros(size)
    for episode, t in steps.tolist():
        obs, action = log.obs[episode, t], log.action[episode, t]
        answers = simulator.answers(obs, action, models)
        sides = [
            simulator.answers(obs + shift, action, fewer) - simulator.answers(obs - shift, action, fewer)
            for shift in shifts
        ]
        mean[episode, t] = fit @ answers[:count]
        changes = np.stack(sides, axis=-1) / (2 * np.diag(shifts))  # [few, D, D]
        slope[episode, t] = np.tensordot(fit_slope, changes, 1)
        squares += np.mean((tried @ mean[episode, t] - answers[count:]) ** 2, axis=0)
        advance(1 / len(steps))
    everywhere = (*log.action.shape[:2], len(low))
    tables = Table(log.obs[:, :-1], mean, slope, np.broadcast_to(centre, everywhere), np.broadcast_to(half, everywhere))
    return Asked(tables, np.sqrt(squares / len(steps)))


def _models_for(powers: np.ndarray) -> int:
    """Models that a polynomial is fitted to: at least twice as many as coefficients, and a power of 2."""
    return 2 ** int(np.ceil(np.log2(2 * len(powers))))


class _Questions:
    """A simulation that is put where an observation says before each question."""

    def __init__(self, env: HostEnvironment, seed: int = 0) -> None:
        self._env, self.simulator = env, asked(env.make)
        asked(self.simulator.reset, seed, model_of(env, {}))

    def answers(self, obs: np.ndarray, action: Any, models: dict[str, np.ndarray]) -> np.ndarray:
        """[M, D] what follows an observation under each model; raises `FailsError` if the simulator fails."""
        assert self._env.place
        asked(self._env.place, self.simulator, obs)
        before = sum(self.simulator.failures.values())
        found: np.ndarray = asked(self.simulator.outcomes, action, models).obs
        if sum(self.simulator.failures.values()) > before:
            raise FailsError
        return found


def check_simulator(env: HostEnvironment) -> None:
    """Raises unless observations determine the state of a simulator, and it answers alike each time."""
    if env.branching != "restored":
        why = f": {env.problem}" if env.problem else ""
        raise DeeprokError(f"env is '{env.name}', whose state can't be restored{why}; identify can't be used with it")
    if env.place is None:
        raise DeeprokError(
            f"env is '{env.name}', and nothing says which state an observation stands for; give from_gymnasium the "
            "arguments state and state_of, or to a MujocoTask its state_of"
        )
    one, other, third = (_Questions(env, seed) for seed in (0, 0, 1))
    margin, draws = _TOLERANCE * np.array(env.observation_scale), np.random.default_rng(0)
    name = next(iter(env.box), None) or next(iter(env.nominal.__dataclass_fields__))
    model = {name: np.array([float(getattr(env.nominal, name))])}
    obs = one.simulator.reset(0, model_of(env, {}))
    for _ in range(_CHECKED_STEPS):
        action = random_action(env.actions, draws)
        direct = asked(one.simulator.outcomes, action, model).obs
        placed, again = other.answers(obs, action, model), third.answers(obs, action, model)
        if np.any(np.abs(placed - again) > margin):
            raise DeeprokError(
                f"env is '{env.name}', which is itself random: the same action in the same state has other outcomes; "
                "identify takes such environments in JAX only"
            )
        if np.any(np.abs(direct - placed) > margin):
            raise DeeprokError(
                f"env is '{env.name}', and what its state_of makes of an observation is not its state: the same action "
                "has another outcome there; identify can't be used where part of the state is not seen"
            )
        taken = asked(one.simulator.step, action)
        obs = one.simulator.reset(0, model_of(env, {})) if taken.terminated else taken.obs
