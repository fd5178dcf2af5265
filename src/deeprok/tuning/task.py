"""What is to be tuned: the algorithm and environment, what is tried, and how settings are scored."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.fields import held, number_type
from deeprok.core.search import Range, Searched
from deeprok.environments.host import HostEnvironment
from deeprok.runs.parts import setting_types
from deeprok.runs.run_settings import PRESETS
from deeprok.runs.settings import Config, make_config
from deeprok.runs.space import Stated, check_searched, stated_space
from deeprok.sweeps.spec import read_axis

#: What decides which settings are better.
Metric = Literal["worst", "cvar10", "success", "return"]
METRICS: tuple[str, ...] = get_args(Metric)

#: What is never tuned, nor fixed: it has an option of its own, or no value that suits an algorithm.
_NOT_SETTINGS = ("algorithm", "env", "preset", "seed")

#: Held-out models and episodes on each, and episodes on each reported model, in JAX and in stateful simulators, whose
#: episodes take long.
_IN_JAX, _IN_SIMULATORS = (64, 10, 100), (16, 2, 10)

_UNITS = {"h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_MOST = 100_000


class Rung(NamedTuple):
    """How long settings are trained before it is decided whether they are trained for longer."""

    fraction: float  # of the whole budget of a run
    seeds: int


class Options(NamedTuple):
    """How it is tuned, with the defaults of `deeprok.tune`, which says what each field is."""

    budget: str | float | None = None
    trials: int | None = None
    metric: Metric = "worst"
    preset: str = "default"
    seeds: int = 3
    rungs: int = 3
    finalists: int = 3
    fresh: int = 10
    held_out: int | None = None
    episodes: int | None = None
    grid: str | Mapping[str, Any] | None = None
    test_episodes: int | None = None
    epsilon: float = 0.1
    seed: int = 0


class Task(NamedTuple):
    """What is tuned."""

    base: Config  # the preset with the settings that are fixed
    fixed: dict[str, Any]
    space: dict[str, Searched]
    rungs: tuple[Rung, ...]
    options: Options  # with numbers for those that depend on the environment

    def config(self, settings: Mapping[str, Any], rung: Rung | None = None) -> Config:
        """The settings of a run: what was chosen for it, with the budget of a rung or all of it."""
        config = self.base.replace(**settings)
        if rung is None or rung.fraction == 1.0:
            return config
        limits = {name: math.ceil(getattr(config, name) * rung.fraction) for name in ("episodes", "steps")}
        return config.replace(**limits)

    def preset(self, name: str) -> Config:
        """A preset with the settings that are fixed."""
        return make_config(self.base.algorithm, name, **self.fixed, env=self.base.env)

    def start(self) -> dict[str, Any]:
        """What the search begins with: the preset, moved into the ranges."""
        known = self.base.flat()
        return {name: nearest(searched, known[name]) for name, searched in self.space.items()}

    def tuning_seeds(self, rung: Rung) -> range:
        """The seeds that settings are trained with during the search; a longer rung has those of a shorter one."""
        return range(self.options.seed, self.options.seed + rung.seeds)

    @property
    def final_seeds(self) -> range:
        """The seeds that the finalists are trained with, to choose one of them."""
        return range(self.options.seed + 100, self.options.seed + 100 + self.options.seeds)

    @property
    def fresh_seeds(self) -> range:
        """The seeds that are reported, on which nothing was chosen."""
        return range(self.options.seed + 1000, self.options.seed + 1000 + self.options.fresh)

    def to_dict(self) -> dict[str, Any]:
        """What decides which settings are tried and what they score: tuning goes on only if all of it is the same."""
        options = self.options
        return {
            "algorithm": self.base.algorithm,
            "env": self.base.env,
            "preset": options.preset,
            "metric": options.metric,
            "fixed": _plain(self.fixed),
            "space": {name: searched_dict(searched) for name, searched in self.space.items()},
            "rungs": [rung._asdict() for rung in self.rungs],
            "held_out": options.held_out,
            "episodes": options.episodes,
            "epsilon": options.epsilon,
            "grid": _plain(options.grid),
            "test_episodes": options.test_episodes,
            "seed": options.seed,
        }


def searched_dict(searched: Searched) -> Any:
    """What is tried for a setting, as JSON has it."""
    return searched._asdict() if isinstance(searched, Range) else _plain(searched)


def nearest(searched: Searched, value: Any) -> Any:
    """The value nearest to one; of a choice that does not have it, the first."""
    if isinstance(searched, Range):
        return min(max(value, searched.low), searched.high)
    return value if value in searched else searched[0]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def make_task(
    algorithm: str,
    env: str | None,
    fix: Mapping[str, Any],
    search: Mapping[str, Any],
    options: Options,
) -> Task:
    """Checks what is to be tuned; raises one sentence about the first mistake.

    Args:
      algorithm: its name.
      env: the environment; by default the algorithm's own.
      fix: settings that all runs have, by name.
      search: what is tried, by name: a `Range` or its dictionary, a list of values, or None for what the part states.
        If empty, all that the parts state is tried.
      options: the rest.
    """
    check_options(options)
    env = env or ALGORITHMS[algorithm].env
    for name in (*fix, *search):
        if name in _NOT_SETTINGS:
            raise DeeprokError(f"{name} can't be fixed or searched; it has an option of its own")
    if both := [name for name in search if name in fix]:
        raise DeeprokError(f"{both[0]} is both fixed and searched; give it once")
    network = fix.get("network", Config.network)
    if not isinstance(network, str):
        raise DeeprokError(f"network is {shown(network)}; it must be a name, or module:object")
    known = setting_types(algorithm, env, network)
    for name in (*fix, *search):
        if name not in known:
            raise unknown("setting", name, known, more=f"those are the settings of {algorithm} on {env}")
    fixed = {
        name: value if isinstance(value, Mapping) else held(name, value, known[name]) for name, value in fix.items()
    }
    base = make_config(algorithm, options.preset, **fixed, env=env)
    stated = stated_space(base)
    space = _space(search, fixed, stated, known, base)
    simulated = isinstance(base.make_env(), HostEnvironment)
    usual: dict[str, Any] = dict(
        zip(("held_out", "episodes", "test_episodes"), _IN_SIMULATORS if simulated else _IN_JAX, strict=True)
    )
    options = options._replace(**{name: value for name, value in usual.items() if getattr(options, name) is None})
    count = options.rungs
    rungs = tuple(Rung(2.0 ** (i + 1 - count), max(1, round(options.seeds * (i + 1) / count))) for i in range(count))
    return Task(base, fixed, space, rungs, options)


def _space(
    search: Mapping[str, Any], fixed: Mapping[str, Any], stated: Mapping[str, Stated], known: Any, base: Config
) -> dict[str, Searched]:
    """What is tried: all that the parts state and is not fixed, or what was asked for."""
    if not search:
        space = {name: each.searched for name, each in stated.items() if name not in fixed}
    else:
        space = {}
        for name, given in search.items():
            if given is None and name not in stated:
                raise DeeprokError(
                    f"{name} has no range of its own; give one, as {name}=LOW:HIGH or {name}=A,B,C; those that have: "
                    + ", ".join(stated)
                )
            space[name] = stated[name].searched if given is None else _read(name, given, known[name])
            check_searched(name, space[name], known[name], base)
    if not space:
        raise DeeprokError(f"nothing is searched: the parts of {base.algorithm} state no ranges that are not fixed")
    present = base.flat()
    return {name: _with(searched, present[name]) for name, searched in space.items()}


def _read(name: str, given: Any, hint: Any) -> Searched:
    """A range or a choice that a user gave."""
    axis = given if isinstance(given, Range) else read_axis(name, given)
    if isinstance(axis, Range):
        return axis
    if len(axis) < 2:
        raise DeeprokError(f"{name} is searched over {shown(list(axis))}; give at least two values, or fix it")
    return tuple(held(name, value, hint) for value in axis)


def _with(searched: Searched, value: Any) -> Searched:
    """A choice has the value of the preset too, since the search begins there."""
    if isinstance(searched, Range):
        return searched
    if value in searched:
        return searched
    longer = (*searched, value)
    numbers = all(isinstance(each, int | float | tuple) and not isinstance(each, bool) for each in longer)
    return tuple(sorted(longer)) if numbers else longer


def check_options(options: Options) -> None:
    """Raises unless each option may have its value."""
    if options.metric not in METRICS:
        raise unknown("metric", str(options.metric), METRICS)
    if options.preset not in PRESETS:
        raise unknown("preset", str(options.preset), PRESETS)
    if options.budget is None and options.trials is None:
        raise DeeprokError("neither budget nor trials is given; say how long to tune: budget 2h, or trials 50")
    if options.budget is not None:
        seconds_of(options.budget)
    least = {"trials": 1, "seeds": 1, "rungs": 1, "finalists": 1, "fresh": 2}
    least |= {"held_out": 1, "episodes": 1, "test_episodes": 1}
    most = {"rungs": 8, "seeds": 100, "fresh": 1000}
    for name, lowest in least.items():
        value, highest = getattr(options, name), most.get(name, _MOST)
        if value is not None and not (type(value) is int and lowest <= value <= highest):
            raise DeeprokError(f"{name} is {shown(value)}; it must be a whole number from {lowest} to {highest}")
    if not 0 <= options.epsilon <= 1:
        raise DeeprokError(f"epsilon is {shown(options.epsilon)}; it must be a probability between 0 and 1")
    if not (type(options.seed) is int and 0 <= options.seed <= 2**31):
        raise DeeprokError(f"seed is {shown(options.seed)}; it must be a whole number from 0 to {2**31}")


def seconds_of(budget: str | float) -> float:
    """The seconds of a time such as 2h, 1h30m, 20m or 45s; a number is of seconds."""
    text = f"{budget}s" if isinstance(budget, int | float) else str(budget)
    found = re.findall(r"(\d+(?:\.\d+)?)\s*(h|min|m|s)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in found)
    if "".join(number + unit for number, unit in found) != re.sub(r"\s", "", text) or seconds <= 0:
        raise DeeprokError(f"budget is {shown(budget)}; it must be a time such as 2h, 1h30m, 20m or 45s")
    return seconds


def read_fixed(words: Sequence[str]) -> dict[str, Any]:
    """Settings from the words NAME=VALUE of a command line."""
    return {name: _value(text) for name, text in _pairs("fix", words, "NAME=VALUE")}


def read_search(words: Sequence[str]) -> dict[str, Any]:
    """What is tried, from the words NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C of a command line."""
    found: dict[str, Any] = {word.replace("-", "_"): None for word in words if "=" not in word}
    for name, text in _pairs("search", [word for word in words if "=" in word], "NAME, NAME=LOW:HIGH or NAME=A,B,C"):
        ends = text.split(":")
        if len(ends) > 1:
            numbers = [_value(end) for end in ends[:2]]
            if len(ends) > 3 or ends[2:] not in ([], ["log"]) or not all(isinstance(n, int | float) for n in numbers):
                raise DeeprokError(
                    f"search is {shown(f'{name}={text}')}; a range is NAME=LOW:HIGH, or NAME=LOW:HIGH:log"
                )
            found[name] = {"low": numbers[0], "high": numbers[1], "log": len(ends) == 3}
        else:
            values = _value(f"[{text}]")
            found[name] = values if isinstance(values, list) else [_value(each) for each in text.split(",")]
    return found


def _pairs(option: str, words: Sequence[str], form: str) -> list[tuple[str, str]]:
    found = [word.partition("=") for word in words]
    for name, equals, text in found:
        if not (name and equals and text):
            raise DeeprokError(f"{option} is {shown(name + equals + text)}; it must be {form}")
    if len({name for name, _, _ in found}) < len(found):
        raise DeeprokError(f"{option} names a setting twice: {' '.join(words)}")
    return [(name.replace("-", "_"), text) for name, _, text in found]


def _value(text: str) -> Any:
    """A value as TOML has it, a list without its brackets, or else the text itself."""
    for written in (text, f"[{text}]") if "," in text else (text,):
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except (ValueError, RecursionError):
            continue
    return text


def space_rows(task: Task) -> list[tuple[str, str, str, str]]:
    """For each setting that is tried: its name, what is tried, the preset's value, and what states it."""
    stated, present = stated_space(task.base), task.base.flat()
    return [
        (name, searched_text(searched), value_text(present[name]), stated[name].by if name in stated else "you")
        for name, searched in task.space.items()
    ]


def searched_text(searched: Searched) -> str:
    """What is tried, in a few characters."""
    if isinstance(searched, Range):
        return f"{searched.low:g} to {searched.high:g}{', log' if searched.log else ''}"
    return ", ".join(map(value_text, searched))


def value_text(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, list | tuple):
        return "×".join(map(value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def is_whole(name: str, base: Config) -> bool:
    """Whether a setting is a whole number."""
    return number_type(setting_types(base.algorithm, base.env, base.network)[name]) is int


def presets_of(task: Task) -> dict[str, Config]:
    """The presets that the winner is compared with, those once that are equal."""
    found: dict[str, Config] = {}
    for name in dict.fromkeys((task.options.preset, "default", "tuned")):
        config = task.preset(name)
        alike = {dataclasses.replace(each, preset=config.preset) for each in found.values()}
        if config not in alike:
            found[name] = config
    return found
