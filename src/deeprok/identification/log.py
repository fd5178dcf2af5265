"""Logs of a real system: episodes of observations and actions, read from tables with one row a step.

The columns are `episode`, `t`, `obs_0 …`, `action` (or `action_0 …`), and `next_obs_0 …`, which may be left out: the
next row of the same episode then tells them, and the action in its last row does not count.
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.files import read_bytes
from deeprok.core.frames import MOST_BYTES, read_parquet
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.spaces import Interval

#: Columns of a table: name -> [N] numbers.
Table = Mapping[str, Any]

#: How far two numbers that must be the same may differ, relative to their size: files round.
_ROUNDING = 1e-5


class Log(NamedTuple):
    """E episodes of up to T steps; what is beyond an episode's end is 0."""

    obs: np.ndarray  # [E, T + 1, D] float64
    action: np.ndarray  # [E, T] int64, or [E, T, A] float64 where actions are continuous
    length: np.ndarray  # [E] int64, steps of each episode

    @property
    def steps(self) -> int:
        """Steps of all episodes together."""
        return int(self.length.sum())


def read_log(data: str | Path | Table, env: AnyEnvironment) -> Log:
    """Reads a log and checks it against an environment.

    Args:
      data: a .csv, .npz or .parquet file; or the columns themselves, as a dictionary of arrays or a data frame.
      env: the environment whose observations and actions it holds.

    Example:
      >>> env = deeprok.environments.cartpole()
      >>> log = deeprok.read_log({"episode": [0, 0, 0], "t": [0, 1, 2], "action": [1, 0, 1], **observations}, env)
      >>> log.steps
      2
    """
    if isinstance(data, str | Path):
        path = Path(data)
        origin, table = str(path), _reader(path)(path)
    else:
        origin, table = "data", {str(name): _numbers(np.asarray(data[name]), str(name), "data") for name in data}
    _check_table(table, origin)
    size, actions = len(env.observation_scale), env.actions
    observed = _columns("obs", size)
    following = _columns("next_obs", size) if "next_obs_0" in table else []
    acting = _action_columns(table, len(actions) if isinstance(actions, Interval) else 1)
    _check_columns(table, ["episode", "t", *observed, *acting, *following], env.name, origin)
    _check_actions(table, acting, env, origin)
    order = np.lexsort((table["t"], table["episode"]))
    starts = np.flatnonzero(np.diff(table["episode"][order], prepend=np.nan) != 0)
    obs = np.stack([table[name] for name in observed], axis=1)
    after = np.stack([table[name] for name in following], axis=1) if following else None
    action = np.stack([table[name] for name in acting], axis=1)
    episodes = [_episode(rows, table, obs, after, origin) for rows in np.split(order, starts[1:])]
    if not sum(len(rows) for rows, _ in episodes):
        raise DeeprokError(
            f"{origin} has {len(obs)} rows and no step: without next_obs_0, … an episode needs two rows or more"
        )
    return _padded([(seen, action[rows]) for rows, seen in episodes if len(rows)], isinstance(actions, Interval))


def _columns(kind: str, count: int) -> list[str]:
    return [f"{kind}_{i}" for i in range(count)]


def _action_columns(table: Table, count: int) -> list[str]:
    return _columns("action", count) if count > 1 or "action_0" in table else ["action"]


# --- files ---------------------------------------------------------------------------------------------


def _reader(path: Path) -> Callable[[Path], dict[str, np.ndarray]]:
    readers = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise DeeprokError(f"data is {shown(str(path))}; it must be a file that ends with .csv, .npz or .parquet")
    return readers[path.suffix]


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DeeprokError(f"can't read {path}: it is not a text file") from error
    try:
        lines = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error as error:  # a cell that is longer than a number can be
        raise DeeprokError(f"can't read {path}: {error}") from error
    header = [name.strip() for name in lines[0]] if lines else []
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DeeprokError(f"{path} has the column {shown(twice)} twice")
    for i, row in enumerate(lines[1:], 1):
        if len(row) != len(header):
            raise DeeprokError(f"{path}, row {i}: there are {len(row)} values for {len(header)} columns")
    return {name: _numbers(np.array([row[k] for row in lines[1:]]), name, str(path)) for k, name in enumerate(header)}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path))) as archive:
            # A small file can be made to hold any number of zeros.
            if (size := sum(entry.file_size for entry in archive.infolist())) > MOST_BYTES:
                raise DeeprokError(
                    f"{path} holds {size / 1e9:.1f} GB when unpacked; a table may have {MOST_BYTES / 1e9:.1f}"
                )
            arrays = {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
    except Exception as error:  # of any kind that zipfile, its decompressors and numpy raise for a damaged file
        if isinstance(error, DeeprokError):
            raise
        raise DeeprokError(f"can't read {path}: it is not an .npz file of numbers") from error
    return {name: _numbers(array, name, str(path)) for name, array in arrays.items()}


def _array(data: bytes) -> np.ndarray:
    """An array in numpy's format; a ValueError, and nothing allocated, where the header does not fit what follows."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError("the header does not describe what follows")
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    frame = read_parquet(path, read_bytes(path))
    return {str(name): _numbers(np.asarray(frame[name]), str(name), str(path)) for name in frame}


# --- checks, each a sentence that names column and row ---------------------------------------------------


def _numbers(values: np.ndarray, name: str, origin: str) -> np.ndarray:
    """A column as float64; what is empty is not a number, which is refused later, where the column is needed."""
    if values.ndim != 1:
        raise DeeprokError(f"{origin}: the column {shown(name)} has shape {values.shape}; it must be a list of numbers")
    if values.dtype.kind in "iufb":
        return values.astype(float)
    column = np.full(len(values), np.nan)
    for i, value in enumerate(values.tolist()):
        try:
            column[i] = float(value) if value not in ("", None) else np.nan
        except (TypeError, ValueError):
            raise DeeprokError(f"{origin}, row {i + 1}: {name} is {shown(value)}; it must be a number") from None
    return column


def _check_table(table: Table, origin: str) -> None:
    if not table or not max(map(len, table.values())):
        raise DeeprokError(f"{origin} has no rows; a log has one row a step")
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        least, most = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise DeeprokError(f"{origin}: the column {least} has {lengths[least]} rows, but {most} has {lengths[most]}")


def _check_columns(table: Table, needed: list[str], env: str, origin: str) -> None:
    """All columns that are needed are there, whole and finite, and none of their kinds is there beside them."""
    if missing := [name for name in needed if name not in table]:
        raise DeeprokError(f"{origin} has no column {missing[0]}; a log of {env} has {', '.join(needed)}")
    kinds = ("obs", "next_obs", "action")
    if surplus := [name for name in table if name.rpartition("_")[0] in kinds and name not in needed]:
        raise DeeprokError(f"{origin} has a column {surplus[0]} too many; a log of {env} has {', '.join(needed)}")
    for name in needed:
        if len(bad := np.flatnonzero(~np.isfinite(table[name]))):
            value = table[name][bad[0]]
            raise DeeprokError(f"{origin}, row {bad[0] + 1}: {name} is {value:g}; it must be a finite number")
    for name in ("episode", "t"):
        if len(bad := np.flatnonzero(table[name] != np.round(table[name]))):
            value = table[name][bad[0]]
            raise DeeprokError(f"{origin}, row {bad[0] + 1}: {name} is {value:g}; it must be a whole number")


def _check_actions(table: Table, names: list[str], env: AnyEnvironment, origin: str) -> None:
    actions = env.actions
    for k, name in enumerate(names):
        column = table[name]
        if isinstance(actions, Interval):
            low, high = actions.low[k], actions.high[k]
            slack = _ROUNDING * (high - low)
            wrong, allowed = (column < low - slack) | (column > high + slack), f"between {low:g} and {high:g}"
        else:
            most = len(actions) - 1
            wrong = (column != np.round(column)) | (column < 0) | (column > most)
            allowed = f"a whole number from 0 to {most}"
        if len(bad := np.flatnonzero(wrong)):
            value = column[bad[0]]
            raise DeeprokError(f"{origin}, row {bad[0] + 1}: {name} is {value:g}; in {env.name} it must be {allowed}")


def _episode(
    rows: np.ndarray, table: Table, obs: np.ndarray, after: np.ndarray | None, origin: str
) -> tuple[np.ndarray, np.ndarray]:
    """The rows [T] of an episode's steps, and its observations [T + 1, D].

    Args:
      rows: the episode's rows in the order of t.
      table: all columns.
      obs: [N, D].
      after: [N, D] the next observations, if the log has them.
      origin: where the log is from, for messages.
    """
    t = table["t"][rows]
    if len(gaps := np.flatnonzero(np.diff(t) != 1)):
        i = gaps[0]
        raise DeeprokError(
            f"{origin}, row {rows[i + 1] + 1}: t is {t[i + 1]:g} after {t[i]:g} in episode "
            f"{table['episode'][rows[i]]:g}; it must go up by 1, so begin a new episode at a gap"
        )
    if after is None:
        return rows[:-1], obs[rows]
    said, seen = after[rows[:-1]], obs[rows[1:]]
    off = ~np.isclose(said, seen, rtol=_ROUNDING, atol=_ROUNDING * max(1e-300, float(np.abs(obs).max())))
    if off.any():
        i, k = np.argwhere(off)[0]
        raise DeeprokError(
            f"{origin}, row {rows[i] + 1}: next_obs_{k} is {said[i, k]:g}, but obs_{k} of the next step, in row "
            f"{rows[i + 1] + 1}, is {seen[i, k]:g}; they must be the same, or of two episodes"
        )
    return rows, np.concatenate([obs[rows], after[rows[-1:]]])


def _padded(episodes: list[tuple[np.ndarray, np.ndarray]], continuous: bool) -> Log:
    """Episodes of unequal length as arrays."""
    longest = max(len(action) for _, action in episodes)

    def pad(arrays: list[np.ndarray], length: int) -> np.ndarray:
        return np.stack([np.pad(array, ((0, length - len(array)), (0, 0))) for array in arrays])

    obs, action = pad([seen for seen, _ in episodes], longest + 1), pad([each for _, each in episodes], longest)
    length = np.array([len(each) for _, each in episodes])
    return Log(obs, action if continuous else action[..., 0].astype(int), length)
