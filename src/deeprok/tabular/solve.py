"""Exact solution of robust Markov decision processes: values, policies, and what nature does.

Every operator L here is monotone, and adding c to all values adds γc to its result. So for δ = LV − V

    LV + γ/(1−γ) · min δ  ≤  V*  ≤  LV + γ/(1−γ) · max δ

as in ordinary dynamic programming (MacQueen). Each sweep moves its result to the middle of these bounds,
which changes neither policies nor the span of δ. Residuals then shrink with the span: never slower than
γ, and much faster on models that mix.

G. N. Iyengar, "Robust dynamic programming", Mathematics of Operations Research 30(2), 2005.
A. Nilim and L. El Ghaoui, "Robust control of Markov decision processes with uncertain transition
matrices", Operations Research 53(5), 2005.
D. L. Kaufman and A. J. Schaefer, "Robust modified policy iteration", INFORMS Journal on Computing 25(3),
2013.
C. P. Ho, M. Petrik and W. Wiesemann, "Partial policy iteration for L1-robust Markov decision
processes", Journal of Machine Learning Research 22(275), 2021.
J. MacQueen, "A modified dynamic programming method for Markovian decision problems", Journal of
Mathematical Analysis and Applications 14, 1966.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypedDict, Unpack, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.pytree import record
from deeprok.tabular import s_rectangular as srect
from deeprok.tabular.model import RMDP, Block, Layout, Support, from_transitions, lay_out
from deeprok.uncertainty import sets
from deeprok.uncertainty.sets import AmbiguitySet, Tangent, WorstCase
from deeprok.uncertainty.sets.ellipsoid import check_weights
from deeprok.uncertainty.sets.transport import check_cost

Rect = Literal["sa", "s"]
Objective = Literal["robust", "optimistic", "nominal"]
Method = Literal["vi", "ppi", "mpi"]

#: Sets by name: those of `deeprok.uncertainty`, and the models of a problem.
SETS: dict[str, AmbiguitySet] = sets.SETS | sets.MODEL_SETS

_EVALUATIONS = 20  # sweeps between two improvements of modified policy iteration
_PATIENCE = 100  # sweeps without a smaller residual, after which only rounding is left of it
_TURNS = 5  # of policy iteration without a smaller residual, after which value iteration goes on
_SECONDS = 0.25  # between two looks at what the device does


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found. With a horizon, values, q and policy have a first axis of stages.

    Attributes:
      values: [S] the value of each state.
      q: [S, A] the value of each action against nature's answer, −∞ where a state does not have it.
      policy: [S] the best action, or [S, A] the probability of each (s-rectangular, or as given).
      residual: the largest change of a value in the last sweep.
      error_bound: but for rounding, no value is farther than that from the best one there is, nor from what
        the policy is worth against nature: γ/(1−γ) times the residual. Where actions share a budget, values
        are those of the policy that is returned, and what it falls short of the best one is added.
      iterations: sweeps over all states.
      seconds: how long it took, with compilation.
    """

    values: np.ndarray
    q: np.ndarray
    policy: np.ndarray
    residual: float
    error_bound: float
    iterations: int
    seconds: float
    _answer: Callable[[int], RMDP] = dataclasses.field(repr=False)

    def worst_model(self, stage: int = 0) -> RMDP:
        """The model that nature chooses (the best one if it is a friend).

        The policy has the same values in it, by ordinary dynamic programming (but for the set
        `entropic`, where nature pays for leaving the nominal model).

        Args:
          stage: the decision it answers, of a finite horizon.
        """
        return self._answer(stage)


class Setting(TypedDict, total=False):
    """What nature may do, and for how long: the arguments that `solve` and `evaluate` share."""

    set: str
    radius: ArrayLike | None
    discount: float
    rect: Rect
    support: Support | None
    objective: Objective
    horizon: int | None
    weights: ArrayLike | None
    cost: ArrayLike | None


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
    advance: Callable[[float], None] | None = None,
) -> Solution:
    """The best policy against what nature may do.

    Args:
      problem: the nominal model.
      set: the family of sets, a name of `SETS`.
      radius: the level of the set: a number, [S] or [S, A]; `minimum` and `finite` have none.
      discount: γ, above 0 and below 1; 1 with a horizon only.
      rect: `sa`: nature answers each state and action by itself; `s`: the radius is a budget for all
        actions of a state, and the best policy is randomised.
      support: where nature may move mass: `nominal`, to the successors of positive probability; `listed`, to
        those that the problem lists with probability 0 too; `all`, to all states. If not given `nominal`, or
        for a problem made of samples all that it does not rule out.
      objective: `robust`: nature is the enemy; `optimistic`: a friend; `nominal`: there is no nature.
      tol: the error bound to reach.
      horizon: the number of decisions; without end if not given.
      method: `vi` value iteration, `ppi` partial policy iteration, `mpi` modified policy iteration;
        if not given `ppi`, or `vi` where policies can't be evaluated.
      weights: [S] of successors, for the sets `l1` and `l2`; all 1 if not given.
      cost: [S, S] of moving mass between states, for `wasserstein`; |i − j| if not given.
      advance: called with the fraction of the work done since its last call.
    """
    began = time.perf_counter()
    if method is not None and method not in get_args(Method):
        raise unknown("method", method, get_args(Method))
    with jax.enable_x64(True):
        game = _game(problem, False, set, radius, discount, rect, support, objective, horizon, weights, cost)
        if horizon is not None:
            return _finish(game, _stages(game, horizon, None, advance), began)
        work = _Work(_check_tol(tol), advance)
        # To find the best policy by tangents takes less than to evaluate one.
        chosen = method or ("vi" if game.rules.shared and game.rules.by_tangents else "ppi")
        found = _value_iteration(game, work, None) if chosen == "vi" else _policy_iteration(game, work, chosen)
        return _finish(game, found, began)


def evaluate(
    problem: RMDP,
    policy: ArrayLike,
    tol: float = 1e-8,
    advance: Callable[[float], None] | None = None,
    **setting: Unpack[Setting],
) -> Solution:
    """What a policy is worth against what nature may do.

    Args:
      problem: the nominal model.
      policy: [S] an action for each state (whole numbers), or [S, A] probabilities of actions.
      tol: the error bound to reach.
      advance: called with the fraction of the work done since its last call.
      **setting: as in `solve`.
    """
    began = time.perf_counter()
    chosen = _check_policy(problem, np.asarray(policy))
    with jax.enable_x64(True):
        game = _game(problem, True, **setting)
        given = jnp.asarray(chosen)
        if game.rules.shared and given.ndim == 1:
            given = jax.nn.one_hot(given, problem.actions, dtype=float)
        horizon = setting.get("horizon")
        if horizon is not None:
            return _finish(game, _stages(game, horizon, given, advance), began)
        return _finish(game, _value_iteration(game, _Work(_check_tol(tol), advance), given), began)


# --- the game ------------------------------------------------------------------------------------------


#: Outcomes to look at: nominal successors, all that are listed, nominal ones and the worst state, all states.
Reach = Literal["nominal", "listed", "worst", "every"]


class _Rules(NamedTuple):
    """What a sweep is compiled for."""

    set: AmbiguitySet | None  # None if nature is absent
    sign: int  # 1: nature is the enemy, −1: a friend, 0: absent
    shared: bool  # whether the actions of a state share a budget
    reach: Reach

    @property
    def by_tangents(self) -> bool:
        """Whether a shared budget is solved by tangents, as the set has no method of its own."""
        return self.set is not None and self.set.shared is None


@record
class _Columns:
    """A dense model whose rewards don't depend on the successor: what `AmbiguitySet.worst_values` works on."""

    columns: jax.Array  # [S', S, A] probabilities, the successor first
    reward: jax.Array  # [S, A]
    radius: jax.Array  # [S, A]
    valid: jax.Array  # [S, A]


_Table = Layout | _Columns


class _Game(NamedTuple):
    """A problem as the solvers see it."""

    problem: RMDP
    rules: _Rules
    discount: float
    radius: np.ndarray  # [S, A], or [S] if shared
    extra: jax.Array | None  # weights [S] or cost [S, S]
    lone: bool  # whether nature spends a shared budget on the one action that is taken
    table: _Table


def _game(
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
) -> _Game:
    """Checks a setting and lays the problem out for it; `given` says that the policy is."""
    asked, support = support is not None, support or problem.support
    for field, value, known in (
        ("set", set, tuple(SETS)),
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
    if sign and rect == "s" and not srect.shares_budget(family):
        budgets = _names(srect.shares_budget)
        raise DeeprokError(f"rect is 's' and set '{set}'; the sets with a budget to share are {budgets}")
    if sign and family.of_models and problem.models is None:
        raise DeeprokError(f"set is '{set}', but the problem has no models; make it with from_models")
    level = check_radius(problem, set, radius, rect) if sign else np.zeros((problem.states, problem.actions))
    # A friend spends a shared budget on the best action, which is taken, unless a given policy mixes some.
    shared = rect == "s" and (sign > 0 or (sign < 0 and given))
    if not shared:
        level = np.ascontiguousarray(np.broadcast_to(level.T, (problem.actions, problem.states)).T)
    if sign and not asked and family.reach == "support" and not family.of_models and _may_be_more(problem):
        others = _names(lambda other: other.has_level and other.reach != "support")
        raise DeeprokError(
            f"set is '{set}', which never gives mass to a successor that was not seen, but the problem is made of"
            f" samples that need not show all; take one of {others}, or give support='nominal'"
        )
    reach = _reach(problem, family, support) if sign else "nominal"
    rules = _Rules(family if sign else None, sign, shared, reach)
    lone = rect == "s" and sign < 0 and not given
    return _Game(problem, rules, discount, level, extra, lone, _table(problem, rules, level))


def _table(problem: RMDP, rules: _Rules, radius: np.ndarray) -> _Table:
    """Columns if rows are dense and nature moves the same way in all of them; else blocks."""
    S, A = problem.states, problem.actions
    known = rules.set is not None and rules.set.worst_values is not None and not rules.shared
    dense = known and 4 * len(problem.reward) >= S * S * A
    reached = len(problem.reward) if rules.reach == "listed" else (problem.probability > 0).sum()
    full = rules.reach == "worst" or reached == problem.valid.sum() * S
    if not (dense and full and problem.constant.all()):
        return _blocks(problem, rules, radius)
    if len(problem.reward) == S * A * S:
        rows = problem.probability.reshape(S * A, S)
    else:
        rows = np.zeros((S * A, S))
        rows[problem.row, problem.successor] = problem.probability
    columns = np.ascontiguousarray(rows.T).reshape(S, S, A)
    reward = problem.reward[np.minimum(problem.start[:-1], len(problem.reward) - 1)].reshape(S, A)
    return _Columns(*map(jnp.asarray, (columns, reward, radius, problem.valid)))


def _blocks(problem: RMDP, rules: _Rules, radius: np.ndarray) -> Layout:
    models = rules.set is not None and rules.set.of_models
    return lay_out(problem, radius, models, rules.reach in ("listed", "every"), rules.reach == "every")


def _names(fits: Callable[[AmbiguitySet], bool]) -> str:
    """The sets that a sentence offers."""
    return ", ".join(name for name, family in SETS.items() if fits(family))


def _reach(problem: RMDP, family: AmbiguitySet, support: Support) -> Reach:
    """Where nature must look for a set, by where it may move mass."""
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


def _check_tol(tol: float) -> float:
    if not tol > 0:
        raise DeeprokError(f"tol is {tol:g}; it must be above 0")
    return tol


def check_radius(problem: RMDP, set: str, radius: ArrayLike | None, rect: Rect) -> np.ndarray:
    """[S, A], or [S] if it is a budget; raises if the set can't take one of them."""
    S, A = problem.states, problem.actions
    if radius is None and SETS[set].has_level:
        raise DeeprokError(f"radius is not given; the set {set} needs one")
    given = np.asarray(0.0 if radius is None else radius, float)
    if given.ndim > 2 or given.shape not in ((), (S,), (S, A)) or (rect == "s" and given.ndim == 2):
        allowed = f"[S] = [{S}]" + ("" if rect == "s" else f" or [S, A] = [{S}, {A}]")
        raise DeeprokError(f"radius has the shape {list(given.shape)}; it must be a number or {allowed}")
    full = np.broadcast_to(given[:, None] if given.ndim == 1 else given, (S, A))
    at = np.where(problem.valid, full, full[problem.valid][0])
    for extreme in (np.argmin(at), np.argmax(at)):  # which is a nan if there is one
        s, a = divmod(int(extreme), A)
        where = "" if not given.ndim else f" at s = {s}" if given.ndim == 1 else f" at (s, a) = ({s}, {a})"
        SETS[set].check_level(float(at[s, a]), field=f"radius{where}")
        if rect == "s" and not math.isfinite(at[s, a]):
            raise DeeprokError(f"radius{where} is {at[s, a]:g}; a budget to share is a finite number")
    return np.ascontiguousarray(full[:, 0] if rect == "s" else full)


def _with_extra(
    problem: RMDP, set: str, weights: ArrayLike | None, cost: ArrayLike | None
) -> tuple[AmbiguitySet, jax.Array | None]:
    """The set with what it is told of the states: weights [S], or costs [S, S]."""
    S, family = problem.states, SETS[set]
    if weights is not None:
        if family.weighted is None:
            known = _names(lambda other: other.weighted is not None)
            raise DeeprokError(f"weights are given, but set is '{set}'; the sets with weights are {known}")
        array = np.asarray(weights, float)
        if array.shape != (S,):
            raise DeeprokError(f"weights has the shape {list(array.shape)}; it must be [S] = [{S}]")
        check_weights(array)
        return family.weighted, jnp.asarray(array)
    if cost is not None:
        if not family.takes_cost:
            known = _names(lambda other: other.takes_cost)
            raise DeeprokError(f"cost is given, but set is '{set}'; the sets with costs are {known}")
        array = np.asarray(cost, float)
        if array.shape != (S, S):
            raise DeeprokError(f"cost has the shape {list(array.shape)}; it must be [S, S] = [{S}, {S}]")
        check_cost(array)
        return family, jnp.asarray(array)
    return family, None


def _check_policy(problem: RMDP, policy: np.ndarray) -> np.ndarray:
    """[S] actions or [S, A] probabilities that the problem's states have."""
    S, A = problem.states, problem.actions
    if np.issubdtype(policy.dtype, np.integer) and policy.shape == (S,):
        wrong = np.flatnonzero((policy < 0) | (policy >= A) | ~problem.valid[np.arange(S), np.clip(policy, 0, A - 1)])
        if wrong.size:
            s = wrong[0]
            raise DeeprokError(f"policy takes action {policy[s]} in state {s}, which has not got it")
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


# --- one sweep -----------------------------------------------------------------------------------------


class _Outcomes(NamedTuple):
    """What may follow a state and action."""

    p: jax.Array  # [M], or [K, M] of K models
    values: jax.Array  # [M] such that nature wants the least
    state: jax.Array  # [M] int32
    reward: jax.Array  # [M]


def _outcomes(
    rules: _Rules,
    ahead: jax.Array,
    worst: jax.Array,
    length: jax.Array | None,
    successor: jax.Array,
    probability: jax.Array,
    reward: jax.Array,
) -> _Outcomes:
    """The outcomes of one row, those that are padding worth more than all others.

    Sets compare values with one another, and the compiler may compute a value anew for each comparison:
    a product and a sum it then rounds once here and twice there, and a value can be less than itself. So
    γV comes in as an array. A sum alone is always the same.

    Args:
      rules: of the game.
      ahead: [S] γV.
      worst: the state that nature likes best.
      length: and what follows: one row of a `Block`.
      successor: see `Block`.
      probability: see `Block`.
      reward: see `Block`.
    """
    reward = jnp.broadcast_to(reward, successor.shape)
    sign = rules.sign or 1
    if rules.reach == "every":
        everywhere = jnp.arange(len(ahead), dtype=jnp.int32)
        p = jnp.zeros_like(ahead).at[successor].add(probability)
        rewards = jnp.full_like(ahead, reward[0]).at[successor].set(reward)
        return _Outcomes(p, sign * (rewards + ahead), everywhere, rewards)
    v = sign * (reward + ahead[successor])
    if length is not None:
        real = jnp.arange(len(v)) < length
        high, low = jnp.max(jnp.where(real, v, -jnp.inf)), jnp.min(jnp.where(real, v, jnp.inf))
        v = jnp.where(real, v, high + jnp.where(high > low, high - low, 1.0))
    if rules.reach == "worst":  # its reward is that of the row, whatever the successor
        probability = jnp.append(probability, 0.0)
        v = jnp.append(v, sign * (reward[0] + ahead[worst]))
        successor = jnp.append(successor, worst.astype(successor.dtype))
        reward = jnp.append(reward, reward[0])
    return _Outcomes(probability, v, successor, reward)


def _options(family: AmbiguitySet, extra: jax.Array | None, outcomes: _Outcomes) -> tuple[jax.Array, ...]:
    """What a set is told of the outcomes of one row: their weights, or the costs between them."""
    state = outcomes.state
    if family.takes_cost:
        apart = jnp.abs(state[:, None] - state[None, :]).astype(outcomes.values.dtype)
        return (apart if extra is None else extra[state][:, state],)
    return () if extra is None else (extra[state],)


def _tangent(family: AmbiguitySet, extra: jax.Array | None, outcomes: _Outcomes, level: jax.Array) -> Tangent:
    """What nature makes of one row, for a set that has tangents."""
    if family.tangent is None:
        raise TypeError("the set has neither tangents nor a method for shared budgets")
    return family.tangent(outcomes.p, outcomes.values, level, *_options(family, extra, outcomes))


def _worst_case(rules: _Rules, extra: jax.Array | None, outcomes: _Outcomes, level: jax.Array) -> WorstCase:
    """What nature makes of one row."""
    if rules.set is None:
        return WorstCase(outcomes.p @ outcomes.values, outcomes.p)
    return rules.set.worst_case(outcomes.p, outcomes.values, level, *_options(rules.set, extra, outcomes))


class _Answer(NamedTuple):
    """Nature's answer in one state."""

    q: jax.Array  # [A]
    distribution: jax.Array  # [A, M]
    outcomes: _Outcomes  # [A, ...]
    shared: tuple[jax.Array, jax.Array] | None  # [] the value and [A] the policy, if actions share a budget


def _state(
    rules: _Rules, extra: jax.Array | None, ahead: jax.Array, worst: jax.Array, block: Block, given: jax.Array | None
) -> _Answer:
    """Nature's answer in one state.

    Args:
      rules: of the game.
      extra: weights or costs.
      ahead: [S] γV.
      worst: the state that nature likes best.
      block: one state of it.
      given: [A] the policy that shares a budget, if it is given.
    """
    row = functools.partial(_outcomes, rules, ahead, worst)
    outcomes = jax.vmap(row)(block.length, block.successor, block.probability, block.reward)
    if rules.set is None or not rules.shared:
        q, distribution = jax.vmap(functools.partial(_worst_case, rules, extra))(outcomes, block.radius)
        return _Answer(jnp.where(block.valid, (rules.sign or 1) * q, -jnp.inf), distribution, outcomes, None)
    third = block.valid if given is None else given
    if rules.set.shared is None:
        least = jnp.min(outcomes.values)  # nearly equal values keep their digits if they are measured from there
        moved = outcomes._replace(values=outcomes.values - least)
        tangent = functools.partial(jax.vmap(functools.partial(_tangent, rules.set, extra)), moved)
        found = (srect.by_tangents if given is None else srect.of_policy_by_tangents)(tangent, third, block.radius)
        found = found._replace(value=least + found.value)
    else:
        backup = rules.set.shared.best_policy if given is None else rules.set.shared.of_policy
        found = backup(outcomes.p, outcomes.values, third, block.radius)
    expected = jnp.sum(found.distribution * outcomes.values, axis=1)
    q = jnp.where(block.valid, rules.sign * expected, -jnp.inf)
    return _Answer(q, found.distribution, outcomes, (rules.sign * found.value, found.policy))


def _chunk(rules: _Rules, extra: jax.Array | None, ahead: jax.Array, part: Block, policy: jax.Array | None) -> _Answer:
    """Nature's answers in the states of a chunk, [B, ...]."""
    worst = jnp.argmin((rules.sign or 1) * ahead)
    given = policy[part.state, : part.valid.shape[1]] if rules.shared and policy is not None else None
    state = functools.partial(_state, rules, extra, ahead, worst)
    return jax.vmap(state, (0, None if given is None else 0))(part, given)


class _Sweep(NamedTuple):
    """LV and what goes with it."""

    values: jax.Array  # [S]
    policy: jax.Array  # [S] or [S, A]
    q: jax.Array  # [S, A]


@functools.partial(jax.jit, static_argnames="rules")
def _sweep(rules: _Rules, extra: jax.Array | None, table: _Table, ahead: jax.Array, policy: jax.Array | None) -> _Sweep:
    """One step of dynamic programming in every state, for the best policy or a given one.

    Args:
      rules: of the game.
      extra: weights or costs.
      table: the problem.
      ahead: [S] γV, in memory and not about to be computed (see `_outcomes`).
      policy: [S], or [S, A] as it must be if a budget is shared; if it is given.
    """
    if isinstance(table, _Columns):
        flat = table.columns.reshape(len(ahead), -1)
        worst_values = rules.set.worst_values if rules.set else None
        if worst_values is None:
            raise TypeError("the set has no worst_values, which columns are made for")
        worst = worst_values(flat, rules.sign * ahead, table.radius.reshape(-1)).reshape(table.reward.shape)
        q = jnp.where(table.valid, table.reward + rules.sign * worst, -jnp.inf)
    else:

        def chunk(part: Block) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
            answer = _chunk(rules, extra, ahead, part, policy)
            return answer.q, answer.shared

        answers = [jax.lax.map(chunk, block) for block in table.blocks]
        q = _join([q for q, _ in answers], table.position, -jnp.inf)
        if rules.shared:
            values, mixed = (_join([shared[i] for _, shared in answers if shared], table.position) for i in (0, 1))
            return _Sweep(values, mixed, q)
    if policy is None:
        return _Sweep(jnp.max(q, axis=1), jnp.argmax(q, axis=1), q)
    if policy.ndim == 1:
        return _Sweep(jnp.take_along_axis(q, policy[:, None], axis=1)[:, 0], policy, q)
    return _Sweep(jnp.sum(jnp.where(policy > 0, policy * q, 0.0), axis=1), policy, q)


def _join(parts: list[jax.Array], position: jax.Array, missing: float = 0.0) -> jax.Array:
    """What blocks found for their states, [C, B, ...] each, in the order of the states [S, ...]."""
    flat = [x.reshape(-1, *x.shape[2:]) for x in parts]
    if flat[0].ndim == 2:
        most = max(x.shape[1] for x in flat)
        flat = [jnp.pad(x, ((0, 0), (0, most - x.shape[1])), constant_values=missing) for x in flat]
    if len(flat) == 1:  # where they already stand in order
        return flat[0][: len(position)]
    return jnp.concatenate(flat)[position]


@jax.jit
def _restrict(table: _Table, policy: jax.Array) -> _Table:
    """The problem of a policy [S]: each state has the one action it takes."""
    if isinstance(table, _Columns):
        states = jnp.arange(len(policy))
        columns = table.columns[:, states, policy][:, :, None]
        reward, radius, valid = (x[states, policy][:, None] for x in (table.reward, table.radius, table.valid))
        return _Columns(columns, reward, radius, valid)

    def of(block: Block) -> Block:
        taken = jnp.minimum(policy[block.state], block.valid.shape[2] - 1)

        def pick(x: jax.Array) -> jax.Array:
            return jnp.take_along_axis(x, taken.reshape(taken.shape + (1,) * (x.ndim - 2)), axis=2)

        rows = (block.valid, block.length, block.successor, block.probability, block.reward, block.radius)
        return Block(block.state, *jax.tree.map(pick, rows))

    return Layout(tuple(map(of, table.blocks)), table.position)


# --- iterations ----------------------------------------------------------------------------------------


class _Iterate(NamedTuple):
    """Value iteration on its way."""

    before: jax.Array  # [S] the V that was swept
    values: jax.Array  # [S] V, in the middle of its bounds
    ahead: jax.Array  # [S] γV
    sweep: _Sweep  # of the V before it
    residual: jax.Array  # [] the largest |LV − V| of that sweep
    best: jax.Array  # [] the least residual so far
    waited: jax.Array  # [] sweeps since then
    sweeps: jax.Array  # []


@functools.partial(jax.jit, static_argnames="rules")
def _iterate(
    rules: _Rules,
    discount: jax.Array,
    extra: jax.Array | None,
    table: _Table,
    policy: jax.Array | None,
    goal: jax.Array,
    limit: jax.Array,
    begin: _Iterate,
) -> _Iterate:
    """Sweeps until the residual is at most the goal, or `limit` are done."""

    def step(now: _Iterate) -> _Iterate:
        sweep = _sweep(rules, extra, table, now.ahead, policy)
        change = sweep.values - now.values
        low, high = jnp.min(change), jnp.max(change)
        values = sweep.values + discount / (1 - discount) * (low + high) / 2
        residual = jnp.maximum(-low, high)
        waited = jnp.where(residual < now.best, 0, now.waited + 1)
        best = jnp.minimum(residual, now.best)
        return _Iterate(now.values, values, discount * values, sweep, residual, best, waited, now.sweeps + 1)

    def unfinished(now: _Iterate) -> jax.Array:
        return (now.residual > goal) & (now.waited < _PATIENCE) & (now.sweeps < limit)

    return jax.lax.while_loop(unfinished, step, begin)


class _Work:
    """Watches the error bound fall: what is done is counted in its digits."""

    def __init__(self, tol: float, advance: Callable[[float], None] | None) -> None:
        self.tol = tol
        self._advance = advance
        self._first = 0.0
        self._done = 0.0

    def at(self, bound: float) -> None:
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


class _Found(NamedTuple):
    """Where a method ended."""

    sweep: Sequence[jax.Array | np.ndarray]  # values, policy and q
    residual: float
    iterations: int
    following: list[jax.Array]  # [S] the values that nature answers at each stage
    policy: jax.Array | None  # if it was given
    shortfall: float = 0.0  # of the returned policy's values to the best ones, in one sweep or over all stages


def _blank(game: _Game, table: _Table, policy: jax.Array | None) -> _Sweep:
    """A sweep that was not made."""
    S = game.problem.states
    actions = (block.valid.shape[2] for block in table.blocks) if isinstance(table, Layout) else [table.valid.shape[1]]
    q = jnp.zeros((S, max(actions)))
    if policy is None:
        policy = jnp.zeros_like(q) if game.rules.shared else jnp.zeros(S, int)
    return _Sweep(jnp.zeros(S), policy, q)


def _until(
    game: _Game,
    table: _Table,
    policy: jax.Array | None,
    values: jax.Array,
    goal: float,
    limit: float = math.inf,
    report: Callable[[float], None] = lambda residual: None,
) -> _Iterate:
    """Value iteration until the residual is at most the goal, reported every now and then."""
    blank = _blank(game, table, policy)
    fixed = (game.rules, jnp.float64(game.discount), game.extra, table)
    numbers = (*map(jnp.float64, (math.inf, math.inf)), *map(jnp.int64, (0, 0)))
    now = _Iterate(values, values, game.discount * values, blank, *numbers)
    portion = 1
    while True:
        began, done = time.perf_counter(), int(now.sweeps)
        now = _iterate(*fixed, policy, jnp.float64(goal), jnp.int64(min(done + portion, limit)), now)
        residual = float(now.residual)
        report(residual)
        if not residual > goal or int(now.waited) >= _PATIENCE or int(now.sweeps) >= limit:
            return now
        if time.perf_counter() - began < _SECONDS:
            portion *= 2


def _value_iteration(
    game: _Game, work: _Work, policy: jax.Array | None, values: jax.Array | None = None, before: int = 0
) -> _Found:
    """Value iteration, for the best policy or a given one, from values found by so many sweeps before."""
    scale = game.discount / (1 - game.discount)
    values = jnp.zeros(game.problem.states) if values is None else values
    now = _until(game, game.table, policy, values, work.tol / scale, report=lambda r: work.at(scale * r))
    return _certified(game, now, before + int(now.sweeps), policy)


def _certified(game: _Game, now: _Iterate, iterations: int, policy: jax.Array | None) -> _Found:
    """What was found, with the values of its own policy.

    That the best action is worth the value of a state is seen at once. That a mixture of actions is, when they
    share a budget, takes a sweep of its own: its values, its residual and by how much it falls short.
    """
    sweep, residual = now.sweep, float(now.residual)
    if not game.rules.shared or policy is not None:
        return _Found(sweep, residual, iterations, [sweep.values], policy)
    own = _until(game, game.table, sweep.policy, now.before, 0.0, limit=1)
    shortfall = float(jnp.max(jnp.abs(sweep.values - own.sweep.values)))
    certain = sweep._replace(values=own.sweep.values)
    return _Found(certain, max(residual, float(own.residual)), iterations + 1, [sweep.values], None, shortfall)


def _policy_iteration(game: _Game, work: _Work, method: Method) -> _Found:
    """Policies improved in turns with their evaluation, each of which is a convergent iteration.

    Partial policy iteration evaluates to a residual that falls faster than γ from turn to turn; modified
    policy iteration by a fixed number of sweeps. Either converges, but not every turn need lower the
    residual: after some that did not, value iteration ends the work, in which every sweep does.
    """
    scale = game.discount / (1 - game.discount)
    values = jnp.zeros(game.problem.states)
    iterations, goal, best, waited = 0, math.inf, math.inf, 0
    while True:
        now = _until(game, game.table, None, values, 0.0, limit=1)
        residual, policy = float(now.residual), now.sweep.policy
        work.at(scale * residual)
        iterations += 1
        best, waited = (residual, 0) if residual < best else (best, waited + 1)
        if scale * residual <= work.tol:
            return _certified(game, now, iterations, None)
        if waited >= _TURNS:
            return _value_iteration(game, work, None, now.values, iterations)
        one = policy.ndim == 1
        table, weights = (_restrict(game.table, policy), None) if one else (game.table, policy)
        if method == "ppi":
            goal = min(game.discount**2 * goal, residual / 10)
            now = _until(game, table, weights, now.values, goal)
        else:
            now = _until(game, table, weights, now.values, 0.0, limit=_EVALUATIONS)
        values = now.values
        iterations += int(now.sweeps)


def _stages(game: _Game, horizon: int, policy: jax.Array | None, advance: Callable[[float], None] | None) -> _Found:
    """Backward induction."""
    values = jnp.zeros(game.problem.states)
    following, sweeps, shortfall = [], [], 0.0
    for _ in range(horizon):
        following.append(values)
        ahead = game.discount * values
        sweep = _sweep(game.rules, game.extra, game.table, ahead, policy)
        values = sweep.values
        if game.rules.shared and policy is None:  # as in `_certified`
            values = _sweep(game.rules, game.extra, game.table, ahead, sweep.policy).values
            shortfall = game.discount * shortfall + float(jnp.max(jnp.abs(sweep.values - values)))
        sweeps.append([np.asarray(part) for part in sweep._replace(values=values)])
        if advance:
            advance(1 / horizon)
    first_to_last = [np.stack(part[::-1]) for part in zip(*sweeps, strict=True)]
    return _Found(first_to_last, 0.0, horizon, following[::-1], policy, shortfall)


def _finish(game: _Game, found: _Found, began: float) -> Solution:
    values, policy, q = map(np.asarray, found.sweep)

    def answer(stage: int) -> RMDP:
        if not 0 <= stage < len(found.following):
            raise DeeprokError(f"stage is {stage}; there are the stages 0 to {len(found.following) - 1}")
        with jax.enable_x64(True):
            model = _nature(game, found.following[stage], found.policy)
        if game.lone:
            return _elsewhere_nominal(model, game.problem, policy.reshape(-1, game.problem.states)[stage])
        return model

    bound = found.shortfall + (game.discount / (1 - game.discount) * found.residual if found.residual else 0.0)
    return Solution(values, q, policy, found.residual, bound, found.iterations, time.perf_counter() - began, answer)


# --- nature's model ------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="rules")
def _answers(
    rules: _Rules, extra: jax.Array | None, ahead: jax.Array, block: Block, i: jax.Array, policy: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Nature's probabilities in chunk i of a block, the successors and the rewards, [B, A, M]."""
    answer = _chunk(rules, extra, ahead, jax.tree.map(lambda x: x[i], block), policy)
    return answer.distribution, answer.outcomes.state, answer.outcomes.reward


def _nature(game: _Game, values: jax.Array, policy: jax.Array | None) -> RMDP:
    """The model that nature answers with to the values of successors [S], and to a policy if one is given."""
    rules, ahead = game.rules, game.discount * values
    layout = _blocks(game.problem, rules, game.radius)
    position, begin = np.asarray(layout.position), 0
    found: list[tuple[np.ndarray, ...]] = []
    for block in layout.blocks:
        state, valid = np.asarray(block.state), np.asarray(block.valid)
        for i in range(len(state)):
            p, successor, reward = map(np.asarray, _answers(rules, game.extra, ahead, block, i, policy))
            once = position[state[i]] == begin + np.arange(len(state[i]))  # the last chunk is filled up with one state
            kept = np.nonzero((p > 0) & (valid[i] & once[:, None])[:, :, None])
            found.append((state[i][kept[0]], kept[1], successor[kept], p[kept], reward[kept]))
            begin += len(state[i])
    return from_transitions(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _elsewhere_nominal(model: RMDP, problem: RMDP, policy: np.ndarray) -> RMDP:
    """A model where the policy's actions are taken, the nominal problem where they are not."""

    def part(of: RMDP, taken: bool) -> tuple[np.ndarray, ...]:
        state, action = np.divmod(of.row, of.actions)
        kept = (action == policy[state]) == taken
        return tuple(x[kept] for x in (state, action, of.successor, of.probability, of.reward))

    return from_transitions(*map(np.concatenate, zip(part(model, True), part(problem, False), strict=True)))
