"""Experiment trackers: event files byte for byte, fake modules with real signatures, trainings they can't change."""

from __future__ import annotations

import json
import shutil
import struct
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from finished_runs import write_run
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

import deeprok
from deeprok.cli import streams
from deeprok.cli.main import main
from deeprok.core.console import WordConsole
from deeprok.core.errors import DeeprokError
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.tracking.base import TrackedRun, numbers_of
from deeprok.tracking.convert import write_events
from deeprok.tracking.tensorboard import EVENTS, checksum, record, scalars_event, version_event
from deeprok.tracking.track import TRACKING, make_trackers, tracked
from deeprok.training import jobs

# --- event files --------------------------------------------------------------------------------------------------

#: What the record writer of tensorboard 2.21.0 makes of the events in the test, with its own protocol buffers.
WRITTEN = (
    "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d2f000000000000006d5d1d5009000060"
    "40fc54d94110ac022a210a0b0a046c6f7373150000803e0a120a0b6d65616e5f72657475726e15000048c12100e3461a0000000000000012"
    "9bd82d090000c040fc54d94110f0a2042a0b0a090a02ceb515cdcccc3d329ef16e"
)


def test_events_are_those_of_tensorboards_own_writer() -> None:
    events = [
        version_event(1_700_000_000.0),
        scalars_event(1_700_000_001.5, 300, {"loss": 0.25, "mean_return": -12.5}),
        scalars_event(1_700_000_003.0, 70_000, {"ε": 0.1}),
    ]
    assert b"".join(map(record, events)).hex() == WRITTEN


def test_checksums_are_those_of_the_standard() -> None:
    """RFC 3720, B.4, and the usual check value."""
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(bytes(32)) == 0x8A9136AA
    assert checksum(b"\xff" * 32) == 0x62A8AB43
    assert checksum(bytes(range(32))) == 0x46DD794E


def _messages() -> Any:
    """Event and its parts, as tensorboard's event.proto and summary.proto declare these fields."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="events.proto", package="t", syntax="proto3")
    for message, fields in {
        "Value": [("tag", 1, kinds.TYPE_STRING, ""), ("simple_value", 2, kinds.TYPE_FLOAT, "")],
        "Summary": [("value", 1, kinds.TYPE_MESSAGE, ".t.Value")],
        "Event": [
            ("wall_time", 1, kinds.TYPE_DOUBLE, ""),
            ("step", 2, kinds.TYPE_INT64, ""),
            ("file_version", 3, kinds.TYPE_STRING, ""),
            ("summary", 5, kinds.TYPE_MESSAGE, ".t.Summary"),
        ],
    }.items():
        made = file.message_type.add(name=message)
        for name, number, kind, of in fields:
            label = kinds.LABEL_REPEATED if name == "value" else kinds.LABEL_OPTIONAL
            made.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


EVENT = _messages()


def read_events(content: bytes) -> list[Any]:
    """The events of a file, by protobuf's own reader."""
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert len(content) >= 16 + length, "the last record is cut short"
        found.append(EVENT.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def scalars(path: Path) -> dict[int, dict[str, float]]:
    """Step -> name -> value, of an event file."""
    version, *events = read_events(path.read_bytes())
    assert version.file_version == "brain.Event:2"
    steps = [event.step for event in events]
    assert steps == sorted(set(steps))
    return {event.step: {value.tag: value.simple_value for value in event.summary.value} for event in events}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.dictionaries(st.text(max_size=200), st.floats(width=32), max_size=20))
def test_events_are_read_by_protocol_buffers(step: int, values: dict[str, float]) -> None:
    (event,) = read_events(record(scalars_event(12.5, step, values)))
    assert (event.wall_time, event.step) == (12.5, step)
    assert [each.tag for each in event.summary.value] == list(values)
    np.testing.assert_array_equal([each.simple_value for each in event.summary.value], list(values.values()))


def test_numbers_beyond_float32_are_infinite() -> None:
    (event,) = read_events(record(scalars_event(0.0, 1, {"a": 1e300, "b": -1e300})))
    assert [each.simple_value for each in event.summary.value] == [np.inf, -np.inf]


def test_the_numbers_of_a_line() -> None:
    line = {"steps": 5, "episodes": 2, "returns": [1.0, 2.0], "variances": [0.5, 3.0], "loss": 2}
    assert numbers_of(line) == {
        "episodes": 2.0,
        "mean_return": 1.5,
        "variances_0": 0.5,
        "variances_1": 3.0,
        "loss": 2.0,
    }
    assert numbers_of({"steps": 5, "episodes": 2, "returns": []}) == {"episodes": 2.0}


# --- conversion ---------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Two seeds with two lines of metrics each."""
    for seed in (0, 1):
        folder = write_run(tmp_path / "runs" / "a" / f"seed-{seed}", "ddqn", seed=seed)
        runs.append_metrics(folder, {"steps": 90, "episodes": 5, "returns": [3.0, 5.0 + seed], "seconds": 2.5})
    return tmp_path / "runs"


def test_runs_are_converted(begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(write_events([begun / "a"])) == 2
    found = scalars(begun / "a" / "seed-1" / EVENTS)
    assert list(found) == [60, 90]
    assert found[90] == {"episodes": 5.0, "mean_return": 4.5, "seconds": 2.5}
    first, second = read_events((begun / "a" / "seed-1" / EVENTS).read_bytes())[1:]
    assert second.wall_time - first.wall_time == pytest.approx(2.5)  # seconds of training
    (begun / "sweep.json").write_text(json.dumps({"trials": [{"folder": "a", "seeds": [1, 2]}]}))
    parts: list[float] = []
    assert write_events([begun], tmp_path / "logs", parts.append) == [tmp_path / "logs" / "seed-1" / EVENTS]
    assert sum(parts) == 1.0
    (begun / "sweep.json").unlink()
    write_run(begun / "b", "ddqn")
    (begun / "c").mkdir()
    (begun / "c" / runs.CONFIG).write_text(make_config("ddqn").to_json())  # not begun
    assert main(["tensorboard", str(begun), "--out", str(tmp_path / "all")]) == 0
    assert f"3 event files; look at them with: tensorboard --logdir {tmp_path}/all" in " ".join(
        capsys.readouterr().out.split()
    )
    assert scalars(tmp_path / "all" / "a" / "seed-1" / EVENTS) == found
    assert (tmp_path / "all" / "b" / EVENTS).exists()
    with runs.hold([begun / "b"]), pytest.raises(DeeprokError, match="is in use by process"):
        write_events([begun / "b"])
    with pytest.raises(DeeprokError, match=r"c has no metrics.jsonl yet; train it first"):
        write_events([begun / "c"])
    (tmp_path / "file").touch()
    with pytest.raises(DeeprokError, match="can't make the folder"):
        write_events([begun / "b"], tmp_path / "file")


# --- trackers -----------------------------------------------------------------------------------------------------


class Memory:
    """A tracker of one's own, which remembers."""

    calls: ClassVar[list[Any]] = []

    def open(self, run: TrackedRun) -> int:
        self.calls.append(("open", run.name, run.last_step, run.config["algorithm"], dict(run.notes)))
        run.notes["mine"] = "kept"
        return run.last_step

    def log(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        self.calls.append((step, dict(values), seconds))

    def close(self) -> None:
        self.calls.append("close")


class Failing(Memory):
    def log(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        raise SystemExit(3)


class Wrong(Memory):
    def open(self, run: TrackedRun) -> Any:
        return None


@pytest.fixture(autouse=True)
def _forget() -> None:
    Memory.calls.clear()


def tell(folder: Path, trackers: list[Any], steps: int) -> list[str]:
    """A training's next chunk; what was said of the trackers."""
    said: list[str] = []
    line = {"steps": steps, "episodes": 6, "returns": [1.0], "seconds": 1.5}
    reported: list[Any] = []
    with tracked(trackers, lambda *told: reported.append(told), said.append) as report:
        assert report
        runs.append_metrics(folder, line)
        report(folder, line)
    assert reported == [(folder, line)]
    return said


def test_a_tracker_is_told_each_line_once(begun: Path) -> None:
    folder = begun / "a" / "seed-1"
    assert tell(folder, [Memory], 120) == []
    assert Memory.calls == [
        ("open", "a/seed-1", -1, "ddqn", {}),
        (60, {"episodes": 3.0, "mean_return": 20.0, "epsilon": 1.0, "seconds": 1.0, "trial_return": 100.0}, 1.0),
        (90, {"episodes": 5.0, "mean_return": 4.5, "seconds": 2.5}, 3.5),
        (120, {"episodes": 6.0, "mean_return": 1.0, "seconds": 1.5}, 5.0),
        "close",
    ]
    # A kill: what comes after the checkpoint is done again, and not told again.
    Memory.calls.clear()
    runs.trim_metrics(folder, 90)
    tell(folder, [Memory], 120)
    tell(folder, [Memory], 150)
    assert Memory.calls == [
        ("open", "a/seed-1", 120, "ddqn", {"mine": "kept"}),
        "close",
        ("open", "a/seed-1", 120, "ddqn", {"mine": "kept"}),
        (150, {"episodes": 6.0, "mean_return": 1.0, "seconds": 1.5}, 6.5),
        "close",
    ]
    Memory.calls.clear()
    for damaged in ('{"Memory": 3}', "[]", "{", '{"Memory": {"last_step": "1", "notes": {}}}'):
        (folder / TRACKING).write_text(damaged)
        assert tell(folder, [Memory], 180) == []
        assert Memory.calls[0][2] == -1
        Memory.calls.clear()


def test_a_tracker_ends_with_its_run(begun: Path) -> None:
    """A sweep has hundreds of runs, whose trackers must not wait for its end."""
    folder, other = begun / "a" / "seed-0", begun / "a" / "seed-1"
    last = runs.read_config(folder).episodes
    with tracked([Memory], None, print) as report:
        assert report
        for run, episodes in ((folder, last - 1), (other, last - 1), (folder, last)):
            assert "close" not in Memory.calls
            report(run, {"steps": 100 * episodes, "episodes": episodes, "returns": []})
        assert Memory.calls[-1] == "close"
    assert Memory.calls.count("close") == 2


def test_event_files_have_each_step_once(begun: Path) -> None:
    folder = begun / "a" / "seed-0"
    tell(folder, ["tensorboard"], 120)
    assert list(scalars(folder / EVENTS)) == [60, 90, 120]
    runs.trim_metrics(folder, 60)
    with open(folder / EVENTS, "ab") as file:
        file.write(b"half a record")
    tell(folder, ["tensorboard"], 90)
    tell(folder, ["tensorboard"], 150)
    assert list(scalars(folder / EVENTS)) == [60, 90, 150]
    told = (folder / EVENTS).read_bytes()
    write_events([folder])
    assert (folder / EVENTS).read_bytes() == told


def test_a_tracker_that_fails_is_left_alone(begun: Path) -> None:
    folder = begun / "a" / "seed-0"
    assert tell(folder, [Failing, Memory], 120) == [
        "the tracker Failing is switched off, and the training goes on: SystemExit: 3"
    ]
    assert len([call for call in Memory.calls if call == "close"]) == 2
    (said,) = tell(folder, [Wrong], 150)
    assert "its open returns None; it must be a step, such as run.last_step" in said
    said_once: list[str] = []
    with tracked([Failing], None, said_once.append) as report:
        assert report
        for other in ("seed-0", "seed-1"):
            for steps in (160, 170):
                report(begun / "a" / other, {"steps": steps, "episodes": 6, "returns": []})
    assert len(said_once) == 1


def test_names_of_trackers() -> None:
    assert list(make_trackers(["tensorboard", "wandb:p", "mlflow:e x", "test_tracking:Memory", Memory])) == [
        "tensorboard",
        "wandb:p",
        "mlflow:e x",
        "test_tracking:Memory",
        "Memory",
    ]
    with tracked([], None, print) as report:
        assert report is None
    wrong: list[tuple[Any, str]] = [
        (["tensorbord"], "unknown tracker 'tensorbord': did you mean 'tensorboard'"),
        (["wandb"], "tracker is 'wandb'; it must be wandb:PROJECT"),
        (["mlflow:"], "it must be mlflow:EXPERIMENT"),
        (["nowhere:Mine"], "there is no module 'nowhere'"),
        (["json:__version__"], "that object is of type str; it must be a class of trackers"),
        ([3], "that object is of type int"),
        ("tensorboard", "trackers is 'tensorboard'; it must be a list"),
        (3, "trackers is 3; it must be a list"),
    ]
    for trackers, said in wrong:
        with pytest.raises(DeeprokError, match=said):
            make_trackers(trackers)


# --- packages that need not be there ------------------------------------------------------------------------------


class _WandbRun:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.calls.append(("log", data, step))

    def finish(self, exit_code: int | None = None) -> None:
        self.calls.append("finish")


def fake_wandb(calls: list[Any]) -> types.ModuleType:
    """wandb, with those parameters of wandb 0.31.0 that a tracker may give."""
    module: Any = types.ModuleType("wandb")

    def init(
        entity: Any = None, project: Any = None, dir: Any = None, id: Any = None, name: Any = None, notes: Any = None,
        tags: Any = None, config: Any = None, config_exclude_keys: Any = None, config_include_keys: Any = None,
        allow_val_change: Any = None, group: Any = None, job_type: Any = None, mode: Any = None, force: Any = None,
        reinit: Any = None, resume: Any = None, resume_from: Any = None, fork_from: Any = None, save_code: Any = None,
        tensorboard: Any = None, sync_tensorboard: Any = None, monitor_gym: Any = None, settings: Any = None,
    ) -> _WandbRun:  # fmt: skip
        calls.append(("init", project, name, group, id, resume, reinit, config["seed"]))
        return _WandbRun(calls)

    module.init, module.Settings = init, lambda *, silent, console: (silent, console)
    return module


def test_weights_and_biases(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(calls))
    folder = begun / "a" / "seed-1"
    for steps in (120, 150):
        assert tell(folder, ["wandb:mine"], steps) == []
    identity = json.loads((folder / TRACKING).read_text())["wandb:mine"]["notes"]["id"]
    begin = ("init", "mine", "a/seed-1", "a", identity, "allow", "create_new", 1)
    logged = {"episodes": 6.0, "mean_return": 1.0, "seconds": 1.5}
    assert calls[0] == calls[5] == begin
    assert [call[2] for call in calls[1:4]] == [60, 90, 120]
    assert calls[3] == ("log", logged, 120)
    assert calls[6:] == [("log", logged, 150), "finish"]
    assert tell(begun / "a" / "seed-0", ["wandb:mine"], 120) == []
    assert calls[8][4] != identity


class Metric(NamedTuple):
    """As mlflow.entities.Metric is called."""

    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class _Client:
    """mlflow 3.17.2's client, with the signatures of what a tracker calls."""

    calls: ClassVar[list[Any]] = []

    def get_experiment_by_name(self, name: str) -> Any:
        made = [call for call in self.calls if call[0] == "create_experiment"]
        return types.SimpleNamespace(experiment_id="7") if made else None

    def create_experiment(self, name: str, artifact_location: str | None = None, tags: Any = None) -> str:
        self.calls.append(("create_experiment", name))
        return "7"

    def create_run(self, experiment_id: str, start_time: Any = None, tags: Any = None, run_name: Any = None) -> Any:
        self.calls.append(("create_run", experiment_id, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

    def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:
        self.calls.append(("update_run", run_id, status))

    def log_batch(
        self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), synchronous: Any = None
    ) -> None:
        assert len(params) <= 100
        self.calls.append(("log_batch", run_id, [(m.key, m.value, m.step) for m in metrics], dict(params)))

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        self.calls.append(("set_terminated", run_id))


def test_mlflow(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _Client.calls.clear()
    module: Any = types.ModuleType("mlflow")
    module.MlflowClient = _Client
    entities: Any = types.ModuleType("mlflow.entities")
    entities.Metric, entities.Param = Metric, Param
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    folder = begun / "a" / "seed-1"
    for steps in (120, 150):
        assert tell(folder, ["mlflow:mine"], steps) == []
    calls = _Client.calls
    assert calls[:2] == [("create_experiment", "mine"), ("create_run", "7", "a/seed-1")]
    params = {name: value for call in calls if call[0] == "log_batch" for name, value in call[3].items()}
    assert params == {name: str(value)[:500] for name, value in runs.read_config(folder).flat().items()}
    told = [call[2] for call in calls if call[0] == "log_batch" and call[2]]
    assert told[-1] == [("episodes", 6.0, 150), ("mean_return", 1.0, 150), ("seconds", 1.5, 150)]
    assert [each[0][2] for each in told] == [60, 90, 120, 150]
    rest = [call for call in calls if call[0] in ("set_terminated", "update_run")]
    assert rest == [("set_terminated", "r1"), ("update_run", "r1", "RUNNING"), ("set_terminated", "r1")]
    tell(begun / "a" / "seed-0", ["mlflow:mine"], 120)
    assert [call[0] for call in calls].count("create_experiment") == 1


def test_a_package_that_is_not_there(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("deeprok.tracking.mlflow.import_module", _missing)
    monkeypatch.setattr("deeprok.tracking.wandb.import_module", _missing)
    assert tell(begun / "a" / "seed-0", ["wandb:a", "mlflow:b"], 120) == [
        "the tracker wandb:a is switched off, and the training goes on: wandb is not installed; pip install wandb",
        "the tracker mlflow:b is switched off, and the training goes on: mlflow is not installed; pip install mlflow",
    ]


def _missing(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named '{name}'", name=name)


# --- trainings ----------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = dict(
    hidden=(4,), episodes=60, horizon=40, batch_size=4, warm_up=20, chunk_steps=100, trial_every=2, trial_models=2
)  # fmt: skip


def lines(folder: Path) -> list[Any]:
    return [
        {name: value for name, value in line.items() if "seconds" not in name} for line in runs.read_metrics(folder)
    ]


def test_a_training_is_the_same_with_trackers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config("ddqn", "tuned", **SETTINGS)
    plain = jobs.train(config, tmp_path / "plain", [0, 1], 1)
    given = ["tensorboard", Memory, Failing]
    both = [run.folder for run in deeprok.train(config, tmp_path / "both", seeds=[0, 1], jobs=1, trackers=given)]
    assert capsys.readouterr().err.count("the tracker Failing is switched off") == 1
    for one, other in zip(plain, both, strict=True):
        assert (one / runs.CHECKPOINT).read_bytes() == (other / runs.CHECKPOINT).read_bytes()
        assert (one / runs.CONFIG).read_bytes() == (other / runs.CONFIG).read_bytes()
        assert lines(one) == lines(other)
        events = scalars(other / EVENTS)
        assert list(events) == [line["steps"] for line in lines(other)]
        told = [call for call in Memory.calls if call[0] in events]
        for line in runs.read_metrics(other):
            expected = {name: pytest.approx(value, rel=1e-6) for name, value in numbers_of(line).items()}
            assert events[line["steps"]] == expected
            assert any(call[0] == line["steps"] and call[1] == numbers_of(line) for call in told)
    # A longer budget: a tracker that is new to the run is told of all of it, an old one of what is new.
    Memory.calls.clear()
    before = lines(both[0])[-1]["steps"]
    jobs.resume(both[:1], 1, episodes=80, trackers=["tensorboard", Memory])
    assert list(scalars(both[0] / EVENTS)) == [line["steps"] for line in lines(both[0])]
    assert min(call[0] for call in Memory.calls if isinstance(call[0], int)) > before
    with pytest.raises(DeeprokError, match="unknown tracker 'x'"):
        deeprok.train(config, tmp_path / "no", trackers=["x"])
    assert not (tmp_path / "no").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "out", WordConsole(width=200))
    asked: list[Any] = []

    def train(folders: Any, count: Any, report: Any, on_interrupt: Any, trackers: Any) -> None:
        asked.append(trackers)
        for folder in folders:
            shutil.rmtree(folder)
            write_run(folder, "ddqn")

    monkeypatch.setattr(jobs, "begin", train)
    monkeypatch.setattr(jobs, "resume", train)
    out = str(tmp_path / "a")
    words = ["--tensorboard", "--wandb", "p", "--mlflow", "e", "--tracker", "test_tracking:Memory"]
    names = ["tensorboard", "wandb:p", "mlflow:e", "test_tracking:Memory"]
    assert main(["train", "ddqn", "--episodes", "3", "--out", out, *words]) == 0
    path = tmp_path / "a" / runs.CONFIG
    path.write_text(runs.read_config(tmp_path / "a").replace(episodes=9).to_json())
    assert main(["train", "--resume", out, *words]) == 0
    assert asked == [names, names]
    capsys.readouterr()
    refused = {
        ("train", "ddqn", "--out", f"{out}b", "--wandb", ""): "tracker is 'wandb:'; it must be wandb:PROJECT",
        (
            "train",
            "ddqn",
            "--out",
            f"{out}b",
            "--tracker",
            "x",
        ): "tracker is 'x'; it must be your own, named module:object",
        ("train", "ddqn", "--out", f"{out}b", "--tracker", "nowhere:X"): "there is no module 'nowhere'",
        ("tensorboard", str(tmp_path / "c")): "there is no run folder",
    }
    for given_words, sentence in refused.items():
        assert main(given_words) == 2
        err = capsys.readouterr().err
        assert sentence in err
        assert err.count("\n") == 1
    assert not (tmp_path / "ab").exists()
