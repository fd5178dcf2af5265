"""The preset `default` on every environment: agents with the same settings everywhere, against the known references.

The references are those of the study `environments`: exact or best-known policies, on the same grids of models.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from deeprok.evaluation.grid import evaluate
from studies import defaults_page
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file, runs_of
from studies.exam import EPSILON, PAPER_GRID, Exam
from studies.measured import EXAM, Scored, measure_rows, of_agent, references, scores
from studies.plan import Comparison, Row
from studies.screening import EPSILONS, case_of, cells_episodes

#: The nominal model alone, random models, and the worst case with a gradient and with the filter.
AGENTS = ("ddqn", "ddqn_dr", "rtd_dqn", "deep_rok")
#: Those where an action is a choice; the deep sea is a test of exploration.
ENVS = ("ferry", "market", "mountain_car", "road", "swing_up", "rocket", "acrobot", "cartpole", "hard_cartpole")

#: Those that move on the page `report.html`, the most telling first.
LIVE = ("road", "mountain_car", "swing_up", "rocket", "acrobot", "cartpole")

#: Where there is a preset that was tuned for the environment, and the results of that preset.
TUNED_ENV = "cartpole"
_TUNED = Path(__file__).parent.parent / "docs" / "results" / "results.json"

# How long parts of the work take, in seconds on one core. Only their ratios count, for the time left.
_TRAINING = {"ddqn": 10.0, "ddqn_dr": 10.0, "rtd_dqn": 20.0, "deep_rok": 40.0}


def comparison(env: str, agents: Sequence[str], seeds: int) -> Comparison:
    """The agents on one environment, each with the preset and nothing else."""
    rows = [Row(f"{env}/{agent}", agent, "default", {"env": env}) for agent in agents]
    return Comparison("defaults", rows, range(seeds), Exam(0))


def live_folders(options: Options) -> list[Path]:
    """The runs that the page shows, each a folder of seeds."""
    folders = (run.folder for env in LIVE for run in runs_of(options.out, comparison(env, AGENTS, 1)))
    return [folder.parent for folder in folders]


def examined(runs: list[Run], env: str, episodes: int) -> Scored:
    """Scores of trained runs of one row: seed -> ε -> score -> number."""
    folders = [str(run.folder) for run in runs]
    found: Scored = {str(run.seed): {} for run in runs}
    for epsilon in EPSILONS:
        result = evaluate(folders, case_of(env).axes, episodes, epsilon, keep="last")
        for one in result.per_seed:
            found[str(one.seed)][f"{epsilon:g}"] = scores(one.mean_return, one.success)
    if env == TUNED_ENV:
        for one in evaluate(folders, PAPER_GRID, episodes, EPSILON, keep="last").per_seed:
            found[str(one.seed)]["paper"] = scores(one.mean_return, one.success)
    return found


def tuned_successes(agents: Sequence[str]) -> dict[str, list[float]]:
    """The success of each seed of the paper's experiment with the preset `tuned`, by agent."""
    stored = json.loads(_TUNED.read_text())["agents"]
    return {agent: stored[agent]["per_seed"]["success"] for agent in agents}


def measure(
    options: Options, path: Path, done: Done, envs: Sequence[str] = ENVS, agents: Sequence[str] = AGENTS
) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; runs that it holds, of the same settings, are not examined again.
      done: called with what is being done and how much of the work it was.
      envs: environments to measure now; the others stay as they are.
      agents: algorithms to measure now.
    """
    episodes = cells_episodes(options.episodes)  # as many, and the same ones, as the references were played
    about: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study defaults --seeds {options.seeds}",
        "episodes": episodes,
        "epsilons": list(EPSILONS),
        "references": references(ENVS),
        "tuned": {"env": TUNED_ENV, "epsilon": EPSILON, "success": tuned_successes(AGENTS)},
    }
    planned = {
        env: {
            agent: of_agent(
                options,
                comparison(env, [agent], options.seeds),
                _TRAINING[agent],
                functools.partial(examined, env=env, episodes=episodes),
            )
            for agent in AGENTS
        }
        for env in ENVS
    }
    return measure_rows(path, about, planned, done, lambda env, agent: env in envs and agent in agents)


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def work(options: Options, envs: Sequence[str] = ENVS) -> float:
    """What all agents on these environments cost, in the unit of `Done`."""
    return len(envs) * options.seeds * sum(training + EXAM for training in _TRAINING.values())


STUDY = Study(
    "defaults",
    "the preset default on every environment, against references",
    compare=lambda _: [],
    collect=_collect,
    page=defaults_page.page,
    figures=defaults_page.figures,
    tables=defaults_page.short_tables,
    more_work=work,
    shown=live_folders,
)
