"""`deeprok plot`: draw where policies work, and how they learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from deeprok import plot as figures
from deeprok.cli import streams
from deeprok.cli.evaluate import grid_names, note_unfinished
from deeprok.cli.options import option_names, parse_options
from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.evaluation import stored
from deeprok.evaluation.calibration import calibrate
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.result import Evaluation, default_axes, same_axes
from deeprok.runs import folder as runs
from deeprok.training.progress import fraction_bar
from deeprok.uncertainty.models import read_grid

KINDS = ("map", "returns", "learning", "coverage")

_RUNS = tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
_KIND = tyro.conf.arg(
    metavar="{" + ",".join(KINDS) + "}",
    help="map: success rates over two parameters; returns: along one parameter; learning: returns of the training "
    "episodes and of the trials on held-out models; coverage: nominal against empirical, of the posterior's intervals "
    "for Q.",
    help_behavior_hint="(default: the stored evaluation, as map or returns; learning if there is none)",
)
_OUT = tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: KIND.png in the first run's folder)")
_GRID = tyro.conf.arg(metavar="GRID", help_behavior_hint="(default: the run's box, 7 values each)")
_NAME = tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: the newest of the grid)")
_EPISODES = tyro.conf.arg(metavar="N", help_behavior_hint="(default: those of the newest that is stored, else 500)")


@dataclass(frozen=True)
class Plot:
    """Draw where policies work, and how they learned.

    The newest evaluation that 'deeprok evaluate' has stored of the grid is drawn without playing it again.

    deeprok plot runs/rok

    deeprok plot runs/rok runs/ddqn --kind learning --out learning.svg

    deeprok plot runs/rok --grid gravity=5:15:11

    deeprok plot runs/rok --name windy
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, _RUNS]
    """Run folders, or folders of seeds, whose seeds are drawn together."""
    kind: Annotated[str | None, _KIND] = None
    out: Annotated[Path | None, _OUT] = None
    """PNG, SVG or PDF file."""
    grid: Annotated[str | None, _GRID] = None
    """Parameters of a map (two) or of returns (one), as name=low:high:count,…"""
    episodes: Annotated[int | None, _EPISODES] = None
    """Episodes in each cell of a map or of returns; what has as many is drawn, or played."""
    name: Annotated[str | None, _NAME] = None
    """Draw the stored evaluation of this name; one without a name by its options, as in its file's name."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Plot, words, "plot")
    if not options.runs:
        raise DeeprokError("RUN must be given; 'deeprok plot --help' tells more")
    if options.kind is not None and options.kind not in KINDS:
        raise unknown("kind", options.kind, KINDS)
    for folder in options.runs:
        runs.find(folder)
    names = [folder.name for folder in options.runs] if len(options.runs) > 1 else []
    kind = options.kind or _usual_kind(options)
    for option in ("grid", "episodes", "name"):
        if getattr(options, option) is not None and kind not in ("map", "returns"):
            raise DeeprokError(
                f"{option} is {getattr(options, option)}, but {kind} has no {option}; use the kind map or returns, or "
                "leave it out"
            )
    out = options.out or options.runs[0] / f"{kind}.png"
    figures.check_file(out, "out")
    if kind == "learning":
        figure = figures.learning_curve(*options.runs, names=names)
    elif kind == "coverage":
        with fraction_bar(streams.err, "simulating"):
            found = [calibrate(folder) for folder in options.runs]
        figure = figures.coverage(*found, names=names)
    else:
        if options.name is not None:
            drawn = _named(options)
        else:
            _check_grid(options, kind)
            drawn = _stored(options) or [_play(folder, options.grid, options.episodes) for folder in options.runs]
        draw = figures.success_map if kind == "map" else figures.return_curve
        figure = draw(*drawn, names=names)
        for folder, each in zip(options.runs, drawn, strict=True):
            where = folder if (folder / runs.CONFIG).exists() else folder / "seed-*"
            _say(f"drawn from {where / each.file}, {each.episodes} episodes a cell")
    figures.save(figure, out)
    _say(f"{kind}: {out}")


def _say(line: str) -> None:
    streams.out.print(line, highlight=False, markup=False, soft_wrap=True)


def _check_grid(options: Plot, kind: str) -> None:
    """Raises unless the grid of each run has as many parameters as the figure has room for."""
    wanted = {"map": 2, "returns": 1}[kind]
    for folder in options.runs:
        if len(varied := grid_names(folder, options.grid)) != wanted:
            raise DeeprokError(
                f"{kind} needs a grid of {'two parameters' if wanted == 2 else 'one parameter'}, but the grid of "
                f"{folder} has {len(varied)}: {', '.join(varied)}; give another with --grid"
            )


def _named(options: Plot) -> list[Evaluation]:
    """The stored evaluation of that name, of each run."""
    assert options.name is not None
    for option in ("grid", "episodes"):
        if (value := getattr(options, option)) is not None:
            raise DeeprokError(
                f"{option} is {value} and name is {shown(options.name)}, whose {option} is stored with it; give one "
                "of them"
            )
    groups = [runs.find(folder) for folder in options.runs]
    return [stored.read_stored(folders, stored.find_stored(folders, options.name)) for folders in groups]


def _usual_kind(options: Plot) -> str:
    """What a user most likely wants to see that needs no simulation that was not asked for."""
    if options.name is not None:
        return "returns" if {len(one.grid) for one in _named(options)} == {1} else "map"
    asked = options.grid is not None or options.episodes is not None
    if not asked and not _stored(options):
        return "learning"
    sizes = {len(grid_names(folder, options.grid)) for folder in options.runs}
    return "returns" if sizes == {1} else "map" if asked or sizes == {2} else "learning"


def _stored(options: Plot) -> list[Evaluation]:
    """The newest evaluation that all the runs have stored of the grid that is drawn, of each run; empty if none is."""
    groups = [runs.find(folder) for folder in options.runs]
    axes = [_axes(folders[0], options.grid) for folders in groups]
    for name in stored.stored_files([folder for folders in groups for folder in folders]):
        found = [stored.read_stored(folders, name) for folders in groups]
        if all(
            same_axes(one.grid, own) and options.episodes in (None, one.episodes)
            for one, own in zip(found, axes, strict=True)
        ):
            return found
    return []


def _axes(folder: Path, grid: str | None) -> dict[str, np.ndarray]:
    """The values of a grid, or of that which covers the run's box."""
    config = runs.read_config(folder)
    env = config.make_env()
    return read_grid(grid, env.nominal) if grid else default_axes(config.make_box(env))


def _play(folder: Path, grid: str | None, episodes: int | None) -> Evaluation:
    more: dict[str, Any] = {} if episodes is None else {"episodes": episodes}
    with fraction_bar(streams.err, f"evaluating {folder}") as advance:
        found = evaluate(folder, grid, **more, advance=advance, save=True)
    note_unfinished(folder)
    return found


def options() -> set[str]:
    """The names of its options."""
    return option_names(Plot)
