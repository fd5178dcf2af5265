"""`deeprok tune`: find settings that suit an algorithm on an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from deeprok.cli import streams
from deeprok.cli.options import JOBS, option_names, parse_options
from deeprok.cli.train import on_interrupt
from deeprok.core.errors import DeeprokError
from deeprok.sweeps.executors import local
from deeprok.training import jobs as processes
from deeprok.tuning.report import print_tuning
from deeprok.tuning.task import Metric, Options, Task, make_task, read_fixed, read_search, searched_dict, space_rows
from deeprok.tuning.tune import run_tuning, usual_folder

_COUNT = tyro.conf.arg(metavar="N")
_WORDS = tyro.conf.arg(metavar="NAME=VALUE", help_behavior_hint="(default: none)")
_SEARCH = tyro.conf.arg(metavar="NAME[=RANGE]", help_behavior_hint="(default: all that --space shows)")


@dataclass(frozen=True)
class Tune:
    """Find settings that suit an algorithm on an environment.

    Settings are tried with short trainings and few seeds first; the best third goes on to longer ones. What is chosen
    in the end is trained with fresh seeds, beside the presets, and tested on models that the search has not used. The
    same command goes on with a tuning that was stopped.

    deeprok tune rtd_dqn --env ferry --budget 20m

    deeprok tune rtd_dqn --env ferry --budget 2h --fix steps=30000 --search learning_rate hidden=[32,32],[64,64]
    """

    algorithm: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGORITHM")]
    """An algorithm that `deeprok algorithms` lists, or your own module:object."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV", help_behavior_hint="(default: the algorithm's)")] = None
    """The environment."""
    budget: Annotated[str | None, tyro.conf.arg(metavar="TIME", help_behavior_hint="(default: no limit)")] = None
    """How long it may take, such as 2h, 1h30m or 20m. This or --trials must be given."""
    trials: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: no limit)")] = None
    """Settings to try, at most."""
    metric: Metric = "worst"
    """The score: the mean return on the worst model, on the worst tenth of them, or over all of them; or success."""
    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "default"
    """The preset that the search begins with, and whose values all other settings have."""
    fix: Annotated[list[str], _WORDS] = field(default_factory=list)
    """Settings that all runs have, also those of the presets that the winner is compared with."""
    search: Annotated[list[str], _SEARCH] = field(default_factory=list)
    """What is tried: NAME, for the part's own range; NAME=LOW:HIGH, NAME=LOW:HIGH:log, or NAME=A,B,C."""
    space: bool = False
    """Show what would be tried, and do nothing."""
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: runs/tune-ALGORITHM-ENV)")
    ] = None
    """Folder of the tuning: its runs, tuning.json, report.md, tuning.png and preset.toml."""
    seeds: Annotated[int, _COUNT] = 3
    """Seeds of the longest rung, and of the finalists."""
    rungs: Annotated[int, _COUNT] = 3
    """How many times settings are trained, each for twice as long as before; the last with all of their budget."""
    finalists: Annotated[int, _COUNT] = 3
    """How many are trained with other seeds, to choose one."""
    fresh: Annotated[int, _COUNT] = 10
    """Fresh seeds of the winner and the presets, for the report."""
    held_out: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 64; in simulators 16)")
    ] = None
    """Models drawn from the box that settings are scored on."""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 10; in simulators 2)")] = (
        None
    )
    """Episodes on each of them."""
    grid: Annotated[str | None, tyro.conf.arg(metavar="GRID", help_behavior_hint="(default: that of evaluate)")] = None
    """Models of the report, as name=low:high:count,…"""
    test_episodes: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 100; in simulators 10)")
    ] = None
    """Episodes on each of these."""
    epsilon: float = 0.1
    """Probability of a random action when policies are scored."""
    seed: int = 0
    """Decides what is tried; trainings have seeds from this one on."""
    jobs: Annotated[int | None, JOBS] = None
    """Processes at once."""
    json: bool = False
    """Print one JSON object, as tuning.json has it, instead of tables."""


def run(words: Sequence[str]) -> int:
    """Runs the command; its exit code is 2 if the winner can't be tested."""
    options = parse_options(Tune, words, "tune")
    given = {name: getattr(options, name) for name in Options._fields}
    if options.space and options.budget is None and options.trials is None:
        given["trials"] = 1
    processes.check_count(options.jobs)
    task = make_task(
        options.algorithm, options.env, read_fixed(options.fix), read_search(options.search), Options(**given)
    )
    if options.space:
        _print_space(task, options.json)
        return 0
    out = options.out or usual_folder(task)
    try:
        found = run_tuning(task, out, local(options.jobs), streams.err, on_interrupt)
    except KeyboardInterrupt:
        sentence = "stopped; what was trained is saved, go on with the same command"
        streams.err.print(sentence, highlight=False, markup=False, soft_wrap=True)
        raise
    if options.json:
        print(json.dumps(found.to_dict()))
    else:
        print_tuning(found, streams.out)
        for sentence in (
            f"all trials and a figure: {out / 'report.md'}",
            f"train with it: deeprok train {options.algorithm} --preset {found.preset_file}",
        ):
            streams.out.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if found.record.winner and not found.record.winner.scored.scores:
        raise DeeprokError(f"the winner failed on fresh seeds: {found.record.winner.scored.problem}")
    return 0


def _print_space(task: Task, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: searched_dict(searched) for name, searched in task.space.items()}))
        return
    table = Table("setting", "what is tried", "preset", "stated by", box=None, header_style="bold")
    for row in space_rows(task):
        table.add_row(*map(Text, row))
    streams.out.print(table)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Tune)
