"""The paper's question, asked of many seeds: what do the robust label and the Kalman belief buy?

Trains what is missing, examines it, compares it with references, and writes `results.json`, a page
and figures. Whatever is finished stays in the folder, run by run, so that a later call adds to it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from deeprok import checkpoint, jobs, runs
from deeprok.checkpoint import write_atomically
from deeprok.errors import DeeprokError
from deeprok.evaluation import PAPER_GRID, network_policy
from deeprok.experiments import plan, sb3
from deeprok.experiments.exam import CONDITIONS, EPSILON, LENGTHS, Exam, Scores, Snapshots, make_examiner
from deeprok.experiments.plan import Row, Study
from deeprok.experiments.references import Controller, make_linear_policy, search_linear
from deeprok.experiments.results import Summary, improvement, needed, summarise
from deeprok.experiments.statistics import estimate, ratio_of_iqms
from deeprok.networks import QNetwork
from deeprok.progress import work_bar
from deeprok.report import figures, page
from deeprok.trainer import progress_of
from deeprok.training import make_program
from deeprok.uncertainty.models import parse_grid
from deeprok.worlds import cartpole

#: Called with what is being done and how much of the work it was.
Done = Callable[[str, float], None]

_MEMBERS = 20  # of an ensemble drawn from a posterior

# What parts of the work take, in seconds on one core: for the time left, where only ratios matter.
_TRAINING = {"gradient": 6.0, "kalman": 30.0}
_EXAM = 4.0
_REFERENCE = 8.0
_SB3 = 60.0


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

    @property
    def finished(self) -> bool:
        """Whether it has been trained to the end."""
        return progress_of(self.folder)[1] >= self.row.config(self.seed).episodes


def reproduce(
    seeds: int = 5,
    preset: str = "tuned",
    out: Path = Path("reproduce"),
    full: bool = False,
    resume: bool = False,
    episodes: int = 500,
    processes: int | None = None,
    console: Console | None = None,
    results: Console | None = None,
) -> dict[str, Any]:
    """Trains the agents of the paper and those between them, and compares them with references.

    Args:
      seeds: seeds of each agent, from 0 on.
      preset: `tuned` or `paper`.
      out: folder for runs, results and figures; what it already holds is not done again.
      full: also the other preset, the ablations, the tuning, ensembles and stable-baselines3.
      resume: refuse to begin anew: `out` must be there.
      episodes: test episodes in each cell.
      processes: training processes at once; by default one for each core.
      console: where progress goes.
      results: where the table goes.

    Returns:
      What `results.json` holds.
    """
    console, results = console or Console(stderr=True), results or Console()
    for name, value in (("seeds", seeds), ("episodes", episodes)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    jobs.check_count(processes)
    out = Path(out)
    if resume and not out.is_dir():
        raise DeeprokError(f"there is nothing to go on with in {out}; leave out --resume to begin")
    if full:
        sb3.check_installed()
    studies = _studies(seeds, preset, full, episodes)
    prepared = {study.name: _prepare(out, study) for study in studies}
    everything = [run for prepared_runs in prepared.values() for run in prepared_runs]
    total = sum(_work(run) for run in everything) + 3 * _REFERENCE
    others = min(seeds, plan.SB3_SEEDS) if full else 0
    total += 2 * others * (_SB3 + _EXAM)
    with work_bar(console, total) as done:
        references = _references(out, studies[0].exam, done)
        for name, prepared_runs in prepared.items():
            _train(name, prepared_runs, processes, done, console)
            _examine(name, prepared_runs, processes, done)
        stable = _stable_baselines(out, others, episodes, processes, done) if full else {}
    found = _collect(studies, prepared, references, stable, preset)
    _write(out, found)
    _print(found, out, results)
    return found


def _studies(seeds: int, preset: str, full: bool, episodes: int) -> list[Study]:
    """What is to be done; the agents of the preset come first."""
    studies = [plan.agents(preset, seeds, episodes, every=full)]
    if full:
        other = "paper" if preset == "tuned" else "tuned"
        fewer = min(seeds, plan.FEWER_SEEDS)
        studies += [plan.fastest(seeds, episodes), plan.tuning(episodes), plan.best(seeds, episodes)]
        studies += [plan.agents(other, fewer, episodes, every=True), plan.ablation(fewer, episodes)]
    return studies


def _prepare(out: Path, study: Study) -> list[Run]:
    """A study's runs, whose folders are made where they are missing and checked where they are not."""
    prepared = []
    for row in study.rows:
        # An ensemble costs as much as its members together, so it is asked less.
        exam = study.exam if row.policy == "mean" else Exam(max(1, study.exam.grid // 5))
        for seed in study.seeds:
            folder = out / (row.runs or f"{study.name}/{row.name}") / f"seed-{seed}"
            config = row.config(seed)
            if not (folder / runs.CONFIG).exists():
                runs.create(folder, config)
            elif runs.read_config(folder) != config:
                raise DeeprokError(f"{folder} was trained with other settings; choose another --out or remove it")
            prepared.append(Run(row, seed, folder, exam))
    return prepared


def _work(run: Run) -> float:
    """What is left to do for a run."""
    config = run.row.config(run.seed)
    left = 1 - min(1.0, progress_of(run.folder)[1] / config.episodes)
    return left * _TRAINING[config.row.estimator] + (0 if run.scores.exists() else _EXAM)


def _train(study: str, prepared: Iterable[Run], processes: int | None, done: Done, console: Console) -> None:
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
            jobs.resume(missing, processes, report)
        except DeeprokError as error:
            # A run that broke down is a result too: it is told, and counted in the tables.
            console.print(f"[yellow]{error}[/yellow]", soft_wrap=True, highlight=False)


def _examine(study: str, prepared: Iterable[Run], processes: int | None, done: Done) -> None:
    """Examines what has no scores yet: in threads, as one compiled program serves all rows."""
    what = f"{study}: examining"

    def one(run: Run) -> None:
        program = make_program(run.row.config(run.seed))
        estimator = program.agent.estimator
        belief = runs.load_belief(run.folder, program, "last")
        if run.row.policy == "mean":
            weights = np.asarray(estimator.mean(belief))[None]
        else:
            keys = jax.random.split(jax.random.key(run.seed), _MEMBERS)
            weights = np.asarray(jax.vmap(estimator.sample, (None, 0))(belief, keys))
        examine = _examiner(program.agent.network, run.row.policy, run.exam)
        _write_json(run.scores, examine(weights, _snapshots(run, program) if run.exam.curve else None))

    missing = [run for run in prepared if run.finished and not run.scores.exists()]
    if missing:
        done(what, 0.0)
        # The first alone, so that what all need is compiled once.
        one(missing[0])
        done(what, _EXAM)
        with ThreadPoolExecutor(processes or jobs.count_cores()) as pool:
            _wait([pool.submit(one, run) for run in missing[1:]], pool, lambda: done(what, _EXAM))


def _wait(futures: list[Future[None]], pool: Any, finished: Callable[[], None]) -> None:
    """Waits for all; if one fails or the user interrupts, those not yet begun are dropped."""
    try:
        for future in as_completed(futures):
            future.result()
            finished()
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


@functools.cache
def _examiner(network: QNetwork, policy: Any, exam: Exam) -> Callable[..., Scores]:
    # One world for all, whatever reward a run was trained with for the failing step.
    return make_examiner(cartpole(), network_policy(network, policy), exam)


def _snapshots(run: Run, program: Any) -> Snapshots:
    template = runs.templates(program)[0].snapshots
    weights = checkpoint.load(run.folder / runs.CHECKPOINT, "run.snapshots", template)
    every = run.row.config(run.seed).snapshot_every
    return Snapshots([every * (i + 1) for i in range(len(weights))], np.asarray(weights)[:, None])


def _references(out: Path, exam: Exam, done: Done) -> dict[str, Scores]:
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
            _write_json(path, {**examine(controller, epsilon=epsilon), "gain": gain.tolist()})
        done(f"reference: {name}", _REFERENCE)
        found[name] = json.loads(path.read_text())
    return found


def _stable_baselines(
    out: Path, seeds: int, episodes: int, processes: int | None, done: Done
) -> dict[str, dict[int, Scores]]:
    """stable-baselines3's DQN on the nominal model and under domain randomisation."""
    exam = Exam(max(1, episodes // 5), beyond=max(1, episodes // 25))
    network = sb3.network()
    template: Any = jax.ShapeDtypeStruct((network.num_weights,), np.dtype("float32"))
    rows = {"sb3_dqn": False, "sb3_dqn_dr": True}
    paths = {
        (name, seed): out / "references" / name / f"seed-{seed}.safetensors" for name in rows for seed in range(seeds)
    }
    # Processes, as torch and gymnasium hold the interpreter's lock; spawned, as JAX runs threads.
    with ProcessPoolExecutor(processes or jobs.count_cores(), multiprocessing.get_context("spawn")) as pool:
        training = [
            pool.submit(sb3.train, path, rows[name], seed) for (name, seed), path in paths.items() if not path.exists()
        ]
        done("stable-baselines3: training", (len(paths) - len(training)) * _SB3)
        _wait(training, pool, lambda: done("stable-baselines3: training", _SB3))
    found: dict[str, dict[int, Scores]] = {name: {} for name in rows}
    for (name, seed), path in paths.items():
        scores = path.with_name(f"scores-{seed}-{'-'.join(map(str, exam))}.json")
        if not scores.exists():
            theta = checkpoint.load(path, "theta", template)
            _write_json(scores, _examiner(network, "mean", exam)(np.asarray(theta)[None]))
        done("stable-baselines3: examining", _EXAM)
        found[name][seed] = json.loads(scores.read_text())
    return found


def _collect(
    studies: list[Study],
    prepared: Mapping[str, list[Run]],
    references: Mapping[str, Scores],
    stable: Mapping[str, Mapping[int, Scores]],
    preset: str,
) -> dict[str, Any]:
    """What `results.json` holds."""
    ceiling = references["lqr"]
    tables: dict[str, dict[str, Summary]] = {}
    for study in studies:
        tables[study.name] = {}
        for row in study.rows:
            its = [run for run in prepared[study.name] if run.row is row]
            scores = {run.seed: json.loads(run.scores.read_text()) for run in its if run.scores.exists()}
            if not scores:
                raise DeeprokError(f"no seed of {row.name} in the study {study.name} could be trained to the end")
            tables[study.name][row.name] = {
                "algorithm": row.algorithm,
                "preset": row.preset,
                "changes": dict(row.changes),
                "broken": [run.seed for run in its if run.seed not in scores],
                **summarise(scores, ceiling, row.config(0).digest()),
            }
    agents = tables[preset]
    world = cartpole()
    found: dict[str, Any] = {
        "format": 1,
        "preset": preset,
        "grid": {name: values.tolist() for name, values in parse_grid(PAPER_GRID, world.nominal).items()},
        "lengths": parse_grid(LENGTHS, world.nominal)["pole_length"].tolist(),
        "epsilon": EPSILON,
        "test_episodes": studies[0].exam.grid,
        "conditions": {name: condition.what for name, condition in CONDITIONS.items()},
        "agents": agents,
        "references": {
            **{name: summarise({0: scores}, ceiling, "") for name, scores in references.items()},
            **{name: summarise(scores, ceiling, "") for name, scores in stable.items()},
        },
        "linear_weights": references["linear"]["gain"],
        "improvement": improvement(agents),
        "studies": {name: table for name, table in tables.items() if name != preset},
    }
    found["speed"] = {name: _speed(table) for name, table in tables.items() if name in (preset, "fastest")}
    return found


def _speed(table: Mapping[str, Summary]) -> dict[str, Any]:
    """Deep-RoK's episodes to 95 % of the ceiling's return over RTD-DQN's."""
    times = [
        needed(table[name]["per_seed_episodes_to_95"], table[name]["curve"]["episodes"])
        for name in ("deep_rok", "rtd_dqn")
    ]
    ratio = estimate(ratio_of_iqms, *times)
    return {"value": ratio.value, "ci": list(ratio.interval) if ratio.interval else None}


def _write(out: Path, found: Mapping[str, Any]) -> None:
    """The page with its figures and numbers, laid out as the documentation has it."""
    report = out / "report"
    (report / "results").mkdir(parents=True, exist_ok=True)
    for name, figure in figures.of_results(found).items():
        figures.save(figure, report / "results" / name)
    _write_json(report / "results" / "results.json", found)
    write_atomically(report / "results.md", page.results_page(found).encode())


def _write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content) + "\n").encode())


def _print(found: Mapping[str, Any], out: Path, results: Console) -> None:
    count = max(agent["seeds"] for agent in found["agents"].values())
    title = (
        f"preset {found['preset']}, {count} seed{'s' if count > 1 else ''}, 7 × 7 grid, ε = {found['epsilon']:g}, "
        f"{found['test_episodes']} episodes a cell"
    )
    table = Table(title=title, title_justify="left", title_style="bold")
    header, *lines = page.main_table({**found["agents"], **found["references"]}, short=True)
    for column in header:
        table.add_column(column, justify="left" if column == header[0] else "right")
    for line in lines:
        table.add_row(*line)
    results.print(table)
    results.print(f"page and figures: {out / 'report' / 'results.md'}", highlight=False, soft_wrap=True)
    results.print(f"all numbers: {out / 'report' / 'results' / 'results.json'}", highlight=False, soft_wrap=True)
