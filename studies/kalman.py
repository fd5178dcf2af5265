"""The Kalman family, measured: structures, exploration, changing confidence, caution, calibration, warm starts.

Like the paper's experiment it adds up: whatever is finished stays in the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from deeprok.core.files import read_numbers
from deeprok.environments.ferry import exact_robust_q
from deeprok.evaluation import calibration
from deeprok.evaluation.grid import cautious_policy, cell_player, grid_cells, network_policy
from deeprok.runs import folder as runs
from deeprok.training.progress import work_bar
from deeprok.training.scan import make_program
from deeprok.uncertainty.models import parse_grid, parse_models
from studies import engine, figures, kalman_page, plan
from studies.engine import Done, Run
from studies.exam import CONDITIONS, EPSILON, Condition
from studies.plan import Study
from studies.results import Summary, summarise

#: κ of the cautious policies, and seeds that play them: each step asks the covariance of every action.
KAPPAS = (-1.0, 0.0, 1.0, 3.0)
_CAUTIOUS_SEEDS = 3
_CAUTIOUS = 60.0
_CAUTIOUS_WORLDS = {"grid": Condition("the grid"), **{name: CONDITIONS[name] for name in ("outside", "sensor_noise")}}


@engine.in_its_folder
def study_filters(
    seeds: int = 20,
    out: Path = Path("reproduce"),
    resume: bool = False,
    episodes: int = 500,
    processes: int | None = None,
    console: Console | None = None,
    results: Console | None = None,
) -> dict[str, Any]:
    """Trains and examines the Kalman agents in all their forms.

    Args:
      seeds: seeds of the exploration; of the rest at most 10.
      out: folder for runs, results and figures; what it already holds is not done again.
      resume: refuse to begin anew: `out` must be there.
      episodes: test episodes in each cell; most questions take a fifth of them.
      processes: training processes at once; by default one for each core.
      console: where progress goes.
      results: where the table goes.

    Returns:
      What `kalman.json` holds.
    """
    console, results = console or Console(stderr=True), results or Console()
    on_cartpole = [
        plan.structures(seeds, episodes),
        plan.exploration(seeds, episodes),
        plan.confidence(seeds, episodes),
        plan.nominal_filter(seeds, episodes),
        plan.structure_tuning(episodes),
    ]
    elsewhere = [plan.deep_sea(seeds), plan.ferry(seeds)]
    later = plan.warm_start(seeds, episodes)  # whose runs begin with beliefs that others end with
    prepared = {study.name: engine.prepare(out, study) for study in (*on_cartpole, *elsewhere)}
    total = sum(
        engine.work(run, study in on_cartpole) for study in (*on_cartpole, *elsewhere) for run in prepared[study.name]
    )
    total += 3 * engine.REFERENCE + len(later.rows) * len(later.seeds) * engine.EXAM + len(KAPPAS) * _CAUTIOUS
    with work_bar(console, total) as done:
        ceiling = engine.references(out, on_cartpole[0].exam, done)["lqr"]
        tables: dict[str, dict[str, Summary]] = {}
        for study in (*on_cartpole, later):
            its = prepared.get(study.name) or engine.prepare(out, study)
            engine.train(study.name, its, processes, done, console)
            engine.examine(study.name, its, processes, done)
            tables[study.name] = engine.table(study, its, ceiling)
        for study in elsewhere:
            engine.train(study.name, prepared[study.name], processes, done, console)
        found: dict[str, Any] = {
            "format": 1,
            "test_episodes": on_cartpole[0].exam.grid,
            "conditions": {name: condition.what for name, condition in CONDITIONS.items()},
            "ceiling": summarise({0: ceiling}, ceiling, ""),
            "tables": tables,
            "deep_sea": _dives(elsewhere[0], prepared["deep_sea"]),
            "calibration": {
                "ekf_dqn": calibration.calibrate(out / "nominal" / "ekf_dqn").to_dict(),
                **_crossings(elsewhere[1], prepared["ferry"]),
            },
            "cautious": _cautious(out, episodes, done),
        }
    engine.write_report(out, "kalman", found, figures.of_filters(found), kalman_page.kalman_page(found))
    engine.print_report(out, "kalman", kalman_page.short_tables(found), results)
    return found


def _dives(study: Study, prepared: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """For each depth and way to explore: when the treasure was found first, and whether the policy kept to it."""
    found: dict[str, dict[str, Any]] = {}
    for row in study.rows:
        config = row.config(0)
        its = [run for run in prepared if run.row is row and run.finished]
        world = config.make_world()
        first, kept = [], []
        play = cell_player(world, network_policy(config.make_network(world), "mean"), 1)
        cells = grid_cells(world, {"treasure": np.array([world.nominal.treasure])})
        for run in its:
            returns = np.array([x for line in runs.read_metrics(run.folder) for x in line["returns"]])
            wins = np.flatnonzero(returns > world.success_return)
            first.append(int(wins[0]) + 1 if len(wins) else None)
            program = make_program(config)
            theta = program.estimator.mean(runs.load_belief(run.folder, program, "last"))
            kept.append(bool(play(np.asarray(theta)[None], cells, 0.0)[-1, 0] > world.success_return))
        found.setdefault(str(config.horizon), {})[config.explore] = {
            "first": first,
            "kept": kept,
            "episodes": config.episodes,
            "median_first": float(np.median([config.episodes + 1 if x is None else x for x in first])),
        }
    return found


def _crossings(study: Study, prepared: Sequence[Run]) -> dict[str, Any]:
    """Intervals of Deep-RoK for the robust Q* of the ferry, which is known exactly."""
    found = {}
    for row in study.rows:
        config = row.config(0)
        world = config.make_world()
        models = parse_models(config.fixed_models, world.nominal)
        exact = exact_robust_q(world, models, config.discount)
        program = make_program(config)
        assert program.values
        values = jax.jit(program.values)
        intervals = {}
        for run in prepared:
            if run.row is row and run.finished:
                belief = runs.load_belief(run.folder, program, "last")
                mean, deviation = values(belief, jnp.asarray(exact.cells[exact.reachable], float))
                intervals[run.seed] = calibration.Intervals(
                    np.asarray(mean, float), np.asarray(deviation, float), exact.q[exact.reachable]
                )
        found[f"ferry {row.name}"] = calibration.summarise(intervals).to_dict()
    return found


def _cautious(out: Path, episodes: int, done: Done) -> dict[str, Any]:
    """Success over the grid and beyond of Q − κσ, for Deep-RoK's posterior."""
    row = next(row for row in plan.structures(1, episodes).rows if row.name == "full")
    folders = runs.find(out / "structures" / "full")[:_CAUTIOUS_SEEDS]
    program = make_program(row.config(0))
    each = max(1, episodes // 50)
    found: dict[str, Any] = {}
    for kappa in KAPPAS:
        scores: dict[str, list[float]] = {}
        for folder in folders:
            path = folder / f"cautious-{kappa:g}-{each}.json"
            if not path.exists():
                done(f"cautious: κ {kappa:g}", 0.0)
                belief = runs.load_belief(folder, program, "last")
                engine.write_json(path, _play_cautiously(program, belief, kappa, each))
                done(f"cautious: κ {kappa:g}", _CAUTIOUS / len(folders))
            for name, value in read_numbers(path, dict.fromkeys(_CAUTIOUS_WORLDS, ())).items():
                scores.setdefault(name, []).append(value)
        found[f"{kappa:g}"] = {name: float(np.mean(values)) for name, values in scores.items()}
    return found


def _play_cautiously(program: Any, belief: Any, kappa: float, episodes: int) -> dict[str, float]:
    scores = {}
    for name, condition in _CAUTIOUS_WORLDS.items():
        grid, world = condition.grid, condition.change(program.world)
        play = cell_player(world, cautious_policy(program.network, program.estimator, kappa), episodes)
        returns = play(belief, grid_cells(world, parse_grid(grid, world.nominal)), EPSILON)[:-1]
        scores[name] = float((returns > world.success_return).mean())
    return scores
