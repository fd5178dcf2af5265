"""`deeprok train`: train an agent, or resume a run."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.table import Table
from rich.text import Text

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.learner import LEARNERS
from deeprok.agents.network import NETWORKS
from deeprok.agents.targets import TARGETS
from deeprok.cli import algorithms, streams
from deeprok.cli.options import JOBS, PATH, mistakes, option_names, parse_options
from deeprok.cli.trackers import Trackers
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, HostEnvironment
from deeprok.estimators import ESTIMATORS
from deeprok.identification.result import settings_from
from deeprok.runs import folder as runs
from deeprok.runs.metrics import failures
from deeprok.runs.parts import SECTIONS
from deeprok.runs.preset_file import is_preset_file, read_preset
from deeprok.runs.run_settings import RunSettings
from deeprok.runs.settings import Config, make_config, other_limit
from deeprok.training import jobs
from deeprok.training.loop import is_finished, progress_of, step_of_best
from deeprok.training.players import where_resumed
from deeprok.training.progress import training_line
from deeprok.uncertainty.models import example_range

_PARTS: tuple[Mapping[str, Any], ...] = (ENVIRONMENTS, NETWORKS, LEARNERS, TARGETS, ESTIMATORS)

# How long the main thread may take to notice that it is to stop at once.
_LEAVE_SECONDS = 1.0


@dataclass(frozen=True)
class Train:
    """Seeds, output folder and processes."""

    seeds: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: one run, in --out)")] = None
    """Train N seeds, from --seed on; --out then holds a run folder for each: seed-0, seed-1, …"""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(default: runs/ALGORITHM)")] = None
    """New folder for the run."""
    jobs: Annotated[int | None, JOBS] = None
    """Processes at once."""


_OWN = tyro.conf.arg(metavar="N", help_behavior_hint="(default: the run's)")


@dataclass(frozen=True)
class Resume:
    """Go on with a run, or a folder of seeds, with the settings it has; with a longer budget, if one is given."""

    resume: Annotated[Path, PATH]
    """Run folder, or folder of seeds."""
    episodes: Annotated[int | None, _OWN] = None
    """Episodes to train for, more than are done; given alone, it replaces a limit of steps."""
    steps: Annotated[int | None, _OWN] = None
    """Environment steps to train for, more than are done; given alone, it replaces a limit of episodes."""
    jobs: Annotated[int | None, JOBS] = None
    """Processes at once."""
    trackers: Annotated[Trackers, tyro.conf.arg(name="")] = dataclasses.field(default=Trackers())


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options_given = [word.partition("=")[0] for word in words if word.startswith("-")]
    if "--resume" in options_given:
        for name in options_given:
            if name not in (*option_names(Resume, Trackers), "-h", "--help"):
                raise DeeprokError(
                    f"{name} can't be given with --resume: a run goes on with the settings it has, but for a longer "
                    "budget, --episodes or --steps"
                )
        resumed = parse_options(Resume, words, "train")
        jobs.check_count(resumed.jobs)
        trackers = resumed.trackers.names()
        folders = runs.find(resumed.resume)
        _extend(resumed, folders)
        _train_runs(resumed.resume, folders, resumed.jobs, jobs.resume, trackers)
        return
    if not words or words[0] in ("-h", "--help"):
        _train_help()
        return
    config, options, asked = _parse(words[0], _with_identified(words[0], words[1:]))
    if options.seeds is not None and options.seeds < 1:
        raise DeeprokError(f"seeds is {options.seeds}; it must be at least 1")
    out = options.out or Path("runs") / words[0].rpartition(":")[2]
    seeds = None if options.seeds is None else range(config.seed, config.seed + options.seeds)
    trackers = asked.names()
    folders = jobs.create(config, out, seeds, options.jobs)
    _train_runs(out, folders, options.jobs, jobs.begin, trackers)


def _extend(options: Resume, folders: Sequence[Path]) -> None:
    """Gives runs the budget that was asked for, if one was, and says what that changes."""
    if options.episodes is None and options.steps is None:
        return
    before = {folder: runs.read_config(folder) for folder in folders}
    settled = [folder for folder, config in before.items() if config.settle and is_finished(folder, config)]
    jobs.extend(folders, options.episodes, options.steps)
    config = runs.read_config(folders[0])
    if config == before[folders[0]]:
        return
    limits = [f"{limit} {name}" for name in ("episodes", "steps") if (limit := getattr(config, name))]
    said = (
        f"{options.resume} goes on to {' or '.join(limits)}; schedules that are fractions of the budget are those of "
        "the new one from here on"
    )
    if settled:
        said += "; it goes on from the weights that it had settled on"
    streams.err.print(said, highlight=False, markup=False, soft_wrap=True)


def _with_identified(algorithm: str, words: Sequence[str]) -> Sequence[str]:
    """The options with what a file of identified parameters holds in its place, so that runs do not depend on it.

    Options that are given beside it come before what it holds.
    """
    rest = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name in ("models", "box"):
        option = f"--{name}"
        file = dict(itertools.pairwise(rest)).get(option, "")
        if not file.endswith(".json"):
            if Path(file).suffix and os.path.isfile(file):  # of a text that can't be a path it says no
                raise DeeprokError(f"{name} is {file}; a file of identified parameters ends with .json")
            continue
        env = dict(itertools.pairwise(rest)).get("--env", ALGORITHMS[algorithm].env)
        at = rest.index(option)
        del rest[at : at + 2]
        for setting, text in settings_from(file, env, name).items():
            own = f"--{setting.replace('_', '-')}"
            rest += [] if own in rest else [own, text]
    return rest


def _parse(algorithm: str, words: Sequence[str]) -> tuple[Config, Train, Trackers]:
    """Reads options whose names and defaults depend on the preset and the parts, which are options too."""
    given = {}
    for word, following in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        given[name.removeprefix("--")] = value if equals else following
    first: dict[str, Any] = {name: given[name] for name in ("preset", "env", "network") if name in given}
    env = given.get("env", Config.env)
    if is_preset_file(file := given.get("preset")):
        env = given.get("env", read_preset(file).env)
        words = _without_option("--preset", words)
    # Without these a simulator may be refused.
    own = {field.name for field in dataclasses.fields(ENVIRONMENTS.find(env, "env").settings)}
    first |= {name: given[name] for name in ("box", "branching") if name in given and name in ("box", *own)}
    base = make_config(algorithm, **first)
    no_limit: dict[str, Any] = other_limit({name: value for name, value in given.items() if value != "0"})
    base = dataclasses.replace(base, **no_limit)
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in _settings_of_others(base):
            more = f"'deeprok train {algorithm} --help' lists those that it has"
            raise DeeprokError(f"{word.partition('=')[0]} is not a setting of {algorithm} on {base.env}; {more}")
    own = option_names(*(type(record) for name in SECTIONS if (record := getattr(base, name)) is not None))
    with mistakes(words, lambda: options() | own):  # the user's own parts have options that no list knows
        parsed = parse_options(
            _options(base),
            words,
            f"train {algorithm}",
            description=f"{base.row.summary}.",
            config=(tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes),
        )
    groups = dict(vars(parsed))
    training, trackers = groups.pop("training"), groups.pop("trackers")
    settings = {name: value for record in groups.values() for name, value in vars(record).items()}
    return base.replace(**settings), training, trackers


def _without_option(option: str, words: Sequence[str]) -> list[str]:
    """The words without an option and its value."""
    kept, skips = list[str](), False
    for word in words:
        if not skips and word.partition("=")[0] != option:
            kept.append(word)
        skips = not skips and word == option
    return kept


def _options(base: Config) -> Any:
    """The command's options in groups: those of `Train` and of trackers, of every run, and of the parts of this one."""
    run = RunSettings(**{field.name: getattr(base, field.name) for field in dataclasses.fields(RunSettings)})
    groups: dict[str, Any] = {"training": Train(), "trackers": Trackers(), "run": run}
    groups |= {name: getattr(base, name) for name in SECTIONS}
    fields = [
        ("network" if name == "layers" else name, type(record), dataclasses.field(default=record))
        for name, record in groups.items()
        if record is not None and dataclasses.fields(record)
    ]
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def _settings_of_others(config: Config) -> set[str]:
    """The settings that built-in parts have and this run has not."""
    every = {f.name for kind in _PARTS for part in kind.values() for f in dataclasses.fields(part.settings)}
    return every - set(config.flat()) - {field.name for kind in (Train, Trackers) for field in dataclasses.fields(kind)}


def _train_runs(
    name: Path, folders: Sequence[Path], count: int | None, train: Callable[..., None], trackers: Sequence[str] = ()
) -> None:
    jobs.check_count(count)
    configs = {folder: runs.read_config(folder) for folder in folders}
    done = {folder: progress_of(folder) for folder in folders}

    def finished() -> bool:
        return all(is_finished(folder, config) for folder, config in configs.items())

    if finished():
        for folder in folders:
            runs.verify_checkpoint(folder)
        streams.err.print(f"{name} is finished: nothing to do", highlight=False, markup=False)
    else:
        for folder, config in configs.items():
            if isinstance(config.make_env(), HostEnvironment) and done[folder][0] and not is_finished(folder, config):
                said = f"{folder} goes on {where_resumed(config, folder / runs.CHECKPOINT)}"
                streams.err.print(said, highlight=False, markup=False, soft_wrap=True)
        for warning in {config.make_learner().warning for config in configs.values()} - {None}:
            streams.err.print(f"[yellow]warning:[/yellow] {warning}", highlight=False, soft_wrap=True)
        try:
            with training_line(streams.err, configs, done) as report:
                train(folders, count, report, on_interrupt, trackers=trackers)
        except KeyboardInterrupt:
            if not finished():  # it may have come with the last chunk
                said = (
                    "all is saved" if any(progress_of(folder)[0] for folder in folders) else "nothing was trained yet"
                )
                sentence = f"stopped; {said}, resume with: deeprok train --resume {name}"
                streams.err.print(sentence, highlight=False, markup=False, soft_wrap=True)
                raise
    table = Table("run", "episodes", "steps", "last return", "best weights", "trial", box=None, header_style="bold")
    for folder in folders:
        lines = runs.read_metrics(folder)
        steps, episodes = progress_of(folder)
        recent = [x for line in lines[-5:] for x in line["returns"]]
        trials = {line["steps"]: line["trial_return"] for line in lines if "trial_return" in line}
        best = step_of_best(folder)
        if best and configs[folder].searches:  # which had the best weights tried again
            with configs[folder].arithmetic():
                trials[best] = runs.best_trial(folder, configs[folder].make_learner())
        table.add_row(
            Text(str(folder)),
            str(episodes),
            f"{steps:,}",
            f"{np.mean(recent):.1f}" if recent else "–",
            f"step {best:,}" if best else "–",
            f"{trials[best]:.1f}" if best in trials else "–",
        )
        if said := failures(lines):
            streams.err.print(f"{folder}: {said}", highlight=False, markup=False, soft_wrap=True)
    streams.out.print(table)
    config = configs[folders[0]]
    which = f"the worst {100 * config.trial_tail:g} % of " if config.trial_tail < 1 else ""
    more = " and those that the adversary has found" if config.searches else ""
    streams.out.print(
        f"the best weights are those that evaluate takes; trial: their mean return on {which}{config.trial_models} "
        f"held-out models{more}",
        highlight=False,
        soft_wrap=True,
    )
    if config.searches:
        _print_found(folders, config)
    env = config.make_env()
    grid = "" if config.make_box(env) else f" --grid {example_range(env.nominal)}:7"
    advice = f"map where it works with: deeprok evaluate {name}{grid}"
    if not dataclasses.fields(env.nominal):  # nothing that a map would vary
        advice = f"take the policy elsewhere with: deeprok export {name} --out policy.json"
    streams.out.print(advice, highlight=False, markup=False, soft_wrap=True)


def _print_found(folders: Sequence[Path], config: Config) -> None:
    """Prints what the searches of an adversary have found, each for the policy of its time."""
    names = list(config.make_box(config.make_env()))
    columns = ("run", "searched at", "success", "return", *names, "joined")
    table = Table(*columns, box=None, header_style="bold", title="worst models found", title_justify="left")
    for folder in folders:
        for line in (line for line in runs.read_metrics(folder) if "found_at" in line):
            table.add_row(
                Text(str(folder)),
                f"step {line['found_at']:,}",
                f"{100 * line['found_success']:.0f} %",
                f"{line['found_return']:.1f}",
                *(f"{line[f'found_{name}']:.3g}" for name in names),
                "yes" if line["found_joined"] else "no, the set had one as bad",
            )
    if table.row_count:
        streams.out.print(table)
    else:
        streams.out.print("the budget was too short for a search of the adversary", highlight=False, soft_wrap=True)


def on_interrupt(count: int) -> None:
    """Says at once that Ctrl-C was seen; the second time the process ends soon, whatever it is computing."""
    if count == 1:
        streams.err.print(
            "stopping after this chunk …; Ctrl-C again to stop at once, at the last checkpoint", soft_wrap=True
        )
    elif count == 2:
        timer = threading.Timer(_LEAVE_SECONDS, _leave)
        timer.daemon = True
        timer.start()


def _leave() -> None:
    streams.err.show_cursor()
    os._exit(130)


def _train_help() -> None:
    streams.out.print(
        "usage: deeprok train ALGORITHM [--preset default|paper|tuned|FILE] [--seed 0]\n"
        "                     [--seeds N] [--out DIR] [any setting]\n"
        "       deeprok train --resume DIR [--episodes N | --steps N]\n",
        highlight=False,
        markup=False,
    )
    for sentence in (
        "Train an agent on an uncertain environment, or resume a run. Ctrl-C leaves a run that can be resumed.\n",
        "'deeprok train deep_rok --help' lists every setting, with its value for that algorithm.\n",
    ):
        streams.out.print(sentence, highlight=False, soft_wrap=True)
    algorithms.run([])


def options() -> set[str]:
    """The names of its options."""
    parts = (part.settings for kind in _PARTS for part in kind.values())
    return option_names(Train, Resume, Trackers, RunSettings, *parts)
