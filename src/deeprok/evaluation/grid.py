"""Evaluation: for which parameters of the environment a policy works.

Every cell of a grid of parameters is played with the same random numbers, so that cells and
policies differ by what they do and not by luck.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.files import write_atomically
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import POLICIES, PolicyKind, cautious_policy, draw_members, weights_policy
from deeprok.evaluation.result import Evaluation, GridReturns, default_axes, file_name, merge, summarise, to_json
from deeprok.runs import folder as runs
from deeprok.runs.folder import KEEPS, Keep, Runs
from deeprok.runs.settings import DISTURBANCES
from deeprok.uncertainty.models import read_grid


def evaluate(
    run: Runs,
    grid: str | Mapping[str, Any] | None = None,
    episodes: int = 500,
    epsilon: float = 0.1,
    policy: PolicyKind = "mean",
    members: int = 20,
    kappa: float = 1.0,
    keep: Keep | None = None,
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
    save: bool = False,
    sensor_noise: float | None = None,
    action_delay: int | None = None,
    parameter_noise: str | Mapping[str, float] | None = None,
) -> Evaluation:
    """Tests trained policies on a grid of parameters.

    Args:
      run: a loaded run, a run folder, a folder of seeds, or a list of runs that differ by their seeds.
      grid: parameters to vary, as {"name": values} or as text, name=low:high:count,…; both edges are included. By
        default the run's own box, 7 values of each parameter, which for the environment's box is the paper's grid.
      episodes: episodes in a cell.
      epsilon: probability of a random action.
      policy: `mean` acts on the mean weights. For agents with a posterior, an ensemble drawn from it acts by majority
        (`vote`), by its mean Q-values (`mean_q`), or each member alone (`sample`); `lcb` acts on the lower confidence
        bound Q − κσ.
      members: size of the ensemble.
      kappa: κ of `lcb`: the larger, the more uncertain actions are avoided.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones; by default those of the
        loaded run, and the best ones of a folder.
      seed: seed of the evaluation's random numbers.
      advance: called with the fraction of the work done since its last call.
      save: also store the result in the folder of each run, under the name `Evaluation.file`.
      sensor_noise: standard deviation of the noise on each observation, as a multiple of its typical size. This and the
        next two are the run's own by default; another value is that of the test alone.
      action_delay: steps by which each action is late.
      parameter_noise: parameters that are multiplied by a fresh factor in each step, and its standard deviation, as
        {"name": deviation} or as text, name=deviation,…; empty for none.

    Example:
      >>> result = deeprok.evaluate("runs/rok", grid={"pole_length": np.linspace(0.2, 1.4, 7)}, episodes=100)
      >>> result.mean_return.shape
      (7,)
    """
    cache.enable_if_asked()
    keep = keep or _keep_of(run)
    for name, value in (("episodes", episodes), ("members", members)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    if not 0 <= seed < 2**32:
        raise DeeprokError(f"seed is {seed}; it must be from 0 to 4294967295")
    if not 0 <= epsilon <= 1:
        raise DeeprokError(f"epsilon is {epsilon:g}; it must be a probability between 0 and 1")
    if not np.isfinite(kappa):
        raise DeeprokError(f"kappa is {kappa:g}; it must be a finite number")
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    if keep not in KEEPS:
        raise unknown("keep", keep, KEEPS)
    folders = runs.find_all(run)
    configs = [runs.read_config(path) for path in folders]
    if len({config.digest() for config in configs}) > 1:
        raise DeeprokError(f"the runs in {folders[0].parent} differ in more than their seed; evaluate them one by one")
    if len({config.seed for config in configs}) < len(configs):
        raise DeeprokError(f"several of the runs have seed {configs[0].seed}; evaluate them one by one")
    given = {"sensor_noise": sensor_noise, "action_delay": action_delay, "parameter_noise": parameter_noise}
    with configs[0].arithmetic():
        config = configs[0]
        tested = config.disturbed(**{name: value for name, value in given.items() if value is not None})
        learner = config.make_learner()
        view = learner.view
        if policy != "mean" and not view.posterior:
            raise DeeprokError(f"policy is {policy}, but {config.algorithm} has no posterior; use policy mean")
        if policy != "mean" and not view.values:
            raise DeeprokError(f"policy is {policy}, but {config.algorithm} acts by an actor alone; use policy mean")
        env = tested.make_env()
        box = config.make_box(env)
        if grid is None and not box:
            raise DeeprokError(
                f"{config.env} has no box, which the grid would cover; give the grid, as name=low:high:count (on the "
                f"command line --grid), of a parameter that `deeprok environments {config.env}` lists"
            )
        axes = default_axes(box) if grid is None else read_grid(grid, env.nominal)
        policy_of = (
            cautious_policy(view, kappa) if policy == "lcb" else weights_policy(view.network, view.env.actions, policy)
        )
        play = cell_player(env, policy_of, episodes)
        cells = grid_cells(env, axes)
        count = len(next(iter(cells.values())))
        size = 1 if policy in ("mean", "lcb") else members
        alone = size if policy == "sample" else 1
        share = (lambda part: advance(part / (len(folders) * alone))) if advance else None
        played, beliefs = {}, [runs.load_belief(path, learner, keep) for path in folders]
        for config, belief in zip(configs, beliefs, strict=True):
            if policy == "lcb":
                acting = [belief]
            else:
                acting = np.split(draw_members(view, belief, policy, size, seed), alone)
            lost = np.zeros(count, int) if isinstance(env, HostEnvironment) else None
            more = {} if lost is None else {"failed": lost}
            parts = [play(weights, cells, epsilon, seed, share, **more) for weights in acting]
            returns = np.concatenate(parts, axis=1)
            played[config.seed] = GridReturns(returns[:-1], returns[-1], None if lost is None else lost[:-1])
    options = {"policy": policy, "episodes": episodes, "epsilon": epsilon, "keep": keep, "seed": seed}
    options |= {"kappa": kappa} if policy == "lcb" else {"members": members} if policy != "mean" else {}
    usual = {name: parameter.default for name, parameter in inspect.signature(evaluate).parameters.items()}
    usual["keep"] = "best"
    changed = {name: value for name, value in options.items() if value != usual[name]}
    disturbances = {name: getattr(tested, name) for name in DISTURBANCES}
    changed |= {name: value for name, value in disturbances.items() if value != getattr(config, name)}
    facts = (epsilon, policy, size, kappa if policy == "lcb" else 0.0, keep, file_name(axes, box, changed))
    each = [
        summarise(config.algorithm, env, axes, {own: returns}, *facts, disturbances) for own, returns in played.items()
    ]
    if save:
        for path, one in zip(folders, each, strict=True):
            write_atomically(path / one.file, to_json(one))
    return merge(each)


def _keep_of(run: Runs) -> Keep:
    """Which weights a loaded run, or several, stand for; a path stands for the best ones."""
    several = run if isinstance(run, Sequence) and not isinstance(run, str) else [run]
    keeps: set[Keep] = {getattr(one, "keep", "best") for one in several} or {"best"}
    if len(keeps) > 1:
        raise DeeprokError("some of the runs stand for their best weights and some for their last; give keep")
    return keeps.pop()
