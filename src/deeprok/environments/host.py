"""Environments that hold their own state: simulators that are no pure functions, such as Gymnasium's.

A driver on the host steps one `Simulator`. What only reads a box, nominal parameters, actions or a horizon takes a
`HostEnvironment` as it takes an `Environment`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.past import Past
from deeprok.environments.spaces import ActionSpace

T = TypeVar("T")

#: How a simulator answers for several models: its state is saved and put back; or there is a copy for each model, all
#: stepped from a common reset, so that their states drift apart; or it can't, which leaves domain randomisation.
Branching = Literal["restored", "copies", "none"]


class HostOutcome(NamedTuple):
    """The outcome of an action under one model, or under each of M models, which then is a first axis."""

    obs: np.ndarray  # [D] or [M, D] float64
    reward: np.ndarray  # [] or [M] float64
    terminated: np.ndarray  # [] or [M] bool; never true merely because time is up


@runtime_checkable
class Simulator(Protocol):
    """One stateful simulation. It is not shared between threads.

    A simulation that fails (its numbers are not finite, the simulator gives up) is a failure of that model:
    `terminated`, with the last finite observation. One that has an attribute `truncated` can end an episode by it, and
    one with a method `set(model)` can change parameters within an episode without a state that is read and written.
    """

    #: How many simulations have failed so far, by what failed.
    failures: dict[str, int]

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        """Begins an episode with these parameters; the first observation [D]."""

    def step(self, action: Any) -> HostOutcome:
        """The outcome of the action on the model of the episode, which moves on."""

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        """The outcomes of the action in the present state under each of M models; the simulation is left as it was.

        All models get the same random numbers.

        Args:
          action: as for `step`.
          models: name -> [M].
        """

    def read(self) -> dict[str, np.ndarray] | None:
        """The state with all that the future depends on, as arrays, for a checkpoint; None if it can't be read.

        Names, shapes and whether numbers are whole must be those of the state after a reset. A run that was stopped
        where they are not, or where it is None, goes on from its next episode.
        """

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        """Puts back what `read` gave, in an episode with these parameters."""


class HostEnvironment(NamedTuple):
    """A stateful simulator and what is known of it, with the names of `Environment`.

    Attributes:
      name: what figures and exported policies call it.
      make: makes a simulation; each process and each seed has its own.
      nominal: the parameters of the nominal model; a `pytree_dataclass` of `quantity` fields (`make_parameters`).
      box: the ranges in which the true parameters are known to lie, by name.
      observation_scale: a typical size of each observation; networks divide by it, unless `input_scale` is set.
      actions: `Choices`, or an `Interval` where an action is a vector of numbers.
      horizon: steps after which an episode is truncated (not terminated).
      success_return: an episode succeeds when its return is above this.
      branching: how it answers for several models.
      problem: why its state can't be restored, where that was found out; empty otherwise.
      grid: none; it can't be solved on a grid of states.
      past: the steps that its observations hold beside the present one
        (`deeprok.environments.host_wrappers.remembering_simulator`); None if they hold the present alone.
      assumed: which of these nothing says, so that a default was taken: `horizon`, `success_return`.
      branched: `(env, branching) -> env`, the same simulator that answers in another way; None if it has but one.
      place: `(simulator, obs) -> None`, puts a simulation where an observation says, by which logs of a real system are
        compared with it; None if observations do not determine the state.
      simulators: how many a run plays in at once where it does not say; more than one of a vector environment.
      processes: whether several have a process each; if not, one process steps them all.
      ahead: `(simulators, actions, models) -> None`, computes the next `outcomes` and `step` of several simulators at
        once, which each of them then has at hand; no models where only the step is needed. None if it can't.
    """

    name: str
    make: Callable[[], Simulator]
    nominal: Any
    box: Mapping[str, tuple[float, float]]
    observation_scale: tuple[float, ...]
    actions: ActionSpace
    horizon: int
    success_return: float
    branching: Branching = "restored"
    problem: str = ""
    grid: None = None
    past: Past[HostEnvironment] | None = None
    assumed: tuple[str, ...] = ()
    branched: Callable[[HostEnvironment, Branching], HostEnvironment] | None = None
    place: Callable[[Any, np.ndarray], None] | None = None
    simulators: int = 1
    processes: bool = True
    ahead: Callable[[Sequence[Any], Sequence[Any], Sequence[Mapping[str, np.ndarray]]], None] | None = None


def model_of(env: HostEnvironment, model: Mapping[str, Any]) -> dict[str, float]:
    """What a simulation is given: a model, and the nominal parameters that a run has changed.

    All others are left alone. Of a simulator that is known by its attributes alone they may be counters.
    """
    fields = dataclasses.fields(env.nominal)
    changed = {field.name: getattr(env.nominal, field.name) for field in fields}
    own = {field.name: float(changed[field.name]) for field in fields if changed[field.name] != field.default}
    return own | {name: float(value) for name, value in model.items()}


def asked(call: Callable[..., T], *given: Any) -> T:
    """What a simulator answers; a `DeeprokError` with its own words if it raises something else."""
    try:
        return call(*given)
    except DeeprokError:
        raise
    except Exception as error:  # of the user's simulator, most likely
        raise DeeprokError(f"the simulator has failed: {type(error).__name__}: {error}") from error


def make_parameters(name: str, quantities: Mapping[str, Any]) -> Any:
    """The nominal parameters of an environment whose quantities are known only once it is made.

    Args:
      name: of the record's class.
      quantities: name -> a field, as `quantity` gives it.
    """
    fields = [(key, Any, field) for key, field in quantities.items()]
    return jax.tree_util.register_dataclass(dataclasses.make_dataclass(name, fields, frozen=True))()
