from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically
from deeprok.core.pytree import pytree_dataclass
from deeprok.runs import checkpoint


@pytree_dataclass
class Leafy:
    flag: Any
    pair: Any


def tree() -> dict[str, Any]:
    return {
        "scalar": np.float32(1.5),
        "inner": Leafy(
            flag=np.array([True, False, True]),
            pair=(np.arange(6, dtype=np.int32).reshape(2, 3), np.array([2**32 - 1], np.uint32)),
        ),
        "flag": np.array(True),
        "count": np.int32(-7),
        "special": np.array([np.nan, np.inf, -0.0], np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }


def described(tree: Any) -> list[tuple[Any, ...]]:
    return [(np.asarray(x).dtype, np.asarray(x).shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, {"run": tree(), "counter": np.int32(3)})
    return path


def test_round_trip(saved: Path) -> None:
    loaded = checkpoint.load(saved, "run", tree())
    assert jax.tree.structure(loaded) == jax.tree.structure(tree())
    assert described(loaded) == described(tree())
    assert checkpoint.load(saved, "counter", np.int32(0)) == 3
    assert os.listdir(saved.parent) == [saved.name]


def test_template_of_shapes(saved: Path) -> None:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree())
    assert described(checkpoint.load(saved, "run", shapes)) == described(tree())


def test_part_of_a_tree(saved: Path) -> None:
    assert described(checkpoint.load(saved, "run.inner", tree()["inner"])) == described(tree()["inner"])
    assert checkpoint.load(saved, "run.count", np.int32(0)) == -7


@pytest.mark.parametrize("array", [np.arange(12.0).reshape(3, 4).T, np.arange(12.0)[::2], jnp.arange(5)])
def test_any_layout(tmp_path: Path, array: Any) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, {"a": {"x": array}})
    np.testing.assert_array_equal(checkpoint.load(path, "a", {"x": array})["x"], array)


MISMATCHES = {
    "shape": (lambda t: {**t, "special": np.zeros(4, np.float32)}, "run.special", "[3]", "[4]"),
    "rank": (lambda t: {**t, "scalar": np.zeros(1, np.float32)}, "run.scalar", "[]", "[1]"),
    "dtype": (lambda t: {**t, "count": np.int64(0)}, "run.count", "int32", "int64"),
    "missing": (lambda t: {**t, "inner": {**vars(t["inner"]), "more": np.zeros(2)}}, "run.inner.more", "has no", ""),
}


@pytest.mark.parametrize(("change", "leaf", "found", "wanted"), MISMATCHES.values(), ids=MISMATCHES)
def test_mismatch_names_the_leaf(saved: Path, change: Any, leaf: str, found: str, wanted: str) -> None:
    with pytest.raises(DeeprokError) as error:
        checkpoint.load(saved, "run", change(tree()))
    assert all(word in str(error.value) for word in (f"'{leaf}'", found, wanted, str(saved)))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.9])
def test_cut_short(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DeeprokError, match="damaged or cut short"):
        checkpoint.load(saved, "run", tree())


def test_last_byte_missing(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(DeeprokError, match="damaged or cut short"):
        checkpoint.load(saved, "run", tree())


GARBAGE = {
    "noise": bytes(range(256)) * 8,
    "text": b"not a checkpoint\n" * 40,
    "zeros": bytes(1000),
    "pickle": pickle.dumps({"run": list(range(100))}),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage(saved: Path, data: bytes) -> None:
    saved.write_bytes(data)
    with pytest.raises(DeeprokError, match="damaged or cut short") as error:
        checkpoint.load(saved, "run", tree())
    assert str(saved) in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DeeprokError, match=r"has no checkpoint\.safetensors"):
        checkpoint.load(tmp_path / "checkpoint.safetensors", "run", tree())


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(DeeprokError):
        checkpoint.load(tmp_path, "run", tree())


@pytest.mark.parametrize("metadata", [None, {}, {"format": str(checkpoint.FORMAT + 1)}, {"format": "new"}])
def test_other_format(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"run.x": np.zeros(2)}, path, metadata=metadata)
    with pytest.raises(DeeprokError, match=rf"format .*reads format {checkpoint.FORMAT}"):
        checkpoint.load(path, "run", {"x": np.zeros(2)})


def resaved(path: Path, metadata: Any = None, **arrays: Any) -> None:
    """Changes arrays of a file, but no checksum unless it is told to."""
    with safetensors.safe_open(path, framework="numpy") as file:
        kept = file.metadata()
    tensors = {**safetensors.numpy.load_file(path), **arrays}
    safetensors.numpy.save_file(tensors, path, metadata=metadata(kept) if metadata else kept)


CHANGES: dict[str, np.ndarray] = {
    "run.count": np.array(-8, np.int32),
    "run.special": np.array([np.nan, np.inf, 0.0], np.float32),  # which differs by a sign of zero
    "run.flag": np.array(False),
    "run.empty": np.zeros((0, 5), np.float32),
    "run.inner.pair.0": np.arange(6, dtype=np.uint32).reshape(2, 3),
    "run.scalar": np.array([1.5], np.float32),
}


@pytest.mark.parametrize("name", CHANGES)
def test_no_change_is_read(saved: Path, name: str) -> None:
    resaved(saved, **{name: CHANGES[name]})
    for part, template in (("run", tree()), ("counter", np.int32(0))):
        with pytest.raises(DeeprokError, match=rf"is damaged: '{name}' is not what was written"):
            checkpoint.load(saved, part, template)


def test_a_part_can_be_verified_alone(saved: Path) -> None:
    resaved(saved, **{"run.count": np.array(-8, np.int32)})
    assert checkpoint.load(saved, "counter", np.int32(0), verify="part") == 3
    with pytest.raises(DeeprokError, match=r"is damaged: 'run\.count'"):
        checkpoint.load(saved, "run.count", np.int32(0), verify="part")


METADATA = {
    "one lost": lambda kept: {name: value for name, value in kept.items() if name != "run.count"},
    "one renamed": lambda kept: {"run.cound" if name == "run.count" else name: value for name, value in kept.items()},
    "one too many": lambda kept: {**kept, "run.more": "0"},
    "one of another": lambda kept: {**kept, "run.count": kept["counter"]},
}


@pytest.mark.parametrize("change", METADATA.values(), ids=METADATA)
def test_checksums_are_needed_for_all(saved: Path, change: Any) -> None:
    resaved(saved, change)
    with pytest.raises(DeeprokError, match="is damaged"):
        checkpoint.load(saved, "counter", np.int32(0))


def test_files_older_than_checksums_are_read(saved: Path) -> None:
    """They can't be verified."""
    resaved(saved, lambda kept: {"format": kept["format"]})
    assert described(checkpoint.load(saved, "run", tree())) == described(tree())


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("exists", [True, False])
def test_full_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, exists: bool
) -> None:
    path = tmp_path / "file"
    if exists:
        path.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(DeeprokError, match="no space is left on the disk") as error:
        write_atomically(path, b"new" * 1000)
    assert str(path) in str(error.value)
    assert ("kept" in str(error.value)) == exists
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == ({"file": b"old"} if exists else {})


def test_other_failures_say_why(tmp_path: Path) -> None:
    with pytest.raises(DeeprokError, match="No such file or directory"):
        write_atomically(tmp_path / "nowhere" / "file", b"new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DeeprokError, match="directory"):
        write_atomically(tmp_path / "folder", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(DeeprokError, match="File name too long"):
        write_atomically(tmp_path / ("x" * 300), b"new")


def test_replaced_only_when_whole(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, replace, seen = saved.read_bytes(), os.replace, []

    def watch(source: Path, target: Path) -> None:
        assert saved.read_bytes() == old
        assert described(checkpoint.load(source, "run", {"x": np.zeros(3)})) == described({"x": np.ones(3)})
        seen.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    checkpoint.save(saved, {"run": {"x": np.ones(3)}})
    assert seen == [saved]
    assert os.listdir(saved.parent) == [saved.name]


def test_equal_arrays_make_equal_files(tmp_path: Path) -> None:
    tree = {f"array {i}": np.full(i, i, np.float32) for i in range(20)}
    written = set()
    for i in range(5):
        checkpoint.save(tmp_path / str(i), {"run": tree, "best": tree})
        written.add((tmp_path / str(i)).read_bytes())
    assert len(written) == 1
    read = checkpoint.load(tmp_path / "0", "run", tree)
    assert all(np.array_equal(read[name], tree[name]) for name in tree)
