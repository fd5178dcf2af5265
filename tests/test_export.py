from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import oracles
import pytest
from test_evaluation import GOOD, LEFT, write_run
from test_export_c import CASES
from test_export_c import make as policy_of

from deeprok.agents.network import ACTIVATIONS, MLP
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments import Interval, cartpole
from deeprok.evaluation import export
from deeprok.evaluation.export import FORMATS, export_policy, json_q_values, read_policy
from deeprok.evaluation.export.policy import Policy
from deeprok.evaluation.trained import load

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
SCALE = (0.5, 0.5, 5.0, 0.5)


def read_json(path: Path, states: np.ndarray) -> np.ndarray:
    """Actions of the JSON policy, as a user without this package would compute them."""
    policy = json.loads(path.read_text())
    x = states * policy["input_scale"]
    *hidden, last = policy["layers"]
    for layer in hidden:
        x = oracles.ACTIVATIONS[policy["activation"]](x @ np.transpose(layer["weights"]) + layer["bias"])
    return np.argmax(x @ np.transpose(last["weights"]) + last["bias"], axis=1)


def read_onnx(path: Path, states: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    q, action = session.run(["q", "action"], {"obs": states})
    np.testing.assert_array_equal(q.argmax(axis=1), action)
    return action


#: How users read a file; a C header is compiled in a file of tests of its own.
READERS = {"json": read_json, "onnx": read_onnx}


def states(count: int = 10_000) -> np.ndarray:
    return (np.random.default_rng(1).normal(size=(count, 4)) * [1, 1, 0.1, 1]).astype(np.float32)


def make(activation: str = "tanh") -> tuple[MLP, np.ndarray]:
    network = MLP((4, 6, 5, 2), activation, SCALE)
    theta = np.array(network.init(jax.random.key(3)))
    theta += 0.1 * np.random.default_rng(0).normal(size=theta.shape).astype(np.float32)  # biases too
    q = np.asarray(network.apply(jnp.asarray(theta), jnp.asarray(states())))
    # Both actions should come up, whatever the activation.
    theta[-2:] -= np.median(q[:, 1] - q[:, 0]) * np.array([-0.5, 0.5], np.float32)
    return network, theta


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_same_actions(tmp_path: Path, activation: str, kind: Any) -> None:
    network, theta = make(activation)
    path = tmp_path / "new" / f"policy.{kind}"
    export_policy(network, theta, cartpole(), kind, path)
    q = np.asarray(network.apply(jnp.asarray(theta), jnp.asarray(states())))
    clear = np.abs(q[:, 0] - q[:, 1]) > 1e-5
    assert clear.mean() > 0.99
    assert 0.4 < q.argmax(axis=1).mean() < 0.6
    actions = READERS[kind](path, states())
    assert actions.shape == (10_000,)
    np.testing.assert_array_equal(actions[clear], q.argmax(axis=1)[clear])


def test_json_describes_itself(tmp_path: Path) -> None:
    network, theta = make("elu")
    export_policy(network, theta, cartpole(), "json", tmp_path / "policy.json")
    policy = json.loads((tmp_path / "policy.json").read_text())
    assert (policy["env"], policy["actions"]) == ("cartpole", ["left", "right"])
    assert (policy["activation"], policy["input_scale"]) == ("elu", list(SCALE))
    assert [np.shape(layer["weights"]) for layer in policy["layers"]] == [(6, 4), (5, 6), (2, 5)]
    assert sum(np.size(layer["weights"]) + np.size(layer["bias"]) for layer in policy["layers"]) == len(theta)


def test_read_back(tmp_path: Path) -> None:
    network, theta = make("sigmoid")
    export_policy(network, theta, cartpole(), "json", tmp_path / "policy.json")
    policy, obs = read_policy(tmp_path / "policy.json"), states(100)
    q = np.asarray(network.apply(jnp.asarray(theta), jnp.asarray(obs)))
    np.testing.assert_allclose(json_q_values(policy, obs), q, atol=1e-5)
    with np.errstate(all="raise"):
        json_q_values(policy, 1e6 * obs)
    with pytest.raises(DeeprokError, match=r"obs has shape \(100, 3\); the policy takes \[E, 4\]"):
        json_q_values(policy, obs[:, :3])


def test_files_of_older_versions_name_their_environment_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    export_policy(*make(), cartpole(), "json", path)
    policy = json.loads(path.read_text())
    assert read_policy(path) == policy
    path.write_text(json.dumps({"world" if name == "env" else name: value for name, value in policy.items()}))
    assert read_policy(path) == policy


def test_other_networks_are_refused(tmp_path: Path) -> None:
    class Recurrent:
        pass

    with pytest.raises(DeeprokError, match="the network is a Recurrent; only the built-in multilayer perceptron can"):
        export_policy(Recurrent(), make()[1], cartpole(), "json", tmp_path / "policy.json")
    assert list(tmp_path.iterdir()) == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": "x" * 999}, "its format is 'x{53}…x{26}' and not 'deeprok-policy'"),
    "version": ({"version": 3}, "its version is 3 and not 1 or 2"),
    "activation": ({"activation": ["tanh"]}, "its activation is"),
    "layers": ({"layers": []}, "it has no list of layers"),
    "scale": ({"input_scale": [1.0, "a"]}, "its input_scale is not a list of numbers"),
    "inputs": ({"input_scale": [1.0]}, "layer 0 does not have weights for 1 inputs"),
    "bias": ({"layers": [{"weights": [[1.0] * 4] * 2, "bias": [0.0]}]}, "layer 0 does not"),
    "nan": ({"layers": [{"weights": [[float("nan")] * 4] * 2, "bias": [0.0] * 2}]}, "layer 0 does not"),
    "actions": ({"actions": ["left"]}, "an action for each of 2 outputs"),
}


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=WRONG)
def test_damaged_policies(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "policy.json"
    layers = [{"weights": [[1.0] * 4] * 2, "bias": [0.0] * 2}]
    right = {"format": "deeprok-policy", "version": 1, "activation": "tanh", "actions": ["left", "right"]}
    policy = {**right, "input_scale": [1.0] * 4, "layers": layers}
    path.write_text(json.dumps(policy))
    assert json_q_values(read_policy(path), np.ones((1, 4))).tolist() == [[4.0, 4.0]]
    path.write_text(json.dumps({**policy, **changes}))
    with pytest.raises(DeeprokError, match=said) as error:
        read_policy(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("weight", [np.nan, np.inf, 1e39])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, kind: str, weight: float) -> None:
    network, theta = make()
    theta = theta.astype(float)
    theta[3] = weight
    with np.errstate(over="ignore"), pytest.raises(DeeprokError, match="1 of the policy's 77 weights are no finite"):
        export_policy(network, theta, cartpole(), kind, tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["numbers", "actor"])
def test_numbers_in_onnxruntime(tmp_path: Path, case: str) -> None:
    policy, network, theta = policy_of(*CASES[case])
    export_policy(network, theta, policy.env, "onnx", tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    places, actions = session.run(["q", "action"], {"obs": states()})
    expected = network.apply(jnp.asarray(theta), jnp.asarray(states()))
    assert actions.shape == (10_000, 3)
    np.testing.assert_allclose(places, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actions, policy.env.actions.choose(expected), rtol=1e-4, atol=1e-5)
    ends = json.loads(session.get_modelmeta().custom_metadata_map["interval"])
    assert ends == {"low": list(policy.env.actions.low), "high": list(policy.env.actions.high)}


def test_onnx_takes_any_batch(tmp_path: Path) -> None:
    network, theta = make()
    export_policy(network, theta, cartpole(), "onnx", tmp_path / "policy.onnx")
    assert [len(read_onnx(tmp_path / "policy.onnx", states(n))) for n in (1, 7)] == [1, 7]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("damage", [lambda theta: -theta, lambda theta: np.roll(theta, 1), lambda theta: theta * 0.5])
def test_wrong_export_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, damage: Any) -> None:
    network, theta = make()
    path = tmp_path / "policy"
    path.write_text("old")
    right = FORMATS[kind]

    def write(policy: Policy, out: Path) -> bytes:
        return right.write(policy._replace(theta=damage(policy.theta)), out)

    monkeypatch.setitem(FORMATS, kind, right._replace(write=write))
    with pytest.raises(DeeprokError, match=r"differs from the agent on \d+ of 10000 states; nothing written"):
        export_policy(network, theta, cartpole(), kind, path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"policy": "old"}


def test_onnx_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(DeeprokError, match=r"pip install -c constraints.txt '\.\[onnx\]'"):
        export_policy(*make(), cartpole(), "onnx", tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def weights(path: Path) -> np.ndarray:
    layers = json.loads(path.read_text())["layers"]
    return np.concatenate([part for x in layers for part in (np.transpose(x["weights"]).reshape(-1), x["bias"])])


@pytest.mark.parametrize(("options", "expected"), [([], GOOD), (["--keep", "best"], GOOD), (["--keep", "last"], LEFT)])
def test_keep(tmp_path: Path, options: list[str], expected: np.ndarray) -> None:
    run = write_run(tmp_path / "run")
    assert main(["export", str(run), "--format", "json", "--out", str(tmp_path / "policy.json"), *options]) == 0
    np.testing.assert_array_equal(weights(tmp_path / "policy.json").astype(np.float32), expected)


def test_best_of_several_seeds(tmp_path: Path) -> None:
    for seed, best in enumerate((LEFT, GOOD)):  # the later seed did better in its trials
        write_run(tmp_path / "runs" / f"seed-{seed}", seed=seed, best=best)
    assert main(["export", str(tmp_path / "runs"), "--out", str(tmp_path / "policy.json")]) == 0
    np.testing.assert_array_equal(weights(tmp_path / "policy.json").astype(np.float32), GOOD)


def test_onnx_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = write_run(tmp_path / "run"), tmp_path / "policy.onnx"
    assert main(["export", str(run), "--format", "onnx", "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    expected = (states() @ GOOD[:4] > 0).astype(int)
    assert np.mean(read_onnx(out, states()) == expected) > 0.999


def test_files_say_where_they_come_from(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run"))
    for kind in ("json", "onnx"):
        export.export(run, tmp_path / f"policy.{kind}")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    found = dict(session.get_modelmeta().custom_metadata_map)
    texts = {name: found.pop(name) for name in ("env", "algorithm", "settings")}
    facts = texts | {name: json.loads(value) for name, value in found.items()}
    assert facts == {
        "env": "cartpole",
        "algorithm": "rtd_dqn",
        "settings": run.settings.digest(),
        "actions": ["left", "right"],
        "observation_scale": list(run.env.observation_scale),
        "input_scale": [1.0] * 4,
    }
    policy = json.loads((tmp_path / "policy.json").read_text())
    assert {name: policy[name] for name in facts} == facts
    # The same settings with another seed are the same settings; others are not.
    for changes, same in (({"seed": 7}, True), ({"discount": 0.5}, False)):
        export.export(write_run(tmp_path / f"other-{same}", **changes), tmp_path / "policy.json")
        assert (read_policy(tmp_path / "policy.json")["settings"] == facts["settings"]) is same


def test_the_rollout_of_the_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear policy of which it is known that it balances the pole."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    run = load(write_run(tmp_path / "run"))
    export.export(run, tmp_path / "policy.json")
    import deployed
    import rollout

    returns = rollout.rollout(deployed.Policy(tmp_path / "policy.json").act, episodes=3)
    assert returns == [500.0] * 3
    assert rollout.rollout(run.act, episodes=1) == [500.0]
    assert max(rollout.rollout(load(run, keep="last").act, episodes=3)) < 15  # always left


@pytest.mark.parametrize("case", CASES)
def test_the_numpy_policy_of_the_how_to_acts_as_the_agent(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every activation, on choices and on numbers, squashed or not."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import deployed

    policy, network, theta = policy_of(*CASES[case])
    (tmp_path / "policy.json").write_bytes(FORMATS["json"].write(policy, tmp_path / "policy.json"))
    obs = states(300)
    outputs = np.asarray(network.apply(jnp.asarray(theta), jnp.asarray(obs)), float)
    found = [deployed.Policy(tmp_path / "policy.json").act(one) for one in obs]
    if isinstance(policy.env.actions, Interval):
        low, high = np.array(policy.env.actions.low), np.array(policy.env.actions.high)
        expected = np.clip((low + high) / 2 + outputs * (high - low) / 2, low, high)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    else:
        assert np.mean(np.array(found) == outputs.argmax(axis=1)) > 0.99


def test_the_ending_says_the_format(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "seed-0")
    better = write_run(tmp_path / "runs" / "seed-1", seed=1)
    assert export.export(tmp_path / "runs", tmp_path / "policy.json") == better
    np.testing.assert_array_equal(weights(tmp_path / "policy.json").astype(np.float32), GOOD)
    assert export.export(load(better, keep="last"), tmp_path / "as-loaded", format="json") == better
    np.testing.assert_array_equal(weights(tmp_path / "as-loaded").astype(np.float32), LEFT)
    export.export(load(better, keep="last"), tmp_path / "best.json", keep="best")
    np.testing.assert_array_equal(weights(tmp_path / "best.json").astype(np.float32), GOOD)
    export.export(better, tmp_path / "policy.onnx")
    assert read_onnx(tmp_path / "policy.onnx", states(7)).shape == (7,)
    export.export(better, tmp_path / "policy.H")
    assert "int deeprok_policy_act(const float *obs)" in (tmp_path / "policy.H").read_text()
    endings = "which ends with neither .json nor .onnx nor .h; give the format, json, onnx or c"
    for out, kind, said in (("policy.bin", None, endings), ("policy", "torch", "unknown format")):
        with pytest.raises(DeeprokError, match=said):
            export.export(better, tmp_path / out, kind)
    assert not (tmp_path / "policy.bin").exists()
