"""Evaluation: for which parameters of the environment a policy works.

Every cell of a grid of parameters is played with the same random numbers, so that cells and
policies differ by what they do and not by luck.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deeprok.agents.learner import View
from deeprok.core import cache
from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.files import write_atomically
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import POLICIES, PolicyKind, cautious_policy, draw_members, weights_policy
from deeprok.evaluation.result import Evaluation, GridReturns, default_axes, merge, summarise
from deeprok.evaluation.stored import check_name, file_name, to_json
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
    name: str | None = None,
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
      save: also store the result in the folder of each run, in the file `Evaluation.file`.
      sensor_noise: standard deviation of the noise on each observation, as a multiple of its typical size. This and the
        next two are the run's own by default; another value is that of the test alone.
      action_delay: steps by which each action is late.
      parameter_noise: parameters that are multiplied by a fresh factor in each step, and its standard deviation, as
        {"name": deviation} or as text, name=deviation,…; empty for none.
      name: what to call it: a word of letters, digits, -, _ and . It is then stored under this name, beside the others;
        without one, evaluations with different options are stored side by side.

    Example:
      >>> result = deeprok.evaluate("runs/rok", grid={"pole_length": np.linspace(0.2, 1.4, 7)}, episodes=100)
      >>> result.mean_return.shape
      (7,)
    """
    cache.enable_if_asked()
    test = GridTest(
        grid=grid,
        episodes=episodes,
        epsilon=epsilon,
        policy=policy,
        members=members,
        kappa=kappa,
        keep=keep,
        seed=seed,
        name=name,
        sensor_noise=sensor_noise,
        action_delay=action_delay,
        parameter_noise=parameter_noise,
    )
    played = play(run, test, advance)
    if save:
        played.save()
    return played.together()


class GridTest(NamedTuple):
    """How policies are tested, with the defaults of `evaluate`, which says what each field is."""

    grid: str | Mapping[str, Any] | None = None
    episodes: int = 500
    epsilon: float = 0.1
    policy: PolicyKind = "mean"
    members: int = 20
    kappa: float = 1.0
    keep: Keep | None = None
    seed: int = 0
    name: str | None = None
    sensor_noise: float | None = None
    action_delay: int | None = None
    parameter_noise: str | Mapping[str, float] | None = None


class Played(NamedTuple):
    """What the seeds of an agent did in a test."""

    folders: list[Path]  # of each seed
    each: list[Evaluation]
    returns: list[GridReturns]

    def together(self) -> Evaluation:
        """The evaluation of all seeds."""
        return merge(self.each)

    def save(self) -> None:
        """Stores the evaluation of each seed in its folder."""
        for folder, one in zip(self.folders, self.each, strict=True):
            write_atomically(folder / one.file, to_json(one))


def play(run: Runs, test: GridTest, advance: Callable[[float], None] | None = None) -> Played:
    """Plays a test, as `evaluate` does; nothing is stored.

    Args:
      run: a loaded run, a run folder, a folder of seeds, or a list of runs that differ by their seeds.
      test: the test.
      advance: called with the fraction of the work done since its last call.
    """
    keep = test.keep or keep_of(run)
    _check(test, keep)
    policy, episodes, epsilon, seed = test.policy, test.episodes, test.epsilon, test.seed
    folders = runs.find_all(run)
    configs = [runs.read_config(path) for path in folders]
    if len({config.digest() for config in configs}) > 1:
        raise DeeprokError(f"the runs in {folders[0].parent} differ in more than their seed; evaluate them one by one")
    if len({config.seed for config in configs}) < len(configs):
        raise DeeprokError(f"several of the runs have seed {configs[0].seed}; evaluate them one by one")
    given = {option: getattr(test, option) for option in DISTURBANCES}
    with configs[0].arithmetic():
        config = configs[0]
        tested = config.disturbed(**{option: value for option, value in given.items() if value is not None})
        learner = config.make_learner()
        view = learner.view
        if policy != "mean" and not view.posterior:
            raise DeeprokError(f"policy is {policy}, but {config.algorithm} has no posterior; use policy mean")
        if policy != "mean" and not view.values:
            raise DeeprokError(f"policy is {policy}, but {config.algorithm} acts by an actor alone; use policy mean")
        env = tested.make_env()
        box = config.make_box(env)
        if not dataclasses.fields(env.nominal):
            raise DeeprokError(
                f"{config.env} has no parameter, which a grid would vary; how good the agent is say the trials of its "
                "training, and `deeprok render` shows it"
            )
        if test.grid is None and not box:
            raise DeeprokError(
                f"{config.env} has no box, which the grid would cover; give the grid, as name=low:high:count (on the "
                f"command line --grid), of a parameter that `deeprok environments {config.env}` lists"
            )
        axes = default_axes(box) if test.grid is None else read_grid(test.grid, env.nominal)
        policy_of = (
            cautious_policy(view, test.kappa)
            if policy == "lcb"
            else weights_policy(view.network, view.env.actions, policy)
        )
        play_cells = cell_player(env, policy_of, episodes)
        cells = grid_cells(env, axes)
        count = len(next(iter(cells.values())))
        size = 1 if policy in ("mean", "lcb") else test.members
        alone = size if policy == "sample" else 1
        share = (lambda part: advance(part / (len(folders) * alone))) if advance else None
        played, beliefs = [], [runs.load_belief(path, learner, keep) for path in folders]
        for belief in beliefs:
            if policy == "lcb":
                acting = [belief]
            else:
                acting = np.split(draw_members(view, belief, policy, size, seed), alone)
            lost = np.zeros(count, int) if isinstance(env, HostEnvironment) else None
            more = {} if lost is None else {"failed": lost}
            parts = [play_cells(weights, cells, epsilon, seed, share, **more) for weights in acting]
            returns = np.concatenate(parts, axis=1)
            failed = None if lost is None else lost[:-1]
            played.append(GridReturns(returns[:-1], returns[-1], failed, hash_of(view, belief)))
    options = {"policy": policy, "episodes": episodes, "epsilon": epsilon, "keep": keep, "seed": seed}
    options |= {"kappa": test.kappa} if policy == "lcb" else {"members": test.members} if policy != "mean" else {}
    usual = {**GridTest._field_defaults, "keep": "best"}
    changed = {option: value for option, value in options.items() if value != usual[option]}
    disturbances = {option: getattr(tested, option) for option in DISTURBANCES}
    changed |= {option: value for option, value in disturbances.items() if value != getattr(config, option)}
    file = file_name(axes, box, changed, test.name)
    facts = (epsilon, policy, size, test.kappa if policy == "lcb" else 0.0, keep, file, disturbances)
    each = [
        summarise(config.algorithm, env, axes, {own.seed: returns}, *facts, name=test.name or "", luck=seed)
        for own, returns in zip(configs, played, strict=True)
    ]
    return Played(folders, each, played)


def hash_of(view: View, belief: Any) -> str:
    """A short name of the weights that act: those of other weights differ."""
    return hashlib.sha256(np.asarray(view.mean(belief)).tobytes()).hexdigest()[:12]


def _check(test: GridTest, keep: str) -> None:
    if test.name is not None:
        check_name(test.name)
    for name, value in (("episodes", test.episodes), ("members", test.members)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    if not 0 <= test.seed < 2**32:
        raise DeeprokError(f"seed is {test.seed}; it must be from 0 to 4294967295")
    if not 0 <= test.epsilon <= 1:
        raise DeeprokError(f"epsilon is {test.epsilon:g}; it must be a probability between 0 and 1")
    if not np.isfinite(test.kappa):
        raise DeeprokError(f"kappa is {test.kappa:g}; it must be a finite number")
    if test.policy not in POLICIES:
        raise unknown("policy", test.policy, POLICIES)
    if keep not in KEEPS:
        raise unknown("keep", keep, KEEPS)


def keep_of(run: Runs) -> Keep:
    """Which weights a loaded run, or several, stand for; a path stands for the best ones."""
    several = run if isinstance(run, Sequence) and not isinstance(run, str) else [run]
    keeps: set[Keep] = {getattr(one, "keep", "best") for one in several} or {"best"}
    if len(keeps) > 1:
        raise DeeprokError("some of the runs stand for their best weights and some for their last; give keep")
    return keeps.pop()
