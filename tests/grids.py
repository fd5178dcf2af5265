"""Environments solved on their grids of states: values interpolated between points, in numpy and double precision."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from deeprok.environments import Environment, Outcome, with_model
from deeprok.environments.base import StateGrid

#: Names of parameters -> [M] values.
Models = Mapping[str, Sequence[float]]


class Tables(NamedTuple):
    """The environment under each of M models, between S points of the grid."""

    rewards: np.ndarray  # [M, S, A]
    moves: list[csr_array]  # M of [S · A, S]; rows of ends are empty

    def only(self, model: int) -> Tables:
        """One of the models alone."""
        return Tables(self.rewards[model : model + 1], self.moves[model : model + 1])


def coarse(env: Environment, *points: int) -> StateGrid:
    """The environment's grid with so many points along each axis."""
    assert env.grid is not None
    axes = tuple(axis._replace(points=n) for axis, n in zip(env.grid.axes, points, strict=True))
    return env.grid._replace(axes=axes)


def points_of(grid: StateGrid) -> np.ndarray:
    """[S, K] coordinates."""
    lines = [np.linspace(axis.low, axis.high, axis.points) for axis in grid.axes]
    return np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(lines))


def interpolation(grid: StateGrid, coordinates: np.ndarray) -> csr_array:
    """[N, S] whose product with values at the points is the multilinear interpolation at [N, K] coordinates."""
    sizes = np.array([axis.points for axis in grid.axes])
    low, high = (np.array([getattr(axis, end) for axis in grid.axes]) for end in ("low", "high"))
    places = np.clip((coordinates - low) / (high - low) * (sizes - 1), 0, sizes - 1)
    below = np.minimum(places.astype(int), sizes - 2)
    share = places - below
    columns, weights = [], []
    for corner in itertools.product([0, 1], repeat=len(sizes)):
        columns.append(np.ravel_multi_index(tuple((below + corner).T), tuple(sizes)))
        weights.append(np.where(corner, share, 1 - share).prod(axis=1))
    pointers = np.arange(len(places) + 1) * len(columns)
    entries = np.stack(weights, axis=1).ravel(), np.stack(columns, axis=1).ravel(), pointers
    return csr_array(entries, shape=(len(places), int(sizes.prod())))


@functools.lru_cache(maxsize=4)
def _stepper(step: Callable[..., Outcome], coordinates_of: Callable[[Any], Any], nominal: Any) -> Callable[..., Any]:
    """`(keys [N], states [N], actions [N], models [N])` -> outcomes, and the coordinates of their states."""

    def one(key: Any, state: Any, action: Any, model: Any) -> tuple[Outcome, Any]:
        outcome = step(key, state, action, with_model(nominal, model))
        return outcome, coordinates_of(outcome.state)

    return jax.jit(jax.vmap(one))


def _steps(env: Environment, grid: StateGrid, *arguments: Any) -> tuple[Outcome, np.ndarray]:
    outcome, coordinates = _stepper(env.step, grid.from_state, env.nominal)(*arguments)
    # Where a state is after the end, nobody asks.
    ended = np.asarray(outcome.terminated)[:, None]
    return jax.tree.map(np.asarray, outcome), np.where(ended, 0.0, np.asarray(coordinates))


def tabulate(
    env: Environment, grid: StateGrid, models: Models, keys: Any = None, weights: Sequence[float] = (1.0,)
) -> Tables:
    """Every action in every point under every model, averaged over the weighted random keys."""
    keys = jax.random.split(jax.random.key(0), 1) if keys is None else keys
    points, actions = points_of(grid), len(env.actions)
    rows = len(points) * actions
    states = np.repeat(jax.jit(jax.vmap(grid.to_state))(points), actions, axis=0)
    chosen = np.tile(np.arange(actions), len(points))
    rewards, moves = [], []
    for values in zip(*models.values(), strict=True):
        model = {name: np.full(rows, value) for name, value in zip(models, values, strict=True)}
        reward, move = np.zeros(rows), csr_array((rows, len(points)))
        for key, weight in zip(keys, weights, strict=True):
            outcome, coordinates = _steps(env, grid, jnp.broadcast_to(key, rows), states, chosen, model)
            reward += weight * outcome.reward
            goes_on = csr_array(weight * ~outcome.terminated[:, None])
            move = move + interpolation(grid, coordinates).multiply(goes_on)
        rewards.append(reward.reshape(len(points), actions))
        moves.append(csr_array(move))
    return Tables(np.stack(rewards), moves)


def solve(tables: Tables, choose: Callable[[np.ndarray], np.ndarray], discount: float, tolerance: float) -> np.ndarray:
    """Q [S, A] by value iteration.

    Args:
      tables: the models.
      choose: what nature does: of each model's Q [M, S, A] makes one, anew in each step.
      discount: γ.
      tolerance: the largest change of a value in the last sweep.
    """
    values, change = np.zeros(tables.rewards.shape[1]), np.inf
    while change > tolerance:
        onward = np.stack([move @ values for move in tables.moves]).reshape(tables.rewards.shape)
        q = choose(tables.rewards + discount * onward)
        values, before = q.max(axis=-1), values
        change = np.abs(values - before).max()
    return q


def play(env: Environment, grid: StateGrid, q: np.ndarray, models: Models, episodes: int) -> np.ndarray:
    """Undiscounted returns [M, episodes] of the greedy policy, by the environment's own steps from its own starts."""
    total = len(next(iter(models.values())))
    model = {name: np.repeat(values, episodes) for name, values in models.items()}
    starts, keys = _beginner(env.reset, env.nominal, episodes, (env.horizon, total * episodes))()
    states = np.tile(starts, (total, 1))
    coordinates = jax.jit(jax.vmap(grid.from_state))(states)
    returns, alive = np.zeros(total * episodes), np.ones(total * episodes, bool)
    for step_keys in keys:
        actions = (interpolation(grid, np.asarray(coordinates)) @ q).argmax(axis=1)
        outcome, coordinates = _steps(env, grid, step_keys, states, actions, model)
        returns += np.where(alive, outcome.reward, 0.0)
        alive &= ~outcome.terminated
        states = outcome.state
        if not alive.any():
            break
    return returns.reshape(total, episodes)


@functools.lru_cache(maxsize=4)
def _beginner(reset: Callable[..., Any], nominal: Any, episodes: int, steps: tuple[int, int]) -> Callable[[], Any]:
    """`() -> (states [episodes], keys [steps])`."""

    def begin() -> tuple[Any, Any]:
        first, later = jax.random.split(jax.random.key(1))
        params = with_model(nominal, {})
        starts = jax.vmap(lambda key: reset(key, params)[0])(jax.random.split(first, episodes))
        return starts, jax.random.split(later, steps)

    return jax.jit(begin)
