"""What every study does: train what is missing, examine it, and compare it with references.

Whatever is finished stays in the folder, run by run, so that a later call adds to it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from deeprok.agents.network import QNetwork
from deeprok.core.errors import DeeprokError
from deeprok.core.files import write_atomically
from deeprok.environments import cartpole
from deeprok.evaluation.grid import PAPER_GRID, draw_members, network_policy
from deeprok.plot import save
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.training import jobs
from deeprok.training.loop import progress_of
from deeprok.training.scan import make_program
from deeprok.uncertainty.models import parse_grid
from studies.exam import EPSILON, Exam, Scores, Snapshots, make_examiner, read_scores
from studies.plan import Row, Study
from studies.references import Controller, make_linear_policy, search_linear
from studies.results import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

#: Called with what is being done and how much of the work it was.
Done = Callable[[str, float], None]

_MEMBERS = 20  # of an ensemble drawn from a posterior

# What parts of the work take, in seconds on one core: for the time left, where only ratios matter.
_TRAINING = {"gradient": 6.0, "kalman": 30.0, "backprop": 15.0, "langevin": 15.0, "unscented": 60.0, "policy": 5.0}
EXAM = 4.0
REFERENCE = 8.0


class Run(NamedTuple):
    """One seed of one row."""

    row: Row
    seed: int
    folder: Path
    exam: Exam

    @property
    def scores(self) -> Path:
        """The file of its scores."""
        return self.folder / f"scores-{self.row.policy}-{'-'.join(map(str, self.exam))}.json"

    def read_scores(self) -> Scores:
        """What its exam gave."""
        return read_scores(self.scores, self.exam, self.row.config(self.seed).snapshots)

    @property
    def finished(self) -> bool:
        """Whether it has been trained to the end."""
        return progress_of(self.folder)[1] >= self.row.config(self.seed).episodes


def in_its_folder(study: Callable[P, R]) -> Callable[P, R]:
    """Makes a study check what it is asked for, and refuse a folder in which another one is at work.

    Args:
      study: a function with the arguments `seeds`, `episodes`, `processes`, `out` and `resume`.
    """
    signature = inspect.signature(study)

    @functools.wraps(study)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        asked = given.arguments
        for name in ("seeds", "episodes"):
            if asked[name] < 1:
                raise DeeprokError(f"{name} is {asked[name]}; it must be at least 1")
        jobs.check_count(asked["processes"])
        out = Path(asked["out"])
        if asked["resume"] and not os.path.isdir(out):
            raise DeeprokError(f"there is nothing to go on with in {out}; leave out --resume to begin")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeeprokError(f"can't make the folder {out}: {error.strerror}") from error
        with runs.hold([out]):
            try:
                return study(*args, **kwargs)
            except DeeprokError:
                if os.listdir(out) == [runs.LOCK]:  # nothing was done in it
                    runs.discard_unstarted([out])
                raise

    return checked


def prepare(out: Path, study: Study) -> list[Run]:
    """A study's runs, whose folders are made where they are missing and checked where they are not."""
    prepared = []
    for row in study.rows:
        # An ensemble costs as much as its members together, so it is asked less.
        exam = study.exam if row.policy == "mean" else Exam(max(1, study.exam.grid // 5))
        for seed in study.seeds:
            folder = out / (row.runs or f"{study.name}/{row.name}") / f"seed-{seed}"
            config = row.config(seed)
            if row.prior:
                config = dataclasses.replace(config, prior=str(out / row.prior / folder.name))
            if not (folder / runs.CONFIG).exists():
                runs.create(folder, config)
            elif runs.read_config(folder) != config:
                raise DeeprokError(f"{folder} was trained with other settings; choose another --out or remove it")
            prepared.append(Run(row, seed, folder, exam))
    return prepared


def work(run: Run, examined: bool = True) -> float:
    """What is left to do for a run, which may be examined too."""
    config = run.row.config(run.seed)
    left = 1 - min(1.0, progress_of(run.folder)[1] / config.episodes)
    return left * _TRAINING[config.row.estimator] + (EXAM if examined and not run.scores.exists() else 0.0)


def train(study: str, prepared: Iterable[Run], processes: int | None, done: Done, console: Console) -> None:
    """Trains what has not been trained to the end."""
    configs = {run.folder: run.row.config(run.seed) for run in prepared}
    reached = {folder: progress_of(folder)[1] for folder in configs}
    missing = [folder for folder, config in configs.items() if reached[folder] < config.episodes]
    names = sorted({configs[folder].algorithm for folder in missing})
    what = f"{study}: training {names[0] if len(names) == 1 else f'{len(names)} agents'}"

    def report(folder: Path, line: Mapping[str, Any]) -> None:
        config = configs[folder]
        done(what, (line["episodes"] - reached[folder]) / config.episodes * _TRAINING[config.row.estimator])
        reached[folder] = line["episodes"]

    if missing:
        done(what, 0.0)
        try:
            jobs.resume(missing, processes, report, lambda _: console.print("stopping after this chunk …"))
        except DeeprokError as error:
            # A run that broke down is a result too: it is told, and counted in the tables.
            console.print(str(error), style="yellow", markup=False, soft_wrap=True, highlight=False)


def examine(study: str, prepared: Iterable[Run], processes: int | None, done: Done) -> None:
    """Examines what has no scores yet: in threads, as one compiled program serves all rows."""
    what = f"{study}: examining"

    def one(run: Run) -> None:
        program = make_program(run.row.config(run.seed))
        estimator = program.estimator
        belief = runs.load_belief(run.folder, program, "last")
        weights = draw_members(estimator, belief, run.row.policy, _MEMBERS, run.seed)
        examine = examiner(program.network, run.row.policy, run.exam)
        write_json(run.scores, examine(weights, snapshots(run, program) if run.exam.curve else None))

    missing = [run for run in prepared if run.finished and not run.scores.exists()]
    if missing:
        done(what, 0.0)
        # The first alone, so that what all need is compiled once.
        one(missing[0])
        done(what, EXAM)
        with ThreadPoolExecutor(processes or jobs.count_cores()) as pool:
            wait([pool.submit(one, run) for run in missing[1:]], pool, lambda: done(what, EXAM))


def wait(futures: list[Future[None]], pool: Any, finished: Callable[[], None]) -> None:
    """Waits for all; if one fails or the user interrupts, those not yet begun are dropped."""
    try:
        for future in as_completed(futures):
            future.result()
            finished()
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


@functools.cache
def examiner(network: QNetwork, policy: Any, exam: Exam) -> Callable[..., Scores]:
    """Examines weights of a network, compiled once for all runs that ask the same."""
    # One world for all, whatever reward a run was trained with for the failing step.
    return make_examiner(cartpole(), network_policy(network, policy), exam)


def snapshots(run: Run, program: Any) -> Snapshots:
    """The weights along a run."""
    template = runs.templates(program)[0].snapshots
    weights = checkpoint.load(run.folder / runs.CHECKPOINT, "run.snapshots", template)
    every = run.row.config(run.seed).snapshot_every
    return Snapshots([every * (i + 1) for i in range(len(weights))], np.asarray(weights)[:, None])


def table(study: Study, prepared: Sequence[Run], ceiling: Scores) -> dict[str, Summary]:
    """A study's rows, from the scores that are there; runs that broke down are told."""
    table: dict[str, Summary] = {}
    for row in study.rows:
        its = [run for run in prepared if run.row is row]
        scores = {run.seed: run.read_scores() for run in its if run.scores.exists()}
        if not scores:
            raise DeeprokError(f"no seed of {row.name} in the study {study.name} could be trained to the end")
        table[row.name] = {
            "changes": dict(row.changes),
            "broken": [run.seed for run in its if run.seed not in scores],
            **summarise(scores, ceiling, row.config(0).digest()),
        }
    return table


def paper_grid() -> dict[str, list[float]]:
    """The values of the paper's grid, by parameter."""
    return {name: values.tolist() for name, values in parse_grid(PAPER_GRID, cartpole().nominal).items()}


def references(out: Path, exam: Exam, done: Done) -> dict[str, Scores]:
    """Random play, the best linear policy, and a controller for each cell, which is the ceiling."""
    world = cartpole()
    exam = exam._replace(curve=0)
    examine = make_examiner(world, make_linear_policy(world), exam)
    nothing = np.zeros(len(world.observation_scale))

    def searched() -> np.ndarray:
        return search_linear(world, parse_grid(PAPER_GRID, world.nominal), EPSILON)

    kinds: dict[str, tuple[Callable[[], np.ndarray], bool, float]] = {
        "random": (lambda: nothing, False, 1.0),
        "linear": (searched, False, EPSILON),
        "lqr": (lambda: nothing, True, EPSILON),
    }
    found = {}
    for name, (find, designed, epsilon) in kinds.items():
        path = out / "references" / f"{name}-{'-'.join(map(str, exam))}.json"
        if not path.exists():
            done(f"reference: {name}", 0.0)
            gain = find()
            controller = Controller(gain=jnp.asarray(gain, float), designed=jnp.asarray(designed))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**examine(controller, epsilon=epsilon), "gain": gain.tolist()})
        done(f"reference: {name}", REFERENCE)
        found[name] = read_scores(path, exam, gain=nothing.shape)
    return found


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_atomically(path, (json.dumps(content) + "\n").encode())


def write_report(out: Path, name: str, found: Any, drawn: Mapping[str, Figure], page: str) -> None:
    """A page NAME.md with its figures and numbers in NAME/, laid out as the documentation has it."""
    report = out / "report"
    (report / name).mkdir(parents=True, exist_ok=True)
    for title, figure in drawn.items():
        save(figure, report / name / title)
    write_json(report / name / f"{name}.json", found)
    write_atomically(report / f"{name}.md", page.encode())


def print_report(out: Path, name: str, tables: Iterable[Sequence[Any]], results: Console) -> None:
    """Prints tables, of each a title, a header and its lines, and where the report of `write_report` is."""
    for title, header, *lines in tables:
        table = Table(title=title, title_justify="left", title_style="bold")
        for i, column in enumerate(header):
            table.add_column(column, justify="right" if i else "left")
        for line in lines:
            table.add_row(*line)
        results.print(table)
    for what, path in (("page and figures", f"{name}.md"), ("all numbers", f"{name}/{name}.json")):
        results.print(f"{what}: {out / 'report' / path}", highlight=False, soft_wrap=True)
