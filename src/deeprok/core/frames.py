"""Data frames, for those who have pandas."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError


def make_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """A pandas `DataFrame` with these columns; a clear error where pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise DeeprokError("data frames need the extra: pip install 'deeprok[frame]'") from error
    return pandas.DataFrame(dict(columns))
