"""Agents on some environments, measured row by row: `defaults`, `robustness`, `logs`, `simulators`, `actor_critics`.

A row is an agent on one environment. It is stored as soon as its seeds are finished, so that an interrupted study goes
on where it was, and one with more seeds adds to what there is.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from deeprok.training import jobs
from studies.engine import Done, Found, Options, Run, prepare, runs_of, train, wait, write_json
from studies.plan import Comparison

#: Scores of trained seeds: seed -> ε -> score -> number.
Scored = dict[str, dict[str, Any]]

#: How long a seed is examined, in the unit of `Done`.
EXAM = 6.0

_REFERENCES = Path(__file__).parent.parent / "docs" / "environments" / "environments.json"


class Planned(NamedTuple):
    """A row and how it is measured.

    Attributes:
      settings: a short name of its settings; what is stored of others is measured again.
      seeds: those that are wanted.
      train: trains some seeds, and gives those that came to their end.
      examine: the scores of trained seeds.
      work: of training one seed, in the unit of `Done`.
      exam: of examining one seed, likewise.
    """

    settings: str
    seeds: Sequence[int]
    train: Callable[[Sequence[int]], list[int]]
    examine: Callable[[Sequence[int]], Scored]
    work: float
    exam: float = EXAM


#: Environment -> name of a row -> the row.
Plan = Mapping[str, Mapping[str, Planned]]


def of_agent(options: Options, compared: Comparison, work: float, examine: Callable[[list[Run]], Scored]) -> Planned:
    """A row of one of the library's agents.

    Args:
      options: folder and processes.
      compared: a comparison of this row alone.
      work: of training one seed, in the unit of `Done`.
      examine: the scores of trained runs.
    """
    (row,) = compared.rows
    runs = {run.seed: run for run in runs_of(options.out, compared)}

    def trained(seeds: Sequence[int]) -> list[int]:
        wanted = [runs[seed] for seed in seeds]
        prepare(options.out, wanted)
        train(row.name, wanted, options, silent, Console(stderr=True))
        return [run.seed for run in wanted if run.finished]

    return Planned(
        row.config(0).digest(), compared.seeds, trained, lambda seeds: examine([runs[seed] for seed in seeds]), work
    )


def of_another_library(
    options: Options,
    settings: Mapping[str, Any],
    file: Callable[[int], Path],
    seeds: Sequence[int],
    train: Callable[[Path, int], None],
    examine: Callable[[Mapping[int, Path]], Scored],
    work: float,
) -> Planned:
    """A row of an agent that another library trains, which leaves a file for each seed.

    Args:
      options: processes.
      settings: all that its training depends on.
      file: seed -> its file.
      seeds: those that are wanted.
      train: trains a seed and writes its file, in a process of its own.
      examine: the scores of some seeds' files.
      work: of training one seed, in the unit of `Done`.
    """

    def trained(wanted: Sequence[int]) -> list[int]:
        # Processes, as torch and gymnasium hold the interpreter's lock; spawned, as JAX runs threads.
        with ProcessPoolExecutor(options.jobs or jobs.count_cores(), multiprocessing.get_context("spawn")) as pool:
            missing = [seed for seed in wanted if not file(seed).exists()]
            wait([pool.submit(train, file(seed), seed) for seed in missing], pool, lambda: None)
        return [*wanted]

    return Planned(
        settings_name(settings), seeds, trained, lambda some: examine({seed: file(seed) for seed in some}), work
    )


def settings_name(settings: Mapping[str, Any]) -> str:
    """A short name of settings."""
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]


def silent(what: str, work: float) -> None:
    """The bar counts rows, not chunks."""


def measure_rows(
    path: Path, about: Found, planned: Plan, done: Done, chosen: Callable[[str, str], bool] = lambda env, name: True
) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      path: the JSON file; seeds that it holds, of the same settings, are not measured again.
      about: what the file holds beside the rows, with `episodes`, the test episodes in each cell.
      planned: every row that the file may hold.
      done: called with what is being done and how much of the work it was.
      chosen: `(environment, row) -> bool`, those to measure now; the others stay as they are.
    """
    stored = json.loads(path.read_text()) if path.exists() else {}
    found: Found = {
        **about,
        # What was measured before stays, also if this call is interrupted before it comes to that row.
        "rows": {
            env: {name: _stored_row(stored, env, name, row.settings, about["episodes"]) for name, row in rows.items()}
            for env, rows in planned.items()
        },
    }
    for env, rows in planned.items():
        for name, row in rows.items():
            if chosen(env, name):
                _measure_row(f"{env}: {name}", row, found["rows"][env][name], done)
                write_json(path, found)
    return found


def _measure_row(what: str, row: Planned, its: dict[str, Any], done: Done) -> None:
    missing = [seed for seed in row.seeds if str(seed) not in its["seeds"]]
    done(what, (len(row.seeds) - len(missing)) * (row.work + row.exam))
    if missing:
        finished = row.train(missing)
        done(what, len(missing) * row.work)
        its["seeds"] |= row.examine(finished) if finished else {}
        its["diverged"] = sorted({*its["diverged"], *missing} - set(finished))
        done(what, len(missing) * row.exam)


def _stored_row(stored: Mapping[str, Any], env: str, name: str, settings: str, episodes: int) -> dict[str, Any]:
    """What was measured before with the same settings and as many episodes."""
    its = stored.get("rows", {}).get(env, {}).get(name, {})
    if its.get("settings") == settings and stored.get("episodes") == episodes:
        return {"settings": settings, "seeds": dict(its["seeds"]), "diverged": its["diverged"]}
    return {"settings": settings, "seeds": {}, "diverged": []}


def scores(mean_return: np.ndarray, success: np.ndarray) -> dict[str, float]:
    """What is reported of a run at one ε, over the cells of the grid, each played equally often.

    Args:
      mean_return: mean return in each cell, of any shape.
      success: share of successes in each cell.
    """
    returns = np.sort(mean_return, axis=None)
    return {
        "success": float(np.mean(success)),
        "mean_return": float(np.mean(returns)),
        "worst_cell": float(returns[0]),
        # The mean of the worst tenth of the cells, at least one.
        "cvar10": float(np.mean(returns[: max(1, round(0.1 * len(returns)))])),
        "worst_success": float(np.min(success)),
    }


def references(envs: Sequence[str]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
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
        for name in envs
    }
