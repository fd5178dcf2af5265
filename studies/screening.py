"""Which environments separate robust agents from others: exact or best-known policies on every built-in one.

An environment with a grid of states is solved by `deeprok.screen`. The deep sea and the pendulum get a grid here, the
latter with a few torques to choose from. Those of four coordinates are searched, see `searched`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import deeprok
from deeprok.environments import ENVIRONMENTS, Axis, Choices, Environment, Outcome, StateGrid
from deeprok.evaluation.screening.screen import model_axes, named_environment, screen
from studies import screening_figure, screening_page
from studies.engine import Done, Found, Options, Session, Study, numbers_file, write_json
from studies.searched import Family, linear, pumping, screen_by_search

EPSILONS = (0.05, 0.0)
_SEED = 0
_CVAR = 0.25  # of the models, as in `deeprok screen`
_TORQUES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of the pendulum, as shares of the largest
#: Models, where they are not 5 values of each parameter.
_GRIDS = {"road": "friction=0.3:1:6,drag=0:0.004:3"}

# How long a screening takes, in seconds on one core. Only the ratios count, for the time left.
_WORK = {"ferry": 8.0, "deep_sea": 8.0, "cartpole": 30.0, "hard_cartpole": 80.0, "acrobot": 150.0, "pendulum": 120.0}
_USUAL_WORK = 60.0


class Case(NamedTuple):
    """An environment and how its policies are found."""

    env: Environment
    axes: Mapping[str, np.ndarray]  # of the grid of models
    family: Family | None = None  # to search in; None: solved on its grid of states
    command: bool = True  # whether `deeprok screen` does the same


def case_of(name: str) -> Case:
    """How a built-in environment is screened."""
    env = named_environment(name)
    case = Case(env, model_axes(env, _GRIDS.get(name), None))
    if name in _SEARCHED:
        return case._replace(family=_SEARCHED[name](env), command=False)
    if name in _GIVEN_A_GRID:
        return case._replace(env=_GIVEN_A_GRID[name](env), command=False)
    return case


def _with_cells(env: Environment) -> Environment:
    """The deep sea with the grid of its cells."""
    rows = env.horizon
    return env._replace(
        grid=StateGrid(
            axes=(Axis("row", 0, rows - 1, rows), Axis("column", 0, rows - 1, rows)),
            to_state=lambda coordinates: jnp.round(coordinates).astype(jnp.int32),
            from_state=lambda cell: cell.astype(float),
        )
    )


def _with_torques(env: Environment) -> Environment:
    """The pendulum with some torques to choose from."""

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        return env.step(key, state, jnp.array(_TORQUES)[action][None], params)

    return env._replace(
        step=step,
        actions=Choices(tuple(f"{torque:g}" for torque in _TORQUES)),
        grid=named_environment("swing_up").grid,  # the same rod
    )


_SEARCHED: dict[str, Callable[[Environment], Family]] = {
    "acrobot": pumping,
    "cartpole": linear,
    "hard_cartpole": linear,
}
_GIVEN_A_GRID = {"deep_sea": _with_cells, "pendulum": _with_torques}


def settings_of(case: Case, episodes: int, epsilon: float) -> dict[str, Any]:
    """What a screening is made with; one that is stored with other settings is made again."""
    env = case.env
    return {
        "episodes": episodes,
        "epsilon": epsilon,
        "seed": _SEED,
        "cvar": _CVAR,
        "models": {name: np.asarray(values, float).tolist() for name, values in case.axes.items()},
        "nominal": {f.name: float(getattr(env.nominal, f.name)) for f in dataclasses.fields(env.nominal)},
        "actions": len(env.actions),
        "horizon": env.horizon,
        "success_return": env.success_return,
        "states": {axis.name: axis.points for axis in env.grid.axes} if env.grid else {},
        "method": "search" if case.family else "grid",
    }


def command_of(name: str, case: Case, episodes: int, epsilon: float) -> str:
    """The command that gives the same screening, of those that `deeprok screen` can do."""
    if not case.command:
        return STUDY_COMMAND
    grid = f" --grid {_GRIDS[name]}" if name in _GRIDS else ""
    return f"deeprok screen {name}{grid} --episodes {episodes} --epsilon {epsilon:g}"


STUDY_COMMAND = "deeprok reproduce --study environments"


def screen_case(case: Case, episodes: int, epsilon: float, advance: Callable[[float], None]) -> dict[str, Any]:
    """The screening of one environment, as the JSON file holds it."""
    given: dict[str, Any] = {"cvar": _CVAR, "episodes": episodes, "epsilon": epsilon, "seed": _SEED}
    if case.family:
        return screen_by_search(case.env, case.family, case.axes, advance=advance, **given).to_dict()
    return screen(case.env, grid=case.axes, advance=advance, **given).to_dict()


def screen_all(path: Path, cases: Mapping[str, Case], episodes: int, done: Done) -> Found:
    """Screens every environment with and without random actions, and stores each as soon as it is finished.

    Args:
      path: the JSON file; what it holds, of the same settings, is not done again.
      cases: name -> how it is screened.
      episodes: episodes in each cell.
      done: called with what is being done and how much of the work it was.

    Returns:
      What the file holds in the end.
    """
    stored = json.loads(path.read_text())["environments"] if path.exists() else {}
    found: Found = {"format": 1, "command": STUDY_COMMAND, "epsilons": list(EPSILONS)}
    found["environments"] = {name: stored.get(name, {}) for name in cases}
    for name, case in cases.items():
        its = found["environments"][name]
        for epsilon in EPSILONS:
            settings = settings_of(case, episodes, epsilon)
            advance = functools.partial(_advance, done, f"screening {name}, ε {epsilon:g}", _work_of(name))
            if its.get(f"{epsilon:g}", {}).get("settings") == settings:
                advance(1.0)
                continue
            advance(0.0)
            about = {"deeprok": deeprok.__version__, "command": command_of(name, case, episodes, epsilon)}
            its[f"{epsilon:g}"] = {**about, "settings": settings, **screen_case(case, episodes, epsilon, advance)}
            write_json(path, found)
    write_json(path, found)
    return found


def _advance(done: Done, what: str, work: float, part: float) -> None:
    done(what, work * part)


def _work_of(name: str) -> float:
    return _WORK.get(name, _USUAL_WORK)


def cells_episodes(episodes: int) -> int:
    """Episodes in each cell, of those that a study was asked for."""
    return max(1, 2 * episodes // 5)


def _collect(session: Session) -> Found:
    path = numbers_file(STUDY, session.options.out / "report")
    cases = {name: case_of(name) for name in ENVIRONMENTS}
    return screen_all(path, cases, cells_episodes(session.options.episodes), session.done)


def _work(_: Options) -> float:
    return len(EPSILONS) * sum(map(_work_of, ENVIRONMENTS))


STUDY = Study(
    "environments",
    "which environments separate robust agents from others",
    compare=lambda _: [],
    collect=_collect,
    page=screening_page.environments_page,
    figures=screening_figure.of_environments,
    tables=screening_page.short_tables,
    more_work=_work,
)
