"""ONNX: the policy as a model that many runtimes take, with all that a reader must know in its metadata."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from deeprok.core.errors import extra_missing
from deeprok.environments import Interval
from deeprok.evaluation.export.policy import Format, Policy


def to_onnx(policy: Policy) -> bytes:
    """The policy as an ONNX model: `obs` [batch, D] to `q` [batch, A] and `action` [batch].

    Where actions are continuous `q` are places between their ends, −1 to 1, and `action` [batch, A] the numbers. The
    metadata are the model's properties; lists and objects are JSON.
    """
    onnx = _import_onnx()
    helper, kinds = onnx.helper, onnx.TensorProto
    network, actions = policy.network, policy.env.actions
    nodes, weights = [], []

    def constant(name: str, values: Any) -> str:
        weights.append(onnx.numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    x = "scaled"
    nodes.append(helper.make_node("Mul", ["obs", constant("input_scale", network.input_scale)], [x]))
    for i, layer in enumerate(policy.layers):
        inputs = [x, constant(f"weights{i}", layer.weights), constant(f"bias{i}", layer.bias)]
        last = i + 2 == len(network.sizes)
        x = "q" if last and not policy.squashed else f"sum{i}"
        nodes.append(helper.make_node("Gemm", inputs, [x]))
        if last:
            break
        if network.activation == "silu":  # ONNX has it as two steps
            nodes.append(helper.make_node("Sigmoid", [x], [f"gate{i}"]))
            nodes.append(helper.make_node("Mul", [x, f"gate{i}"], [f"hidden{i}"]))
        else:
            nodes.append(helper.make_node(network.activation.capitalize(), [x], [f"hidden{i}"]))
        x = f"hidden{i}"
    if policy.squashed:
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
    facts = policy.describe()
    helper.set_model_props(model, {name: x if isinstance(x, str) else json.dumps(x) for name, x in facts.items()})
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _act(policy: Policy, data: bytes, obs: np.ndarray) -> Any:
    return _import_onnx().reference.ReferenceEvaluator(data).run(["action"], {"obs": obs})[0]


def _import_onnx() -> Any:
    try:
        import onnx
        import onnx.reference
    except ImportError as error:
        raise extra_missing("exporting ONNX needs", "onnx") from error
    return onnx


FORMAT = Format(".onnx", lambda policy, out: to_onnx(policy), _act)
