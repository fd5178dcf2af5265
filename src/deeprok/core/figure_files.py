"""Figures as files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Endings of the files that a figure can be written to.
ENDINGS = (".png", ".svg", ".pdf")


def save(figure: Figure, path: str | Path) -> None:
    """Writes a figure, whole or not at all; the same figure gives the same file.

    Args:
      figure: the figure.
      path: a file that ends with .png, .svg or .pdf; without an ending, both a PNG and an SVG are written.
    """
    from matplotlib import rc_context

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for each in [path] if path.suffix.lower() in ENDINGS else [path.with_suffix(end) for end in (".png", ".svg")]:
        buffer, kind = io.BytesIO(), each.suffix[1:].lower()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        with rc_context({"svg.hashsalt": "deeprok"}):
            figure.savefig(buffer, format=kind, dpi=150, metadata=undated)
        write_atomically(each, buffer.getvalue())


def check_file(path: Path, origin: str) -> None:
    """Raises unless a figure can be written to this file.

    Args:
      path: the file.
      origin: the option that gave it, for messages.
    """
    if path.suffix.lower() not in ENDINGS:
        raise DeeprokError(f"{origin} is {path}; it must end with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if path.is_dir():
        raise DeeprokError(f"{origin} is {path}, which is a folder")
    if not path.parent.is_dir():
        raise DeeprokError(f"{origin} is {path}, but there is no folder {path.parent}")
