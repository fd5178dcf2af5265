"""`deeprok screen`: tell whether robustness can pay in an environment, before training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from deeprok.cli import streams
from deeprok.cli.options import check_output, option_names, parse_options
from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically
from deeprok.evaluation.screening.result import ON_AVERAGE, POLICIES, WORST_CELL, Screening
from deeprok.evaluation.screening.screen import model_axes, named_environment, screen
from deeprok.plot import check_file, save
from deeprok.training.progress import fraction_bar


@dataclass(frozen=True)
class Screen:
    """Tell whether robustness can pay in an environment, before training anything.

    Solves the environment nearly exactly on a grid of its states, for every model of a grid of parameters: once for
    each model (the ceiling), for the nominal model, for the mean over the models, for their CVaR and for the worst of
    them. Then plays these policies, and random actions, on every model. Where the nominal policy does as well as one
    for each model, no robust agent can do better; where the worst-case policy beats it, one can.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """An environment with a grid of states, such as ferry, or your own as module:object."""
    grid: Annotated[
        str | None, tyro.conf.arg(metavar="GRID", help_behavior_hint="(default: the box, 5 values each)")
    ] = None
    """Models to solve for, as name=low:high:count,…; both edges are included."""
    box: Annotated[str | None, tyro.conf.arg(metavar="BOX", help_behavior_hint="(default: the environment's own)")] = (
        None
    )
    """Ranges of the parameters, as name=low:high,…; 5 values of each are taken."""
    discount: float = 0.99
    """Discount γ, at least 0 and below 1."""
    cvar: float = 0.25
    """Fraction of the models, the worst ones of every step, that the policy cvar is made for."""
    episodes: int = 200
    """Episodes of each policy on each model."""
    epsilon: float = 0.05
    """Probability of a random action."""
    draws: int = 32
    """Random outcomes that an environment with noise is averaged over; one without noise needs one."""
    seed: int = 0
    """Seed of the random numbers, the same for all policies and models."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """JSON file for the whole result."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """PNG, SVG or PDF file for the success of each policy, over one or two parameters."""
    json: bool = False
    """Print one JSON object instead of a table."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Screen, words, "screen")
    arguments = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    out, plot, as_json = (arguments.pop(name) for name in ("out", "plot", "json"))
    check_output("out", out)
    if plot:
        check_file(plot, "plot")
        if len(names := model_axes(named_environment(options.env), options.grid, options.box)) > 2:
            raise DeeprokError(f"plot draws one or two parameters, but there are {len(names)}: {', '.join(names)}")
    with fraction_bar(streams.err, "screening") as advance:
        found = screen(**arguments, advance=advance)
    if out:
        write_atomically(out, (json.dumps(found.to_dict()) + "\n").encode())
    if plot:
        save(found.plot(), plot)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    _print(found, streams.out)
    for name, path in (("result", out), ("plot", plot)):
        if path:
            streams.out.print(f"{name}: {path}", highlight=False, markup=False, soft_wrap=True)


def _print(found: Screening, out: Console) -> None:
    states = " × ".join(f"{points} {name}" for name, points in found.states.items())
    cells = " × ".join(f"{len(values)} {name}" for name, values in found.grid.items())
    out.print(
        f"[bold]{found.env}[/bold] · states {states} · models {cells} · discount {found.discount:g} · ε"
        f" {found.epsilon:g} · {found.episodes} episodes a model",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None, header_style="bold")
    table.add_column("policy")
    for heading in (
        "success\nmean",
        "success\nworst",
        "return\nmean",
        "return\nworst 10%",
        "return\nworst",
        "value\nat start",
    ):
        table.add_column(heading, justify="right")
    for policy, one in found.summary().items():
        value = found.start_values.get(policy)
        table.add_row(
            policy,
            f"{100 * one.mean_success:.1f} %",
            f"{100 * one.worst_success:.1f} %",
            *(f"{x:.4g}" for x in (one.mean_return, one.tail_return, one.worst_return)),
            "–" if value is None else f"{value:.4g}",
        )
    out.print(table, highlight=False)
    out.print(found.verdict.sentence, highlight=False, markup=False, soft_wrap=True)
    out.print(
        f"A difference counts from {100 * WORST_CELL:.0f} points of success in the worst cell or {100 * ON_AVERAGE:.0f}"
        " on average; of returns, from as many percent of the range from random to each.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    out.print("made for:", highlight=False)
    for policy, meaning in POLICIES.items():
        out.print(f"  {policy:<10} {meaning}", highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Screen)
