"""JSON: layers and weights that a few lines of any language can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.files import has_shapes, parse_json, read_bytes
from deeprok.evaluation.export.policy import ACTIVATIONS, Format, Policy

_FORMAT = "deeprok-policy"
#: A reader of version 1 knows nothing of `output_activation`, and would act otherwise.
_PLAIN, _SQUASHED = 1, 2


def to_json(policy: Policy) -> bytes:
    """The policy as JSON: act on the largest of the last layer's outputs.

    Each layer is y = weights · x + bias, the hidden ones followed by the activation; inputs are
    multiplied by `input_scale` first. Where actions are continuous there is an `interval` instead of
    `actions`: an output of −1 is its low end, 1 its high end, and what lies beyond is that end.
    The inputs of a policy with memory are the observation and then the past, as `memory` says (`Past`).
    The outputs of an actor are squashed: the last layer is followed by the `output_activation`, tanh.
    """
    layers = [
        {"weights": np.asarray(layer.weights.T, float).tolist(), "bias": np.asarray(layer.bias, float).tolist()}
        for layer in policy.layers
    ]
    fields = {
        "format": _FORMAT,
        "version": _SQUASHED if policy.squashed else _PLAIN,
        **policy.describe(),
        "activation": policy.network.activation,
        **({"output_activation": "tanh"} if policy.squashed else {}),
        "layers": layers,
    }
    return (json.dumps(fields, indent=1) + "\n").encode()


def read_policy(path: str | Path) -> dict[str, Any]:
    """Reads an exported JSON policy, for `json_q_values`."""
    policy = _checked_policy(parse_json(read_bytes(Path(path))), str(path))
    # Older files call the environment a world.
    return {"env" if name == "world" else name: value for name, value in policy.items()}


def json_q_values(policy: dict[str, Any], obs: np.ndarray) -> np.ndarray:
    """Outputs [E, A], for agents with values Q, of an exported JSON policy for observations [E, D], in numpy alone."""
    policy = _checked_policy(policy, "the policy")
    x, layers = np.asarray(obs), policy["layers"]
    if x.ndim != 2 or x.shape[1] != len(policy["input_scale"]):
        raise DeeprokError(f"obs has shape {x.shape}; the policy takes [E, {len(policy['input_scale'])}]")
    x = x * np.asarray(policy["input_scale"])
    with np.errstate(all="ignore"):  # 1 / (1 + exp(1000)) is 0, for example
        for i, layer in enumerate(layers):
            x = x @ np.asarray(layer["weights"]).T + np.asarray(layer["bias"])
            if i + 1 < len(layers):
                x = ACTIVATIONS[policy["activation"]](x, np)
    return np.tanh(x) if policy["version"] == _SQUASHED else x


def _checked_policy(policy: Any, origin: str) -> dict[str, Any]:
    """The policy, if it is what `to_json` writes: layers that follow each other, from inputs to actions."""

    def require(right: bool, what: str) -> None:
        if not right:
            raise DeeprokError(f"{origin} is no policy that deeprok exported: {what}; export it again")

    require(isinstance(policy, dict), "it is not a JSON object")
    for name, values in (("format", (_FORMAT,)), ("version", (_PLAIN, _SQUASHED))):
        wanted = " or ".join(shown(value) for value in values)
        require(policy.get(name) in values, f"its {name} is {shown(policy.get(name))} and not {wanted}")
    last = policy.get("output_activation")
    require(last == ("tanh" if policy["version"] == _SQUASHED else None), f"its output_activation is {shown(last)}")
    activation, layers = policy.get("activation"), policy.get("layers")
    require(isinstance(activation, str) and activation in ACTIVATIONS, f"its activation is {shown(activation)}")
    require(isinstance(layers, list) and len(layers) > 0, "it has no list of layers")
    require(has_shapes(policy, {"input_scale": (None,)}), "its input_scale is not a list of numbers")
    size = len(policy["input_scale"])
    for i, layer in enumerate(layers):
        require(
            has_shapes(layer, {"weights": (None, size), "bias": (None,)})
            and len(layer["weights"]) == len(layer["bias"]),
            f"layer {i} does not have weights for {size} inputs and as many biases as outputs",
        )
        size = len(layer["bias"])
    ends = policy.get("interval")
    named = policy.get("actions") if ends is None else None
    require(
        has_shapes(ends, {"low": (size,), "high": (size,)}) or (isinstance(named, list) and len(named) == size),
        f"it does not have an action for each of {size} outputs",
    )
    if "memory" in policy:
        parts = policy["memory"]
        counts = [parts.get(name) if isinstance(parts, dict) else None for name in ("steps", "observations", "actions")]
        inputs = len(policy["input_scale"])
        require(
            all(isinstance(count, int) and count > 0 for count in counts)
            and counts[2] == size
            and counts[1] + counts[0] * (counts[1] + counts[2]) == inputs,
            f"its memory is {shown(parts)}, which does not make {inputs} inputs",
        )
    checked: dict[str, Any] = policy
    return checked


def _act(policy: Policy, data: bytes, obs: np.ndarray) -> Any:
    outputs = json_q_values(json.loads(data), obs)
    return policy.env.actions.choose(jnp.asarray(outputs, np.float32))


FORMAT = Format(".json", lambda policy, out: to_json(policy), _act)
