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
from deeprok.cli.options import RunFolder, option_names, parse_options
from deeprok.environments import HostEnvironment
from deeprok.evaluation.comparison.figure import check_drawable
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.policies import PolicyKind
from deeprok.evaluation.report import print_evaluation
from deeprok.plot import check_file, save
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.training.loop import progress_of
from deeprok.training.progress import fraction_bar

#: Of an option that a run has as a setting.
_OWN = "(default: the run's)"


@dataclass(frozen=True)
class Evaluate:
    """Test trained policies on a grid of parameters: a map of where they work."""

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
    """Act on the mean weights, on draws from the posterior (vote, mean_q; sample: each alone), or on Q − κσ: lcb."""
    members: int = 20
    """Size of the ensemble."""
    kappa: float = 1.0
    """κ of the policy lcb: the larger, the more uncertain actions are avoided."""
    sensor_noise: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint=_OWN)] = None
    """Standard deviation of the noise on each observation, as a multiple of its typical size."""
    action_delay: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=_OWN)] = None
    """Steps by which each action is late."""
    parameter_noise: Annotated[str | None, tyro.conf.arg(metavar="NOISE", help_behavior_hint=_OWN)] = None
    """Parameters that are multiplied by a fresh factor in each step, and its standard deviation, as name=deviation,…;
    empty for none."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""
    seed: int = 0
    """Seed of the evaluation's random numbers, the same in every cell."""
    name: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: by its options)")] = None
    """What to call it: it is stored under this name, beside the others."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """PNG, SVG or PDF file for a drawing of the map, of one or two parameters."""
    json: bool = False
    """Print one JSON object instead of tables."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Evaluate, words, "evaluate")
    arguments = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    folder, plot, as_json = (arguments.pop(name) for name in ("run", "plot", "json"))
    if plot:
        check_file(plot, "plot")
        check_drawable(grid_names(folder, options.grid))
    with fraction_bar(streams.err, "evaluating") as advance:
        result = evaluate(folder, **arguments, advance=advance, save=True)
    note_unfinished(folder)
    if plot:
        save(result.plot(), plot)
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    print_evaluation(result, streams.out)
    if len(result.grid) > 2:
        said = f"a map has two parameters; where the policy breaks in all of them says: deeprok stress {folder}"
        streams.out.print(said, highlight=False, markup=False, soft_wrap=True)
    env = runs.read_config(runs.find(folder)[0]).make_env()
    if isinstance(env, HostEnvironment) and "success_return" in env.assumed:
        streams.out.print(
            f"nothing says when an episode of {env.name} succeeds: here it does if its return is above "
            f"{env.success_return:g}; give success_return to from_gymnasium",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    where = folder if (folder / runs.CONFIG).exists() else folder / "seed-*"
    streams.out.print(f"kept in {where / result.file}", highlight=False, markup=False, soft_wrap=True)
    if plot:
        streams.out.print(f"plot: {plot}", highlight=False, markup=False, soft_wrap=True)


def grid_names(folder: Path, grid: str | None) -> list[str]:
    """The parameters of a grid, or of the run's box."""
    config = runs.read_config(runs.find(folder)[0])
    return (
        [item.partition("=")[0].strip() for item in grid.split(",")] if grid else [*config.make_box(config.make_env())]
    )


def note_unfinished(path: Path) -> None:
    """Says of runs that have not used up their budget how far they are, a line for each."""
    for folder in runs.find(path):
        (steps, episodes), budget = progress_of(folder), runs.read_config(folder).budget
        if steps and budget.lasts(episodes, steps):
            reached = (
                f"{episodes} of {budget.episodes} episodes" if budget.episodes else f"{steps} of {budget.steps} steps"
            )
            streams.err.print(
                f"{folder} is unfinished: {reached}; resume with: deeprok train --resume {folder}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


def options() -> set[str]:
    """The names of its options."""
    return option_names(Evaluate)
