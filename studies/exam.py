"""What a policy is asked: the paper's grid, pole lengths, environments beyond the box, and how fast it learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.files import read_numbers
from deeprok.environments import Environment, cartpole, with_model
from deeprok.environments.wrappers import with_delay, with_parameter_noise, with_sensor_noise
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import PolicyOf
from deeprok.uncertainty.models import parse_grid, parse_values

#: Figures (a) to (c): pole length at the nominal cart mass.
LENGTHS = "pole_length=0.2:1.4:13"

#: The paper\'s grid.
PAPER_GRID = "pole_length=0.2:1.4:7,cart_mass=0.1:7:7"

EPSILON = 0.1


class Condition(NamedTuple):
    """An environment beyond those that agents are trained on."""

    what: str
    grid: str = PAPER_GRID
    change: Callable[[Environment], Environment] = lambda env: env


def _parameters(text: str) -> Callable[[Environment], Environment]:
    def change(env: Environment) -> Environment:
        values: Any = parse_values(text, env.nominal, "condition")
        return env._replace(nominal=with_model(env.nominal, values))

    return change


CONDITIONS: dict[str, Condition] = {
    "between": Condition("in the box, between the grid's cells", "pole_length=0.25:1.25:7,cart_mass=0.6:6.2:7"),
    "outside": Condition("outside the box: 1.5 – 2.1 m, 7.5 – 10.5 kg", "pole_length=1.5:2.1:7,cart_mass=7.5:10.5:7"),
    "light_pole": Condition("pole of 0.02 kg (trained: 0.1)", change=_parameters("pole_mass=0.02")),
    "heavy_pole": Condition("pole of 0.5 kg", change=_parameters("pole_mass=0.5")),
    "weak_gravity": Condition("gravity 4.9 m/s² (trained: 9.8)", change=_parameters("gravity=4.9")),
    "strong_gravity": Condition("gravity 14.7 m/s²", change=_parameters("gravity=14.7")),
    "force_noise": Condition("force noise, 30 %", change=lambda env: with_parameter_noise(env, "force", 0.3)),
    "sensor_noise": Condition(
        "sensor noise: 0.12 m, 0.1 m/s, 0.01 rad, 0.1 rad/s", change=lambda env: with_sensor_noise(env, 0.05)
    ),
    "delay": Condition("actions one step late", change=with_delay),
}


class Exam(NamedTuple):
    """How long each question is asked; 0 leaves it out."""

    grid: int  # episodes in each cell of the grid
    lengths: int = 0  # episodes for each pole length
    beyond: int = 0  # episodes in each cell of each condition
    curve: int = 0  # episodes in each cell for each snapshot


#: What an exam gives, as it is written to JSON.
Scores = dict[str, Any]


class Snapshots(NamedTuple):
    """Weights along a run."""

    episodes: list[int]
    weights: Any  # a first axis of snapshots


def make_examiner(env: Environment, policy_of: PolicyOf, exam: Exam) -> Callable[..., Scores]:
    """Makes a function that examines weights, compiled once for all of them.

    Args:
      env: the environment.
      policy_of: what weights do.
      exam: what is asked.

    Returns:
      `examine(weights, snapshots=None, epsilon=EPSILON) -> scores`, with `epsilon` the probability
      of a random action.
    """
    # Other parameters alone need no other program: environments that step alike share one.
    players: dict[tuple[Any, int], Callable[..., np.ndarray]] = {}
    beyond = {name: condition.change(env) for name, condition in CONDITIONS.items()}
    shape = [len(values) for values in parse_grid(PAPER_GRID, env.nominal).values()]

    def play(
        weights: Any, epsilon: float, episodes: int, grid: str = PAPER_GRID, where: Environment = env
    ) -> np.ndarray:
        if (where.step, episodes) not in players:
            players[where.step, episodes] = cell_player(where, policy_of, episodes)
        return players[where.step, episodes](weights, grid_cells(where, parse_grid(grid, where.nominal)), epsilon)

    def success(returns: np.ndarray) -> np.ndarray:
        return returns > env.success_return

    def examine(weights: Any, snapshots: Snapshots | None = None, epsilon: float = EPSILON) -> Scores:
        returns = play(weights, epsilon, exam.grid)
        cells, nominal = returns[:-1], returns[-1]
        scores: Scores = {
            "success": float(success(cells).mean()),
            "success_error": _standard_error(success(cells)),
            "return": float(cells.mean()),
            "return_error": _standard_error(cells),
            "nominal_success": float(success(nominal).mean()),
            "nominal_return": float(nominal.mean()),
            "cell_success": success(cells).mean(axis=1).reshape(shape).tolist(),
            "cell_return": cells.mean(axis=1).reshape(shape).tolist(),
        }
        if exam.lengths:
            returns = play(weights, epsilon, exam.lengths, LENGTHS)[:-1]
            scores["length_return"] = returns.mean(axis=1).tolist()
            scores["length_deviation"] = returns.std(axis=1).tolist()
        if exam.beyond:
            scores["beyond"] = {}
            for name, condition in CONDITIONS.items():
                returns = play(weights, epsilon, exam.beyond, condition.grid, beyond[name])[:-1]
                scores["beyond"][name] = {"success": float(success(returns).mean()), "return": float(returns.mean())}
        if exam.curve and snapshots:
            curve = [play(row, epsilon, exam.curve)[:-1] for row in snapshots.weights]
            scores["curve"] = {
                "episodes": snapshots.episodes,
                "return": [float(returns.mean()) for returns in curve],
                "success": [float(success(returns).mean()) for returns in curve],
            }
        return scores

    return examine


def _standard_error(cells: np.ndarray) -> float:
    """Of the mean over all episodes [cells, episodes] of one policy; cells are strata."""
    return float(np.sqrt(cells.var(axis=1).sum() / cells.shape[1]) / len(cells))


def read_scores(path: Path, exam: Exam, snapshots: int = 0, **more: tuple[int, ...]) -> Scores:
    """Reads what an exam gave.

    Args:
      path: the JSON file it was written to.
      exam: what was asked.
      snapshots: how many weights along the run were asked too, for its curve.
      more: shapes of other numbers that the file holds beside them.
    """
    env = cartpole()
    grid = tuple(len(values) for values in parse_grid(PAPER_GRID, env.nominal).values())
    lengths = len(parse_grid(LENGTHS, env.nominal)["pole_length"])
    means = ("success", "success_error", "return", "return_error", "nominal_success", "nominal_return")
    shapes: dict[str, Any] = {
        **dict.fromkeys(means, ()),
        **dict.fromkeys(("cell_success", "cell_return"), grid),
        **more,
    }
    if exam.lengths:
        shapes |= dict.fromkeys(("length_return", "length_deviation"), (lengths,))
    if exam.beyond:
        shapes["beyond"] = {name: {"success": (), "return": ()} for name in CONDITIONS}
    if exam.curve and snapshots:
        shapes["curve"] = dict.fromkeys(("episodes", "return", "success"), (snapshots,))
    return read_numbers(path, shapes)
