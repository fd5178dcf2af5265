"""The result of a comparison: each agent's scores, and how it differs from the first one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from deeprok.core.frames import make_frame
from deeprok.evaluation.comparison.figure import draw
from deeprok.evaluation.result import Evaluation
from deeprok.evaluation.screening.planning import worst_mean
from deeprok.evaluation.statistics import (
    Estimate,
    as_object,
    difference,
    estimate,
    mean_of,
    probability_of_improvement,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What intervals are over: the seeds of each agent, or the episodes that all agents play.
Unit = Literal["seeds", "episodes"]

#: What decides which agent is better.
Measure = Literal["success", "mean_return"]

_TAIL = 0.1  # of the cells
_MOST_CELLS = 2  # in which two agents differ most


class Scores(NamedTuple):
    """Scores over the whole grid, of each seed or of each episode."""

    success: np.ndarray  # [S] or [E]
    mean_return: np.ndarray


class Cell(NamedTuple):
    """A cell of the grid, and how a policy does there."""

    parameters: dict[str, float]
    success: float
    mean_return: float


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One agent: the seeds that were trained with the same settings."""

    label: str
    """A short name."""
    run: str
    """The run folder, or folder of seeds, as it was given."""
    seeds: list[int]
    evaluation: Evaluation
    """Its scores in each cell, and those of each seed."""
    scores: Scores
    """What the intervals are over."""

    @property
    def success(self) -> Estimate:
        """Mean success over the grid."""
        return _within(mean_of(self.scores.success), 0.0, 1.0)

    @property
    def mean_return(self) -> Estimate:
        """Mean return over the grid."""
        return mean_of(self.scores.mean_return)

    @property
    def worst(self) -> Cell:
        """The cell with the least success and, of equals, the least return."""
        found = self.evaluation
        return self.cell(int(np.lexsort((found.mean_return.reshape(-1), found.success.reshape(-1)))[0]))

    @property
    def tail_success(self) -> float:
        """Mean success of the worst tenth of the cells: CVaR10."""
        return float(worst_mean(np.ravel(self.evaluation.success), _TAIL))

    def cell(self, number: int) -> Cell:
        """The cell of that number, the last parameter varying fastest."""
        place = np.unravel_index(number, self.evaluation.success.shape)
        values = {name: float(axis[i]) for (name, axis), i in zip(self.evaluation.grid.items(), place, strict=True)}
        return Cell(values, float(self.evaluation.success[place]), float(self.evaluation.mean_return[place]))

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "run": self.run,
            "label": self.label,
            "algorithm": self.evaluation.algorithm,
            "keep": self.evaluation.keep,
            "seeds": self.seeds,
            "success": as_object(self.success),
            "mean_return": as_object(self.mean_return),
            "worst": self.worst._asdict(),
            "cvar10": self.tail_success,
            "cells": {name: getattr(self.evaluation, name).tolist() for name in ("success", "mean_return")},
        }


@dataclass(frozen=True)
class Difference:
    """How an agent differs from the first one."""

    label: str
    baseline: str
    success: Estimate
    """Its mean success over the grid minus that of the first."""
    mean_return: Estimate
    improvement: Estimate | None
    """Probability that a seed of it is better than one of the first; None where intervals are over episodes."""
    cells: list[tuple[Cell, Cell]]
    """Where they differ most: the cell for the first agent, and for this one."""
    better: str | None
    """The label of the better one; None if that is inconclusive."""
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "run": self.label,
            "baseline": self.baseline,
            "success": as_object(self.success),
            "mean_return": as_object(self.mean_return),
            "probability_of_improvement": self.improvement and as_object(self.improvement),
            "cells": [
                {
                    "parameters": first.parameters,
                    "success": [first.success, other.success],
                    "mean_return": [first.mean_return, other.mean_return],
                }
                for first, other in self.cells
            ],
            "better": self.better,
            "sentence": self.sentence,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Agents compared on the same grid, each with the first.

    Example:
      >>> found = deeprok.compare(["runs/rok", "runs/ddqn"], episodes=100)
      >>> tuple(run.label for run in found.runs)
      ('rok', 'ddqn')
      >>> success, interval = found.differences[0].success
      >>> frame = found.to_frame()  # a row for each run and cell
    """

    env: str
    unit: Unit
    """What intervals are over: seeds, or episodes where an agent has but one seed."""
    stored: bool
    """Whether stored evaluations were taken, and nothing was played."""
    runs: tuple[ComparedRun, ...]

    @property
    def grid(self) -> dict[str, np.ndarray]:
        """Name of each parameter -> its values."""
        return self.runs[0].evaluation.grid

    @property
    def measure(self) -> Measure:
        """What decides which agent is better: success or, where that is the same everywhere, the return."""
        success = np.stack([run.evaluation.success for run in self.runs])
        return "mean_return" if np.all(success == success.flat[0]) else "success"

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """How each agent but the first differs from it."""
        return tuple(self._difference(run) for run in self.runs[1:])

    def _difference(self, other: ComparedRun) -> Difference:
        first, measure = self.runs[0], self.measure

        def of(name: str) -> Estimate:
            ours, theirs = getattr(other.scores, name), getattr(first.scores, name)
            # The episodes are the same ones, the seeds are others.
            found = difference(ours, theirs) if self.unit == "seeds" else mean_of(ours - theirs)
            return _within(found, -1.0, 1.0) if name == "success" else found

        scores = getattr(other.scores, measure), getattr(first.scores, measure)
        maps = [getattr(run.evaluation, measure).reshape(-1) for run in (first, other)]
        gap = maps[1] - maps[0]
        most = [int(i) for i in np.argsort(-np.abs(gap), kind="stable")[:_MOST_CELLS] if gap[i]]
        cells = [(first.cell(i), other.cell(i)) for i in most]
        found = of(measure)
        sign = 0 if found.interval is None else (found.interval[0] > 0) - (found.interval[1] < 0)
        return Difference(
            label=other.label,
            baseline=first.label,
            success=of("success"),
            mean_return=of("mean_return"),
            improvement=estimate(probability_of_improvement, *scores) if self.unit == "seeds" else None,
            cells=cells,
            better={1: other.label, -1: first.label, 0: None}[sign],
            sentence=_sentence(first.label, other.label, measure, found, sign, cells),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that `deeprok compare --json` prints."""
        test = self.runs[0].evaluation
        return {
            "env": self.env,
            "grid": {name: values.tolist() for name, values in self.grid.items()},
            "episodes": test.episodes,
            "epsilon": test.epsilon,
            "disturbances": test.disturbances,
            "unit": self.unit,
            "measure": self.measure,
            "stored": self.stored,
            "runs": [run.to_dict() for run in self.runs],
            "differences": [one.to_dict() for one in self.differences],
        }

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with a row for each agent and cell: its scores, and by how much they exceed the first's.

        Needs the extra `frame`.
        """
        each = [run.evaluation.columns() for run in self.runs]
        count = len(next(iter(each[0].values())))
        columns = {"run": np.repeat(np.array([run.label for run in self.runs]), count)}
        kept = (*self.grid, "success", "mean_return")
        columns |= {name: np.concatenate([cells[name] for cells in each]) for name in kept}
        for name in ("success", "mean_return"):
            columns[f"{name}_difference"] = np.concatenate([cells[name] - each[0][name] for cells in each])
        return make_frame(columns)

    def plot(self) -> Figure:
        """A map for each agent, or a curve, and its difference to the first one, as a matplotlib figure."""
        return draw(self)


def _within(found: Estimate, low: float, high: float) -> Estimate:
    """An estimate whose interval ends where its values do."""
    if found.interval is None:
        return found
    return Estimate(found.value, (max(low, found.interval[0]), min(high, found.interval[1])))


def _sentence(
    first: str,
    other: str,
    measure: Measure,
    found: Estimate,
    sign: int,
    cells: list[tuple[Cell, Cell]],
) -> str:
    """Which of two agents is better, by how much and where."""
    scale, unit, form = (100, " points", ".1f") if measure == "success" else (1, "", ".4g")
    name = "success" if measure == "success" else "return"

    def said(value: float) -> str:
        return f"{scale * value:{form}}"

    def score(cell: Cell) -> str:
        return f"{100 * cell.success:.3g} %" if measure == "success" else f"{cell.mean_return:.4g}"

    places = [f"{_place(one.parameters)} ({score(two)} against {score(one)})" for one, two in cells]
    most = f"; they differ most at {' and '.join(places)}" if places else ""
    if not sign:
        interval = f" (95 % interval {said(found.interval[0])} to {said(found.interval[1])})" if found.interval else ""
        return (
            f"{other} against {first} is inconclusive: the difference in {name} is {said(found.value)}{unit}{interval}"
            f"{most}."
        )
    assert found.interval
    ends = sorted(abs(end) for end in found.interval)
    return (
        f"{other} is {'better' if sign > 0 else 'worse'} than {first}: its {name} is {said(abs(found.value))}{unit} "
        f"{'higher' if sign > 0 else 'lower'} (95 % interval {said(ends[0])} to {said(ends[1])}){most}."
    )


def _place(parameters: dict[str, float]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in parameters.items())
