"""The result of a comparison of groups: what each run scored in each cell, and what follows for its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.frames import make_frame, write_table
from deeprok.evaluation.aggregates import (
    Resampled,
    improvement_over_tasks,
    iqm_over_tasks,
    mean_over_tasks,
    profile,
    resample,
)
from deeprok.evaluation.groups.figure import draw
from deeprok.evaluation.groups.find import Cost
from deeprok.evaluation.statistics import Estimate, as_object

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measure = Literal["success", "mean_return"]

#: What the scores of a run are of: each cell of the grid, or all of them together in each environment.
Tasks = Literal["cells", "environments"]

#: Which group the others are compared with.
Against = Literal["first", "best"]

_THRESHOLDS = 101


class Scale(NamedTuple):
    """What a score of 0 and one of 1 stand for in an environment."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class RunScores:
    """A run, and how it did in each cell of the grid of its environment."""

    folder: str
    env: str
    seed: int
    keep: str
    settings: Mapping[str, Any]
    """Every setting by its name, but the seed."""
    grid: Mapping[str, np.ndarray]
    """Name of each parameter -> its values; empty where the environment has no box, and there is one cell."""
    success: np.ndarray
    """[C] the share of successful episodes in each cell, the last parameter varying fastest; NaN if it is not known."""
    mean_return: np.ndarray
    """[C]"""
    cost: Cost

    @property
    def cells(self) -> dict[str, np.ndarray]:
        """Name of each parameter -> its value [C] in each cell."""
        values = np.meshgrid(*self.grid.values(), indexing="ij")
        return {name: np.ravel(value) for name, value in zip(self.grid, values, strict=True)}


class Worst(NamedTuple):
    """The run of a group with the least score over its grid."""

    folder: str
    seed: int
    env: str
    score: float


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of equal settings, as far as they were grouped by."""

    label: str
    settings: dict[str, Any]
    """The settings that it was grouped by; None is that of runs that have no such setting."""
    runs: tuple[RunScores, ...]
    iqm: Estimate
    """Interquartile mean over runs and tasks."""
    mean: Estimate
    """Mean over tasks of the mean over runs."""
    worst: Worst
    """The run with the least score."""
    worst_cell: float
    """The least over all cells of the mean score over runs."""
    improvement: Estimate | None
    """Probability that a run is better than one of the group compared with; None of that group itself, and where
    the two have no environment in common."""
    profile: list[Estimate]
    """For each of `GroupComparison.thresholds`, the share of runs and tasks with a higher score."""

    @property
    def steps(self) -> float:
        """Environment steps of training, the median over runs."""
        return float(np.median([run.cost.steps for run in self.runs]))

    @property
    def seconds(self) -> float:
        """Seconds of training from its beginning to its end, the median over runs; seeds in one program share them."""
        return float(np.median([run.cost.seconds for run in self.runs]))

    @property
    def processor_seconds(self) -> float | None:
        """Processor time of training, the median over runs; None if one of them has not noted it."""
        used = [run.cost.processor_seconds for run in self.runs]
        known = [seconds for seconds in used if seconds is not None]
        return float(np.median(known)) if len(known) == len(used) else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "label": self.label,
            "settings": self.settings,
            "runs": [{"folder": run.folder, "env": run.env, "seed": run.seed} for run in self.runs],
            "iqm": as_object(self.iqm),
            "mean": as_object(self.mean),
            "worst_seed": self.worst._asdict(),
            "worst_cell": self.worst_cell,
            "probability_of_improvement": self.improvement and as_object(self.improvement),
            "profile": [as_object(share) for share in self.profile],
            "steps": self.steps,
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
        }


@dataclass(frozen=True, eq=False)
class GroupComparison:
    """Runs, such as those of a sweep, compared by their settings.

    Example:
      >>> found = deeprok.compare(["runs/sweep"], by="learning_rate,algorithm")
      >>> value, interval = found.groups[0].iqm
      >>> frame = found.to_frame()  # a row for each run and cell
      >>> found.plot().savefig("groups.png")
    """

    by: tuple[str, ...]
    varied: tuple[str, ...]
    """The settings that vary between the runs, also within groups; not those that an algorithm brings with it."""
    measure: Measure
    """What scores are: success, or the return where success is not known or is the same everywhere."""
    tasks: Tasks
    scales: dict[str, Scale]
    """Environment -> what the scores 0 and 1 stand for; empty if scores are not normalised."""
    grids: dict[str, dict[str, np.ndarray]]
    """Environment -> its grid."""
    episodes: int
    """In each cell."""
    epsilon: float
    against: str
    """The label of the group that the others are compared with."""
    groups: tuple[Group, ...]
    thresholds: np.ndarray
    """τ of the performance profiles."""
    played: int
    """How many runs were played; the others had stored evaluations of this very test."""
    remarks: tuple[str, ...]
    """What a user may not expect, such as runs that are left out."""

    @property
    def runs(self) -> list[RunScores]:
        """The runs of all groups."""
        return [run for group in self.groups for run in group.runs]

    def score(self, run: RunScores) -> np.ndarray:
        """The score [C] of a run in each cell, normalised as those of the groups are."""
        return scored(run, self.measure, self.scales)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that `deeprok compare --json` prints."""
        return {
            "by": list(self.by),
            "varied": list(self.varied),
            "measure": self.measure,
            "tasks": self.tasks,
            "scales": {env: scale._asdict() for env, scale in self.scales.items()},
            "grids": {env: {name: axis.tolist() for name, axis in grid.items()} for env, grid in self.grids.items()},
            "episodes": self.episodes,
            "epsilon": self.epsilon,
            "against": self.against,
            "thresholds": self.thresholds.tolist(),
            "played": self.played,
            "remarks": list(self.remarks),
            "groups": [group.to_dict() for group in self.groups],
        }

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of `to_frame`."""
        every = [(group, run) for group in self.groups for run in group.runs]
        sizes = [len(run.mean_return) for _, run in every]
        settings = dict.fromkeys(("algorithm", *self.by, *self.varied))
        parameters = dict.fromkeys(name for grid in self.grids.values() for name in grid)

        def each(values: Sequence[Any]) -> np.ndarray:
            return np.repeat(_column(values), sizes)

        columns = {
            "group": each([group.label for group, _ in every]),
            "run": each([run.folder for _, run in every]),
            "env": each([run.env for _, run in every]),
            **{
                f"setting_{name}" if name in parameters else name: each([run.settings.get(name) for _, run in every])
                for name in settings
                if name != "env"
            },
            "seed": each([run.seed for _, run in every]),
            "keep": each([run.keep for _, run in every]),
        }
        for name in parameters:
            columns[name] = np.concatenate(
                [run.cells.get(name, np.full(size, np.nan)) for (_, run), size in zip(every, sizes, strict=True)]
            )
        columns |= {
            "success": np.concatenate([run.success for _, run in every]),
            "mean_return": np.concatenate([run.mean_return for _, run in every]),
            "score": np.concatenate([self.score(run) for _, run in every]),
        }
        for name in Cost._fields:
            columns[name] = each([getattr(run.cost, name) for _, run in every])
        return columns

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with a row for each run and cell, and the settings that vary as columns.

        Needs the extra `frame`.
        """
        return make_frame(self.columns)

    def save_table(self, path: str | Path) -> None:
        """Writes `to_frame` to a file that ends with .parquet or .csv. Needs the extra `frame`."""
        write_table(Path(path), self.columns)

    def plot(self) -> Figure:
        """The interquartile mean of each group, and the performance profiles, as a matplotlib figure."""
        return draw(self)


def _column(values: Sequence[Any]) -> np.ndarray:
    """Numbers as numbers, and anything else as text; what is missing is NaN or empty."""
    if all(isinstance(value, int | float) for value in values):
        return np.array(values)
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return np.array([np.nan if value is None else value for value in values], float)
    return np.array(["" if value is None else text_of(value) for value in values], object)


def text_of(value: Any) -> str:
    """A setting's value in a few characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "x".join(map(text_of, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def scored(run: RunScores, measure: Measure, scales: Mapping[str, Scale]) -> np.ndarray:
    """The score [C] of a run in each cell."""
    raw: np.ndarray = getattr(run, measure)
    if run.env not in scales:
        return raw
    low, high = scales[run.env]
    return (raw - low) / (high - low)


def summarise(
    by: tuple[str, ...],
    varied: tuple[str, ...],
    grouped: Mapping[tuple[Any, ...], Sequence[RunScores]],
    measure: Measure,
    tasks: Tasks,
    scales: dict[str, Scale],
    against: Against,
    **facts: Any,
) -> GroupComparison:
    """The statistics of each group.

    Args:
      by: the settings that were grouped by.
      varied: the settings that vary.
      grouped: their values -> the runs.
      measure: what scores are.
      tasks: what the tasks of a run are.
      scales: environment -> what the scores 0 and 1 stand for.
      against: which group the others are compared with.
      facts: the other fields of the result.
    """
    rng = np.random.default_rng(0)
    samples = {key: _resampled(runs, measure, tasks, scales, rng) for key, runs in grouped.items()}
    iqms = {key: iqm_over_tasks(its[1]) for key, its in samples.items()}
    reference = next(iter(grouped)) if against == "first" else max(iqms, key=lambda key: iqms[key].value)
    scores = np.concatenate([block.reshape(-1) for _, its in samples.values() for block in its.blocks])
    if not np.isfinite(scores).all():
        raise DeeprokError("a score is not a finite number; evaluate the runs one by one to see which")
    ends = (0.0, 1.0) if measure == "success" else (float(scores.min()), float(scores.max()))
    thresholds = np.linspace(*ends, _THRESHOLDS)
    labels = {key: label_of(by, key, runs) for key, runs in grouped.items()}
    groups = []
    for key, runs in grouped.items():
        envs, drawn = samples[key]
        own = {run.folder: scored(run, measure, scales) for run in runs}
        worst = min(runs, key=lambda run: float(own[run.folder].mean()))
        groups.append(
            Group(
                label=labels[key],
                settings=dict(zip(by, key, strict=True)),
                runs=tuple(runs),
                iqm=iqms[key],
                mean=mean_over_tasks(drawn),
                worst=Worst(worst.folder, worst.seed, worst.env, float(own[worst.folder].mean())),
                worst_cell=min(
                    float(np.mean([own[run.folder] for run in runs if run.env == env], axis=0).min()) for env in envs
                ),
                improvement=None if key == reference else _improvement(samples[key], samples[reference]),
                profile=profile(drawn, thresholds),
            )
        )
    facts |= {"groups": tuple(groups), "against": labels[reference], "thresholds": thresholds}
    return GroupComparison(by, varied, measure, tasks, scales, **facts)


def label_of(by: Sequence[str], key: Sequence[Any], runs: Sequence[RunScores]) -> str:
    """What a group is called: its algorithm by name, and its other settings."""
    if not by:
        return ", ".join(dict.fromkeys(str(run.settings["algorithm"]) for run in runs))
    return ", ".join(
        text_of(value) if name in ("algorithm", "env") else f"{name}={text_of(value)}"
        for name, value in zip(by, key, strict=True)
    )


def _resampled(
    runs: Sequence[RunScores], measure: Measure, tasks: Tasks, scales: Mapping[str, Scale], rng: np.random.Generator
) -> tuple[list[str], Resampled]:
    """The environments of a group, and the scores of its runs in each."""
    envs = sorted({run.env for run in runs})
    blocks = [np.stack([scored(run, measure, scales) for run in runs if run.env == env]) for env in envs]
    if tasks == "environments":
        blocks = [block.mean(axis=1, keepdims=True) for block in blocks]
    return envs, resample(blocks, rng)


def _improvement(ours: tuple[list[str], Resampled], theirs: tuple[list[str], Resampled]) -> Estimate | None:
    """Over the environments that both groups have."""
    common = [env for env in ours[0] if env in theirs[0]]
    if not common:
        return None

    def part(envs: list[str], of: Resampled) -> Resampled:
        places = [envs.index(env) for env in common]
        return Resampled(tuple(of.blocks[i] for i in places), tuple(of.counts[i] for i in places))

    return improvement_over_tasks(part(*ours), part(*theirs))
