"""The C header: compiled by the machine's compiler, and compared with its reference in numpy bit for bit."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import shutil
import subprocess
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from test_evaluation import LINEAR, write_run

import deeprok
from deeprok.agents.ensemble import ActorCritic
from deeprok.agents.network import ACTIVATIONS, MLP
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments import Choices, Interval, cartpole
from deeprok.environments.wrappers import with_memory
from deeprok.evaluation.export import export_policy
from deeprok.evaluation.export.as_c import header_actions, header_outputs, read_numbers, to_c
from deeprok.evaluation.export.policy import Policy, make_policy

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"

#: What is promised to compile without a warning, and more than that.
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wvla", "-Wshadow", "-Wconversion", "-Wdouble-promotion")
C99, CPP = ("gcc", "-std=c99", *STRICT), ("g++", "-std=c++11", *STRICT)
#: As little and as much as a compiler does; the latter has fused multiplication and addition, if the machine has it.
EFFORTS = (("-O0",), ("-O3", "-march=native"))

#: Writes for each observation that it reads the outputs and the action.
CHOOSES = """
#include <stdio.h>
#include "policy.h"
int main(void)
{
    float obs[DEEPROK_POLICY_INPUTS], outputs[DEEPROK_POLICY_OUTPUTS];
    while (fread(obs, sizeof obs, 1, stdin) == 1) {
        float action = (float)deeprok_policy_act(obs);
        deeprok_policy_outputs(obs, outputs);
        fwrite(outputs, sizeof outputs, 1, stdout);
        fwrite(&action, sizeof action, 1, stdout);
    }
    return 0;
}
"""
MOVES = CHOOSES.replace(
    "float action = (float)deeprok_policy_act(obs);",
    "float action[DEEPROK_POLICY_OUTPUTS]; deeprok_policy_act(obs, action);",
).replace("&action", "action")


def compiled(folder: Path, program: str, command: Sequence[str] = C99) -> Path:
    """Compiles a program with the headers of that folder; any warning fails."""
    language = "c++" if command[0] == "g++" else "c"
    assert shutil.which(command[0]), f"the tests of C headers need {command[0]}"
    words = [*command, "-I", str(folder), "-x", language, "-", "-o", str(folder / "program"), "-lm"]
    done = subprocess.run(words, input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "program"


def run(program: Path, obs: np.ndarray) -> np.ndarray:
    """What it writes for observations: a row of outputs and action for each."""
    done = subprocess.run([program], input=obs.astype(np.float32).tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32).reshape(len(obs), -1)


def libm() -> Any:
    """The functions of the library that compiled programs call, for arrays."""
    library = ctypes.CDLL(ctypes.util.find_library("m"))

    def function(name: str) -> Any:
        scalar = getattr(library, f"{name}f")
        scalar.restype, scalar.argtypes = ctypes.c_float, [ctypes.c_float]
        return np.vectorize(scalar, otypes=[np.float32])

    return types.SimpleNamespace(**{name: function(name) for name in ("tanh", "exp", "expm1")})


def observations(count: int, inputs: int) -> np.ndarray:
    """Of usual sizes, and some that are tiny, huge or zero."""
    rng = np.random.default_rng(2)
    obs = rng.normal(size=(count, inputs)) * rng.choice([1e-42, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e30], size=(count, 1))
    obs[:3] = [[0.0], [-0.0], [1.0]]
    return obs.astype(np.float32)


NUMBERS = Interval((-2.0, 0.1, -1e-3), (1.0, 0.7, 5.0))
CHOICES = Choices(("left", "stay", "right"))


def make(activation: str = "tanh", actions: Any = CHOICES, squashed: bool = False) -> tuple[Policy, Any, np.ndarray]:
    """A policy with weights of all sizes, and the agent that it is of."""
    env = cartpole()._replace(actions=actions)
    network: Any = MLP((4, 9, 5, 7, 3), activation, (0.5, 0.3, 5.0, 0.7))
    theta = np.array(network.init(jax.random.key(3)))
    rng = np.random.default_rng(0)
    theta += 0.3 * rng.normal(size=theta.shape).astype(np.float32) * rng.choice([1e-6, 1.0], size=theta.shape)
    q = network.apply(jnp.asarray(theta, np.float32), jnp.asarray(rng.normal(size=(500, 4)), np.float32))
    theta[-3:] -= np.median(q, axis=0)  # every action should come up
    if squashed:
        critic = MLP((7, 2, 1), activation, (1.0,) * 7)
        network = ActorCritic(network, critic)
        theta = np.concatenate([theta, np.zeros(2 * critic.num_weights, np.float32)])
    theta = theta.astype(np.float32)
    return make_policy(network, theta, env, "dqn", "0123456789ab"), network, theta


CASES = {activation: (activation, CHOICES, False) for activation in ACTIVATIONS}
CASES |= {"numbers": ("tanh", NUMBERS, False), "actor": ("relu", NUMBERS, True)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_the_reference(tmp_path: Path, case: tuple[str, Any, bool]) -> None:
    policy = make(*case)[0]
    header = to_c(policy, tmp_path / "policy.h")
    (tmp_path / "policy.h").write_bytes(header)
    obs = observations(2000, 4)
    outputs = header_outputs(policy, header, obs, libm())
    actions = header_actions(policy, header, outputs)
    expected = np.concatenate([outputs, actions.reshape(len(obs), -1)], axis=1).astype(np.float32)
    program = MOVES if policy.env.actions.continuous else CHOOSES
    for effort in EFFORTS:
        found = run(compiled(tmp_path, program, (*C99, *effort)), obs)
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    found = run(compiled(tmp_path, program, (*CPP, "-O2", "-ffp-contract=off")), obs)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    assert len(np.unique(actions.round(2))) > 2


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_acts_as_the_agent(tmp_path: Path, case: tuple[str, Any, bool]) -> None:
    """And as the textbook's perceptron in double precision."""
    policy, network, theta = make(*case)
    export_policy(network, theta, policy.env, "c", tmp_path / "policy.h")
    obs = np.random.default_rng(5).normal(size=(10_000, 4)).astype(np.float32)
    found = run(compiled(tmp_path, MOVES if policy.env.actions.continuous else CHOOSES, (*C99, "-O2")), obs)
    q = np.asarray(network.apply(jnp.asarray(theta), jnp.asarray(obs)))
    np.testing.assert_allclose(found[:, :3], q, rtol=1e-4, atol=1e-5)
    activation, actions, squashed = case
    scale = np.array(policy.network.input_scale)
    for row, x in zip(found, obs[:50], strict=False):
        exact = oracles.mlp(policy.theta.astype(float), policy.network.sizes, activation, scale, x.astype(float))
        exact = np.tanh(exact) if squashed else exact
        np.testing.assert_allclose(row[:3], exact, rtol=1e-4, atol=1e-5)
    if isinstance(actions, Interval):
        low, high = np.array(actions.low), np.array(actions.high)
        numbers = (low + high) / 2 + np.clip(q, -1, 1) * (high - low) / 2
        np.testing.assert_allclose(found[:, 3:], numbers, rtol=1e-4, atol=1e-5)
        assert (found[:, 3:] > low).any(axis=0).all()
    else:
        clear = np.sort(q)[:, -1] - np.sort(q)[:, -2] > 1e-4
        assert clear.mean() > 0.99
        np.testing.assert_array_equal(found[clear, 3], q.argmax(axis=1)[clear])


def test_of_equal_outputs_the_first_is_chosen(tmp_path: Path) -> None:
    policy = make_policy(MLP((4, 3), "relu", (1.0,) * 4), np.zeros(15, np.float32), make()[0].env)
    (tmp_path / "policy.h").write_bytes(to_c(policy, tmp_path / "policy.h"))
    np.testing.assert_array_equal(run(compiled(tmp_path, CHOOSES), np.ones((2, 4))), np.zeros((2, 4)))


@given(arrays.arrays(np.float32, 15, elements=st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_weights_are_written_to_the_last_bit(theta: np.ndarray) -> None:
    policy = make_policy(MLP((4, 3), "relu", (1.0,) * 4), theta, make()[0].env)
    numbers = read_numbers(to_c(policy, Path("policy.h")))
    written = np.concatenate([numbers["weights0"].reshape(3, 4).T.ravel(), numbers["bias0"]])
    np.testing.assert_array_equal(written.view(np.int32), theta.view(np.int32))


NASTY = (
    *("", "a  b", '"', "\\", "\\n", "\n", "?" + "?/", "?" + "?=", "*/", "/*", "//", "%s", "$name", "${NAME}"),
    *("é→", "\x00", "\ud800", "\x7f1"),
)


def test_any_name_is_a_text_in_c(tmp_path: Path) -> None:
    env = cartpole()._replace(actions=Choices(NASTY), name=" */ ".join(NASTY))
    network = MLP((4, 2, len(NASTY)), "tanh", (1.0,) * 4)
    export_policy(network, np.asarray(network.init(jax.random.key(0))), env, "c", tmp_path / "policy.h")
    program = compiled(
        tmp_path,
        """
        #include <stdio.h>
        #include "policy.h"
        int main(void)
        {
            int i;
            for (i = 0; i < DEEPROK_POLICY_OUTPUTS; i++) printf("%s|", deeprok_policy_actions[i]);
            return sizeof DEEPROK_POLICY_ENV > 40 ? 0 : 1;
        }
    """,
    )
    done = subprocess.run([program], capture_output=True, check=True)
    expected = [name.encode(errors="backslashreplace").partition(b"\x00")[0] for name in NASTY]
    assert done.stdout.split(b"|")[:-1] == expected
    assert (tmp_path / "policy.h").read_bytes().isascii()


TWO = """
#include <stdio.h>
#include "left.h"
#include "right_arm.h"
#include "left.h"
int main(void)
{
    const float obs[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    printf("%s %s", deeprok_left_actions[deeprok_left_act(obs)], deeprok_right_arm_actions[deeprok_right_arm_act(obs)]);
    return 0;
}
"""


def constant(first: float) -> np.ndarray:
    """Weights that have this value for the first action, and 0 for the others."""
    return np.array([0.0] * 12 + [first, 0.0, 0.0], np.float32)


@pytest.mark.parametrize("command", [C99, CPP], ids=["C", "C++"])
def test_two_policies_in_one_program(tmp_path: Path, command: Sequence[str]) -> None:
    env, network = make()[0].env, MLP((4, 3), "relu", (1.0,) * 4)
    export_policy(network, constant(1.0), env, "c", tmp_path / "left.h")
    export_policy(network, constant(-1.0), env, "c", tmp_path / "right_arm.h")
    done = subprocess.run([compiled(tmp_path, TWO, command)], capture_output=True, check=True)
    assert done.stdout == b"left stay"


def test_no_two_files_define_the_same_name() -> None:
    """Every name is the file's and one word, so the file is known by it."""
    policy = make("tanh", NUMBERS, squashed=True)[0]
    header = to_c(policy, Path("two_words.h")).decode()
    code = header.split("*/", 1)[1]
    defined = set(re.findall(r"\w*two_words\w*", code, re.IGNORECASE))
    assert {"deeprok_two_words_act", "deeprok_two_words_outputs", "DEEPROK_TWO_WORDS_INPUTS"} <= defined
    assert {name.rpartition("_")[0] for name in defined - {"two_words"}} == {"deeprok_two_words", "DEEPROK_TWO_WORDS"}


def test_two_policies_of_one_name_are_an_error(tmp_path: Path) -> None:
    env, network = make()[0].env, MLP((4, 3), "relu", (1.0,) * 4)
    for folder, value in (("one", 1.0), ("other", -1.0)):
        export_policy(network, constant(value), env, "c", tmp_path / folder / "policy.h")
    program = '#include "one/policy.h"\n#include "{}/policy.h"\nint main(void) {{ return 0; }}\n'
    compiled(tmp_path, program.format("one"))
    with pytest.raises(AssertionError, match="this program has two policies named policy; export one"):
        compiled(tmp_path, program.format("other"))


@pytest.mark.parametrize("name", ["left-arm.h", "Policy.h", "policy.v2.h", "pólicy.h", "a b.h", "a" * 41 + ".h", ".h"])
def test_file_names_that_are_no_names_in_c(tmp_path: Path, name: str) -> None:
    policy, network, theta = make()
    with pytest.raises(DeeprokError, match=r"out is .*; a C header's functions are named after its file, .* policy.h"):
        export_policy(network, theta, policy.env, "c", tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    export_policy(network, theta, policy.env, "c", tmp_path / ("a" * 40 + ".h"))


def test_ends_beyond_single_precision_are_refused(tmp_path: Path) -> None:
    policy, network, theta = make("tanh", Interval((-3e38,) * 3, (3e38,) * 3))
    with pytest.raises(DeeprokError, match="deeprok_policy_width has numbers that are not finite in single precision"):
        export_policy(network, theta, policy.env, "c", tmp_path / "policy.h")


def test_the_program_of_the_how_to(tmp_path: Path) -> None:
    deeprok.export(write_run(tmp_path / "run"), tmp_path / "policy.h")
    for command in (C99, CPP):
        program = compiled(tmp_path, (EXAMPLES / "main.c").read_text(), command)
        done = subprocess.run([program], capture_output=True, text=True, check=True)
        assert done.stdout == f"right, of value {np.tanh(0.05 * LINEAR[2]):.6g}\n"


#: Plays the observations that it reads as one episode, and keeps the past as the comment of the header says.
REMEMBERS = """
#include <stdio.h>
#include <string.h>
#include "policy.h"
#define OBSERVATIONS DEEPROK_POLICY_OBSERVATIONS
#define STEP (OBSERVATIONS + DEEPROK_POLICY_OUTPUTS)
int main(void)
{
    float obs[DEEPROK_POLICY_INPUTS] = {0.0f}; /* the observation, then MEMORY steps */
    float *newest = obs + OBSERVATIONS;
    while (fread(obs, sizeof(float), OBSERVATIONS, stdin) == OBSERVATIONS) {
        int i, action = deeprok_policy_act(obs);
        memmove(newest + STEP, newest, (DEEPROK_POLICY_MEMORY - 1) * STEP * sizeof(float));
        memcpy(newest, obs, OBSERVATIONS * sizeof(float));
        for (i = 0; i < DEEPROK_POLICY_OUTPUTS; i++) newest[OBSERVATIONS + i] = i == action ? 1.0f : 0.0f;
        printf("%d\\n", action);
    }
    return 0;
}
"""


def test_a_memory_is_laid_out_as_the_header_says(tmp_path: Path) -> None:
    env = with_memory(cartpole(), 3)
    network = MLP((4 + 3 * 6, 8, 2), "tanh", env.past.widen((0.5, 1.0, 2.0, 1.0)))  # type: ignore[union-attr]
    theta = np.asarray(network.init(jax.random.key(1))) * 3
    export_policy(network, theta, env, "c", tmp_path / "policy.h")
    text = " ".join((tmp_path / "policy.h").read_text().replace("\n *", " ").split())
    assert "the present observation, 4 numbers" in text
    assert "the newest first, 3 in all. A step is its observation, 4 numbers, and its action, 2: 1 for the one" in text
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    past, expected = np.zeros((3, 6), np.float32), []
    for obs in rows:
        q = network.apply(jnp.asarray(theta), jnp.asarray(np.concatenate([obs, past.ravel()])))
        expected.append(int(np.argmax(q)))
        past = np.concatenate([[np.concatenate([obs, np.eye(2, dtype=np.float32)[expected[-1]]])], past[:2]])
    done = subprocess.run([compiled(tmp_path, REMEMBERS)], input=rows.tobytes(), capture_output=True, check=True)
    assert [int(line) for line in done.stdout.split()] == expected
    assert 5 < sum(expected) < 35


def test_the_past_of_numbers_is_places(tmp_path: Path) -> None:
    env = with_memory(cartpole()._replace(actions=NUMBERS), 1)
    network = MLP((11, 2, 3), "tanh", (1.0,) * 11)
    export_policy(network, np.asarray(network.init(jax.random.key(1))), env, "c", tmp_path / "policy.h")
    text = " ".join((tmp_path / "policy.h").read_text().replace("\n *", " ").split())
    assert "and its action, 3: places between -1, the low end, and 1. Before the start of an episode all are 0" in text
    assert "#define DEEPROK_POLICY_MEMORY 1 " in text
    assert "3 numbers: -2 to 1, 0.1 to 0.7, -0.001 to 5." in text


def test_from_the_command_line(tmp_path: Path) -> None:
    folder, out = write_run(tmp_path / "run"), tmp_path / "new" / "policy.h"
    assert main(["export", str(folder), "--out", str(out)]) == 0
    text = out.read_text()
    settings = deeprok.load(folder).settings.digest()
    for word, value in (("ENV", '"cartpole"'), ("ALGORITHM", '"rtd_dqn"'), ("SETTINGS", f'"{settings}"')):
        assert f"#define DEEPROK_POLICY_{word} {value}\n" in text
    for fact in ("#define DEEPROK_POLICY_INPUTS 4\n", '0 "left", 1 "right"', "MEMORY", "hash of the run's settings"):
        assert (fact in text) is (fact != "MEMORY")
    obs = np.random.default_rng(1).normal(size=(1000, 4)).astype(np.float32) * np.float32([1, 1, 0.1, 1])
    found = run(compiled(out.parent, CHOOSES), obs)
    assert np.mean(found[:, 2] == (obs @ np.array(LINEAR) > 0)) > 0.999
    assert main(["export", str(folder), "--format", "c", "--out", str(tmp_path / "my-policy")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "run"]
