"""What a log of the true system is worth: success there against the number of logged episodes.

Each seed has its own true system, drawn from the environment's box, and its own log of it. All rows of a seed share
both, so that differences between rows are paired. A log with fewer episodes is the beginning of one with more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from deeprok.environments import Environment
from deeprok.environments.base import in_jax
from deeprok.evaluation.play import cell_player
from deeprok.evaluation.policies import weights_policy
from deeprok.identification.identify import identify, named_environment
from deeprok.identification.result import Noise, read_identified, settings_from
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.uncertainty.models import Box
from studies import logs_page
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file, prepare, train
from studies.exam import Exam
from studies.measured import Planned, Scored, measure_rows, settings_name, silent
from studies.plan import Row


class System(NamedTuple):
    """How the true systems of an environment are logged, and how long policies for them are trained.

    Attributes:
      actions: how often each action is taken in a log.
      noise: standard deviations, by observation, of what is added while a log is recorded.
      steps: environment steps of each training, fewer than those of the preset.
    """

    actions: tuple[float, ...]
    noise: Noise
    steps: int


#: The noises are chosen so that one episode leaves most of a range open and thirty little of it. A car that stands
#: still tells nothing of its brakes, so the throttle is open more often. On the road the system adds no noise to the
#: place, since what the driver sees of the curves belongs to it.
SYSTEMS = {
    "road": System(
        (0.2, 0.2, 0.6),
        Noise((0.0, 0.4, 0.0, 0.0, 0.0, 0.0), (0.5, 0.4, 0.002, 0.002, 0.002, 0.002)),
        60_000,
    ),
    "hard_cartpole": System((0.5, 0.5), Noise((0.0, 0.06, 0.0, 0.06), (0.02, 0.06, 0.02, 0.06)), 60_000),
}
ENVS = tuple(SYSTEMS)
#: How many episodes a log has, and the most steps of each.
EPISODES = (1, 3, 10, 30)
LOG_STEPS = 20
CONFIDENCE = 0.9
#: Goes up when `identify` gives other ranges for the same log, so that rows of older ones are measured again.
METHOD = 2
EPSILON = 0.0
#: As many plausible models as the robust agent draws from a box, so that a step costs the same.
MODELS = make_config("rtd_dqn").models
#: The box of a row with one model, as a share of the environment's own, around that model: a run chooses its weights
#: on models of its box, which then are that one too.
_ONE_MODEL = 1e-3

# How long parts of the work take, in seconds on one core. Only their ratios count, for the time left.
_SECONDS = {"ddqn": 8.0, "rtd_dqn": 12.0}
_EXAM = 2.0


class Way(NamedTuple):
    """How a policy is trained for a system that is known by a log, or not at all.

    Attributes:
      title: what it is called on the page.
      algorithm: the agent.
      logged: whether it uses a log, so that there is a row for each number of episodes.
      changes: `(true parameters, the environment, file of identified parameters) -> settings`; the file is None
        without a log.
    """

    title: str
    algorithm: str
    logged: bool
    changes: Callable[[Mapping[str, float], Environment, Path | None], Mapping[str, Any]]


def one_model(model: Mapping[str, float], own: Box) -> dict[str, Any]:
    """The settings of a run that knows one model only."""
    half = {name: 0.5 * _ONE_MODEL * (own[name][1] - own[name][0]) for name in model}
    return {"nominal": dict(model), "box": {name: (x - half[name], x + half[name]) for name, x in model.items()}}


def _estimate(truth: Mapping[str, float], env: Environment, file: Path | None) -> dict[str, Any]:
    assert file
    return one_model(read_identified(file).nominal, env.box)


def _identified(what: str, truth: Mapping[str, float], env: Environment, file: Path | None) -> dict[str, str]:
    assert file
    return settings_from(file, env.name, what)  # what --box FILE and --models FILE are


WAYS: dict[str, Way] = {
    "truth": Way("the true parameters", "ddqn", False, lambda truth, env, file: one_model(truth, env.box)),
    "prior": Way("the wide prior box", "rtd_dqn", False, lambda truth, env, file: {}),
    "estimate": Way("nominal = estimate", "ddqn", True, _estimate),
    "box": Way("the identified box", "rtd_dqn", True, functools.partial(_identified, "box")),
    "models": Way("its plausible models", "rtd_dqn", True, functools.partial(_identified, "models")),
}


class Item(NamedTuple):
    """A row: a way, and how many episodes the log has; 0 without one."""

    way: str
    episodes: int

    @property
    def name(self) -> str:
        """Its name in the JSON file and of its folder."""
        return f"{self.way}-{self.episodes}" if self.episodes else self.way


def items() -> list[Item]:
    """Every row on an environment."""
    return [Item(way, count) for way, its in WAYS.items() for count in (EPISODES if its.logged else (0,))]


# --- the true systems and their logs -------------------------------------------------------------------


@functools.cache
def environment(name: str) -> Environment:
    """The environment by its name, the same one each time, so that what is compiled for it serves all logs."""
    return in_jax(named_environment(name)[1], "the study")


def true_system(env: Environment, seed: int) -> dict[str, float]:
    """The true parameters of a seed, drawn from the environment's box."""
    draws = np.random.default_rng([seed, 0])
    return {name: float(draws.uniform(low, high)) for name, (low, high) in env.box.items()}


def make_log(env: Environment, system: System, seed: int, episodes: int) -> dict[str, np.ndarray]:
    """A log of the true system of a seed, in the columns that `identify` reads: random actions, with noise."""
    noise = system.noise
    params = dataclasses.replace(env.nominal, **true_system(env, seed))
    state_of = env.state_of or (lambda obs: obs)
    reset, step, still = jax.jit(env.reset), jax.jit(env.step), jax.random.key(0)  # neither environment is random
    process, sensor = np.array(noise.process), np.array(noise.sensor)
    rows: list[list[float]] = []
    for episode in range(episodes):
        # By episode, so that a longer log begins with a shorter one.
        draws = np.random.default_rng([seed, 1, episode])
        state, obs = reset(jax.random.key(int(draws.integers(2**31))), params)
        seen = obs + sensor * draws.normal(size=len(sensor))
        for t in range(LOG_STEPS):
            action = int(draws.choice(len(env.actions), p=system.actions))
            outcome = step(still, state, action, params)
            moved = outcome.obs + process * draws.normal(size=len(process))
            after = moved + sensor * draws.normal(size=len(sensor))
            rows.append([episode, t, *seen, action, *after])
            if outcome.terminated:
                break
            state, seen = state_of(jnp.asarray(moved, outcome.obs.dtype)), after
    count = range(len(sensor))
    columns = ["episode", "t", *(f"obs_{i}" for i in count), "action", *(f"next_obs_{i}" for i in count)]
    return dict(zip(columns, np.array(rows).T, strict=True))


def identified(out: Path, env: str, seed: int, episodes: int) -> Path:
    """The file of the parameters that a log gives, which is made if it is missing."""
    path = out / "logs" / env / f"identified-{METHOD}" / f"seed-{seed}-episodes-{episodes}.json"
    if not path.exists():
        made = environment(env)
        log = make_log(made, SYSTEMS[env], seed, episodes)
        path.parent.mkdir(parents=True, exist_ok=True)
        identify(made, log, confidence=CONFIDENCE, bootstrap=0, models=MODELS, seed=seed).save(path)
    return path


# --- training and test ---------------------------------------------------------------------------------


def run_of(out: Path, env: str, item: Item, seed: int) -> Run:
    """The run of one seed of a row, whose settings its log decides."""
    way, made = WAYS[item.way], environment(env)
    file = identified(out, env, seed, item.episodes) if item.episodes else None
    changes = way.changes(true_system(made, seed), made, file)
    row = Row(f"{env}/{item.name}", way.algorithm, "default", {"env": env, "steps": SYSTEMS[env].steps, **changes})
    return Run(row, seed, out / "logs" / row.name / f"seed-{seed}", Exam(0))


@functools.cache
def _player(env: str, network: Any, episodes: int) -> Callable[..., np.ndarray]:
    made = environment(env)
    return cell_player(made, weights_policy(network, made.actions, "mean"), episodes)


def examined(its: Sequence[Run], env: str, item: Item, out: Path, episodes: int) -> Scored:
    """Scores of trained runs, each on its own true system: seed -> ε -> score -> number, and what the log told."""
    made, found = environment(env), Scored()
    for run in its:
        config = run.row.config(run.seed)
        learner = config.make_learner()
        weights = np.asarray(learner.view.mean(runs.load_belief(run.folder, learner, "last")))
        truth = true_system(made, run.seed)
        play = _player(env, learner.view.network, episodes)
        cell = {name: np.array([value]) for name, value in truth.items()}
        returns = play(weights[None], cell, EPSILON, seed=run.seed + 1)
        scores = {"success": float(np.mean(returns > made.success_return)), "mean_return": float(np.mean(returns))}
        found[str(run.seed)] = {f"{EPSILON:g}": scores, "truth": truth}
        if item.episodes:
            told = read_identified(identified(out, env, run.seed, item.episodes))
            found[str(run.seed)] |= {"estimate": told.nominal, "box": told.box, "models": len(told.model_list)}
    return found


def plan_row(options: Options, env: str, item: Item) -> Planned:
    """A row and how it is measured."""
    algorithm = WAYS[item.way].algorithm

    def trained(seeds: Sequence[int]) -> list[int]:
        wanted = [run_of(options.out, env, item, seed) for seed in seeds]
        prepare(options.out, wanted)
        train(f"{env}/{item.name}", wanted, options, silent, Console(stderr=True))
        return [run.seed for run in wanted if run.finished]

    def examine(seeds: Sequence[int]) -> Scored:
        its = [run_of(options.out, env, item, seed) for seed in seeds]
        return examined(its, env, item, options.out, options.episodes)

    settings: dict[str, Any] = {
        "agent": make_config(algorithm, env=env, steps=SYSTEMS[env].steps).digest(),
        "row": item,
    }
    if item.episodes:
        settings |= {"log": [SYSTEMS[env].actions, _deviations(env)], "steps": LOG_STEPS}
        settings |= {"confidence": CONFIDENCE, "models": MODELS, "method": METHOD}
    return Planned(settings_name(settings), range(options.seeds), trained, examine, _SECONDS[algorithm], _EXAM)


def _deviations(env: str) -> dict[str, list[float]]:
    """The standard deviations of the noise, as JSON has them."""
    noise = SYSTEMS[env].noise
    return {"process": list(noise.process), "sensor": list(noise.sensor)}


# --- the study -----------------------------------------------------------------------------------------


def measure(
    options: Options, path: Path, done: Done, envs: Sequence[str] = ENVS, ways: Sequence[str] = tuple(WAYS)
) -> Found:
    """Logs, identifies, trains and tests what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; seeds that it holds, of the same settings, are not measured again.
      done: called with what is being done and how much of the work it was.
      envs: environments to measure now; the others stay as they are.
      ways: whose rows to measure now.
    """
    about: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study logs --seeds {options.seeds}",
        "episodes": options.episodes,
        "epsilon": EPSILON,
        "log_episodes": list(EPISODES),
        "log_steps": LOG_STEPS,
        "confidence": CONFIDENCE,
        "method": METHOD,
        "models": MODELS,
        "ways": {
            name: {"title": way.title, "algorithm": way.algorithm, "logged": way.logged} for name, way in WAYS.items()
        },
        "envs": {
            env: {
                "box": environment(env).box,
                "steps": SYSTEMS[env].steps,
                "actions": SYSTEMS[env].actions,
                "noise": _deviations(env),
            }
            for env in ENVS
        },
    }
    planned = {env: {item.name: plan_row(options, env, item) for item in items()} for env in ENVS}
    chosen = {item.name for item in items() if item.way in ways}
    return measure_rows(path, about, planned, done, lambda env, name: env in envs and name in chosen)


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    return len(ENVS) * options.seeds * sum(_SECONDS[WAYS[item.way].algorithm] + _EXAM for item in items())


STUDY = Study(
    "logs",
    "success on the true system against the number of logged episodes",
    compare=lambda _: [],
    collect=_collect,
    page=logs_page.page,
    figures=logs_page.figures,
    tables=logs_page.short_tables,
    more_work=_work,
)
