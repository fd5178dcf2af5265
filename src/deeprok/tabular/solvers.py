"""Value iteration, policy iteration and backward induction with the robust Bellman operator.

Every operator L here is monotone, and adding c to all values adds γc to its result. So for δ = LV − V

    LV + γ/(1−γ) · min δ  ≤  V*  ≤  LV + γ/(1−γ) · max δ

as in ordinary dynamic programming (MacQueen). Each backup moves its result to the middle of these bounds,
which changes neither policies nor the span of δ. Residuals then shrink with the span: never slower than
γ, and much faster on models that mix.

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

_EVALUATIONS = 20  # backups between two improvements of modified policy iteration
_PATIENCE = 100  # backups without a smaller residual, after which only rounding is left of it
_TURNS = 5  # of policy iteration without a smaller residual, after which value iteration goes on
_SECONDS = 0.25  # between two looks at what the device does


class Found(NamedTuple):
    """Where a solver ended."""

    backup: Sequence[jax.Array | np.ndarray]  # values, policy and q
    residual: float
    iterations: int
    following: list[jax.Array]  # [S] the values that nature answers at each stage
    policy: jax.Array | None  # if it was given
    shortfall: float = 0.0  # of the returned policy's values to the best ones, in one backup or over all stages


class Progress:
    """Watches the error bound fall: what is done is counted in its digits."""

    def __init__(self, tol: float, advance: Advance | None) -> None:
        self.tol = tol
        self._advance = advance
        self._first = 0.0
        self._done = 0.0

    def at(self, bound: float) -> None:
        """Reports an error bound."""
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
    """Value iteration on its way."""

    before: jax.Array  # [S] the V that was backed up
    values: jax.Array  # [S] V, in the middle of its bounds
    ahead: jax.Array  # [S] γV
    backup: Backup  # of the V before it
    residual: jax.Array  # [] the largest |LV − V| of that backup
    best: jax.Array  # [] the least residual so far
    waited: jax.Array  # [] backups since then
    backups: jax.Array  # []


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


def iterate(
    operator: Operator,
    discount: float,
    policy: jax.Array | None,
    values: jax.Array,
    goal: float,
    limit: float = math.inf,
    report: Callable[[float], None] = lambda residual: None,
) -> Iterate:
    """Value iteration until the residual is at most the goal, reported every now and then.

    Args:
      operator: L.
      discount: γ.
      policy: of which values are sought; those of the best one if not given.
      values: [S] to begin with.
      goal: the residual to reach.
      limit: the most backups.
      report: called with residuals.
    """
    numbers = (*map(jnp.float64, (math.inf, math.inf)), *map(jnp.int64, (0, 0)))
    now = Iterate(values, values, discount * values, operator.blank(policy), *numbers)
    portion = 1
    while True:
        began, done = time.perf_counter(), int(now.backups)
        until = jnp.int64(min(done + portion, limit))
        now = _iterate(operator, jnp.float64(discount), policy, jnp.float64(goal), until, now)
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
      policy: if it is given.
      values: [S] to begin with; 0 if not given.
      before: backups that these took.
    """
    scale = discount / (1 - discount)
    values = jnp.zeros(operator.shape[0]) if values is None else values
    goal = progress.tol / scale
    now = iterate(operator, discount, policy, values, goal, report=lambda residual: progress.at(scale * residual))
    return _certified(operator, discount, now, before + int(now.backups), policy)


def _certified(operator: Operator, discount: float, now: Iterate, iterations: int, policy: jax.Array | None) -> Found:
    """What was found, with the values of its own policy.

    That the best action is worth the value of a state is seen at once. That a mixture of actions is, when they
    share a budget, takes a backup of its own: its values, its residual and by how much it falls short.
    """
    backup, residual = now.backup, float(now.residual)
    if not operator.rules.shared or policy is not None:
        return Found(backup, residual, iterations, [backup.values], policy)
    own = iterate(operator, discount, backup.policy, now.before, 0.0, limit=1)
    shortfall = float(jnp.max(jnp.abs(backup.values - own.backup.values)))
    certain = backup._replace(values=own.backup.values)
    return Found(certain, max(residual, float(own.residual)), iterations + 1, [backup.values], None, shortfall)


def policy_iteration(operator: Operator, discount: float, progress: Progress, method: Method) -> Found:
    """Policies improved in turns with their evaluation, each of which is a convergent iteration.

    Partial policy iteration (`ppi`) evaluates to a residual that falls faster than γ from turn to turn; modified
    policy iteration (`mpi`) by a fixed number of backups. Either converges, but not every turn need lower the
    residual: after some that did not, value iteration ends the work, in which every backup does.
    """
    scale = discount / (1 - discount)
    values = jnp.zeros(operator.shape[0])
    iterations, goal, best, waited = 0, math.inf, math.inf, 0
    while True:
        now = iterate(operator, discount, None, values, 0.0, limit=1)
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
            now = iterate(judged, discount, weights, now.values, goal)
        else:
            now = iterate(judged, discount, weights, now.values, 0.0, limit=_EVALUATIONS)
        values = now.values
        iterations += int(now.backups)


def backward_induction(
    operator: Operator, discount: float, horizon: int, policy: jax.Array | None, advance: Advance | None
) -> Found:
    """A finite horizon, from its last decision to the first."""
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
