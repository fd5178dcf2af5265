"""`deeprok identify`: the parameters of a real system from a log of it."""

from __future__ import annotations

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
from deeprok.evaluation.result import parameters_of
from deeprok.identification.identify import identify, named_environment
from deeprok.identification.result import Identified
from deeprok.training.progress import fraction_bar


@dataclass(frozen=True)
class Identify:
    """Find the parameters of a real system from a log of it, and how well each is known.

    The log has one row a step, with the columns episode, t, obs_0, …, action (or action_0, …) and next_obs_0, …; the
    last may be left out. Ranges are by profile likelihood, with process and sensor noise unknown too. 'deeprok train
    --box FILE' and '--models FILE' take what --out writes.
    """

    env: str
    """An environment that 'deeprok environments' lists, a Gymnasium id, or your own as module:object."""
    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The log: a .csv, .npz or .parquet file."""
    parameters: Annotated[
        str | None, tyro.conf.arg(metavar="NAMES", help_behavior_hint="(default: those of the environment's box)")
    ] = None
    """Parameters that are unknown, as a,b; the others are nominal."""
    confidence: float = 0.9
    """Probability that the ranges hold all true parameters, from 0.5 to below 1."""
    bootstrap: int = 50
    """How often episodes are resampled, for ranges to compare with; from 5 episodes on. 0 for none."""
    seed: int = 0
    """Seed of all random numbers."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """JSON file for the result, which deeprok train takes."""
    json: bool = False
    """Print one JSON object instead of a table."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Identify, words, "identify")
    if options.out:
        if options.out.suffix != ".json":
            raise DeeprokError(f"out is {options.out}; it must be a file that ends with .json")
        check_output("out", options.out)
    with fraction_bar(streams.err, "identifying") as advance:
        found = identify(
            options.env,
            options.data,
            options.parameters,
            options.confidence,
            options.bootstrap,
            seed=options.seed,
            advance=advance,
        )
    if options.out:
        found.save(options.out)
    if options.json:
        print(json.dumps(found.to_dict()))
        return
    _print(found, streams.out)
    if options.out:
        said = f"result: {options.out}; train for it with: deeprok train rtd_dqn --env {found.env} --box {options.out}"
        streams.out.print(said, highlight=False, markup=False, soft_wrap=True)


def _print(found: Identified, out: Console) -> None:
    out.print(
        f"[bold]{found.env}[/bold] · {found.fit.episodes} episodes · {found.fit.steps} steps · the ranges hold all"
        f" parameters with a confidence of {100 * found.confidence:g} %",
        highlight=False,
        soft_wrap=True,
    )
    units = parameters_of(named_environment(found.env)[1])
    table = Table("parameter", "unit", box=None, header_style="bold")
    for heading in ("nominal", "estimate", "low", "high", "by resampling"):
        table.add_column(heading, justify="right")
    for name, one in found.parameters.items():
        again = found.bootstrap.get(name)
        numbers = (units[name].nominal, one.estimate, one.low, one.high)
        table.add_row(
            f"{name}{' (unidentified)' if name in found.unidentified else ''}",
            units[name].unit,
            *(f"{x:.4g}" for x in numbers),
            f"{again[0]:.4g} to {again[1]:.4g}" if again else "–",
        )
    out.print(table, highlight=False)
    noise = Table("noise", "process", "sensor", box=None, header_style="bold")
    for i, each in enumerate(zip(found.noise.process, found.noise.sensor, strict=True)):
        noise.add_row(f"obs_{i}", *(f"{x:.2g}" for x in each))
    out.print(noise, highlight=False)
    others = [" and ".join(f"{name} = {x:.4g}" for name, x in one.items()) for one in found.fit.optima]
    for sentence in (
        *found.combinations,
        *found.notes,
        *(f"another place is nearly as likely: {other}" for other in others),
    ):
        out.print(f"- {sentence}", highlight=False, markup=False, soft_wrap=True)
    if not any(check.misfit for check in found.fit.checks):
        out.print("- what the simulator does not predict looks like noise", highlight=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Identify)
