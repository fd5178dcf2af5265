"""`deeprok evaluate`: map where a trained policy works."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.options import RunFolder, option_names
from deeprok.evaluation.grid import PolicyKind, evaluate
from deeprok.evaluation.report import check_figure, draw_evaluation, print_evaluation
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.training.progress import fraction_bar


@dataclass(frozen=True)
class Evaluate:
    """Play trained policies on a grid of physics: a map of where they work."""

    run: RunFolder
    """A run folder, or a folder of seeds."""
    grid: Annotated[
        str | None, tyro.conf.arg(metavar="GRID", help_behavior_hint="(default: the run's box, 7 values each)")
    ] = None
    """Parameters to vary, as name=low:high:count,…; both edges are included."""
    episodes: int = 500
    """Episodes in each cell."""
    epsilon: float = 0.1
    """Probability of a random action."""
    policy: PolicyKind = "mean"
    """Act on the belief's mean, by draws from the posterior (vote, mean_q; sample: each alone), or on Q − κσ: lcb."""
    members: int = 20
    """Size of the ensemble."""
    kappa: float = 1.0
    """κ of the policy lcb: the larger, the less it dares what it knows little of."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""
    seed: int = 0
    """Seed of the evaluation's random numbers, the same in every cell."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """PNG, SVG or PDF file for a drawing of the map, of one or two parameters."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = tyro.cli(Evaluate, args=words, prog="deeprok evaluate")
    arguments = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    folder, plot, as_json = (arguments.pop(name) for name in ("run", "plot", "json"))
    if plot:
        config = runs.read_config(runs.find(folder)[0])
        world = config.make_world()
        names = options.grid.split(",") if options.grid else config.make_box(world)
        check_figure(plot, [name.partition("=")[0] for name in names])
    with fraction_bar(streams.err, "evaluating") as advance:
        result = evaluate(folder, **arguments, advance=advance)
    if plot:
        draw_evaluation(result, world, plot)
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    print_evaluation(result, streams.out)
    where = folder if (folder / runs.CONFIG).exists() else folder / "seed-*"
    streams.out.print(f"kept in {where / result.file}", highlight=False, markup=False, soft_wrap=True)
    if plot:
        streams.out.print(f"plot: {plot}", highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Evaluate)
