"""The paper's question, asked of many seeds: what do the robust label and the Kalman belief buy?

Trains what is missing, examines it, compares it with references, and writes `results.json`, a page
and figures. Whatever is finished stays in the folder, run by run, so that a later call adds to it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from deeprok.core.errors import DeeprokError
from deeprok.environments import cartpole
from deeprok.runs import checkpoint
from deeprok.training import jobs
from deeprok.training.progress import work_bar
from deeprok.uncertainty.models import parse_grid
from studies import engine, figures, page, plan, sb3
from studies.exam import CONDITIONS, EPSILON, LENGTHS, Exam, Scores, read_scores
from studies.plan import Study
from studies.results import Summary, improvement, needed, summarise
from studies.statistics import estimate, ratio_of_iqms

#: Called with what is being done and how much of the work it was.
Done = Callable[[str, float], None]

_MEMBERS = 20  # of an ensemble drawn from a posterior

# What a run of it takes, in the seconds that `studies` counts in.
_SB3 = 60.0


@engine.in_its_folder
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
    out = Path(out)
    if full:
        sb3.check_installed()
    chosen = _studies(seeds, preset, full, episodes)
    prepared = {study.name: engine.prepare(out, study) for study in chosen}
    everything = [run for prepared_runs in prepared.values() for run in prepared_runs]
    total = sum(engine.work(run) for run in everything) + 3 * engine.REFERENCE
    others = min(seeds, plan.SB3_SEEDS) if full else 0
    total += 2 * others * (_SB3 + engine.EXAM)
    with work_bar(console, total) as done:
        references = engine.references(out, chosen[0].exam, done)
        for name, prepared_runs in prepared.items():
            engine.train(name, prepared_runs, processes, done, console)
            engine.examine(name, prepared_runs, processes, done)
        stable = _stable_baselines(out, others, episodes, processes, done) if full else {}
    found = _collect(chosen, prepared, references, stable, preset)
    engine.write_report(out, "results", found, figures.of_results(found), page.results_page(found))
    _print(found, out, results)
    return found


def _studies(seeds: int, preset: str, full: bool, episodes: int) -> list[Study]:
    """What is to be done; the agents of the preset come first."""
    chosen = [plan.agents(preset, seeds, episodes, every=full)]
    if full:
        other = "paper" if preset == "tuned" else "tuned"
        fewer = min(seeds, plan.FEWER_SEEDS)
        chosen += [plan.fastest(seeds, episodes), plan.tuning(episodes), plan.best(seeds, episodes)]
        chosen += [plan.agents(other, fewer, episodes, every=True), plan.ablation(fewer, episodes)]
    return chosen


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
        engine.wait(training, pool, lambda: done("stable-baselines3: training", _SB3))
    found: dict[str, dict[int, Scores]] = {name: {} for name in rows}
    for (name, seed), path in paths.items():
        scores = path.with_name(f"scores-{seed}-{'-'.join(map(str, exam))}.json")
        if not scores.exists():
            theta = checkpoint.load(path, "theta", template)
            engine.write_json(scores, engine.examiner(network, "mean", exam)(np.asarray(theta)[None]))
        done("stable-baselines3: examining", engine.EXAM)
        found[name][seed] = read_scores(scores, exam)
    return found


def _collect(
    chosen: list[Study],
    prepared: Mapping[str, list[engine.Run]],
    references: Mapping[str, Scores],
    stable: Mapping[str, Mapping[int, Scores]],
    preset: str,
) -> dict[str, Any]:
    """What `results.json` holds."""
    ceiling = references["lqr"]
    tables: dict[str, dict[str, Summary]] = {}
    for study in chosen:
        tables[study.name] = {}
        for row in study.rows:
            its = [run for run in prepared[study.name] if run.row is row]
            scores = {run.seed: run.read_scores() for run in its if run.scores.exists()}
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
        "grid": engine.paper_grid(),
        "lengths": parse_grid(LENGTHS, world.nominal)["pole_length"].tolist(),
        "epsilon": EPSILON,
        "test_episodes": chosen[0].exam.grid,
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


def _print(found: Mapping[str, Any], out: Path, results: Console) -> None:
    count = max(agent["seeds"] for agent in found["agents"].values())
    title = (
        f"preset {found['preset']}, {count} seed{'s' if count > 1 else ''}, 7 × 7 grid, ε = {found['epsilon']:g}, "
        f"{found['test_episodes']} episodes a cell"
    )
    table = page.main_table({**found["agents"], **found["references"]}, short=True)
    engine.print_report(out, "results", [(title, *table)], results)
