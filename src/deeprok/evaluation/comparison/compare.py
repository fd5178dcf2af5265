"""The comparison of trained agents on the same grid, with the same random numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, shown
from deeprok.evaluation.comparison.result import ComparedRun, Comparison, Scores, Unit
from deeprok.evaluation.grid import GridTest, Played, keep_of, play
from deeprok.evaluation.groups.compare import References, compare_groups
from deeprok.evaluation.groups.result import Against, GroupComparison, Tasks
from deeprok.evaluation.result import Evaluation, default_axes
from deeprok.evaluation.reuse import find_played
from deeprok.evaluation.stress.space import enclosing
from deeprok.runs import folder as runs
from deeprok.runs.alike import check_same_environment, check_same_nominal
from deeprok.runs.collections import is_collection
from deeprok.runs.folder import Keep, Runs
from deeprok.runs.settings import DISTURBANCES, Config
from deeprok.uncertainty.models import read_grid


@overload
def compare(
    agents: Sequence[Runs],
    grid: str | Mapping[str, Any] | None = None,
    episodes: int = 500,
    epsilon: float = 0.1,
    keep: Keep | None = None,
    advance: Callable[[float], None] | None = None,
    save: bool = False,
    by: None = None,
) -> Comparison: ...


@overload
def compare(
    agents: Sequence[Runs],
    grid: str | Mapping[str, Any] | None = None,
    episodes: int = 500,
    epsilon: float = 0.1,
    keep: Keep | None = None,
    advance: Callable[[float], None] | None = None,
    save: bool = False,
    *,
    by: str | Sequence[str],
    against: Against = "first",
    tasks: Tasks | None = None,
    references: str | References | None = None,
) -> GroupComparison: ...


def compare(
    agents: Sequence[Runs],
    grid: str | Mapping[str, Any] | None = None,
    episodes: int = 500,
    epsilon: float = 0.1,
    keep: Keep | None = None,
    advance: Callable[[float], None] | None = None,
    save: bool = False,
    by: str | Sequence[str] | None = None,
    against: Against = "first",
    tasks: Tasks | None = None,
    references: str | References | None = None,
) -> Comparison | GroupComparison:
    """Compares trained agents on the same grid of parameters, with the same random numbers: each with the first.

    Where every agent has several seeds, intervals are over seeds. Evaluations that all of them have stored are then
    taken as they are, if they are of this grid, as many episodes, this ε and the weights that the runs have now.
    Otherwise, intervals are over episodes, which are the same for all agents: they hold for these policies, and say
    nothing of other seeds.

    With `by`, all runs that are given, such as those of sweeps, are grouped by their settings instead, and the groups
    are compared: the interquartile mean with a bootstrap interval over seeds, the probability of improvement,
    performance profiles, and what training has cost. Each run's stored evaluation is taken, if it is of this test.

    Args:
      agents: at least two, the first of which the others are compared with. Each is a loaded run, a run folder, a
        folder of seeds, or a list of runs that differ by their seeds; all have the same environment. They are tested
        with the noise and the delay of the first. With `by` one is enough, folders of sweeps are allowed too, and
        environments may differ.
      grid: parameters to vary, as for `evaluate`. By default the smallest box that holds those of all, 7 values of each
        parameter.
      episodes: episodes in a cell.
      epsilon: probability of a random action.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones; by default those of each
        loaded run, and the best ones of a folder.
      advance: called with the fraction of the work done since its last call.
      save: also store what is played in the folder of each run, as `evaluate` does.
      by: settings that runs are grouped by, as a list or as text, name,name,…; `all` for every one that varies.
      against: with `by`, the group that the others are compared with: the `first`, or the `best` by its interquartile
        mean.
      tasks: with `by`, whether the scores of a run are those of the `cells` of its grid, or their mean in each of the
        `environments`; by default cells if all runs have one environment.
      references: with `by`, returns that the normalised scores 0 and 1 stand for, as {"env": (low, high)} or as text,
        env=low:high,…; by default random play and the best group, if environments differ.

    Example:
      >>> found = deeprok.compare(["runs/rok", "runs/ddqn"], episodes=100)
      >>> verdict = found.differences[0].sentence
      >>> found.plot().savefig("compared.png")
    """
    cache.enable_if_asked()
    if by is not None:
        several = [agents] if isinstance(agents, str | os.PathLike) else agents
        return compare_groups(several, by, grid, episodes, epsilon, keep, against, tasks, references, advance, save)
    if (against, tasks, references) != ("first", None, None):
        raise DeeprokError("against, tasks and references are for groups of runs; give by too")
    found = _read_agents(agents, keep)
    first = found[0].config
    for agent in found[1:]:
        check_same_environment(found[0].name, first, agent.name, agent.config)
    with first.arithmetic():
        env = first.make_env()
        box = enclosing([agent.config.make_box(env) for agent in found])
        if grid is None and not box:
            raise DeeprokError(f"{env.name} has no box of uncertain parameters; give a grid")
        axes = default_axes(box) if grid is None else read_grid(grid, env.nominal)
    for agent in found[1:]:
        check_same_nominal(found[0].name, first, agent.name, agent.config, axes)
    disturbances: dict[str, Any] = {name: getattr(first, name) for name in DISTURBANCES}
    tests = [
        GridTest(grid=axes, episodes=episodes, epsilon=epsilon, keep=agent.keep, **disturbances) for agent in found
    ]
    unit: Unit = "seeds" if all(len(agent.folders) > 1 for agent in found) else "episodes"
    stored = (
        [find_played(agent.folders, agent.configs, test) for agent, test in zip(found, tests, strict=True)]
        if unit == "seeds"
        else []
    )
    evaluations = [one for one in stored if one]
    from_files = len(evaluations) == len(found)
    scores: list[Scores] = []
    if not from_files:
        share = (lambda part: advance(part / len(found))) if advance else None
        played = [play(agent.folders, test, share) for agent, test in zip(found, tests, strict=True)]
        if save:
            for each in played:
                each.save()
        evaluations = [each.together() for each in played]
        scores = [_by_episodes(each, env.success_return) for each in played]
    if unit == "seeds":
        scores = [_by_seeds(evaluation) for evaluation in evaluations]
    compared = [
        ComparedRun(label, agent.name, [config.seed for config in agent.configs], evaluation, own)
        for label, agent, evaluation, own in zip(_labels(found), found, evaluations, scores, strict=True)
    ]
    return Comparison(env=env.name, unit=unit, stored=from_files, runs=tuple(compared))


class _Agent(NamedTuple):
    """The seeds of one agent."""

    name: str  # as it was given
    folders: list[Path]
    configs: list[Config]
    keep: Keep

    @property
    def config(self) -> Config:
        """The settings, whatever the seed."""
        return self.configs[0]


def _read_agents(given: Sequence[Runs], keep: Keep | None) -> list[_Agent]:
    if isinstance(given, str | os.PathLike) or not isinstance(given, Sequence):
        raise DeeprokError(f"agents is {shown(given)}; it must be a list of at least two runs")
    if len(given) < 2:
        raise DeeprokError(f"a comparison takes at least two runs, but {len(given) or 'none'} was given")
    found = []
    for one in given:
        if is_collection(one):
            raise DeeprokError(f"{one} is a folder of many runs; say what they are grouped by: by='all', or settings")
        folders = runs.find_all(one)
        name = os.fspath(one) if isinstance(one, str | os.PathLike) else ", ".join(map(str, folders))
        configs = [runs.read_config(folder) for folder in folders]
        found.append(_Agent(name, folders, configs, keep or keep_of(one)))
    return found


def _labels(agents: Sequence[_Agent]) -> list[str]:
    """Short names: the last parts of the paths, or as much as tells them apart."""
    short = [agent.name.rstrip("/").rpartition("/")[2] for agent in agents]
    for labels in (short, [agent.name for agent in agents]):
        if len(set(labels)) == len(labels):
            return labels
    return [f"{name} {i}" for i, name in enumerate(short, 1)]


def _by_seeds(evaluation: Evaluation) -> Scores:
    """Over the whole grid, of each seed."""
    each = [one.overall for one in evaluation.per_seed]
    return Scores(np.array([one.success for one in each]), np.array([one.mean_return for one in each]))


def _by_episodes(played: Played, threshold: float) -> Scores:
    """Over the whole grid and all seeds, of each episode, whose random numbers are the same in every cell."""
    cells = np.stack([returns.cells for returns in played.returns])  # [seeds, cells, episodes]
    return Scores((cells > threshold).mean(axis=(0, 1)), cells.mean(axis=(0, 1)))
