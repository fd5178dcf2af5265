"""Runs any study: trains what is missing, examines it, compares it with references and writes the report.

Whatever is finished stays in the folder, run by run, so that a later call adds to it.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from deeprok.agents.network import Network
from deeprok.cli.options import ADDRESS, COUNT, JOBS, PATH
from deeprok.core.errors import DeeprokError, DivergedError, joined
from deeprok.core.files import write_atomically
from deeprok.environments import cartpole
from deeprok.evaluation.policies import draw_members, weights_policy
from deeprok.plot import save
from deeprok.report import write_report
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config
from deeprok.sweeps.on_ray import Resources, on_ray
from deeprok.training import jobs
from deeprok.training.advance import Advance
from deeprok.training.loop import OnInterrupt, Report, is_finished, templates
from deeprok.training.progress import work_bar
from deeprok.training.scan import make_program
from deeprok.uncertainty.models import parse_grid
from studies import exam as exams
from studies.exam import EPSILON, PAPER_GRID, Exam, Scores, Snapshots, make_examiner, read_scores
from studies.plan import Comparison, Row
from studies.references import Controller, make_linear_policy, search_linear
from studies.results import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Called with what is being done and how much of the work it was.
Done = Callable[[str, float], None]

#: The numbers of a study, as its JSON file holds them.
Found = dict[str, Any]

#: The page on which the agents of a study run, in its folder.
REPORT = "report.html"

_MEMBERS = 20  # of an ensemble drawn from a posterior

# How long parts of the work take, in seconds on one core. Only their ratios count, for the time left.
_TRAINING, _TRAINING_A_POSTERIOR = 6.0, 30.0
EXAM = 4.0
REFERENCE = 8.0
_SHOWN = 2.0  # a run on the page


@dataclass(frozen=True)
class Options:
    """How a study is run."""

    seeds: Annotated[int, COUNT] = 5
    """Seeds of each agent, from 0 on."""
    preset: Literal["paper", "tuned"] = "tuned"
    """The paper's settings, or the best found."""
    full: bool = False
    """Both presets, ablations, tuning, ensembles and stable-baselines3 (needs the extra bench): hours, not minutes."""
    out: Annotated[Path, PATH] = Path("reproduce")
    """Folder for runs, page and figures."""
    resume: bool = False
    """Refuse to start anew if the folder does not exist."""
    episodes: Annotated[int, COUNT] = 500
    """Test episodes in each cell of the grid."""
    jobs: Annotated[int | None, JOBS] = None
    """Processes at once."""
    executor: Literal["local", "ray"] = "local"
    """Train in processes of this machine, or as tasks of a Ray cluster (needs the extra ray)."""
    address: Annotated[str | None, ADDRESS] = None
    """A Ray cluster: host:port, or auto for the one that this machine belongs to."""

    def check(self) -> None:
        """Raises if a value is out of bounds."""
        for name in ("seeds", "episodes"):
            if getattr(self, name) < 1:
                raise DeeprokError(f"{name} is {getattr(self, name)}; it must be at least 1")
        jobs.check_count(self.jobs)
        if self.address is not None and self.executor == "local":
            raise DeeprokError(f"address is {self.address}, but executor is local; take the executor ray")
        if self.resume and not os.path.isdir(self.out):
            raise DeeprokError(f"there is nothing to resume in {self.out}; leave out --resume to begin")


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
        """The result of its exam."""
        return read_scores(self.scores, self.exam, self.row.config(self.seed).snapshots)

    @property
    def finished(self) -> bool:
        """Whether it has been trained to the end."""
        return is_finished(self.folder, self.row.config(self.seed))


class Session(NamedTuple):
    """What a study has once its comparisons are trained and examined."""

    options: Options
    comparisons: Sequence[Comparison]
    runs: Mapping[str, Sequence[Run]]  # by comparison
    tables: Mapping[str, dict[str, Summary]]  # by comparison, those that are examined
    references: Mapping[str, Scores]
    done: Done

    def finished(self, comparison: str) -> dict[str, list[Run]]:
        """The runs of a comparison that were trained to the end, by row."""
        rows: dict[str, list[Run]] = {run.row.name: [] for run in self.runs[comparison]}
        for run in self.runs[comparison]:
            if run.finished:
                rows[run.row.name].append(run)
        for name, its in rows.items():
            if not its:
                raise _none_finished(name, comparison)
        return rows

    def numbers(self) -> Found:
        """What every study reports: its tables, and how they were measured."""
        ceiling = self.references["lqr"]
        return {
            "format": 1,
            "test_episodes": self.comparisons[0].exam.grid,
            "grid": paper_grid(),
            "conditions": {name: condition.what for name, condition in exams.CONDITIONS.items()},
            "ceiling": summarise({0: ceiling}, ceiling, ""),
            "tables": dict(self.tables),
        }


class Study(NamedTuple):
    """What is compared, what else is measured, and how it is written up: a page NAME.md with figures and NAME.json."""

    name: str
    about: str  # in a line
    compare: Callable[[Options], list[Comparison]]  # the first sets how references are examined; none: nothing trained
    collect: Callable[[Session], Found]  # the numbers, after measuring what no comparison holds
    page: Callable[[Found], str]  # its Markdown
    figures: Callable[[Found], dict[str, Figure]]  # by file name
    tables: Callable[[Found], list[list[Any]]]  # for the terminal: of each a title, a header and its lines
    presets: bool = False  # whether it takes --preset and --full
    more_work: Callable[[Options], float] = lambda _: 0.0  # of `collect`, in the unit of `Done`
    shown: Callable[[Options], Sequence[Path]] = lambda _: ()  # what `report.html` shows: agents, references


def run_study(study: Study, options: Options, console: Console | None = None, results: Console | None = None) -> Found:
    """Runs a study in a folder; what the folder already holds is not done again.

    Args:
      study: the study.
      options: how.
      console: where progress goes.
      results: where the tables go.

    Returns:
      The numbers, as the JSON file holds them.
    """
    console, results = console or Console(stderr=True), results or Console()
    options.check()
    if not study.presets and (options.full or options.preset != "tuned"):
        raise DeeprokError(f"study is {study.name}, which takes neither --full nor --preset paper")
    with runs.own_folder(options.out):
        comparisons = study.compare(options)
        everything = {comparison.name: runs_of(options.out, comparison) for comparison in comparisons}
        # All folders are checked before anything is trained, but for those that need the posteriors of others.
        for prepared in everything.values():
            prepare(options.out, (run for run in prepared if not run.row.prior))
        total = sum(work(run) for prepared in everything.values() for run in prepared)
        total += study.more_work(options) + (3 * REFERENCE if comparisons else 0.0) + _work_of_report(study, options)
        with work_bar(console, total) as done:
            found_references = references(options.out, comparisons[0].exam, done) if comparisons else {}
            tables = {}
            for comparison in comparisons:
                its = everything[comparison.name]
                prepare(options.out, (run for run in its if run.row.prior))
                train(comparison.name, its, options, done, console)
                if comparison.exam.grid:
                    examine(comparison.name, its, options.jobs, done)
                    tables[comparison.name] = table(comparison, its, found_references["lqr"])
            found = study.collect(Session(options, comparisons, everything, tables, found_references, done))
            live = _write_report(study, options, done)
        report = options.out / "report"
        write_json(numbers_file(study, report), found)
        write_page(study, report)
    print_tables(study.tables(found), results)
    for what, path in (
        ("page and figures", report / f"{study.name}.md"),
        ("all numbers", numbers_file(study, report)),
        *((("the agents, live", live),) if live else ()),
    ):
        results.print(f"{what}: {path}", highlight=False, soft_wrap=True)
    return found


def _write_report(study: Study, options: Options, done: Done) -> Path | None:
    """Writes the page on which the agents of a study run, if it has one."""
    # What was measured elsewhere has no runs here.
    shown, work = [path for path in study.shown(options) if path.exists()], _work_of_report(study, options)
    if not shown:
        return None
    # The maps are of the weights that the tables are of, with fewer episodes: a look at them, no measurement.
    episodes = max(1, options.episodes // 5)
    advance = functools.partial(_advance, done, "the page of the agents", work)
    return write_report(shown, options.out / REPORT, keep="last", episodes=episodes, advance=advance)


def _advance(done: Done, what: str, work: float, part: float) -> None:
    done(what, work * part)


def _work_of_report(study: Study, options: Options) -> float:
    return _SHOWN * options.seeds * len(study.shown(options))


def runs_of(out: Path, comparison: Comparison) -> list[Run]:
    """The runs of a comparison, and their folders below `out`."""
    return [
        Run(row, seed, out / (row.runs or f"{comparison.name}/{row.name}") / f"seed-{seed}", comparison.exam_of(row))
        for row in comparison.rows
        for seed in comparison.seeds
    ]


def prepare(out: Path, its: Iterable[Run]) -> None:
    """Makes the folders of runs where they are missing, and checks their settings where they are not."""
    for run in its:
        config = run.row.config(run.seed)
        if run.row.prior:
            config = config.replace(prior=str(out / run.row.prior / run.folder.name))
        runs.ensure(run.folder, config)


def work(run: Run) -> float:
    """What is left to do for a run."""
    config = run.row.config(run.seed)
    left = Advance({run.folder: config}, _training_work).left
    return left + (EXAM if run.exam.grid and not run.scores.exists() else 0.0)


def _training_work(config: Config) -> float:
    return _TRAINING_A_POSTERIOR if config.has_posterior else _TRAINING


def train(comparison: str, prepared: Iterable[Run], options: Options, done: Done, console: Console) -> None:
    """Trains what has not been trained to the end: as `deeprok train` does, or as a sweep does on a Ray cluster."""
    configs = {run.folder: run.row.config(run.seed) for run in prepared}
    advance = Advance(configs, _training_work)
    missing = [folder for folder, config in configs.items() if not is_finished(folder, config)]
    names = sorted({configs[folder].algorithm for folder in missing})
    what = f"{comparison}: training {names[0] if len(names) == 1 else f'{len(names)} agents'}"

    def report(folder: Path, line: Mapping[str, Any]) -> None:
        done(what, advance.since_last(folder, line))

    def on_interrupt(count: int) -> None:
        console.print("stopping after this chunk …")

    if missing:
        done(what, 0.0)
        try:
            if options.executor == "local":
                jobs.resume(missing, options.jobs, report, on_interrupt)
            else:
                _train_on_ray(missing, options, report, on_interrupt)
        except DivergedError as error:
            # That is a result too: it is reported, and counted in the tables. Nothing else that may go wrong is one.
            console.print(str(error), style="yellow", markup=False, soft_wrap=True, highlight=False)


def _train_on_ray(missing: Sequence[Path], options: Options, report: Report, on_interrupt: OnInterrupt) -> None:
    problems: list[DeeprokError] = []
    with on_ray(options.out, options.address, options.jobs, Resources()) as executor:
        groups = jobs.plan(missing, executor.slots)
        executor.train(groups, report, on_interrupt, lambda _, error: problems.extend([error] if error else []))
    if problems:
        raise joined(problems)


def examine(comparison: str, prepared: Iterable[Run], processes: int | None, done: Done) -> None:
    """Examines the runs without scores: in threads, as one compiled program serves all rows."""
    what = f"{comparison}: examining"

    def one(run: Run) -> None:
        program = make_program(run.row.config(run.seed))
        learner = program.learner
        belief = runs.load_belief(run.folder, learner, "last")
        weights = draw_members(learner.view, belief, run.row.policy, _MEMBERS, run.seed)
        examine = examiner(learner.view.network, run.row.policy, run.exam)
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
def examiner(network: Network, policy: Any, exam: Exam) -> Callable[..., Scores]:
    """Examines weights of a network, compiled once for all runs with the same exam."""
    # One environment for all, whatever reward a run was trained with for the failing step.
    env = cartpole()
    return make_examiner(env, weights_policy(network, env.actions, policy), exam)


def snapshots(run: Run, program: Any) -> Snapshots:
    """The weights along a run."""
    template = templates(program)[0].snapshots
    weights = checkpoint.load(run.folder / runs.CHECKPOINT, "run.snapshots", template)
    every = run.row.config(run.seed).snapshot_every
    return Snapshots([every * (i + 1) for i in range(len(weights))], np.asarray(weights)[:, None])


def table(comparison: Comparison, prepared: Sequence[Run], ceiling: Scores) -> dict[str, Summary]:
    """A comparison's rows, from the scores that are there; with the seeds that diverged."""
    table: dict[str, Summary] = {}
    for row in comparison.rows:
        its = [run for run in prepared if run.row is row]
        scores = {run.seed: run.read_scores() for run in its if run.scores.exists()}
        if not scores:
            raise _none_finished(row.name, comparison.name)
        table[row.name] = {
            "algorithm": row.algorithm,
            "preset": row.preset,
            "changes": dict(row.changes),
            "broken": [run.seed for run in its if run.seed not in scores],
            **summarise(scores, ceiling, row.config(0).digest()),
        }
    return table


def _none_finished(row: str, comparison: str) -> DeeprokError:
    return DeeprokError(f"no seed of {row} in the study {comparison} could be trained to the end")


def paper_grid() -> dict[str, list[float]]:
    """The values of the paper's grid, by parameter."""
    return {name: values.tolist() for name, values in parse_grid(PAPER_GRID, cartpole().nominal).items()}


def references(out: Path, exam: Exam, done: Done) -> dict[str, Scores]:
    """Random play, the best linear policy, and a regulator for each cell, called the ceiling."""
    env = cartpole()
    exam = exam._replace(curve=0)
    examine = make_examiner(env, make_linear_policy(env), exam)
    nothing = np.zeros(len(env.observation_scale))

    def searched() -> np.ndarray:
        return search_linear(env, parse_grid(PAPER_GRID, env.nominal), EPSILON)

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
            write_json(path, {**examine(controller, epsilon=epsilon), "gain": gain.tolist()})
        done(f"reference: {name}", REFERENCE)
        found[name] = read_scores(path, exam, gain=nothing.shape)
    return found


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content) + "\n").encode())


def write_page(study: Study, report: Path) -> None:
    """Writes a study's page and figures beside its JSON file: NAME.md, NAME/*.png and NAME/*.svg."""
    found = json.loads(numbers_file(study, report).read_text())
    for title, figure in study.figures(found).items():
        save(figure, report / study.name / title)
    write_atomically(report / f"{study.name}.md", study.page(found).encode())


def numbers_file(study: Study, report: Path) -> Path:
    """The JSON file of a study's numbers, in the folder of its page."""
    return report / study.name / f"{study.name}.json"


def print_tables(tables: Iterable[Sequence[Any]], results: Console) -> None:
    """Prints tables, of each a title, a header and its lines."""
    for title, header, *lines in tables:
        table = Table(title=title, title_justify="left", title_style="bold")
        for i, column in enumerate(header):
            table.add_column(column, justify="right" if i else "left")
        for line in lines:
            table.add_row(*line)
        results.print(table)
