"""`deeprok sweep`: train many trials of settings, algorithms and environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table
from rich.text import Text

from deeprok.cli import streams
from deeprok.cli.options import ADDRESS, JOBS, option_names, parse_options
from deeprok.cli.trackers import Trackers
from deeprok.cli.train import on_interrupt
from deeprok.sweeps.on_ray import Resources
from deeprok.sweeps.spec import read_spec
from deeprok.sweeps.sweep import SUMMARY, SweepResult, make_executor, run_sweep

_MOST_ROWS = 40


@dataclass(frozen=True)
class Sweep:
    """Train many trials of settings, algorithms and environments.

    SPEC is a TOML file such as

        algorithm = ["ddqn", "rtd_dqn"]
        seeds = 5
        [settings]
        episodes = 500
        hidden = [[64, 64]]                # one value, a list of two layers
        learning_rate = [1e-3, 3e-4]       # an axis of two values

    A list is an axis, anything else is fixed: every combination is a trial.

    With trials = N, N trials are drawn at random, from lists and from ranges

        learning_rate = {low = 1e-4, high = 1e-2, log = true}

    The same command goes on with a sweep that was stopped, or whose SPEC changed.

    deeprok sweep spec.toml --out runs/sweep

    deeprok sweep spec.toml --out runs/sweep --executor ray --address auto
    """

    spec: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC")]
    """TOML file: what to try."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: runs/NAME of SPEC)")] = None
    """Folder of the sweep: a folder of seeds for each trial, and a summary, sweep.json."""
    executor: Literal["local", "ray"] = "local"
    """Processes of this machine, or tasks of a Ray cluster (needs the extra ray)."""
    jobs: Annotated[int | None, JOBS] = None
    """Processes at once on this machine."""
    address: Annotated[str | None, ADDRESS] = None
    """A Ray cluster: host:port, or auto for the one that this machine belongs to."""
    cpus: float = 1.0
    """Cores that Ray keeps for each group of seeds that is trained together."""
    gpus: float = 0.0
    """Accelerators that Ray keeps for it."""
    memory: Annotated[float, tyro.conf.arg(metavar="GB", help_behavior_hint="(default: any)")] = 0.0
    """Memory that Ray keeps for it."""
    trackers: Annotated[Trackers, tyro.conf.arg(name="")] = dataclasses.field(default=Trackers())


def run(words: Sequence[str]) -> int:
    """Runs the command; its exit code is 2 if a trial failed."""
    options = parse_options(Sweep, words, "sweep")
    out = options.out or Path("runs") / options.spec.stem
    resources, trackers = Resources(options.cpus, options.gpus, options.memory), options.trackers.names()
    spec = read_spec(options.spec)
    executor = make_executor(out, options.executor, options.address, options.jobs, resources)
    try:
        found = run_sweep(spec, out, executor, streams.err, on_interrupt, trackers)
    except KeyboardInterrupt:
        sentence = "stopped; what was trained is saved, go on with the same command"
        streams.err.print(sentence, highlight=False, markup=False, soft_wrap=True)
        raise
    _print(found)
    failed = found.in_state("failed")
    for each in failed:
        streams.err.print(f"{each.folder}: {each.problem}", highlight=False, markup=False, soft_wrap=True)
    return 2 if failed else 0


def _print(found: SweepResult) -> None:
    names = list(found.trials[0].trial.varies)
    table = Table(*names, "state", "folder", box=None, header_style="bold")
    for each in found.trials[:_MOST_ROWS]:
        values = [Text(str(value)) for value in each.trial.varies.values()]
        table.add_row(*values, each.state, Text(each.folder.name))
    streams.out.print(table)
    if len(found.trials) > _MOST_ROWS:
        streams.out.print(f"and {len(found.trials) - _MOST_ROWS} more trials", highlight=False)
    counts = [f"{len(its)} {state}" for state in ("finished", "failed", "unfinished") if (its := found.in_state(state))]
    streams.out.print(
        f"{' · '.join(counts)}; all of them: {found.out / SUMMARY}", highlight=False, markup=False, soft_wrap=True
    )


def options() -> set[str]:
    """The names of its options."""
    return option_names(Sweep, Trackers)
