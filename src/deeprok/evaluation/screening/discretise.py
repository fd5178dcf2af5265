"""An environment on a grid of its states: a sparse table of transitions for each model.

An outcome rarely lies on the grid. It is spread over the corners of the grid's cell around it, by the weights of
multilinear interpolation, so that values are interpolated between grid states. For few coordinates this is the
classical approximation of a continuous problem, and it converges as the grid becomes finer.

H. J. Kushner and P. Dupuis, "Numerical methods for stochastic control problems in continuous time", Springer, 2001.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from deeprok.core.errors import DeeprokError
from deeprok.environments import Axis, Environment, StateGrid, with_model

_MOST_TRANSITIONS = 200_000_000  # of all models together; 12 bytes each


class Table(NamedTuple):
    """What R rows, each a state and an action, lead to under each of M models."""

    transition: tuple[csr_array, ...]  # M × [R, S]; what a row lacks of 1 is the probability of termination
    reward: np.ndarray  # [M, R]

    def of_rows(self, rows: np.ndarray) -> Table:
        """Some of the rows, under all models."""
        return Table(tuple(matrix[rows] for matrix in self.transition), self.reward[:, rows])

    def of_model(self, index: int) -> Table:
        """All rows, under one model."""
        return Table(self.transition[index : index + 1], self.reward[index : index + 1])


def corners(axes: Sequence[Axis], coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The grid states around a point and their weights of multilinear interpolation, [2^K] each.

    Beyond the ends of an axis the point counts as the end; around a circle the last grid state is followed by the
    first. Grid states are numbered with the last axis fastest.

    Args:
      axes: the K axes.
      coordinates: [K].
    """
    index, weight = jnp.zeros(1, jnp.int32), jnp.ones(1, coordinates.dtype)
    for axis, value in zip(axes, coordinates, strict=True):
        if axis.periodic:
            place = jnp.mod((value - axis.low) * (axis.points / (axis.high - axis.low)), axis.points)
            below = jnp.floor(place)
            ends = jnp.stack([below, below + 1]) % axis.points
        else:
            place = jnp.clip((value - axis.low) * ((axis.points - 1) / (axis.high - axis.low)), 0, axis.points - 1)
            below = jnp.minimum(jnp.floor(place), axis.points - 2)
            ends = jnp.stack([below, below + 1])
        share = place - below
        index = (index[:, None] * axis.points + ends.astype(jnp.int32)).reshape(-1)
        weight = (weight[:, None] * jnp.stack([1 - share, share])).reshape(-1)
    return index, weight


def grid_points(axes: Sequence[Axis]) -> np.ndarray:
    """[S, K] the coordinates of all grid states, the last axis fastest."""
    values = [np.linspace(axis.low, axis.high, axis.points, endpoint=not axis.periodic) for axis in axes]
    return np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(axes))


def checked_grid(env: Environment) -> StateGrid:
    """The grid of an environment's states; raises unless it can be solved on one."""
    if env.actions.continuous:
        raise DeeprokError(f"{env.name} has continuous actions; screening needs actions to choose from (Choices)")
    if env.past:
        raise DeeprokError(
            f"{env.name} has a memory of {env.past.steps} steps, which no grid of states has; screen it without, as"
            " env.past.env"
        )
    if env.grid is None:
        raise DeeprokError(
            f"{env.name} has no grid of states (Environment.grid is None); screening needs a StateGrid, which suits"
            " environments of at most 3 coordinates"
        )
    for axis in env.grid.axes:
        if not (-math.inf < axis.low < axis.high < math.inf and axis.points >= 2):
            raise DeeprokError(
                f"the axis {axis.name} of {env.name}'s grid has {axis.points} points from {axis.low:g} to"
                f" {axis.high:g}; it must have at least 2, from a lower end to a higher one"
            )
    return env.grid


def tabulate(
    env: Environment,
    models: Mapping[str, np.ndarray],
    draws: int,
    seed: int = 0,
    advance: Callable[[float], None] = lambda part: None,
) -> Table:
    """The tables of an environment on its grid, in double precision; row s·A + a is action a in grid state s.

    A model with noise is averaged over a fixed set of random keys for each state, the same for all models and actions.
    With the same keys in all states the error of their mean would be a drift that adds up from step to step; with keys
    of their own it averages out. A model without noise needs one: whether it has any is found out by giving all states
    the same key.

    Args:
      env: an environment with a grid.
      models: name -> [M].
      draws: random keys to average over.
      seed: decides the keys.
      advance: called with the fraction of the work done since its last call.
    """
    grid, actions = checked_grid(env), len(env.actions)
    with jax.enable_x64(True):
        points = jnp.asarray(grid_points(grid.axes))
        states = len(points)

        def lead(key: jax.Array, point: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, ...]:
            outcome = env.step(key, grid.to_state(point), action, params)
            index, weight = corners(grid.axes, jnp.asarray(grid.from_state(outcome.state), float))
            reward = jnp.asarray(outcome.reward, float)
            return jnp.where(outcome.terminated, 0, index), jnp.where(outcome.terminated, 0.0, weight), reward

        @jax.jit
        def lead_all(draw: np.ndarray, own: np.ndarray, model: dict[str, Any]) -> tuple[jax.Array, ...]:
            key = jax.random.fold_in(jax.random.key(seed), draw)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.where(own, jnp.arange(states), 0))
            each_action = jax.vmap(lead, (None, None, 0, None))
            each_state = jax.vmap(each_action, (0, 0, None, None))
            found = each_state(keys, points, jnp.arange(actions), with_model(env.nominal, model))
            return tuple(leaf.reshape(states * actions, *leaf.shape[2:]) for leaf in found)

        def led(draw: int, own: bool, model: dict[str, Any]) -> tuple[np.ndarray, ...]:
            index, weight, reward = map(np.asarray, lead_all(np.uint32(draw), np.bool_(own), model))
            wrong = np.flatnonzero(np.isnan(weight).any(1) | ~np.isfinite(reward))
            if wrong.size:
                raise _not_a_number(env, grid_points(grid.axes), int(wrong[0]), model, reward[wrong[0]])
            return index, weight, reward

        matrices, rewards, total = [], [], 0
        count = len(next(iter(models.values())))
        for i in range(count):
            model = {name: np.float64(values[i]) for name, values in models.items()}
            found = [led(0, True, model)]
            if draws > 1 and not all(map(np.array_equal, led(0, False, model), found[0])):
                found += [led(draw, True, model) for draw in range(1, draws)]
            index, weight, reward = zip(*found, strict=True)
            matrices.append(_sparse(np.concatenate(index, axis=1), np.concatenate(weight, axis=1) / len(found), states))
            rewards.append(np.mean(reward, axis=0))
            total += matrices[-1].nnz
            if total > _MOST_TRANSITIONS:
                raise DeeprokError(
                    f"{i + 1} of {count} models of {env.name} have {total:,} transitions on its grid of {states:,}"
                    f" states, more than {_MOST_TRANSITIONS:,}; give fewer models or draws"
                )
            advance(1 / count)
    return Table(tuple(matrices), np.stack(rewards))


def _sparse(index: np.ndarray, weight: np.ndarray, states: int) -> csr_array:
    """Rows [R, W] of successors and weights as a matrix [R, S], without zeros and with equal successors merged."""
    rows, width = index.shape
    start = np.arange(rows + 1) * width
    matrix = csr_array((weight.reshape(-1), index.reshape(-1), start), shape=(rows, states))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _not_a_number(
    env: Environment, points: np.ndarray, row: int, model: Mapping[str, Any], reward: float
) -> DeeprokError:
    """The error for a row whose outcome can't be used."""
    state, action = divmod(row, len(env.actions))
    grid = checked_grid(env)
    where = ", ".join(f"{axis.name} = {x:g}" for axis, x in zip(grid.axes, points[state], strict=True))
    what = "leads to a state that is not a number and does not terminate"
    if not math.isfinite(reward):
        what = f"has the reward {reward:g}"
    varied = ", ".join(f"{name} = {float(value):g}" for name, value in model.items())
    return DeeprokError(f"action {action} of {env.name} at {where} {what}, with {varied}")
