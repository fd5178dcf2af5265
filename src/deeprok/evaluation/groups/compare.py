"""The comparison of groups of runs: every run is played on the grid of its environment, and each group summed up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.evaluation.grid import GridTest, play
from deeprok.evaluation.groups.find import ALL, Member, find_members, grouped, settings_by
from deeprok.evaluation.groups.result import (
    Against,
    GroupComparison,
    Measure,
    RunScores,
    Scale,
    Tasks,
    summarise,
)
from deeprok.evaluation.result import Evaluation, default_axes
from deeprok.evaluation.reuse import find_played
from deeprok.evaluation.stress.space import enclosing
from deeprok.runs import folder as runs
from deeprok.runs.alike import check_same_environment, check_same_nominal
from deeprok.runs.folder import Keep, Runs
from deeprok.runs.settings import DISTURBANCES
from deeprok.uncertainty.models import read_grid

#: Environment -> the scores that 0 and 1 stand for.
References = Mapping[str, tuple[float, float]]


def compare_groups(
    given: Sequence[Runs],
    by: str | Sequence[str],
    grid: str | Mapping[str, Any] | None,
    episodes: int,
    epsilon: float,
    keep: Keep | None,
    against: Against,
    tasks: Tasks | None,
    references: str | References | None,
    advance: Callable[[float], None] | None,
    save: bool,
) -> GroupComparison:
    """Compares runs by their settings; `deeprok.compare` says what the arguments are."""
    if against not in get_args(Against):
        raise unknown("against", str(against), get_args(Against))
    if tasks is not None and tasks not in get_args(Tasks):
        raise unknown("tasks", str(tasks), get_args(Tasks))
    stated = read_references(references)
    found = find_members(given, keep)
    names = settings_by(found.members, by)
    by_env: dict[str, list[Member]] = {}
    for member in found.members:
        by_env.setdefault(member.config.env, []).append(member)
    if unused := set(stated) - set(by_env):
        raise unknown("environment in references", min(unused), by_env)
    if grid is not None and len(by_env) > 1:
        raise DeeprokError(
            f"grid is {shown(grid)}, but the runs have {len(by_env)} environments, {', '.join(by_env)}; without it each"
            " has the grid of its own box"
        )
    tests = {env: _grid_of(env, its, grid, episodes, epsilon) for env, its in by_env.items()}
    outcomes, played = _play_all(by_env, tests, advance, save)
    scores = {
        member.folder: _scores(member, tests[member.config.env], outcomes.get(member.folder))
        for member in found.members
    }
    measure = _measure(list(scores.values()))
    groups = {key: [scores[one.folder] for one in its] for key, its in grouped(found.members, names).items()}
    scales = _scales(by_env, tests, groups, measure, stated, save)
    remarks = list(found.remarks)
    remarks += [
        f"{env} has no box, so that it has one cell: the mean return of the trials in training"
        for env, test in tests.items()
        if test is None
    ]
    return summarise(
        names,
        settings_by(found.members, ALL),
        groups,
        measure,
        tasks or ("cells" if len(by_env) == 1 else "environments"),
        scales,
        against,
        grids={env: dict(test.axes) if test else {} for env, test in tests.items()},
        episodes=episodes,
        epsilon=epsilon,
        played=played,
        remarks=tuple(remarks),
    )


class _Test(NamedTuple):
    """How the runs of an environment are tested."""

    axes: Mapping[str, np.ndarray]
    options: dict[str, Any]

    def with_keep(self, keep: Keep) -> GridTest:
        return GridTest(grid=self.axes, keep=keep, **self.options)


def _grid_of(
    env: str, members: Sequence[Member], grid: str | Mapping[str, Any] | None, episodes: int, epsilon: float
) -> _Test | None:
    """The test of all runs of an environment; None if it has no box, and no grid is given.

    Raises unless they have the same environment.
    """
    first = members[0]
    alike: dict[Any, Member] = {}
    for member in members:
        config = member.config
        alike.setdefault((config.environment, config.nominal, config.box, config.precision), member)
    with first.config.arithmetic():
        made = first.config.make_env()
        for member in alike.values():
            check_same_environment(first.folder, first.config, member.folder, member.config)
        box = enclosing([member.config.make_box(made) for member in alike.values()])
        if grid is None and not box:
            return None
        axes = default_axes(box) if grid is None else read_grid(grid, made.nominal)
        for member in alike.values():
            check_same_nominal(first.folder, first.config, member.folder, member.config, axes)
    disturbances = {name: getattr(first.config, name) for name in DISTURBANCES}
    return _Test(axes, {"episodes": episodes, "epsilon": epsilon, **disturbances})


def _play_all(
    by_env: Mapping[str, Sequence[Member]],
    tests: Mapping[str, _Test | None],
    advance: Callable[[float], None] | None,
    save: bool,
) -> tuple[dict[Any, Evaluation], int]:
    """The evaluation of each run whose environment has a test, and how many of them were played."""
    outcomes: dict[Any, Evaluation] = {}
    left: dict[tuple[str, str, Keep], list[Member]] = {}
    for env, members in by_env.items():
        test = tests[env]
        for member in members if test else ():
            assert test
            stored = find_played([member.folder], [member.config], test.with_keep(member.keep))
            if stored:
                outcomes[member.folder] = stored
            else:
                left.setdefault((env, member.config.digest(), member.keep), []).append(member)
    count = sum(map(len, left.values()))
    for (env, _, keep), members in left.items():
        test = tests[env]
        assert test
        # One after the other, so that each is stored as soon as it is played.
        share = functools.partial(_report, advance, len(members) / count) if advance else None
        result = play([member.folder for member in members], test.with_keep(keep), share)
        if save:
            result.save()
        outcomes |= {member.folder: one for member, one in zip(members, result.each, strict=True)}
    return outcomes, count


def _report(advance: Callable[[float], None], share: float, part: float) -> None:
    """Says how much of all is done by a part of this share."""
    advance(share * part)


def _scores(member: Member, test: _Test | None, found: Evaluation | None) -> RunScores:
    """What a run scored; without a test, in the trials of its training."""
    facts: dict[str, Any] = {
        "folder": str(member.folder),
        "env": member.config.env,
        "seed": member.config.seed,
        "keep": member.keep,
        "settings": member.settings,
        "cost": member.cost,
    }
    if test and found:
        cells = {name: getattr(found, name).reshape(-1) for name in ("success", "mean_return")}
        return RunScores(grid=test.axes, **cells, **facts)
    trials = [line["trial_return"] for line in runs.read_metrics(member.folder) if "trial_return" in line]
    if not trials:
        raise DeeprokError(f"{member.folder} has had no trial on held-out models yet; train it on, or leave it out")
    score = max(trials) if member.keep == "best" else trials[-1]
    return RunScores(grid={}, success=np.full(1, np.nan), mean_return=np.array([score]), **facts)


def _measure(scores: Sequence[RunScores]) -> Measure:
    """Success, unless it is not known or is the same everywhere in one of the environments."""
    for env in {one.env for one in scores}:
        success = np.concatenate([one.success for one in scores if one.env == env])
        if not np.ptp(success) > 0:  # NaN is not above 0 either
            return "mean_return"
    return "success"


def _scales(
    by_env: Mapping[str, Sequence[Member]],
    tests: Mapping[str, _Test | None],
    groups: Mapping[Any, Sequence[RunScores]],
    measure: Measure,
    stated: References,
    save: bool,
) -> dict[str, Scale]:
    """What 0 and 1 stand for in each environment; nothing where scores can be compared as they are."""
    if measure == "success" and stated:
        raise DeeprokError("references are returns, but success is compared, which needs none; leave them out")
    if measure == "success" or (len(by_env) == 1 and not stated):
        return {}
    scales = {}
    for env, members in by_env.items():
        if env in stated:
            scales[env] = Scale(*stated[env])
            continue
        test = tests[env]
        if test is None:
            raise DeeprokError(
                f"{env} has no box, so that the return of random play on it is not known; give references"
                f" {env}=LOW:HIGH"
            )
        low = _random_play(members[0], test, save)
        best = [[run.mean_return.mean() for run in its if run.env == env] for its in groups.values()]
        high = max(float(np.mean(each)) for each in best if each)
        if not high > low:
            raise DeeprokError(
                f"no group is better than random play on {env} ({high:.4g} against {low:.4g}), so that there is no"
                f" scale; give references {env}=LOW:HIGH"
            )
        scales[env] = Scale(low, high)
    return scales


def _random_play(member: Member, test: _Test, save: bool) -> float:
    """The mean return over the grid of random actions."""
    random = test.with_keep(member.keep)._replace(epsilon=1.0)
    found = find_played([member.folder], [member.config], random)
    if found is None:
        result = play([member.folder], random)
        if save:
            result.save()
        found = result.together()
    return found.overall.mean_return


def read_references(given: str | References | None) -> dict[str, tuple[float, float]]:
    """Returns that 0 and 1 stand for, by environment, from text, env=low:high,…, or a dictionary."""
    if not given:
        return {}
    pairs: list[tuple[str, Any]]
    if isinstance(given, str):
        items = [item.rpartition("=") for item in given.split(",")]
        pairs = [(name.strip(), ends.split(":")) for name, _, ends in items]
    else:
        pairs = list(given.items())
    found = {}
    for env, ends in pairs:
        try:
            low, high = map(float, ends)
        except (TypeError, ValueError):
            low = high = np.nan
        if not env or not -np.inf < low < high < np.inf:
            raise DeeprokError(
                f"references are {shown(given)}; they must be env=low:high,… with finite returns, low below high"
            )
        found[env] = (low, high)
    return found
