"""Can the posterior be believed? Intervals for Q against simulated values, and what deviations are good for.

Three posteriors are compared: the Kalman filter's, that of Bayes by Backprop, and five Q-networks trained apart. Each
has the nominal target, on the nominal model, and the robust one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from deeprok.agents.clock import Clock
from deeprok.agents.correction import Fitted, fit_correction, no_correction
from deeprok.agents.learner import Learner, View
from deeprok.agents.network import Network
from deeprok.environments import Environment
from deeprok.environments.base import in_jax
from deeprok.environments.rollout import begin_episodes, rollout
from deeprok.evaluation import calibration
from deeprok.evaluation.calibration import Intervals, make_intervals
from deeprok.evaluation.grid import evaluate
from deeprok.evaluation.play import grid_cells
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from studies import calibration_page
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file, prepare, runs_of, train, write_json
from studies.exam import Exam
from studies.plan import Comparison, Row

ENVS = ("cartpole", "ferry", "road", "swing_up")
#: Posterior -> its agent with the nominal target, and with the robust one.
POSTERIORS = {"filter": ("ekf_dqn", "deep_rok"), "bbb": ("bbb_dqn", "bbb_rtd"), "ensemble": ("dqn", "rtd_dqn")}
TARGETS = ("nominal", "robust")
_MEMBERS = 5  # of an ensemble

#: The truth: states of each seed, and model sets that values are averaged over. Not the seed that runs correct by.
_STATES, _MODELS, _SEED = 100, 8, 0
_HELD_OUT = (64, 8, 20170309)

#: Beyond the box: values of each parameter, and how far they reach on either side, in widths of the box.
_BEYOND, _REACH = 7, 0.5
_EPISODES = 20  # in each cell
KAPPAS = (0.0, 1.0, 3.0)

# How long parts of the work take, in seconds on one core. Only their ratios count, for the time left.
_TRAINING = {"filter": 40.0, "bbb": 25.0, "ensemble": 20.0}
_MEASURING = 10.0


def comparison(env: str, target: str, posterior: str, seeds: int) -> Comparison:
    """The runs of one agent; those of the robust target are runs of the study `defaults`."""
    agent = POSTERIORS[posterior][TARGETS.index(target)]
    if target == "robust":
        return Comparison("defaults", [Row(f"{env}/{agent}", agent, "default", {"env": env})], range(seeds), Exam(0))
    row = Row(f"{env}/{agent}", agent, "default", {"env": env, "acting": "nominal"})
    return Comparison("calibration", [row], range(seeds), Exam(0))


class Averaged(NamedTuple):
    """Networks of equal shape whose outputs are averaged."""

    network: Network

    def apply(self, thetas: jax.Array, obs: jax.Array) -> jax.Array:
        """The mean output of weights [K, n]."""
        return jnp.mean(self.outputs(thetas, obs), axis=0)

    def outputs(self, thetas: jax.Array, obs: jax.Array) -> jax.Array:
        """The outputs of each, with a first axis K."""
        return jax.vmap(self.network.apply, (0, None))(thetas, obs)


def ensemble_view(view: View) -> View:
    """Weights [K, n] of agents trained apart as if they were one agent's posterior."""
    together = Averaged(view.network)

    def values(thetas: jax.Array, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = together.outputs(thetas, obs)
        return jnp.mean(each, axis=0), jnp.std(each, axis=0, ddof=1)

    return view._replace(network=together, mean=lambda thetas: thetas, values=values)  # type: ignore[arg-type]


class Agent(NamedTuple):
    """What is examined: a seed, or five of them together."""

    name: str
    belief: Any
    level: float  # of the ambiguity set that its values are learned with
    stated: Callable[[Intervals], Intervals] | None  # its own correction; None if it has none


def agents(config: Config, learner: Learner, its: Sequence[Run]) -> tuple[View, Iterator[Agent]]:
    """The agents of some finished runs with equal settings, and how to look at them."""

    def alone() -> Iterator[Agent]:
        assert learner.corrected
        for run in its:
            belief = runs.load_belief(run.folder, learner, "last")
            own = belief.correction
            numbers = Fitted(float(own.shift), float(own.factor), float(own.floor))
            stated = functools.partial(applied, numbers)
            raw = learner.corrected(belief, no_correction())
            yield Agent(str(run.seed), raw, float(own.level), stated)

    def together() -> Iterator[Agent]:
        for first in range(0, len(its) - _MEMBERS + 1, _MEMBERS):
            members = its[first : first + _MEMBERS]
            beliefs = [runs.load_belief(run.folder, learner, "last") for run in members]
            thetas = jnp.stack([learner.view.mean(belief) for belief in beliefs])
            level = np.mean([level_of(learner, run) for run in members])
            yield Agent(f"{members[0].seed}–{members[-1].seed}", thetas, float(level), None)

    if learner.view.posterior:
        return learner.view, alone()
    return ensemble_view(learner.view), together()


def level_of(learner: Learner, run: Run) -> float:
    """The size of the ambiguity set that a run ended with."""
    if not learner.view.worst_case:
        return 0.0
    template: Any = jax.ShapeDtypeStruct((1,), jnp.float32)
    held = checkpoint.load(run.folder / runs.CHECKPOINT, "run.held", template)
    return float(learner.level(SimpleNamespace(gains=None), Clock(jnp.int32(0), 1.0, held[0])))


def applied(numbers: Fitted, found: Intervals) -> Intervals:
    """Intervals after a correction."""
    return found._replace(
        mean=found.mean + numbers.shift, deviation=np.hypot(numbers.factor * found.deviation, numbers.floor)
    )


def summary(found: Intervals) -> dict[str, Any]:
    """What is stored of an agent's intervals."""
    return {
        "coverage": calibration.coverage(found.errors).tolist(),
        "surprise": calibration.surprise(found),
        "deviation": float(found.deviation.mean()),
        "error": float(np.sqrt(np.mean((found.mean - found.truth) ** 2))),
    }


def beyond(env: Environment) -> dict[str, np.ndarray]:
    """A grid of models that reaches beyond the box on every side where a parameter may."""
    axes = {}
    for name, (low, high) in env.box.items():
        width = high - low
        axes[name] = np.linspace(max(low - _REACH * width, 0.25 * low), high + _REACH * width, _BEYOND)
    return axes


def cells_beyond(env: str) -> int:
    """How many models that grid has."""
    made = in_jax(make_config("dqn", env=env).make_env(), "the study")
    return int(np.prod([len(values) for values in beyond(made).values()]))


def make_alarm(env: Environment, view: View) -> Callable[[Any], tuple[np.ndarray, np.ndarray]]:
    """A function `belief -> (success [cells], deviation [cells])` beyond the box.

    The deviation is that of Q of the action taken, averaged over an episode's steps: what a user could watch.
    """
    cells = {name: values[:-1] for name, values in grid_cells(env, beyond(env)).items()}
    each = {name: jnp.repeat(jnp.asarray(values, float), _EPISODES) for name, values in cells.items()}

    @jax.jit
    def play(belief: Any) -> tuple[jax.Array, jax.Array]:
        assert view.values
        theta = view.mean(belief)
        keys = jax.random.split(jax.random.key(_SEED), 2)
        params, start = begin_episodes(env, each, keys[0])

        def act(t: jax.Array, obs: jax.Array) -> tuple[jax.Array, Any]:
            return env.actions.choose(view.network.apply(theta, obs)), None

        def step_keys(t: jax.Array) -> jax.Array:
            return jax.random.split(jax.random.fold_in(keys[1], t), len(start[1]))

        earned, (seen, action, alive) = rollout(
            env, act, params, start, env.horizon, step_keys, lambda step: (step.obs, step.action, step.alive)
        )

        def of_step(carry: jax.Array, at: Any) -> tuple[jax.Array, None]:
            obs, action, alive = at
            deviation = view.values(belief, obs)[1]  # type: ignore[misc]
            return carry + jnp.where(alive, deviation[jnp.arange(len(obs)), action], 0.0), None

        total, _ = jax.lax.scan(of_step, jnp.zeros(len(start[1])), (seen, action, alive))
        return earned > env.success_return, total / jnp.sum(alive, axis=0)

    def by_cell(belief: Any) -> tuple[np.ndarray, np.ndarray]:
        success, deviation = (np.asarray(part, float).reshape(-1, _EPISODES).mean(axis=1) for part in play(belief))
        return success, deviation

    return by_cell


def auroc(score: np.ndarray, positive: np.ndarray) -> float | None:
    """The probability that a positive has the larger score, ties counted half; None without both kinds."""
    if positive.all() or not positive.any():
        return None
    first, second = score[positive][:, None], score[~positive][None]
    return float(np.mean((first > second) + 0.5 * (first == second)))


def examined(config: Config, its: Sequence[Run], states: int, models: int) -> dict[str, Any]:
    """Of each agent its intervals, raw and corrected, and its alarm beyond the box."""
    with config.arithmetic():
        learner = config.make_learner()
        view, each = agents(config, learner, its)
        measure = make_intervals(config, view, states, models, _SEED)
        held_out = make_intervals(config, view, *_HELD_OUT)
        alarm = make_alarm(in_jax(view.env, "the alarm"), view)
        found = {}
        for agent in each:
            raw = measure(agent.belief, agent.level)
            stated = (
                agent.stated(raw)
                if agent.stated
                else applied(fit_correction(*held_out(agent.belief, agent.level)), raw)
            )
            success, deviation = alarm(agent.belief)
            found[agent.name] = {
                "level": agent.level,
                "raw": summary(raw),
                "corrected": summary(stated),
                "failing": float(np.mean(success < 0.5)),
                "auroc": auroc(deviation, success < 0.5),
            }
    return found


def cautious(its: Sequence[Run], env: Environment) -> dict[str, float]:
    """Mean success beyond the box of policies that act on Q − κσ."""
    folders = [str(run.folder) for run in its]
    grid = beyond(env)
    return {
        f"{kappa:g}": evaluate(folders, grid, _EPISODES, 0.05, policy="lcb", kappa=kappa, keep="last").overall.success
        for kappa in KAPPAS
    }


def measure(
    options: Options,
    path: Path,
    done: Done,
    envs: Sequence[str] = ENVS,
    targets: Sequence[str] = TARGETS,
    posteriors: Sequence[str] = tuple(POSTERIORS),
    states: int = _STATES,
    models: int = _MODELS,
) -> Found:
    """Trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, folder and processes.
      path: the JSON file; rows that it holds, of the same settings and as many seeds, are not examined again.
      done: called with what is being done and how much of the work it was.
      envs: environments to measure now; the others stay as they are.
      targets: names of `TARGETS`.
      posteriors: names of `POSTERIORS`.
      states: states of each agent.
      models: model sets that values are averaged over.
    """
    stored = json.loads(path.read_text()) if path.exists() else {}
    before = stored.get("rows", {})
    rows: dict[str, Any] = {
        env: {target: dict(before.get(env, {}).get(target, {})) for target in TARGETS}
        for env in ENVS
        if env in envs or env in before
    }
    seeds = max(
        [options.seeds, *(row["seeds"] for its in rows.values() for kinds in its.values() for row in kinds.values())]
    )
    found: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study calibration --seeds {seeds}",
        "states": states,
        "models": models,
        "levels": list(calibration.LEVELS),
        "episodes": _EPISODES,
        "cells": {env: cells_beyond(env) for env in rows},
        "rows": rows,
    }
    console = Console(stderr=True)
    for env in envs:
        for target in targets:
            for posterior in posteriors:
                compared = comparison(env, target, posterior, options.seeds)
                what, settings = f"{env}: {compared.rows[0].algorithm}", compared.rows[0].config(0).digest()
                work = options.seeds * _TRAINING[posterior], options.seeds * _MEASURING
                known = rows[env][target].get(posterior, {})
                if known.get("settings") == settings and known.get("seeds") == options.seeds:
                    done(what, sum(work))
                    continue
                its = runs_of(options.out, compared)
                prepare(options.out, its)
                train(what, its, options, lambda *_: None, console)
                done(what, work[0])
                finished = [run for run in its if run.finished]
                config = compared.rows[0].config(0)
                rows[env][target][posterior] = {
                    "agent": compared.rows[0].algorithm,
                    "settings": settings,
                    "seeds": options.seeds,
                    "diverged": [run.seed for run in its if not run.finished],
                    "agents": examined(config, finished, states, models) if finished else {},
                    "cautious": cautious(finished, in_jax(config.make_env(), "the study"))
                    if posterior == "filter" and finished
                    else None,
                }
                write_json(path, found)
                done(what, work[1])
    return found


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    return len(ENVS) * len(TARGETS) * options.seeds * sum(work + _MEASURING for work in _TRAINING.values())


STUDY = Study(
    "calibration",
    "intervals for Q of three posteriors, against simulated values",
    compare=lambda _: [],
    collect=_collect,
    page=calibration_page.page,
    figures=calibration_page.figures,
    tables=calibration_page.short_tables,
    more_work=_work,
)
