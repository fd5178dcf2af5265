"""An agent as a page has it: the weights that act, how it learned, and what is stored of it."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from deeprok.agents.correction import CorrectedBelief, Correction, no_correction
from deeprok.agents.learner import View
from deeprok.core.errors import DeeprokError
from deeprok.evaluation.export.policy import Policy, make_policy
from deeprok.evaluation.findings import read_finding
from deeprok.evaluation.grid import hash_of
from deeprok.evaluation.policies import draw_members
from deeprok.evaluation.trained import load
from deeprok.report.data import Agent, Curve, Network, Posterior
from deeprok.runs import folder as runs
from deeprok.runs import metrics
from deeprok.runs.folder import Keep
from deeprok.runs.settings import DISTURBANCES, Config

#: Draws from a posterior that a page has, as many as `deeprok evaluate --policy vote` takes; and the seed of them.
DRAWS, _SEED = 20, 0

#: Numbers of one agent that a page has room for, and points of a learning curve.
_MOST_NUMBERS, _MOST_POINTS = 1_000_000, 150


def read_agent(path: Path, name: str, keep: Keep) -> Agent:
    """An agent of a run folder or a folder of seeds, without its map.

    Args:
      path: the folder.
      name: what it is called.
      keep: the weights that act; where no trial has decided yet which are the best, the last ones.
    """
    folders = runs.find(path)
    configs = [runs.read_config(folder) for folder in folders]
    config, acting, kept, unseen = configs[0], folders[0], keep, ""
    network = posterior = None
    is_q, memory, weights = False, None, ""
    try:
        trained, kept = _load(path, keep)
        acting = trained.folder
        with trained.settings.arithmetic():
            learner = trained.settings.make_learner()
            view = learner.view
            belief = runs.load_belief(acting, learner, kept)
            weights = hash_of(view, belief)
            past, is_q = view.env.past, view.values is not None and not view.env.actions.continuous
            memory = {one: past.describe()[one] for one in ("steps", "observations", "actions")} if past else None
            policy = make_policy(view.network, trained.weights, view.env)
            if policy.theta.size > _MOST_NUMBERS:
                raise DeeprokError(f"its network has {policy.theta.size:,} weights, more than a page has room for")
            network = _network(policy)
            if is_q and view.posterior and DRAWS * policy.theta.size <= _MOST_NUMBERS:
                posterior = _posterior(view, belief, network.precision)
    except DeeprokError as error:
        network, unseen = None, str(error)
    return Agent(
        name=name,
        folder=os.fspath(path),
        algorithm=config.algorithm,
        preset=config.preset,
        settings=config.digest(),
        acting=config.acting,
        box={one: (float(low), float(high)) for one, (low, high) in config.make_box(config.make_env()).items()},
        seed=runs.read_config(acting).seed,
        seeds=sorted(each.seed for each in configs),
        keep=kept,
        state=_state(folders, configs),
        disturbances={one: value for one in DISTURBANCES if (value := getattr(config, one))},
        memory=memory,
        weights=weights,
        network=network,
        posterior=posterior,
        q=is_q,
        unseen=unseen,
        curves=[_curve(folder, each.seed) for folder, each in zip(folders, configs, strict=True)],
        map=None,
        stress=found if (found := read_finding(acting, "stress")) and found.keep == kept else None,
        coverage=read_finding(path, "calibrate"),
    )


def _load(path: Path, keep: Keep) -> Any:
    """The run that acts and which of its weights."""
    try:
        return load(path, keep=keep), keep
    except DeeprokError:
        if keep == "last":
            raise
        return load(path, keep="last"), "last"


def _encoded(numbers: np.ndarray, precision: str) -> str:
    return base64.b64encode(numbers.astype("<f8" if precision == "float64" else "<f4").tobytes()).decode()


def _network(policy: Policy) -> Network:
    precision = str(policy.theta.dtype)
    return Network(
        sizes=tuple(policy.network.sizes),
        activation=policy.network.activation,
        input_scale=tuple(float(factor) for factor in policy.network.input_scale),
        squashed=policy.squashed,
        precision=precision,
        theta=_encoded(policy.theta, precision),
    )


def _posterior(view: View, belief: Any, precision: str) -> Posterior:
    thetas = draw_members(view, belief, "vote", DRAWS, _SEED)
    draws = np.stack([make_policy(view.network, theta, view.env).theta for theta in thetas])
    correction: Correction = belief.correction if isinstance(belief, CorrectedBelief) else no_correction()
    shift, factor, floor = (
        float(jnp.asarray(each)) for each in (correction.shift, correction.factor, correction.floor)
    )
    return Posterior(DRAWS, _encoded(draws, precision), shift, factor, floor)


def _state(folders: Sequence[Path], configs: Sequence[Config]) -> str:
    """How far training is: of several seeds, of the one that is least far."""
    said = []
    for folder, config in zip(folders, configs, strict=True):
        lines = runs.read_metrics(folder)
        steps, episodes = (lines[-1]["steps"], lines[-1]["episodes"]) if lines else (0, 0)
        lasts, budget = bool(config.budget.lasts(episodes, steps)), config.budget
        progress = (
            f"{steps:,} of {budget.steps:,} steps" if budget.steps else f"{episodes} of {budget.episodes} episodes"
        )
        share = 0.0 if not steps else float(budget.progress(episodes, steps))
        said.append((share if lasts else 1.0, progress if lasts else f"{steps:,} steps, {episodes:,} episodes"))
    return min(said)[1]


def _curve(folder: Path, seed: int) -> Curve:
    found = metrics.read(folder)
    columns = found.columns()
    chunks, ended = len(found["steps"]), found.ended
    stride = max(1, -(-chunks // _MOST_POINTS))
    groups = [range(begin, min(begin + stride, chunks)) for begin in range(0, chunks, stride)]
    seconds = np.cumsum(np.nan_to_num(columns.get("seconds", np.zeros(chunks))))
    trials = columns.get("trial_return", np.full(chunks, np.nan))

    def mean(values: np.ndarray, weights: np.ndarray) -> float | None:
        known = np.isfinite(values) & (weights > 0)
        return float(f"{np.average(values[known], weights=weights[known]):.6g}") if known.any() else None

    last = [group[-1] for group in groups]
    return Curve(
        seed=seed,
        steps=[int(columns["steps"][i]) for i in last],
        episodes=[int(columns["episodes"][i]) for i in last],
        seconds=[round(float(seconds[i]), 3) for i in last],
        mean_return=[mean(columns["mean_return"][group], ended[group]) for group in map(list, groups)],
        trial_return=[mean(trials[group], np.ones(len(group))) for group in map(list, groups)],
    )
