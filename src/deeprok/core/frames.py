"""Data frames and parquet files, for those who have pandas."""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError, extra_missing
from deeprok.core.files import write_atomically

#: Of all columns of a table together, unpacked.
MOST_BYTES = 2_000_000_000


def make_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """A pandas `DataFrame` with these columns; a clear error where pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise extra_missing("data frames need", "frame") from error
    return pandas.DataFrame(dict(columns))


#: Endings of the files that a table can be written to.
TABLES = (".parquet", ".csv")


def check_table(path: Path, origin: str) -> None:
    """Raises, before anything is computed, unless a table can be written to this file.

    Args:
      path: the file.
      origin: the option that gave it, for messages.
    """
    if path.suffix.lower() not in TABLES:
        raise DeeprokError(f"{origin} is {path}; it must end with {' or '.join(TABLES)}")
    if path.is_dir():
        raise DeeprokError(f"{origin} is {path}, which is a folder")
    if not path.parent.is_dir():
        raise DeeprokError(f"{origin} is {path}, but there is no folder {path.parent}")
    for name in ("pandas", "pyarrow"):
        try:
            import_module(name)
        except ImportError as error:
            raise extra_missing("tables need", "frame") from error


def write_table(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Writes columns to a file that ends with .parquet or .csv, whole or not at all."""
    check_table(path, "table")
    frame, buffer = make_frame(columns), io.BytesIO()
    (frame.to_parquet if path.suffix.lower() == ".parquet" else frame.to_csv)(buffer, index=False)
    write_atomically(path, buffer.getvalue())


def read_parquet(path: Path, content: bytes) -> Any:
    """A pandas `DataFrame` of a parquet file's content; a clear error where pandas or pyarrow is not installed.

    Args:
      path: the file, for messages.
      content: what it holds.
    """
    try:
        pandas = import_module("pandas")
        import_module("pyarrow")
    except ImportError as error:
        raise extra_missing("parquet files need", "frame") from error
    try:
        about = import_module("pyarrow.parquet").ParquetFile(io.BytesIO(content)).metadata
        # A small file can hold any number of equal numbers.
        if (size := 8 * about.num_rows * about.num_columns) > MOST_BYTES:
            raise DeeprokError(
                f"{path} holds {size / 1e9:.1f} GB when unpacked; a table may have {MOST_BYTES / 1e9:.1f}"
            )
        return pandas.read_parquet(io.BytesIO(content))
    except Exception as error:  # of any kind that pyarrow and pandas raise for a damaged file
        if isinstance(error, DeeprokError):
            raise
        raise DeeprokError(f"can't read {path}: it is not a parquet file") from error
