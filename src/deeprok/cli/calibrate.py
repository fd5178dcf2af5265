"""`deeprok calibrate`: check the posterior's intervals for Q."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from deeprok.cli import streams
from deeprok.cli.options import RunFolder, option_names, parse_options
from deeprok.evaluation.calibration import calibrate
from deeprok.runs.folder import Keep
from deeprok.training.progress import fraction_bar


@dataclass(frozen=True)
class Calibrate:
    """Compare the posterior's intervals for Q with what the greedy policy earns.

    With a robust target it earns it against models that are the worst in every step, by the agent's own values.
    """

    run: RunFolder
    """A run folder, or a folder of seeds, of an agent with a posterior, such as deep_rok."""
    states: int = 200
    """States visited by the greedy policy, for each seed."""
    models: int = 32
    """Models of the run's box, or model sets of a robust target, that returns are averaged over."""
    keep: Keep = "last"
    """The weights that did best on held-out models while training, or the last ones."""
    seed: int = 0
    """Seed of the simulation's random numbers."""
    json: bool = False
    """Print one JSON object instead of a table."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Calibrate, words, "calibrate")
    with fraction_bar(streams.err, "simulating"):
        found = calibrate(options.run, options.states, options.models, options.keep, options.seed, save=True)
    if options.json:
        print(json.dumps(found.to_dict()))
        return
    low, high, seeds = min(found.temperature), max(found.temperature), len(found.temperature)
    table = Table(title=f"{found.points} values of Q, {seeds} seed{'s' if seeds > 1 else ''}", title_justify="left")
    headings = ["nominal coverage", "empirical", "with the temperature of the other seeds"]
    for heading in [*headings[:2], *(["before its correction"] if found.raw else []), headings[2]]:
        table.add_column(heading, justify="right")
    for i, level in enumerate(found.levels):
        scaled = f"{100 * found.calibrated[i]:.0f} %" if found.calibrated else "– (one seed)"
        raw = [f"{100 * found.raw[i]:.0f} %"] if found.raw else []
        table.add_row(f"{100 * level:.0f} %", f"{100 * found.coverage[i]:.0f} %", *raw, scaled)
    streams.out.print(table)
    streams.out.print(
        f"mean standard deviation of Q {found.deviation:.3g}, root mean square error of its mean {found.error:.3g}",
        highlight=False,
    )
    streams.out.print(
        f"temperature, the factor that would calibrate the deviations: {low:.3g} – {high:.3g}", highlight=False
    )
    streams.out.print(f"kept in {options.run / 'calibrate.json'}", highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Calibrate)
