"""Networks over one flat vector of weights: the protocol, and the multilayer perceptron.

A network of your own has the members of `Network`, and a `NetworkPart` that makes it; it is named `module:object`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.fields import Count, OneOf, Rule
from deeprok.core.registry import Registry, expect
from deeprok.core.search import Space, nothing_searched

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}


class Network(Protocol):
    """Q(s, ·; θ), or the outputs of a policy, for flat θ."""

    def __hash__(self) -> int:
        """Networks are keys of compiled programs."""

    @property
    def num_weights(self) -> int:
        """n, the length of θ."""

    @property
    def slices(self) -> tuple[slice, ...]:
        """A partition of θ into layers: the blocks of a covariance stored by layer."""

    @property
    def neurons(self) -> tuple[slice, ...]:
        """A finer partition of θ: the blocks of a covariance stored by neuron."""

    def init(self, key: jax.Array) -> jax.Array:
        """θ₀, [n]."""

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        """The outputs [..., A] for observations [..., D]."""


@runtime_checkable
class RescalableNetwork(Network, Protocol):
    """A network whose weights can be written for observations and outputs in other units."""

    def rescale(
        self, theta: jax.Array, centre: jax.Array, spread: jax.Array, size: jax.Array | float, back: bool = False
    ) -> jax.Array:
        """As `MLP.rescale`."""


class NetworkPart(NamedTuple):
    """A network as the settings of a run name it.

    Attributes:
      settings: a dataclass whose fields' types are those of `deeprok.core.fields`.
      make: `(settings, input_scale, outputs) -> Network`. Each observation is to be multiplied by its entry of
        `input_scale`, a tuple of D numbers; `outputs` is A.
      search: `settings -> Space`, what `deeprok tune` tries for its settings.
    """

    settings: type[Any]
    make: Callable[[Any, tuple[float, ...], int], Network]
    search: Callable[[Any], Space] = nothing_searched


class Layer(NamedTuple):
    """One affine map, y = x @ weights + bias."""

    weights: jax.Array  # [inputs, outputs]
    bias: jax.Array  # [outputs]


class LayerGradient(NamedTuple):
    """∂Q(s, a) / ∂(weights, bias) of one layer: for each state and action an outer product."""

    inputs: jax.Array  # [E, inputs + 1] what the layer is fed, and 1 for the bias
    outputs: jax.Array  # [E, A, outputs] ∂Q(s, a) / ∂(what the layer gives before its activation)


class MLP(NamedTuple):
    """A multilayer perceptron over flat θ.

    Attributes:
      sizes: units of each layer, inputs first.
      activation: name of the hidden layers' activation.
      input_scale: each input is multiplied by its entry before the first layer.
    """

    sizes: tuple[int, ...]
    activation: str
    input_scale: tuple[float, ...]

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

    def rescale(
        self, theta: jax.Array, centre: jax.Array, spread: jax.Array, size: jax.Array | float, back: bool = False
    ) -> jax.Array:
        """The weights θ′ for observations and outputs in other units, an affine function of θ.

        Q(x; θ′) = size · f((x − centre) / spread; θ), where f is the network without its `input_scale`.

        Args:
          theta: [n] weights.
          centre: [D] where observations are 0 in the units of θ.
          spread: [D] what is 1 in them.
          size: what is 1 in the units of θ's outputs.
          back: the inverse: θ from θ′.
        """
        first, *inner, last = self.layers(theta)
        scale = np.asarray(self.input_scale, theta.dtype) * spread
        if back:
            weights = first.weights * scale[:, None]
            first = Layer(weights, first.bias + (centre / spread) @ weights)
            last = Layer(last.weights / size, last.bias / size)
        else:
            first = Layer(first.weights / scale[:, None], first.bias - (centre / spread) @ first.weights)
            last = Layer(last.weights * size, last.bias * size)
        return jnp.concatenate([part.reshape(-1) for layer in (first, *inner, last) for part in layer])

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


def _with_one(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)


Hidden = Annotated[
    tuple[Count, ...], Rule(lambda layers: len(layers) > 0, "at least one hidden layer, each of at least 1 unit")
]


@dataclass(frozen=True)
class MLPSettings:
    """Settings of a multilayer perceptron."""

    hidden: Hidden = (20, 20)
    """Units of each hidden layer."""
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "tanh"
    """Activation of the hidden layers: tanh, relu, sigmoid, elu or silu."""


def _make(settings: MLPSettings, input_scale: tuple[float, ...], outputs: int) -> MLP:
    return MLP((len(input_scale), *settings.hidden, outputs), settings.activation, input_scale)


PART = NetworkPart(MLPSettings, _make, search=lambda settings: {"hidden": ((32, 32), (64, 64), (128, 128))})

NETWORKS: Registry[NetworkPart] = Registry("network", {"mlp": PART}, expect(NetworkPart, "a NetworkPart"))
