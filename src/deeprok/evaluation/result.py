"""The result of an evaluation: success and return of a policy on a grid of parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deeprok import plot as figures
from deeprok.core.errors import DeeprokError
from deeprok.core.files import has_shapes
from deeprok.core.frames import make_frame
from deeprok.environments.base import AnyEnvironment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Score:
    """Mean return and success rate over some episodes."""

    mean_return: float
    success: float


@dataclass(frozen=True)
class Parameter:
    """A parameter of the environment, as figures need it."""

    unit: str
    nominal: float


@dataclass(frozen=True, eq=False)
class SeedScores:
    """The scores of one run. Arrays have an axis for each parameter of the grid, in its order."""

    seed: int
    mean_return: np.ndarray
    std_return: np.ndarray
    success: np.ndarray
    overall: Score
    nominal: Score
    weights: str = ""
    """Short hash of the mean weights of the run that played; empty in files of older versions."""


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Where a policy works: its scores in each cell of a grid, pooled over all seeds.

    Arrays have an axis for each parameter of the grid, in its order: `success[i, j]` is the success rate at the i-th
    value of the first parameter and the j-th value of the second.

    Example:
      >>> result = deeprok.evaluate("runs/rok", grid={"pole_length": [0.2, 0.8, 1.4], "cart_mass": [1.0, 7.0]})
      >>> result.success.shape
      (3, 2)
      >>> result.plot().savefig("map.png")
      >>> frame = result.to_frame()  # a row for each cell
    """

    algorithm: str
    grid: dict[str, np.ndarray]
    """Name of each parameter -> its values."""
    episodes: int
    """Episodes in each cell, for each seed (and for each member of an ensemble that is tested alone)."""
    epsilon: float
    """Probability of a random action."""
    policy: str
    members: int
    kappa: float
    """κ of the policy lcb, which acts on Q − κσ; 0 for the others."""
    keep: str
    mean_return: np.ndarray
    std_return: np.ndarray
    success: np.ndarray
    success_low: np.ndarray
    """Lower end of the 95 % Wilson interval of each cell's success rate, over all its episodes."""
    success_high: np.ndarray
    overall: Score
    """Over the whole grid."""
    nominal: Score
    """At the nominal parameters."""
    per_seed: list[SeedScores]
    file: str = ""
    """Name of the file that stores it in the folder of each run, if it is saved."""
    name: str = ""
    """The name that it was given, if it was."""
    seed: int | None = None
    """Seed of its random numbers; None in files of older versions."""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """Unit and nominal value of each parameter of the grid; empty in files of older versions."""
    disturbances: dict[str, Any] = field(default_factory=dict)
    """What disturbed the environment of the test, of `sensor_noise`, `action_delay` and `parameter_noise`."""
    failed: np.ndarray | None = None
    """Episodes in each cell, of all seeds, that ended because the simulation failed; None unless in a simulator."""

    def __repr__(self) -> str:
        cells = " × ".join(f"{len(values)} {name}" for name, values in self.grid.items())
        seeds = "1 seed" if len(self.per_seed) == 1 else f"{len(self.per_seed)} seeds"
        overall, nominal = (f"{100 * score.success:.1f} %" for score in (self.overall, self.nominal))
        return (
            f"<Evaluation of {self.algorithm}, {seeds}, on {cells}, {self.episodes} episodes a cell: success {overall},"
            f" at the nominal model {nominal}; arrays mean_return, std_return, success, success_low, success_high>"
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that `deeprok evaluate --json` prints: arrays are nested lists."""
        plain: dict[str, Any] = _as_lists(dataclasses.asdict(self))
        if self.failed is None:
            del plain["failed"]
        return plain

    @classmethod
    def from_dict(cls, content: Any, origin: str = "the evaluation") -> Evaluation:
        """The evaluation that `to_dict` made this of.

        Args:
          content: the object, as read from JSON.
          origin: where it comes from, for messages.
        """
        if not _is_evaluation(content):
            raise DeeprokError(f"{origin} is damaged: it does not hold an evaluation; remove it, and evaluate again")
        known = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in content.items() if name in known}
        values["grid"] = {name: np.array(axis, float) for name, axis in values["grid"].items()}
        for name in _CELLS:
            values[name] = np.array(values[name], float)
        if "failed" in values:
            values["failed"] = np.array(values["failed"], int)
        for name in ("overall", "nominal"):
            values[name] = Score(**values[name])
        values["per_seed"] = [
            SeedScores(
                seed=one["seed"],
                mean_return=np.array(one["mean_return"], float),
                std_return=np.array(one["std_return"], float),
                success=np.array(one["success"], float),
                overall=Score(**one["overall"]),
                nominal=Score(**one["nominal"]),
                weights=one.get("weights", ""),
            )
            for one in values["per_seed"]
        ]
        values["parameters"] = {n: Parameter(**parameter) for n, parameter in values.get("parameters", {}).items()}
        return cls(**values)

    def to_frame(self) -> Any:
        """A pandas `DataFrame` with a row for each cell: the parameters' values, then the scores.

        Needs the extra `frame`: in a clone, pip install -c constraints.txt '.[frame]'.
        """
        return make_frame(self.columns())

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of `to_frame`: arrays with an entry for each cell, the last parameter varying fastest."""
        values = np.meshgrid(*self.grid.values(), indexing="ij")
        return {name: np.ravel(value) for name, value in zip(self.grid, values, strict=True)} | {
            name: np.ravel(getattr(self, name)) for name in (*_CELLS, *_own_cells(self.failed))
        }

    def plot(self) -> Figure:
        """A map of success rates over two parameters, or the returns along one, as a matplotlib figure."""
        return figures.return_curve(self) if len(self.grid) == 1 else figures.success_map(self)


_SEED_CELLS = ("mean_return", "std_return", "success")
_CELLS = (*_SEED_CELLS, "success_low", "success_high")


def _own_cells(failed: Any) -> tuple[str, ...]:
    """Those that only evaluations in simulators have."""
    return () if failed is None else ("failed",)


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_lists(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_lists(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def _is_evaluation(content: Any) -> bool:
    """Whether JSON is what `Evaluation.to_dict` gives, of this version or an older one."""
    if not isinstance(content, dict) or not isinstance(content.get("grid"), dict) or not content["grid"]:
        return False
    if not all(has_shapes(content["grid"], {name: (None,)}) for name in content["grid"]):
        return False
    shape = tuple(len(axis) for axis in content["grid"].values())
    scores = {name: {"mean_return": (), "success": ()} for name in ("overall", "nominal")}
    numbers: dict[str, Any] = dict.fromkeys(("episodes", "epsilon", "members", "kappa"), ())
    seeds, parameters = content.get("per_seed"), content.get("parameters", {})
    return (
        has_shapes(
            content,
            {**dict.fromkeys((*_CELLS, *_own_cells(content.get("failed"))), shape), **scores, **numbers},
        )
        and all(isinstance(content.get(name), str) for name in ("algorithm", "policy", "keep", "file"))
        and isinstance(content.get("name", ""), str)
        and isinstance(content.get("seed"), int | None)
        and isinstance(seeds, list)
        and len(seeds) > 0
        and all(has_shapes(one, {**dict.fromkeys(_SEED_CELLS, shape), **scores, "seed": ()}) for one in seeds)
        and all(isinstance(one.get("weights", ""), str) for one in seeds)
        and content["episodes"] >= 1
        and all(_are_shares(one["success"]) for each in (content, *seeds) for one in (each, *_both(each)))
        and all(_have_squares(one[name]) for one in (content, *seeds) for name in ("mean_return", "std_return"))
        and isinstance(parameters, dict)
        and isinstance(content.get("disturbances", {}), dict)
        and all(has_shapes(one, {"nominal": ()}) and set(one) == {"unit", "nominal"} for one in parameters.values())
        and all(set(one) == {"mean_return", "success"} for each in (content, *seeds) for one in _both(each))
    )


def _are_shares(numbers: Any) -> bool:
    return bool(np.all((np.asarray(numbers, float) >= 0.0) & (np.asarray(numbers, float) <= 1.0)))


def _have_squares(numbers: Any) -> bool:
    """Whether variances can be computed with them."""
    return bool(np.all(np.abs(np.asarray(numbers, float)) < 1e150))


def _both(content: Mapping[str, Any]) -> tuple[Any, Any]:
    return content["overall"], content["nominal"]


def wilson(successes: np.ndarray, trials: int, z: float = 1.959963984540054) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval for a success rate, 95 % by default."""
    p = successes / trials
    centre = (p + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * np.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    # Of none and of all the ends are exact; the formula has them up to rounding.
    low, high = np.where(successes == 0, 0.0, centre - half), np.where(successes == trials, 1.0, centre + half)
    return np.clip(low, 0, 1), np.clip(high, 0, 1)


class GridReturns(NamedTuple):
    """Returns of one run on the models of `grid_cells`."""

    cells: np.ndarray  # [cells, episodes]
    nominal: np.ndarray  # [episodes], at the nominal parameters
    failed: np.ndarray | None = None  # [cells] episodes that ended because the simulation failed
    weights: str = ""  # short hash of the mean weights


def summarise(
    algorithm: str,
    env: AnyEnvironment,
    axes: Mapping[str, np.ndarray],
    returns: Mapping[int, GridReturns],
    epsilon: float,
    policy: str,
    members: int,
    kappa: float,
    keep: str,
    file: str = "",
    disturbances: Mapping[str, Any] = {},
    name: str = "",
    luck: int | None = None,
) -> Evaluation:
    """Makes an `Evaluation` of the returns of several seeds.

    Args:
      algorithm: name of the algorithm.
      env: the environment, which says what a success is.
      axes: the grid.
      returns: seed -> its returns.
      epsilon: probability of a random action.
      policy: how the weights acted.
      members: size of the ensemble.
      kappa: κ of the policy `lcb`.
      keep: whether the weights were the `best` or the `last`.
      file: name of the file that stores it.
      disturbances: what may have disturbed the environment, by the names of the settings.
      name: the name that it was given.
      luck: seed of its random numbers.
    """
    shape = tuple(len(values) for values in axes.values())

    def score(values: np.ndarray) -> Score:
        return Score(float(values.mean()), float((values > env.success_return).mean()))

    per_seed = [
        SeedScores(
            seed=seed,
            mean_return=played.cells.mean(axis=1).reshape(shape),
            std_return=played.cells.std(axis=1).reshape(shape),
            success=(played.cells > env.success_return).mean(axis=1).reshape(shape),
            overall=score(played.cells),
            nominal=score(played.nominal),
            weights=played.weights,
        )
        for seed, played in returns.items()
    ]
    count = next(iter(returns.values())).cells.shape[1]
    alone = members if policy == "sample" else 1
    units = parameters_of(env)
    return Evaluation(
        algorithm=algorithm,
        grid={parameter: np.asarray(values, float) for parameter, values in axes.items()},
        episodes=count // alone,
        epsilon=epsilon,
        policy=policy,
        members=members,
        kappa=kappa,
        keep=keep,
        per_seed=per_seed,
        file=file,
        name=name,
        seed=luck,
        parameters={each: units[each] for each in axes},
        disturbances={each: value for each, value in disturbances.items() if value},
        failed=_sum([None if played.failed is None else played.failed.reshape(shape) for played in returns.values()]),
        **_pooled(per_seed, count),
    )


#: What the seeds of an evaluation have in common, beside the grid.
_OPTIONS = ("file", "episodes", "epsilon", "policy", "members", "kappa", "keep", "seed", "disturbances")


def merge(evaluations: Sequence[Evaluation]) -> Evaluation:
    """One evaluation of several seeds, from those of each on the same grid with the same options."""
    first = evaluations[0]
    for other in evaluations:
        if not same_axes(first.grid, other.grid) or any(
            getattr(other, option) != getattr(first, option) for option in _OPTIONS
        ):
            raise DeeprokError("the seeds were evaluated with different options; evaluate them again, together")
    per_seed = [one for evaluation in evaluations for one in evaluation.per_seed]
    each = first.episodes * (first.members if first.policy == "sample" else 1)
    failed = _sum([evaluation.failed for evaluation in evaluations])
    return dataclasses.replace(first, per_seed=per_seed, failed=failed, **_pooled(per_seed, each))


def _sum(counts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The counts of all seeds; None if one has none, as in files of older versions."""
    known = [count for count in counts if count is not None]
    return np.sum(known, axis=0) if len(known) == len(counts) else None


def _pooled(seeds: Sequence[SeedScores], episodes: int) -> dict[str, Any]:
    """The scores of all seeds' episodes together; each seed has played as many."""

    def mean(name: str) -> np.ndarray:
        return np.mean([getattr(one, name) for one in seeds], axis=0)

    def score(name: str) -> Score:
        of = [getattr(one, name) for one in seeds]
        return Score(float(np.mean([x.mean_return for x in of])), float(np.mean([x.success for x in of])))

    # The variance of all episodes: the mean variance within a seed, and that of the seeds' means.
    within = np.mean([one.std_return**2 for one in seeds], axis=0)
    between = np.var([one.mean_return for one in seeds], axis=0)
    success = mean("success")
    low, high = wilson(success * len(seeds) * episodes, len(seeds) * episodes)
    return {
        "mean_return": mean("mean_return"),
        "std_return": np.sqrt(within + between),
        "success": success,
        "success_low": low,
        "success_high": high,
        "overall": score("overall"),
        "nominal": score("nominal"),
    }


def parameters_of(env: AnyEnvironment) -> dict[str, Parameter]:
    """Unit and nominal value of each parameter of an environment."""
    fields = dataclasses.fields(env.nominal)
    return {f.name: Parameter(f.metadata["unit"], float(getattr(env.nominal, f.name))) for f in fields}


def default_axes(box: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The grid that covers a box: 7 values of each parameter."""
    return {name: np.linspace(low, high, 7) for name, (low, high) in box.items()}


def same_axes(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    """Whether two grids have the same parameters, in the same order, with the same values."""
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)
