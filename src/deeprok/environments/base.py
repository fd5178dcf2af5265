"""What an environment is: two pure functions that take the physical parameters as an argument."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.fields import Count
from deeprok.core.pytree import pytree_dataclass
from deeprok.core.search import Space, nothing_searched
from deeprok.environments.drawing import DrawStates
from deeprok.environments.host import HostEnvironment
from deeprok.environments.past import Past
from deeprok.environments.spaces import ActionSpace

#: A model of the environment: the parameters in which it differs from the nominal one, by name.
Model = dict[str, jax.Array]


@pytree_dataclass
class Outcome:
    """The outcome of an action under one model."""

    state: Any  # the environment's own state, a pytree
    obs: jax.Array  # [D] the observation of it
    reward: jax.Array  # []
    terminated: jax.Array  # [] bool; never true merely because time is up


@pytree_dataclass
class Transition:
    """One step, with its outcome under each of the M models that its target is computed from.

    A nominal target has one model, the one that the agent acted on (M = 1).
    """

    obs: jax.Array  # [D]
    action: jax.Array  # [] int32, or [A] numbers where actions are continuous
    reward: jax.Array  # [M]
    next_obs: jax.Array  # [M, D]
    terminated: jax.Array  # [M] bool


def quantity(default: float, unit: str, meaning: str, positive: bool = True, most: float = np.inf) -> Any:
    """A field of an environment's parameters.

    Args:
      default: its nominal value.
      unit: its unit.
      meaning: what it is.
      positive: whether it must be above 0; else it may have any sign.
      most: its largest value, as 1 for a probability.
    """
    metadata = {"unit": unit, "meaning": meaning, "positive": positive, "most": most}
    return dataclasses.field(default=default, metadata=metadata)


class Axis(NamedTuple):
    """One coordinate of a grid of states: evenly spaced points with both ends, or around a circle."""

    name: str
    low: float
    high: float
    points: int
    periodic: bool = False  # `high` is `low` again, and not a point of its own


class StateGrid(NamedTuple):
    """A grid of states, on which an environment with few coordinates can be solved nearly exactly.

    Attributes:
      axes: its K coordinates.
      to_state: `[K] -> state`.
      from_state: `state -> [K]`.
    """

    axes: tuple[Axis, ...]
    to_state: Callable[[jax.Array], Any] = lambda coordinates: coordinates
    from_state: Callable[[Any], jax.Array] = lambda state: state


class Environment(NamedTuple):
    """A simulator without hidden state.

    The parameters hold primitive quantities only. What follows from them, such as a total mass, is computed in `step`,
    so that replacing one of them never leaves a stale number behind. The training loop handles resets and time limits.

    Attributes:
      name: what figures and exported policies call it.
      reset: `(key, params) -> (state, obs)`.
      step: `(key, state, action, params) -> Outcome`.
      nominal: the parameters of the nominal model; a `pytree_dataclass` of `quantity` fields.
      box: the ranges in which the true parameters are known to lie, by name.
      observation_scale: a typical size of each observation; networks divide by it, unless `input_scale` is set.
      actions: `Choices`, or an `Interval` where an action is a vector of numbers.
      horizon: steps after which an episode is truncated (not terminated).
      success_return: an episode succeeds when its return is above this; another horizon does not change it.
      grid: the states to solve it on, where they have few coordinates; None if it can't be solved so.
      past: the steps that its observations hold beside the present one (`deeprok.environments.wrappers.with_memory`);
        None if they hold the present alone.
      state_of: `obs -> state`, the state that an observation stands for, by which logs of a real system are compared
        with it; None if the observation is the state itself, or does not determine it.
      draw: `(states, params) -> Drawing`, what it looks like (`deeprok.environments.drawing`); None if that is unknown.
    """

    name: str
    reset: Callable[[jax.Array, Any], tuple[Any, jax.Array]]
    step: Callable[[jax.Array, Any, jax.Array, Any], Outcome]
    nominal: Any
    box: Mapping[str, tuple[float, float]]
    observation_scale: tuple[float, ...]
    actions: ActionSpace
    horizon: int
    success_return: float
    grid: StateGrid | None = None
    past: Past[Environment] | None = None
    state_of: Callable[[jax.Array], Any] | None = None
    draw: DrawStates | None = None


#: What most of the package takes; a `HostEnvironment` has no `reset` and no `step`.
AnyEnvironment = Environment | HostEnvironment


def in_jax(env: AnyEnvironment, what: str) -> Environment:
    """The environment, if it is two JAX functions; raises where it is a stateful simulator.

    Args:
      env: the environment.
      what: what needs one, for the message.
    """
    if isinstance(env, HostEnvironment):
        raise DeeprokError(f"env is {shown(env.name)}, a stateful simulator; {what} needs an environment in JAX")
    return env


@dataclasses.dataclass(frozen=True)
class EpisodeSettings:
    """Settings of any environment."""

    horizon: Count = 200
    """Steps after which an episode is truncated."""


class EnvironmentPart(NamedTuple):
    """An environment as the settings of a run name it.

    Attributes:
      settings: a dataclass with the field `horizon`, and others of the environment's own.
      make: `settings -> Environment`, or a `HostEnvironment`.
      presets: (preset, learner) -> settings of a run, by name, that suit this environment.
      search: `settings -> Space`, what `deeprok tune` tries for settings of a run in this environment, by name.
    """

    settings: type[Any]
    make: Callable[[Any], AnyEnvironment]
    presets: Mapping[tuple[str, str], Mapping[str, Any]] = {}
    search: Callable[[Any], Space] = nothing_searched


def as_part(found: Any) -> EnvironmentPart:
    """The part that an object named by a user stands for: a part, or an environment, whose horizon can be set.

    A function of the horizon is an environment too, one that may depend on it: a return that is a success in 200 steps
    is none in 500.
    """
    if isinstance(found, EnvironmentPart):
        return found
    of_horizon = inspect.isfunction(found)
    usual = _called(found) if of_horizon else found
    if not isinstance(usual, Environment | HostEnvironment):
        what = f"{'a function that returns' if of_horizon else 'of type'} {type(usual).__name__}"
        raise DeeprokError(
            f"that object is {what}; it must be an Environment, a HostEnvironment, a gymnasium.Env class or an "
            "EnvironmentPart"
        )
    horizon = dataclasses.field(default=usual.horizon)
    settings = dataclasses.make_dataclass(
        "EpisodeSettings", [("horizon", Count, horizon)], bases=(EpisodeSettings,), frozen=True
    )
    if of_horizon:
        return EnvironmentPart(settings, lambda chosen: found(horizon=chosen.horizon))
    return EnvironmentPart(settings, lambda chosen: usual._replace(horizon=chosen.horizon))


def _called(function: Callable[..., Any]) -> Any:
    """What a user's function of the horizon returns for its default."""
    arguments = inspect.signature(function).parameters
    if [*arguments] != ["horizon"] or arguments["horizon"].default is inspect.Parameter.empty:
        raise DeeprokError(
            "that object is a function; its one argument must be horizon, with a default, or, where it makes a "
            "gymnasium.vector.VectorEnv, num_envs"
        )
    return function()


def with_model(params: Any, model: Model) -> Any:
    """The parameters with the model's quantities in place of their own, all as arrays.

    Python floats would be added up in double precision before they meet the state, and a model
    given as constants would differ in the last bit from the same model given as arrays.
    """
    return jax.tree.map(lambda x: jnp.asarray(x, float), dataclasses.replace(params, **model))


def branch(env: Environment, key: jax.Array, state: Any, action: jax.Array, models: Model) -> Outcome:
    """The outcome of one action in one state under each of M models; every leaf gains an axis M.

    All models get the same random numbers, so that their outcomes differ by their parameters alone.
    """
    return jax.vmap(lambda model: env.step(key, state, action, with_model(env.nominal, model)))(models)


def check_quantity(params: Any, name: str, value: float, origin: str) -> None:
    """Raises unless `name` is a quantity of these parameters and may have this value.

    Args:
      params: the environment's parameters.
      name: the name to check.
      value: the value to check.
      origin: where the user gave it, for the message.
    """
    fields = {f.name: f for f in dataclasses.fields(params)}
    if name not in fields:
        raise unknown(f"parameter in {origin}", name, fields)
    positive, most = (fields[name].metadata[what] for what in ("positive", "most"))
    with np.errstate(over="ignore"):
        held = np.float32(value)  # in which 1e39 is infinite
    if not (0 < held < np.inf if positive else abs(held) < np.inf):
        allowed = "must be positive and finite" if positive else "must be finite"
        raise DeeprokError(f"{origin} gives {name} the value {value:g}, which {allowed}")
    if value > most:
        raise DeeprokError(f"{origin} gives {name} the value {value:g}, which must be at most {most:g}")
