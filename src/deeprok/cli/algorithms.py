"""`deeprok algorithms`: the table of algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from deeprok.cli import streams
from deeprok.cli.options import no_options
from deeprok.runs.settings import ALGORITHMS


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    no_options("algorithms", words)
    table = Table("name", "label", "estimator", "acts on", "what it is", box=None, header_style="bold")
    for name, row in ALGORITHMS.items():
        label = ("worst case" if row.robust else "nominal") + (", double" if row.double else "")
        table.add_row(name, label, row.estimator, row.acting or "as set", row.summary)
    streams.out.print(table)


def options() -> set[str]:
    """It has none."""
    return set()
