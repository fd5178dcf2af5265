"""Dynamic programming on the tables of an environment: the best policy for some of its models' outcomes.

`deeprok.tabular` solves the same problems but is made for other sizes. There the models of a set share their rewards
and their successors: here 25 models of 30,000 states would be matrices of which 24 parts in 25 are zeros. With rows as
they are in `Table`, a backup in compiled sparse matrix products takes a twentieth of the time of gathers in XLA.

D. L. Kaufman and A. J. Schaefer, "Robust modified policy iteration", INFORMS Journal on Computing 25(3), 2013.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from deeprok.evaluation.screening.discretise import Table

_TOLERANCE = 1e-5  # error of values, relative to the largest
_EVALUATED = 0.1  # residual of a policy's evaluation, relative to that of the improvement before


def worst_mean(values: np.ndarray, level: float) -> np.ndarray:
    """The mean of the worst fraction of M equally likely values: their CVaR.

    It is the ambiguity set `cvar` for a uniform distribution, without a sort. Level 1 is the mean, and levels up to
    1/M are the minimum.

    Args:
      values: [M, ...].
      level: the fraction, above 0 and at most 1.
    """
    count = level * len(values)
    if level == 1:
        return values.mean(axis=0)
    if count <= 1:
        return values.min(axis=0)
    whole = math.ceil(count - 1e-9)  # of 0.1 · 30 it is 3
    worst = np.partition(values, whole - 1, axis=0)
    return (worst[: whole - 1].sum(axis=0) + (count - (whole - 1)) * worst[whole - 1]) / count


def back_up(table: Table, values: np.ndarray, discount: float, level: float) -> np.ndarray:
    """[R] the mean over the worst models of r + γ V(s'), for each row.

    Args:
      table: the rows.
      values: [S] V.
      discount: γ.
      level: the fraction of the models.
    """
    ahead = np.empty_like(table.reward)
    for i, matrix in enumerate(table.transition):
        ahead[i] = matrix @ values
    ahead *= discount
    ahead += table.reward
    return worst_mean(ahead, level)


def plan(
    table: Table,
    discount: float,
    level: float,
    tolerance: float = _TOLERANCE,
    advance: Callable[[float], None] = lambda part: None,
) -> np.ndarray:
    """[S, A] the Q-values of the best policy, by modified policy iteration.

    In every step nature may choose other models, as in a robust target. Each turn improves the policy by a backup of
    all actions, then evaluates it by backups of its own.

    Args:
      table: the tables of an environment.
      discount: γ, below 1.
      level: the fraction of the models, the worst ones, that a step is averaged over.
      tolerance: no value is farther than this from the optimal one, relative to the largest value.
      advance: called with the fraction of the work done since its last call.
    """
    states = table.transition[0].shape[1]
    first_row = np.arange(states) * (table.reward.shape[1] // states)
    values, done, first = np.zeros(states), 0.0, 0.0
    while True:
        q = back_up(table, values, discount, level).reshape(states, -1)
        before, values = values, q.max(axis=1)
        residual = np.abs(values - before).max()
        goal = tolerance * np.abs(values).max() * (1 - discount)
        if discount * residual <= goal:
            advance(1 - done)
            return q
        first = first or residual
        share = math.log(first / residual) / math.log(first / goal) if residual < first else 0.0
        if share > done:
            advance(share - done)
            done = share
        chosen = table.of_rows(first_row + q.argmax(axis=1))
        change, last = math.inf, math.inf
        while change > _EVALUATED * residual:
            before, values = values, back_up(chosen, values, discount, level)
            change, last = float(np.abs(values - before).max()), change
            if change >= last:  # each backup brings them closer, so what is left is rounding
                advance(1 - done)
                return q
