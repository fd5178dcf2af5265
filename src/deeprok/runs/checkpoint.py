"""Pytrees of arrays as safetensors, with a checksum of every array."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy

from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically

T = TypeVar("T")

#: Version of a checkpoint's layout.
FORMAT = 3

_FORMAT_KEY = "format"  # in the metadata, beside the checksums of the arrays by name


def _named(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def save(path: Path, parts: Mapping[str, Any]) -> None:
    """Writes pytrees of arrays, each under a name of its own, with a checksum of every array."""
    tensors = {
        f"{part}.{name}".removesuffix("."): np.asarray(leaf, order="C")
        for part, tree in parts.items()
        for name, leaf in _named(tree).items()
    }
    checksums = {name: _checksum(name, array) for name, array in tensors.items()}
    metadata = {_FORMAT_KEY: str(FORMAT), **checksums}
    write_atomically(path, _with_sorted_metadata(safetensors.numpy.save(tensors, metadata=metadata)))


def _with_sorted_metadata(data: bytes) -> bytes:
    """The same safetensors file with its metadata in one order, so that equal arrays make equal files."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at multiples of eight bytes
    return len(text).to_bytes(8, "little") + text + data[end:]


def load(
    path: Path, part: str, template: T, verify: Literal["file", "part"] = "file", rows: Mapping[str, int] = {}
) -> T:
    """Reads one of the pytrees that `save` wrote.

    Args:
      path: the file.
      part: the name it was saved under.
      template: a pytree of arrays or shapes that the file must match.
      verify: compare the checksums of the whole file, or of this part alone: for counters, which are read often
        and lie in a file of many megabytes.
      rows: arrays that may have been written with another number of rows -> how many of them are in use. What is
        missing beyond those is zero, what is too many is left out.
    """
    expected = {f"{part}.{name}".removesuffix("."): leaf for name, leaf in _named(template).items()}
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            checksums = _read_checksums(path, file)
            found = {name: file.get_tensor(name) for name in expected if name in checksums}
            for name in checksums if verify == "file" else found:
                array = found[name] if name in found else file.get_tensor(name)
                if checksums[name] not in (None, _checksum(name, array)):
                    raise DeeprokError(f"{path} is damaged: '{name}' is not what was written; train the run again")
    except FileNotFoundError as error:
        raise DeeprokError(f"{path.parent} has no {path.name}: the run had not reached its first checkpoint") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise DeeprokError(f"{path} is damaged or cut short ({error}); train the run again") from error
    for name, leaf in expected.items():
        if name not in found and 0 in leaf.shape:  # added since the file was written, and without entries
            found[name] = np.zeros(leaf.shape, leaf.dtype)
        if name not in found:
            raise DeeprokError(f"{path} has no '{name}'; was it written with other settings or by another version?")
        if name in rows:
            found[name] = _with_rows(found[name], leaf.shape, rows[name])
        if (array := found[name]).shape != leaf.shape or array.dtype != leaf.dtype:
            raise DeeprokError(
                f"{path}: '{name}' is {array.dtype}{list(array.shape)} where the settings ask for "
                f"{leaf.dtype}{list(leaf.shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(template), [found[name] for name in expected])


def _with_rows(array: np.ndarray, shape: tuple[int, ...], used: int) -> np.ndarray:
    """An array with as many rows as a shape has, if those in use are in both and the rest of the shape is its own."""
    kept = min(len(array), shape[0])
    if array.shape == shape or array.shape[1:] != shape[1:] or kept < used:
        return array
    return np.concatenate([array[:kept], np.zeros((shape[0] - kept, *shape[1:]), array.dtype)])


def verify(path: Path) -> None:
    """Raises unless every array of a file is what was written."""
    load(path, "", ())


def _checksum(name: str, array: np.ndarray) -> str:
    digest = hashlib.sha256(f"{name} {array.dtype} {array.shape}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)  # without a copy
    return digest.hexdigest()


def _read_checksums(path: Path, file: Any) -> dict[str, str | None]:
    """The checksum of each array in a file; None where the file is older than checksums are."""
    metadata = file.metadata() or {}
    version = metadata.pop(_FORMAT_KEY, None)
    if version != str(FORMAT):
        raise DeeprokError(f"{path} has format {version}, or is damaged; this version of deeprok reads format {FORMAT}")
    names = file.keys()
    if not metadata:
        return dict.fromkeys(names)
    # Compared as a whole, or a file that lost the name of one checksum would pass for an older one.
    if set(metadata) != set(names):
        raise DeeprokError(f"{path} is damaged: it has not a checksum for each array; train the run again")
    return metadata
