"""The result of a screening: the scores of exactly solved policies on a grid of models, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from deeprok import plot as figures
from deeprok.core.errors import DeeprokError
from deeprok.core.frames import make_frame
from deeprok.evaluation.result import Parameter
from deeprok.evaluation.screening.planning import worst_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The policies of a screening, and what each is made for.
POLICIES = {
    "each": "the model that it is played on: the ceiling, but for random actions and the grid's error",
    "nominal": "the nominal model",
    "mean": "a model drawn at random in every step",
    "cvar": "the worst models of every step, averaged",
    "worst_case": "the worst model of every step",
    "random": "none: uniformly random actions",
}
_ROBUST = ("worst_case", "cvar")
_TAIL = 0.1  # the fraction of the cells that `tail` scores are averaged over

#: What a difference must be to count, in success rate or in the range of returns from random play to the ceiling.
WORST_CELL, ON_AVERAGE = 0.10, 0.05

#: What can pay: a robust policy; only knowing or finding out the model; only keeping away from the edge; nothing.
Room = Literal["robustness", "adaptation", "margin", "none"]


class Summary(NamedTuple):
    """The scores of a policy over all cells."""

    mean_success: float
    worst_success: float
    """Of the worst cell."""
    tail_success: float
    """Mean of the worst tenth of the cells: CVaR10."""
    mean_return: float
    worst_return: float
    tail_return: float


class Verdict(NamedTuple):
    """Whether robustness can pay."""

    room: Room
    sentence: str


@dataclass(frozen=True, eq=False)
class Screening:
    """How exactly solved policies do on each model of a grid.

    The arrays `success` and `mean_return` have an axis of policies, then one for each parameter of the grid, in its
    order; `of("cvar")` gives a policy's own.

    Example:
      >>> found = deeprok.screen("ferry", grid={"current": [0.0, 1.0, 2.0]})
      >>> found.success.shape
      (6, 3)
      >>> found.verdict.room
      'robustness'
    """

    env: str
    grid: dict[str, np.ndarray]
    """Name of each parameter -> its values."""
    states: dict[str, int]
    """Name of each coordinate -> grid points along it."""
    policies: tuple[str, ...]
    success: np.ndarray
    """Share of a cell's episodes with a return above the environment's `success_return`."""
    mean_return: np.ndarray
    start_values: dict[str, float]
    """Policy -> the discounted value that its own problem has in the start states, averaged over them."""
    discount: float
    cvar: float
    """Fraction of the cells, the worst ones of every step, that the policy cvar is made for."""
    episodes: int
    """Episodes in each cell."""
    epsilon: float
    """Probability of a random action."""
    draws: int
    seed: int
    parameters: dict[str, Parameter]
    """Unit and nominal value of each parameter of the grid."""

    def of(self, policy: str) -> tuple[np.ndarray, np.ndarray]:
        """Success and mean return of a policy on the grid."""
        index = self.policies.index(policy)
        return self.success[index], self.mean_return[index]

    def summary(self) -> dict[str, Summary]:
        """The scores of each policy over all cells."""

        def over(cells: np.ndarray) -> tuple[float, float, float]:
            flat = cells.reshape(-1)
            return float(flat.mean()), float(flat.min()), float(worst_mean(flat, _TAIL))

        return {policy: Summary(*over(self.of(policy)[0]), *over(self.of(policy)[1])) for policy in self.policies}

    @property
    def verdict(self) -> Verdict:
        """Whether robustness can pay in this environment."""
        return judge(self.summary())

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that `deeprok screen --json` prints: arrays are nested lists."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        verdict = self.verdict
        return plain | {
            "policies": list(self.policies),
            "grid": {name: values.tolist() for name, values in self.grid.items()},
            "parameters": {name: {"unit": p.unit, "nominal": p.nominal} for name, p in self.parameters.items()},
            "success": self.success.tolist(),
            "mean_return": self.mean_return.tolist(),
            "summary": {policy: scores._asdict() for policy, scores in self.summary().items()},
            "room": verdict.room,
            "verdict": verdict.sentence,
        }

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with a row for each policy and cell.

        Needs the extra `frame`: in a clone, pip install -c constraints.txt '.[frame]'.
        """
        values = [np.ravel(mesh) for mesh in np.meshgrid(*self.grid.values(), indexing="ij")]
        count = len(values[0])
        columns = {"policy": np.repeat(np.array(self.policies), count)}
        columns |= {name: np.tile(cells, len(self.policies)) for name, cells in zip(self.grid, values, strict=True)}
        return make_frame(columns | {"success": self.success.reshape(-1), "mean_return": self.mean_return.reshape(-1)})

    def plot(self) -> Figure:
        """Success rates: a map for each policy over two parameters, or a curve for each along one."""
        if len(self.grid) > 2:
            raise DeeprokError(f"a figure takes a grid of one or two parameters; this has {len(self.grid)}")
        if len(self.grid) == 1:
            return self._curves()
        figure, panels = figures.panels_of(len(self.policies))
        for i, (panel, policy) in enumerate(zip(panels, self.policies, strict=True)):
            image = figures.draw_map(panel, self.of(policy)[0], self.grid, self.parameters)
            panel.set_title(f"{policy}: {100 * self.of(policy)[0].mean():.1f} % success", fontsize=10)
            figures.label_axes(panel, self.grid, self.parameters, up=i == 0)
        figure.colorbar(image, ax=panels, label="success in %", pad=0.02)
        return figure

    def _curves(self) -> Figure:
        ((name, values),) = self.grid.items()
        figure, (panel,) = figures.panels_of(1)
        for policy, (colour, line, marker) in zip(self.policies, figures.STYLES, strict=True):
            style = {"color": colour, "linestyle": line, "marker": marker}
            panel.plot(values, 100 * self.of(policy)[0], label=policy, **style)
        figures.mark_nominal(panel, self.parameters[name].nominal)
        panel.set_xlabel(figures.axis_label(name, self.parameters))
        panel.set_ylabel("success in %")
        panel.legend(fontsize=8)
        return figure


_PLAIN = ("env", "states", "start_values", "discount", "cvar", "episodes", "epsilon", "draws", "seed")


class Measure(NamedTuple):
    """A score in which policies are compared."""

    name: str
    show: Callable[[float], str]
    scale: float  # the difference that counts as 1
    worst: dict[str, float]  # of the worst cell, by policy
    mean: dict[str, float]

    def gain(self, policy: str, over: str) -> tuple[float, float]:
        """By how much one policy is better than another, in the worst cell and on average."""
        worst, mean = self.worst[policy] - self.worst[over], self.mean[policy] - self.mean[over]
        return worst / self.scale, mean / self.scale

    def better(self, policy: str, over: str) -> bool:
        """Whether the difference between two policies counts."""
        worst, mean = self.gain(policy, over)
        return worst >= WORST_CELL or mean >= ON_AVERAGE

    def compared(self, policy: str) -> str:
        """How a policy and the nominal one do, in words."""
        ours, theirs = ((self.show(self.worst[x]), self.show(self.mean[x])) for x in (policy, "nominal"))
        return (
            f"The {self.name} of the policy {policy} is {ours[0]} in its worst cell and {ours[1]} on average, that of"
            f" the policy nominal {theirs[0]} and {theirs[1]}"
        )


def measures(summary: Mapping[str, Summary]) -> list[Measure]:
    """The scores in which policies are compared: success, and return where a policy for each model beats chance."""

    def measure(name: str, show: Callable[[float], str], scale: float) -> Measure:
        worst, mean = ({p: getattr(one, f"{kind}_{name}") for p, one in summary.items()} for kind in ("worst", "mean"))
        return Measure(name, show, scale, worst, mean)

    success = measure("success", lambda x: f"{100 * x:.0f} %", 1.0)
    span = summary["each"].mean_return - summary["random"].mean_return
    return [success, measure("return", lambda x: f"{x:.4g}", span)] if span > 0 else [success]


def judge(summary: Mapping[str, Summary]) -> Verdict:
    """Whether robustness can pay, by success rates and, where they tell nothing, by returns.

    One policy is better than another if it is so by `WORST_CELL` in its worst cell or by `ON_AVERAGE`. Differences of
    returns count relative to the range from random play to a policy for each model, both averaged over the cells. For
    robustness to pay, a robust policy must be better than the nominal one, and so must a policy for each model:
    otherwise it is not the wrong model that the nominal policy suffers from.

    Args:
      summary: the scores of each policy.
    """
    found = measures(summary)
    robust = [(by, max(_ROBUST, key=lambda policy: sum(by.gain(policy, "nominal")))) for by in found]
    for by, best in robust:
        if by.better(best, "nominal") and by.better("each", "nominal"):
            return Verdict("robustness", f"Robust training can pay here. {by.compared(best)}.{_remarks(by, best)}")
    for by in found:
        if by.better("each", "nominal"):
            told = f"Robust training can not pay here, but knowing the model would. {by.compared('each')}."
            if by.better("mean", "nominal"):
                return Verdict("adaptation", f"{told} Of the policies for all models only mean is better than nominal.")
            return Verdict("adaptation", f"{told} No one policy does.")
    for by, best in robust:
        if by.better(best, "nominal"):
            return Verdict(
                "margin",
                f"Inconclusive. {by.compared(best)}. But a policy made for each model, each, does no better than"
                " nominal, so that a wrong model is not what costs. The gain may come from keeping away from the edge,"
                " where random actions and the grid's error do harm: compare with epsilon 0 and with a finer grid.",
            )
    return Verdict(
        "none",
        "Robust training can not pay here. The nominal policy does as well as one made for each model, so that this"
        " environment can't tell robust agents from others.",
    )


def _remarks(by: Measure, best: str) -> str:
    """What else is to be known of a robust policy that pays."""
    if by.better(best, "mean"):
        said = " The policy mean does worse: random models in training are not enough."
    else:
        said = " The policy mean does as well: random models in training may be enough."
    if by.better(best, "each"):
        said += (
            " Even the policy each does worse, so part of the gain is a margin for random actions and for the grid's"
            " error: compare with epsilon 0 and with a finer grid."
        )
    return said
