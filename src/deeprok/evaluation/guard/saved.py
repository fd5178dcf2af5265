"""What a guard remembers, as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError


def flat(name: str, value: Any) -> dict[str, Any]:
    """Each leaf of a record by the path of its fields."""
    fields = _fields(value)
    if fields is None:
        return {name: np.nan if value is None else value}
    return {k: v for field, part in fields.items() for k, v in flat(f"{name}.{field}".lstrip("."), part).items()}


def restored(saved: Mapping[str, Any], like: Any, name: str = "") -> Any:
    """A record like another one, from what `flat` made of it; raises where the two do not fit."""
    fields = _fields(like)
    if fields is not None:
        return type(like)(*(restored(saved, part, f"{name}.{field}".lstrip(".")) for field, part in fields.items()))
    if name not in saved:
        raise DeeprokError(f"saved has no {name}; it must be what to_dict of a guard of the same run gave")
    given = np.asarray(saved[name])
    if like is None:
        return None
    if name != "scores" and given.shape != np.shape(like):
        raise DeeprokError(
            f"saved has {name} of shape {given.shape}, and this guard of {np.shape(like)}: it is of another run"
        )
    return given.astype(like.dtype) if isinstance(like, np.ndarray) else type(like)(given.item())


def _fields(value: Any) -> dict[str, Any] | None:
    """Of a record of either kind; None if it is none."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value._asdict() if hasattr(value, "_asdict") else None
