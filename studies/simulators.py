"""The agents in other people's simulators: Gymnasium's and MuJoCo's, by their ids.

Four agents with the preset `default` and stable-baselines3 have the same number of environment steps and models of the
same box. All are tested on the same grid of models, which is the box's.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from rich.console import Console

from deeprok.core.errors import DeeprokError
from deeprok.environments.host import HostEnvironment, Simulator
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import PolicyOf, weights_policy
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from studies import sb3, sb3_simulators, simulators_page
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file
from studies.exam import Exam
from studies.measured import Plan, Planned, Scored, measure_rows, of_agent, of_another_library
from studies.plan import Comparison, Row
from studies.robustness import grid_scores
from studies.sb3_simulators import named_simulator

#: Row -> its algorithm where an action is a choice, and where it is a vector of numbers.
AGENTS: dict[str, tuple[str, str]] = {
    "nominal": ("ddqn", "td3"),
    "dr": ("ddqn_dr", "td3_dr"),
    "robust": ("rtd_dqn", "rtd_td3"),
    "posterior": ("deep_rok", "rok_td3"),
    "sb3": ("sb3:dqn", "sb3:td3"),
    "random": ("random", "random"),
}
#: What the robust agents are compared with.
BASELINE = "dr"


class Budget(NamedTuple):
    """What an environment is given.

    Attributes:
      steps: environment steps of every agent.
      numbers: whether actions are numbers.
      slow: half the test episodes, where playing one takes long.
      seconds: of training one seed on one core, by row. Only ratios count, for the time left.
      exam: seconds of examining one seed, likewise.
    """

    steps: int
    numbers: bool
    slow: bool
    seconds: Mapping[str, float]
    exam: float

    def algorithm(self, name: str) -> str:
        """The algorithm of a row."""
        return AGENTS[name][self.numbers]


def _seconds(*each: float) -> dict[str, float]:
    """Of the rows that are trained, in their order."""
    return {**dict(zip(AGENTS, each, strict=False)), "random": 0.0}


ENVS: dict[str, Budget] = {
    "Acrobot-v1": Budget(50_000, False, False, _seconds(35, 35, 60, 75, 35), 8.0),
    "LunarLander-v3": Budget(100_000, False, True, _seconds(85, 85, 130, 160, 70), 10.0),
    "Pendulum-v1": Budget(20_000, True, False, _seconds(18, 18, 25, 40, 250), 3.0),
    "InvertedPendulum-v5": Budget(20_000, True, True, _seconds(45, 45, 55, 70, 250), 20.0),
    "Hopper-v5": Budget(50_000, True, True, _seconds(75, 75, 110, 165, 650), 10.0),
}
EPSILON = 0.0
#: What differs from the preset for all of the library's agents alike. Models cost simulations in every step. A trial is
#: 16 episodes where the preset has 256, and without random actions, as the test is.
CHANGES: dict[str, Any] = {"models": 5, "trial_models": 8, "trial_episodes": 2, "trial_epsilon": EPSILON}
_VALUES = 5  # of each parameter, in the grid
_TRIALS = 10  # in a run, or a few more

_DEFAULT = make_config("ddqn_dr")
_EDGES, _CHUNK = _DEFAULT.edges, _DEFAULT.learner.chunk_steps


def changes_of(env: str) -> dict[str, Any]:
    """What differs from the preset on an environment."""
    steps = ENVS[env].steps
    return {"env": env, "steps": steps, "trial_every": max(1, steps // (_TRIALS * _CHUNK)), **CHANGES}


def comparison(env: str, name: str, seeds: int) -> Comparison:
    """One of the library's agents on one environment."""
    row = Row(f"{env}/{name}", ENVS[env].algorithm(name), "default", changes_of(env))
    return Comparison("simulators", [row], range(seeds), Exam(0))


@functools.cache
def problem_of(env: str) -> str:
    """Why a simulator can't be made on this machine; empty if it can."""
    try:
        named_simulator(env)
    except DeeprokError as error:
        return str(error)
    return ""


# --- the exam ------------------------------------------------------------------------------------------


def axes_of(env: HostEnvironment) -> dict[str, np.ndarray]:
    """The grid of models: values of each uncertain parameter, with both ends of its range."""
    return {name: np.linspace(low, high, _VALUES) for name, (low, high) in env.box.items()}


def played(
    env: HostEnvironment, policy_of: PolicyOf, weights: Mapping[int, Any], episodes: int, epsilon: float = EPSILON
) -> Scored:
    """Scores of weights on the grid, how many simulations failed there, and how many seconds it took.

    Every seed plays episodes of its own, so an interval over seeds includes the noise of the test.

    Args:
      env: the simulator as the agent sees it.
      policy_of: what weights do.
      weights: seed -> its weights.
      episodes: episodes in each cell.
      epsilon: probability of a random action.
    """
    simulators: list[Simulator] = []

    def make() -> Simulator:
        simulators.append(env.make())
        return simulators[-1]

    def failed() -> int:
        return sum(sum(simulator.failures.values()) for simulator in simulators)

    play = cell_player(env._replace(make=make), policy_of, episodes)
    cells = {name: values[:-1] for name, values in grid_cells(env, axes_of(env)).items()}  # without the nominal model
    found: Scored = {}
    for seed, theta in weights.items():
        before, began = failed(), time.monotonic()
        scores = grid_scores(play(theta, cells, epsilon, seed=seed + 1), env.success_return)
        tested = round(time.monotonic() - began, 3)
        found[str(seed)] = {f"{EPSILON:g}": scores, "failed": failed() - before, "tested": tested}
    return found


def examined(its: list[Run], episodes: int) -> Scored:
    """Scores of trained runs of one row, each with the seconds that it took."""
    config = its[0].row.config(its[0].seed)
    learner = config.make_learner()
    view = learner.view
    assert isinstance(view.env, HostEnvironment)
    with config.arithmetic():
        weights = {run.seed: np.asarray(view.mean(runs.load_belief(run.folder, learner, "last")))[None] for run in its}
        found = played(view.env, weights_policy(view.network, view.env.actions, "mean"), weights, episodes)
    for run in its:
        found[str(run.seed)]["seconds"] = sum(line["seconds"] for line in runs.read_metrics(run.folder))
    return found


def examined_files(files: Mapping[int, Path], env: str, kind: sb3_simulators.Kind, episodes: int) -> Scored:
    """Scores of what stable-baselines3 trained."""
    made = named_simulator(env)
    network = sb3_simulators.network_of(made, kind)
    trained = {seed: sb3_simulators.read(path, network) for seed, path in files.items()}
    weights = {seed: theta[None] for seed, (theta, _) in trained.items()}
    found = played(made, weights_policy(network, made.actions, "mean"), weights, episodes)
    for seed, (_, seconds) in trained.items():
        found[str(seed)]["seconds"] = seconds
    return found


def random_play(seeds: Sequence[int], env: str, episodes: int) -> Scored:
    """Scores of random actions."""
    made = named_simulator(env)

    def policy_of(weights: Any, params: Any) -> Any:
        return lambda obs: made.actions.choose(jnp.zeros((len(obs), len(made.actions))))

    return played(made, policy_of, dict.fromkeys(seeds), episodes, epsilon=1.0)


# --- the study -----------------------------------------------------------------------------------------


def episodes_of(env: str, episodes: int) -> int:
    """Test episodes in each cell on an environment, of those that most have."""
    return max(1, episodes // 2) if ENVS[env].slow else episodes


def plan_row(options: Options, env: str, name: str, episodes: int) -> Planned:
    """A row on a simulator that can be made."""
    budget, count = ENVS[env], episodes_of(env, episodes)
    algorithm, work = budget.algorithm(name), budget.seconds[name]
    if name == "random":
        row = Planned(
            "random", range(1), lambda seeds: [*seeds], functools.partial(random_play, env=env, episodes=count), 0
        )
    elif algorithm.startswith("sb3:"):
        row = of_stable_baselines(options, env, count)
    else:
        row = of_agent(options, comparison(env, name, options.seeds), work, functools.partial(examined, episodes=count))
    return row._replace(exam=budget.exam)


def of_stable_baselines(options: Options, env: str, episodes: int) -> Planned:
    """A row of stable-baselines3; without the package no seeds are wanted, and what is stored stays."""
    budget = ENVS[env]
    kind: Any = budget.algorithm("sb3").removeprefix("sb3:")
    settings = {"algorithm": kind, "env": env, "steps": budget.steps, "edges": _EDGES}
    folder = options.out / "simulators" / env / "sb3"
    return of_another_library(
        options,
        settings,
        lambda seed: folder / f"seed-{seed}.safetensors",
        range(options.seeds if sb3.is_installed() else 0),
        functools.partial(sb3_simulators.train, kind=kind, env=env, steps=budget.steps, edges=_EDGES),
        functools.partial(examined_files, env=env, kind=kind, episodes=episodes),
        budget.seconds["sb3"],
    )


def plan_rows(options: Options, episodes: int, stored: Mapping[str, Any]) -> Plan:
    """Every row of the study. Of a simulator that can't be made here nothing is wanted, and what is stored stays."""

    def row(env: str, name: str) -> Planned:
        if not problem_of(env):
            return plan_row(options, env, name, episodes)
        settings = stored.get("rows", {}).get(env, {}).get(name, {}).get("settings", "")
        return Planned(settings, (), lambda seeds: [*seeds], lambda seeds: {}, 0.0)

    return {env: {name: row(env, name) for name in AGENTS} for env in ENVS}


def cell_episodes(episodes: int) -> int:
    """Episodes in each cell, of those that a study was asked for; an episode here takes long."""
    return max(1, episodes // 25)


def about_environment(env: str, episodes: int, stored: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says of an environment."""
    budget = ENVS[env]
    facts = {
        "steps": budget.steps,
        "episodes": episodes_of(env, episodes),
        "trial_steps": changes_of(env)["trial_every"] * _CHUNK,
        "algorithms": {name: budget.algorithm(name) for name in AGENTS},
        "problem": problem_of(env),
    }
    if facts["problem"]:
        return {**stored.get("environments", {}).get(env, {}), **facts}
    made = named_simulator(env)
    box = {name: list(ends) for name, ends in made.box.items()}
    return {**facts, "box": box, "horizon": made.horizon, "success_return": made.success_return}


def measure(
    options: Options, path: Path, done: Done, envs: Sequence[str] = tuple(ENVS), agents: Sequence[str] = tuple(AGENTS)
) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; seeds that it holds, of the same settings, are not measured again.
      done: called with what is being done and how much of the work it was.
      envs: environments to measure now; the others stay as they are.
      agents: rows to measure now.
    """
    stored = json.loads(path.read_text()) if path.exists() else {}
    episodes = cell_episodes(options.episodes)
    for env in envs:
        if problem_of(env):
            Console(stderr=True).print(f"left out: {problem_of(env)}", style="yellow", markup=False, soft_wrap=True)
    about: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study simulators --seeds {options.seeds}",
        "episodes": episodes,
        "epsilons": [EPSILON],
        "edges": _EDGES,
        "action_noise": sb3_simulators.ACTION_NOISE,
        "changes": CHANGES,
        "baseline": BASELINE,
        "environments": {env: about_environment(env, episodes, stored) for env in ENVS},
    }
    return measure_rows(
        path, about, plan_rows(options, episodes, stored), done, lambda env, name: env in envs and name in agents
    )


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    plan = plan_rows(options, cell_episodes(options.episodes), {})
    return sum(len(row.seeds) * (row.work + row.exam) for rows in plan.values() for row in rows.values())


STUDY = Study(
    "simulators",
    "the agents in Gymnasium's and MuJoCo's simulators",
    compare=lambda _: [],
    collect=_collect,
    page=simulators_page.page,
    figures=simulators_page.figures,
    tables=simulators_page.short_tables,
    more_work=_work,
)
