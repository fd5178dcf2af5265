"""A comparison as a user reads it in the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deeprok.evaluation.comparison.result import Cell, Comparison
from deeprok.evaluation.statistics import Estimate


def print_comparison(found: Comparison, out: Console) -> None:
    """Prints what was played, the scores of each agent, and how each differs from the first."""
    test = found.runs[0].evaluation
    keeps = {run.evaluation.keep for run in found.runs}
    cells = math.prod(len(values) for values in found.grid.values())
    say(
        out,
        f"[bold]{found.env}[/bold] · {cells} cells, {test.episodes} episodes each · ε {test.epsilon:g} · "
        f"{' and '.join(sorted(keeps))} weights · the same random numbers"
        + "".join(f" · {name} {value}" for name, value in test.disturbances.items()),
    )
    say(out, "from stored evaluations of these weights" if found.stored else "all were played now")
    table = number_table("run", "seeds", "success in % (95 %)", "return (95 %)", "worst\ncell", "CVaR10")
    for run in found.runs:
        table.add_row(
            escape(run.label),
            str(len(run.seeds)),
            said(run.success, 100),
            said(run.mean_return),
            f"{100 * run.worst.success:.1f}",
            f"{100 * run.tail_success:.1f}",
        )
    out.print(table, highlight=False)
    for run in found.runs:
        say(out, f"worst cell of {escape(run.label)}: {_where(run.worst)}")
    say(out, "CVaR10: success in % of the worst tenth of the cells")
    heads = ["success in points", "return", *(["P(better)"] if found.unit == "seeds" else [])]
    table = number_table(f"minus {escape(found.runs[0].label)}", *heads)
    for one in found.differences:
        chance = [said(one.improvement, form=".2f")] if one.improvement else []
        table.add_row(escape(one.label), said(one.success, 100), said(one.mean_return), *chance)
    out.print(table, highlight=False)
    if found.unit == "seeds":
        say(out, f"P(better): that a seed has more {_name(found)} over the grid than one of the first")
    else:
        say(
            out,
            "an agent has a single seed, too few for an interval over seeds: intervals are over the episodes, which are"
            " the same for all, and hold for these policies alone",
        )
    for one in found.differences:
        say(out, escape(one.sentence))


def _name(found: Comparison) -> str:
    return "success" if found.measure == "success" else "return"


def say(out: Console, sentence: str) -> None:
    """Prints a sentence, on as many lines as it takes."""
    out.print(sentence, highlight=False, soft_wrap=True)


def _where(cell: Cell) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in cell.parameters.items())


def said(found: Estimate, scale: float = 1.0, form: str = "") -> str:
    """A number and its interval; with three digits, or those before the point."""
    form = form or (".1f" if scale != 1.0 else ".0f" if abs(found.value) >= 1000 else ".3g")
    value = f"{scale * found.value:{form}}"
    if found.interval is None:
        return value
    low, high = (f"{scale * end:{form}}" for end in found.interval)
    return f"{value} ({low} to {high})"


def number_table(*headings: str) -> Table:
    """A table whose first column is of names and whose others are of numbers."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
    return table
