"""The preset `default` on every environment: agents with the same settings everywhere, against the known references.

The references are those of the study `environments`: exact or best-known policies, on the same grids of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.result import SeedScores
from studies import defaults_page
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file, prepare, runs_of, train, write_json
from studies.exam import Exam
from studies.plan import Comparison, Row
from studies.screening import EPSILONS, case_of, cells_episodes

#: The nominal model alone, random models, and the worst case with a gradient and with the filter.
AGENTS = ("ddqn", "ddqn_dr", "rtd_dqn", "deep_rok")
#: Those where an action is a choice; the deep sea is a test of exploration.
ENVS = ("ferry", "market", "mountain_car", "road", "swing_up", "rocket", "acrobot", "cartpole", "hard_cartpole")

_REFERENCES = Path(__file__).parent.parent / "docs" / "environments" / "environments.json"

# How long parts of the work take, in seconds on one core. Only their ratios count, for the time left.
_TRAINING = {"ddqn": 10.0, "ddqn_dr": 10.0, "rtd_dqn": 30.0, "deep_rok": 75.0}
_EXAM = 6.0


def comparison(env: str, agents: Sequence[str], seeds: int) -> Comparison:
    """The agents on one environment, each with the preset and nothing else."""
    rows = [Row(f"{env}/{agent}", agent, "default", {"env": env}) for agent in agents]
    return Comparison("defaults", rows, range(seeds), Exam(0))


def scores(one: SeedScores) -> dict[str, float]:
    """What is reported of a run at one ε: over the cells of the grid, each played equally often."""
    returns = np.sort(one.mean_return, axis=None)
    return {
        "success": one.overall.success,
        "mean_return": one.overall.mean_return,
        "worst_cell": float(returns[0]),
        # The mean of the worst tenth of the cells, at least one.
        "cvar10": float(np.mean(returns[: max(1, round(0.1 * len(returns)))])),
        "worst_success": float(np.min(one.success)),
    }


def examined(runs: Sequence[Run], env: str, episodes: int) -> dict[str, dict[str, dict[str, float]]]:
    """Scores of trained runs of one row: seed -> ε -> score -> number."""
    folders = [str(run.folder) for run in runs]
    found: dict[str, dict[str, dict[str, float]]] = {str(run.seed): {} for run in runs}
    for epsilon in EPSILONS:
        result = evaluate(folders, case_of(env).axes, episodes, epsilon, keep="last")
        for one in result.per_seed:
            found[str(one.seed)][f"{epsilon:g}"] = scores(one)
    return found


def references() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Environment -> ε -> policy -> success and worst cell, of the policies that are known."""
    stored = json.loads(_REFERENCES.read_text())["environments"]
    return {
        name: {
            epsilon: {
                policy: {
                    "success": float(np.mean(its["success"][i])),
                    "worst_cell": float(np.min(its["mean_return"][i])),
                }
                for i, policy in enumerate(its["policies"])
            }
            for epsilon, its in stored[name].items()
        }
        for name in ENVS
    }


def measure(
    options: Options, path: Path, done: Done, envs: Sequence[str] = ENVS, agents: Sequence[str] = AGENTS
) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; runs that it holds, of the same settings, are not examined again.
      done: called with what is being done and how much of the work it was.
      envs: environments.
      agents: algorithms.
    """
    stored = json.loads(path.read_text()) if path.exists() else {}
    episodes = cells_episodes(options.episodes)  # as many, and the same ones, as the references were played
    planned = {env: {agent: comparison(env, [agent], options.seeds) for agent in agents} for env in envs}
    found: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study defaults --seeds {options.seeds}",
        "episodes": episodes,
        "epsilons": list(EPSILONS),
        "references": references(),
        # What was measured before stays, also if this call is interrupted before it comes to that row.
        "rows": {
            env: {
                agent: _stored_row(stored, env, agent, its.rows[0].config(0).digest(), episodes)
                for agent, its in row.items()
            }
            for env, row in planned.items()
        },
    }
    console = Console(stderr=True)
    for env, row in planned.items():
        for agent, compared in row.items():
            its = found["rows"][env][agent]
            missing = [run for run in runs_of(options.out, compared) if str(run.seed) not in its["seeds"]]
            done(f"{env}: {agent}", (options.seeds - len(missing)) * (_TRAINING[agent] + _EXAM))
            if missing:
                prepare(options.out, missing)
                train(f"{env}: {agent}", missing, options.jobs, _silent, console)
                done(f"{env}: {agent}", len(missing) * _TRAINING[agent])
                finished = [run for run in missing if run.finished]
                its["seeds"] |= examined(finished, env, episodes) if finished else {}
                its["diverged"] = sorted({*its["diverged"], *(r.seed for r in missing)} - {r.seed for r in finished})
                done(f"{env}: {agent}", len(missing) * _EXAM)
            write_json(path, found)
    return found


def _stored_row(stored: Mapping[str, Any], env: str, agent: str, settings: str, episodes: int) -> dict[str, Any]:
    """What was measured before with the same settings and as many episodes."""
    its = stored.get("rows", {}).get(env, {}).get(agent, {})
    if its.get("settings") == settings and stored.get("episodes") == episodes:
        return {"settings": settings, "seeds": dict(its["seeds"]), "diverged": its["diverged"]}
    return {"settings": settings, "seeds": {}, "diverged": []}


def _silent(what: str, work: float) -> None:
    """The bar counts rows, not chunks."""


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    return len(ENVS) * options.seeds * sum(work + _EXAM for work in _TRAINING.values())


STUDY = Study(
    "defaults",
    "the preset default on every environment, against exact or best-known policies",
    compare=lambda _: [],
    collect=_collect,
    page=defaults_page.page,
    figures=defaults_page.figures,
    tables=defaults_page.short_tables,
    more_work=_work,
)
