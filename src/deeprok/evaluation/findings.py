"""What `deeprok stress` and `deeprok calibrate` found, kept in the folder of what they were asked about.

One file for each command, with its newest result. A run that has been trained further since then is another agent, so
that what was found of it before counts no more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from deeprok.core.files import has_shapes, parse_json, read_bytes, write_atomically
from deeprok.runs import folder as runs
from deeprok.runs.folder import KEEPS, Keep

#: Each is kept in the file of its name.
Kind = Literal["stress", "calibrate"]

#: What is read of the found object, for it to be shown; more of it may be missing.
_SHAPES: dict[Kind, Any] = {
    "stress": {"threshold": (), "budget": ()},
    "calibrate": {"levels": (None,), "coverage": (None,), "points": ()},
}


@dataclass(frozen=True)
class Finding:
    """What a command found of a run, or of the seeds of an agent."""

    kind: Kind
    command: str
    keep: Keep
    """The weights that it was asked about."""
    steps: dict[str, int]
    """How far each seed had been trained then."""
    found: dict[str, Any]
    """What the command prints with --json."""

    def save(self, folder: Path) -> None:
        """Keeps it in a folder, in place of an older one."""
        write_atomically(folder / f"{self.kind}.json", (json.dumps(asdict(self)) + "\n").encode())


def make_finding(kind: Kind, command: str, keep: Keep, folders: Sequence[Path], found: dict[str, Any]) -> Finding:
    """What was found of these run folders, as they are now."""
    return Finding(kind, command, keep, steps_of(folders), found)


def read_finding(folder: Path, kind: Kind) -> Finding | None:
    """What is kept in the folder of a run, or of seeds; None without it, and if a seed has been trained further."""
    path = folder / f"{kind}.json"
    if not path.is_file():
        return None
    content = parse_json(read_bytes(path))
    if not isinstance(content, dict) or set(content) != {field.name for field in fields(Finding)}:
        return None
    is_right = content["kind"] == kind and isinstance(content["command"], str) and content["keep"] in KEEPS
    if not is_right or not has_shapes(content["found"], _SHAPES[kind]):
        return None
    finding = Finding(**content)
    return finding if finding.steps == steps_of(runs.find(folder)) else None


def steps_of(folders: Sequence[Path]) -> dict[str, int]:
    """How far each seed has been trained."""
    steps = {}
    for folder in folders:
        lines = runs.read_metrics(folder)
        steps[str(runs.read_config(folder).seed)] = lines[-1]["steps"] if lines else 0
    return steps
