"""What a simulator predicts, as polynomials of the parameters.

A simulator has no derivatives, and a step of it is slow beside one that is compiled. So it is asked once, before the
likelihood is searched: what follows an observation under some models, and how that changes with the observation. In
between, the answers of a step are Chebyshev polynomials of the parameters, and linear in the observation. Models that
were not fitted tell how wrong the former are in each step, and answers beside the observation how wrong the latter is.
Both errors count as noise of the step, so that a likelihood is no surer than what it rests on.
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
#: observation matters less, and takes more questions. Those of a quick surrogate are for answers between two steps.
_DEGREES, _QUICK_DEGREES = (12, 8, 6, 5, 4, 3), (6, 4, 3, 2)
_SLOPE_DEGREES, _QUICK_SLOPE_DEGREES = (3, 2, 1), (1,)
#: Models by which the polynomials are tried.
_TRIED = 8
#: Half a difference of observations at least, as a share of their typical size; Gymnasium rounds them to single
#: precision. And where nothing is known of the sensors.
_LEAST_DIFFERENCE, _DIFFERENCE = 1e-3, 5e-3
#: The fourth moment of a normal variable, by which an error a u² of a line has the mean square 3 a².
_FOURTH = 3.0
_CHECKED_STEPS, _TOLERANCE = 10, 1e-4  # the latter as a share of an observation's typical size


class Table(NamedTuple):
    """What a simulator answers from one observation."""

    obs: Any  # [D] the observation
    mean: Any  # [K, D] coefficients of the next one
    slope: Any  # [L, D, D] coefficients of its derivative with respect to the observation
    error: Any  # [D] mean square error of the next observation
    centre: Any  # [N] of the parameters that it was asked for, as logarithms where they are positive
    half: Any  # [N] half the width of their range


class Surrogate(NamedTuple):
    """A simulator in which some parameters are arguments, in the place of `Dynamics`. It can be hashed."""

    names: tuple[str, ...]  # of the N parameters that are arguments
    positive: tuple[bool, ...]  # [N] whose polynomials are those of their logarithms
    scale: tuple[float, ...]  # [D] typical sizes of the observations
    quick: bool = False  # whether to ask fewer questions

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
        return Prediction(mean, slope, jnp.diag(table.error))

    @property
    def roughly(self) -> Callable[..., Prediction]:
        """The same; there is nothing to save."""
        return self.predict

    def empty(self, *first: int) -> Table:
        """Tables that predict 0 without an error, with these first axes."""
        count, size = len(self.names), len(self.scale)
        return Table(
            obs=np.zeros((*first, size)),
            mean=np.zeros((*first, len(self._terms), size)),
            slope=np.zeros((*first, len(self._slope_terms), size, size)),
            error=np.zeros((*first, size)),
            centre=np.zeros((*first, count)),
            half=np.ones((*first, count)),
        )

    @property
    def _terms(self) -> np.ndarray:
        return terms(len(self.names), (_QUICK_DEGREES if self.quick else _DEGREES)[: len(self.names)][-1])

    @property
    def _slope_terms(self) -> np.ndarray:
        degrees = _QUICK_SLOPE_DEGREES if self.quick else _SLOPE_DEGREES
        return terms(len(self.names), degrees[: len(self.names)][-1])


class FailsError(Exception):
    """The simulator fails under some of the models that it is asked for."""


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


class Asker:
    """Asks a simulator what follows an observation, under models between some ends.

    Args:
      env: the simulator.
      surrogate: what is to be known of it.
      low: [N] least values of the parameters, as logarithms where they are positive.
      high: [N] largest values.
      seed: of the models.
      sensor: [D] standard deviations of the sensors, by which the true observation may differ; a guess if None.
    """

    def __init__(
        self,
        env: HostEnvironment,
        surrogate: Surrogate,
        low: np.ndarray,
        high: np.ndarray,
        seed: int,
        sensor: np.ndarray | None = None,
    ) -> None:
        mean_terms, slope_terms = surrogate._terms, surrogate._slope_terms
        self._centre, self._half = (low + high) / 2, (high - low) / 2
        self._count, few = _models_for(mean_terms), _models_for(slope_terms)
        cube = qmc.Sobol(len(low), seed=seed).random(2 * self._count)
        # Dense at the ends, where polynomials go astray otherwise; those that they are tried by are even.
        at = np.vstack([np.cos(np.pi * cube[: self._count]), 2 * cube[self._count : self._count + _TRIED] - 1])
        x = self._centre + self._half * at
        self._models = dict(zip(surrogate.names, np.where(surrogate.positive, np.exp(x), x).T, strict=True))
        self._fewer = {name: values[:few] for name, values in self._models.items()}
        self._fit, self._fit_slope = (
            np.linalg.pinv(np.stack([basis(point, powers) for point in at[:nodes]]))
            for powers, nodes in ((mean_terms, self._count), (slope_terms, few))
        )
        self._tried = np.stack([basis(point, mean_terms) for point in at[self._count :]])
        self._simulator, scale = _Questions(env), np.array(surrogate.scale)
        self.shift = _DIFFERENCE * scale if sensor is None else np.maximum(sensor, _LEAST_DIFFERENCE * scale)  # [D]

    def table(self, obs: np.ndarray, action: Any) -> Table:
        """What follows an observation; raises `FailsError` if the simulator fails under a model."""
        answers = self._simulator.answers(obs, action, self._models)
        above, below = (
            np.stack([self._simulator.answers(obs + sign * by, action, self._fewer) for by in np.diag(self.shift)], -1)
            for sign in (1, -1)
        )  # [few, D, D]
        mean = self._fit @ answers[: self._count]
        slope = np.tensordot(self._fit_slope, (above - below) / (2 * self.shift), 1)
        of_polynomials = np.mean((self._tried @ mean - answers[self._count :]) ** 2, axis=0)
        bent = (above + below) / 2 - answers[: len(above), :, None]
        error = of_polynomials + _FOURTH * np.mean(np.sum(bent**2, axis=-1), axis=0)
        return Table(obs, mean, slope, error, self._centre, self._half)


def ask(
    asker: Asker,
    surrogate: Surrogate,
    log: Log,
    advance: Callable[[float], None],
) -> Table:
    """Tables [E, T, …] of the steps of a log; raises `FailsError` if the simulator fails under a model.

    Args:
      asker: what asks it.
      surrogate: what is to be known of it.
      log: the log.
      advance: called with the fraction of the work done since its last call.
    """
    tables = surrogate.empty(*log.action.shape[:2])
    steps = np.argwhere(np.arange(log.action.shape[1]) < log.length[:, None])
    for episode, t in steps.tolist():
        for kept, found in zip(tables, asker.table(log.obs[episode, t], log.action[episode, t]), strict=True):
            kept[episode, t] = found
        advance(1 / len(steps))
    return tables


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


def check_simulator(env: HostEnvironment, what: str = "identify") -> None:
    """Raises unless observations determine the state of a simulator, and it answers alike each time.

    Args:
      env: the simulator.
      what: what needs this, for the message.
    """
    if env.branching != "restored":
        why = f": {env.problem}" if env.problem else ""
        raise DeeprokError(f"env is '{env.name}', whose state can't be restored{why}; {what} can't be used with it")
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
                f"{what} takes such environments in JAX only"
            )
        if np.any(np.abs(direct - placed) > margin):
            raise DeeprokError(
                f"env is '{env.name}', and what its state_of makes of an observation is not its state: the same action "
                f"has another outcome there; {what} can't be used where part of the state is not seen"
            )
        taken = asked(one.simulator.step, action)
        obs = one.simulator.reset(0, model_of(env, {})) if taken.terminated else taken.obs
