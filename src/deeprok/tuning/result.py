"""The result of a tuning: what was tried, what was chosen, and what it scores on fresh seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deeprok.evaluation.statistics import Estimate, difference, mean_of
from deeprok.runs.preset_file import PresetFile, write_preset
from deeprok.tuning.figure import draw
from deeprok.tuning.record import Record, Rerun
from deeprok.tuning.sampler import importances
from deeprok.tuning.task import Metric, Task, is_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The preset that was found, and the report, in the folder of a tuning.
PRESET = "preset.toml"
REPORT = "report.md"
FIGURE = "tuning.png"

#: What a metric is called, and a factor to show it with.
SHOWN: dict[Metric, tuple[str, float]] = {
    "worst": ("mean return on the worst model", 1.0),
    "cvar10": ("mean return on the worst tenth of the models", 1.0),
    "success": ("success in %", 100.0),
    "return": ("mean return", 1.0),
}


class Compared(NamedTuple):
    """The winner against a preset, on the same fresh seeds."""

    preset: str
    difference: Estimate  # the winner's mean minus the preset's, with Welch's interval
    apart: bool  # whether the intervals of both do not overlap
    sentence: str


@dataclass(frozen=True, eq=False)
class Tuning:
    """What `deeprok.tune` has found.

    Example:
      >>> found = deeprok.tune("rtd_dqn", "ferry", budget="20m")
      >>> config = deeprok.make_config("rtd_dqn", preset=found.preset_file)
    """

    out: Path
    task: Task
    record: Record

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were chosen, by name: those that were searched."""
        assert self.record.winner
        return self.record.winner.settings

    @property
    def preset_file(self) -> Path:
        """The preset that was found, as `deeprok train --preset` and `make_config` take it."""
        return self.out / PRESET

    @property
    def score(self) -> Estimate:
        """The winner's score on fresh seeds, with Student's 95 % interval over seeds."""
        return score_of(self.record.winner)

    @property
    def score_while_tuning(self) -> float | None:
        """What the winner scored when it was found: too much, since the best of many trials was also lucky."""
        number = self.record.winner.name.split()[-1] if self.record.winner else ""
        return next((trial.rank[1] for trial in self.record.trials if str(trial.number) == number), None)

    @property
    def presets(self) -> dict[str, Estimate]:
        """The score of each preset on the same fresh seeds."""
        return {preset.name: score_of(preset) for preset in self.record.presets}

    @property
    def comparisons(self) -> tuple[Compared, ...]:
        """The winner against each preset."""
        winner = self.record.winner
        return tuple(_compared(self, winner, preset) for preset in self.record.presets) if winner else ()

    @property
    def importances(self) -> dict[str, float] | None:
        """How much each setting matters at the first rung, as shares; None if there are too few trials to tell."""
        task = self.task
        whole = [name for name in task.space if is_whole(name, task.base)]
        return importances(task.space, whole, self.record.trials)

    def to_dict(self) -> dict[str, Any]:
        """As `tuning.json` has it."""
        return {**self.record.to_dict(), **self.summary()}

    def summary(self) -> dict[str, Any]:
        """What follows from the record."""
        return {
            "importance": self.importances,
            "score": _plain(self.score) if self.record.winner else None,
            "score_while_tuning": self.score_while_tuning,
            "comparisons": [
                {
                    "preset": one.preset,
                    "difference": _plain(one.difference),
                    "intervals_apart": one.apart,
                    "sentence": one.sentence,
                }
                for one in self.comparisons
            ],
        }

    def plot(self) -> Figure:
        """Scores against trials, and the importance of each setting, as a matplotlib figure."""
        return draw(self.record, self.importances, SHOWN[self.task.options.metric])

    def write_preset(self) -> None:
        """Writes the preset file."""
        task, winner = self.task, self.record.winner
        assert winner
        config = task.config(winner.settings)
        settings = {name: config.flat()[name] for name in (*task.fixed, *winner.settings)}
        preset = PresetFile(config.algorithm, config.env, task.options.preset, settings)
        measure = SHOWN[task.options.metric][0]
        remarks = (
            f"Found by deeprok tune; train it with: deeprok train {config.algorithm} --preset FILE",
            f"On {len(winner.seeds)} fresh seeds, {measure}: {said(self.score, task.options.metric)}",
        )
        write_preset(self.preset_file, preset, remarks)


def score_of(rerun: Rerun | None) -> Estimate:
    """The mean over seeds with Student's interval; not a number if a training failed."""
    if rerun is None or not rerun.scored.scores:
        return Estimate(float("nan"), None)
    return mean_of(rerun.scored.scores)


def _compared(found: Tuning, winner: Rerun, preset: Rerun) -> Compared:
    metric, count = found.task.options.metric, len(winner.seeds)
    ours, theirs = score_of(winner), score_of(preset)
    name = f"preset {preset.name}"
    if not winner.scored.scores or not preset.scored.scores:
        failed = "the winner" if not winner.scored.scores else name
        problem = (winner if not winner.scored.scores else preset).scored.problem
        sentence = f"{failed} failed on fresh seeds, so that it can't be compared: {problem}"
        return Compared(preset.name, Estimate(float("nan"), None), False, sentence)
    gap = difference(winner.scored.scores, preset.scored.scores)
    apart = bool(
        ours.interval
        and theirs.interval
        and (ours.interval[0] > theirs.interval[1] or theirs.interval[0] > ours.interval[1])
    )
    low, high = gap.interval or (float("nan"), float("nan"))
    shown = f"by {said(gap, metric)} on {count} fresh seeds"
    same = found.task.preset(preset.name).flat() | {"preset": found.task.options.preset}
    if found.task.config(winner.settings).flat() == same:
        sentence = f"the winner has the settings of {name}: the search has found none that do better"
    elif low > 0:
        sentence = f"the winner is better than {name}, {shown}; their intervals {'do not' if apart else ''} overlap"
    elif high < 0:
        sentence = f"the winner is worse than {name}, {shown}: train with the preset instead"
    else:
        sentence = f"the winner is not better than {name}: the difference is {shown[3:]}, which may be chance"
    return Compared(preset.name, gap, apart, " ".join(sentence.split()))


def said(found: Estimate, metric: Metric) -> str:
    """A number and its interval."""
    scale = SHOWN[metric][1]
    form = ".1f" if scale != 1.0 else ".0f" if abs(found.value) >= 1000 else ".3g"
    value = f"{scale * found.value:{form}}"
    if found.interval is None:
        return value
    low, high = (f"{scale * end:{form}}" for end in found.interval)
    return f"{value} ({low} to {high})"


def _plain(found: Estimate) -> dict[str, Any]:
    return {
        "value": None if found.value != found.value else found.value,
        "interval": found.interval and list(found.interval),
    }
