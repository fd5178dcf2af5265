"""Where a policy leads in the nominal model, and where nature has it lead instead: what a page shows of a solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.tabular.model import RMDP
from deeprok.tabular.solution import Solution

#: States with their successors that a file has room for, over all radii.
MOST_SUCCESSORS = 20_000


class Moves(NamedTuple):
    """The successors of a state under a policy, those that matter in either model."""

    state: int
    value: float
    """In the worst case."""
    action: int | list[float]
    """The action, or the probability of each."""
    successors: list[int]
    nominal: list[float]
    """Probability of each successor in the nominal model."""
    worst: list[float]
    """And in the worst-case model."""


def moves_of(problem: RMDP, found: Solution, states: Sequence[int]) -> list[Moves]:
    """The successors of some states under the policy of a solution; with a horizon, at the first decision.

    Args:
      problem: the nominal model.
      found: its solution.
      states: ids.
    """
    staged = found.values.ndim == 2
    values, policy = (found.values[0], found.policy[0]) if staged else (found.values, found.policy)
    worst = found.worst_model()
    listed = []
    for state in states:
        chosen = policy[state]
        weights = chosen if chosen.ndim else np.eye(problem.actions)[int(chosen)]
        before, after = (_distribution(model, state, weights) for model in (problem, worst))
        known = sorted(before.keys() | after.keys())
        listed.append(
            Moves(
                state,
                float(values[state]),
                chosen.tolist() if chosen.ndim else int(chosen),
                known,
                [before.get(successor, 0.0) for successor in known],
                [after.get(successor, 0.0) for successor in known],
            )
        )
    return listed


def _distribution(model: RMDP, state: int, weights: np.ndarray) -> dict[int, float]:
    """Successor -> its probability, where actions have these weights."""
    found: dict[int, float] = {}
    for action in np.flatnonzero(weights):
        row = state * model.actions + int(action)
        for i in range(model.start[row], model.start[row + 1]):
            if model.probability[i] > 0:
                successor = int(model.successor[i])
                found[successor] = found.get(successor, 0.0) + float(weights[action] * model.probability[i])
    return found


def states_with_room(problem: RMDP, state: int, radii: int, everywhere: bool) -> list[int]:
    """All states, if a file has room for their successors, or else the one that is asked about.

    Args:
      problem: the model.
      state: the one that is asked about.
      radii: how many solutions there are.
      everywhere: whether nature may move mass to any state.
    """
    successors = problem.states**2 if everywhere else len(problem.successor)
    return list(range(problem.states)) if successors * radii <= MOST_SUCCESSORS else [state]


def as_object(moves: Sequence[Moves]) -> list[dict[str, Any]]:
    """JSON."""
    return [one._asdict() for one in moves]
