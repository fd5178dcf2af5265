"""The result of a stress test: where each policy breaks, and which is safer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import binomtest

from deeprok.core.frames import make_frame
from deeprok.evaluation.result import wilson
from deeprok.evaluation.stress.figure import draw
from deeprok.evaluation.stress.margin import Direction, Margin
from deeprok.evaluation.stress.search import Tried
from deeprok.evaluation.stress.sensitivity import Sensitivity
from deeprok.evaluation.stress.space import Space
from deeprok.runs.folder import Keep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIGNIFICANT = 0.05


class Rate(NamedTuple):
    """A share of some trials, with its 95 % Wilson interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} – {100 * self.high:.1f})"


def make_rate(share: float, trials: int) -> Rate:
    """A share of so many trials."""
    low, high = wilson(np.array(share * trials), trials)
    return Rate(float(share), float(low), float(high))


class Model(NamedTuple):
    """A model, and how a policy does on it."""

    parameters: dict[str, float]
    success: Rate
    mean_return: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "parameters": self.parameters,
            "success": self.success.value,
            "interval": [self.success.low, self.success.high],
            "mean_return": self.mean_return if math.isfinite(self.mean_return) else None,
        }


@dataclass(frozen=True, eq=False)
class StressedRun:
    """Where one policy breaks."""

    name: str
    """What the run is called: its path, as it was given."""
    folder: str
    """The run folder; of a folder of seeds, that of the seed that did best on held-out models."""
    algorithm: str
    keep: Keep
    nominal: Model
    """The nominal model, in the parameters that are searched."""
    worst: Model
    """The worst model found. It was chosen by other episodes than those of its success and return."""
    failing: Rate
    """The share of the models searched on which success is below the threshold."""
    margin: dict[str, Margin]
    """Parameter -> the values between which success is at least the threshold, all others nominal."""
    direction: Direction
    """How far it is so on the way from the nominal model to the worst one."""
    sensitivity: dict[str, Sensitivity]
    """Parameter -> its Sobol indices, the largest total one first."""
    sensitivity_of: str
    """What they are indices of: success, or mean_return where success is the same everywhere."""
    tried: Tried
    """All models of the search."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "run": self.name,
            "folder": self.folder,
            "algorithm": self.algorithm,
            "keep": self.keep,
            "nominal": self.nominal.to_dict(),
            "worst": self.worst.to_dict(),
            "failing": {"share": self.failing.value, "interval": [self.failing.low, self.failing.high]},
            "margin": {name: margin._asdict() for name, margin in self.margin.items()},
            "worst_direction": self.direction._asdict(),
            "sensitivity": {name: indices._asdict() for name, indices in self.sensitivity.items()},
            "sensitivity_of": self.sensitivity_of,
        }


class Verdict(NamedTuple):
    """Which of several policies is safer."""

    safer: str | None
    """Its name; None if none is, or there is but one."""
    sentence: str


@dataclass(frozen=True, eq=False)
class Stress:
    """Where policies break; `worst`, `margin` and `sensitivity` are those of the first run.

    Example:
      >>> found = deeprok.stress("runs/rok", box={"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)})
      >>> found.worst.parameters, found.worst.success
      >>> found.margin["pole_length"].high  # None if success holds to the end of the range
      >>> found.plot().savefig("stress.png")
    """

    env: str
    space: Space
    """The parameters that were searched, and their ranges."""
    threshold: float
    budget: int
    episodes: int
    """Episodes on each model of the search; what is reported of single models rests on more."""
    seed: int
    runs: tuple[StressedRun, ...]

    @property
    def worst(self) -> Model:
        """The worst model found for the first run."""
        return self.runs[0].worst

    @property
    def margin(self) -> dict[str, Margin]:
        """Parameter -> the values between which the first run works, all others nominal."""
        return self.runs[0].margin

    @property
    def sensitivity(self) -> dict[str, Sensitivity]:
        """Parameter -> Sobol indices of the first run's success, the largest total one first."""
        return self.runs[0].sensitivity

    @property
    def labels(self) -> list[str]:
        """Short names of the runs: the last parts of their paths, if these tell them apart."""
        short = [run.name.rstrip("/").rpartition("/")[2] for run in self.runs]
        return short if len(set(short)) == len(short) else [run.name for run in self.runs]

    @property
    def verdict(self) -> Verdict:
        """Which of several runs is safer."""
        return judge(self.runs, self.threshold)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that `deeprok stress --json` prints."""
        each = [run.to_dict() for run in self.runs]
        first = {name: each[0][name] for name in ("worst", "margin", "sensitivity")}
        verdict = self.verdict
        return first | {
            "env": self.env,
            "box": {one.name: list(one.box) for one in self.space.dimensions},
            "searched": {one.name: [one.low, one.high] for one in self.space.dimensions},
            "threshold": self.threshold,
            "budget": self.budget,
            "episodes": self.episodes,
            "seed": self.seed,
            "runs": each,
            "safer": verdict.safer,
            "verdict": verdict.sentence,
        }

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with a row for each model of the search and run.

        Needs the extra `frame`.
        """
        counts = [len(run.tried.models) for run in self.runs]
        models = np.concatenate([run.tried.models for run in self.runs])
        columns = {"run": np.repeat(np.array([run.name for run in self.runs]), counts)}
        columns |= {name: models[:, i] for i, name in enumerate(self.space.names)}
        scores = {
            name: np.concatenate([getattr(run.tried, name) for run in self.runs]) for name in ("success", "mean_return")
        }
        return make_frame(columns | scores)

    def plot(self) -> Figure:
        """Margins, failing models and sensitivities, as a matplotlib figure."""
        return draw(self)


def judge(runs: Sequence[StressedRun], threshold: float) -> Verdict:
    """Which run is safer: by the success on its worst model, and by the share of models on which it fails.

    A difference in the worst model counts if the intervals do not overlap. The shares are of the same models, so of
    those on which only one of two runs fails, significantly more must be the other's (McNemar's exact test, 5 %).
    Where both measures name a run they must name the same.

    Args:
      runs: the runs, tried on the same models.
      threshold: the success below which a run fails on a model.
    """
    if len(runs) == 1:
        return Verdict(None, _alone(runs[0], threshold))

    def failing(run: StressedRun) -> np.ndarray:
        return run.tried.success[run.tried.uniform()] < threshold

    def fails_less(run: StressedRun, other: StressedRun) -> bool:
        ours, theirs = (int(np.sum(failing(x) & ~failing(y))) for x, y in ((run, other), (other, run)))
        return ours < theirs and binomtest(ours, ours + theirs).pvalue < _SIGNIFICANT

    def best(better: Any) -> StressedRun | None:
        return next((run for run in runs if all(better(run, other) for other in runs if other is not run)), None)

    by_worst = best(lambda run, other: run.worst.success.low > other.worst.success.high)
    by_share = best(fails_less)
    worst = ", ".join(f"{run.name} {run.worst.success}" for run in runs)
    shares = ", ".join(f"{run.name} {run.failing}" for run in runs)
    measured = (
        f"success on the worst model is {worst}; the share of models below {100 * threshold:g} % success is {shares}"
    )
    if by_worst and by_share and by_worst is not by_share:
        return Verdict(
            None, f"{by_worst.name} is safer at its worst, {by_share.name} fails on fewer models: {measured}."
        )
    safer = by_worst or by_share
    if safer is None:
        return Verdict(None, f"No run is safer than all others: {measured}.")
    return Verdict(safer.name, f"{safer.name} is safer: {measured}.")


def _alone(run: StressedRun, threshold: float) -> str:
    below = f"{100 * threshold:g} %"
    if run.worst.success.high < threshold:
        return f"There are models with less than {below} success: about {run.failing} of those searched."
    if run.worst.success.low >= threshold:
        return f"No model with less than {below} success was found."
    return f"The worst model found is too close to {below} success to say on which side it lies."
