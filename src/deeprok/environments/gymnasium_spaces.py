"""Observations and actions of Gymnasium's spaces: as flat arrays of numbers, as choices and as intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.spaces import ActionSpace, Choices, Interval


def observations_of(library: Any, space: Any, title: str) -> tuple[Callable[[Any], np.ndarray], tuple[float, ...]]:
    """What makes a flat array of an observation, and the typical size of each number."""
    if isinstance(space, library.spaces.Discrete):
        rows = np.eye(int(space.n))
        return lambda obs: rows[int(obs) - int(space.start)], (1.0,) * len(rows)
    if not isinstance(space, library.spaces.Box):
        raise DeeprokError(
            f"{title} has observations in a {type(space).__name__} space; they must be a flat Box of numbers or "
            "Discrete, as gymnasium.wrappers.FlattenObservation makes them"
        )
    if len(space.shape) > 1 or space.dtype == np.uint8:
        kind = "images" if space.dtype == np.uint8 or len(space.shape) == 3 else "arrays"
        raise DeeprokError(
            f"{title} has {kind} of shape {space.shape} as observations; they must be a flat list of numbers"
        )
    ends = np.maximum(np.abs(space.low.astype(float)), np.abs(space.high.astype(float))).reshape(-1)
    scale = np.where((ends > 0) & (ends < 1e6), ends, 1.0)

    def flatten(obs: Any) -> np.ndarray:
        flat = np.array(obs, float).ravel()
        if flat.size != scale.size:
            raise DeeprokError(
                f"{title} gives an observation of {flat.size} numbers, but its observation_space has {scale.size}"
            )
        return flat

    return flatten, tuple(scale.tolist())


def actions_of(library: Any, space: Any, names: Sequence[str], title: str) -> ActionSpace:
    """The actions of a space."""
    if isinstance(space, library.spaces.Discrete):
        if names and len(names) != space.n:
            raise DeeprokError(f"actions are {shown(list(names))}; {title} has {space.n}, give as many names")
        return Choices(tuple(names) or tuple(str(int(space.start) + i) for i in range(int(space.n))))
    if not isinstance(space, library.spaces.Box):
        raise DeeprokError(f"{title} has actions in a {type(space).__name__} space; they must be Discrete or a Box")
    low, high = space.low.reshape(-1).astype(float), space.high.reshape(-1).astype(float)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise DeeprokError(f"{title} has actions without ends; a Box of actions must be bounded")
    return Interval(tuple(low.tolist()), tuple(high.tolist()))


def taker_of(library: Any, space: Any) -> Callable[[Any], Any]:
    """What makes the environment's own action of an agent's."""
    if isinstance(space, library.spaces.Discrete):
        start = int(space.start)
        return lambda action: int(action) + start
    return lambda action: np.asarray(action, space.dtype).reshape(space.shape)
