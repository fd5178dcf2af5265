"""The trials of a sweep: a pure function of what it is to try.

A grid has a trial for each combination of the axes' values. A random design draws each value of each trial with random
numbers of its own, which depend on the seed of the design, the number of the trial and the name of the axis. So more
trials, another axis or other ends of a range leave all other draws as they were.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import numpy as np

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.core.errors import DeeprokError, shown
from deeprok.core.fields import held, number_type
from deeprok.core.search import Range
from deeprok.runs.parts import setting_types
from deeprok.runs.preset_file import is_preset_file, read_preset
from deeprok.runs.settings import Config, make_config
from deeprok.sweeps.spec import Spec

_DIGITS = 6  # of a number that is drawn: what is beyond them may differ between processors
_LONGEST = 100  # characters of a folder's name, without the hash


class Trial(NamedTuple):
    """Settings to train, with several seeds."""

    varies: dict[str, Any]  # the axes of the sweep and this trial's values
    config: Config  # with the first seed
    seeds: tuple[int, ...]
    digest: str  # of the settings, whatever the seed

    @property
    def name(self) -> str:
        """Its folder: what varies, to be read, and the hash of all settings, which no other trial has."""
        texts = [self.config.algorithm]
        for axis, value in self.varies.items():
            if axis != "algorithm":
                texts.append(_text(value) if axis == "env" else f"{axis}={_text(value)}")
        readable = re.sub(r"[^A-Za-z0-9_.=+-]", "_", "-".join(texts)).lstrip(".-")
        return f"{readable[:_LONGEST]}-{self.digest}"

    def __str__(self) -> str:
        return _words(self.varies) or self.config.algorithm


def is_trial_name(name: str) -> bool:
    """Whether a folder of this name may be a trial's."""
    return re.fullmatch(r".*-[0-9a-f]{12}", name) is not None


class Drawn(NamedTuple):
    """A number that is drawn from a range."""

    range: Range
    share: float  # of the way from its low end to its high one, from 0 to below 1

    def number(self, whole: bool) -> float:
        """The number, one of the range's whole ones if asked for."""
        low, high, log = self.range
        end = high + 1 if whole else high
        drawn = low * (end / low) ** self.share if log else low + self.share * (end - low)
        return min(high, math.floor(drawn)) if whole else min(high, max(low, float(f"{drawn:.{_DIGITS}g}")))


def make_trials(spec: Spec) -> list[Trial]:
    """The trials of a sweep, each once; raises a `DeeprokError` if one of them can't be trained.

    Trials whose settings are equal are one.
    """
    found: dict[str, Trial] = {}
    varying = [name for name, axis in spec.axes.items() if isinstance(axis, Range) or len(axis) > 1]
    for point in _points(spec):
        where = ""
        try:
            settings = _settings_at(point, spec)
            varies = {name: settings[name] for name in varying}
            where = f"at {_words(varies)}: " if varies else ""
            config = make_config(**{**settings, "seed": spec.seeds[0]})
        except DeeprokError as error:
            raise DeeprokError(f"{spec.origin}: {where}{error}") from error
        digest = config.digest()
        found.setdefault(digest, Trial(varies, config, spec.seeds, digest))
    return list(found.values())


def _points(spec: Spec) -> Iterator[dict[str, Any]]:
    """What each trial has of each axis."""
    if spec.draws is None:
        for values in itertools.product(*spec.axes.values()):
            yield dict(zip(spec.axes, values, strict=True))
        return
    for i in range(spec.draws):
        shares = {name: np.random.default_rng([spec.design_seed, i, *name.encode()]).random() for name in spec.axes}
        yield {
            name: Drawn(axis, shares[name]) if isinstance(axis, Range) else axis[int(shares[name] * len(axis))]
            for name, axis in spec.axes.items()
        }


def _settings_at(point: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """A trial's settings as a run holds them; raises if its parts have none of a name, or one has another value."""
    algorithm = point["algorithm"]
    preset = point.get("preset")
    usual = read_preset(preset) if is_preset_file(preset) else ALGORITHMS[algorithm]
    env = point.get("env", usual.env)
    known = setting_types(algorithm, env, point.get("network", Config.network))
    settings = {}
    for name, value in point.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'? " if near else ""
            given = "a range" if isinstance(value, Drawn) else shown(value)
            raise DeeprokError(
                f"{spec.key(name)} is {given}, but it is no setting of {algorithm} on {env}; {hint}"
                f"'deeprok train {algorithm} --help' lists those that it has"
            )
        from_file = name == "preset" and is_preset_file(value)
        settings[name] = value if from_file else _held(spec.key(name), value, known[name])
    return settings


def _held(key: str, value: Any, hint: Any) -> Any:
    """A value as a run holds it; raises with its key unless the setting may have it."""
    kind = number_type(hint)
    if isinstance(value, Drawn):
        if kind is None or (kind is int and any(type(end) is not int for end in value.range[:2])):
            wanted = "whole numbers" if kind else "no range: its values are not numbers"
            raise DeeprokError(f"{key} is a range from {value.range.low} to {value.range.high}; it must have {wanted}")
        for end in value.range[:2]:
            _held(key, end, hint)
        value = value.number(kind is int)
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(inner) is tuple and not isinstance(value, tuple):
        raise DeeprokError(
            f"{key} is {shown(value)}, but a value of it is a list, so that its values are a list of lists: "
            f"write [[{value}]]"
        )
    return held(key, value, hint)


def _words(varies: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis} = {_text(value)}" for axis, value in varies.items())


def _text(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "x".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
