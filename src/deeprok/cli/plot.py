"""`deeprok plot`: draw where policies work, and how they learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok import plot as figures
from deeprok.cli import streams
from deeprok.cli.evaluate import grid_names, note_unfinished
from deeprok.cli.options import option_names
from deeprok.core.errors import DeeprokError, unknown
from deeprok.evaluation import result
from deeprok.evaluation.calibration import calibrate
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.result import Evaluation, merge
from deeprok.runs import folder as runs
from deeprok.training.progress import fraction_bar

KINDS = ("map", "returns", "learning", "coverage")

_RUNS = tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
_KIND = tyro.conf.arg(
    metavar="{" + ",".join(KINDS) + "}",
    help="map: success rates over two parameters; returns: along one parameter; learning: returns of the training "
    "episodes and of the trials on held-out models; coverage: nominal against empirical, of the posterior's intervals "
    "for Q.",
    help_behavior_hint="(default: a stored evaluation, as map or returns; learning if there is none)",
)
_OUT = tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: KIND.png in the first run's folder)")
_GRID = tyro.conf.arg(metavar="GRID", help_behavior_hint="(default: the run's box, 7 values each)")


@dataclass(frozen=True)
class Plot:
    """Draw where policies work, and how they learned.

    What 'deeprok evaluate' has stored is drawn without playing it again.

    deeprok plot runs/rok

    deeprok plot runs/rok runs/ddqn --kind learning --out learning.svg

    deeprok plot runs/rok --grid gravity=5:15:11
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, _RUNS]
    """Run folders, or folders of seeds, whose seeds are drawn together."""
    kind: Annotated[str | None, _KIND] = None
    out: Annotated[Path | None, _OUT] = None
    """PNG, SVG or PDF file."""
    grid: Annotated[str | None, _GRID] = None
    """Parameters of a map (two) or of returns (one), as name=low:high:count,…; the runs are evaluated on it."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = tyro.cli(Plot, args=words, prog="deeprok plot")
    if not options.runs:
        raise DeeprokError("RUN must be given; 'deeprok plot --help' tells more")
    if options.kind is not None and options.kind not in KINDS:
        raise unknown("kind", options.kind, KINDS)
    for folder in options.runs:
        runs.find(folder)
    names = [folder.name for folder in options.runs] if len(options.runs) > 1 else []
    kind = options.kind or _usual_kind(options.runs, options.grid)
    if options.grid and kind not in ("map", "returns"):
        raise DeeprokError(
            f"grid is {options.grid}, but {kind} has no grid; use the kind map or returns, or leave it out"
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
        wanted = {"map": 2, "returns": 1}[kind]
        for folder in options.runs:
            if len(varied := grid_names(folder, options.grid)) != wanted:
                raise DeeprokError(
                    f"{kind} needs a grid of {'two parameters' if wanted == 2 else 'one parameter'}, but the grid of "
                    f"{folder} has {len(varied)}: {', '.join(varied)}; give another with --grid"
                )
        drawn = [_evaluation(folder, options.grid) for folder in options.runs]
        draw = figures.success_map if kind == "map" else figures.return_curve
        figure = draw(*drawn, names=names)
    figures.save(figure, out)
    streams.out.print(f"{kind}: {out}", highlight=False, markup=False, soft_wrap=True)


def _usual_kind(folders: Sequence[Path], grid: str | None) -> str:
    """What a user most likely wants to see that needs no simulation that was not asked for."""
    if grid:
        return "map" if "," in grid else "returns"
    sizes = {len(found.grid) if (found := _stored(folder)) else 0 for folder in folders}
    return "map" if sizes == {2} else "returns" if sizes == {1} else "learning"


def _stored(folder: Path) -> Evaluation | None:
    """The stored evaluation of a run, or of all the seeds in a folder."""
    found = [one for one in map(result.read, runs.find(folder)) if one]
    return merge(found) if len(found) == len(runs.find(folder)) else None


def _evaluation(folder: Path, grid: str | None) -> Evaluation:
    stored = None if grid else _stored(folder)
    if stored:
        return stored
    with fraction_bar(streams.err, f"evaluating {folder}") as advance:
        found = evaluate(folder, grid, advance=advance, save=True)
    note_unfinished(folder)
    return found


def options() -> set[str]:
    """The names of its options."""
    return option_names(Plot)
