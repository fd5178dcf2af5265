"""Files: written whole or not at all, and read with one sentence about what a crash or a disk has damaged."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError


def partial(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.partial")


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file by new contents, or leaves it as it was."""
    unfinished = partial(path)
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        reason = "no space is left on the disk" if error.errno == errno.ENOSPC else error.strerror
        kept = "; the version written before is kept" if os.path.isfile(path) else ""
        raise DeeprokError(f"can't write {path}: {reason}{kept}") from error


def read_bytes(path: Path) -> bytes:
    """What a file holds."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # the latter for a name that no file can have
        raise DeeprokError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from error


def read_numbers(path: Path, shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a JSON object of numbers that is made again if it is not there.

    Args:
      path: the file.
      shapes: what each key must hold, as `has_shapes` takes it.
    """
    content = parse_json(read_bytes(path))
    if not has_shapes(content, shapes):
        raise DeeprokError(
            f"{path} is damaged: it does not hold the numbers that were written; remove it, and the same command "
            "makes it again"
        )
    picked: dict[str, Any] = _pick(content, shapes)
    return picked


def _pick(value: Any, shapes: Any) -> Any:
    """What is described of JSON, without the rest."""
    return {name: _pick(value[name], inner) for name, inner in shapes.items()} if isinstance(shapes, Mapping) else value


def parse_json(text: bytes | str) -> Any:
    """What JSON says; None, which nothing we write is as a whole, where it can't be read."""
    try:
        return json.loads(text)
    # No UTF-8, no JSON, a number of more digits than Python reads; or brackets in brackets without end.
    except (ValueError, RecursionError):
        return None


def as_numbers(value: Any) -> np.ndarray | None:
    """Numbers from JSON, alone or in lists of equal lengths, as an array; None if this is not what they are."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return array if array.dtype.kind in "iuf" else None


def as_tuples(value: Any, depth: int = 2) -> Any:
    """Lists from JSON as tuples, down to those of a matrix's rows."""
    return tuple(as_tuples(v, depth - 1) for v in value) if isinstance(value, list) and depth else value


def has_shapes(value: Any, shapes: Any) -> bool:
    """Whether JSON is what a description says: objects with these keys and finite numbers of these shapes.

    Args:
      value: what was read.
      shapes: for an object a dictionary of what its keys must hold, for numbers the shape of their array, where
        None is any length. Keys that are not described may hold anything.
    """
    if isinstance(shapes, Mapping):
        return isinstance(value, dict) and all(
            key in value and has_shapes(value[key], inner) for key, inner in shapes.items()
        )
    array = as_numbers(value)
    return (
        array is not None
        and len(array.shape) == len(shapes)
        and all(asked in (None, size) for asked, size in zip(shapes, array.shape, strict=True))
        and bool(np.isfinite(array).all())
    )
