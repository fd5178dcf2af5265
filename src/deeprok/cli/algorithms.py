"""`deeprok algorithms`: the table of algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.cli import streams
from deeprok.cli.options import no_options


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    no_options("algorithms", words)
    table = Table("name", "target", "learned by", "what it is", box=None, header_style="bold")
    for name, row in ALGORITHMS.items():
        table.add_row(name, row.target, row.estimator or row.learner, row.summary)
    streams.out.print(table)


def options() -> set[str]:
    """It has none."""
    return set()
