"""The paper's experiment with many seeds: what do the robust target and the Kalman filter contribute?"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import numpy as np

from deeprok.environments import cartpole
from deeprok.runs import checkpoint
from deeprok.training import jobs
from deeprok.uncertainty.models import parse_grid
from studies import engine, figures, page, plan, sb3
from studies.engine import Done, Found, Options, Session, Study
from studies.exam import EPSILON, LENGTHS, Scores, read_scores
from studies.plan import Comparison
from studies.results import Summary, improvement, needed, summarise
from studies.statistics import estimate, ratio_of_iqms

# How long a run of stable-baselines3 takes, in the unit of `Done`.
_SB3_WORK = 60.0


def _compare(options: Options) -> list[Comparison]:
    if options.full:
        sb3.check_installed()  # before anything is trained
    return comparisons(options.seeds, options.preset, options.full, options.episodes)


def comparisons(seeds: int, preset: str, full: bool, episodes: int) -> list[Comparison]:
    """The agents of the preset come first."""
    chosen = [plan.agents(preset, seeds, episodes, every=full)]
    if full:
        other = "paper" if preset == "tuned" else "tuned"
        fewer = min(seeds, plan.FEWER_SEEDS)
        chosen += [plan.fastest(seeds, episodes), plan.tuning(episodes), plan.best(seeds, episodes)]
        chosen += [plan.agents(other, fewer, episodes, every=True), plan.ablation(fewer, episodes)]
    return chosen


def _sb3_seeds(options: Options) -> int:
    return min(options.seeds, plan.SB3_SEEDS) if options.full else 0


def _stable_baselines(options: Options, done: Done) -> dict[str, dict[int, Scores]]:
    """stable-baselines3's DQN on the nominal model and under domain randomisation."""
    exam = plan.sb3_exam(options.episodes)
    network = sb3.network()
    template: Any = jax.ShapeDtypeStruct((network.num_weights,), np.dtype("float32"))
    rows = {"sb3_dqn": False, "sb3_dqn_dr": True}
    paths = {
        (name, seed): options.out / "references" / name / f"seed-{seed}.safetensors"
        for name in rows
        for seed in range(_sb3_seeds(options))
    }
    # Processes, as torch and gymnasium hold the interpreter's lock; spawned, as JAX runs threads.
    with ProcessPoolExecutor(options.jobs or jobs.count_cores(), multiprocessing.get_context("spawn")) as pool:
        training = [
            pool.submit(sb3.train, path, rows[name], seed) for (name, seed), path in paths.items() if not path.exists()
        ]
        done("stable-baselines3: training", (len(paths) - len(training)) * _SB3_WORK)
        engine.wait(training, pool, lambda: done("stable-baselines3: training", _SB3_WORK))
    found: dict[str, dict[int, Scores]] = {name: {} for name in rows}
    for (name, seed), path in paths.items():
        scores = path.with_name(f"scores-{seed}-{'-'.join(map(str, exam))}.json")
        if not scores.exists():
            theta = checkpoint.load(path, "theta", template)
            engine.write_json(scores, engine.examiner(network, "mean", exam)(np.asarray(theta)[None]))
        done("stable-baselines3: examining", engine.EXAM)
        found[name][seed] = read_scores(scores, exam)
    return found


def _collect(session: Session) -> Found:
    preset = session.options.preset
    stable = _stable_baselines(session.options, session.done) if session.options.full else {}
    numbers = session.numbers()
    ceiling = session.references["lqr"]
    tables = numbers.pop("tables")
    del numbers["ceiling"]  # it is among the references
    agents = tables[preset]
    return {
        **numbers,
        "preset": preset,
        "lengths": parse_grid(LENGTHS, cartpole().nominal)["pole_length"].tolist(),
        "epsilon": EPSILON,
        "agents": agents,
        "references": {
            **{name: summarise({0: scores}, ceiling, "") for name, scores in session.references.items()},
            **{name: summarise(scores, ceiling, "") for name, scores in stable.items()},
        },
        "linear_weights": session.references["linear"]["gain"],
        "improvement": improvement(agents),
        "studies": {name: table for name, table in tables.items() if name != preset},
        "speed": {name: _speed(table) for name, table in tables.items() if name in (preset, "fastest")},
    }


def _speed(table: Mapping[str, Summary]) -> dict[str, Any]:
    """Deep-RoK's episodes to 95 % of the ceiling's return over RTD-DQN's."""
    times = [
        needed(table[name]["per_seed_episodes_to_95"], table[name]["curve"]["episodes"])
        for name in ("deep_rok", "rtd_dqn")
    ]
    ratio = estimate(ratio_of_iqms, *times)
    return {"value": ratio.value, "ci": list(ratio.interval) if ratio.interval else None}


STUDY = Study(
    "results",
    "the paper's experiment: six agents on the uncertain Cart-Pole",
    compare=_compare,
    collect=_collect,
    page=page.results_page,
    figures=figures.of_results,
    tables=page.short_tables,
    presets=True,
    more_work=lambda options: 2 * _sb3_seeds(options) * (_SB3_WORK + engine.EXAM),
    shown=lambda options: [options.out / options.preset / agent for agent in plan.PAPER_AGENTS],
)
