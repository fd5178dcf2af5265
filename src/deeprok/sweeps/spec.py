"""What a sweep is to try, as a file says it: axes with their values, seeds, and how trials are drawn.

A list is an axis, with a trial for each of its values, and anything else is fixed. So the values of a setting that is
itself a list, such as `hidden`, are a list of lists, also where there is only one: `hidden = [[64, 64]]`.
"""

from __future__ import annotations

import math
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.search import Range

#: Trials of a sweep, and runs: trials times seeds.
MOST_TRIALS = 10_000
MOST_RUNS = 100_000

_MOST_BYTES = 1_000_000
_DEEPEST = 3  # lists in lists: an axis of matrices
_KEYS = ("algorithm", "env", "seeds", "trials", "design_seed", "settings")
_SEEDS = 2**32


#: The values of an axis; a single one is fixed.
Axis = tuple[Any, ...] | Range


class Spec(NamedTuple):
    """What a sweep is to try."""

    origin: str  # where it was read, for messages
    written: dict[str, Any]  # as it was read
    axes: dict[str, Axis]  # by the name of the setting; `algorithm` is the first
    seeds: tuple[int, ...]
    draws: int | None  # trials that are drawn at random; None for a grid
    design_seed: int

    def key(self, axis: str) -> str:
        """An axis as the file names it."""
        return axis if axis in self.written else f"settings.{axis}"


def read_spec(given: str | os.PathLike[str] | Mapping[str, Any]) -> Spec:
    """Reads what a sweep is to try; raises one sentence about the first mistake.

    Args:
      given: a TOML file, or what one would hold.
    """
    if isinstance(given, Mapping):
        return _parse(dict(given), "spec")
    if not isinstance(given, str | os.PathLike):
        raise DeeprokError(f"spec is {shown(given)}; it must be a TOML file, or a dictionary")
    path = Path(given)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise DeeprokError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > _MOST_BYTES:
        raise DeeprokError(f"{path} has more than {_MOST_BYTES:,} bytes, which no sweep needs")
    try:
        return _parse(tomllib.loads(data.decode()), str(path))
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, too many digits; lists in lists without end
        raise DeeprokError(f"{path} is not TOML: {error}") from error


def _parse(written: dict[str, Any], origin: str) -> Spec:
    for key in written:
        if key not in _KEYS:
            error = unknown("key", str(key), _KEYS, more="settings of the runs stand below [settings]")
            raise DeeprokError(f"{origin}: {error}")
    settings = written.get("settings", {})
    if not isinstance(settings, Mapping):
        raise DeeprokError(f"{origin}: settings is {shown(settings)}; it must be a table of settings")
    if "algorithm" not in written:
        raise DeeprokError(f"{origin}: algorithm is missing; give a name, or a list of names to compare")
    given: dict[str, Any] = {name: written[name] for name in ("algorithm", "env") if name in written}
    for name in settings:
        if name in ("seed", "seeds", "algorithm") or name in given:
            also = "" if name == "env" else ", beside [settings]"
            key = "seeds" if name == "seed" else name
            raise DeeprokError(f"{origin}: settings.{name} is given; it must be given once, as {key}{also}")
    axes = {name: read_axis(f"{origin}: {name}", value) for name, value in given.items()}
    axes |= {str(name): read_axis(f"{origin}: settings.{name}", value) for name, value in settings.items()}
    spec = Spec(
        origin,
        {**written, **({"settings": dict(settings)} if settings else {})},
        axes,
        _seeds(written.get("seeds", 1), origin),
        _count(written, "trials", origin, 1, MOST_TRIALS),
        _count(written, "design_seed", origin, 0, _SEEDS - 1) or 0,
    )
    _check_size(spec)
    return spec


def read_axis(key: str, value: Any) -> Axis:
    """The values of an axis, or the range that a table says; raises with its key if it is neither."""
    if isinstance(value, Mapping):
        return _range(key, value)
    if not isinstance(value, list | tuple):
        return (_frozen(key, value),)
    if not value:
        raise DeeprokError(f"{key} is an empty list; it must have a value for each trial, at least one")
    return tuple(_frozen(key, each) for each in value)


def _frozen(key: str, value: Any, depth: int = 1) -> Any:
    """A value with its lists as tuples."""
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return tuple(_frozen(key, each, depth + 1) for each in value)
    if not isinstance(value, str | bool | int | float):
        raise DeeprokError(
            f"{key} is {shown(value)}; its values must be text, numbers, true or false, or lists of them"
        )
    return value


def _range(key: str, table: Mapping[str, Any]) -> Range:
    low, high, log = (table.get(name, False) for name in ("low", "high", "log"))
    right = _is_finite(low) and _is_finite(high) and isinstance(log, bool) and set(table) <= {"low", "high", "log"}
    if not right or low >= high or (log and low <= 0):
        raise DeeprokError(
            f"{key} is {shown(dict(table))}; a range must be {{low = A, high = B}} with A below B, and with log = true "
            "also above 0"
        )
    return Range(low, high, log)


def _is_finite(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and abs(number) <= sys.float_info.max


def _seeds(given: Any, origin: str) -> tuple[int, ...]:
    most = f"at most {MOST_TRIALS:,}"
    if type(given) is int and 1 <= given <= MOST_TRIALS:
        return tuple(range(given))
    if (
        isinstance(given, list | tuple)
        and 1 <= len(given) <= MOST_TRIALS
        and all(type(seed) is int and 0 <= seed < _SEEDS for seed in given)
        and len(set(given)) == len(given)
    ):
        return tuple(given)
    raise DeeprokError(
        f"{origin}: seeds is {shown(given)}; it must be how many, at least 1 and {most}, or a list of different seeds, "
        f"whole numbers from 0 to {_SEEDS - 1}"
    )


def _count(written: Mapping[str, Any], key: str, origin: str, least: int, most: int) -> int | None:
    value = written.get(key)
    if value is not None and not (type(value) is int and least <= value <= most):
        raise DeeprokError(
            f"{origin}: {key} is {shown(value)}; it must be a whole number of at least {least} and at most {most}"
        )
    return value


def _check_size(spec: Spec) -> None:
    """Raises if there are too many trials, or if ranges and lists don't suit the design."""
    ranges = [name for name, axis in spec.axes.items() if isinstance(axis, Range)]
    if spec.draws is None and ranges:
        raise DeeprokError(
            f"{spec.origin}: {spec.key(ranges[0])} is a range, which a random design draws from; give trials = N, or a "
            "list of values"
        )
    if spec.draws is None and "design_seed" in spec.written:
        raise DeeprokError(f"{spec.origin}: design_seed is for a random design; give trials = N too")
    if spec.draws is not None and not ranges and all(len(axis) == 1 for axis in spec.axes.values()):
        raise DeeprokError(f"{spec.origin}: trials is {spec.draws}, but nothing varies; give a list or a range")
    trials = spec.draws or math.prod(len(axis) for axis in spec.axes.values())
    if trials > MOST_TRIALS:
        raise DeeprokError(
            f"{spec.origin} is a grid of {shown(trials)} trials; at most {MOST_TRIALS:,} are allowed: a random design, "
            "trials = N, draws some of them"
        )
    if (runs := trials * len(spec.seeds)) > MOST_RUNS:
        raise DeeprokError(
            f"{spec.origin} has {runs:,} runs, {trials:,} trials of {len(spec.seeds):,} seeds each; at most "
            f"{MOST_RUNS:,} are allowed"
        )
