"""Settings of a run: composed of the settings of its parts, nested in `config.json`, flat on the command line.

Each part (environment, network, learner, target, estimator) states its own settings, bounds and presets in its own
file, and those that every run has stand in `run_settings`. Here is how they are put together.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast, get_args

import jax

from deeprok.agents.algorithms import ALGORITHMS, Algorithm
from deeprok.agents.learner import Budget, Learner, Task
from deeprok.agents.network import Network
from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.fields import Precision, build, check_fields, written
from deeprok.core.files import parse_json
from deeprok.environments import with_model
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.host import HostEnvironment
from deeprok.environments.host_wrappers import disturbed_simulator, remembering_simulator
from deeprok.environments.wrappers import disturbed, with_memory
from deeprok.runs import format3, inputs
from deeprok.runs.adversary import check_adversary
from deeprok.runs.parts import SECTIONS, Parts, find_parts
from deeprok.runs.preset_file import is_preset_file, read_preset
from deeprok.runs.run_settings import PRESETS, Preset, RunSettings
from deeprok.runs.simulated import check_simulator
from deeprok.uncertainty.models import (
    Box,
    ModelSet,
    box_text,
    from_box,
    from_list,
    models_text,
    no_box,
    parse_box,
    parse_deviations,
    parse_models,
    parse_values,
    values_text,
)

#: Version of `config.json`.
FORMAT = 4

#: Settings of a run that its evaluation may have other values of.
DISTURBANCES = ("sensor_noise", "action_delay", "parameter_noise")


@dataclass(frozen=True)
class Config(RunSettings):
    """Everything that decides a run; with the package's version it can be repeated from this alone."""

    environment: Any = None
    """Settings of the environment."""
    layers: Any = None
    """Settings of the network."""
    learner: Any = None
    """Settings of the learner."""
    target: Any = None
    """Settings of the target."""
    estimator: Any = None
    """Settings of the estimator; None if the learner has its own way of learning."""

    @property
    def row(self) -> Algorithm:
        """The algorithm's row of the table."""
        return ALGORITHMS[self.algorithm]

    @property
    def parts(self) -> Parts:
        """The parts that the settings name."""
        return find_parts(self.algorithm, self.env, self.network)

    @property
    def robust(self) -> bool:
        """Whether the target is the worst case over models."""
        return self.parts.target.robust

    @property
    def has_posterior(self) -> bool:
        """Whether the weights have a posterior and not just a point estimate."""
        return self.parts.estimator is not None and self.parts.estimator.posterior

    @property
    def shares_program(self) -> bool:
        """Whether several seeds train in one compiled program; if not each has a process of its own."""
        return not isinstance(self.make_env(), HostEnvironment) and self.make_learner().seeds != "processes"

    @property
    def prior(self) -> str:
        """The run that this one starts from, if the learner can take one."""
        return getattr(self.learner, "prior", "")

    @property
    def searches(self) -> bool:
        """Whether models are searched for on the way that join the set."""
        return getattr(self.learner, "adversary", "none") == "stress"

    @property
    def budget(self) -> Budget:
        """How long the run trains."""
        return Budget(self.episodes, self.steps)

    @property
    def snapshots(self) -> int:
        """How many snapshots of the weights a run takes."""
        return self.task().snapshots

    def make_env(self) -> AnyEnvironment:
        """The environment, with this run's nominal parameters, disturbances and memory."""
        env = self.parts.environment.make(self.environment)
        changed: Any = parse_values(self.nominal, env.nominal, "nominal") if self.nominal else {}
        if isinstance(env, HostEnvironment):
            env = env._replace(nominal=dataclasses.replace(env.nominal, **changed))
            env = disturbed_simulator(env, self.sensor_noise, self.action_delay, self._parameter_noise(env))
            return remembering_simulator(env, self.memory) if self.memory else env
        if changed:
            env = env._replace(nominal=with_model(env.nominal, changed))
        env = disturbed(env, self.sensor_noise, self.action_delay, self._parameter_noise(env))
        return with_memory(env, self.memory) if self.memory else env

    def _parameter_noise(self, env: AnyEnvironment) -> dict[str, float]:
        return parse_deviations(self.parameter_noise, env.nominal, "parameter_noise")

    def disturbed(self, **changes: Any) -> Config:
        """The same run in an environment that is disturbed in another way, as a test may ask for.

        Args:
          changes: some of `DISTURBANCES`, by name.
        """
        config = dataclasses.replace(self, **{name: _as_text(name, value) for name, value in changes.items()})
        check_fields(config, self.precision)
        config.make_env()  # which reads the names of parameters
        return config

    def make_box(self, env: AnyEnvironment) -> Box:
        """The uncertain parameters' ranges."""
        return parse_box(self.box, env.nominal) if self.box else env.box

    def make_models(self, env: AnyEnvironment) -> ModelSet:
        """The set of models."""
        if self.fixed_models:
            return from_list(parse_models(self.fixed_models, env.nominal))
        return from_box(self.make_box(env), self.models, self.draw, self.edges)

    def make_network(self, env: AnyEnvironment) -> Network:
        """The network: of Q-values, or of a policy."""
        return self.parts.layers.make(self.layers, self.input_scale, len(env.actions))

    def task(self) -> Task:
        """What the learner may know of this run."""
        env, parts = self.make_env(), self.parts
        return Task(
            algorithm=self.algorithm,
            env=env,
            network=self.make_network(env),
            layers=lambda inputs, outputs: parts.layers.make(
                self.layers, (*self.input_scale, *(1.0,) * inputs), outputs
            ),
            box=self.make_box(env),
            models=self.make_models(env),
            acting=self.acting,
            edges=self.edges,
            discount=self.discount,
            budget=self.budget,
            precision=self.precision,
            snapshot_every=self.snapshot_every,
            refines=self.refine_from > 0,
            settings=self.learner,
            target=parts.target,
            target_settings=self.target,
            estimator=parts.estimator,
            estimator_settings=self.estimator,
            searches=self.searches,
        )

    def make_learner(self) -> Learner:
        """The learner."""
        return self.parts.learner.make(self.task())

    def flat(self) -> dict[str, Any]:
        """Every setting by its name, as the command line has them."""
        places = _places(self)
        return {name: getattr(getattr(self, place) if place else self, name) for name, place in places.items()}

    def replace(self, **changes: Any) -> Config:
        """The settings with some replaced, by their names and wherever they stand; checked.

        Boxes, nominal parameters and fixed models may be given as dictionaries; a whole section by its record. One of
        episodes and steps given alone replaces the other's limit.
        """
        changes = {name: _as_text(name, value) for name, value in changes.items()}
        config = _with_settings(self, other_limit(changes) | changes)
        scale = config.input_scale
        if (config.environment, config.memory) != (self.environment, self.memory):  # which may have other observations
            scale = inputs.unresolved(self.make_env(), scale)
        for record in (config, config.environment):  # of which the environment is made
            check_fields(record, _precision(config))
        config = dataclasses.replace(config, input_scale=inputs.resolve(config.make_env(), scale))
        check(config)
        return config

    def arithmetic(self) -> AbstractContextManager[None]:
        """A context in which JAX computes with this run's precision."""
        return jax.enable_x64(self.precision == "float64")

    def to_json(self) -> str:
        """The text of `config.json`."""
        return json.dumps({"format": FORMAT, **written(self)}, indent=2) + "\n"

    def digest(self) -> str:
        """A short name of these settings, whatever the seed."""
        return hashlib.sha256(dataclasses.replace(self, seed=0).to_json().encode()).hexdigest()[:12]


def make_config(algorithm: str, preset: str | os.PathLike[str] = "default", **changes: Any) -> Config:
    """The settings of a preset for an algorithm, with changes.

    Args:
      algorithm: a name of `ALGORITHMS`, or your own `module:object`.
      preset: `default`, `paper` or `tuned`; or a preset file, as `deeprok.tune` writes it, whose settings the run then
        has, and whose environment unless another is given.
      changes: any settings of the run or of its parts, by name.
    """
    if is_preset_file(preset):
        return _from_file(algorithm, preset, changes)
    if preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS, more="a preset file ends with .toml")
    config = Config(
        algorithm=algorithm,
        preset=cast(Preset, preset),
        env=changes.get("env", ALGORITHMS[algorithm].env),
        network=changes.get("network", Config.network),
    )
    parts = config.parts
    presets = {
        "environment": parts.environment.settings(),
        "layers": parts.layers.settings(),
        "learner": _preset_of(parts.learner.presets, preset, parts.learner.settings()),
        "target": _preset_of(parts.target.presets, preset, parts.target.settings()),
        "estimator": parts.estimator and _preset_of(parts.estimator.presets, preset, parts.estimator.settings()),
    }
    config = dataclasses.replace(config, **presets)
    learner = parts.learner.like or config.row.learner
    env = parts.environment.make(config.environment)
    # A learner that plays whole trajectories has no rounds of steps, and plays in as many as it has trajectories.
    several = env.simulators if isinstance(env, HostEnvironment) and "train_every" in _places(config) else 1
    for more in (
        {"simulators": several},
        _preset_of(parts.learner.run, preset, {}),
        parts.estimator.run.get(preset, {}) if parts.estimator else {},
        parts.environment.presets.get((preset, learner), {}),
        config.row.settings,
    ):
        # What no part of this run reads is for others.
        config = _with_settings(config, {name: value for name, value in more.items() if name in _places(config)})
    return config.replace(**changes)


def _from_file(algorithm: str, path: str | os.PathLike[str], changes: Mapping[str, Any]) -> Config:
    """The settings of a preset file, with changes."""
    found = read_preset(path)
    if found.algorithm != algorithm:
        raise DeeprokError(f"preset is {shown(os.fspath(path))}, which is for {found.algorithm}, not for {algorithm}")
    env = changes.get("env", found.env)
    own = found.held(os.fspath(path), env, changes.get("network", found.settings.get("network", Config.network)))
    return make_config(algorithm, found.base, **{**own, **other_limit(changes), **changes, "env": env})


def _preset_of(presets: Mapping[str, Any], preset: str, otherwise: Any) -> Any:
    """What a part has for a preset; a part that has no `default` takes what it has as `tuned`."""
    return presets.get(preset, presets.get("tuned", otherwise) if preset == "default" else otherwise)


def other_limit(given: Mapping[str, Any]) -> dict[str, int]:
    """No limit of steps where one of episodes is given alone, and the other way round."""
    limits = {"episodes": "steps", "steps": "episodes"}
    return {other: 0 for limit, other in limits.items() if given.get(limit) and other not in given}


def _places(config: Config) -> dict[str, str]:
    """Each setting of a run -> the section that it stands in; empty for those of every run."""
    places = {field.name: "" for field in dataclasses.fields(RunSettings)}
    for section in SECTIONS:
        if (record := getattr(config, section)) is not None:
            places |= {field.name: section for field in dataclasses.fields(record)}
    return places


def _with_settings(config: Config, changes: Mapping[str, Any]) -> Config:
    """The settings with some replaced, wherever they stand; a whole section may be replaced by its record."""
    whole = {
        name: value
        for name, value in changes.items()
        if name in SECTIONS and isinstance(value, type(getattr(config, name)))
    }
    config = dataclasses.replace(config, **whole)
    places, chosen = _places(config), dict[str, dict[str, Any]]()
    for name, value in changes.items():
        if name in whole:
            continue
        if name not in places:
            raise unknown("setting", name, places)
        chosen.setdefault(places[name], {})[name] = value
    top = chosen.pop("", {})
    records = {section: dataclasses.replace(getattr(config, section), **new) for section, new in chosen.items()}
    return dataclasses.replace(config, **top, **records)


#: Settings that are text of the grammar of `deeprok.uncertainty.models`, and may be given as dictionaries.
_TEXTS: dict[str, Callable[[Any], str]] = {
    "box": box_text,
    "nominal": values_text,
    "fixed_models": models_text,
    "parameter_noise": functools.partial(values_text, origin="parameter_noise"),
}


def _as_text(name: str, value: Any) -> Any:
    return _TEXTS[name](value) if name in _TEXTS and not isinstance(value, str) else value


def from_json(text: str | bytes, origin: str) -> Config:
    """Reads `config.json`.

    Args:
      text: its contents.
      origin: its path, for messages.
    """
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise DeeprokError(f"{origin} is not a JSON object; the run folder is damaged")
    version = fields.pop("format", None)
    if version == 3:
        fields = format3.upgraded(fields, origin)
    elif version != FORMAT:
        raise DeeprokError(
            f"{origin} has format {shown(version)}; this version of deeprok reads formats 3 and {FORMAT}"
        )
    names = [fields.get(name) for name in ("algorithm", "env", "network")]
    if not all(isinstance(name, str) for name in names):
        raise DeeprokError(f"{origin} does not name its algorithm, env and network; the run folder is damaged")
    try:
        parts = find_parts(*names)
    except DeeprokError as error:
        raise DeeprokError(f"{origin}: {error}") from error
    for section, part in parts._asdict().items():
        found = fields.get(section)
        fields[section] = None if part is None and found is None else build(part and part.settings, found, origin)
    config: Config = build(Config, fields, origin)
    check(config)
    return config


def _precision(config: Config) -> Precision:
    """The run's arithmetic, or the usual one if that is none."""
    return config.precision if config.precision in get_args(Precision) else "float32"


def check(config: Config) -> None:
    """Raises a `DeeprokError` that names the field, its value and what is allowed."""
    parts = config.parts
    precision = _precision(config)
    check_fields(config, precision)
    for section, part in parts._asdict().items():
        record = getattr(config, section)
        if part is None or not isinstance(record, part.settings):
            if part is None and record is None:
                continue
            wanted = part.settings.__name__ if part else "None"
            raise DeeprokError(f"{section} is a {type(record).__name__}; {config.algorithm} takes a {wanted}")
        check_fields(record, precision)
    if not (config.episodes or config.steps):
        raise DeeprokError("episodes and steps are both 0, which is no limit; one of them must be a limit")
    env = config.make_env()
    if len(config.input_scale) != len(env.observation_scale):
        own = env.past.observations if env.past else len(env.observation_scale)
        raise DeeprokError(
            f"input_scale is {shown(config.input_scale)}; {config.env} has {own} observations, give as many, or one"
        )
    if not config.make_box(env) and (config.robust or config.acting != "nominal"):
        raise no_box(config.env, env.nominal, config.algorithm)
    if config.simulators > 1 and not isinstance(env, HostEnvironment):
        raise DeeprokError(
            f"simulators is {config.simulators}, but {config.env} is an environment in JAX, not a stateful simulator; "
            "take 1"
        )
    parts.target.check(config.target, config.has_posterior)
    parts.learner.check(config.task())
    if config.searches:
        check_adversary(config, config.task(), config.make_learner())
    if isinstance(env, HostEnvironment):
        check_simulator(config, env, config.make_learner(), config.robust)
