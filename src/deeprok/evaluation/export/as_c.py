"""A C header: the policy as a function for microcontrollers, without heap and with `<math.h>` alone.

What is promised of its bits: all arithmetic is in single precision, a sum is taken in the order bias, input 0, input 1,
and so on, and each operation is a statement of its own, which a compiler that follows C99 neither fuses with another
nor computes in more digits. So the bits are those of `header_outputs` on every machine with IEEE 754 arithmetic, but
for tanhf, expf and expm1f, whose last bits are those of the mathematical library.
"""

from __future__ import annotations

import itertools
import re
import textwrap
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments import Choices, Interval
from deeprok.evaluation.export.policy import ACTIVATIONS, Format, Policy

#: Whatever a header defines is called deeprok, the file's name and one word, so that two files have no name in common.
#: C99 tells names apart by their first 63 characters.
_FILE_NAME = re.compile(r"[a-z0-9_]{1,40}")

_ARRAY = re.compile(r"^static const float \w+_([a-z0-9]+)\[\d+\] = \{(.*?)\};", re.DOTALL | re.MULTILINE)

#: What an activation does to x[i].
_STATEMENTS = {
    "tanh": ("x[i] = tanhf(x[i]);",),
    "relu": ("if (!(x[i] > 0.0f)) x[i] = 0.0f;",),
    "sigmoid": ("const float divisor = 1.0f + expf(-x[i]);", "x[i] = 1.0f / divisor;"),
    "elu": ("if (!(x[i] > 0.0f)) x[i] = expm1f(x[i]);",),
    "silu": ("const float divisor = 1.0f + expf(-x[i]);", "x[i] = x[i] / divisor;"),
}

_HEADER = Template("""\
/*
$about
 */
#ifndef ${NAME}_H
#define ${NAME}_H $checksum

#include <math.h>

$defines

$data

/* y = weights x + bias; weights are the rows of a matrix, one for each output. */
static inline void ${name}_layer(const float *weights, const float *bias, int inputs, int outputs, const float *x,
    float *y)
{
    int i, j;
    for (j = 0; j < outputs; j++) {
        float sum = bias[j];
        for (i = 0; i < inputs; i++) {
            const float product = *weights++ * x[i];
            sum += product;
        }
        y[j] = sum;
    }
}

/* The activation of the hidden layers. */
static inline void ${name}_activate(float *x, int size)
{
    int i;
    for (i = 0; i < size; i++) {
        $activate
    }
}

/* The outputs of the network, ${NAME}_OUTPUTS numbers. */
static inline void ${name}_outputs(const float *obs, float *outputs)
{
    $buffers
    int i;
    for (i = 0; i < ${NAME}_INPUTS; i++) {
        x[i] = obs[i] * ${name}_scale[i];
    }
    $layers$squash
}

$act

#elif ${NAME}_H != $checksum
#error "this program has two policies named $stem; export one of them to a file of another name"
#endif
""")

_SQUASH = Template("""
    for (i = 0; i < ${NAME}_OUTPUTS; i++) {
        outputs[i] = tanhf(outputs[i]);
    }""")

_CHOOSE = Template("""\
/* The greedy action: the first of the largest outputs. */
static inline int ${name}_act(const float *obs)
{
    float outputs[${NAME}_OUTPUTS];
    int i, best = 0;
    ${name}_outputs(obs, outputs);
    for (i = 1; i < ${NAME}_OUTPUTS; i++) {
        if (outputs[i] > outputs[best]) best = i;
    }
    return best;
}""")

_MOVE = Template("""\
/* The greedy action, ${NAME}_OUTPUTS numbers between their ends. */
static inline void ${name}_act(const float *obs, float *action)
{
    int i;
    ${name}_outputs(obs, action);
    for (i = 0; i < ${NAME}_OUTPUTS; i++) {
        float place = action[i];
        if (place < -1.0f) place = -1.0f;
        if (place > 1.0f) place = 1.0f;
        place += 1.0f;
        place *= 0.5f;
        place *= ${name}_width[i];
        action[i] = ${name}_low[i] + place;
    }
}""")


def to_c(policy: Policy, out: Path) -> bytes:
    """The policy as a C header, whose functions are named after the file.

    There is `int deeprok_NAME_act(const float *obs)`, or `void deeprok_NAME_act(const float *obs, float *action)` where
    actions are continuous, and `void deeprok_NAME_outputs(const float *obs, float *outputs)` for both.
    """
    if not _FILE_NAME.fullmatch(out.stem):
        raise DeeprokError(
            f"out is {out}; a C header's functions are named after its file, so that name must be up to 40 lower-case "
            "letters, digits and underscores, such as policy.h"
        )
    names = {"name": f"deeprok_{out.stem}", "NAME": f"DEEPROK_{out.stem.upper()}"}
    name, sizes = names["name"], policy.network.sizes
    data = [_array(f"{name}_{word}", values) for word, values in _numbers(policy)]
    if isinstance(policy.env.actions, Choices):
        texts = _lines(map(_quoted, policy.env.actions.names))
        data.insert(0, f"static const char *const {name}_actions[{sizes[-1]}] = {{\n    {texts}\n}};")
    # Two arrays take turns: one has what goes into a layer, the other what comes out.
    buffers = [f"float {x}[{max(taken)}];" for x, taken in (("x", sizes[:-1:2]), ("y", sizes[1:-1:2])) if taken]
    parts = {
        "stem": out.stem,
        "about": _about(policy, name),
        "defines": "\n".join(f"#define {names['NAME']}_{word} {value}" for word, value in _defined(policy)),
        "data": "\n\n".join(data),
        "activate": "\n        ".join(_STATEMENTS[policy.network.activation]),
        "buffers": "\n    ".join(buffers),
        "layers": "\n    ".join(_calls(name, sizes)),
        "squash": _SQUASH.substitute(names) if policy.squashed else "",
        "act": (_MOVE if policy.env.actions.continuous else _CHOOSE).substitute(names),
    }
    # Without it, of two policies of one name a program would silently have the first one twice.
    checksum = zlib.crc32(repr(parts).encode())
    return _HEADER.substitute(names, **parts, checksum=f"0x{checksum:08x}UL").encode("ascii")


def _defined(policy: Policy) -> Iterator[tuple[str, str]]:
    """Constants of the header, and their values in C."""
    yield "ENV", _quoted(policy.env.name)
    yield "ALGORITHM", _quoted(policy.algorithm)
    yield "SETTINGS", _quoted(policy.settings)
    yield "INPUTS", str(policy.network.sizes[0])
    yield "OUTPUTS", str(policy.network.sizes[-1])
    if past := policy.env.past:
        yield "OBSERVATIONS", str(past.observations)
        yield "MEMORY", str(past.steps)


def _numbers(policy: Policy) -> Iterator[tuple[str, Any]]:
    """Arrays of the header, and what they hold."""
    yield "scale", policy.network.input_scale
    for i, layer in enumerate(policy.layers):
        yield f"weights{i}", layer.weights.T
        yield f"bias{i}", layer.bias
    if isinstance(actions := policy.env.actions, Interval):
        low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
        yield "low", low
        with np.errstate(over="ignore"):
            yield "width", high - low


def _calls(name: str, sizes: tuple[int, ...]) -> Iterator[str]:
    """The layers one after the other."""
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = i + 2 == len(sizes)
        source, target = "xy"[i % 2], "outputs" if last else "yx"[i % 2]
        yield f"{name}_layer({name}_weights{i}, {name}_bias{i}, {inputs}, {outputs}, {source}, {target});"
        if not last:
            yield f"{name}_activate({target}, {outputs});"


def _about(policy: Policy, name: str) -> str:
    """The comment at the top: lines that begin with an asterisk."""
    env, sizes, actions = policy.env, policy.network.sizes, policy.env.actions
    squash = ", the last one with tanh" if policy.squashed else ""
    lines = [
        f"{name}: a trained policy, written by deeprok. C99 or C++, no heap, nothing but <math.h>.",
        "",
        f"environment  {_quoted(env.name)}",
        f"algorithm    {_quoted(policy.algorithm)}",
        f"settings     {_quoted(policy.settings)}, the hash of the run's settings",
        f"network      {sizes[0]} inputs, layers of {', '.join(map(str, sizes[1:]))} units, the hidden ones with "
        f"{policy.network.activation}{squash}; {4 * (len(policy.theta) + sizes[0])} bytes of numbers",
        "",
        f"obs: {sizes[0]} finite numbers, in the environment's own units; the policy scales them itself.",
    ]
    if past := env.past:
        done = "places between -1, the low end, and 1" if actions.continuous else "1 for the one taken, else 0"
        lines.append(
            f"The policy has a memory: first comes the present observation, {past.observations} numbers, then what was "
            f"before it, step by step, the newest first, {past.steps} in all. A step is its observation, "
            f"{past.observations} numbers, and its action, {len(actions)}: {done}. Before the start of an episode all "
            "are 0."
        )
    if isinstance(actions, Interval):
        ends = ", ".join(f"{low:g} to {high:g}" for low, high in zip(actions.low, actions.high, strict=True))
        lines += [
            f"{name}_act: writes the greedy action, {len(actions)} numbers: {ends}.",
            f"{name}_outputs: writes its places between -1, the low ends, and 1; what lies beyond is that end.",
        ]
    elif isinstance(actions, Choices):
        lines += [
            f"{name}_act: the greedy action, "
            f"{', '.join(f'{i} {_quoted(word)}' for i, word in enumerate(actions.names))}.",
            f"{name}_outputs: writes a value for each action; the largest is that of the greedy one.",
        ]
    lines += [
        "",
        "Every file of a program that includes this one has a copy of the numbers.",
        "The bits of the outputs do not depend on a compiler that follows C99: gcc with -std=c99 or -ffp-contract=off, "
        "and without -ffast-math. But the last bits of tanhf, expf and expm1f are those of the mathematical library.",
    ]
    text = "\n".join(textwrap.fill(line, 110, subsequent_indent="  ") for line in lines)
    inside = text.replace("*/", "* /").replace("/*", "/ *")
    return "\n".join(f" * {line}".rstrip() for line in inside.split("\n"))


def _array(name: str, values: Any) -> str:
    with np.errstate(over="ignore"):
        numbers = np.asarray(values, np.float32).ravel()
    if not np.isfinite(numbers).all():
        raise DeeprokError(f"{name} has numbers that are not finite in single precision; it can't be exported as C")
    words = [_literal(number) for number in numbers.tolist()]
    lines = (", ".join(words[i : i + 6]) for i in range(0, len(words), 6))
    return f"static const float {name}[{len(words)}] = {{\n    {_lines(lines)}\n}};"


def _lines(words: Iterable[str]) -> str:
    return ",\n    ".join(words)


def _literal(number: float) -> str:
    """Nine digits tell all numbers of single precision apart, also for a compiler that reads them as doubles."""
    digits = f"{number:.9g}"
    return f"{digits}f" if set(digits) & set(".e") else f"{digits}.0f"


def _quoted(text: str) -> str:
    """A text as C has it; what means something else to some compiler is written in octal."""
    plain = set(range(32, 127)) - set(b'"\\?')
    written = text.encode(errors="backslashreplace")
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in written) + '"'


# --- the same in numpy ------------------------------------------------------------------------------------------------


def read_numbers(header: bytes) -> dict[str, np.ndarray]:
    """The arrays of a header by the last word of their names."""
    found = _ARRAY.findall(header.decode("ascii"))
    return {word: np.array([float(x.strip(" \nf")) for x in body.split(",")], np.float32) for word, body in found}


def header_outputs(policy: Policy, header: bytes, obs: np.ndarray, library: Any = np) -> np.ndarray:
    """The outputs [E, A] of a header for observations [E, D], in the same precision and order of operations.

    Args:
      policy: what was exported; its weights are taken from the header.
      header: what was written.
      obs: observations in single precision.
      library: has tanh, exp and expm1 for arrays. With those of the program's mathematical library the bits are the
        same as the program's.
    """
    numbers = read_numbers(header)
    hidden = len(policy.network.sizes) - 2
    with np.errstate(all="ignore"):
        x = obs.T * numbers["scale"][:, None]
        for i in range(hidden + 1):
            bias = numbers[f"bias{i}"][:, None]
            weights = numbers[f"weights{i}"].reshape(len(bias), -1)
            y = np.repeat(bias, len(obs), axis=1)
            for column, row in zip(weights.T, x, strict=True):  # @ would sum in an order of its own
                y += column[:, None] * row
            x = ACTIVATIONS[policy.network.activation](y, library) if i < hidden else y
        return (library.tanh(x) if policy.squashed else x).T


def header_actions(policy: Policy, header: bytes, outputs: np.ndarray) -> np.ndarray:
    """The actions [E], or [E, A] numbers, of a header for its outputs [E, A]."""
    if not policy.env.actions.continuous:
        return outputs.argmax(axis=1)
    numbers = read_numbers(header)
    place = np.clip(outputs, np.float32(-1), np.float32(1)) + np.float32(1)
    return numbers["low"] + place * np.float32(0.5) * numbers["width"]


def _act(policy: Policy, header: bytes, obs: np.ndarray) -> np.ndarray:
    return header_actions(policy, header, header_outputs(policy, header, obs))


FORMAT = Format(".h", to_c, _act)
