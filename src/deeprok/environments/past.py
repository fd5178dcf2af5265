"""The past of a policy with memory: how the last steps are laid out behind an observation.

It serves environments in JAX and stateful simulators: arrays of JAX stay such, and so do numpy's.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from deeprok.core.errors import DeeprokError
from deeprok.environments.spaces import ActionSpace

#: Numbers that an observation with its past may have.
_MOST_INPUTS = 100_000


class Remembered(Protocol):
    """What a memory needs to know of an environment of either kind."""

    @property
    def name(self) -> str:
        """What figures call it."""

    @property
    def observation_scale(self) -> tuple[float, ...]:
        """A typical size of each observation."""

    @property
    def actions(self) -> ActionSpace:
        """What an agent can do."""

    @property
    def horizon(self) -> int:
        """Steps after which an episode is truncated."""

    @property
    def past(self) -> Past[Any] | None:
        """The memory that it has already."""


E = TypeVar("E", bound=Remembered)


class Past(NamedTuple, Generic[E]):
    """The last K steps as a policy with memory sees them: numbers that follow the present observation, newest first.

    A step is its observation [D] and then its action [A], one-hot or as places between −1 and 1. Before an episode's
    start they are zeros. No flag tells these from data: a one-hot action is never all zeros, and neither is a step with
    numbers as actions, unless all of it was in the middle.

    Attributes:
      env: the environment without memory.
      steps: K.
    """

    env: E
    steps: int

    @property
    def observations(self) -> int:
        """D, the length of an observation without the past."""
        return len(self.env.observation_scale)

    @property
    def size(self) -> int:
        """K·(D + A), how many numbers the past is."""
        return self.steps * (self.observations + len(self.env.actions))

    def widen(self, each: tuple[float, ...]) -> tuple[float, ...]:
        """A number for everything that is seen, from one for each observation; it is 1 for the actions."""
        return (*each, *((*each, *(1.0,) * len(self.env.actions)) * self.steps))

    def begin(self, obs: Any) -> Any:
        """What is seen [D + K·(D + A)] with the first observation [D] of an episode."""
        arrays = obs.__array_namespace__()
        return arrays.concat([obs, arrays.zeros(self.size, dtype=obs.dtype)])

    def after(self, seen: Any, action: Any) -> Any:
        """The past [K·(D + A)] one step later.

        Args:
          seen: [D + K·(D + A)] the observation and the past of the step.
          action: what was done.
        """
        arrays, own = seen.__array_namespace__(), self.observations
        encoded = self.env.actions.encode(arrays.asarray(action)).astype(seen.dtype)
        return arrays.concat([seen[:own], encoded, seen[own:]])[: self.size]

    def describe(self) -> dict[str, Any]:
        """The layout in an exported policy."""
        return {
            "steps": self.steps,
            "observations": self.observations,
            "actions": len(self.env.actions),
            "order": "newest first",
            "action": "places" if self.env.actions.continuous else "one-hot",
        }


def make_past(env: E, steps: int) -> Past[E]:
    """The memory of an environment that has none; raises where it can't have it.

    Args:
      env: the environment.
      steps: K, how many steps are remembered; at most its horizon.
    """
    if env.past:
        raise DeeprokError(f"memory is {steps}, but {env.name} remembers {env.past.steps} steps by itself; set it to 0")
    if steps < 1:
        raise DeeprokError(f"steps is {steps}; a memory must have at least 1")
    if steps > env.horizon:
        raise DeeprokError(f"memory is {steps}; it must be at most {env.horizon}, the steps of an episode")
    past = Past(env, steps)
    if (inputs := past.observations + past.size) > _MOST_INPUTS:
        raise DeeprokError(f"memory is {steps}, which makes {inputs} inputs of a network, more than {_MOST_INPUTS}")
    return past


def without_memory(env: Any) -> Any:
    """The environment beneath the memory, with what may have been replaced since it was given it."""
    return env.past.env._replace(nominal=env.nominal, box=env.box, horizon=env.horizon)
