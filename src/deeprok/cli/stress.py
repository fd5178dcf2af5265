"""`deeprok stress`: find where trained policies break."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.evaluate import note_unfinished
from deeprok.cli.options import option_names, parse_options
from deeprok.core.errors import DeeprokError
from deeprok.evaluation.stress.report import print_stress
from deeprok.evaluation.stress.stress import BUDGET, SIMULATOR_BUDGET, stress
from deeprok.plot import check_file, save
from deeprok.training.progress import fraction_bar

_RUNS = tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
_BOX = tyro.conf.arg(metavar="BOX", help_behavior_hint="(default: the run's box, more noise and more delay)")
_BUDGET = tyro.conf.arg(
    metavar="N", help_behavior_hint=f"(default: {BUDGET}; {SIMULATOR_BUDGET} in a stateful simulator)"
)


@dataclass(frozen=True)
class Stress:
    """Find where trained policies break, how far that is from the nominal model, and which parameters matter.

    Searches a box of models and a margin around it, in all parameters at once. Several runs are compared on the same
    models.

    deeprok stress runs/rok

    deeprok stress runs/rok runs/ddqn --box pole_length=0.2:1.4,gravity=8:12,sensor_noise=0:0.05 --out stress.png
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, _RUNS]
    """Run folders; of a folder of seeds, the seed that did best on held-out models is tested."""
    box: Annotated[str | None, _BOX] = None
    """What is searched, as name=low:high,…: parameters of the environment, sensor_noise and action_delay."""
    margin: float = 0.5
    """By what part of its width each range is widened on either side."""
    threshold: float = 0.9
    """Success rate below which a policy fails on a model."""
    budget: Annotated[int | None, _BUDGET] = None
    """Models that are tried for each run."""
    seed: int = 0
    """Seed of all random numbers."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """PNG, SVG or PDF file for a figure: margins, failing models and sensitivities."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Stress, words, "stress")
    if not options.runs:
        raise DeeprokError("RUN must be given; 'deeprok stress --help' tells more")
    if options.out:
        check_file(options.out, "out")
    with fraction_bar(streams.err, "searching") as advance:
        found = stress(
            *options.runs,
            box=options.box,
            margin=options.margin,
            threshold=options.threshold,
            budget=options.budget,
            seed=options.seed,
            advance=advance,
            save=True,
        )
    for folder in options.runs:
        note_unfinished(folder)
    if options.out:
        save(found.plot(), options.out)
    if options.json:
        print(json.dumps(found.to_dict()))
        return
    print_stress(found, streams.out)
    for one in found.runs:
        streams.out.print(f"kept in {Path(one.folder) / 'stress.json'}", highlight=False, markup=False, soft_wrap=True)
    if options.out:
        streams.out.print(f"figure: {options.out}", highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Stress)
