"""TD3 against stable-baselines3's TD3 and SAC on the pendulum, at an equal number of environment steps.

The library's TD3 has the preset `default`. stable-baselines3's agents have its network, mini-batch, learning rate,
discount, warm-up and number of updates, and their own defaults for all else. The library's agents learn in the
pendulum in JAX, the others in Gymnasium's, which is the same; all are tested in JAX, from the same starts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from deeprok.agents.network import Network
from deeprok.evaluation.play import cell_player
from deeprok.evaluation.policies import weights_policy
from deeprok.evaluation.screening.screen import named_environment
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training.scan import make_program
from studies import actor_critics_page, sb3, sb3_simulators
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file
from studies.exam import Exam
from studies.measured import Planned, Scored, measure_rows, of_agent, of_another_library
from studies.plan import Comparison, Row

#: The pendulum in JAX, and Gymnasium's.
ENV, SIMULATOR = "pendulum", "Pendulum-v1"
STEPS = 20_000


class Agent(NamedTuple):
    """A row of the study.

    Attributes:
      algorithm: its name; of stable-baselines3 as `sb3:td3`.
      seconds: of training one seed on one core. Only ratios count, for the time left.
      changes: settings that differ from the preset `default`, or from `SHARED`.
    """

    algorithm: str
    seconds: float
    changes: Mapping[str, Any] = {}


#: Trials on held-out models are episodes that the others don't have; with this they change nothing.
_LAST = {"settle": False, "refine_from": 0.0}

AGENTS: dict[str, Agent] = {
    "td3": Agent("td3", 5.0),
    "td3_last": Agent("td3", 5.0, _LAST),
    "td3_constant": Agent("td3", 5.0, {**_LAST, "final_rate": 1.0, "actor_final_rate": 1.0}),
    "sb3_td3": Agent("sb3:td3", 30.0),
    "sb3_sac": Agent("sb3:sac", 50.0),
    "sb3_td3_constant": Agent("sb3:td3", 30.0, {"final_rate": 1.0}),
    "sb3_sac_constant": Agent("sb3:sac", 50.0, {"final_rate": 1.0}),
}
_EXAM = 2.0  # seconds for a seed, likewise
_EXAM_SEED = 3000  # of the starts, which no agent was trained with

_DEFAULT = make_config("td3", env=ENV, steps=STEPS)
#: What stable-baselines3's agents have in place of its defaults: the numbers of the preset.
SHARED = sb3_simulators.Settings(
    hidden=_DEFAULT.layers.hidden,
    batch_size=_DEFAULT.learner.batch_size,
    learning_rate=_DEFAULT.estimator.learning_rate,
    final_rate=_DEFAULT.estimator.final_rate,
    discount=_DEFAULT.discount,
    warm_up=_DEFAULT.learner.warm_up,
    train_every=_DEFAULT.learner.train_every,
    updates=_DEFAULT.learner.updates,
)


def comparison(name: str, seeds: int) -> Comparison:
    """One of the library's agents."""
    agent = AGENTS[name]
    row = Row(f"{ENV}/{name}", agent.algorithm, "default", {"env": ENV, "steps": STEPS, **agent.changes})
    return Comparison("actor_critics", [row], range(seeds), Exam(0))


# --- the exam ------------------------------------------------------------------------------------------


def mean_returns(network: Network, weights: Mapping[int, np.ndarray], episodes: int) -> dict[int, float]:
    """The mean return of each seed's actor on the nominal pendulum, without exploration and from the same starts.

    Args:
      network: the actor with its critics.
      weights: seed -> its weights [n].
      episodes: how many are played.
    """
    env = named_environment(ENV)
    play = cell_player(env, weights_policy(network, env.actions, "mean"), episodes)
    nominal = {name: np.array([getattr(env.nominal, name)]) for name in env.box}
    return {seed: float(np.mean(play(theta[None], nominal, 0.0, _EXAM_SEED))) for seed, theta in weights.items()}


def training_seconds(config: Config, seeds: Sequence[int]) -> dict[int, float]:
    """Processor seconds of each seed's training by itself, without those of compiling and of trials.

    In the study seeds are trained together, which takes less time.
    """
    program = make_program(config)
    chunks = -(-config.steps // config.learner.chunk_steps)

    def trained(seed: int) -> float:
        states = jax.tree.map(lambda leaf: leaf[None], program.init(jax.random.key(seed)))
        began = time.process_time()
        for index in range(chunks):
            states, _ = jax.block_until_ready(program.advance(states, index))
        return time.process_time() - began

    trained(seeds[0])  # compiles
    return {seed: trained(seed) for seed in seeds}


def examined(its: list[Run], episodes: int) -> Scored:
    """Scores of trained runs of one row: of the weights that they end with."""
    config = its[0].row.config(its[0].seed)
    learner = config.make_learner()
    view = learner.view
    with config.arithmetic():
        weights = {run.seed: np.asarray(view.mean(runs.load_belief(run.folder, learner, "last"))) for run in its}
        seconds = training_seconds(config, list(weights))
        return _scores(mean_returns(view.network, weights, episodes), seconds)


def examined_files(
    files: Mapping[int, Path], kind: sb3_simulators.Kind, settings: sb3_simulators.Settings, episodes: int
) -> Scored:
    """Scores of what stable-baselines3 trained: of its last weights."""
    network = sb3_simulators.network_of(named_environment(ENV), kind, settings)
    trained = {seed: sb3_simulators.read(path, network, "processor_seconds") for seed, path in files.items()}
    weights = {seed: theta for seed, (theta, _) in trained.items()}
    return _scores(mean_returns(network, weights, episodes), {seed: its for seed, (_, its) in trained.items()})


def _scores(mean_return: Mapping[int, float], seconds: Mapping[int, float]) -> Scored:
    return {str(seed): {"mean_return": its, "seconds": seconds[seed]} for seed, its in mean_return.items()}


# --- the study -----------------------------------------------------------------------------------------


def plan_row(options: Options, name: str) -> Planned:
    """A row and how it is measured."""
    agent = AGENTS[name]
    if agent.algorithm.startswith("sb3:"):
        row = of_stable_baselines(options, name)
    else:
        examine = functools.partial(examined, episodes=options.episodes)
        row = of_agent(options, comparison(name, options.seeds), agent.seconds, examine)
    return row._replace(exam=_EXAM)


def of_stable_baselines(options: Options, name: str) -> Planned:
    """A row of stable-baselines3; without the package no seeds are wanted, and what is stored stays."""
    agent = AGENTS[name]
    kind: Any = agent.algorithm.removeprefix("sb3:")
    settings = SHARED._replace(**agent.changes)
    folder = options.out / "actor_critics" / ENV / name
    return of_another_library(
        options,
        {"algorithm": kind, "env": SIMULATOR, "steps": STEPS, **settings._asdict()},
        lambda seed: folder / f"seed-{seed}.safetensors",
        range(options.seeds if sb3.is_installed() else 0),
        functools.partial(sb3_simulators.train, kind=kind, env=SIMULATOR, steps=STEPS, edges=None, settings=settings),
        functools.partial(examined_files, kind=kind, settings=settings, episodes=options.episodes),
        agent.seconds,
    )


def plan_rows(options: Options) -> dict[str, dict[str, Planned]]:
    """Every row of the study."""
    return {ENV: {name: plan_row(options, name) for name in AGENTS}}


def measure(options: Options, path: Path, done: Done, agents: Sequence[str] = tuple(AGENTS)) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; seeds that it holds, of the same settings, are not measured again.
      done: called with what is being done and how much of the work it was.
      agents: rows to measure now; the others stay as they are.
    """
    about: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study actor_critics --seeds {options.seeds}",
        "env": ENV,
        "simulator": SIMULATOR,
        "horizon": named_environment(ENV).horizon,
        "steps": STEPS,
        "episodes": options.episodes,
        "shared": SHARED._asdict(),
        "action_noise": sb3_simulators.ACTION_NOISE,
        "trial_steps": _DEFAULT.trial_every * _DEFAULT.learner.chunk_steps,
        "refine_from": _DEFAULT.refine_from,
    }
    return measure_rows(path, about, plan_rows(options), done, lambda env, name: name in agents)


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    return sum(len(row.seeds) * (row.work + row.exam) for row in plan_rows(options)[ENV].values())


STUDY = Study(
    "actor_critics",
    "TD3 against stable-baselines3's TD3 and SAC on the pendulum",
    compare=lambda _: [],
    collect=_collect,
    page=actor_critics_page.page,
    figures=actor_critics_page.figures,
    tables=actor_critics_page.short_tables,
    more_work=_work,
)
