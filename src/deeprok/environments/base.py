"""What a world is: two pure functions whose physics is an argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.pytree import record

#: A model of the world: the physical quantities in which it differs from the nominal one.
Model = dict[str, jax.Array]


@record
class Outcome:
    """What one model of the world answers to an action."""

    state: Any  # the world's own state, a pytree
    obs: jax.Array  # [D] what the agent sees of it
    reward: jax.Array  # []
    terminated: jax.Array  # [] bool; never true merely because time is up


@record
class Transition:
    """One step, with the answer of each of the M models that label it.

    A nominal label has the one model that the agent acted on (M = 1).
    """

    obs: jax.Array  # [D]
    action: jax.Array  # [] int32
    reward: jax.Array  # [M]
    next_obs: jax.Array  # [M, D]
    terminated: jax.Array  # [M] bool


def quantity(default: float, unit: str, meaning: str, positive: bool = True) -> Any:
    """A field of a world's parameters: its nominal value, its unit, and what it is."""
    metadata = {"unit": unit, "meaning": meaning, "positive": positive}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Interval:
    """Actions that are numbers: one or more, each between two ends."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.low)

    def at(self, places: jax.Array) -> jax.Array:
        """The actions at places [..., A] between −1, the lower ends, and 1; beyond these the ends."""
        low, high = jnp.asarray(self.low, places.dtype), jnp.asarray(self.high, places.dtype)
        return low + (high - low) * (0.5 * (jnp.clip(places, -1.0, 1.0) + 1.0))


class World(NamedTuple):
    """A simulator without hidden state.

    The parameters hold primitive quantities only; what follows from them (a total mass, say) is
    computed in `step`, so that replacing one of them never leaves a stale number behind.
    Worlds do not reset themselves and know no time limit: both are the driver's business.

    Attributes:
      name: what the command line calls it.
      reset: `(key, params) -> (state, obs)`.
      step: `(key, state, action, params) -> Outcome`.
      nominal: the parameters the designer believes in; a frozen dataclass of `quantity` fields.
      box: the ranges in which the true parameters are known to lie, by name.
      observation_scale: a typical size of each observation.
      actions: a name for each action, or an `Interval` where an action is a vector of numbers.
      horizon: steps after which an episode is cut off (truncated, not terminated).
      success_return: an episode succeeds when its return is above this.
    """

    name: str
    reset: Callable[[jax.Array, Any], tuple[Any, jax.Array]]
    step: Callable[[jax.Array, Any, jax.Array, Any], Outcome]
    nominal: Any
    box: Mapping[str, tuple[float, float]]
    observation_scale: tuple[float, ...]
    actions: tuple[str, ...] | Interval
    horizon: int
    success_return: float


def with_model(params: Any, model: Model) -> Any:
    """The parameters with the model's quantities in place of their own, all as arrays.

    Python floats would be added up in double precision before they meet the state, and a model
    given as constants would differ in the last bit from the same model given as arrays.
    """
    return jax.tree.map(lambda x: jnp.asarray(x, float), dataclasses.replace(params, **model))


def branch(world: World, key: jax.Array, state: Any, action: jax.Array, models: Model) -> Outcome:
    """What each of M models answers to one action in one state; every leaf gains an axis M.

    All models see the same random numbers, so that their answers differ by physics alone.
    """
    return jax.vmap(lambda model: world.step(key, state, action, with_model(world.nominal, model)))(models)


def check_quantity(params: Any, name: str, value: float, origin: str) -> None:
    """Raises unless `name` is a quantity of these parameters and may have this value.

    Args:
      params: the world's parameters.
      name: the name to check.
      value: the value to check.
      origin: where the user gave it, for the message.
    """
    fields = {f.name: f for f in dataclasses.fields(params)}
    if name not in fields:
        raise unknown(f"parameter in {origin}", name, fields)
    positive = fields[name].metadata["positive"]
    with np.errstate(over="ignore"):
        held = np.float32(value)  # in which 1e39 is infinite
    if not (0 < held < np.inf if positive else abs(held) < np.inf):
        allowed = "must be positive and finite" if positive else "must be finite"
        raise DeeprokError(f"{origin} gives {name} the value {value:g}, which {allowed}")
