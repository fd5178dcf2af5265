"""Exact solution of robust Markov decision processes: values, policies and worst-case models."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Unpack, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular.model import RMDP, Support
from deeprok.tabular.nature import elsewhere_nominal, worst_model
from deeprok.tabular.setting import Game, Objective, Rect, Setting, check_policy, make_game
from deeprok.tabular.solvers import (
    Advance,
    Found,
    Method,
    Progress,
    backward_induction,
    policy_iteration,
    value_iteration,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The solution of a robust MDP. With a horizon, the first axis of values, q and policy is the stage.

    Attributes:
      values: [S] the value of each state.
      q: [S, A] the worst-case value of each action, −∞ for actions that a state does not have.
      policy: [S] the best action, or [S, A] the probability of each (if the set is s-rectangular, or as given).
      residual: the largest change of a value in the last backup.
      error_bound: up to rounding, no value is farther than this from the optimal one, nor from the worst-case value of
        the returned policy: γ/(1−γ) times the residual. If actions share a budget, values are those of the returned
        policy, and the bound includes how far they are below the optimum.
      iterations: number of backups of all states.
      seconds: run time, with compilation.
    """

    values: np.ndarray
    q: np.ndarray
    policy: np.ndarray
    residual: float
    error_bound: float
    iterations: int
    seconds: float
    _worst_model: Callable[[int], RMDP] = dataclasses.field(repr=False)

    def worst_model(self, stage: int = 0) -> RMDP:
        """The worst-case model (with `objective="optimistic"` the best-case one).

        Under it, the policy has the same values in ordinary dynamic programming. The exception are sets that are not
        coherent, where there is a penalty for deviating from the nominal model.

        Args:
          stage: the stage, if the horizon is finite.
        """
        return self._worst_model(stage)


def solve(
    problem: RMDP,
    set: str = "l1",
    radius: ArrayLike | None = None,
    discount: float = 0.99,
    rect: Rect = "sa",
    support: Support | None = None,
    objective: Objective = "robust",
    tol: float = 1e-8,
    horizon: int | None = None,
    method: Method | None = None,
    weights: ArrayLike | None = None,
    cost: ArrayLike | None = None,
    advance: Advance | None = None,
) -> Solution:
    """The best policy in the worst case over an ambiguity set.

    Args:
      problem: the nominal model.
      set: the ambiguity set, a name of `TABULAR_SETS`.
      radius: the level of the set: a number, [S] or [S, A]; not needed for sets without a level.
      discount: γ, above 0 and below 1; 1 only with a horizon.
      rect: rectangularity. `sa`: each state and action has its own set; `s`: the radius is a budget shared by the
        actions of a state, and the best policy is randomised.
      support: where nature may move mass. `nominal`: to successors of positive probability; `listed`: also to those
        that the problem lists with probability 0; `all`: to all states. The default is `nominal`; for a problem made
        from samples, all successors that are possible.
      objective: `robust`: the worst case; `optimistic`: the best case; `nominal`: the nominal model itself.
      tol: the error bound to reach.
      horizon: the number of decisions; infinite if not given.
      method: `vi` value iteration, `ppi` partial policy iteration, `mpi` modified policy iteration;
        the default is `ppi`, or `vi` for shared budgets where finding the best policy is faster than evaluating one.
      weights: [S] of successors, for `l1` and `l2`; all 1 if not given.
      cost: [S, S] of moving mass between states, for `wasserstein`; |i − j| if not given.
      advance: called with the fraction of the work done since its last call.
    """
    began = time.perf_counter()
    cache.enable_if_asked()
    if method is not None and method not in get_args(Method):
        raise unknown("method", method, get_args(Method))
    with jax.enable_x64(True):
        game = make_game(problem, False, set, radius, discount, rect, support, objective, horizon, weights, cost)
        operator = game.operator
        if horizon is not None:
            return _finish(game, backward_induction(operator, discount, horizon, None, advance), began)
        progress = Progress(_check_tol(tol), advance)
        # By cutting planes, finding the best policy is faster than evaluating one.
        chosen = method or ("vi" if operator.rules.shared and operator.rules.by_tangents else "ppi")
        if chosen == "vi":
            found = value_iteration(operator, discount, progress, None)
        else:
            found = policy_iteration(operator, discount, progress, chosen)
        return _finish(game, found, began)


def evaluate(
    problem: RMDP,
    policy: ArrayLike,
    tol: float = 1e-8,
    advance: Advance | None = None,
    **setting: Unpack[Setting],
) -> Solution:
    """The worst-case value of a policy over an ambiguity set.

    Args:
      problem: the nominal model.
      policy: [S] an action for each state (whole numbers), or [S, A] probabilities of actions.
      tol: the error bound to reach.
      advance: called with the fraction of the work done since its last call.
      **setting: as in `solve`.
    """
    began = time.perf_counter()
    cache.enable_if_asked()
    chosen = check_policy(problem, np.asarray(policy))
    with jax.enable_x64(True):
        game = make_game(problem, True, **setting)
        given = jnp.asarray(chosen)
        if game.operator.rules.shared and given.ndim == 1:
            given = jax.nn.one_hot(given, problem.actions, dtype=float)
        horizon = setting.get("horizon")
        if horizon is not None:
            found = backward_induction(game.operator, game.discount, horizon, given, advance)
        else:
            found = value_iteration(game.operator, game.discount, Progress(_check_tol(tol), advance), given)
        return _finish(game, found, began)


def _check_tol(tol: float) -> float:
    if not tol > 0:
        raise DeeprokError(f"tol is {tol:g}; it must be above 0")
    return tol


def _finish(game: Game, found: Found, began: float) -> Solution:
    values, policy, q = map(np.asarray, found.backup)

    def worst_model_at(stage: int) -> RMDP:
        if not 0 <= stage < len(found.following):
            raise DeeprokError(f"stage is {stage}; there are the stages 0 to {len(found.following) - 1}")
        with jax.enable_x64(True):
            ahead = game.discount * found.following[stage]
            model = worst_model(game.operator, game.layout, ahead, found.policy)
        if game.lone:
            return elsewhere_nominal(model, game.problem, policy.reshape(-1, game.problem.states)[stage])
        return model

    bound = found.shortfall + (game.discount / (1 - game.discount) * found.residual if found.residual else 0.0)
    return Solution(
        values, q, policy, found.residual, bound, found.iterations, time.perf_counter() - began, worst_model_at
    )
