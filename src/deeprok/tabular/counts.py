"""Observed transitions and how often each was seen, with the names of states and actions: from arrays or CSV files.

A log has one row for each transition, or for several equal ones with their number. `deeprok.tabular.from_counts` makes
a model and its ambiguity sets of them.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, shortened, shown, unknown
from deeprok.tabular.model import Place, nowhere

#: The columns that a log must have, and those that it may have.
NEEDED, OPTIONAL = ("state", "action", "next_state"), ("reward", "count", "episode")

#: The largest number of transitions [S, A, S] of a model that is made of counts.
_MOST_CELLS = 50_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """A log of transitions, in its own order.

    A row that was seen 0 times says that its transition is possible, and what it pays.

    Attributes:
      states: the S names, sorted.
      actions: the A names, sorted.
      state: [N] ids, the place of a name among all.
      action: [N].
      successor: [N].
      count: [N] how often each row was seen.
      reward: [N], if there is one.
      episode: [N] the number of each row's episode, if the log says so.
    """

    states: tuple[int | str, ...]
    actions: tuple[int | str, ...]
    state: np.ndarray
    action: np.ndarray
    successor: np.ndarray
    count: np.ndarray
    reward: np.ndarray | None = None
    episode: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """S, A and S."""
        return len(self.states), len(self.actions), len(self.states)

    def visits(self) -> np.ndarray:
        """[S, A, S] how often each transition was seen."""
        found = np.zeros(self.shape, np.int64)
        np.add.at(found, (self.state, self.action, self.successor), self.count)
        return found

    def listed(self) -> np.ndarray:
        """[S, A, S] which transitions have a row, also if they were seen 0 times."""
        found = np.zeros(self.shape, bool)
        found[self.state, self.action, self.successor] = True
        return found

    def starts(self) -> np.ndarray:
        """[S] the share of episodes that begin in each state.

        Without episodes, all states that an action was taken in have equal shares.
        """
        if self.episode is None:
            seen = np.bincount(self.state, self.count, len(self.states)) > 0
            return seen / seen.sum()
        played = np.flatnonzero(self.count > 0)
        first = played[np.unique(self.episode[played], return_index=True)[1]]
        return np.bincount(self.state[first], minlength=len(self.states)) / len(first)

    def pair(self, s: int, a: int) -> str:
        """The names of a state and an action, as messages show them."""
        return f"({self.states[s]}, {self.actions[a]})"


def count_transitions(
    state: ArrayLike,
    action: ArrayLike,
    successor: ArrayLike,
    reward: ArrayLike | None = None,
    count: ArrayLike | None = None,
    episode: ArrayLike | None = None,
    states: Sequence[int | str] | None = None,
    actions: Sequence[int | str] | None = None,
) -> Counts:
    """A log from arrays.

    Args:
      state: [N] names, which are whole numbers or text.
      action: [N] names.
      successor: [N] names of states.
      reward: [N].
      count: [N] how often each row was seen; once if not given.
      episode: [N] numbers or names of episodes.
      states: the names of all states, if there are more than the log has.
      actions: the names of all actions, likewise.
    """
    return _checked(state, action, successor, reward, count, episode, states, actions, nowhere)


def read_counts(path: str | Path) -> Counts:
    """Reads a log from a CSV file.

    Its columns are `state`, `action` and `next_state`, and if there are any `reward`, `count` and `episode`, in any
    order. Names of states and actions are whole numbers or text.
    """
    path = Path(path)
    table = _read(path, NEEDED, OPTIONAL)
    columns = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))

    def place(i: int) -> str:
        return f"{path}, line {table.lines[i]}: "

    for name in (*NEEDED, "episode"):
        if "" in (column := columns.get(name, ())):
            raise DeeprokError(f"{place(column.index(''))}{name} is empty; each row needs one")
    reward, count = (
        [_number(text, name, place(i)) for i, text in enumerate(columns[name])] if name in columns else None
        for name in ("reward", "count")
    )
    state, action, successor = (columns[name] for name in NEEDED)
    return _checked(state, action, successor, reward, count, columns.get("episode"), None, None, place)


class Possible(NamedTuple):
    """Which successors are possible, and what is known of their rewards."""

    possible: np.ndarray  # [S, A, S] bool
    reward: np.ndarray  # [S, A, S], NaN where it is not known


def read_support(path: str | Path, counts: Counts) -> Possible:
    """Reads the possible successors of some states and actions from a CSV file.

    Its columns are `state`, `action`, `next_state` and, if there is one, `reward`. An empty action stands for all
    actions of the state, and an empty reward for one that is not known. Where the file has no row for a state and
    action all successors are possible.

    Args:
      path: the file.
      counts: the log, which has the names of all states and actions.
    """
    path = Path(path)
    check_size(counts)
    table = _read(path, NEEDED, ("reward",))
    ids = [{str(name): i for i, name in enumerate(names)} for names in (counts.states, counts.actions, counts.states)]
    possible, reward = np.zeros(counts.shape, bool), np.full(counts.shape, np.nan)
    for line, cells in zip(table.lines, table.rows, strict=True):
        place, found = f"{path}, line {line}: ", dict(zip(table.header, cells, strict=True))
        at: list[int | slice] = []
        for name, known in zip(NEEDED, ids, strict=True):
            text = found[name]
            if name == "action" and not text:
                at.append(slice(None))
            elif text not in known:
                raise DeeprokError(f"{place}{unknown('action' if name == 'action' else 'state', text, known)}")
            else:
                at.append(known[text])
        possible[tuple(at)] = True
        if found.get("reward"):
            paid = _number(found["reward"], "reward", place)
            if not math.isfinite(paid):
                raise DeeprokError(f"{place}reward is {paid:g}; it must be a finite number, or empty")
            reward[tuple(at)] = paid
    possible[~possible.any(-1)] = True
    return Possible(possible, reward)


def check_size(counts: Counts) -> None:
    """Raises if arrays of all transitions would be too large."""
    S, A, _ = counts.shape
    if S * A * S > _MOST_CELLS:
        raise DeeprokError(
            f"{S:,} states and {A:,} actions have {S * A * S:,} transitions, more than the {_MOST_CELLS:,} that sets"
            " from counts are made for; deeprok.tabular.from_samples keeps a large model sparse"
        )


class _Table(NamedTuple):
    """A CSV file: the names of its columns, and its rows."""

    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # the line number of each row


def _read(path: Path, needed: Sequence[str], optional: Sequence[str]) -> _Table:
    """Reads a CSV file; raises unless its columns are those asked for, and it has rows."""
    rows, lines = [], []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header, needed, optional)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(header):
                    raise DeeprokError(
                        f"{path}, line {reader.line_num}: there are {len(cells)} values; there must be {len(header)}"
                    )
                rows.append([cell.strip() for cell in cells])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DeeprokError(f"{path}, line {reader.line_num}: this can't be read as CSV, {error}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise DeeprokError(f"can't read {path}: {reason}") from error
    if not rows:
        raise DeeprokError(f"{path} has no transitions; each line after the first is one")
    return _Table(header, rows, lines)


def _check_header(path: Path, header: list[str], needed: Sequence[str], optional: Sequence[str]) -> None:
    allowed = f"needed are {', '.join(needed)}, and there may be {', '.join(optional)}"
    missing = [name for name in needed if name not in header]
    if missing:
        found = "an empty first line" if not any(header) else f"the columns {shortened(','.join(header))}"
        raise DeeprokError(f"{path}, line 1: there is no column {missing[0]} in {found}; {allowed}")
    for i, name in enumerate(header):
        if name not in (*needed, *optional):
            raise DeeprokError(f"{path}, line 1: there is the column {shown(name)} too many; {allowed}")
        if name in header[:i]:
            raise DeeprokError(f"{path}, line 1: there is the column {shown(name)} twice; {allowed}")


def _number(text: str, name: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DeeprokError(f"{place}{name} is {shown(text)}; it must be a number") from None


def _checked(
    state: ArrayLike,
    action: ArrayLike,
    successor: ArrayLike,
    reward: ArrayLike | None,
    count: ArrayLike | None,
    episode: ArrayLike | None,
    states: Sequence[int | str] | None,
    actions: Sequence[int | str] | None,
    place: Place,
) -> Counts:
    """A log of columns; raises if they are not those of one. See `count_transitions`.

    Args:
      state: [N].
      action: [N].
      successor: [N].
      reward: [N].
      count: [N].
      episode: [N].
      states: all names.
      actions: all names.
      place: the prefix of an error message about a row.
    """
    names = {"state": state, "action": action, "successor": successor}
    numbers = {"reward": reward, "count": count, "episode": episode}
    columns = {name: np.asarray(x) for name, x in (names | numbers).items() if x is not None}
    shapes = {name: x.shape for name, x in columns.items()}
    if len(set(shapes.values())) != 1 or columns["state"].ndim != 1:
        said = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DeeprokError(f"the columns have the shapes {said}; give lists of one length")
    if not columns["state"].size:
        raise DeeprokError("there are no transitions; give at least one")
    for name in names:
        if columns[name].dtype.kind not in "iuUO":
            raise DeeprokError(f"{name} holds {columns[name].dtype}; names are whole numbers or text")
    known_states, (s, t) = _ids("state", states, columns["state"], columns["successor"])
    known_actions, (a,) = _ids("action", actions, columns["action"])
    seen = np.asarray(columns.get("count", np.ones(len(s))), float)
    _refuse(
        ~(np.isfinite(seen) & (seen >= 0) & (seen == np.floor(seen)) & (seen < 2**53)),
        lambda i: f"{place(i)}count is {seen[i]:g}; it must be a whole number of at least 0",
    )
    paid = None if reward is None else np.asarray(columns["reward"], float)
    if paid is not None:
        _refuse(~np.isfinite(paid), lambda i: f"{place(i)}reward is {paid[i]:g}; it must be a finite number")
    if not seen.any():
        raise DeeprokError("no transition was seen; count is 0 in every row")
    played = None if episode is None else np.unique(columns["episode"], return_inverse=True)[1]
    return Counts(known_states, known_actions, s, a, t, seen.astype(np.int64), paid, played)


def _refuse(wrong: ArrayLike, sentence: Callable[[int], str]) -> None:
    found = np.flatnonzero(wrong)
    if found.size:
        raise DeeprokError(sentence(int(found[0])))


def _ids(
    kind: str, given: Sequence[int | str] | None, *columns: np.ndarray
) -> tuple[tuple[int | str, ...], list[np.ndarray]]:
    """All names, sorted, whole numbers by their size; and the columns as places among them."""
    texts = [np.array([str(x) for x in column.tolist()]) for column in columns]
    unique, place = np.unique(np.concatenate(texts), return_inverse=True)
    found = unique.tolist()
    names = found if given is None else list(dict.fromkeys(str(x) for x in given))
    for name in found if given is not None else []:
        if name not in set(names):
            raise unknown(kind, name, names)
    ordered = _sorted_names(names)
    at = {str(name): i for i, name in enumerate(ordered)}
    ids = np.array([at[name] for name in found], np.int64)[place.reshape(-1)]
    return tuple(ordered), np.split(ids, np.cumsum([len(x) for x in texts])[:-1])


def _sorted_names(names: Sequence[str]) -> list[int | str]:
    """Names in order; as numbers if all of them are whole numbers in their usual form."""
    if all(len(name) < 19 and name.removeprefix("-").isdecimal() and str(int(name)) == name for name in names):
        return [*sorted(map(int, names))]
    return [*sorted(names)]
