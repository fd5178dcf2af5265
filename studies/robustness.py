"""Where the worst-case target beats domain randomisation, at equal effort.

Every agent trains for as many environment steps, on models from the same box, with the same settings on every
environment. Weights are chosen in the same way. The references are those of the study `environments`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from deeprok.environments import Environment
from deeprok.environments.base import in_jax
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import weights_policy
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.runs.settings import make_config
from studies import robustness_figure, robustness_page, sb3
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file
from studies.exam import Exam
from studies.measured import (
    EXAM,
    Plan,
    Planned,
    Scored,
    measure_rows,
    of_agent,
    of_another_library,
    references,
    scores,
)
from studies.plan import Comparison, Row
from studies.screening import case_of, cells_episodes

ENVS = ("market", "ferry", "road", "swing_up", "rocket")
EPSILON = 0.05
#: What all others are compared with.
BASELINE = "dr"
SB3_SEEDS = 5  # at most

_DEFAULT = make_config("rtd_dqn")
_STEPS, _EDGES = _DEFAULT.steps, _DEFAULT.edges

#: Radii at which ten normally distributed values have the same worst case, on average, as with the default CVaR.
KL_RADIUS, WASSERSTEIN_RADIUS = 1.2, 1.5


class Agent(NamedTuple):
    """A row of the study, on any environment.

    Attributes:
      title: what it is called on the page.
      algorithm: its name; of stable-baselines3 as `sb3:dqn`.
      changes: settings that differ from the preset `default`.
      seconds: of training one seed on one core. Only ratios count, for the time left.
      keep: which weights are played.
      shares: the row whose runs it plays, if they are not its own.
    """

    title: str
    algorithm: str
    changes: Mapping[str, Any] = {}
    seconds: float = 27.0
    keep: Keep = "last"
    shares: str = ""


#: Policy gradients have no numbers of their own in the preset `default` and take those of `tuned`; here they get as
#: many steps as the others, models drawn in the same way, and the same choice of weights on held-out models.
_AS_MANY: dict[str, Any] = {
    name: getattr(_DEFAULT, name)
    for name in ("steps", "edges", "trial_episodes", "trial_epsilon", "trial_tail", "settle")
}
_NO_CHOICE = {"settle": False}
_BY_MEAN = {"trial_tail": 1.0}

AGENTS: dict[str, Agent] = {
    "dr": Agent("domain randomisation", "ddqn_dr", seconds=12.0),
    "dr_memory4": Agent("domain randomisation, memory 4", "ddqn_dr", {"memory": 4}, 20.0),
    "dr_memory16": Agent("domain randomisation, memory 16", "ddqn_dr", {"memory": 16}, 35.0),
    "cvar": Agent("CVaR, the default", "rtd_dqn"),
    "cvar_memory4": Agent("CVaR, memory 4", "rtd_dqn", {"memory": 4}, 60.0),
    # A set without a level has no schedule.
    "minimum": Agent("hard minimum", "rtd_dqn", {"robust_set": "minimum", "confidence": "fixed"}),
    # CVaR over the worst one of ten models is their minimum.
    "minimum_late": Agent("hard minimum, approached", "rtd_dqn", {"robust_level": 1 / _DEFAULT.models}),
    "kl": Agent("KL ball", "rtd_dqn", {"robust_set": "kl", "level_start": 0.0, "robust_level": KL_RADIUS}, 60.0),
    "wasserstein": Agent(
        "Wasserstein ball",
        "rtd_dqn",
        {"robust_set": "wasserstein", "level_start": 0.0, "robust_level": WASSERSTEIN_RADIUS},
        90.0,
    ),
    # The preset chooses weights by the worst held-out models, which prefer a policy that avoids the task to one that
    # tries.
    "dr_mean": Agent("domain randomisation, chosen by the mean", "ddqn_dr", _BY_MEAN, 12.0),
    "dr_memory4_mean": Agent(
        "domain randomisation, memory 4, chosen by the mean", "ddqn_dr", {"memory": 4, **_BY_MEAN}, 20.0
    ),
    "cvar_mean": Agent("CVaR, chosen by the mean", "rtd_dqn", _BY_MEAN),
    "pg": Agent("policy gradient", "pg", _AS_MANY, 4.0),
    "epopt": Agent("EPOpt", "epopt", _AS_MANY, 4.0),
    "robust_pg": Agent("robust policy gradient", "robust_pg", _AS_MANY, 4.0),
    "sb3_dqn": Agent("SB3 DQN", "sb3:dqn", seconds=150.0),
    "sb3_ppo": Agent("SB3 PPO", "sb3:ppo", seconds=120.0),
    "dr_last": Agent("domain randomisation, last weights", "ddqn_dr", _NO_CHOICE, 12.0),
    "dr_best": Agent("domain randomisation, best in trials", "ddqn_dr", _NO_CHOICE, 0.0, "best", "dr_last"),
    "cvar_last": Agent("CVaR, last weights", "rtd_dqn", _NO_CHOICE),
    "cvar_best": Agent("CVaR, best in trials", "rtd_dqn", _NO_CHOICE, 0.0, "best", "cvar_last"),
}


def comparison(env: str, name: str, seeds: int) -> Comparison:
    """One of the library's agents on one environment."""
    agent = AGENTS[name]
    shared = f"robustness/{env}/{agent.shares}" if agent.shares else ""
    if not agent.changes:  # the study of the defaults trains the same
        shared = f"defaults/{env}/{agent.algorithm}"
    row = Row(f"{env}/{name}", agent.algorithm, "default", {"env": env, **agent.changes}, runs=shared)
    return Comparison("robustness", [row], range(seeds), Exam(0))


# --- the exam ------------------------------------------------------------------------------------------


def grid_scores(returns: np.ndarray, success_return: float) -> dict[str, float]:
    """Scores of one run, and standard errors from its test episodes alone.

    Args:
      returns: [cells, episodes]; an episode has the same random numbers in every cell.
      success_return: an episode succeeds when its return is above this.
    """
    success = returns > success_return
    worst = returns[np.argmin(returns.mean(axis=1))]

    def error(values: np.ndarray) -> float:
        return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0

    return {
        **scores(returns.mean(axis=1), success.mean(axis=1)),
        "success_error": error(success.mean(axis=0)),
        "worst_cell_error": error(worst),
    }


def played(env: str, made: Environment, network: Any, weights: Mapping[int, np.ndarray], episodes: int) -> Scored:
    """Scores of weights on the grid: seed -> ε -> score -> number.

    Every seed plays episodes of its own, those of the references being another's. So the differences between seeds
    hold the noise of the test, and an interval over seeds includes it.

    Args:
      env: name of the environment.
      made: the environment as the agent sees it.
      network: the network.
      weights: seed -> its weights [n].
      episodes: episodes in each cell.
    """
    play = cell_player(made, weights_policy(network, made.actions, "mean"), episodes)
    cells = grid_cells(made, case_of(env).axes)
    return {
        str(seed): {
            f"{EPSILON:g}": grid_scores(play(theta[None], cells, EPSILON, seed=seed + 1)[:-1], made.success_return)
        }
        for seed, theta in weights.items()
    }


def examined(its: list[Run], env: str, keep: Keep, episodes: int) -> Scored:
    """Scores of trained runs of one row, each with the step that its weights are of."""
    config = its[0].row.config(its[0].seed)
    learner = config.make_learner()
    view = learner.view
    with config.arithmetic():
        weights = {run.seed: np.asarray(view.mean(runs.load_belief(run.folder, learner, keep))) for run in its}
        found = played(env, in_jax(view.env, "the study"), view.network, weights, episodes)
    for run in its:
        # A run that settled on its best weights has them as its last ones.
        part = "best.steps" if config.settle or keep == "best" else "run.steps"
        found[str(run.seed)] |= {
            name: int(checkpoint.load(run.folder / runs.CHECKPOINT, of, _COUNTER, verify="part"))
            for name, of in (("step", part), ("steps", "run.steps"))
        }
    return found


_COUNTER: Any = jax.ShapeDtypeStruct((), np.dtype("int32"))


# --- stable-baselines3 ---------------------------------------------------------------------------------


def of_stable_baselines(options: Options, env: str, name: str, episodes: int) -> Planned:
    """A row of stable-baselines3; without the package no seeds are wanted, and what is stored stays."""
    kind: Any = AGENTS[name].algorithm.removeprefix("sb3:")
    folder = options.out / "robustness" / env / name
    settings = {"algorithm": kind, "env": env, "steps": _STEPS, "edges": _EDGES}

    def examine(files: Mapping[int, Path]) -> Scored:
        made = case_of(env).env
        network = sb3.usual_network(made, kind)
        template: Any = jax.ShapeDtypeStruct((network.num_weights,), np.dtype("float32"))
        weights = {seed: np.asarray(checkpoint.load(path, "theta", template)) for seed, path in files.items()}
        return played(env, made, network, weights, episodes)

    train = functools.partial(sb3.train_usual, kind=kind, env=env, steps=_STEPS, edges=_EDGES)
    seeds = range(_sb3_seeds(options))
    return of_another_library(
        options, settings, lambda seed: folder / f"seed-{seed}.safetensors", seeds, train, examine, AGENTS[name].seconds
    )


def _sb3_seeds(options: Options) -> int:
    return min(options.seeds, SB3_SEEDS) if sb3.is_installed() else 0


# --- the study -----------------------------------------------------------------------------------------


def plan_rows(options: Options, episodes: int) -> Plan:
    """Every row of the study."""

    def row(env: str, name: str) -> Planned:
        agent = AGENTS[name]
        if agent.algorithm.startswith("sb3:"):
            return of_stable_baselines(options, env, name, episodes)
        examine = functools.partial(examined, env=env, keep=agent.keep, episodes=episodes)
        return of_agent(options, comparison(env, name, options.seeds), agent.seconds, examine)

    return {env: {name: row(env, name) for name in AGENTS} for env in ENVS}


def measure(
    options: Options, path: Path, done: Done, envs: Sequence[str] = ENVS, agents: Sequence[str] = tuple(AGENTS)
) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; seeds that it holds, of the same settings, are not measured again.
      done: called with what is being done and how much of the work it was.
      envs: environments to measure now; the others stay as they are.
      agents: rows to measure now.
    """
    episodes = cells_episodes(options.episodes)  # as many as the references were played
    about: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study robustness --seeds {options.seeds}",
        "episodes": episodes,
        "epsilons": [EPSILON],
        "steps": _STEPS,
        "edges": _EDGES,
        "baseline": BASELINE,
        "agents": {
            name: {"title": its.title, "algorithm": its.algorithm, "changes": dict(its.changes), "keep": its.keep}
            for name, its in AGENTS.items()
        },
        "references": references(ENVS),
    }
    return measure_rows(
        path, about, plan_rows(options, episodes), done, lambda env, name: env in envs and name in agents
    )


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    def seeds(agent: Agent) -> int:
        return _sb3_seeds(options) if agent.algorithm.startswith("sb3:") else options.seeds

    return len(ENVS) * sum(seeds(agent) * (agent.seconds + EXAM) for agent in AGENTS.values())


STUDY = Study(
    "robustness",
    "the worst case against domain randomisation, at equal effort",
    compare=lambda _: [],
    collect=_collect,
    page=robustness_page.page,
    figures=robustness_figure.figures,
    tables=robustness_page.short_tables,
    more_work=_work,
)
