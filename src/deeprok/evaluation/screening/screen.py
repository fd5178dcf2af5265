"""Screening an environment: nearly exact policies, played in the environment itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments import Axis, Environment, Outcome, StateGrid, with_model
from deeprok.environments.base import in_jax
from deeprok.environments.registry import usual_environment
from deeprok.evaluation.play import cell_player, grid_cells
from deeprok.evaluation.policies import Policy
from deeprok.evaluation.result import parameters_of
from deeprok.evaluation.screening.discretise import Table, checked_grid, corners, tabulate
from deeprok.evaluation.screening.planning import plan
from deeprok.evaluation.screening.result import POLICIES, Screening
from deeprok.uncertainty.models import box_text, parse_box, read_grid

Advance = Callable[[float], None]

_VALUES = 5  # of each parameter of the box
_MOST_CELLS = 10_000
#: The parts of the work, as the progress counts them.
_TABULATING, _PLANNING, _PLAYING = 0.2, 0.6, 0.2


def screen(
    env: str | Environment,
    grid: str | Mapping[str, Any] | None = None,
    box: str | Mapping[str, Sequence[float]] | None = None,
    discount: float = 0.99,
    cvar: float = 0.25,
    episodes: int = 200,
    epsilon: float = 0.05,
    draws: int = 32,
    seed: int = 0,
    advance: Advance | None = None,
) -> Screening:
    """Tells, before anything is trained, whether robustness can pay in an environment.

    The environment is solved by dynamic programming on its grid of states (`Environment.grid`), under every model of a
    grid of parameters. The policies differ by what they are made for: `each` for the model that it is played on, which
    is the ceiling but for random actions and the grid's error; `nominal` for the nominal model; `mean`, `cvar` and
    `worst_case` for all models, of which every step takes the mean, the mean of the worst ones, or the worst; `random`
    for none. All are then played in the environment itself, on every model, with the same random numbers. They are
    greedy on their Q-values, interpolated between grid states.

    Args:
      env: an environment, its name, or `module:object`.
      grid: models, as {"name": values} or as text, name=low:high:count,…; both edges are included. By default 5 values
        of each parameter of the box.
      box: ranges to take instead of the environment's own, as {"name": (low, high)} or as text, name=low:high,…
      discount: γ, at least 0 and below 1.
      cvar: fraction of the models that `cvar` is made for.
      episodes: episodes in each cell.
      epsilon: probability of a random action.
      draws: random keys that an environment with noise is averaged over; without noise it needs one.
      seed: seed of all random numbers.
      advance: called with the fraction of the work done since its last call.

    Example:
      >>> found = deeprok.screen("ferry", episodes=500)
      >>> print(found.verdict.sentence)
      >>> found.summary()["worst_case"].worst_success
    """
    _check(discount, cvar, episodes, epsilon, draws, seed)
    env = env if isinstance(env, Environment) else named_environment(env)
    states = checked_grid(env)
    axes = model_axes(env, grid, box)
    cells = grid_cells(env, axes)  # the last one is the nominal model
    count = len(next(iter(cells.values()))) - 1
    if count > _MOST_CELLS:
        raise DeeprokError(f"grid has {count:,} models; a screening takes at most {_MOST_CELLS:,}, give fewer values")
    report = advance or (lambda part: None)
    table = tabulate(env, cells, draws, seed, lambda part: report(_TABULATING * part))
    found = _plan_all(table, discount, cvar, lambda part: report(_PLANNING * part))
    returns = _play_all(env, states, found, cells, episodes, epsilon, seed, lambda part: report(_PLAYING * part))
    shape = (len(POLICIES), *(len(values) for values in axes.values()))
    units = parameters_of(env)
    return Screening(
        env=env.name,
        grid={name: np.asarray(values, float) for name, values in axes.items()},
        states={axis.name: axis.points for axis in states.axes},
        policies=tuple(POLICIES),
        success=(returns > env.success_return).mean(axis=2).reshape(shape),
        mean_return=returns.mean(axis=2).reshape(shape),
        start_values=_start_values(env, states, found, episodes, seed),
        discount=discount,
        cvar=cvar,
        episodes=episodes,
        epsilon=epsilon,
        draws=draws,
        seed=seed,
        parameters={name: units[name] for name in axes},
    )


def _check(discount: float, cvar: float, episodes: int, epsilon: float, draws: int, seed: int) -> None:
    for name, value in (("episodes", episodes), ("draws", draws)):
        if value < 1:
            raise DeeprokError(f"{name} is {value}; it must be at least 1")
    if not 0 <= discount < 1:
        raise DeeprokError(f"discount is {discount:g}; it must be at least 0 and below 1")
    if not 0 < cvar <= 1:
        raise DeeprokError(f"cvar is {cvar:g}; it must be a fraction above 0 and at most 1")
    if not 0 <= epsilon <= 1:
        raise DeeprokError(f"epsilon is {epsilon:g}; it must be a probability between 0 and 1")
    if not 0 <= seed < 2**32:
        raise DeeprokError(f"seed is {seed}; it must be from 0 to 4294967295")


def named_environment(name: str) -> Environment:
    """The environment of that name, or `module:object`, with its default settings."""
    return in_jax(usual_environment(name), "screening")


def model_axes(
    env: Environment, grid: str | Mapping[str, Any] | None, box: str | Mapping[str, Sequence[float]] | None
) -> dict[str, np.ndarray]:
    """The values of each parameter that a screening varies; arguments as in `screen`."""
    if grid is not None:
        if box is not None:
            raise DeeprokError("both grid and box are given; the grid has its own ranges, so give one of them")
        return read_grid(grid, env.nominal)
    ranges = env.box if box is None else parse_box(box_text(box), env.nominal)
    if not ranges:
        raise DeeprokError(f"{env.name} has no box of uncertain parameters; give a box or a grid")
    return {name: np.linspace(low, high, _VALUES) for name, (low, high) in ranges.items()}


def _plan_all(table: Table, discount: float, cvar: float, advance: Advance) -> dict[str, np.ndarray]:
    """The Q-values [S, A] of each policy but random; [M, S, A] of `each`.

    Args:
      table: of the M cells and, last, the nominal model.
      discount: γ.
      cvar: the fraction of the cells.
      advance: called with the fraction of the work done since its last call.
    """
    cells = Table(table.transition[:-1], table.reward[:-1])
    count = len(cells.transition)

    def solved(of: Table, level: float, work: float) -> np.ndarray:
        return plan(of, discount, level, advance=lambda part: advance(work * part))

    whole = 1 / 4  # `each` and `nominal` together take about as long as one of the others
    each = [solved(table.of_model(i), 1.0, whole / (count + 1)) for i in range(count + 1)]
    levels = {"mean": 1.0, "cvar": cvar, "worst_case": 1 / count}
    return {"each": np.stack(each[:-1]), "nominal": each[-1]} | {
        policy: solved(cells, level, whole) for policy, level in levels.items()
    }


def _play_all(
    env: Environment,
    grid: StateGrid,
    q: Mapping[str, np.ndarray],
    cells: Mapping[str, np.ndarray],
    episodes: int,
    epsilon: float,
    seed: int,
    advance: Advance,
) -> np.ndarray:
    """[P, M, episodes] the returns of each policy in each cell.

    Args:
      env: the environment.
      grid: the grid of its states.
      q: the Q-values of each policy.
      cells: the M cells and, last, the nominal model, which is not played.
      episodes: episodes in each cell.
      epsilon: probability of a random action.
      seed: seed of the random numbers, the same for all policies and cells.
      advance: called with the fraction of the work done since its last call.
    """
    play = cell_player(_seen_by_coordinates(env, grid), lambda weights, params: _greedy(grid.axes, weights), episodes)
    count = len(q["each"])
    returns = np.zeros((len(POLICIES), count, episodes))
    for i, policy in enumerate(POLICIES):
        chance = 1.0 if policy == "random" else epsilon
        values = q[policy if policy in q else "nominal"]
        # By how much each action is worse than the best: single precision has digits enough for that.
        regret = jnp.asarray(values - values.max(axis=-1, keepdims=True), jnp.float32)
        for m in range(count):
            model = {name: column[m : m + 1] for name, column in cells.items()}
            returns[i, m] = play(regret[m] if policy == "each" else regret, model, chance, seed)[0]
            advance(1 / returns[..., 0].size)
    return returns


def _seen_by_coordinates(env: Environment, grid: StateGrid) -> Environment:
    """The same environment, observed by the coordinates of its state."""

    def coordinates(state: Any) -> jax.Array:
        return jnp.asarray(grid.from_state(state), float)

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        state, _ = env.reset(key, params)
        return state, coordinates(state)

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        outcome = env.step(key, state, action, params)
        return Outcome(outcome.state, coordinates(outcome.state), outcome.reward, outcome.terminated)

    return env._replace(reset=reset, step=step)


def _greedy(axes: Sequence[Axis], q: jax.Array) -> Policy:
    """The best action by Q-values [S, A] on a grid, interpolated."""

    def choose(coordinates: jax.Array) -> jax.Array:
        index, weight = corners(axes, coordinates)
        return jnp.argmax(weight @ q[index])

    return jax.vmap(choose)


def _start_values(
    env: Environment, grid: StateGrid, q: Mapping[str, np.ndarray], episodes: int, seed: int
) -> dict[str, float]:
    """The mean value in the start states of the nominal model; of `each` the mean over the cells, too."""

    @jax.jit
    def begin() -> tuple[jax.Array, jax.Array]:
        params = with_model(env.nominal, {})
        keys = jax.random.split(jax.random.key(seed), episodes)
        starts, _ = jax.vmap(env.reset, (0, None))(keys, params)
        return jax.vmap(lambda state: corners(grid.axes, jnp.asarray(grid.from_state(state), float)))(starts)

    with jax.enable_x64(True):
        index, weight = map(np.asarray, begin())
    return {
        policy: float(np.mean(np.sum(weight * values.max(axis=-1)[..., index], axis=-1)))
        for policy, values in q.items()
    }
