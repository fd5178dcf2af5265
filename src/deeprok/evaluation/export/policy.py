"""What is exported: the perceptron that acts, what a reader must know of it, and what a format is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from deeprok.agents.ensemble import ActorCritic, as_perceptron
from deeprok.agents.network import MLP, Layer, Network
from deeprok.core.errors import DeeprokError
from deeprok.environments.base import AnyEnvironment

#: The activations again, for readers without JAX. `x` is an array of numpy, and what numpy and the mathematical library
#: of C both have is taken from the second argument, which is numpy itself unless bits are compared.
ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda x, library: library.tanh(x),
    "relu": lambda x, library: np.where(x > 0, x, 0),
    "sigmoid": lambda x, library: 1 / (1 + library.exp(-x)),
    "elu": lambda x, library: np.where(x > 0, x, library.expm1(np.minimum(x, 0))),
    "silu": lambda x, library: x / (1 + library.exp(-x)),
}


class Policy(NamedTuple):
    """A trained policy as every format takes it.

    Attributes:
      env: the environment, for its name, its actions and the layout of a memory.
      algorithm: that it was trained with.
      settings: the hash of the run's settings, `Config.digest()`.
      network: the perceptron that acts.
      theta: [n] its weights.
      squashed: whether its outputs are followed by tanh, as those of an actor are.
    """

    env: AnyEnvironment
    algorithm: str
    settings: str
    network: MLP
    theta: np.ndarray
    squashed: bool

    @property
    def layers(self) -> list[Layer]:
        """The weights and biases of each layer."""
        return self.network.layers(jnp.asarray(self.theta))

    def describe(self) -> dict[str, Any]:
        """What can't be seen in the layers; the same in every format."""
        return {
            "env": self.env.name,
            "algorithm": self.algorithm,
            "settings": self.settings,
            **self.env.actions.describe(),
            **({"memory": self.env.past.describe()} if self.env.past else {}),
            "observation_scale": list(self.env.observation_scale),
            "input_scale": list(self.network.input_scale),
        }


class Format(NamedTuple):
    """A kind of file.

    Attributes:
      ending: of the names of such files.
      write: the contents of the file of that path.
      act: `(policy, contents, obs)` -> what a reader of the contents does for observations [E, D] in single precision:
        actions [E], or [E, A] numbers. It reads the weights from the contents, so that a mistake in these is noticed.
    """

    ending: str
    write: Callable[[Policy, Path], bytes]
    act: Callable[[Policy, bytes, np.ndarray], Any]


def make_policy(
    network: Network, theta: np.ndarray, env: AnyEnvironment, algorithm: str = "", settings: str = ""
) -> Policy:
    """The policy of an agent; raises where it is no perceptron, or where it has diverged."""
    acting, own = network, jnp.asarray(theta)
    if squashed := isinstance(network, ActorCritic):
        acting, own = network.actor, network.split(own)[0]
    perceptron, weights = as_perceptron(acting, own)
    if not isinstance(perceptron, MLP):
        raise DeeprokError(
            f"the network is a {type(acting).__name__}; only the built-in multilayer perceptron can be exported"
        )
    if wrong := int((~jnp.isfinite(weights.astype(np.float32))).sum()):
        raise DeeprokError(
            f"{wrong} of the policy's {len(weights)} weights are no finite numbers in single precision; "
            "it can't be exported"
        )
    return Policy(env, algorithm, settings, perceptron, np.asarray(weights), squashed)
