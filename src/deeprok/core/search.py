"""What tuning may try for a setting: a range of numbers, or a choice of values.

Each part states in its own file what is worth trying for its settings, beside their bounds and presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Range(NamedTuple):
    """Where a number is drawn from, both ends included."""

    low: float
    high: float
    log: bool = False  # whether its logarithm is uniform


#: What is tried for a setting: a range, or values to choose from.
Searched = Range | tuple[Any, ...]

#: Name of a setting -> what is tried for it.
Space = Mapping[str, Searched]


def nothing_searched(settings: Any) -> Space:
    """What a part states that is not to be tuned."""
    return {}
