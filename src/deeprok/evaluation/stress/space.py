"""The models that are searched: ranges of named parameters, each a box's and a margin around it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.base import check_quantity
from deeprok.environments.disturbable import ACTION_DELAY, SENSOR_NOISE
from deeprok.uncertainty.models import Box

#: A quantity that must be positive is not searched below this share of the box's lower end: 0 is no model, and near it
#: simulators fail before policies do.
LEAST_SHARE = 0.1

_LONGEST_DELAY = 100  # as the setting of a run


class Dimension(NamedTuple):
    """A parameter that is searched."""

    name: str
    unit: str
    box: tuple[float, float]  # where it is known to lie
    low: float  # of what is searched
    high: float
    whole: bool  # whole numbers only


class Space(NamedTuple):
    """The D parameters that are searched. A place in it is a point of the unit cube."""

    dimensions: tuple[Dimension, ...]

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [each.name for each in self.dimensions]

    def holds(self, values: np.ndarray) -> bool:
        """Whether a model [D] is one of those that are searched."""
        return all(each.low <= value <= each.high for each, value in zip(self.dimensions, values, strict=True))

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Values [N, D] with whole numbers where they must be."""
        return np.where([each.whole for each in self.dimensions], np.round(values), values)

    def values(self, places: np.ndarray) -> np.ndarray:
        """The models [N, D] at places [N, D]; each whole number takes an equal part of its side of the cube."""
        found = np.empty(places.shape)
        for i, each in enumerate(self.dimensions):
            if each.whole:
                steps = np.floor(places[:, i] * (each.high - each.low + 1))
                found[:, i] = np.minimum(each.low + steps, each.high)
            else:
                found[:, i] = (1 - places[:, i]) * each.low + places[:, i] * each.high  # so that the ends are exact
        return found


def make_space(box: Box, margin: float, nominal: Any) -> Space:
    """A box with a margin around it.

    A margin does not go beyond 0: drag that pushes is no drag.

    Args:
      box: name -> (low, high).
      margin: by what part of its width each range is widened on either side.
      nominal: the parameters that the names are of; they say what must be positive.
    """
    fields = {field.name: field for field in dataclasses.fields(nominal)}
    found = []
    for name, (low, high) in box.items():
        whole = name == ACTION_DELAY
        _check_disturbance(name, low, high)
        wider = margin * (high - low)
        least, most = -math.inf, fields[name].metadata["most"]
        if fields[name].metadata["positive"]:
            least = LEAST_SHARE * low
        elif name in (SENSOR_NOISE, ACTION_DELAY):
            most = _LONGEST_DELAY if whole else math.inf
        least, most = max(least, 0.0 if low >= 0 else -math.inf), min(most, 0.0 if high <= 0 else math.inf)
        ends = max(low - wider, least), min(high + wider, most)
        if whole:
            ends = float(math.floor(ends[0])), float(math.ceil(ends[1]))
        for end in ends:
            check_quantity(nominal, name, end, "the box with its margin")
        found.append(Dimension(name, fields[name].metadata["unit"], (low, high), *ends, whole))
    return Space(tuple(found))


def _check_disturbance(name: str, low: float, high: float) -> None:
    """Raises where the ranges of noise and delay are none that they can have; others are checked by the parser."""
    if name == SENSOR_NOISE and low < 0:
        raise DeeprokError(f"box gives {name} the range {low:g}:{high:g}; a noise must be at least 0")
    if name == ACTION_DELAY and not (low == int(low) and high == int(high) and low >= 0 and high <= _LONGEST_DELAY):
        raise DeeprokError(
            f"box gives {name} the range {low:g}:{high:g}; its ends must be whole numbers from 0 to {_LONGEST_DELAY}"
        )


def enclosing(boxes: list[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """The smallest box that holds all of several."""
    names = dict.fromkeys(name for box in boxes for name in box)
    ranges = {name: [box[name] for box in boxes if name in box] for name in names}
    return {name: (min(low for low, _ in each), max(high for _, high in each)) for name, each in ranges.items()}
