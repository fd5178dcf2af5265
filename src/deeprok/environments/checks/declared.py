"""What an environment says of itself: its parameters, their box, the scales of its observations, its horizon."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.base import AnyEnvironment, check_quantity
from deeprok.environments.checks.record import Finding, Values, counted, listed
from deeprok.environments.host import HostEnvironment

#: Corners of the box that are played, at most.
_CORNERS = 8

#: What a parameter outside the box is multiplied by.
FACTORS = (0.8, 1.25)


class Tried(NamedTuple):
    """The models that an environment is tried on; each has a value for the same parameters.

    Attributes:
      nominal: the nominal model.
      corners: those of the box, or some of them.
      ends: parameter -> the two values that it is given.
    """

    nominal: Values
    corners: list[Values]
    ends: Mapping[str, tuple[float, float]]

    def model(self, **changed: float) -> Values:
        """The nominal model but for some parameters."""
        return {**self.nominal, **changed}


def check_declared(env: AnyEnvironment) -> list[Finding]:
    """What is wrong or strange in what an environment says of itself."""
    found = _nominal(env)
    if not found:
        found = _box(env)
    if not _are_scales(env.observation_scale):
        found.append(
            Finding(
                "observations",
                "problem",
                f"observation_scale is {shown(env.observation_scale)}; it must be a positive number for each "
                "observation, its typical size.",
            )
        )
    horizon: Any = env.horizon  # whatever a user has set
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        found.append(
            Finding("horizon", "problem", f"horizon is {shown(horizon)}; it must be a whole number of at least 1.")
        )
    elif "horizon" in _assumed(env):
        found.append(
            Finding(
                "horizon",
                "note",
                f"The environment has no TimeLimit and no horizon was given, so that episodes are truncated after "
                f"{env.horizon} steps; give the number that you mean as horizon.",
            )
        )
    success: Any = env.success_return
    if not isinstance(success, int | float | np.number) or not math.isfinite(success):
        found.append(Finding("success", "problem", f"success_return is {shown(success)}; it must be a finite number."))
    elif "success_return" in _assumed(env):
        found.append(
            Finding(
                "success",
                "note",
                f"Nothing says which return is a success, so that success_return is {env.success_return:g}; give it "
                "to from_gymnasium, or else look at returns instead of at the share of successes.",
            )
        )
    return found


def _are_scales(values: Any) -> bool:
    try:
        scale = np.asarray(values, float)
    except (TypeError, ValueError):
        return False
    return scale.ndim == 1 and scale.size > 0 and bool((np.isfinite(scale) & (scale > 0)).all())


def _assumed(env: AnyEnvironment) -> tuple[str, ...]:
    return env.assumed if isinstance(env, HostEnvironment) else ()


def _nominal(env: AnyEnvironment) -> list[Finding]:
    """Problems of the nominal parameters."""
    if not dataclasses.is_dataclass(env.nominal) or isinstance(env.nominal, type):
        what = f"the class {env.nominal.__name__}" if isinstance(env.nominal, type) else type(env.nominal).__name__
        sentence = f"nominal is {what}; it must be an object of a pytree_dataclass of quantity fields."
        return [Finding("parameters", "problem", sentence)]
    found = []
    for field in dataclasses.fields(env.nominal):
        value = getattr(env.nominal, field.name)
        if "positive" not in field.metadata:
            sentence = f"The parameter {field.name} has no unit and no meaning; declare it by quantity(…)."
        elif np.ndim(value) or isinstance(value, str | bool) or value is None:
            sentence = f"The parameter {field.name} is {shown(value)}; it must be one number."
        else:
            sentence = _refusal(env.nominal, field.name, float(value), "nominal")
        if sentence:
            found.append(Finding("parameters", "problem", sentence))
    return found


def _refusal(nominal: Any, name: str, value: float, origin: str) -> str:
    """Why a parameter can't have a value; empty if it can."""
    try:
        check_quantity(nominal, name, value, origin)
    except DeeprokError as error:
        sentence = f"{error}."
        return sentence + (" If 0 or less is meant, declare it with positive=False." if value <= 0 else "")
    return ""


def _box(env: AnyEnvironment) -> list[Finding]:
    """What is wrong or strange with the ranges of the parameters."""
    if env.box == {}:
        sentence = (
            "There is no box, so that no parameter is uncertain; give the ranges of those that are as box "
            "(--box name=low:high)."
        )
        return [Finding("box", "note", sentence)]
    ranges: Any = env.box
    if not isinstance(ranges, Mapping):
        sentence = f"box is {shown(ranges)}; it must be a dictionary, name -> (low, high)."
        return [Finding("box", "problem", sentence)]
    found = []
    for name, ends in ranges.items():
        if not (isinstance(ends, tuple | list) and len(ends) == 2 and all(isinstance(x, int | float) for x in ends)):
            sentence = f"The box gives {name} the range {shown(ends)}; it must be two numbers, (low, high)."
            found.append(Finding("box", "problem", sentence))
            continue
        low, high = map(float, ends)
        refused = _refusal(env.nominal, name, low, "box") or _refusal(env.nominal, name, high, "box")
        if refused:
            found.append(Finding("box", "problem", refused))
        elif not low < high:
            state = "empty" if low == high else "reversed"
            sentence = f"The range of {name} in the box, {low:g} to {high:g}, is {state}; low must be below high."
            found.append(Finding("box", "problem", sentence))
        elif not low <= (value := float(getattr(env.nominal, name))) <= high:
            sentence = (
                f"The nominal {name}, {value:g}, is outside its range in the box, {low:g} to {high:g}; that is "
                "allowed, but robust agents then never see the nominal model."
            )
            found.append(Finding("box", "note", sentence))
    return found


def models_to_try(env: AnyEnvironment, seed: int) -> Tried:
    """The models to try an environment on.

    Of parameters outside the box those with a meaning are tried. Others are attributes of a Gymnasium environment of
    which nothing is known; they may be counters.

    Args:
      env: the environment, whose parameters and box are as they should be.
      seed: decides which corners are taken where there are too many.
    """
    ends = {name: (float(low), float(high)) for name, (low, high) in env.box.items()}
    for field in dataclasses.fields(env.nominal):
        if field.name not in ends and field.metadata["meaning"]:
            value = float(getattr(env.nominal, field.name))
            most = field.metadata["most"]
            ends[field.name] = (FACTORS[0] * value, min(FACTORS[1] * value, most)) if value else (0.0, 0.1)
    nominal = {name: float(getattr(env.nominal, name)) for name in ends}
    count = 2 ** len(env.box)
    sides: list[tuple[int, ...]]
    if count <= _CORNERS:
        sides = list(itertools.product((0, 1), repeat=len(env.box)))
    else:
        drawn = np.random.default_rng(seed).integers(2, size=(_CORNERS - 2, len(env.box)))
        sides = [(0,) * len(env.box), (1,) * len(env.box), *map(tuple, drawn.tolist())]
    corners: list[Values] = [
        {**nominal, **{name: ends[name][side] for name, side in zip(env.box, corner, strict=True)}} for corner in sides
    ]
    return Tried(nominal, corners if env.box else [], ends)


def describe_corners(env: AnyEnvironment, tried: Tried) -> str:
    """Which corners are played: `the 4 corners of the box`."""
    count = 2 ** len(env.box)
    return (
        f"the {count} corners of the box"
        if len(tried.corners) == count
        else f"{len(tried.corners)} of {count:,} corners"
    )


def passed(env: AnyEnvironment) -> Finding:
    """The sentence for a box as it should be."""
    ranges = listed([f"{name} {low:g} to {high:g}" for name, (low, high) in env.box.items()])
    others = len(dataclasses.fields(env.nominal)) - len(env.box)
    more = f"; {counted(others, 'more parameter')} outside the box" if others else ""
    return Finding("box", "pass", f"Uncertain: {ranges}{more}.")
