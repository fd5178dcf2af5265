"""A fuzzer: every file and string that a user can hand over, damaged in a thousand ways.

Whatever is read is accepted, or refused with one sentence of one line; never a traceback. A damaged
checkpoint is never accepted, as its checksums tell. Settings, metrics and scores are plain JSON without
checksums: a damaged number that is still a valid setting or score is accepted, for that is what it says.

A case is repeated by its kind, seed and index: `case(kind, seed, index)`.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas
import pytest
import safetensors.numpy
from finished_runs import write_run
from rich.console import Console
from test_config import OLD_RUNS, old_json

from deeprok.agents.network import MLP
from deeprok.cli.main import main
from deeprok.core import frames
from deeprok.core.errors import DeeprokError
from deeprok.environments import cartpole
from deeprok.estimators.variances import read_variances
from deeprok.evaluation.export import json_q_values, read_policy
from deeprok.evaluation.export.as_json import to_json
from deeprok.evaluation.export.policy import make_policy
from deeprok.evaluation.report import print_evaluation
from deeprok.evaluation.stored import read_stored
from deeprok.identification import log as log_files
from deeprok.identification.checks import Check
from deeprok.identification.log import read_log
from deeprok.identification.result import Estimate, Fit, Identified, Noise, settings_from
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.sweeps.design import make_trials
from deeprok.sweeps.spec import read_spec
from deeprok.tabular import read_csv
from deeprok.tabular.counts import check_size, read_counts, read_support
from deeprok.training import jobs
from deeprok.training.loop import templates
from deeprok.training.scan import make_program
from studies.exam import CONDITIONS, Exam, read_scores
from studies.results import summarise

SENTENCE = 420  # characters that the command line may print: a sentence and the program's name

Rng = random.Random
Bytes = bytes | None  # None: a directory in the file's place

# --- damage to any file --------------------------------------------------------------------------------

LONG = "x" * 10_000


def cut(data: bytes, rng: Rng) -> bytes:
    return data[: rng.randrange(len(data))]


def flip_bits(data: bytes, rng: Rng) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def delete(data: bytes, rng: Rng) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.choice((1, 2, 10, 100)) :]


def duplicate(data: bytes, rng: Rng) -> bytes:
    start = rng.randrange(len(data))
    end = start + rng.choice((1, 2, 10, 100))
    return data[:end] + data[start:end] + data[end:]


def insert(data: bytes, rng: Rng) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.choice((1, 3, 20))) + data[start:]


def insert_no_text(data: bytes, rng: Rng) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice((b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"\x80")) + data[start:]


def lose_the_end(data: bytes, rng: Rng) -> bytes:
    """What a power cut may leave: the right length, but zeros."""
    start = rng.randrange(len(data))
    return data[:start] + bytes(len(data) - start)


def replace(data: bytes, rng: Rng) -> Bytes:
    return rng.choice((None, b"", b"\n", b"null", b"[]", b"{}", b"PK\x03\x04" + data, rng.randbytes(200), data * 2))


ANY_FILE = (cut, flip_bits, flip_bits, delete, duplicate, insert, insert_no_text, lose_the_end, replace)

# --- damage to JSON ------------------------------------------------------------------------------------

#: Values as JSON writes them, with which any other is replaced.
VALUES = (
    *("null", "true", "false", '""', '"text"', '"1.0"', '"line\\nbreak\\r\\u2028\\u001b[31m"', '"\\ud800"', '"[/x]"'),
    *("0", "-1", "1", "2147483648", "1" + "0" * 30, "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5000),
    *("NaN", "Infinity", "-Infinity", "1e39", "-1e39", "1e308", "1e400", "1e-60", "0.5", "-0.0"),
    *("[]", "{}", "[[]]", "[1, [2]]", '["a"]', "[null]", '{"a": 1}', "[" + "1, " * 3000 + "1]"),
    *(f'"{LONG}"', f'{{"{LONG}": "{LONG}"}}', f'["{LONG} \\n {LONG}"]'),
    *("[" * depth + "]" * depth for depth in (10, 65, 300, 450, 490, 900, 980, 100_000)),
    '{"a":' * 950 + "1" + "}" * 950,
)
MARK = "@ here @"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value in JSON."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def damage_value(text: bytes, rng: Rng) -> bytes:
    """Replaces, drops, renames or adds a value of a JSON text."""
    content = json.loads(text)
    *parents, last = rng.choice([path for path in places(content) if path] or [(None,)])
    holder = content
    for key in parents:
        holder = holder[key]
    kind = rng.choice(("replace", "replace", "replace", "drop", "rename", "add"))
    if last is None or kind == "replace" or isinstance(holder, list):
        if last is None:
            content = MARK
        else:
            holder[last] = MARK
    elif kind == "add":
        holder[rng.choice(("extra", "", LONG, "new\nline", "a b " * 500))] = MARK
    else:
        value = holder.pop(last)
        if kind == "rename":
            holder[f"{last}{rng.choice(('s', ' ', chr(10), LONG))}"] = value
    return json.dumps(content).replace(json.dumps(MARK), rng.choice(VALUES)).encode()


def damage_settings(data: bytes, rng: Rng) -> bytes:
    """Damages a setting of any kind of agent."""
    algorithm = rng.choice(("dqn", "deep_rok", "bbb_dqn", "psgld_dqn", "ktd_q", "epopt"))
    return damage_value(make_config(algorithm, "tuned", hidden=(1,), episodes=4).to_json().encode(), rng)


def damage_old_settings(data: bytes, rng: Rng) -> bytes:
    """Damages a setting that an earlier version wrote."""
    old, _, _ = OLD_RUNS[rng.choice(sorted(OLD_RUNS))]
    return damage_value(old_json(**old).encode(), rng)


def damage_line(data: bytes, rng: Rng) -> bytes:
    """Damages a line of several."""
    lines = data.splitlines(keepends=True)
    i = rng.randrange(len(lines))
    kind = rng.choice(("value", "value", "value", "drop", "double", "swap", "replace"))
    if kind == "value":
        lines[i] = damage_value(lines[i], rng) + b"\n"
    elif kind == "drop":
        del lines[i]
    elif kind == "double":
        lines.insert(i, lines[i])
    elif kind == "swap":
        lines[i], lines[-1] = lines[-1], lines[i]
    else:
        lines[i] = rng.choice(VALUES).encode() + rng.choice((b"\n", b"\r\n", b""))
    return b"".join(lines)


# --- damage to arrays, tables and words ----------------------------------------------------------------


def damage_tensor(data: bytes, rng: Rng) -> bytes:
    """Changes an array of a checkpoint, or its description, but no checksum; or loses some of those."""
    tensors = safetensors.numpy.load(data)
    right = {name: described(array) for name, array in tensors.items()}
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    name = rng.choice(sorted(tensors))
    array = tensors[name]
    kind = rng.choice(("value", "value", "value", "drop", "rename", "add", "shape", "type", "swap", "checksum"))
    if kind == "value" and array.size:
        changed = array.copy().reshape(-1)
        i = rng.randrange(changed.size)
        changed[i] = ~changed[i] if changed.dtype == bool else changed[i] + changed.dtype.type(1)
        tensors[name] = changed.reshape(array.shape)
    elif kind in ("drop", "rename"):
        del tensors[name]
        if kind == "rename":
            tensors[name + "s"] = array
    elif kind == "shape":
        tensors[name] = array.reshape(-1, 1)
    elif kind == "type":
        tensors[name] = array.astype(rng.choice((np.float64, np.int8, np.float16, np.uint32)))
    elif kind == "swap":
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], array
    elif kind == "checksum":
        del metadata[name]
    else:
        tensors["extra"] = array
    if kind != "checksum" and {k: described(v) for k, v in tensors.items()} == right:
        return data  # two that were alike have been swapped
    return safetensors.numpy.save(tensors, metadata=metadata)


def described(array: np.ndarray) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def damage_npy(data: bytes, rng: Rng) -> bytes:
    """Another array, or a header that does not describe what follows."""
    file = io.BytesIO()
    if rng.random() < 0.5:
        shape = rng.choice(((10**12,), (10**30,), (-1,), (3, 3), (), (9, 9, 9), (0,), (True,), ("a",)))
        described = {"descr": rng.choice(("<f8", "|O", "<M8[s]", "x", "")), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, described)
        return file.getvalue() + data[-72:]
    return whole_npy(rng)


def whole_npy(rng: Rng) -> bytes:
    """An array that is none of what is expected."""
    file = io.BytesIO()
    arrays: tuple[Any, ...] = (
        *(
            np.ones(9, complex),
            np.array(["a"] * 9),
            np.zeros(9, "f4,i4"),
            np.array(1.0),
            np.ones((2, 2, 2)),
            np.ones(0),
        ),
        *(
            np.full(9, np.nan),
            np.full(9, np.inf),
            np.full(9, 1e39),
            -np.ones(9),
            np.ones((9, 9)),
            np.eye(9, dtype=bool),
        ),
    )
    np.save(file, rng.choice(arrays))
    return file.getvalue()


WORDS = ("", " ", "a", "nan", "inf", "1e39", "1e400", "-1", "-0.0", "1.5", "9" * 30, "9" * 400, LONG, "a b " * 500)
WORDS += (
    "'",
    '"',
    "=",
    ":",
    ",",
    ";",
    "\n",
    "\r",
    "\x1b[31m",
    "\u2028",
    "\udcff",
    "é",
    "[/x]",
    "[bold]",
    "1_0",
    "٣",
    "{}",
    "%s",
)


def damage_cell(data: bytes, rng: Rng) -> bytes:
    """Replaces, drops or doubles a cell or a line of a table."""
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = rng.randrange(len(rows))
    cell = rng.randrange(len(rows[row]))
    kind = rng.choice(("replace", "replace", "replace", "drop", "double", "drop line", "double line"))
    if kind == "replace":
        rows[row][cell] = rng.choice(WORDS)
    elif kind == "drop":
        del rows[row][cell]
    elif kind == "double":
        rows[row].insert(cell, rows[row][cell])
    elif kind == "drop line":
        del rows[row]
    else:
        rows.insert(row, rows[row])
    return "\n".join(map(",".join, rows)).encode("utf-8", "surrogateescape")


def damage_toml(data: bytes, rng: Rng) -> bytes:
    """Replaces a value or a key, drops or doubles a line, or damages words of it."""
    lines = data.decode().splitlines()
    i = rng.choice([i for i, line in enumerate(lines) if line])
    key, _, value = lines[i].partition(" = ")
    kind = rng.choice(("value", "value", "value", "key", "words", "drop", "double"))
    if kind == "value":
        value = rng.choice(
            (*VALUES, "2026-01-01", "{low = 1, high = 0}", "{low = 0, high = 1, log = true}", "[[1, 2]]")
        )
        lines[i] = f"{key} = {value}"
    elif kind == "key":
        lines[i] = f"{rng.choice(('extra', 'seed', 'settings', LONG, chr(39) * 2))} = {value}"
    elif kind == "words":
        lines[i] = damage_words(lines[i], rng)
    elif kind == "drop":
        del lines[i]
    else:
        lines.insert(i, lines[i])
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def damage_npz(data: bytes, rng: Rng) -> bytes:
    """Replaces, drops or adds an array of several."""
    arrays = dict(np.load(io.BytesIO(data)))
    name = rng.choice(sorted(arrays))
    kind = rng.choice(("replace", "replace", "drop", "add"))
    if kind == "drop":
        del arrays[name]
    else:
        new = np.load(io.BytesIO(whole_npy(rng)))
        arrays[name if kind == "replace" else rng.choice(("extra", "obs_9", "action_1", LONG[:300]))] = new
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def inflate_npz(data: bytes, rng: Rng) -> bytes:
    """A few kilobytes that say that they hold much more: in a header, or compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        rows = rng.choice((10**9, 10**12, 10**30))
        about = {"descr": "<f8", "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(header, about)
        archive.writestr("episode.npy", header.getvalue() + bytes(rng.choice((8, 10**6))))
    return file.getvalue()


def damage_parquet(data: bytes, rng: Rng) -> bytes:
    """Replaces, drops or adds a column."""
    frame = pandas.read_parquet(io.BytesIO(data))
    name = rng.choice(sorted(frame))
    kind = rng.choice(("replace", "replace", "drop", "add"))
    if kind == "drop":
        frame = frame.drop(columns=name)
    else:
        cell = rng.choice((None, "text", LONG, [1.0, 2.0], {"a": 1}, b"\xff", float("nan"), 1e300, True, 10**18))
        frame[name if kind == "replace" else "extra"] = [cell] * len(frame)
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


def damage_words(text: str, rng: Rng) -> str:
    """Replaces, drops, doubles or adds parts of a text."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 1, 1, 3, 10)))
        text = text[:start] + rng.choice((*WORDS, text[start:end] * 2, text[:3])) + text[end:]
    return text


# --- what there is to damage, and who reads it ---------------------------------------------------------

N = 9  # weights of the network 4-1-2
TINY: dict[str, Any] = dict(hidden=(1,), input_scale=(1.0,) * 4, episodes=4, replay_size=10, snapshot_every=2)
EXAM = Exam(10, lengths=5, beyond=2, curve=2)


def filled(template: Any) -> Any:
    """Arrays of these shapes with numbers in them."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.integers(0, 2, leaf.shape).astype(leaf.dtype), template)


class Originals(NamedTuple):
    """Files that are whole, and what they are checked against."""

    folder: Path  # a finished run, with everything else beside its own files
    program: Any
    template: Any  # of its checkpoint: state and best belief
    scores: dict[str, Any]


def make_originals(folder: Path) -> Originals:
    config = make_config("deep_rok", "tuned", **TINY)
    program = make_program(config)
    run, best = templates(program)
    runs.create(folder, config)
    parts = {"run": filled(run), "best": filled(best)}
    counters = {"steps": np.int32(60), "episodes": np.int32(4)}
    parts["run"] = type(parts["run"])(**{**vars(parts["run"]), **counters})
    checkpoint.save(folder / runs.CHECKPOINT, parts)
    checkpoint.save(folder / runs.PRIOR, {"belief": filled(run.agent.belief)})
    for i in range(1, 7):
        line = {"steps": 10 * i, "episodes": i, "returns": [10.0, 12.5], "epsilon": 0.5, "loss": 0.1, "seconds": 1.0}
        runs.append_metrics(folder, {**line, "variances": [0.1, 0.2], **({"trial_return": 20.0} if i % 2 else {})})
    means = ("success", "success_error", "return", "return_error", "nominal_success", "nominal_return")
    scores: dict[str, Any] = {
        **dict.fromkeys(means, 0.5),
        **dict.fromkeys(("cell_success", "cell_return"), np.full((7, 7), 0.5).tolist()),
        **dict.fromkeys(("length_return", "length_deviation"), [1.0] * 13),
        "beyond": {name: {"success": 0.5, "return": 10.0} for name in CONDITIONS},
        "curve": {"episodes": [2, 4], "return": [1.0, 2.0], "success": [0.0, 0.5]},
    }
    (folder / "scores.json").write_text(json.dumps(scores))
    network = MLP((4, 1, 2), "tanh", (1.0,) * 4)
    (folder / "policy.json").write_bytes(to_json(make_policy(network, np.arange(N, dtype=np.float32), cartpole())))
    rows = [f"{s},{a},{t},{p},{r}" for s in range(3) for a in range(2) for t, p, r in ((0, 0.25, 1.0), (2, 0.75, -1.5))]
    table = "\n".join(["idstatefrom,idaction,idstateto,probability,reward", *rows, ""])
    (folder / "model.csv").write_text(table)
    (folder / "variances.json").write_text(json.dumps([0.5] * N))
    np.save(folder / "variances.npy", np.full(N, 0.5))
    write_inputs(folder)
    return Originals(folder, program, (run, best), scores)


def write_inputs(folder: Path) -> None:
    """What users bring: a sweep, logs, identified parameters, counts; and an evaluation that is stored."""
    (folder / "sweep.toml").write_text(SWEEP)
    columns = {"episode": np.repeat([0, 1], 3), "t": np.tile(np.arange(3), 2), "action": np.array([0, 1] * 3)}
    columns |= {f"obs_{i}": np.linspace(-0.1, 0.1, 6) for i in range(4)}
    pandas.DataFrame(columns).to_csv(folder / "log.csv", index=False)
    pandas.DataFrame(columns).to_parquet(folder / "log.parquet")
    np.savez(folder / "log.npz", **columns)
    ranges = {"pole_length": (0.4, 0.6), "cart_mass": (1.0, 2.0)}
    (folder / "identified.json").write_text(identified_json(ranges))
    score = {"mean_return": 10.0, "success": 0.5}
    cells = {name: [[0.5, 0.5], [0.5, 0.5]] for name in ("mean_return", "std_return", "success")}
    seed = {"seed": 0, **cells, "overall": score, "nominal": score}
    evaluation = {
        **dict(algorithm="rtd_dqn", grid={"pole_length": [0.2, 1.4], "cart_mass": [0.1, 7.0]}, episodes=10),
        **dict(
            epsilon=0.1, policy="mean", members=1, kappa=0.0, keep="best", file="evaluation-x.json", per_seed=[seed]
        ),
        **cells,
        **dict(success_low=cells["success"], success_high=cells["success"], overall=score, nominal=score),
    }
    (folder / "evaluation-x.json").write_text(json.dumps(evaluation))
    rows = [f"{s},{a},{t},{r},{n}" for s in "ab" for a in "01" for t, r, n in (("a", 0.5, 3), ("b", -1, 2))]
    (folder / "counts.csv").write_text("\n".join(["state,action,next_state,reward,count", *rows, ""]))
    (folder / "support.csv").write_text("state,action,next_state,reward\na,0,b,0.5\nb,,a,\n")


SWEEP = """\
algorithm = ["ddqn", "rtd_dqn"]
env = "cartpole"
seeds = 2
trials = 3
design_seed = 1

[settings]
episodes = 5
hidden = [[4], [4, 4]]
learning_rate = {low = 1e-4, high = 1e-2, log = true}
batch_size = 4
optimizer = "adam"
double = true
"""


def identified_json(box: dict[str, tuple[float, float]]) -> str:
    """The file that `deeprok identify` writes of parameters with these ranges."""
    found = Identified(
        env="cartpole",
        parameters={name: Estimate((low + high) / 2, low, high) for name, (low, high) in box.items()},
        confidence=0.9,
        unidentified=(),
        combinations=(),
        noise=Noise((0.1,) * 4, (0.1,) * 4),
        fit=Fit(
            2,
            60,
            -3.5,
            ({"pole_length": 0.5, "cart_mass": 1.2},),
            (Check("obs_0", "state", "action", 0.4, 0.01, False),),
        ),
        bootstrap=box,
        models={name: (low, high) for name, (low, high) in box.items()},
        box=box,
        notes=("a note",),
    )
    return found.to_json()


class Kind(NamedTuple):
    """A kind of file, how it is damaged beside what can happen to any file, and who reads it."""

    file: str
    damages: tuple[Callable[[bytes, Rng], Bytes], ...]
    read: Callable[[Originals, Path], int | None]  # a path to the damaged file; an exit code, 0 if None
    checked: bool = False  # by checksums, so that no damage is accepted


def read_config(originals: Originals, path: Path) -> None:
    config = runs.read_config(path.parent)
    config.make_learner()
    config.digest()


def resume_finished(originals: Originals, path: Path) -> int:
    """Prints a table of the metrics."""
    return main(["train", "--resume", str(path.parent)])


def trim(originals: Originals, path: Path) -> None:
    """What resuming does to the metrics, which must be right afterwards."""
    runs.trim_metrics(path.parent, 40)
    assert all(line["steps"] <= 40 for line in runs.read_metrics(path.parent))


def read_checkpoint(originals: Originals, path: Path) -> None:
    run, best = originals.template
    checkpoint.load(path, "run", run)
    checkpoint.load(path, "best", best)


def export(originals: Originals, path: Path) -> int:
    return main(["export", str(path.parent), "--out", str(path.parent / "policy.json")])


def begin_with_prior(originals: Originals, path: Path) -> None:
    runs.load_prior(path.parent, originals.program.learner)


def read_the_scores(originals: Originals, path: Path) -> None:
    scores = read_scores(path, EXAM, snapshots=2)
    with np.errstate(all="ignore"):
        summarise({0: scores}, originals.scores, "")


def act(originals: Originals, path: Path) -> None:
    q = json_q_values(read_policy(path), np.ones((3, 4)))
    assert q.shape == (3, 2)


def read_model(originals: Originals, path: Path) -> None:
    read_csv(path)


def read_sweep(originals: Originals, path: Path) -> None:
    """What `deeprok sweep` does before it makes a folder."""
    make_trials(read_spec(path))


def read_a_log(originals: Originals, path: Path) -> None:
    log = read_log(path, cartpole())
    assert np.isfinite(log.obs).all()


def train_on_identified(originals: Originals, path: Path) -> None:
    for what in ("box", "models"):
        make_config("rtd_dqn", **settings_from(path, "cartpole", what)).make_box(cartpole())


def read_evaluation(originals: Originals, path: Path) -> None:
    found = read_stored([path.parent], path.name)
    print_evaluation(found, Console(file=io.StringIO()))


def read_the_counts(originals: Originals, path: Path) -> None:
    counts = read_counts(path)
    check_size(counts)


def read_the_support(originals: Originals, path: Path) -> None:
    read_support(path, read_counts(path.parent / "counts.csv"))


def use_variances(originals: Originals, path: Path) -> None:
    make_config("deep_rok", "tuned", **TINY, prior_covariance=read_variances(str(path), "prior_covariance"))


KINDS: dict[str, Kind] = {
    "config": Kind(runs.CONFIG, (*(damage_settings,) * 12, *(damage_old_settings,) * 6), read_config),
    "metrics": Kind(runs.METRICS, (damage_line,) * 8, resume_finished),
    "trimmed metrics": Kind(runs.METRICS, (damage_line,) * 8, trim),
    "checkpoint": Kind(runs.CHECKPOINT, (damage_tensor,) * 5, read_checkpoint, checked=True),
    "exported checkpoint": Kind(runs.CHECKPOINT, (flip_bits, damage_tensor), export, checked=True),
    "prior": Kind(runs.PRIOR, (damage_tensor,) * 5, begin_with_prior, checked=True),
    "scores": Kind("scores.json", (damage_value,) * 8, read_the_scores),
    "policy": Kind("policy.json", (damage_value,) * 8, act),
    "model": Kind("model.csv", (damage_cell,) * 8, read_model),
    "variances as JSON": Kind("variances.json", (damage_value,) * 8, use_variances),
    "sweep": Kind("sweep.toml", (damage_toml,) * 12, read_sweep),
    "log as CSV": Kind("log.csv", (damage_cell,) * 8, read_a_log),
    "log as npz": Kind("log.npz", (*(damage_npz,) * 6, inflate_npz), read_a_log),
    "log as parquet": Kind("log.parquet", (damage_parquet,) * 6, read_a_log),
    "identified": Kind("identified.json", (damage_value,) * 8, train_on_identified),
    "evaluation": Kind("evaluation-x.json", (damage_value,) * 8, read_evaluation),
    "counts": Kind("counts.csv", (damage_cell,) * 8, read_the_counts),
    "support": Kind("support.csv", (damage_cell,) * 8, read_the_support),
    "variances as npy": Kind("variances.npy", (damage_npy,) * 5, use_variances),
}

#: Texts of the command line: what they are, for each a right one, and the words that bring it to its reader.
TEXTS: dict[str, tuple[str, list[str]]] = {
    "command": ("train", ["{}"]),
    "algorithm": ("deep_rok", ["train", "{}", "--out={folder}"]),
    "env": ("cartpole", ["train", "rtd_dqn", "--env={}", "--out={folder}"]),
    "box": ("pole_length=0.2:1.4,cart_mass=0.1:7", ["train", "rtd_dqn", "--box={}", "--out={folder}"]),
    "nominal": ("cart_mass=2,gravity=5", ["train", "rtd_dqn", "--nominal={}", "--out={folder}"]),
    "fixed_models": ("cart_mass=2:3:4; gravity=5", ["train", "rtd_dqn", "--fixed-models={}", "--out={folder}"]),
    "target": ("cart_mass=2,gravity=5", ["train", "epopt", "--target={}", "--out={folder}"]),
    "network": ("mlp", ["train", "rtd_dqn", "--network={}", "--out={folder}"]),
    "robust_set": ("cvar", ["train", "rtd_dqn", "--robust-set={}", "--out={folder}"]),
    "variances": ("0.5", ["train", "deep_rok", "--prior-covariance={}", "--out={folder}"]),
    "out": ("x", ["train", "dqn", "--out={folder}/metrics.jsonl/{}"]),  # below a file, where no folder can be
    "resume": ("{folder}", ["train", "--resume={}"]),
    "run": ("{folder}", ["calibrate", "--seed=1", "{}x"]),
    "grid": ("pole_length=0.2:1.4:3,cart_mass=2", ["evaluate", "{empty}", "--grid={}"]),
    "radius": ("0:1:5", ["solve", "nowhere.csv", "--radius={}"]),
    "worst model": ("worst.csv", ["solve", "nowhere.csv", "--radius=0.1", "--worst-model={folder}/no/{}"]),
    "plot": ("plot.png", ["solve", "nowhere.csv", "--radius=0:1:3", "--plot={folder}/{}"]),
    "study": ("nowhere", ["reproduce", "--resume", "--out={folder}/no/{}"]),
    "problem": ("river_swim", ["solve", "{}x", "--radius=0.1"]),
}


def damage_text(rng: Rng, originals: Originals) -> list[str]:
    text, words = TEXTS[rng.choice(sorted(TEXTS))]
    places = {"folder": str(originals.folder), "empty": str(originals.folder / "empty")}
    text = damage_words(text.replace("{folder}", places["folder"]), rng)
    if text.startswith("-"):  # an option, or a request for help
        text = f"x{text}"
    words = [word.replace("{folder}", places["folder"]).replace("{empty}", places["empty"]) for word in words]
    return [word.replace("{}", text) for word in words]


# --- the verdict ---------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    what: str  # accepted, refused, or what is wrong
    said: str


def judge(read: Callable[[], int | None]) -> Verdict:
    """What comes of reading something."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = read() or 0
    except DeeprokError as error:
        code, said = 2, f"deeprok: {error}\n"
    except SystemExit as stopped:
        code, said = stopped.code, err.getvalue()
    except Exception:
        return Verdict("traceback", traceback.format_exc()[-2000:])
    else:
        said = err.getvalue()
    if code == 0:
        return Verdict("accepted", said)
    if code != 2:
        return Verdict(f"exit code {code}", said)
    said = said[max(0, said.find("deeprok: ")) :]  # what was said of the progress is none of the sentence
    if said.count("\n") != 1 or not said.endswith("\n") or not said[:-1].isprintable():
        return Verdict("not one line", said[:2000])
    if len(said) > SENTENCE:
        return Verdict("too long", said[:2000])
    return Verdict("refused", said)


def case(kind: str, seed: int, index: int, originals: Originals, folder: Path) -> Verdict:
    """A damaged file or text, read.

    Args:
      kind: a key of `KINDS`, or "text".
      seed: with the index, decides the damage.
      index: see above.
      originals: what is damaged.
      folder: a new folder to do it in.
    """
    rng = Rng(f"{kind} {seed} {index}")
    if kind == "text":
        words = damage_text(rng, originals)
        found = judge(lambda: main(words))
        return found._replace(said=f"{found.said}\n{[word[:200] for word in words]}")
    shutil.copytree(originals.folder, folder, ignore=shutil.ignore_patterns("empty"))
    path = folder / KINDS[kind].file
    right = path.read_bytes()
    while True:
        damage = rng.choice((*ANY_FILE, *KINDS[kind].damages))
        data = damage(right, rng)
        if data != right:
            break
    path.unlink()
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    found = judge(lambda: KINDS[kind].read(originals, path))
    if found.what == "accepted" and KINDS[kind].checked:
        found = Verdict("accepted though damaged", found.said)
    return found._replace(said=f"{found.said}\n{damage.__name__}")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    made = make_originals(tmp_path_factory.mktemp("originals") / "run")
    empty = made.folder / "empty"
    empty.mkdir()
    shutil.copy(made.folder / runs.CONFIG, empty)
    return made


def judge_all(kind: str, seed: int, cases: int, originals: Originals, folder: Path) -> Counter[str]:
    """Verdicts on many cases; fails with all that are wrong."""
    verdicts: Counter[str] = Counter()
    wrong = []
    for index in range(cases):
        found = case(kind, seed, index, originals, folder / "case")
        shutil.rmtree(folder / "case", ignore_errors=True)
        verdicts[found.what] += 1
        if found.what not in ("accepted", "refused"):
            wrong.append(f"case({kind!r}, {seed}, {index}): {found.what}: {found.said}")
    assert not wrong, f"{len(wrong)} of {cases} cases:\n\n" + "\n\n".join(wrong[:5])
    return verdicts


@pytest.mark.parametrize("kind", [*KINDS, "text"])
def test_originals_are_accepted(originals: Originals, tmp_path: Path, kind: str) -> None:
    if kind == "text":
        assert main(["evaluate", str(originals.folder / "empty"), "--grid=pole_length=1"]) == 2  # for its checkpoint
        return
    folder = shutil.copytree(originals.folder, tmp_path / "run")
    assert judge(lambda: KINDS[kind].read(originals, folder / KINDS[kind].file)).what == "accepted"


CASES = {"text": 140, "exported checkpoint": 10, "metrics": 90, "config": 200}


@pytest.mark.parametrize("kind", [*KINDS, "text"])
def test_damage_is_one_sentence(originals: Originals, tmp_path: Path, kind: str) -> None:
    assert judge_all(kind, 0, CASES.get(kind, 80), originals, tmp_path)["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("kind", [*KINDS, "text"])
def test_more_damage(originals: Originals, tmp_path: Path, kind: str, seed: int) -> None:
    judge_all(kind, seed, 5 * CASES.get(kind, 80), originals, tmp_path)


BAD_LINES = {
    "half": b'{"steps": 20, "epis',
    "no text": b'{"steps": 20, "episodes": 2, "returns": [1.0], "x": "\xff"}',
    "no object": b"[20]",
    "no returns": b'{"steps": 20, "episodes": 2}',
    "returns of words": b'{"steps": 20, "episodes": 2, "returns": ["1.0"]}',
    "one return": b'{"steps": 20, "episodes": 2, "returns": 1.0}',
    "steps of words": b'{"steps": "20", "episodes": 2, "returns": [1.0]}',
    "a word as trial": b'{"steps": 20, "episodes": 2, "returns": [1.0], "trial_return": "best"}',
    "endless": b"[" * 100_000,
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES)
def test_damaged_lines_of_metrics(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / runs.METRICS
    lines = [{"steps": 10 * i, "episodes": i, "returns": [float(i)]} for i in (1, 3)]
    first, last = (json.dumps(line).encode() + b"\n" for line in lines)
    for end in (bad, bad + b"\n"):  # which a crash may leave
        path.write_bytes(first + end)
        assert runs.read_metrics(tmp_path) == lines[:1]
    path.write_bytes(first + bad + b"\n" + last)
    with pytest.raises(DeeprokError, match=r"metrics\.jsonl is damaged: line 2 is not what training writes"):
        runs.read_metrics(tmp_path)
    runs.trim_metrics(tmp_path, 100)
    assert path.read_bytes() == first


def test_every_bit_of_a_checkpoint_counts(originals: Originals, tmp_path: Path) -> None:
    """Flipped bits all over the file: in the length, the header, the checksums and the numbers."""
    path = tmp_path / runs.CHECKPOINT
    data = (originals.folder / runs.CHECKPOINT).read_bytes()
    rng = Rng(0)
    for place in (*range(8), *range(8, len(data), len(data) // 200)):
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(DeeprokError, match="damaged"):
            checkpoint.load(path, "run", originals.template[0])


def test_a_finished_run_with_damaged_weights_is_not_resumed_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to train, and so nobody else would read them."""
    folder = write_run(tmp_path / "run")
    assert main(["train", "--resume", str(folder)]) == 0
    assert "is finished: nothing to do" in " ".join(capsys.readouterr().err.split())
    path = folder / runs.CHECKPOINT
    data = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(data[:8], "little")
    data[end + json.loads(data[8:end])["best.belief.theta"]["data_offsets"][0]] ^= 1
    path.write_bytes(data)
    said = f"{path} is damaged: 'best.belief.theta' is not what was written; train the run again"
    assert main(["train", "--resume", str(folder)]) == 2
    assert " ".join(capsys.readouterr().err.split()) == f"deeprok: {said}"
    with pytest.raises(DeeprokError, match="is damaged"):
        jobs.resume([folder])


def test_a_small_file_that_holds_much(originals: Originals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal numbers are packed well, so that the size of a file says nothing of that of its columns."""
    columns = {"episode": np.zeros(50_000)}
    np.savez_compressed(tmp_path / "log.npz", **columns)
    pandas.DataFrame(columns).to_parquet(tmp_path / "log.parquet")
    for module in (log_files, frames):
        monkeypatch.setattr(module, "MOST_BYTES", 300_000)
    for name in ("log.npz", "log.parquet"):
        assert (tmp_path / name).stat().st_size < 10_000
        with pytest.raises(DeeprokError, match=r"holds 0\.0 GB when unpacked; a table may have 0\.0$"):
            read_log(tmp_path / name, cartpole())
        read_log(originals.folder / name, cartpole())


def test_an_array_that_is_none(tmp_path: Path) -> None:
    """Nothing is allocated for an array whose header does not describe it."""
    header = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(tmp_path / "log.npz", "w") as archive:
        archive.writestr("episode.npy", header.getvalue() + bytes(80))
    with pytest.raises(DeeprokError, match=r"log\.npz: it is not an \.npz file of numbers$"):
        read_log(tmp_path / "log.npz", cartpole())


def test_a_cell_without_end(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(f"episode,t\n0,{'9' * 200_000}\n")
    with pytest.raises(DeeprokError, match=r"log\.csv: field larger than field limit"):
        read_log(tmp_path / "log.csv", cartpole())
