"""Files that are whole or not there: atomic writes, and pytrees of arrays as safetensors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy

from deeprok.config import FORMAT
from deeprok.errors import DeeprokError

T = TypeVar("T")


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file by new contents, or leaves it as it was."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = "no space is left on the disk" if error.errno == errno.ENOSPC else error.strerror
        kept = "; the version written before is kept" if path.is_file() else ""
        raise DeeprokError(f"can't write {path}: {reason}{kept}") from error


def _named(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def save(path: Path, parts: Mapping[str, Any]) -> None:
    """Writes pytrees of arrays, each under a name of its own."""
    tensors = {
        f"{part}.{name}".removesuffix("."): np.asarray(leaf, order="C")
        for part, tree in parts.items()
        for name, leaf in _named(tree).items()
    }
    write_atomically(path, safetensors.numpy.save(tensors, metadata={"format": str(FORMAT)}))


def load(path: Path, part: str, template: T) -> T:
    """Reads one of the pytrees that `save` wrote.

    Args:
      path: the file.
      part: the name it was saved under.
      template: a pytree of arrays or shapes that the file must match.
    """
    treedef = jax.tree.structure(template)
    leaves = []
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            version = (file.metadata() or {}).get("format")
            if version != str(FORMAT):
                raise DeeprokError(f"{path} has format {version}; this version of deeprok reads format {FORMAT}")
            stored = set(file.keys())
            for name, expected in _named(template).items():
                full = f"{part}.{name}".removesuffix(".")
                if full not in stored:
                    raise DeeprokError(
                        f"{path} has no '{full}'; was it written with other settings or by another version?"
                    )
                array = file.get_tensor(full)
                if array.shape != expected.shape or array.dtype != expected.dtype:
                    raise DeeprokError(
                        f"{path}: '{full}' is {array.dtype}{list(array.shape)} where the settings ask for "
                        f"{expected.dtype}{list(expected.shape)}"
                    )
                leaves.append(array)
    except FileNotFoundError as error:
        raise DeeprokError(f"{path.parent} has no {path.name}: the run had not reached its first checkpoint") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise DeeprokError(f"{path} is damaged or cut short ({error}); train the run again") from error
    return jax.tree.unflatten(treedef, leaves)
