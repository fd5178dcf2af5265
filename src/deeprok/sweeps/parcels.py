"""Files that travel as bytes: run folders to machines that do not see them, and users' modules."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.files import read_bytes, write_atomically
from deeprok.runs import folder as runs

#: Path below a folder, with / between its parts -> what the file holds.
Parcel = dict[str, bytes]

#: What a run needs to be trained, and what training changes. A checkpoint is the last that is unpacked: lines of
#: metrics that are ahead of it are forgotten, as after a crash.
NEEDED = (runs.CONFIG, runs.GROUP, runs.PRIOR, runs.METRICS, runs.CHECKPOINT)
CHANGED = (runs.METRICS, runs.CHECKPOINT)


def pack(out: Path, group: Iterable[str], names: Iterable[str]) -> Parcel:
    """Those files of run folders that are there.

    Args:
      out: a folder.
      group: run folders in it, by their paths below it.
      names: of files in each.
    """
    paths = [PurePosixPath(run) / name for run in group for name in names]
    return {str(path): read_bytes(out / path) for path in paths if (out / path).is_file()}


def unpack(parcel: Mapping[str, bytes], out: Path) -> None:
    """Writes files below a folder; raises a `DeeprokError`, and writes nothing, if one would be anywhere else."""
    targets = {}
    for name, data in parcel.items():
        path = PurePosixPath(name)
        target = out / path
        inside = path.parts and not path.is_absolute() and ".." not in path.parts and "\0" not in name
        # A link on the way may lead out of the folder, too.
        if not inside or not target.parent.resolve().is_relative_to(out.resolve()):
            raise DeeprokError(f"{shown(name)} is not a path below {out}; nothing was unpacked")
        targets[target] = data
    for target, data in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data)


def own_modules() -> Parcel:
    """The sources of modules that this process has imported from elsewhere than Python's installed packages.

    These are users' own parts and what they need, so that another machine can import them too.
    """
    installed = {Path(path).resolve() for path in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)}
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py") or name.partition(".")[0] in ("deeprok", "__main__", "__mp_main__"):
            continue
        path = Path(file).resolve()
        if not path.is_file() or not installed.isdisjoint(path.parents):
            continue
        parts = name.split(".") + (["__init__"] if path.name == "__init__.py" else [])
        found["/".join(parts) + ".py"] = read_bytes(path)
    return found
