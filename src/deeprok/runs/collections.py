"""Folders of many runs, such as those of sweeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from deeprok.core.errors import DeeprokError
from deeprok.core.files import parse_json, read_bytes
from deeprok.runs import folder as runs
from deeprok.runs.folder import Runs

#: The summary of a sweep, which says what belongs to it.
_SUMMARY = "sweep.json"
_DEEPEST = 4  # folders below one that is given


def is_collection(given: object) -> bool:
    """Whether this is a folder of many runs, such as that of a sweep, and neither a run nor the seeds of one."""
    if not isinstance(given, str | os.PathLike):
        return False
    folder = Path(given)
    if (folder / runs.CONFIG).exists() or any(folder.glob(f"seed-*/{runs.CONFIG}")):
        return False
    return (folder / _SUMMARY).exists() or next(_below(folder), None) is not None


def run_folders(given: Runs) -> list[Path]:
    """The run folders that a folder of any kind holds."""
    if not is_collection(given):
        return runs.find_all(given)
    assert isinstance(given, str | os.PathLike)
    folder = Path(given)
    if (folder / _SUMMARY).exists():
        found = [path for path in _of_sweep(folder) if (path / runs.CONFIG).exists()]
    else:
        found = list(dict.fromkeys(_below(folder)))
    if not found:
        raise DeeprokError(f"{folder} holds no run yet; train some first")
    return found


def _below(folder: Path) -> Iterator[Path]:
    """The run folders below a folder, in order of their names, seeds by number."""
    for depth in range(1, _DEEPEST + 1):
        found = (path.parent for path in folder.glob(f"{'*/' * depth}{runs.CONFIG}"))
        yield from sorted(found, key=lambda path: (path.parent, len(path.name), path.name))


def _of_sweep(folder: Path) -> Iterator[Path]:
    """The runs that are part of a sweep, in its order: others may be left in its folder."""
    path = folder / _SUMMARY
    content = parse_json(read_bytes(path))
    try:
        for trial in content["trials"]:
            name, seeds = trial["folder"], trial["seeds"]
            if not isinstance(name, str) or not isinstance(seeds, list) or Path(name).name != name:
                raise TypeError(trial)
            yield from (folder / name / f"seed-{int(seed)}" for seed in seeds)
    except (KeyError, TypeError, ValueError) as error:
        raise DeeprokError(f"{path} is damaged: it must hold the trials of a sweep") from error
