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
from deeprok.core.frames import check_table
from deeprok.evaluation.comparison.compare import compare
from deeprok.evaluation.comparison.figure import check_drawable
from deeprok.evaluation.comparison.report import print_comparison
from deeprok.evaluation.groups.find import ALL
from deeprok.evaluation.groups.report import print_groups
from deeprok.evaluation.groups.result import Against, Tasks
from deeprok.plot import check_file, save
from deeprok.runs.collections import is_collection
from deeprok.runs.folder import Keep
from deeprok.training.progress import fraction_bar

_DIRS = tyro.conf.arg(metavar="DIR [DIR ...]", help_behavior_hint="(required)")
_GRID = tyro.conf.arg(metavar="GRID", help_behavior_hint="(default: the box that holds those of all, 7 values each)")
_BY = tyro.conf.arg(metavar="SETTINGS", help_behavior_hint="(default: all that vary, if a DIR is a sweep)")
_TASKS = tyro.conf.arg(metavar="cells|environments", help_behavior_hint="(default: cells, if all have one environment)")
_SCALES = tyro.conf.arg(metavar="SCALES", help_behavior_hint="(default: random play and the best group)")


@dataclass(frozen=True)
class Compare:
    """Say which of several trained agents is better, and where.

    Each is compared with the first, on the same grid with the same random numbers.

    With a sweep among them, or with --by, all runs are grouped by their settings.

    deeprok compare runs/ddqn runs/rok

    deeprok compare runs/ddqn runs/rok --grid gravity=5:15:11 --plot gravity.png

    deeprok compare runs/sweep --by learning_rate,algorithm --table sweep.parquet
    """

    dirs: Annotated[tuple[Path, ...], tyro.conf.Positional, _DIRS]
    """Run folders, folders of seeds, or folders of sweeps."""
    by: Annotated[str | None, _BY] = None
    """Settings that runs are grouped by, as name,name,…; or all."""
    against: Against = "first"
    """With groups: the one that the others are compared with."""
    tasks: Annotated[Tasks | None, _TASKS] = None
    """With groups: what scores are of."""
    references: Annotated[str | None, _SCALES] = None
    """With groups: returns that the scores 0 and 1 stand for, as env=low:high,…"""
    grid: Annotated[str | None, _GRID] = None
    """Parameters to vary, as name=low:high:count,…; both edges are included."""
    episodes: int = 500
    """Episodes in each cell."""
    epsilon: float = 0.1
    """Probability of a random action."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """PNG, SVG or PDF file for a figure: maps of runs and their differences, or intervals and profiles of groups."""
    table: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """With groups: parquet or CSV file for a table with a row for each seed and cell (needs the extra frame)."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Compare, words, "compare")
    if options.plot:
        check_file(options.plot, "plot")
    by = options.by or (ALL if any(map(is_collection, options.dirs)) else None)
    if by is None:
        _compare_runs(options)
    else:
        _compare_groups(options, by)


def _compare_runs(options: Compare) -> None:
    """Each run with the first."""
    for name in ("table", "tasks", "references"):
        if getattr(options, name) is not None:
            raise DeeprokError(f"{name} is for groups of runs; give --by too, as in --by all")
    if options.against != "first":
        raise DeeprokError("against is for groups of runs; give --by too, as in --by all")
    if len(options.dirs) < 2:
        raise DeeprokError("two DIR or more must be given, or a sweep; 'deeprok compare --help' tells more")
    if options.plot:
        check_drawable([*dict.fromkeys(name for folder in options.dirs for name in grid_names(folder, options.grid))])
    with fraction_bar(streams.err, "comparing") as advance:
        found = compare(
            options.dirs,
            grid=options.grid,
            episodes=options.episodes,
            epsilon=options.epsilon,
            keep=options.keep,
            advance=advance,
            save=True,
        )
    for folder in options.dirs:
        note_unfinished(folder)
    if options.plot:
        save(found.plot(), options.plot)
    if options.json:
        print(json.dumps(found.to_dict()))
        return
    print_comparison(found, streams.out)
    _say_where("plot", options.plot)


def _compare_groups(options: Compare, by: str) -> None:
    """All runs by their settings."""
    if options.table:
        check_table(options.table, "table")
    with fraction_bar(streams.err, "comparing") as advance:
        found = compare(
            options.dirs,
            grid=options.grid,
            episodes=options.episodes,
            epsilon=options.epsilon,
            keep=options.keep,
            advance=advance,
            save=True,
            by=by,
            against=options.against,
            tasks=options.tasks,
            references=options.references,
        )
    if options.plot:
        save(found.plot(), options.plot)
    if options.table:
        found.save_table(options.table)
    if options.json:
        print(json.dumps(found.to_dict()))
        return
    print_groups(found, streams.out)
    _say_where("plot", options.plot)
    _say_where("table", options.table)


def _say_where(name: str, path: Path | None) -> None:
    if path:
        streams.out.print(f"{name}: {path}", highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Compare)
