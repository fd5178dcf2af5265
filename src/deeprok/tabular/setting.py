"""The robust problem to solve: the arguments of `solve` and `evaluate`, their checks, and the operator they define."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypedDict, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.registry import Registry, expect
from deeprok.tabular.layout import Layout, Table, as_columns, lay_out
from deeprok.tabular.model import RMDP, Support
from deeprok.tabular.operator import Candidates, Operator, Rules
from deeprok.uncertainty import sets
from deeprok.uncertainty.sets import AmbiguitySet
from deeprok.uncertainty.sets.ellipsoid import check_weights
from deeprok.uncertainty.sets.transport import check_cost

Rect = Literal["sa", "s"]
Objective = Literal["robust", "optimistic", "nominal"]

#: Ambiguity sets by name: those of `deeprok.uncertainty`, and the models of a problem.
TABULAR_SETS: Registry[AmbiguitySet] = Registry(
    "set", {**sets.SETS, **sets.MODEL_SETS}, expect(AmbiguitySet, "an AmbiguitySet")
)


class Setting(TypedDict, total=False):
    """The arguments that `solve` and `evaluate` share; see `solve`."""

    set: str
    radius: ArrayLike | None
    discount: float
    rect: Rect
    support: Support | None
    objective: Objective
    horizon: int | None
    weights: ArrayLike | None
    cost: ArrayLike | None


class Game(NamedTuple):
    """A model with its robust Bellman operator, ready for the solvers."""

    problem: RMDP
    operator: Operator
    discount: float
    radius: np.ndarray  # [S, A], or [S] if shared
    lone: bool  # whether a shared budget is spent on the one action that is taken

    @property
    def layout(self) -> Layout:
        """The model in blocks."""
        return _blocks(self.problem, self.operator.rules, self.radius)


def make_game(
    problem: RMDP,
    given: bool,
    set: str = "l1",
    radius: ArrayLike | None = None,
    discount: float = 0.99,
    rect: Rect = "sa",
    support: Support | None = None,
    objective: Objective = "robust",
    horizon: int | None = None,
    weights: ArrayLike | None = None,
    cost: ArrayLike | None = None,
) -> Game:
    """Checks the arguments, and builds the operator.

    Args:
      problem: the nominal model.
      given: whether a policy is given; otherwise the best one is sought.
      set: see `solve`.
      radius: see `solve`.
      discount: see `solve`.
      rect: see `solve`.
      support: see `solve`.
      objective: see `solve`.
      horizon: see `solve`.
      weights: see `solve`.
      cost: see `solve`.
    """
    asked, support = support is not None, support or problem.support
    for field, value, known in (
        ("set", set, TABULAR_SETS),
        ("rect", rect, get_args(Rect)),
        ("support", support, get_args(Support)),
        ("objective", objective, get_args(Objective)),
    ):
        if value not in known:
            raise unknown(field, value, known)
    if not 0 < discount <= 1 or (horizon is None and discount == 1):
        allowed = "below 1, as there is no horizon" if horizon is None else "at most 1"
        raise DeeprokError(f"discount is {discount:g}; it must be above 0 and {allowed}")
    if horizon is not None and not (horizon >= 1 and horizon == int(horizon)):
        raise DeeprokError(f"horizon is {horizon}; it must be a whole number of at least 1")
    sign = {"robust": 1, "optimistic": -1, "nominal": 0}[objective]
    family, extra = _with_extra(problem, set, weights, cost)
    if sign and rect == "s" and not family.shares_budget:
        budgets = _names(lambda other: other.shares_budget)
        raise DeeprokError(f"rect is 's' and set '{set}'; the sets with a budget to share are {budgets}")
    if sign and family.of_models and problem.models is None:
        raise DeeprokError(f"set is '{set}', but the problem has no models; make it with from_models")
    level = check_radius(problem, set, radius, rect) if sign else np.zeros((problem.states, problem.actions))
    # In the best case a shared budget is spent on the best action, which is then taken, unless a policy is given.
    shared = rect == "s" and (sign > 0 or (sign < 0 and given))
    if not shared:
        level = np.ascontiguousarray(np.broadcast_to(level.T, (problem.actions, problem.states)).T)
    if sign and not asked and family.reach == "support" and not family.of_models and _may_be_more(problem):
        others = _names(lambda other: other.has_level and other.reach != "support")
        raise DeeprokError(
            f"set is '{set}', which never gives mass to an unobserved successor, but the problem is made from samples,"
            f" which may lack some; take one of {others}, or give support='nominal'"
        )
    candidates = _candidates(problem, family, support) if sign else "nominal"
    rules = Rules(family if sign else None, sign, shared, candidates)
    lone = rect == "s" and sign < 0 and not given
    operator = Operator(_table(problem, rules, level), extra, rules)
    return Game(problem, operator, discount, level, lone)


def _table(problem: RMDP, rules: Rules, radius: np.ndarray) -> Table:
    """Columns if the model is dense and the set has `worst_values`; else blocks."""
    S, A = problem.states, problem.actions
    known = rules.set is not None and rules.set.worst_values is not None and not rules.shared
    dense = known and 4 * len(problem.reward) >= S * S * A
    reached = len(problem.reward) if rules.candidates == "listed" else (problem.probability > 0).sum()
    full = rules.candidates == "worst" or reached == problem.valid.sum() * S
    if dense and full and problem.constant.all():
        return as_columns(problem, radius)
    return _blocks(problem, rules, radius)


def _blocks(problem: RMDP, rules: Rules, radius: np.ndarray) -> Layout:
    models = rules.set is not None and rules.set.of_models
    return lay_out(problem, radius, models, rules.candidates in ("listed", "every"), rules.candidates == "every")


def _names(fits: Callable[[AmbiguitySet], bool]) -> str:
    """The names of the sets with a property, for error messages."""
    return ", ".join(name for name, family in TABULAR_SETS.items() if fits(family))


def _candidates(problem: RMDP, family: AmbiguitySet, support: Support) -> Candidates:
    """The successors that may get mass, by the set and the support."""
    if support == "nominal" or family.reach == "support":
        return "nominal"
    if support == "listed":
        return "listed"
    constant, length = problem.constant, np.diff(problem.start)
    if constant.all():
        return "worst" if family.reach == "worst" else "every"
    unknown_reward = np.flatnonzero(~constant & (length < problem.states))
    if unknown_reward.size:
        row = int(unknown_reward[0])
        raise DeeprokError(
            f"support is 'all', but the rewards of (s, a) = {divmod(row, problem.actions)} differ by successor and"
            f" are known for {length[row]} of {problem.states} states; list the others too, with probability 0"
        )
    return "every"


def _may_be_more(problem: RMDP) -> bool:
    """Whether nature may move mass to a successor of nominal probability 0."""
    if problem.support == "listed":
        return bool((problem.probability == 0).any())
    positive = (problem.probability > 0).sum()
    return problem.support == "all" and bool(positive < problem.valid.sum() * problem.states)


def _with_extra(
    problem: RMDP, set: str, weights: ArrayLike | None, cost: ArrayLike | None
) -> tuple[AmbiguitySet, jax.Array | None]:
    """The set, and its further argument: weights [S], or costs [S, S]."""
    S, family = problem.states, TABULAR_SETS[set]
    if weights is not None:
        if family.weighted is None:
            known = _names(lambda other: other.weighted is not None)
            raise DeeprokError(f"weights are given, but set is '{set}'; sets with weights: {known}")
        array = np.asarray(weights, float)
        if array.shape != (S,):
            raise DeeprokError(f"weights has the shape {list(array.shape)}; it must be [S] = [{S}]")
        check_weights(array)
        return family.weighted, jnp.asarray(array)
    if cost is not None:
        if not family.takes_cost:
            known = _names(lambda other: other.takes_cost)
            raise DeeprokError(f"cost is given, but set is '{set}'; sets with costs: {known}")
        array = np.asarray(cost, float)
        if array.shape != (S, S):
            raise DeeprokError(f"cost has the shape {list(array.shape)}; it must be [S, S] = [{S}, {S}]")
        check_cost(array)
        return family, jnp.asarray(array)
    return family, None


def check_radius(problem: RMDP, set: str, radius: ArrayLike | None, rect: Rect) -> np.ndarray:
    """The radius as [S, A], or as [S] if it is a shared budget; raises if the set does not allow it."""
    S, A = problem.states, problem.actions
    if radius is None and TABULAR_SETS[set].has_level:
        raise DeeprokError(f"radius is not given; the set {set} needs one")
    given = np.asarray(0.0 if radius is None else radius, float)
    if given.ndim > 2 or given.shape not in ((), (S,), (S, A)) or (rect == "s" and given.ndim == 2):
        allowed = f"[S] = [{S}]" + ("" if rect == "s" else f" or [S, A] = [{S}, {A}]")
        raise DeeprokError(f"radius has the shape {list(given.shape)}; it must be a number or {allowed}")
    full = np.broadcast_to(given[:, None] if given.ndim == 1 else given, (S, A))
    at = np.where(problem.valid, full, full[problem.valid][0])
    for extreme in (np.argmin(at), np.argmax(at)):  # NaN if there is one
        s, a = divmod(int(extreme), A)
        where = "" if not given.ndim else f" at s = {s}" if given.ndim == 1 else f" at (s, a) = ({s}, {a})"
        TABULAR_SETS[set].check_level(float(at[s, a]), field=f"radius{where}")
        if rect == "s" and not math.isfinite(at[s, a]):
            raise DeeprokError(f"radius{where} is {at[s, a]:g}; a shared budget must be finite")
    return np.ascontiguousarray(full[:, 0] if rect == "s" else full)


def check_policy(problem: RMDP, policy: np.ndarray) -> np.ndarray:
    """A policy as [S] actions or [S, A] probabilities; raises if it takes actions that a state does not have."""
    S, A = problem.states, problem.actions
    if np.issubdtype(policy.dtype, np.integer) and policy.shape == (S,):
        wrong = np.flatnonzero((policy < 0) | (policy >= A) | ~problem.valid[np.arange(S), np.clip(policy, 0, A - 1)])
        if wrong.size:
            s = wrong[0]
            raise DeeprokError(f"policy takes action {policy[s]} in state {s}, which does not have it")
        return policy
    if policy.shape != (S, A):
        raise DeeprokError(
            f"policy has the shape {list(policy.shape)} and the type {policy.dtype}; it must be [S] = [{S}] whole"
            f" numbers or [S, A] = [{S}, {A}] probabilities"
        )
    wrong = np.flatnonzero(
        ~((policy >= 0).all(1) & (np.abs(policy.sum(1) - 1) < 1e-6) & ~((policy > 0) & ~problem.valid).any(1))
    )
    if wrong.size:
        raise DeeprokError(
            f"policy is {policy[wrong[0]].tolist()} in state {wrong[0]}; it must be probabilities of actions that the"
            " state has"
        )
    return policy / policy.sum(1, keepdims=True)
