"""A network: values that are linear in random Fourier features of the observation."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents.network import NetworkPart
from deeprok.core.fields import Count


class Fourier(NamedTuple):
    """Q(s, ·; θ) for flat θ: its members are the protocol `Network`."""

    features: int
    outputs: int
    input_scale: tuple[float, ...]

    @property
    def num_weights(self):
        return self.features * self.outputs

    @property
    def slices(self):
        """A partition of θ into layers, for covariances in blocks."""
        return (slice(0, self.num_weights),)

    @property
    def neurons(self):
        """A finer partition: the weights of each output."""
        return tuple(slice(i, self.num_weights, self.outputs) for i in range(self.outputs))

    def init(self, key):
        return 0.01 * jax.random.normal(key, (self.num_weights,))

    def apply(self, theta, obs):
        keys = jax.random.split(jax.random.key(0))
        frequency = jax.random.normal(keys[0], (len(self.input_scale), self.features), obs.dtype)
        phase = jax.random.uniform(keys[1], (self.features,), obs.dtype, maxval=2 * jnp.pi)
        x = jnp.cos(obs * jnp.asarray(self.input_scale, obs.dtype) @ frequency + phase)
        return x @ theta.reshape(self.features, self.outputs)


@dataclass(frozen=True)
class Settings:
    features: Count = 64
    """Random features."""


FOURIER = NetworkPart(Settings, make=lambda settings, scale, outputs: Fourier(settings.features, outputs, scale))
