"""An evaluation as a user reads it in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deeprok.evaluation.result import Evaluation, Score


def print_evaluation(result: Evaluation, out: Console) -> None:
    """Prints what was played, the map of successes and the scores of each seed."""
    seeds = len(result.per_seed)
    acting = {"mean": "mean", "lcb": f"lcb, κ {result.kappa:g}"}.get(
        result.policy, f"{result.policy} of {result.members}"
    )
    out.print(
        f"[bold]{escape(result.algorithm)}[/bold] · {seeds} seed{'s' if seeds > 1 else ''} · {result.keep} weights · "
        f"policy {escape(acting)} · ε {result.epsilon:g} · {result.episodes} episodes a cell"
        + "".join(f" · {name} {escape(str(value))}" for name, value in result.disturbances.items()),
        highlight=False,
        soft_wrap=True,
    )
    if len(result.grid) <= 2:
        names = list(result.grid)
        directions = f"{names[0]} →" + (f" × {names[1]} ↑" if len(names) == 2 else "")
        out.print(f"success in %, {directions}", highlight=False, markup=False, soft_wrap=True)
        for table in _bands(result, out.width):
            out.print(table)
    rows = [("whole grid", result.overall, ""), ("nominal", result.nominal, "")]
    cells = worst_cells(result)
    heading = "worst cells" if len(cells) > 1 else "worst cell"
    for i, cell in enumerate(cells):
        score = Score(float(result.mean_return[cell]), float(result.success[cell]))
        rows.append((heading if i == 0 else "", score, f"   {escape(where(result.grid, cell))}"))
    failed = failed_seeds(result)
    if seeds > 1:
        for one in result.per_seed:
            worst = f"   worst cell {100 * one.success.min():5.1f} %"
            mark = "   [red]failed[/red]" if one.seed in failed else ""
            rows.append((f"seed {one.seed}", one.overall, worst + mark))
    for name, score, mark in rows:
        out.print(f"{name:<11} {_said(score)}{mark}", highlight=False)
    if failed:
        out.print(
            f"{len(failed)} of {seeds} seeds failed: less than half the success of the best seed",
            highlight=False,
            soft_wrap=True,
        )
    if result.failed is not None and result.failed.any():
        count = result.failed.size
        out.print(
            f"the simulation failed in {result.failed.sum():,} of {count * seeds * _played(result):,} episodes, in "
            f"{np.count_nonzero(result.failed)} of {count} cells: its numbers were not finite or too large, which "
            "ended them",
            highlight=False,
            soft_wrap=True,
        )


#: The most cells that are named, and by how much less than the grid's mean success each after the first must have.
_MOST_CELLS, _MUCH = 3, 0.1


def worst_cells(result: Evaluation) -> list[tuple[int, ...]]:
    """The cell with the lowest return, and the next ones where success is much below that of the whole grid."""
    order = np.argsort(result.mean_return, axis=None, kind="stable")[:_MOST_CELLS]
    cells = [tuple(map(int, np.unravel_index(i, result.mean_return.shape))) for i in order]
    return cells[:1] + [cell for cell in cells[1:] if result.success[cell] <= result.overall.success - _MUCH]


def where(grid: Mapping[str, np.ndarray], cell: Sequence[int]) -> str:
    """The parameters of a cell, as a line has room for them."""
    return ", ".join(f"{name}={axis[i]:.3g}" for (name, axis), i in zip(grid.items(), cell, strict=True))


def _played(result: Evaluation) -> int:
    """Episodes of a seed in a cell."""
    return result.episodes * (result.members if result.policy == "sample" else 1)


def failed_seeds(result: Evaluation) -> list[int]:
    """The seeds that succeed less than half as often as the best one, over the whole grid."""
    best = max(one.overall.success for one in result.per_seed)
    return [one.seed for one in result.per_seed if one.overall.success < best / 2]


def _said(score: Score) -> str:
    return f"return {score.mean_return:6.1f}   success {100 * score.success:5.1f} %"


def _bands(result: Evaluation, width: int) -> Iterator[Table]:
    """The map as tables one below the other, each with as many columns as the width has room for.

    As in a figure, the first parameter goes to the right and the second one up.
    """
    across, *up = result.grid
    cells = 100 * np.atleast_2d(result.success.T)[::-1]
    heads = [f"{value:.3g}" for value in result.grid[across]]
    sides = [f"{value:.3g}" for value in result.grid[up[0]][::-1]] if up else ["success"]
    corner = up[0] if up else across
    side = max(len(text) for text in (*sides, corner))
    column = max(3, *(len(text) for text in heads)) + 3  # with a blank on either side, and a line
    size = max(1, (width - side - 4) // column)
    size = -(-len(heads) // -(-len(heads) // size))  # alike
    for start in range(0, len(heads), size):
        table = Table()
        table.add_column(Text(corner), style="bold", no_wrap=True)
        for head in heads[start : start + size]:
            table.add_column(head, justify="right", no_wrap=True)
        for text, row in zip(sides, cells, strict=True):
            table.add_row(text, *(f"[{_shade(x)}]{x:.0f}[/]" for x in row[start : start + size]))
        yield table


def _shade(percent: float) -> str:
    return "green" if percent >= 90 else "yellow" if percent >= 50 else "red"
