"""Is the Kalman filter worth its cost against Adam? Learning per step and per second, few data, and warm starts.

Part one trains the preset `default` with either estimator of the weights. Part two gives Cart-Pole a few episodes, from
scratch and from an earlier run after gravity has changed.
"""

from __future__ import annotations

import functools
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from deeprok.agents.network import Network
from deeprok.environments import cartpole, with_model
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import weights_policy
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config
from deeprok.training.scan import make_program
from deeprok.uncertainty.models import parse_grid
from studies import filters_figure, filters_page
from studies.defaults import examined
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file, prepare, runs_of, train, write_json
from studies.exam import EPSILON, PAPER_GRID, Exam
from studies.measured import references
from studies.plan import Comparison, Row
from studies.screening import cells_episodes

ENVS = ("road", "swing_up")
#: Environment steps of the first part, of the 150,000 of the preset; and a trial after every chunk, for the curves.
STEPS = 60_000
_LENGTH: dict[str, Any] = {"steps": STEPS, "trial_every": 1}

#: Row -> algorithm and what differs from the preset `default`. One row of Adam has the filter's network.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"adam {count}": ("rtd_dqn", {"updates": count}) for count in (1, 2, 4, 8)},
    "adam 20-20": ("rtd_dqn", filters_page.FILTERS),
    **{
        name: ("deep_rok", {"covariance": name, **filters_page.FILTERS})
        for name in ("full", "layer", "neuron", "diagonal", "low_rank")
    },
}

#: Chunks of each row that are timed.
ROUNDS = 9

#: Gravity in m/s²: that of the earlier runs, and that of the few episodes after them.
OLD, NEW = 9.8, 14.7
BUDGETS = (10, 30, 100)
#: The two agents of the second part, by estimator.
EARLIER = {"filter": "deep_rok", "adam": "rtd_dqn"}
#: The target network of `tuned` is copied every 2000 steps, which is more than ten episodes have.
_FEW: dict[str, Any] = {"target_period": 200, "snapshot_every": 0}
#: Exploration: from random actions down over half the budget; and that of an agent that knows the task already.
_SCRATCH: dict[str, Any] = {"epsilon_fraction": 0.5}
_WARM: dict[str, Any] = {"epsilon_start": 0.1}
#: The rate or noise with which each learned fastest in the tuning of the paper's experiment, on other seeds.
_FAST: dict[str, dict[str, Any]] = {"filter": {"observation_noise": 0.012}, "adam": {"learning_rate": 1e-3}}


class Few(NamedTuple):
    """A row of the second part."""

    estimator: str  # "filter" or "adam"
    changes: Mapping[str, Any]
    gravity: float = NEW
    warm: bool = False  # whether it starts from the earlier run of its seed


#: The setting that lets the filter forget what it starts from, as in the preset `default`.
_REMEMBERED = 0.1

FEW: dict[str, Few] = {
    "filter posterior": Few("filter", _WARM, warm=True),
    "filter posterior, fading": Few("filter", _WARM | {"remembered": _REMEMBERED}, warm=True),
    "filter mean": Few("filter", _WARM | {"prior_part": "mean"}, warm=True),
    "filter scratch": Few("filter", _SCRATCH),
    "filter scratch, fast": Few("filter", _SCRATCH | _FAST["filter"]),
    "adam weights": Few("adam", _WARM | {"prior_part": "mean"}, warm=True),
    "adam weights, fast": Few("adam", _WARM | {"prior_part": "mean"} | _FAST["adam"], warm=True),
    "adam scratch": Few("adam", _SCRATCH),
    "adam scratch, fast": Few("adam", _SCRATCH | _FAST["adam"]),
    "filter scratch, old gravity": Few("filter", _SCRATCH, OLD),
    "filter scratch, fast, old gravity": Few("filter", _SCRATCH | _FAST["filter"], OLD),
    "adam scratch, old gravity": Few("adam", _SCRATCH, OLD),
    "adam scratch, fast, old gravity": Few("adam", _SCRATCH | _FAST["adam"], OLD),
}

# How long parts of the work take, in seconds on one core. Only their ratios count, for the time left.
_TIMING, _EXAM, _FEW_EXAM = 300.0, 6.0, 1.0
_TRAINING = {"rtd_dqn": 15.0, "deep_rok": 35.0}
_EARLIER_TRAINING = {"filter": 60.0, "adam": 8.0}
_AN_EPISODE = {"filter": 0.1, "adam": 0.02}


class Part(NamedTuple):
    """The runs of one row, and where its numbers stand."""

    place: tuple[str, ...]  # keys in the JSON file
    runs: list[Run]
    settings: str  # a hash of all that its numbers depend on
    examine: Callable[[Sequence[Run]], dict[str, Any]]  # finished runs -> seed -> numbers
    work: float  # of a seed
    starts: Sequence[Run] = ()  # the runs that these start from, seed by seed


def row_of(env: str, name: str) -> Row:
    """A row of the first part."""
    algorithm, changes = ROWS[name]
    return Row(f"{env}/{name}", algorithm, "default", {"env": env, **_LENGTH, **changes})


def earlier_row(estimator: str) -> Row:
    """The agent that warm starts of this estimator begin with."""
    return Row(f"earlier/{estimator}", EARLIER[estimator])


def few_row(name: str, budget: int) -> Row:
    """A row of the second part."""
    its = FEW[name]
    changes: dict[str, Any] = {"episodes": budget, **_FEW, **its.changes}
    if its.gravity != OLD:
        changes["nominal"] = f"gravity={its.gravity:g}"
    start = f"filters/{earlier_row(its.estimator).name}" if its.warm else ""
    return Row(f"few/{name}/{budget}", EARLIER[its.estimator], "tuned", changes, prior=start)


def _runs(options: Options, row: Row) -> list[Run]:
    return runs_of(options.out, Comparison("filters", [row], range(options.seeds), Exam(0)))


def parts(options: Options, envs: Sequence[str]) -> list[Part]:
    """Everything that is trained, in order."""
    episodes, few_episodes = cells_episodes(options.episodes), exam_episodes(options)
    found = []
    for env in envs:
        for name, (algorithm, _) in ROWS.items():
            row = row_of(env, name)
            examine = functools.partial(_examine, env=env, episodes=episodes)
            work = _TRAINING[algorithm] + _EXAM
            found.append(Part(("rows", env, name), _runs(options, row), row.config(0).digest(), examine, work))
    successes = functools.partial(_successes, episodes=few_episodes)
    earlier = {estimator: earlier_row(estimator) for estimator in EARLIER}
    for estimator, row in earlier.items():
        work = _EARLIER_TRAINING[estimator] + _FEW_EXAM
        found.append(Part(("earlier", estimator), _runs(options, row), row.config(0).digest(), successes, work))
    for name, its in FEW.items():
        for budget in BUDGETS:
            row = few_row(name, budget)
            starts = _runs(options, earlier[its.estimator]) if its.warm else []
            settings = row.config(0).digest() + (earlier[its.estimator].config(0).digest() if its.warm else "")
            work = budget * _AN_EPISODE[its.estimator] + _FEW_EXAM
            place = ("few", name, str(budget))
            found.append(Part(place, _runs(options, row), settings, successes, work, starts))
    return found


def exam_episodes(options: Options) -> int:
    """Test episodes in each cell of the paper's grid."""
    return max(1, options.episodes // 5)


def _examine(its: Sequence[Run], env: str, episodes: int) -> dict[str, Any]:
    """Scores on the grid and the learning curve of each run."""
    scores = examined(list(its), env, episodes)
    return {str(run.seed): {**scores[str(run.seed)], "curve": curve(run.folder)} for run in its}


def curve(folder: Path) -> dict[str, list[Any]]:
    """The trials of a run: when they were, and what they gave."""
    lines = [line for line in runs.read_metrics(folder) if "trial_return" in line]
    return {
        "steps": [line["steps"] for line in lines],
        "trial_return": [float(f"{line['trial_return']:.5g}") for line in lines],
    }


@functools.cache
def _player(network: Network, episodes: int) -> Callable[..., np.ndarray]:
    env = cartpole()
    return cell_player(env, weights_policy(network, env.actions, "mean"), episodes)


def _successes(its: Sequence[Run], episodes: int) -> dict[str, dict[str, float]]:
    """The mean success of each run over the cells of the paper's grid, at either gravity."""
    found: dict[str, dict[str, float]] = {}
    for run in its:
        learner = run.row.config(run.seed).make_learner()
        theta = np.asarray(learner.view.mean(runs.load_belief(run.folder, learner, "last")))
        play = _player(learner.view.network, episodes)
        for gravity in (OLD, NEW):
            env = cartpole()
            env = env._replace(nominal=with_model(env.nominal, {"gravity": jnp.asarray(gravity)}))
            returns = play(theta[None], grid_cells(env, parse_grid(PAPER_GRID, env.nominal)), EPSILON)[:-1]
            found.setdefault(str(run.seed), {})[f"{gravity:g}"] = float(np.mean(returns > env.success_return))
    return found


def chunk_times(configs: Mapping[str, Config], rounds: int) -> dict[str, list[float]]:
    """Processor time of one seed in µs per environment step, without trials: of each row a number for each round.

    The rows take turns, so that whatever else the machine does meets all of them.

    Args:
      configs: the settings of each row.
      rounds: how many compiled chunks of each are timed, after a first one in which learning begins.
    """
    programs = {name: make_program(config) for name, config in configs.items()}
    # A copy, so that no two donated buffers are the same.
    states = {
        name: jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf)[None]), jax.jit(program.init)(jax.random.key(0)))
        for name, program in programs.items()
    }
    found: dict[str, list[float]] = {name: [] for name in configs}
    for chunk in range(rounds + 1):
        for name, program in programs.items():
            began = time.process_time()
            states[name], _ = jax.block_until_ready(program.advance(states[name], chunk))
            taken = time.process_time() - began
            if chunk:
                found[name].append(1e6 * taken / program.learner.chunk_steps)
    return found


def _timed(env: str, rounds: int) -> dict[str, Any]:
    configs = {name: row_of(env, name).config(0) for name in ROWS}
    return {
        "settings": {name: config.digest() for name, config in configs.items()},
        "processor": processor(),
        "rounds": {name: [round(x, 2) for x in its] for name, its in chunk_times(configs, rounds).items()},
    }


def processor() -> str:
    """The processor's name, as far as the system tells."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure(options: Options, path: Path, done: Done, envs: Sequence[str] = ENVS, rounds: int = ROUNDS) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; what it holds, of the same settings, is not measured again.
      done: called with what is being done and how much of the work it was.
      envs: environments of the first part.
      rounds: chunks of each row that are timed.
    """
    stored = json.loads(path.read_text()) if path.exists() else {}
    known = references(envs)
    sizes = {"episodes": cells_episodes(options.episodes), "few_episodes": exam_episodes(options)}
    found: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study filters --seeds {options.seeds}",
        **sizes,
        "steps": STEPS,
        "trial_steps": row_of(envs[0], next(iter(ROWS))).config(0).learner.chunk_steps,
        "few_settings": {"remembered": _REMEMBERED, **_FEW, **_FAST["adam"], **_FAST["filter"]},
        "gravities": [OLD, NEW],
        "budgets": list(BUDGETS),
        "random": {env: {epsilon: its["random"] for epsilon, its in known[env].items()} for env in envs},
        # What was measured before stays, also if this call is interrupted before it comes to that row.
        "times": {env: its for env, its in stored.get("times", {}).items() if env in envs},
        "rows": {},
        "earlier": {},
        "few": {},
    }
    as_before = all(stored.get(name) == value for name, value in sizes.items())
    planned = parts(options, envs)
    for part in planned:
        *outer, last = part.place
        _at(found, outer)[last] = _stored(_at(stored if as_before else {}, part.place), part.settings)
    for env in envs:
        wanted = {name: row_of(env, name).config(0).digest() for name in ROWS}
        if found["times"].get(env, {}).get("settings") != wanted:
            done(f"{env}: timing", 0.0)
            found["times"][env] = _timed(env, rounds)
            write_json(path, found)
        done(f"{env}: timing", _TIMING)
    for part in planned:
        _finish(part, _at(found, part.place), options, done)
        write_json(path, found)
    return found


def _at(numbers: dict[str, Any], place: Sequence[str]) -> dict[str, Any]:
    for key in place:
        numbers = numbers.setdefault(key, {})
    return numbers


def _stored(its: Mapping[str, Any], settings: str) -> dict[str, Any]:
    """What was measured before with the same settings."""
    if its.get("settings") == settings:
        return {"settings": settings, "seeds": dict(its["seeds"]), "diverged": its["diverged"]}
    return {"settings": settings, "seeds": {}, "diverged": []}


def _finish(part: Part, its: dict[str, Any], options: Options, done: Done) -> None:
    """Trains and examines the runs of a row whose numbers are missing."""
    what = " ".join(part.place)
    missing = [run for run in part.runs if str(run.seed) not in its["seeds"]]
    done(what, (len(part.runs) - len(missing)) * part.work)
    if not missing:
        return
    begun = missing
    if part.starts:
        wanted = {run.seed for run in missing}
        starts = [run for run in part.starts if run.seed in wanted]
        _train(what, starts, options)
        # A run that diverged is no start for another.
        able = {run.seed for run in starts if run.finished}
        begun = [run for run in missing if run.seed in able]
    _train(what, begun, options)
    finished = [run for run in begun if run.finished]
    its["seeds"] |= part.examine(finished) if finished else {}
    its["diverged"] = sorted({*its["diverged"], *(run.seed for run in missing)} - {run.seed for run in finished})
    done(what, len(missing) * part.work)


def _train(what: str, its: Sequence[Run], options: Options) -> None:
    prepare(options.out, its)
    train(what, its, options, _silent, Console(stderr=True))


def _silent(what: str, work: float) -> None:
    """The bar counts rows, not chunks."""


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    return _TIMING * len(ENVS) + sum(part.work * len(part.runs) for part in parts(options, ENVS))


STUDY = Study(
    "filters",
    "the filter against Adam: per step, per second, warm starts",
    compare=lambda _: [],
    collect=_collect,
    page=filters_page.page,
    figures=filters_figure.of_filters,
    tables=filters_page.short_tables,
    more_work=_work,
)
