"""Data frames and parquet files, for those who have pandas."""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing


def make_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """A pandas `DataFrame` with these columns; a clear error where pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise extra_missing("data frames need", "frame") from error
    return pandas.DataFrame(dict(columns))


def read_parquet(path: Path, content: bytes) -> Any:
    """A pandas `DataFrame` of a parquet file's content; a clear error where pandas or pyarrow is not installed.

    Args:
      path: the file, for messages.
      content: what it holds.
    """
    try:
        pandas, arrow = import_module("pandas"), import_module("pyarrow")
    except ImportError as error:
        raise extra_missing("parquet files need", "frame") from error
    try:
        return pandas.read_parquet(io.BytesIO(content))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DeeprokError(f"can't read {path}: it is not a parquet file") from error
