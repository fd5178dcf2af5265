"""The stress test of one trained policy or several."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deeprok.core import cache
from deeprok.core.errors import DeeprokError
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.disturbable import ACTION_DELAY, SENSOR_NOISE, disturbable
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.disturbed import can_be_disturbed, parameters_of, undisturbed
from deeprok.evaluation.findings import make_finding
from deeprok.evaluation.stress.margin import ROUNDS, SECTIONS, margins
from deeprok.evaluation.stress.player import EPISODES, REPORT, Player, make_player
from deeprok.evaluation.stress.result import Model, Stress, StressedRun, make_rate
from deeprok.evaluation.stress.search import Tried, least_budget, search, worst_of
from deeprok.evaluation.stress.sensitivity import sensitivity_of
from deeprok.evaluation.stress.space import Space, enclosing, make_space
from deeprok.evaluation.trained import Run, load
from deeprok.runs.alike import check_same_environment
from deeprok.runs.settings import Config
from deeprok.uncertainty.models import box_text, parse_box

#: Models that are tried unless a budget is given, of an environment in JAX and of a stateful simulator.
BUDGET, SIMULATOR_BUDGET = 4096, 1024

#: How much more sensor noise, and how many steps more delay, than a run was trained with belong to its usual box.
_MORE_NOISE, _MORE_DELAY = 0.1, 1

#: The worst models of each search that are played again to choose the worst of all.
_CANDIDATES = 32


def stress(
    run: str | os.PathLike[str],
    *others: str | os.PathLike[str],
    box: str | Mapping[str, Sequence[float]] | None = None,
    margin: float = 0.5,
    threshold: float = 0.9,
    budget: int | None = None,
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
    save: bool = False,
) -> Stress:
    """Finds where a trained policy breaks, how far that is from the nominal model, and which parameters matter.

    A box of models and a margin around it are searched for the model with the least success and, of equals, the least
    return. What is found is played again with other random numbers, so that its success is not that of bad luck. The
    policy is greedy. Several runs are searched on the same models, and what was found for one is tried on all.

    Args:
      run: a loaded run, a run folder, or a folder of seeds, of which the seed that did best on held-out models is
        tested.
      others: more of them, to be compared; all must have the same environment.
      box: what is searched, as {"name": (low, high)} or as text, name=low:high,…. Beside the environment's parameters
        there are `sensor_noise` and `action_delay`. By default the run's own box, up to 0.1 more noise and one step
        more delay than it was trained with; of several runs, the smallest box that holds those of all.
      margin: by what part of its width each range is widened on either side. A quantity that must be positive stays
        above a tenth of its lower end.
      threshold: the success, above 0 and at most 1, below which a policy fails on a model.
      budget: models that are tried for each run; by default 4096, and 1024 in a stateful simulator. The more there
        are, the more episodes confirm what was found.
      seed: seed of all random numbers.
      advance: called with the fraction of the work done since its last call.
      save: also keep what was found of each run in its folder, in the file `stress.json`.

    Example:
      >>> found = deeprok.stress("runs/rok", "runs/ddqn", threshold=0.8)
      >>> found.worst.success
      >>> print(found.verdict.sentence)
    """
    cache.enable_if_asked()
    _check(margin, threshold, seed)
    trained = [_loaded(one) for one in (run, *others)]
    tested = _tested(trained, box, margin)
    space = tested.space
    tries = _budget(budget, tested)
    meter = _Meter(advance, len(trained) * _work(tries, len(space.dimensions), len(trained)))
    players = [
        make_player(one, env, space.names, seed, meter.add) for one, env in zip(trained, tested.envs, strict=True)
    ]
    tried = [search(space, player, tries, seed) for player in players]
    nominal = [space.rounded(_values_of(env, space)) for env in tested.envs]
    # A search may pass over a nominal model that fails by chance or by design, and the margins begin there.
    candidates = np.concatenate(
        [*(each.worst(_CANDIDATES) for each in tried), *(one[None] for one in nominal if space.holds(one))]
    )
    found = tuple(
        _examined(os.fspath(given), one, values, space, player, each, candidates, tries, threshold)
        for given, one, values, player, each in zip((run, *others), trained, nominal, players, tried, strict=True)
    )
    meter.finish()
    result = Stress(trained[0].env.name, space, threshold, tries, EPISODES, seed, found)
    if save:
        words = [shlex.quote(os.fspath(one)) for one in (run, *others)]
        words += [f"--box {shlex.quote(box_text(box))}"] if box is not None else []
        words += [f"--margin {margin!r} --threshold {threshold!r} --budget {tries} --seed {seed} --json"]
        _save(result, " ".join(["deeprok stress", *words]))
    return result


def _save(result: Stress, command: str) -> None:
    """Keeps of each run what was found of it, in its folder."""
    for one in result.runs:
        folder, alone = Path(one.folder), dataclasses.replace(result, runs=(one,))
        make_finding("stress", command, one.keep, [folder], alone.to_dict()).save(folder)


def _check(margin: float, threshold: float, seed: int) -> None:
    if not 0 <= margin < math.inf:
        raise DeeprokError(f"margin is {margin:g}; it must be a number of at least 0")
    if not 0 < threshold <= 1:
        raise DeeprokError(f"threshold is {threshold:g}; it must be a success rate above 0 and at most 1")
    if not 0 <= seed < 2**32:
        raise DeeprokError(f"seed is {seed}; it must be from 0 to 4294967295")


def _loaded(run: str | os.PathLike[str]) -> Run:
    return run if isinstance(run, Run) else load(run)


class _Tested(NamedTuple):
    """What is searched, and the environment of each run, in which the searched parameters are parameters."""

    space: Space
    envs: list[AnyEnvironment]


def _tested(trained: Sequence[Run], box: str | Mapping[str, Sequence[float]] | None, margin: float) -> _Tested:
    folders = [one.folder for one in trained]
    for place, one in enumerate(trained[1:], 1):
        if one.folder in folders[:place]:
            raise DeeprokError(f"{one.folder} is given twice; give each run once")
        check_same_environment(trained[0].folder, trained[0].settings, one.folder, one.settings)
    first = trained[0].settings
    with first.arithmetic():
        nominal = parameters_of(first, undisturbed(first))
        if box is None:
            searched = enclosing([_usual_box(one.settings) for one in trained])
        else:
            searched = parse_box(box_text(box), nominal)
    if not searched:
        raise DeeprokError(f"{trained[0].env.name} has no box of uncertain parameters; give a box")
    space = make_space(searched, margin, nominal)
    return _Tested(space, [_environment(one.settings, space) for one in trained])


def _usual_box(config: Config) -> dict[str, tuple[float, float]]:
    """What is searched unless a box is given."""
    env = undisturbed(config)
    box = dict(config.make_box(env))
    if can_be_disturbed(env):
        box[SENSOR_NOISE] = (0.0, config.sensor_noise + _MORE_NOISE)
        box[ACTION_DELAY] = (0.0, float(config.action_delay + _MORE_DELAY))
    return box


def _environment(config: Config, space: Space) -> AnyEnvironment:
    """The environment that a run is tested in."""
    with config.arithmetic():
        env = undisturbed(config)
        highest = {each.name: each.high for each in space.dimensions}
        if not can_be_disturbed(env) or not {SENSOR_NOISE, ACTION_DELAY} & set(highest):
            return config.make_env()
        longest = max(config.action_delay, int(highest.get(ACTION_DELAY, 0)))
        return disturbable(env, config.sensor_noise, config.action_delay, longest)


def _values_of(env: AnyEnvironment, space: Space) -> np.ndarray:
    """[D] the nominal values of what is searched."""
    return np.array([float(getattr(env.nominal, name)) for name in space.names])


def _budget(budget: int | None, tested: _Tested) -> int:
    if budget is None:
        budget = SIMULATOR_BUDGET if isinstance(tested.envs[0], HostEnvironment) else BUDGET
        return max(budget, least_budget(len(tested.space.dimensions)))
    least = least_budget(len(tested.space.dimensions))
    if budget < least:
        count = len(tested.space.dimensions)
        raise DeeprokError(
            f"budget is {budget}; a search of {count} parameter{'s' if count > 1 else ''} takes at least {least} models"
        )
    return budget


class _Blocks(NamedTuple):
    """How many blocks of episodes a model is played with, by purpose."""

    choice: int
    report: int
    lines: int


def _blocks(budget: int) -> _Blocks:
    """With the usual budget 256 episodes to choose the worst model, 1024 to report it, and 256 along lines."""
    return _Blocks(choice=max(1, budget // 512), report=max(1, budget // 128), lines=max(1, budget // 512))


def _work(budget: int, dimensions: int, runs: int) -> int:
    """The blocks of episodes that a run is played with at most, on all models."""
    blocks, lines = _blocks(budget), 2 * dimensions + 1
    return (
        budget
        + runs * (_CANDIDATES + 1) * blocks.choice
        + 2 * blocks.report
        + (1 + ROUNDS * SECTIONS * lines) * blocks.lines
    )


class _Meter:
    """Counts the work done, and reports it as fractions of the whole."""

    def __init__(self, advance: Callable[[float], None] | None, total: float) -> None:
        self._advance, self._total, self._done = advance or (lambda part: None), total, 0.0

    def add(self, work: float) -> None:
        """Reports work."""
        self._done += work
        self._advance(work / self._total)

    def finish(self) -> None:
        """Reports what was not needed."""
        self.add(max(0.0, self._total - self._done))


def _examined(
    name: str,
    run: Run,
    nominal: np.ndarray,
    space: Space,
    player: Player,
    tried: Tried,
    candidates: np.ndarray,
    budget: int,
    threshold: float,
) -> StressedRun:
    """What follows from a search: the worst model, chosen and then reported by fresh episodes, margins, indices.

    Args:
      name: of the run.
      run: the run.
      nominal: [D] its nominal model, with whole numbers where they must be.
      space: what was searched.
      player: plays models.
      tried: the run's own search.
      candidates: [C, D] the worst models of all runs' searches, and their nominal ones.
      budget: decides how many episodes confirm.
      threshold: the success that counts as working.
    """
    blocks = _blocks(budget)
    worst = worst_of(candidates, player, blocks.choice)
    reported = player(np.stack([nominal, worst]), REPORT, blocks.report)
    models = [
        Model(
            dict(zip(space.names, (float(x) for x in values), strict=True)),
            make_rate(success, blocks.report * EPISODES),
            float(mean_return),
        )
        for values, success, mean_return in zip((nominal, worst), *reported, strict=True)
    ]
    margin, direction = margins(space, nominal, worst, player, threshold, blocks.lines)
    of, indices = sensitivity_of(tried)
    ranked = sorted(zip(space.names, indices, strict=True), key=lambda pair: -pair[1].total)
    uniform = tried.success[tried.uniform()]
    return StressedRun(
        name=name,
        folder=str(run.folder),
        algorithm=run.settings.algorithm,
        keep=run.keep,
        nominal=models[0],
        worst=models[1],
        failing=make_rate(float((uniform < threshold).mean()), len(uniform)),
        margin=margin,
        direction=direction,
        sensitivity=dict(ranked),
        sensitivity_of=of,
        tried=tried,
    )
