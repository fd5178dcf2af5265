"""Films of trained policies in one environment."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, unknown
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.disturbable import ACTION_DELAY, SENSOR_NOISE, disturbable
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.disturbed import can_be_disturbed, parameters_of, undisturbed
from deeprok.evaluation.render.episode import Episode, check_visible, make_player
from deeprok.evaluation.render.files import check_film_file, write_film
from deeprok.evaluation.render.pane import Film, Subject
from deeprok.evaluation.trained import Run, load
from deeprok.runs.alike import check_same_environment
from deeprok.runs.folder import KEEPS, Keep, Runs
from deeprok.uncertainty.models import parse_values, values_text

#: Width of a pane in pixels, of a film and of a strip of moments.
_WIDTHS = {".gif": 400, ".mp4": 480, ".png": 300}

#: Panes, pixels and steps that a film may have.
_MOST_RUNS, _MOST_PIXELS, _MOST_STEPS = 12, 2000, 100_000

#: Steps in a second of a film where nothing says how long a step is; fewer in a short one, so that it lasts a while.
_FPS, _LEAST_FPS, _LEAST_SECONDS = 30.0, 2.0, 4.0

#: The part of the work that playing is.
_PLAYING = 0.3


class Shown(NamedTuple):
    """What was seen of a run."""

    name: str  # the label of its pane
    folder: str
    total: float  # the return
    steps: int
    ending: str  # "succeeded", "failed", "cut off" before the environment's time was up, or "ended"


def render(
    runs: Runs,
    at: str | Mapping[str, float] = "",
    *,
    out: str | os.PathLike[str],
    seed: int = 0,
    steps: int | None = None,
    epsilon: float = 0.0,
    fps: float | None = None,
    keep: Keep | None = None,
    size: int | None = None,
    advance: Callable[[float], None] | None = None,
) -> tuple[Shown, ...]:
    """Films trained policies side by side, on the same model, from the same start and with the same random numbers.

    What is seen is the first episode that `deeprok.evaluate` plays with this seed. A pane stays as it is when its
    episode has ended, until all have.

    Args:
      runs: a loaded run, a run folder, or a folder of seeds, of which the seed that did best on held-out models acts;
        or a list of them, all with the same environment.
      at: the model, as {"name": value} or as text, name=value,…. Beside the environment's parameters there are
        `sensor_noise` and `action_delay`. What is not named has the nominal value of the first run.
      out: the file, a .gif, an .mp4 (extra `video`), or a .png with a few moments of each episode.
      seed: decides the start and all other random numbers.
      steps: after which episodes are cut off; by default the environment's horizon.
      epsilon: probability of a random action.
      fps: steps in a second of the film. By default it is in real time where the environment has a `time_step` in
        seconds, and otherwise has 30, or fewer if it were over in less than four seconds.
      keep: the weights that did `best` in the trials on held-out models, or the `last` ones; by default those of a
        loaded run, and the best ones of a folder.
      size: width of a pane in pixels.
      advance: called with the fraction of the work done since its last call.

    Returns:
      Of each run its return, its steps and how the episode ended.

    Example:
      >>> shown = deeprok.render(["runs/ddqn", "runs/rok"], at={"friction": 0.3}, out="road.gif")
      >>> tuple(each.ending for each in shown)
      ('failed', 'succeeded')
    """
    cache.enable_if_asked()
    path, report = Path(out), advance or (lambda part: None)
    check_film_file(path)
    _check(seed, steps, epsilon, fps, keep, size)
    several = [*runs] if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    if not 1 <= len(several) <= _MOST_RUNS:
        raise DeeprokError(f"runs has {len(several)} of them; it must have from 1 to {_MOST_RUNS}")
    trained = [_loaded(one, keep) for one in several]
    for one in trained[1:]:
        check_same_environment(trained[0].folder, trained[0].settings, one.folder, one.settings)
    model = _model(trained[0], at)
    envs = [_environment(one, model) for one in trained]
    for env in envs:
        check_visible(env)
    most = envs[0].horizon if steps is None else steps
    episodes = [
        make_player(one, env, most)(model, seed, epsilon, lambda part: report(_PLAYING * part / len(trained)))
        for one, env in zip(trained, envs, strict=True)
    ]
    labels = _labels(several, trained)
    seconds = _step_seconds(envs[0], model)
    subjects = [
        _subject(label, one, env, episode, model, seconds)
        for label, one, env, episode in zip(labels, trained, envs, episodes, strict=True)
    ]
    film = Film(subjects, size or _WIDTHS[path.suffix.lower()])
    rate = fps or _usual_fps(film.steps, seconds)
    write_film(film, path, rate, lambda part: report((1 - _PLAYING) * part))
    return tuple(
        Shown(subject.label, str(one.folder), subject.returns[-1], subject.steps, subject.ending)
        for subject, one in zip(subjects, trained, strict=True)
    )


def _check(
    seed: int, steps: int | None, epsilon: float, fps: float | None, keep: Keep | None, size: int | None
) -> None:
    if not 0 <= seed < 2**32:
        raise DeeprokError(f"seed is {seed}; it must be from 0 to 4294967295")
    if steps is not None and not 1 <= steps <= _MOST_STEPS:
        raise DeeprokError(f"steps is {steps}; it must be from 1 to {_MOST_STEPS}")
    if not 0 <= epsilon <= 1:
        raise DeeprokError(f"epsilon is {epsilon:g}; it must be a probability between 0 and 1")
    if fps is not None and not 0.1 <= fps <= 240:
        raise DeeprokError(f"fps is {fps:g}; it must be from 0.1 to 240 steps in a second")
    if keep is not None and keep not in KEEPS:
        raise unknown("keep", keep, KEEPS)
    if size is not None and not 100 <= size <= _MOST_PIXELS:
        raise DeeprokError(f"size is {size}; it must be from 100 to {_MOST_PIXELS} pixels")


def _loaded(run: str | os.PathLike[str], keep: Keep | None) -> Run:
    if isinstance(run, Run):
        return run if keep is None or keep == run.keep else load(run.folder, keep=keep)
    return load(run, keep=keep or "best")


def _model(run: Run, at: str | Mapping[str, float]) -> dict[str, float]:
    """Every parameter's value: what was asked for, and else that of the run."""
    config = run.settings
    with config.arithmetic():
        env = undisturbed(config)
        params = parameters_of(config, env)
        text = values_text(at, "at")
        asked = parse_values(text, params, "at") if text.strip() else {}
        if can_be_disturbed(env):
            disturbances = {name: asked[name] for name in (SENSOR_NOISE, ACTION_DELAY) if name in asked}
            if (delay := disturbances.get(ACTION_DELAY)) is not None and delay.is_integer():
                disturbances[ACTION_DELAY] = int(delay)
            config.disturbed(**disturbances)  # which are checked as those of a run
    return {field.name: float(getattr(params, field.name)) for field in dataclasses.fields(params)} | asked


def _environment(run: Run, model: Mapping[str, float]) -> AnyEnvironment:
    """The environment that a run is seen in, of which noise and delay are parameters."""
    config = run.settings
    with config.arithmetic():
        env = undisturbed(config)
        if not can_be_disturbed(env):
            return config.make_env()
        return disturbable(env, config.sensor_noise, config.action_delay, int(model[ACTION_DELAY]))


def _labels(given: Sequence[str | os.PathLike[str]], trained: Sequence[Run]) -> list[str]:
    """What the panes are called: by folder, or by path where folders have one name, with the algorithm."""
    names = [Path(os.path.abspath(one)).name for one in given]
    if len(set(names)) < len(names):
        names = [os.fspath(one) for one in given]
    return [
        name if name == one.settings.algorithm else f"{name} ({one.settings.algorithm})"
        for name, one in zip(names, trained, strict=True)
    ]


def _step_seconds(env: AnyEnvironment, model: Mapping[str, float]) -> float | None:
    """How long a step lasts, if the environment says so."""
    units = {field.name: field.metadata["unit"] for field in dataclasses.fields(env.nominal)}
    return model["time_step"] if units.get("time_step") == "s" else None


def _usual_fps(steps: int, seconds: float | None) -> float:
    if seconds:
        return min(max(1 / seconds, 0.1), 240.0)
    return min(_FPS, max(_LEAST_FPS, steps / _LEAST_SECONDS))


def _subject(
    label: str, run: Run, env: AnyEnvironment, episode: Episode, model: Mapping[str, float], seconds: float | None
) -> Subject:
    returns = [0.0]
    for reward in episode.rewards:
        returns.append(returns[-1] + float(reward))
    return Subject(
        label=label,
        model=_changes(env.nominal, model),
        returns=returns,
        ending=_ending(env, episode, returns[-1]),
        seconds=seconds,
        picture=episode.picture,
    )


def _ending(env: AnyEnvironment, episode: Episode, total: float) -> str:
    whole = episode.over or len(episode.rewards) >= env.horizon
    if isinstance(env, HostEnvironment) and "success_return" in env.assumed:
        return "ended" if whole else "cut off"
    return "succeeded" if total > env.success_return else "failed" if whole else "cut off"


def _changes(nominal: Any, model: Mapping[str, float]) -> list[str]:
    """The parameters that differ from the run's nominal ones, in words from long to short."""
    units = {field.name: field.metadata["unit"] for field in dataclasses.fields(nominal)}
    usual = {name: float(getattr(nominal, name)) for name in model}
    changed = {name: value for name, value in model.items() if not math.isclose(value, usual[name], rel_tol=1e-6)}
    if not changed:
        return ["nominal model"]
    short = {name: f"{name} {value:.4g} {units[name]}".strip() for name, value in changed.items()}
    long = [f"{words} (nominal {usual[name]:.4g})" for name, words in short.items()]
    return [", ".join(long), ", ".join(short.values())]
