"""`deeprok problems`: the built-in problems of `deeprok solve`, and their parameters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from deeprok.cli import streams
from deeprok.cli.options import no_options
from deeprok.core.toy_text import ACTIONS
from deeprok.tabular.problems import PROBLEMS


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    no_options("problems", words)
    for name, problem in PROBLEMS.items():
        heading = f"[bold]{name}[/bold]: {problem.summary} · discount {problem.discount:g} · {problem.source}"
        streams.out.print(heading, highlight=False, soft_wrap=True)
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
        for field, parameter in problem.parameters.items():
            table.add_row(field, f"{parameter.default:g}", parameter.meaning)
        streams.out.print(table, highlight=False)
    streams.out.print(
        f"Gymnasium's tables, by id: {', '.join(ACTIONS)}; parameters are the arguments of gymnasium.make",
        highlight=False,
        soft_wrap=True,
    )
    streams.out.print("deeprok solve river_swim --set l1 --radius 0.1", highlight=False)
    streams.out.print("deeprok solve garnet:states=50,seed=3 --set kl --radius 0:1:11", highlight=False)
    streams.out.print("deeprok solve FrozenLake-v1:map_name=8x8 --set l1 --radius 0.1", highlight=False)


def options() -> set[str]:
    """It has none."""
    return set()
