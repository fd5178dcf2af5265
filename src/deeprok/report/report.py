"""The page as a file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.files import write_atomically
from deeprok.report.data import Report
from deeprok.report.given import read_files
from deeprok.report.page import make_page
from deeprok.report.scenes import read_scenes
from deeprok.runs.folder import KEEPS, Keep, Runs


def write_report(
    runs: Runs,
    out: str | os.PathLike[str] = "report.html",
    *,
    keep: Keep = "best",
    episodes: int | None = None,
    play: bool = True,
    advance: Callable[[float], None] | None = None,
) -> Path:
    """Writes a page on which anyone can see where policies break: one file that needs neither network nor server.

    Agents of one environment run side by side in the reader's browser, with sliders for the environment's parameters,
    above maps, learning curves and results.

    Args:
      runs: a loaded run, a run folder, a folder of seeds, or a folder that has some in it; or a list of them. Of a
        folder of seeds, the seed that did best on held-out models acts. Files of `deeprok solve --out` may stand among
        them, which are shown too, and those of `deeprok screen --out`, which maps are compared with.
      out: the file.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones.
      episodes: in each cell of the maps. By default the newest evaluation that all agents have stored is shown; where
        there is none, 100 episodes in a cell are played and stored.
      play: whether to play a map that is not stored; otherwise there is none.
      advance: called with the fraction of the work done since its last call.

    Returns:
      The file.

    Example:
      >>> page = deeprok.write_report(["runs/ddqn", "runs/rok"], out="report.html")
    """
    cache.enable_if_asked()
    path = Path(out)
    check(path, keep, episodes)
    several = [*runs] if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    if not several:
        raise DeeprokError("runs is an empty list; give at least one run")
    paths = [Path(one) for one in several]
    solved, references = read_files(one for one in paths if one.is_file())
    folders = [one for one in paths if not one.is_file()]
    if references and not folders:
        raise DeeprokError(f"{references[0].file} is a screening, which runs are compared with; give runs too")
    scenes = read_scenes(folders, keep, episodes, play, advance, references) if folders else []
    words = [*map(str, paths), *(["--keep", keep] if keep != "best" else []), "--out", str(path)]
    words += [*(["--episodes", str(episodes)] if episodes else []), *([] if play else ["--no-maps"])]
    command = shlex.join(["deeprok", "report", *words])
    content = Report("Where does it break?", command, version("deeprok"), False, scenes, solved)
    write_atomically(path, make_page(content.to_json()).encode())
    return path


def check(out: Path, keep: str, episodes: int | None) -> None:
    """Raises, before anything is played, where a page can't be made so."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise DeeprokError(f"out is {out}; it must end with .html or .htm")
    if out.is_dir():
        raise DeeprokError(f"out is {out}, which is a folder")
    if not out.parent.is_dir():
        raise DeeprokError(f"out is {out}, but there is no folder {out.parent}")
    if keep not in KEEPS:
        raise unknown("keep", keep, KEEPS)
    if episodes is not None and episodes < 1:
        raise DeeprokError(f"episodes is {episodes}; it must be at least 1")
