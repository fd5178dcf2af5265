"""What an agent can do: choose one of some named actions, or give numbers between two ends."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp


class ActionSpace(Protocol):
    """The actions of an environment, and how a network's outputs [..., A] become one."""

    @property
    def continuous(self) -> bool:
        """Whether an action is a vector of numbers; if not it is an index."""

    def __len__(self) -> int:
        """A, the number of outputs that a policy or a Q-network has."""

    def choose(self, outputs: jax.Array) -> jax.Array:
        """The greedy action for outputs [..., A]."""

    def at(self, places: jax.Array) -> jax.Array:
        """What the environment takes for what a policy drew: an index as it is, places between −1 and 1 as numbers."""

    def encode(self, action: jax.Array) -> jax.Array:
        """An action as A numbers of size one, for a network that sees it: one-hot, or places between −1 and 1.

        An array of numpy stays one.
        """

    @property
    def draws(self) -> int:
        """How many uniform numbers `explore` takes."""

    def explore(self, draw: jax.Array, epsilon: jax.Array | float, greedy: jax.Array) -> jax.Array:
        """A uniformly random action with probability ε, else the greedy one.

        Args:
          draw: [draws] uniform random numbers: a coin, then what decides the random action.
          epsilon: ε.
          greedy: the greedy action.
        """

    def sample(self, key: jax.Array) -> jax.Array:
        """A random action."""

    def describe(self) -> dict[str, Any]:
        """The actions in an exported policy."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """Some actions to choose from, each with a name."""

    names: tuple[str, ...]

    continuous = False
    draws = 2

    def __len__(self) -> int:
        return len(self.names)

    def choose(self, outputs: jax.Array) -> jax.Array:
        """The first of the largest outputs."""
        return jnp.argmax(outputs, axis=-1)

    def at(self, places: jax.Array) -> jax.Array:
        """The index itself."""
        return places

    def encode(self, action: jax.Array) -> jax.Array:
        """One-hot."""
        return (action[..., None] == action.__array_namespace__().arange(len(self))).astype(float)

    def explore(self, draw: jax.Array, epsilon: jax.Array | float, greedy: jax.Array) -> jax.Array:
        """ε-greedy."""
        coin, choice = draw
        anything = jnp.minimum((choice * len(self)).astype(jnp.int32), len(self) - 1)
        return jnp.where(coin < epsilon, anything, greedy.astype(jnp.int32))

    def sample(self, key: jax.Array) -> jax.Array:
        """A random index."""
        return jax.random.randint(key, (), 0, len(self))

    def describe(self) -> dict[str, Any]:
        """Their names, in the order of the outputs."""
        return {"actions": list(self.names)}


@dataclasses.dataclass(frozen=True)
class Interval:
    """Continuous actions: one or more numbers, each between two ends."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    continuous = True

    def __len__(self) -> int:
        return len(self.low)

    def choose(self, outputs: jax.Array) -> jax.Array:
        """The numbers that the outputs stand for."""
        return self.at(outputs)

    def at(self, places: jax.Array) -> jax.Array:
        """The actions at places [..., A] between −1, the lower ends, and 1; beyond these the ends."""
        low, high = jnp.asarray(self.low, places.dtype), jnp.asarray(self.high, places.dtype)
        return low + (high - low) * (0.5 * (jnp.clip(places, -1.0, 1.0) + 1.0))

    def encode(self, action: jax.Array) -> jax.Array:
        """The places that `at` gives these numbers for; 0 where both ends are the same."""
        arrays = action.__array_namespace__()
        low, high = arrays.asarray(self.low, dtype=float), arrays.asarray(self.high, dtype=float)
        width = high - low
        return arrays.where(width > 0, 2.0 * (action - low) / arrays.where(width > 0, width, 1.0) - 1.0, 0.0)

    @property
    def draws(self) -> int:
        """A coin and a place for each number."""
        return 1 + len(self)

    def explore(self, draw: jax.Array, epsilon: jax.Array | float, greedy: jax.Array) -> jax.Array:
        """An action anywhere between the ends with probability ε, else the greedy one."""
        return jnp.where(draw[0] < epsilon, self.at(2.0 * draw[1:] - 1.0), greedy)

    def sample(self, key: jax.Array) -> jax.Array:
        """Uniform between the ends."""
        return self.at(jax.random.uniform(key, (len(self),), minval=-1.0))

    def describe(self) -> dict[str, Any]:
        """The ends: an output of −1 is the low one, 1 the high one, and what lies beyond is that end."""
        return {"interval": {"low": list(self.low), "high": list(self.high)}}
