"""An evaluation as a user reads it: a map for the terminal, or a figure."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from deeprok import plot as figures
from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically
from deeprok.environments import World
from deeprok.evaluation.grid import Evaluation, Score

#: Endings of the files that a figure can be written to.
FIGURES = (".png", ".svg", ".pdf")


def print_evaluation(result: Evaluation, out: Console) -> None:
    """Prints what was played, the map of successes and the scores of each seed."""
    seeds = len(result.per_seed)
    acting = {"mean": "mean", "lcb": f"lcb, κ {result.kappa:g}"}.get(
        result.policy, f"{result.policy} of {result.members}"
    )
    out.print(
        f"[bold]{result.algorithm}[/bold] · {seeds} seed{'s' if seeds > 1 else ''} · {result.keep} weights · "
        f"policy {acting} · ε {result.epsilon:g} · {result.episodes} episodes a cell",
        highlight=False,
        soft_wrap=True,
    )
    if len(result.grid) <= 2:
        names = list(result.grid)
        directions = f"{names[0]} ↓ × {names[1]} →" if len(names) == 2 else f"{names[0]} →"
        out.print(f"success in %, {directions}", highlight=False, soft_wrap=True)
        for table in _bands(result, out.width):
            out.print(table)
    rows = [("whole grid", result.overall, ""), ("nominal", result.nominal, "")]
    failed = failed_seeds(result)
    if seeds > 1:
        rows += [
            (f"seed {one.seed}", one.overall, "   [red]failed[/red]" if one.seed in failed else "")
            for one in result.per_seed
        ]
    for name, score, mark in rows:
        out.print(f"{name:<11} {_said(score)}{mark}", highlight=False)
    if failed:
        out.print(
            f"{len(failed)} of {seeds} seeds failed: less than half the success of the best seed",
            highlight=False,
            soft_wrap=True,
        )


def failed_seeds(result: Evaluation) -> list[int]:
    """The seeds that succeed less than half as often as the best one, over the whole grid."""
    best = max(one.overall.success for one in result.per_seed)
    return [one.seed for one in result.per_seed if one.overall.success < best / 2]


def _said(score: Score) -> str:
    return f"return {score.mean_return:6.1f}   success {100 * score.success:5.1f} %"


def _bands(result: Evaluation, width: int) -> Iterator[Table]:
    """The map as tables one below the other, each with as many columns as the width has room for."""
    *down, across = result.grid
    cells = 100 * np.atleast_2d(np.asarray(result.success))
    heads = [f"{value:.3g}" for value in result.grid[across]]
    sides = [f"{value:.3g}" for value in result.grid[down[0]]] if down else ["success"]
    corner = down[0] if down else across
    side = max(len(text) for text in (*sides, corner))
    column = max(3, *(len(text) for text in heads)) + 3  # with a blank on either side, and a line
    size = max(1, (width - side - 4) // column)
    size = -(-len(heads) // -(-len(heads) // size))  # alike
    for start in range(0, len(heads), size):
        table = Table()
        table.add_column(corner, style="bold", no_wrap=True)
        for head in heads[start : start + size]:
            table.add_column(head, justify="right", no_wrap=True)
        for text, row in zip(sides, cells, strict=True):
            table.add_row(text, *(f"[{_shade(x)}]{x:.0f}[/]" for x in row[start : start + size]))
        yield table


def _shade(percent: float) -> str:
    return "green" if percent >= 90 else "yellow" if percent >= 50 else "red"


def check_figure(path: Path, names: Sequence[str]) -> None:
    """Raises unless an evaluation over these parameters can be drawn into this file.

    Args:
      path: the file.
      names: the grid's parameters.
    """
    if path.suffix.lower() not in FIGURES:
        raise DeeprokError(f"plot is {path}; it must end with {', '.join(FIGURES[:-1])} or {FIGURES[-1]}")
    if path.is_dir():
        raise DeeprokError(f"plot is {path}, which is a folder")
    if not path.parent.is_dir():
        raise DeeprokError(f"plot is {path}, but there is no folder {path.parent}")
    if len(names) > 2:
        raise DeeprokError(f"plot draws one or two parameters, but the grid has {len(names)}: {', '.join(names)}")


def draw_evaluation(result: Evaluation, world: World, path: Path) -> None:
    """Draws the map of successes or, for one parameter, the returns; the nominal model is marked.

    Args:
      result: the evaluation.
      world: the run's world, for names and nominal values.
      path: a file that `check_figure` lets pass.
    """
    if len(result.grid) == 2:
        figure = figures.success_maps({result.algorithm: result.success}, result.grid, world, first_letter=None)
    else:
        ((name, values),) = result.grid.items()
        band = figures.Band(result.mean_return, result.std_return)
        figure = figures.return_curves({result.algorithm: band}, name, values, world, first_letter=None)
        figure.axes[0].autoscale(axis="y")  # returns of other worlds are not between 0 and the horizon
    figure.set_size_inches(6.4, 4.8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower(), dpi=150)
    write_atomically(path, buffer.getvalue())
