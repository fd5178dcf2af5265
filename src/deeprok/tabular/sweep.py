"""The price of robustness: what a robust policy loses in the nominal model, and what it gains in the worst case."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular.model import RMDP
from deeprok.tabular.setting import TABULAR_SETS, Setting
from deeprok.tabular.solution import Solution, evaluate, solve
from deeprok.tabular.solvers import Advance, Method


class Sweep(NamedTuple):
    """Values of one state, for each of R radii; None where they can't be computed."""

    radius: np.ndarray  # [R]
    value: np.ndarray  # [R] of the robust policy for that radius, in the worst case
    nominal: float  # of the nominal policy in the nominal model
    nominal_value: np.ndarray | None  # [R] of the robust policy in the nominal model
    unprotected: np.ndarray | None  # [R] of the nominal policy in the worst case
    error_bound: float  # the largest of all solutions
    iterations: int
    seconds: float

    @property
    def price(self) -> np.ndarray | None:
        """[R] what the robust policy loses against the nominal one in the nominal model."""
        return None if self.nominal_value is None else np.maximum(self.nominal - self.nominal_value, 0.0)

    @property
    def protection(self) -> np.ndarray | None:
        """[R] what the robust policy gains over the nominal one in the worst case."""
        return None if self.unprotected is None else np.maximum(self.value - self.unprotected, 0.0)


def sweep_radii(
    problem: RMDP,
    radii: ArrayLike,
    state: int = 0,
    tol: float = 1e-8,
    method: Method | None = None,
    advance: Callable[[int, float], None] | None = None,
    each: Callable[[float, Solution], None] | None = None,
    **setting: Unpack[Setting],
) -> Sweep:
    """Solves a problem for a range of radii, and evaluates each policy in the nominal model and in the worst case.

    Policies are evaluated only with `objective="robust"`. With a horizon and `support="all"` they are not: values of
    the next stage are added to the rewards, which must then be known for all successors.

    Args:
      problem: the nominal model.
      radii: [R] levels of the set, in increasing order.
      state: the state whose values are returned.
      tol: the error bound to reach. Differences below four times that are set to 0.
      method: as in `solve`.
      advance: called with the number of radii done and the fraction of the work done since its last call.
      each: called with every radius and its solution, of which nothing else is kept.
      **setting: as in `solve`, without a radius.
    """
    began = time.perf_counter()
    levels = np.asarray(radii, float)
    name = setting.get("set", "l1")
    if name not in TABULAR_SETS:
        raise unknown("set", name, TABULAR_SETS)
    if levels.ndim != 1 or not levels.size:
        raise DeeprokError(f"radii have the shape {list(levels.shape)}; give a list of at least one")
    if not 0 <= state < problem.states:
        raise DeeprokError(f"state is {state}; there are the states 0 to {problem.states - 1}")
    for radius in levels[[0, -1]]:
        TABULAR_SETS[name].check_level(float(radius), field="radius")
    staged_everywhere = setting.get("horizon") is not None and (setting.get("support") or problem.support) == "all"
    evaluated = setting.get("objective", "robust") == "robust" and not staged_everywhere
    parts = 1 + len(levels) * (3 if evaluated else 1)
    found: list[Solution] = []
    rows: list[tuple[float, ...]] = []

    def report(work: float) -> None:
        if advance:
            advance(len(found), work / parts)

    absent: Setting = {**setting, "objective": "nominal"}
    plain = solve(problem, **absent, tol=tol, method=method, advance=report)
    for radius in levels.tolist():
        against: Setting = {**setting, "radius": radius}
        robust = solve(problem, **against, tol=tol, method=method, advance=report)
        found.append(robust)
        if each:
            each(radius, robust)
        row = [_at(robust, state)]
        if evaluated:
            # The nominal policy is deterministic: a shared budget is spent on its one action.
            alone: Setting = {**against, "rect": "sa"}
            row.append(value_of_policy(problem, robust.policy, absent, tol, report)[state])
            row.append(value_of_policy(problem, plain.policy, alone, tol, report)[state])
        rows.append(tuple(row))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    bound = max(x.error_bound for x in (plain, *found))
    total = plain.iterations + sum(x.iterations for x in found)
    value, nominal_value, unprotected = columns if evaluated else (columns[0], None, None)
    if nominal_value is not None and unprotected is not None:
        # Differences below the error of their terms are set to 0.
        nominal_value = np.where(_at(plain, state) - nominal_value > 4 * tol, nominal_value, _at(plain, state))
        unprotected = np.where(value - unprotected > 4 * tol, unprotected, value)
    seconds = time.perf_counter() - began
    return Sweep(levels, value, _at(plain, state), nominal_value, unprotected, bound, total, seconds)


def _at(found: Solution, state: int) -> float:
    """The value of a state, at the first decision if there is a horizon."""
    return float(found.values[(0, state) if found.values.ndim == 2 else state])


def value_of_policy(problem: RMDP, policy: np.ndarray, setting: Setting, tol: float, advance: Advance) -> np.ndarray:
    """[S] the values of a policy, at the first decision if there is a horizon.

    Args:
      problem: the nominal model.
      policy: [S] or [S, A]; with a horizon one for each stage.
      setting: as in `solve`.
      tol: the error bound to reach.
      advance: called with the fraction of the work done since its last call.
    """
    horizon, discount = setting.get("horizon"), setting.get("discount", 0.99)
    if horizon is None:
        return evaluate(problem, policy, tol, advance, **setting).values
    values = np.zeros(problem.states)
    for rule in policy[::-1]:
        ahead = dataclasses.replace(problem, reward=problem.reward + discount * values[problem.successor])
        one: Setting = {**setting, "horizon": 1}
        values = evaluate(ahead, rule, tol, **one).values[0]
        advance(1 / horizon)
    return values
