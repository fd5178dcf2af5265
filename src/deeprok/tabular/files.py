"""Reading and writing models as CSV files.

The columns are those of craam2: idstatefrom, idaction, idstateto, probability and reward.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from deeprok.core.errors import DeeprokError, shortened, shown
from deeprok.core.files import write_atomically
from deeprok.tabular.model import RMDP, assemble

COLUMNS = ("idstatefrom", "idaction", "idstateto", "probability", "reward")

#: Lines formatted at a time when a file is written, which bounds the memory (about a hundred bytes each).
_LINES = 1 << 18


def read_csv(path: str | Path) -> RMDP:
    """Reads a model from a CSV file with the columns `COLUMNS`, in any order."""
    path = Path(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = [name.strip() for name in file.readline().split(",")]
            missing = [name for name in COLUMNS if name not in header]
            surplus = [name for name in header if name not in COLUMNS]
            if missing or surplus or len(header) != len(COLUMNS):
                too_many = shown((surplus or header)[-1])
                wrong = f"no column {missing[0]}" if missing else f"the column {too_many} too many"
                found = f"the columns {shortened(','.join(header))}" if any(header) else "an empty first line"
                raise DeeprokError(f"{path}, line 1: there is {wrong} in {found}; needed are {','.join(COLUMNS)}")
            kinds = np.dtype([(name, np.int64 if name.startswith("id") else np.float64) for name in header])
            body = itertools.dropwhile(lambda line: not line.strip(), file)
            first = next(body, None)
            if first is None:
                raise DeeprokError(f"{path} has no transitions; each line after the first is one")
            try:
                table = np.loadtxt(itertools.chain([first], body), kinds, comments=None, delimiter=",", ndmin=1)
            except ValueError as error:
                raise _unreadable(path, header) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise DeeprokError(f"can't read {path}: {reason}") from error
    s, a, t, p, r = (table[name] for name in COLUMNS)
    return assemble(s, a, t, p, r, lambda i: f"{path}, line {_line(path, i)}: ")


def write_csv(problem: RMDP, path: str | Path) -> None:
    """Writes the nominal model to a CSV file; `read_csv` reads the same model back."""
    state, action = np.divmod(problem.row, problem.actions)
    columns = (state, action, problem.successor, problem.probability, problem.reward)
    parts = [",".join(COLUMNS).encode()]
    for i in range(0, len(state), _LINES):
        texts = (map(repr, column[i : i + _LINES].tolist()) for column in columns)
        parts.append("\n".join(map(",".join, zip(*texts, strict=True))).encode())
    write_atomically(Path(path), b"\n".join([*parts, b""]))


def _line(path: Path, index: int) -> int:
    """The line number of a transition in its file."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = (number for number, line in enumerate(file, 1) if line.strip() and number > 1)
        return next(itertools.islice(lines, index, None))


def _unreadable(path: Path, header: list[str]) -> DeeprokError:
    """The error for the first line that can't be read."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        for number, line in enumerate(file, 1):
            cells = line.split(",")
            if number == 1 or not line.strip():
                continue
            if len(cells) != len(header):
                return DeeprokError(
                    f"{path}, line {number}: there are {len(cells)} values; there must be {len(header)}"
                )
            for name, text in zip(header, cells, strict=True):
                kind, convert = ("a whole number", int) if name.startswith("id") else ("a number", float)
                try:
                    convert(text)
                except ValueError:
                    return DeeprokError(f"{path}, line {number}: {name} is {shown(text)}; it must be {kind}")
    return DeeprokError(f"can't read {path}: its lines are not those of a model")
