"""Event files of runs that are there already."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically
from deeprok.runs import folder as runs
from deeprok.runs.collections import run_folders
from deeprok.tracking.tensorboard import EVENTS, events_of


def write_events(
    given: Sequence[Path], out: Path | None = None, advance: Callable[[float], None] | None = None
) -> list[Path]:
    """Writes the event file of each run; of those that have begun, and none that is training into its own folder.

    Args:
      given: run folders, folders of seeds, folders of sweeps, or folders that hold any of them.
      out: a folder to write to, instead of the run folders; each run has a folder in it, with the path that it has
        below the folder that all runs have in common.
      advance: called with the fraction of the work done since its last call.

    Returns:
      The files.
    """
    folders = list(dict.fromkeys(folder for one in given for folder in run_folders(one)))
    begun = [folder for folder in folders if (folder / runs.METRICS).exists()]
    if not begun:
        raise DeeprokError(f"{folders[0]} has no {runs.METRICS} yet; train it first")
    whole = [folder.resolve() for folder in begun]
    common = Path(os.path.commonpath([folder.parent for folder in whole]))
    written = []
    for folder, path in zip(begun, whole, strict=True):
        if out is None:
            with runs.hold([folder]):  # or a training that writes one itself would be cut off
                write_atomically(folder / EVENTS, events_of(folder))
            written.append(folder / EVENTS)
        else:
            target = out / path.relative_to(common)
            try:
                target.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DeeprokError(f"can't make the folder {target}: {error.strerror}") from error
            write_atomically(target / EVENTS, events_of(folder))
            written.append(target / EVENTS)
        if advance:
            advance(1 / len(begun))
    return written
