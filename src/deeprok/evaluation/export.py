"""Policies for use elsewhere: a small JSON, or ONNX."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.ensemble import ActorCritic, as_perceptron
from deeprok.agents.network import MLP, Network
from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.files import has_shapes, parse_json, read_bytes, write_atomically
from deeprok.environments import ActionSpace, Interval
from deeprok.environments.base import AnyEnvironment
from deeprok.evaluation.trained import Run, load
from deeprok.runs.folder import Keep

FORMATS = ("json", "onnx")

_FORMAT = "deeprok-policy"
#: A reader of version 1 knows nothing of `output_activation`, and would act otherwise.
_PLAIN, _SQUASHED = 1, 2

_CHECKED_STATES = 10_000

#: The activations again, for readers without JAX; `x` is a numpy array.
_NUMPY: dict[str, Callable[[Any], Any]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def export(
    run: Run | str | os.PathLike[str], out: str | Path, format: str | None = None, keep: Keep | None = None
) -> Path:
    """Writes a trained policy as JSON or ONNX, after checking on 10,000 states that it acts as the agent does.

    Args:
      run: a loaded run, a run folder, or a folder of seeds, of which the run that did best on held-out models is taken.
      out: the file to write; its folder is made if there is none.
      format: `json` or `onnx`; by default what the file's name ends with. ONNX needs the extra `onnx`.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones; by default those of the
        loaded run, and the best ones of a folder.

    Returns:
      The folder of the run whose policy was written.

    Example:
      >>> folder = deeprok.export("runs/rok", "policy.onnx")
    """
    path = Path(out)
    kind = format or path.suffix[1:].lower()
    if format is None and kind not in FORMATS:
        raise DeeprokError(f"out is {path}, which ends with neither .json nor .onnx; give the format, json or onnx")
    trained = run if isinstance(run, Run) and keep in (None, run.keep) else load(run, keep=keep or "best")
    with trained.settings.arithmetic():
        export_policy(trained.network, trained.weights, trained.env, kind, path, trained.settings.algorithm)
    return trained.folder


def to_json(network: MLP, theta: np.ndarray, env: AnyEnvironment, squashed: bool = False) -> bytes:
    """The policy as JSON: act on the largest of the last layer's outputs.

    Each layer is y = weights · x + bias, the hidden ones followed by the activation; inputs are
    multiplied by `input_scale` first. Where actions are numbers there is an `interval` instead of
    `actions`: an output of −1 is its low end, 1 its high end, and what lies beyond is that end.
    The inputs of a policy with memory are the observation and then the past, as `memory` says (`Past`).
    The outputs of an actor are `squashed`: the last layer is followed by the `output_activation`, tanh.
    """
    layers = [
        {"weights": np.asarray(layer.weights.T, float).tolist(), "bias": np.asarray(layer.bias, float).tolist()}
        for layer in network.layers(jnp.asarray(theta))
    ]
    policy = {
        "format": _FORMAT,
        "version": _SQUASHED if squashed else _PLAIN,
        "env": env.name,
        **env.actions.describe(),
        **_memory(env),
        "input_scale": list(network.input_scale),
        "activation": network.activation,
        **({"output_activation": "tanh"} if squashed else {}),
        "layers": layers,
    }
    return (json.dumps(policy, indent=1) + "\n").encode()


def _memory(env: AnyEnvironment) -> dict[str, Any]:
    """How the inputs of a policy with memory are laid out; nothing for one without."""
    return {"memory": env.past.describe()} if env.past else {}


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
                x = _NUMPY[policy["activation"]](x)
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
    require(isinstance(activation, str) and activation in _NUMPY, f"its activation is {shown(activation)}")
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


def to_onnx(
    network: MLP,
    theta: np.ndarray,
    actions: ActionSpace,
    metadata: Mapping[str, str] | None = None,
    squashed: bool = False,
) -> bytes:
    """The policy as an ONNX model: `obs` [batch, D] to `q` [batch, A] and `action` [batch].

    Where actions are numbers `q` are places between their ends, −1 to 1, and `action` [batch, A] the numbers.
    The metadata are the model's properties. The outputs of an actor are `squashed` by tanh.
    """
    onnx = _import_onnx()
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes, weights = [], []

    def constant(name: str, values: Any) -> str:
        weights.append(onnx.numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    x = "scaled"
    nodes.append(helper.make_node("Mul", ["obs", constant("input_scale", network.input_scale)], [x]))
    layers = network.layers(jnp.asarray(theta))
    for i, layer in enumerate(layers):
        inputs = [x, constant(f"weights{i}", layer.weights), constant(f"bias{i}", layer.bias)]
        last = i + 1 == len(layers)
        x = "q" if last and not squashed else f"sum{i}"
        nodes.append(helper.make_node("Gemm", inputs, [x]))
        if last:
            break
        if network.activation == "silu":  # ONNX has it as two steps
            nodes.append(helper.make_node("Sigmoid", [x], [f"gate{i}"]))
            nodes.append(helper.make_node("Mul", [x, f"gate{i}"], [f"hidden{i}"]))
        else:
            nodes.append(helper.make_node(network.activation.capitalize(), [x], [f"hidden{i}"]))
        x = f"hidden{i}"
    if squashed:
        nodes.append(helper.make_node("Tanh", [x], ["q"]))
    interval = actions if isinstance(actions, Interval) else None
    if interval:
        low, high = np.array(interval.low), np.array(interval.high)
        nodes.append(helper.make_node("Clip", ["q", constant("lowest", -1.0), constant("highest", 1.0)], ["place"]))
        nodes.append(helper.make_node("Mul", ["place", constant("half", (high - low) / 2)], ["stretched"]))
        nodes.append(helper.make_node("Add", ["stretched", constant("centre", (high + low) / 2)], ["action"]))
    else:
        nodes.append(helper.make_node("ArgMax", ["q"], ["action"], axis=1, keepdims=0))
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("obs", kinds.FLOAT, ["batch", network.sizes[0]])],
        [
            helper.make_tensor_value_info("q", kinds.FLOAT, ["batch", network.sizes[-1]]),
            helper.make_tensor_value_info("action", kinds.FLOAT, ["batch", len(interval)])
            if interval
            else helper.make_tensor_value_info("action", kinds.INT64, ["batch"]),
        ],
        weights,
    )
    model = helper.make_model(graph, producer_name="deeprok", opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _metadata(network: MLP, env: AnyEnvironment, algorithm: str) -> dict[str, str]:
    """What a reader of an ONNX model can't see in it; lists are JSON."""
    facts = {"env": env.name, "algorithm": algorithm, "observation_scale": list(env.observation_scale)}
    facts |= env.actions.describe() | _memory(env) | {"input_scale": list(network.input_scale)}
    return {name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()}


def export_policy(
    network: Network, theta: np.ndarray, env: AnyEnvironment, kind: str, out: Path, algorithm: str = ""
) -> None:
    """Writes a policy, after checking on 10,000 states that it acts as the trained agent does."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    acting, own = network, jnp.asarray(theta)
    if squashed := isinstance(network, ActorCritic):
        acting, own = network.actor, network.split(own)[0]
    agent, merged = as_perceptron(acting, own)
    if not isinstance(agent, MLP):
        raise DeeprokError(
            f"the network is a {type(acting).__name__}; only the built-in multilayer perceptron can be exported"
        )
    weights = np.asarray(merged)
    scale = np.asarray(env.observation_scale)
    noise = jax.random.normal(jax.random.key(0), (_CHECKED_STATES, len(scale)))
    obs = (np.asarray(noise) * scale).astype(np.float32)
    if kind == "json":
        data = to_json(agent, weights, env, squashed)
        outputs = json_q_values(json.loads(data), obs)
        actions = np.asarray(env.actions.choose(jnp.asarray(outputs, np.float32)))
    else:
        data = to_onnx(agent, weights, env.actions, _metadata(agent, env, algorithm), squashed)
        evaluator = _import_onnx().reference.ReferenceEvaluator(data)
        actions = evaluator.run(["action"], {"obs": obs})[0]
    q = np.asarray(network.apply(jnp.asarray(theta), jnp.asarray(obs)))
    if env.actions.continuous:
        wrong = int((~np.isclose(actions, env.actions.choose(jnp.asarray(q)), rtol=1e-4, atol=1e-4)).any(axis=1).sum())
    else:
        chosen = np.take_along_axis(q, np.asarray(actions)[:, None], axis=1)[:, 0]
        # Where two actions are equal to rounding either may come out.
        wrong = int((chosen < q.max(axis=1) - 1e-5 * (1 + np.abs(q).max(axis=1))).sum())
    if wrong:
        raise DeeprokError(
            f"the exported policy differs from the agent on {wrong} of {_CHECKED_STATES} states; nothing written"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeeprokError(f"can't make the folder {out.parent}: {error.strerror}") from error
    write_atomically(out, data)


def _import_onnx() -> Any:
    try:
        import onnx
        import onnx.reference
    except ImportError as error:
        raise DeeprokError("exporting ONNX needs the extra: pip install 'deeprok[onnx]'") from error
    return onnx
