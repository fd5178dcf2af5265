"""Which runs a page shows: those of paths, by environment, with maps on a grid that they share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments import Choices
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.disturbable import ACTION_DELAY, SENSOR_NOISE
from deeprok.environments.past import without_memory
from deeprok.evaluation.disturbed import can_be_disturbed, parameters_of, undisturbed
from deeprok.evaluation.grid import GridTest, play
from deeprok.evaluation.result import Evaluation, default_axes, same_axes
from deeprok.evaluation.statistics import estimate, mean_of, probability_of_improvement
from deeprok.evaluation.stored import read_stored, stored_files
from deeprok.evaluation.stress.space import enclosing, make_space
from deeprok.report.agents import read_agent
from deeprok.report.data import Agent, Map, Reference, Scene, Slider
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.runs.settings import Config

#: Agents in one environment, episodes in a cell of a map that is played for the page, and how deep runs may lie.
MOST_AGENTS, EPISODES, _DEPTH = 12, 100, 6

#: The probability of a random action in such a map.
_EPSILON: float = GridTest._field_defaults["epsilon"]

#: By what part of its width a slider is longer than the box, on either side.
_MARGIN = 0.5

#: The largest noise and delay of the sliders.
_MOST_NOISE, _MOST_DELAY = 0.3, 10


def find_agents(paths: Sequence[Path]) -> list[Path]:
    """The agents at paths: run folders and folders of seeds, or those in a folder, however deep."""
    found: dict[Path, Path] = {}
    for path in paths:
        for one in _beneath(path, _DEPTH) if path.is_dir() else runs.find(path):
            found.setdefault(one.resolve(), one)
    if not found:
        raise DeeprokError(f"there is no run in {paths[0]}; give a run folder, or a folder that has some in it")
    return list(found.values())


def _beneath(folder: Path, depth: int) -> list[Path]:
    """Agents in a folder, in the order of their names."""
    try:
        runs.find(folder)
        return [folder]
    except DeeprokError:
        if not depth:
            return []
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise DeeprokError(f"can't look into the folder {folder}: {error.strerror}") from error
    return [agent for path in inner for agent in _beneath(path, depth - 1)]


def read_scenes(
    paths: Sequence[Path],
    keep: Keep = "best",
    episodes: int | None = None,
    plays: bool = True,
    advance: Callable[[float], None] | None = None,
    references: Sequence[Reference] = (),
) -> list[Scene]:
    """The environments of runs, each with its agents and their maps.

    Args:
      paths: run folders, folders of seeds, or folders of those.
      keep: the weights that act.
      episodes: in each cell of the maps; None for those of the newest that is stored.
      plays: whether a map that is not stored is played, and stored.
      advance: called with the fraction of the work done since its last call.
      references: of their environments; maps are on the grid of a reference, and have its ε.
    """
    agents = find_agents(paths)
    groups: dict[Any, list[Path]] = {}
    for path in agents:
        config = runs.read_config(runs.find(path)[0])
        groups.setdefault((config.env, repr(config.environment)), []).append(path)
    for (env, _), group in groups.items():
        if len(group) > MOST_AGENTS:
            raise DeeprokError(
                f"{len(group)} agents were trained in {env}; a page shows at most {MOST_AGENTS} side by side, so name "
                "those"
            )
    share = (lambda part: advance(part / len(groups))) if advance else None
    scenes = [_scene(group, keep, episodes, plays, share, references) for group in groups.values()]
    for reference in references:
        if not any(scene.reference is reference for scene in scenes):
            raise DeeprokError(
                f"{reference.file} is a screening of {reference.env} with the nominal values "
                f"{', '.join(f'{name} {value:g}' for name, value in reference.nominal.items())}, in which none of the "
                "runs was trained; or it is the second one of it"
            )
    return scenes


def labels(paths: Sequence[Path]) -> list[str]:
    """What agents are called: their paths below the folder that all of them are in."""
    absolute = [os.path.abspath(path) for path in paths]
    common = os.path.dirname(absolute[0]) if len(absolute) == 1 else os.path.commonpath(absolute)
    return [os.path.relpath(path, common) for path in absolute]


def _scene(
    paths: Sequence[Path],
    keep: Keep,
    episodes: int | None,
    plays: bool,
    advance: Callable[[float], None] | None,
    references: Sequence[Reference],
) -> Scene:
    configs = [runs.read_config(runs.find(path)[0]) for path in paths]
    config = configs[0]
    agents = [read_agent(path, name, keep) for path, name in zip(paths, labels(paths), strict=True)]
    with config.arithmetic():
        env = undisturbed(config)
        reference = next((each for each in references if _is_of(each, env)), None)
    maps = _maps(paths, agents, episodes, plays, advance, reference)
    with config.arithmetic():
        own = without_memory(env) if env.past else env
        units = {field.name: field.metadata["unit"] for field in dataclasses.fields(env.nominal)}
        actions = env.actions
        return Scene(
            env=config.env,
            name=env.name,
            sliders=_sliders(config, env, enclosing([agent.box for agent in agents])),
            actions=list(actions.names) if isinstance(actions, Choices) else None,
            interval=actions.describe().get("interval"),
            horizon=env.horizon,
            success_return=float(env.success_return),
            settings=dataclasses.asdict(config.environment),
            observation_scale=[float(size) for size in own.observation_scale[: _observations(env)]],
            seconds=float(env.nominal.time_step) if units.get("time_step") == "s" else None,
            reference=reference,
            agents=[dataclasses.replace(agent, map=found) for agent, found in zip(agents, maps, strict=True)],
        )


def _is_of(reference: Reference, env: AnyEnvironment) -> bool:
    """Whether a reference is of this environment, with these nominal parameters."""
    nominal = {name: getattr(env.nominal, name, None) for name in reference.nominal}
    return reference.env == env.name and all(
        value is not None and np.isclose(float(value), reference.nominal[name]) for name, value in nominal.items()
    )


def _observations(env: AnyEnvironment) -> int:
    """Numbers of one observation, without the past."""
    return env.past.observations if env.past else len(env.observation_scale)


def _sliders(config: Config, env: AnyEnvironment, box: dict[str, tuple[float, float]]) -> list[Slider]:
    """Parameters of the box first, then the others, then noise and delay."""
    params = parameters_of(config, env)
    wider = {one.name: one for one in make_space(box, _MARGIN, env.nominal).dimensions} if box else {}
    sliders = []
    for field in dataclasses.fields(env.nominal):
        nominal = float(getattr(env.nominal, field.name))
        if field.name in wider:
            low, high = wider[field.name].low, wider[field.name].high
        else:
            low, high = min(0.5 * nominal, 2 * nominal), max(0.5 * nominal, 2 * nominal)
            high = min(high, field.metadata["most"]) if nominal else 1.0
        low, high = min(low, nominal), max(high, nominal)
        about = field.metadata["unit"], field.metadata["meaning"]
        known, positive = box.get(field.name), field.metadata["positive"]
        sliders.append(Slider(field.name, *about, nominal, low, high, known, False, positive))
    sliders.sort(key=lambda slider: slider.box is None)
    if can_be_disturbed(env):
        noise, delay = float(getattr(params, SENSOR_NOISE)), float(getattr(params, ACTION_DELAY))
        meaning = "noise on each observation, as a multiple of its typical size"
        most = max(_MOST_NOISE, 2 * noise), max(_MOST_DELAY, 2 * delay)
        sliders.append(Slider(SENSOR_NOISE, "", meaning, noise, 0.0, most[0], None, False, False))
        late = "by which each action is late"
        sliders.append(Slider(ACTION_DELAY, "steps", late, delay, 0.0, most[1], None, True, False))
    return sliders


def _maps(
    paths: Sequence[Path],
    agents: Sequence[Agent],
    episodes: int | None,
    plays: bool,
    advance: Callable[[float], None] | None,
    reference: Reference | None,
) -> list[Map | None]:
    """The map of each agent, all on one grid; None of those that have none."""
    groups = [runs.find(path) for path in paths]
    axes = default_axes(enclosing([agent.box for agent in agents]))
    epsilon = None
    if reference:
        axes, epsilon = {name: np.array(axis) for name, axis in reference.grid.items()}, reference.epsilon
    tested = [i for i, agent in enumerate(agents) if agent.weights]
    found = _stored([groups[i] for i in tested], [agents[i] for i in tested], axes, episodes, epsilon) if axes else []
    if not found and plays and axes:
        share = (lambda part: advance(part / len(tested))) if advance else None
        wanted, asked = episodes or EPISODES, _EPSILON if epsilon is None else epsilon
        for i in tested:
            stored = _stored([groups[i]], [agents[i]], axes, wanted, asked)
            found += stored or [_played(groups[i], GridTest(axes, wanted, asked, keep=agents[i].keep), share)]
    maps: list[Map | None] = [None] * len(paths)
    for i, each in zip(tested, found, strict=False):
        maps[i] = _map(each, paths[i], found[0])
    return maps


def _played(folders: Sequence[Path], test: GridTest, advance: Callable[[float], None] | None) -> Evaluation:
    played = play(folders, test, advance)
    played.save()
    return played.together()


def _stored(
    groups: Sequence[Sequence[Path]],
    agents: Sequence[Agent],
    axes: dict[str, np.ndarray],
    episodes: int | None,
    epsilon: float | None = None,
) -> list[Evaluation]:
    """The newest evaluation of this grid that all agents have stored, and with their present weights; else none."""
    for file in stored_files([folder for folders in groups for folder in folders]):
        found = [read_stored(folders, file) for folders in groups]
        if all(
            same_axes(one.grid, axes)
            and episodes in (None, one.episodes)
            and epsilon in (None, one.epsilon)
            and one.policy == "mean"
            and {seed.weights for seed in one.per_seed if seed.seed == agent.seed} <= {agent.weights, ""}
            for one, agent in zip(found, agents, strict=True)
        ):
            return found
    return []


def _map(found: Evaluation, path: Path, first: Evaluation) -> Map:
    """The map of an agent.

    Args:
      found: its evaluation.
      path: its folder.
      first: the evaluation of the agent that it is compared with.
    """
    grid = ",".join(f"{name}={axis[0]:g}:{axis[-1]:g}:{len(axis)}" for name, axis in found.grid.items())
    overall = [one.overall.success for one in found.per_seed]
    command = (
        f"deeprok evaluate {path} --grid {grid} --episodes {found.episodes} --epsilon {found.epsilon:g}"
        f" --keep {found.keep} --json"
    )
    theirs, interval = [one.overall.success for one in first.per_seed], mean_of(overall).interval
    improvement = None if found is first else estimate(probability_of_improvement, overall, theirs)
    return Map(
        grid={name: axis.tolist() for name, axis in found.grid.items()},
        success=found.success.tolist(),
        low=found.success_low.tolist(),
        high=found.success_high.tolist(),
        mean_return=found.mean_return.tolist(),
        overall=overall,
        returns=[one.overall.mean_return for one in found.per_seed],
        nominal=found.nominal.success,
        overall_interval=interval and (max(0.0, interval[0]), min(1.0, interval[1])),
        improvement=improvement and improvement.value,
        improvement_interval=improvement and improvement.interval,
        episodes=found.episodes,
        epsilon=found.epsilon,
        keep=found.keep,
        file=found.file,
        command=command,
    )
