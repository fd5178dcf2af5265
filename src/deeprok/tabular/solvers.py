"""Value iteration, policy iteration and backward induction with the robust Bellman operator.

Every operator L here is monotone, and adding c to all values adds γc to its result. So for δ = LV − V

    LV + γ/(1−γ) · min δ  ≤  V*  ≤  LV + γ/(1−γ) · max δ

as in ordinary dynamic programming (MacQueen). Each backup shifts its result to the middle of these bounds, which
changes neither policies nor the span of δ. Residuals then shrink with the span: by a factor of at most γ, and much
faster on models that mix.

D. L. Kaufman and A. J. Schaefer, "Robust modified policy iteration", INFORMS Journal on Computing 25(3),
2013.
C. P. Ho, M. Petrik and W. Wiesemann, "Partial policy iteration for L1-robust Markov decision
processes", Journal of Machine Learning Research 22(275), 2021.
J. MacQueen, "A modified dynamic programming method for Markovian decision problems", Journal of
Mathematical Analysis and Applications 14, 1966.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.tabular.operator import Backup, Operator

Method = Literal["vi", "ppi", "mpi"]
#: Called with the fraction of the work done since its last call.
Advance = Callable[[float], None]

_EVALUATIONS = 20  # backups per policy evaluation in modified policy iteration
_PATIENCE = 100  # backups without a smaller residual, after which the residual is rounding error
_TURNS = 5  # policy improvements without a smaller residual, after which value iteration takes over
_SECONDS = 0.25  # between progress reports


class Found(NamedTuple):
    """The result of a solver."""

    backup: Sequence[jax.Array | np.ndarray]  # values, policy and q
    residual: float
    iterations: int
    following: list[jax.Array]  # [S] the successors' values at each stage
    policy: jax.Array | None  # the policy, if one was given
    shortfall: float = 0.0  # bound of how far the policy's values are below the best ones


class Progress:
    """Progress of a solver, measured by the logarithm of the error bound."""

    def __init__(self, tol: float, advance: Advance | None) -> None:
        self.tol = tol
        self._advance = advance
        self._first = 0.0
        self._done = 0.0

    def at(self, bound: float) -> None:
        """Reports the present error bound."""
        self._first = self._first or bound
        if not self._advance:
            return
        if bound <= self.tol or self._first <= self.tol:
            share = 1.0
        else:
            share = math.log(self._first / bound) / math.log(self._first / self.tol)
        if share > self._done:
            self._advance(share - self._done)
            self._done = share


class Iterate(NamedTuple):
    """The state of value iteration."""

    before: jax.Array  # [S] the previous V
    values: jax.Array  # [S] V, in the middle of its bounds
    ahead: jax.Array  # [S] γV
    backup: Backup  # of the previous V
    residual: jax.Array  # [] the largest |LV − V| of that backup
    best: jax.Array  # [] the smallest residual so far
    waited: jax.Array  # [] backups since then
    backups: jax.Array  # [] number of backups so far


@jax.jit
def _iterate(
    operator: Operator,
    discount: jax.Array,
    policy: jax.Array | None,
    goal: jax.Array,
    limit: jax.Array,
    begin: Iterate,
) -> Iterate:
    """Backups until the residual is at most the goal, or `limit` are done."""

    def step(now: Iterate) -> Iterate:
        backup = operator.backup(now.ahead, policy)
        change = backup.values - now.values
        low, high = jnp.min(change), jnp.max(change)
        values = backup.values + discount / (1 - discount) * (low + high) / 2
        residual = jnp.maximum(-low, high)
        waited = jnp.where(residual < now.best, 0, now.waited + 1)
        best = jnp.minimum(residual, now.best)
        return Iterate(now.values, values, discount * values, backup, residual, best, waited, now.backups + 1)

    def unfinished(now: Iterate) -> jax.Array:
        return (now.residual > goal) & (now.waited < _PATIENCE) & (now.backups < limit)

    return jax.lax.while_loop(unfinished, step, begin)


def iterate_values(
    operator: Operator,
    discount: float,
    policy: jax.Array | None,
    values: jax.Array,
    goal: float,
    limit: float = math.inf,
    report: Callable[[float], None] = lambda residual: None,
) -> Iterate:
    """Value iteration until the residual is at most the goal, with progress reports.

    Args:
      operator: L.
      discount: γ.
      policy: the policy to evaluate; the best one if not given.
      values: [S] initial values.
      goal: the residual to reach.
      limit: the maximal number of backups.
      report: called with residuals.
    """
    # What numpy computes need not be compiled.
    numbers = (*map(np.float64, (math.inf, math.inf)), *map(np.int64, (0, 0)))
    ahead, *numbers = jax.device_put((discount * np.asarray(values), *numbers))
    now = Iterate(values, values, ahead, operator.blank(policy), *numbers)
    portion = 1
    while True:
        began, done = time.perf_counter(), int(now.backups)
        until = np.int64(min(done + portion, limit))
        now = _iterate(operator, np.float64(discount), policy, np.float64(goal), until, now)
        residual = float(now.residual)
        report(residual)
        if not residual > goal or int(now.waited) >= _PATIENCE or int(now.backups) >= limit:
            return now
        if time.perf_counter() - began < _SECONDS:
            portion *= 2


def value_iteration(
    operator: Operator,
    discount: float,
    progress: Progress,
    policy: jax.Array | None,
    values: jax.Array | None = None,
    before: int = 0,
) -> Found:
    """Value iteration, for the best policy or a given one.

    Args:
      operator: L.
      discount: γ.
      progress: with the error bound to reach.
      policy: the policy, if one is given.
      values: [S] initial values; 0 if not given.
      before: number of backups done before.
    """
    scale = discount / (1 - discount)
    values = jax.device_put(np.zeros(operator.shape[0])) if values is None else values
    goal = progress.tol / scale
    now = iterate_values(
        operator, discount, policy, values, goal, report=lambda residual: progress.at(scale * residual)
    )
    return _certified(operator, discount, now, before + int(now.backups), policy)


def _certified(operator: Operator, discount: float, now: Iterate, iterations: int, policy: jax.Array | None) -> Found:
    """The result, with values that the returned policy attains.

    A deterministic policy attains the values of the backup. If actions share a budget, the policy is a mixture, and one
    more backup computes its values, its residual and how far they are below the optimum.
    """
    backup, residual = now.backup, float(now.residual)
    if not operator.rules.shared or policy is not None:
        return Found(backup, residual, iterations, [backup.values], policy)
    own = iterate_values(operator, discount, backup.policy, now.before, 0.0, limit=1)
    shortfall = float(jnp.max(jnp.abs(backup.values - own.backup.values)))
    certain = backup._replace(values=own.backup.values)
    return Found(certain, max(residual, float(own.residual)), iterations + 1, [backup.values], None, shortfall)


def policy_iteration(operator: Operator, discount: float, progress: Progress, method: Method) -> Found:
    """Policy iteration: policy improvement and approximate policy evaluation in turns.

    Partial policy iteration (`ppi`) evaluates to a residual that decreases faster than γ from turn to turn; modified
    policy iteration (`mpi`) by a fixed number of backups. Both converge, but not every turn lowers the residual. After
    several turns that did not, value iteration takes over, whose residual decreases with every backup.
    """
    scale = discount / (1 - discount)
    values = jax.device_put(np.zeros(operator.shape[0]))
    iterations, goal, best, waited = 0, math.inf, math.inf, 0
    while True:
        now = iterate_values(operator, discount, None, values, 0.0, limit=1)
        residual, policy = float(now.residual), now.backup.policy
        progress.at(scale * residual)
        iterations += 1
        best, waited = (residual, 0) if residual < best else (best, waited + 1)
        if scale * residual <= progress.tol:
            return _certified(operator, discount, now, iterations, None)
        if waited >= _TURNS:
            return value_iteration(operator, discount, progress, None, now.values, iterations)
        one = policy.ndim == 1
        judged, weights = (operator.of_policy(policy), None) if one else (operator, policy)
        if method == "ppi":
            goal = min(discount**2 * goal, residual / 10)
            now = iterate_values(judged, discount, weights, now.values, goal)
        else:
            now = iterate_values(judged, discount, weights, now.values, 0.0, limit=_EVALUATIONS)
        values = now.values
        iterations += int(now.backups)


def backward_induction(
    operator: Operator, discount: float, horizon: int, policy: jax.Array | None, advance: Advance | None
) -> Found:
    """Backward induction for a finite horizon, from the last decision to the first."""
    values = jnp.zeros(operator.shape[0])
    following, backups, shortfall = [], [], 0.0
    for _ in range(horizon):
        following.append(values)
        ahead = discount * values
        backup = operator.backup(ahead, policy)
        values = backup.values
        if operator.rules.shared and policy is None:  # as in `_certified`
            values = operator.backup(ahead, backup.policy).values
            shortfall = discount * shortfall + float(jnp.max(jnp.abs(backup.values - values)))
        backups.append([np.asarray(part) for part in backup._replace(values=values)])
        if advance:
            advance(1 / horizon)
    first_to_last = [np.stack(part[::-1]) for part in zip(*backups, strict=True)]
    return Found(first_to_last, 0.0, horizon, following[::-1], policy, shortfall)
