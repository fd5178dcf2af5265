"""The command line.

Errors that a user can act on come as one sentence, with exit code 2.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from rich.table import Table
from rich.text import Text

from deeprok import jobs, runs
from deeprok.calibration import calibrate
from deeprok.config import ALGORITHMS, ESTIMATOR_KINDS, Config, Preset, make_config
from deeprok.console import WordConsole
from deeprok.errors import DeeprokError, unknown
from deeprok.evaluation import PolicyKind, evaluate
from deeprok.experiments.kalman import study_filters
from deeprok.experiments.paper import reproduce
from deeprok.experiments.table1 import study_systems
from deeprok.export import Format, export_policy
from deeprok.options import mistakes, option_names
from deeprok.progress import fraction_bar, training_line
from deeprok.report.evaluation import check_figure, draw_evaluation, print_evaluation
from deeprok.runs import Keep
from deeprok.trainer import progress_of
from deeprok.training import make_program
from deeprok.worlds import WORLDS

# Results go to standard output, everything else to standard error.
_out = WordConsole(width=None if sys.stdout.isatty() else 160)
_err = WordConsole(stderr=True)

# How long the main thread may take to notice that it is to stop at once.
_LEAVE_SECONDS = 1.0

_PATH = tyro.conf.arg(metavar="PATH")
_COUNT = tyro.conf.arg(metavar="N")
_JOBS = tyro.conf.arg(metavar="N", help_behavior_hint="(default: one for each core)")
_Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class Train:
    """Train an agent on an uncertain world."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    seeds: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: one run, in --out)")] = None
    """Train N seeds, from --seed on; --out then holds a run folder for each: seed-0, seed-1, …"""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(default: runs/ALGORITHM)")] = None
    """New folder for the run."""
    jobs: Annotated[int | None, _JOBS] = None
    """Processes at once."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run, or a folder of seeds, with the settings it has."""

    resume: Annotated[Path, _PATH]
    """Run folder, or folder of seeds."""
    jobs: Annotated[int | None, _JOBS] = None
    """Processes at once."""


@dataclass(frozen=True)
class Evaluate:
    """Play trained policies on a grid of physics: a map of where they work."""

    run: _Run
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


@dataclass(frozen=True)
class Calibrate:
    """Compare the posterior's intervals for Q with what the greedy policy earns."""

    run: _Run
    """A run folder, or a folder of seeds, of an agent with a nominal label and a posterior (ekf_dqn)."""
    states: int = 200
    """States visited by the greedy policy, for each seed."""
    models: int = 32
    """Models of the run's box that returns are averaged over."""
    keep: Keep = "last"
    """The weights that did best on held-out models while training, or the last ones."""
    seed: int = 0
    """Seed of the simulation's random numbers."""
    json: bool = False
    """Print one JSON object instead of a table."""


@dataclass(frozen=True)
class Export:
    """Write a trained policy for use elsewhere, checked to act as the agent does."""

    run: _Run
    """A run folder; of a folder of seeds the run that did best on held-out models is taken."""
    out: Annotated[Path, _PATH]
    """File to write; its folder is made if there is none."""
    format: Format = "json"
    """A small JSON of layers and weights, or ONNX (needs the extra: pip install 'deeprok[onnx]')."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""


@dataclass(frozen=True)
class Reproduce:
    """Train the paper's agents on the uncertain Cart-Pole with many seeds, and compare them with references.

    Prints a table and writes a page with figures, and results.json. What is already in the folder
    is not done again: an interrupted call goes on where it was, and one with more seeds adds to it.
    """

    seeds: Annotated[int, _COUNT] = 5
    """Seeds of each agent, from 0 on."""
    study: Literal["paper", "kalman", "table1"] = "paper"
    """The paper's experiment; the Kalman family: structures, exploration, confidence, calibration; or the systems of
    the paper's Table 1 beside each other. The latter two take an hour or more."""
    preset: Preset = "tuned"
    """The paper's settings, or the best found."""
    full: bool = False
    """Both presets, ablations, tuning, ensembles and stable-baselines3 (needs 'deeprok[bench]'): hours, not minutes."""
    out: Annotated[Path, _PATH] = Path("reproduce")
    """Folder for runs, page and figures."""
    resume: bool = False
    """Refuse to begin anew, should the folder not be there."""
    episodes: Annotated[int, _COUNT] = 500
    """Test episodes in each cell of the grid."""
    jobs: Annotated[int | None, _JOBS] = None
    """Processes at once."""


def _train(words: Sequence[str]) -> None:
    options_given = [word.partition("=")[0] for word in words if word.startswith("-")]
    if "--resume" in options_given:
        for name in options_given:
            if name not in ("--resume", "--jobs", "-h", "--help"):
                raise DeeprokError(f"{name} can't be given with --resume: a run goes on with the settings it has")
        resumed = tyro.cli(Resume, args=words, prog="deeprok train")
        _train_runs(resumed.resume, runs.find(resumed.resume), resumed.jobs, jobs.resume)
        return
    if not words or words[0] in ("-h", "--help"):
        _train_help()
        return
    algorithm = words[0]
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    options = _parse_train(algorithm, words[1:])
    if options.seeds is not None and options.seeds < 1:
        raise DeeprokError(f"seeds is {options.seeds}; it must be at least 1")
    out, first = options.out or Path("runs") / algorithm, options.config.seed
    seeds = None if options.seeds is None else range(first, first + options.seeds)
    folders = jobs.create(options.config, out, seeds, options.jobs)
    _train_runs(out, folders, options.jobs, jobs.begin)


def _parse_train(algorithm: str, words: Sequence[str]) -> Train:
    """Reads options whose defaults depend on the preset, which is one of them."""
    chosen = {"preset": "tuned", "world": "cartpole"}
    for word, following in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name in ("--preset", "--world"):
            chosen[name.removeprefix("--")] = value if equals else following
    base = make_config(algorithm, **chosen)
    own = {field.name for field in dataclasses.fields(base.estimator)}
    others = {field.name for kind in ESTIMATOR_KINDS.values() for field in dataclasses.fields(kind)} - own
    for word in words:
        if word.partition("=")[0].removeprefix("--").replace("-", "_") in others and word.startswith("--"):
            raise DeeprokError(f"{word} is not a setting of {algorithm}, whose estimator is {base.row.estimator}")
    return tyro.cli(
        Train,
        args=words,
        prog=f"deeprok train {algorithm}",
        description=f"Train {algorithm}: {ALGORITHMS[algorithm].summary}.",
        default=Train(config=base),
        config=(tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes),
    )


def _train_runs(name: Path, folders: Sequence[Path], count: int | None, train: Callable[..., None]) -> None:
    jobs.check_count(count)
    configs = {folder: runs.read_config(folder) for folder in folders}
    done = {folder: progress_of(folder)[1] for folder in folders}
    if all(done[folder] >= config.episodes for folder, config in configs.items()):
        _err.print(f"{name} is finished: nothing to do", highlight=False, markup=False)
    else:
        for warning in {config.warning() for config in configs.values()} - {None}:
            _err.print(f"[yellow]warning:[/yellow] {warning}", highlight=False, soft_wrap=True)
        try:
            with training_line(_err, configs, done) as report:
                train(folders, count, report, on_interrupt)
        except KeyboardInterrupt:
            _err.print(
                f"stopped; all is saved, go on with: deeprok train --resume {name}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            raise
    table = Table("run", "episodes", "steps", "last return", "best trial", box=None, header_style="bold")
    for folder in folders:
        lines = runs.read_metrics(folder)
        steps, episodes = progress_of(folder)
        recent = [x for line in lines[-5:] for x in line["returns"]]
        trials = [line["trial_return"] for line in lines if "trial_return" in line]
        table.add_row(
            Text(str(folder)),
            str(episodes),
            f"{steps:,}",
            f"{np.mean(recent):.1f}" if recent else "–",
            f"{max(trials):.1f}" if trials else "–",
        )
    _out.print(table)
    _out.print(f"map where it works with: deeprok evaluate {name}", highlight=False, markup=False, soft_wrap=True)


def on_interrupt(count: int) -> None:
    """Says at once that Ctrl-C was seen; the second time the process ends soon, whatever it is computing."""
    if count == 1:
        _err.print("stopping after this chunk …; Ctrl-C again to stop at once, at the last checkpoint", soft_wrap=True)
    elif count == 2:
        timer = threading.Timer(_LEAVE_SECONDS, _leave)
        timer.daemon = True
        timer.start()


def _leave() -> None:
    _err.show_cursor()
    os._exit(130)


def _train_help() -> None:
    _out.print(
        "usage: deeprok train ALGORITHM [--preset tuned|paper] [--seed 0] [--seeds N]\n"
        "                     [--out DIR] [any setting]\n"
        "       deeprok train --resume DIR\n",
        highlight=False,
        markup=False,
    )
    for sentence in (
        "Train an agent on an uncertain world, or go on with a run. Ctrl-C leaves a run that can be resumed.\n",
        "'deeprok train deep_rok --help' lists every setting, with its value for that algorithm.\n",
    ):
        _out.print(sentence, highlight=False, soft_wrap=True)
    _algorithms([])


def _evaluate(words: Sequence[str]) -> None:
    options = tyro.cli(Evaluate, args=words, prog="deeprok evaluate")
    arguments = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    folder, plot, as_json = (arguments.pop(name) for name in ("run", "plot", "json"))
    if plot:
        config = runs.read_config(runs.find(folder)[0])
        world = config.make_world()
        names = options.grid.split(",") if options.grid else config.make_box(world)
        check_figure(plot, [name.partition("=")[0] for name in names])
    with fraction_bar(_err, "evaluating") as advance:
        result = evaluate(folder, **arguments, advance=advance)
    if plot:
        draw_evaluation(result, world, plot)
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    print_evaluation(result, _out)
    where = folder if (folder / runs.CONFIG).exists() else folder / "seed-*"
    _out.print(f"kept in {where / result.file}", highlight=False, markup=False, soft_wrap=True)
    if plot:
        _out.print(f"plot: {plot}", highlight=False, markup=False, soft_wrap=True)


def _calibrate(words: Sequence[str]) -> None:
    options = tyro.cli(Calibrate, args=words, prog="deeprok calibrate")
    with fraction_bar(_err, "simulating"):
        found = calibrate(options.run, options.states, options.models, options.keep, options.seed)
    if options.json:
        print(json.dumps(found.to_dict()))
        return
    low, high, seeds = min(found.temperature), max(found.temperature), len(found.temperature)
    table = Table(title=f"{found.points} values of Q, {seeds} seed{'s' if seeds > 1 else ''}", title_justify="left")
    for heading in ("interval claims", "holds", "holds with the temperature of the other seeds"):
        table.add_column(heading, justify="right")
    for i, level in enumerate(found.levels):
        scaled = f"{100 * found.calibrated[i]:.0f} %" if found.calibrated else "– (one seed)"
        table.add_row(f"{100 * level:.0f} %", f"{100 * found.coverage[i]:.0f} %", scaled)
    _out.print(table)
    _out.print(
        f"standard deviation claimed {found.deviation:.3g}, error of the mean {found.error:.3g}", highlight=False
    )
    _out.print(f"temperature, what deviations should be multiplied by: {low:.3g} – {high:.3g}", highlight=False)


def _export(words: Sequence[str]) -> None:
    options = tyro.cli(Export, args=words, prog="deeprok export")
    folders = runs.find(options.run)
    config = runs.read_config(folders[0])
    with config.arithmetic():
        program = make_program(config)
        folder = max(folders, key=lambda path: runs.best_trial(path, program))
        theta = program.estimator.mean(runs.load_belief(folder, program, options.keep))
        export_policy(program.network, np.asarray(theta), program.world, options.format, options.out, config.algorithm)
    _out.print(f"{folder} ({options.keep} weights) → {options.out}", highlight=False, markup=False, soft_wrap=True)


def _algorithms(words: Sequence[str]) -> None:
    _no_options("algorithms", words)
    table = Table("name", "label", "estimator", "acts on", "what it is", box=None, header_style="bold")
    for name, row in ALGORITHMS.items():
        label = ("worst case" if row.robust else "nominal") + (", double" if row.double else "")
        table.add_row(name, label, row.estimator, row.acting or "as set", row.summary)
    _out.print(table)


def _worlds(words: Sequence[str]) -> None:
    _no_options("worlds", words)
    for name, make in WORLDS.items():
        world = make()
        table = Table(
            "parameter",
            "nominal",
            "box",
            "unit",
            "what it is",
            box=None,
            header_style="bold",
            title=name,
            title_justify="left",
        )
        for field in dataclasses.fields(world.nominal):
            box = world.box.get(field.name)
            table.add_row(
                field.name,
                f"{getattr(world.nominal, field.name):g}",
                f"{box[0]:g} – {box[1]:g}" if box else "",
                field.metadata["unit"],
                field.metadata["meaning"],
            )
        _out.print(table)


def _no_options(command: str, words: Sequence[str]) -> None:
    if words and words[0] not in ("-h", "--help"):
        raise DeeprokError(f"{command} takes no options, but '{words[0]}' was given")


def _reproduce(words: Sequence[str]) -> None:
    options = tyro.cli(Reproduce, args=words, prog="deeprok reproduce")
    arguments = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    run: Callable[..., Any] = reproduce
    if (study := arguments.pop("study")) != "paper":
        if arguments.pop("full") or arguments.pop("preset") != "tuned":
            raise DeeprokError(f"study is {study}, which takes neither --full nor --preset paper")
        run = {"kalman": study_filters, "table1": study_systems}[study]
    try:
        run(processes=arguments.pop("jobs"), **arguments, console=_err, results=_out)
    except KeyboardInterrupt:
        _err.print("stopped; all is saved, the same command goes on", highlight=False)
        raise


def _solve(words: Sequence[str]) -> None:
    from deeprok.solve_cli import run_solve  # which takes a moment that no other command needs

    run_solve(words, _out, _err)


def _problems(words: Sequence[str]) -> None:
    _no_options("problems", words)
    from deeprok.solve_cli import run_problems

    run_problems(_out)


def _solve_options() -> set[str]:
    from deeprok.solve_cli import Solve

    return option_names(Solve)


class Command(NamedTuple):
    """A word of the command line."""

    run: Callable[[Sequence[str]], None]
    summary: str
    options: Callable[[], Iterable[str]] = tuple  # that there are, for those who mistype one


COMMANDS: dict[str, Command] = {
    "train": Command(
        _train,
        "train an agent, or go on with a run",
        partial(option_names, Train, Resume, Config, *ESTIMATOR_KINDS.values()),
    ),
    "evaluate": Command(_evaluate, "map where a trained policy works", partial(option_names, Evaluate)),
    "calibrate": Command(_calibrate, "check the posterior's intervals for Q", partial(option_names, Calibrate)),
    "export": Command(_export, "write a policy as JSON or ONNX", partial(option_names, Export)),
    "reproduce": Command(
        _reproduce, "the paper's experiment, with table and figures", partial(option_names, Reproduce)
    ),
    "solve": Command(_solve, "solve a robust MDP exactly", _solve_options),
    "problems": Command(_problems, "list the problems that solve knows, and their parameters"),
    "algorithms": Command(_algorithms, "list the algorithms"),
    "worlds": Command(_worlds, "list the worlds, their parameters and boxes"),
}


def _help() -> None:
    _out.print(
        "[bold]deeprok[/bold]: reinforcement learning that keeps working when the world differs from the model\n"
    )
    _out.print("usage: deeprok COMMAND [OPTIONS]   ('deeprok COMMAND --help' tells more)\n", highlight=False)
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(f"[bold]{name}[/bold]", command.summary)
    _out.print(table)
    _out.print("\nfirst steps:", highlight=False)
    for line in ("deeprok train deep_rok --out runs/rok", "deeprok evaluate runs/rok"):
        _out.print(f"  {line}", highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] in ("-h", "--help"):
            _help()
        elif words[0] == "--version":
            from deeprok import __version__

            print(__version__)
        elif words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS)
        else:
            command = COMMANDS[words[0]]
            with mistakes(words[1:], command.options):
                command.run(words[1:])
    except DeeprokError as error:
        _err.print(f"deeprok: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        return 0
    return 0
