"""`deeprok compare`: say which of several trained agents is better, and where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.evaluate import grid_names, note_unfinished
from deeprok.cli.options import option_names, parse_options
from deeprok.core.errors import DeeprokError
from deeprok.evaluation.comparison.compare import compare
from deeprok.evaluation.comparison.figure import check_drawable
from deeprok.evaluation.comparison.report import print_comparison
from deeprok.plot import check_file, save
from deeprok.runs.folder import Keep
from deeprok.training.progress import fraction_bar

_RUNS = tyro.conf.arg(metavar="RUN RUN [RUN ...]", help_behavior_hint="(required)")
_GRID = tyro.conf.arg(metavar="GRID", help_behavior_hint="(default: the box that holds those of all, 7 values each)")


@dataclass(frozen=True)
class Compare:
    """Say which of several trained agents is better, and where.

    Each is compared with the first, on the same grid with the same random numbers.

    deeprok compare runs/ddqn runs/rok

    deeprok compare runs/ddqn runs/rok --grid gravity=5:15:11 --plot gravity.png
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, _RUNS]
    """Run folders, or folders of seeds, of the same environment."""
    grid: Annotated[str | None, _GRID] = None
    """Parameters to vary, as name=low:high:count,…; both edges are included."""
    episodes: int = 500
    """Episodes in each cell."""
    epsilon: float = 0.1
    """Probability of a random action."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """PNG, SVG or PDF file for a figure: a map for each run, and its difference to the first."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Compare, words, "compare")
    if len(options.runs) < 2:
        raise DeeprokError("two RUN or more must be given; 'deeprok compare --help' tells more")
    if options.plot:
        check_file(options.plot, "plot")
        check_drawable([*dict.fromkeys(name for folder in options.runs for name in grid_names(folder, options.grid))])
    with fraction_bar(streams.err, "comparing") as advance:
        found = compare(
            options.runs,
            grid=options.grid,
            episodes=options.episodes,
            epsilon=options.epsilon,
            keep=options.keep,
            advance=advance,
            save=True,
        )
    for folder in options.runs:
        note_unfinished(folder)
    if options.plot:
        save(found.plot(), options.plot)
    if options.json:
        print(json.dumps(found.to_dict()))
        return
    print_comparison(found, streams.out)
    if options.plot:
        streams.out.print(f"plot: {options.plot}", highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Compare)
