"""The Kalman agents: covariance structures, exploration, robustness level, calibration and warm starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import View
from deeprok.core.files import read_numbers
from deeprok.environments.base import in_jax
from deeprok.environments.ferry import exact_robust_q
from deeprok.evaluation import calibration
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import cautious_policy
from deeprok.runs import folder as runs
from deeprok.uncertainty.models import parse_grid, parse_models
from studies import figures, kalman_page, plan
from studies.engine import Found, Options, Run, Session, Study, write_json
from studies.exam import CONDITIONS, EPSILON, Condition
from studies.plan import Comparison

#: κ of the policies that act on Q − κσ.
KAPPAS = (-1.0, 0.0, 1.0, 3.0)
_CAUTIOUS_WORK = 60.0
_CAUTIOUS_CONDITIONS = {
    "grid": Condition("the grid"),
    **{name: CONDITIONS[name] for name in ("outside", "sensor_noise")},
}


def _compare(options: Options) -> list[Comparison]:
    seeds, episodes = options.seeds, options.episodes
    return [
        plan.structures(seeds, episodes),
        plan.exploration(seeds, episodes),
        plan.confidence(seeds, episodes),
        plan.nominal_filter(seeds, episodes),
        plan.structure_tuning(episodes),
        plan.ferry(seeds),
        plan.warm_start(seeds, episodes),
    ]


def _collect(session: Session) -> Found:
    return {
        **session.numbers(),
        "calibration": {
            "ekf_dqn": calibration.calibrate(session.options.out / "nominal" / "ekf_dqn").to_dict(),
            **_crossings(session.finished("ferry")),
        },
        "cautious": _cautious(session),
    }


def _crossings(rows: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Intervals of Deep-RoK for the robust Q* of the ferry, which is known exactly."""
    found = {}
    for name, its in rows.items():
        config = its[0].row.config(0)
        env = config.make_env()
        models = parse_models(config.fixed_models, env.nominal)
        exact = exact_robust_q(in_jax(env, "the study"), models, config.discount)
        learner = config.make_learner()
        assert learner.view.values
        values = jax.jit(learner.view.values)
        intervals = {}
        for run in its:
            belief = runs.load_belief(run.folder, learner, "last")
            mean, deviation = values(belief, jnp.asarray(exact.cells[exact.reachable], float))
            intervals[run.seed] = calibration.Intervals(
                np.asarray(mean, float), np.asarray(deviation, float), exact.q[exact.reachable]
            )
        found[f"ferry {name}"] = calibration.summarise(intervals).to_dict()
    return found


def _cautious(session: Session) -> dict[str, Any]:
    """Success of Deep-RoK's policy on Q − κσ, on the grid and beyond."""
    played = session.finished("structures")["full"][: plan.CAUTIOUS_SEEDS]
    learner = played[0].row.config(0).make_learner()
    episodes = plan.cautious_exam(session.options.episodes).grid
    found: dict[str, Any] = {}
    for kappa in KAPPAS:
        scores: dict[str, list[float]] = {}
        for run in played:
            path = run.folder / f"cautious-{kappa:g}-{episodes}.json"
            if not path.exists():
                session.done(f"cautious: κ {kappa:g}", 0.0)
                belief = runs.load_belief(run.folder, learner, "last")
                write_json(path, _play_cautiously(learner.view, belief, kappa, episodes))
                session.done(f"cautious: κ {kappa:g}", _CAUTIOUS_WORK / len(played))
            for name, value in read_numbers(path, dict.fromkeys(_CAUTIOUS_CONDITIONS, ())).items():
                scores.setdefault(name, []).append(value)
        found[f"{kappa:g}"] = {name: float(np.mean(values)) for name, values in scores.items()}
    return found


def _play_cautiously(view: View, belief: Any, kappa: float, episodes: int) -> dict[str, float]:
    scores = {}
    for name, condition in _CAUTIOUS_CONDITIONS.items():
        grid, env = condition.grid, condition.change(in_jax(view.env, "the study"))
        play = cell_player(env, cautious_policy(view, kappa), episodes)
        returns = play(belief, grid_cells(env, parse_grid(grid, env.nominal)), EPSILON)[:-1]
        scores[name] = float((returns > env.success_return).mean())
    return scores


STUDY = Study(
    "kalman",
    "the Kalman agents: structures, exploration, calibration",
    compare=_compare,
    collect=_collect,
    page=kalman_page.kalman_page,
    figures=figures.of_filters,
    tables=kalman_page.short_tables,
    more_work=lambda _: len(KAPPAS) * _CAUTIOUS_WORK,
)
