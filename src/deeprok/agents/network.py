"""The Q-network: a multilayer perceptron over one flat vector of weights. A policy's network is one too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments.base import Interval

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}


class Layer(NamedTuple):
    """One affine map, y = x @ weights + bias."""

    weights: jax.Array  # [inputs, outputs]
    bias: jax.Array  # [outputs]


class LayerGradient(NamedTuple):
    """∂Q(s, a) / ∂(weights, bias) of one layer: for each state and action an outer product."""

    inputs: jax.Array  # [E, inputs + 1] what the layer is fed, and 1 for the bias
    outputs: jax.Array  # [E, A, outputs] ∂Q(s, a) / ∂(what the layer gives before its activation)


class QNetwork(NamedTuple):
    """Q(s, ·; θ) for flat θ.

    Attributes:
      sizes: units of each layer, inputs first.
      activation: name of the hidden layers' activation.
      input_scale: each input is multiplied by its entry before the first layer.
      interval: where actions are numbers, their ends; the outputs are then places between them.
    """

    sizes: tuple[int, ...]
    activation: str
    input_scale: tuple[float, ...]
    interval: Interval | None = None

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each layer's numbers, weights then bias, lie in θ."""
        ends = list(itertools.accumulate((i + 1) * o for i, o in itertools.pairwise(self.sizes)))
        return tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))

    @property
    def neurons(self) -> tuple[slice, ...]:
        """Where each unit's numbers, what comes in and its bias, lie in θ."""
        layers = zip(self.slices, self.sizes[1:], strict=True)
        return tuple(slice(layer.start + j, layer.stop, units) for layer, units in layers for j in range(units))

    @property
    def num_weights(self) -> int:
        """n, the length of θ."""
        return self.slices[-1].stop

    def init(self, key: jax.Array) -> jax.Array:
        """θ₀: weights uniform in ±1/√inputs, biases 0."""
        shapes = list(itertools.pairwise(self.sizes))
        parts: list[jax.Array] = []
        for k, (inputs, outputs) in zip(jax.random.split(key, len(shapes)), shapes, strict=True):
            bound = 1.0 / math.sqrt(inputs)
            parts.append(jax.random.uniform(k, (inputs * outputs,), minval=-bound, maxval=bound))
            parts.append(jnp.zeros(outputs))
        return jnp.concatenate(parts)

    def layers(self, theta: jax.Array) -> list[Layer]:
        """θ cut into layers."""
        shapes = list(itertools.pairwise(self.sizes))
        # One split, rather than a slice for each part: its derivative is one concatenation.
        parts = jax.lax.split(theta, [size for i, o in shapes for size in (i * o, o)])
        return [Layer(parts[2 * k].reshape(shape), parts[2 * k + 1]) for k, shape in enumerate(shapes)]

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        """Q(s, ·; θ).

        Args:
          theta: [n] weights.
          obs: [..., D] observations.

        Returns:
          [..., A] a value for each action.
        """
        activate = ACTIVATIONS[self.activation]
        *hidden, last = self.layers(theta)
        x = obs * np.asarray(self.input_scale, obs.dtype)
        for layer in hidden:
            x = activate(x @ layer.weights + layer.bias)
        return x @ last.weights + last.bias

    def linearise(self, theta: jax.Array, obs: jax.Array) -> tuple[jax.Array, list[LayerGradient]]:
        """Q(s, ·; θ) [E, A] at observations [E, D], and its gradient with respect to θ, layer by layer.

        Row by row, `inputs ⊗ outputs` is the gradient in the order of the layer's slice of θ.
        """
        layers = self.layers(theta)
        x = obs * np.asarray(self.input_scale, obs.dtype)
        inputs, slopes = [], []
        for layer in layers[:-1]:
            inputs.append(_with_one(x))
            x, pull_back = jax.vjp(ACTIVATIONS[self.activation], x @ layer.weights + layer.bias)
            slopes.append(pull_back(jnp.ones_like(x))[0])
        inputs.append(_with_one(x))
        q = x @ layers[-1].weights + layers[-1].bias
        outputs = [jnp.broadcast_to(jnp.eye(q.shape[-1], dtype=q.dtype), (*q.shape, q.shape[-1]))]
        for layer, slope in zip(layers[:0:-1], slopes[::-1], strict=True):
            outputs.append(outputs[-1] @ layer.weights.T * slope[:, None, :])
        return q, [LayerGradient(*pair) for pair in zip(inputs, outputs[::-1], strict=True)]

    def choose(self, outputs: jax.Array) -> jax.Array:
        """The greedy action for outputs [..., A]: the first of the largest, or the numbers they stand for."""
        return jnp.argmax(outputs, axis=-1) if self.interval is None else self.interval.at(outputs)


def _with_one(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)
