"""The metrics of a run as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deeprok.core.frames import make_frame
from deeprok.runs import folder as runs


@dataclass(frozen=True, eq=False)
class Metrics(Mapping[str, np.ndarray]):
    """What training has written: arrays with an entry for each chunk, by name, and the return of each episode.

    `metrics["loss"]` is an array [C] with an entry for each chunk of training, NaN where a chunk has none. Every run
    has `steps` and `episodes`; `loss`, `trial_return` and the filter's diagnostics are there where the algorithm has
    them, `failed_steps` and `failed_simulations` where it was trained in a stateful simulator. Pairs of numbers, such
    as a least and a largest variance, are arrays [C, 2].

    Attributes:
      chunks: name -> [C] or [C, 2].
      returns: [N] the return of every training episode.
      ended: [C] how many episodes ended in each chunk.
    """

    chunks: dict[str, np.ndarray]
    returns: np.ndarray
    ended: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        return self.chunks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with a row for each chunk.

        Pairs of numbers are two columns, `name_0` and `name_1`; `mean_return` is over the episodes that ended in the
        chunk. Needs the extra `frame`: in a clone, pip install -c constraints.txt '.[frame]'.
        """
        return make_frame(self.columns())

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of `to_frame`."""
        columns: dict[str, np.ndarray] = {}
        for name, values in self.chunks.items():
            columns |= {name: values} if values.ndim == 1 else {f"{name}_{i}": x for i, x in enumerate(values.T)}
        sums = np.diff(np.concatenate([[0.0], np.cumsum(self.returns)])[np.cumsum([0, *self.ended])])
        counts = np.where(self.ended > 0, self.ended, 1)
        return columns | {"mean_return": np.where(self.ended > 0, sums / counts, np.nan)}


def failures(lines: Sequence[Mapping[str, Any]]) -> str:
    """What to say of simulations that failed in a run; empty if none did.

    Args:
      lines: of its `metrics.jsonl`.
    """
    steps, simulations = (sum(line.get(name, 0) for line in lines) for name in ("failed_steps", "failed_simulations"))
    if not simulations:
        return ""
    return (
        f"{simulations:,} simulations failed, in {steps:,} of {lines[-1]['steps']:,} steps: their numbers were not "
        "finite or too large, which counts as the end of an episode on that model"
    )


def read(folder: Path) -> Metrics:
    """The metrics of a run folder; without any lines if it has not got to its first chunk."""
    lines = runs.read_metrics(folder)
    written = (name for line in lines for name in line if name != "returns")
    names = dict.fromkeys(["steps", "episodes", *written])
    chunks = {}
    for name in names:
        shape = next((np.shape(line[name]) for line in lines if name in line), ())
        rows = [line.get(name, np.full(shape, np.nan)) for line in lines]
        chunks[name] = np.array([row if np.shape(row) == shape else np.full(shape, np.nan) for row in rows])
    ended = np.array([len(line["returns"]) for line in lines], int)
    returns = np.concatenate([np.zeros(0), *(np.asarray(line["returns"], float) for line in lines)])
    return Metrics(chunks, returns, ended)
