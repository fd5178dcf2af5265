"""Ambiguity sets from counts, and policies whose value is guaranteed with a given confidence.

The sets of all rows together contain the true transition probabilities with that confidence, so the robust value of any
policy is a lower bound of its true value. What was never seen may happen: successors without a sample are possible, and
nothing is assumed of a state and action without any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, TypedDict, get_args

import numpy as np
from numpy.typing import ArrayLike

from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular.counts import Counts, Possible, check_size
from deeprok.tabular.credible import DISTANCES, credible_sets
from deeprok.tabular.known import RewardsBy, check_bounds, known_rewards, possible_successors, usable_actions
from deeprok.tabular.model import RMDP, assemble, nowhere
from deeprok.tabular.samples import radii
from deeprok.tabular.setting import Setting
from deeprok.tabular.solution import Solution, solve
from deeprok.tabular.solvers import Advance, Method
from deeprok.tabular.sweep import value_of_policy
from deeprok.uncertainty.radii import RULES
from deeprok.uncertainty.sets import SETS

#: Sets that can be made of counts -> the ambiguity set that they are; a credible set has the shape that is asked for.
COUNT_SETS: dict[str, str | None] = {"l1": "l1", "linf": "linf", "likelihood": "burg", "kl": "kl", "bayes": None}


class CountSetting(TypedDict, total=False):
    """The arguments of `from_counts` besides the log; see there."""

    confidence: float
    set: str
    rule: str | None
    support: str | ArrayLike | Possible
    rewards: RewardsBy
    reward_low: float | None
    reward_high: float | None
    prior: float
    shape: str
    seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class CountedModel:
    """A model of counts with its ambiguity sets, as `solve` takes them.

    Attributes:
      counts: the log.
      problem: the centres of the sets, with the least rewards that the data allow.
      nominal: observed frequencies, and mean rewards. Where there are no data it is as `problem`.
      set: the ambiguity set, for `solve`.
      radius: [S, A], for `solve`.
      visits: [S, A] how often each state and action was seen.
      confidence: the probability with which all sets hold at once; None if it is not known.
      rule: the rule of the radii, a name of `deeprok.uncertainty.RULES`; `bayes` for credible sets.
    """

    counts: Counts
    problem: RMDP
    nominal: RMDP
    set: str
    radius: np.ndarray
    visits: np.ndarray
    confidence: float | None
    rule: str

    @property
    def without_data(self) -> np.ndarray:
        """[K, 2] the states and actions without data whose successor may be any that is possible."""
        return np.argwhere(self.problem.valid & (self.visits == 0) & (self.radius > 0))

    @property
    def left_out(self) -> np.ndarray:
        """[K, 2] the states and actions that are never taken: without data, and with a reward that is not known."""
        return np.argwhere(~self.problem.valid)

    @property
    def assumes(self) -> str:
        """What must be true of the data for the confidence to hold, beyond independent transitions."""
        return "" if self.rule == "bayes" else RULES[self.rule].assumes

    def setting(self, discount: float, horizon: int | None = None) -> Setting:
        """The arguments of `solve` with which `problem` is robust."""
        return {"set": self.set, "radius": self.radius, "discount": discount, "horizon": horizon}

    def nominal_setting(self, discount: float, horizon: int | None = None) -> Setting:
        """The arguments of `solve` with which `nominal` is itself where there are data, and anything elsewhere."""
        # Some sets keep to the observed successors, whatever the radius.
        able = "l1" if SETS[self.set].reach == "support" else self.set
        radius = np.where(self.visits > 0, 0.0, self.radius)
        return {"set": able, "radius": radius, "discount": discount, "horizon": horizon}

    def scaled(self, factor: float) -> CountedModel:
        """The same with sets of another size; with smaller ones there is no guarantee.

        Args:
          factor: of all radii where there are data, and of what rewards may be below their means.
        """
        loss = self.nominal.reward - self.problem.reward
        radius = self.radius.copy()
        radius[self.visits > 0] *= factor
        problem = dataclasses.replace(self.problem, reward=self.nominal.reward - factor * loss)
        confidence = self.confidence if factor >= 1 else None
        return dataclasses.replace(self, problem=problem, radius=radius, confidence=confidence)


def from_counts(
    counts: Counts,
    confidence: float = 0.95,
    set: str = "l1",
    rule: str | None = None,
    support: str | ArrayLike | Possible = "all",
    rewards: RewardsBy = "transition",
    reward_low: float | None = None,
    reward_high: float | None = None,
    prior: float = 1.0,
    shape: str = "l1",
    seed: int = 0,
) -> CountedModel:
    """Ambiguity sets that hold the true model with a given confidence.

    Rewards are taken to be those of the log. If they differ where they should not, they are noisy. Then `reward_low`
    and `reward_high` are needed, half of the error probability goes to the rewards, and the model has lower confidence
    bounds of their means.

    Args:
      counts: the log, of `read_counts` or `count_transitions`.
      confidence: the probability, in (0, 1), that the sets hold the true transition probabilities of all states and
        actions; for `bayes` the posterior probability.
      set: `l1`, `linf`, `likelihood`, `kl` or `bayes`, a name of `COUNT_SETS`. `kl` gives no mass to successors that
        were never seen, so all that are possible must have been seen.
      rule: how radii follow from counts, a name of `deeprok.uncertainty.RULES`; by default the first of the set, which
        for all but `kl` holds for any number of samples. Credible sets have none.
      support: the possible successors. `all` states; `seen`: those that the log lists, also with a count of 0; or
        [S, S] or [S, A, S] which are, and with rewards a `Possible`, as `read_support` reads it.
      rewards: what they depend on, `transition` (state, action and successor) or `state-action`. In the second case
        successors that were never seen pay what the others do.
      reward_low: the least that a reward can be. It is the reward of transitions whose reward is not known.
      reward_high: the most that a reward can be; needed for noisy rewards only.
      prior: the parameter of the Dirichlet prior for each possible successor, for `bayes`.
      shape: the kind of ball of a credible set: `l1`, `linf`, `l2` or `kl`.
      seed: of the draws from the posterior, for `bayes`.

    Example:
      >>> log = count_transitions(["up", "up"], ["go", "go"], ["up", "down"], [1.0, 1.0], count=[9, 1])
      >>> model = from_counts(log, 0.95, "likelihood", reward_low=0.0)
      >>> robust = solve(model.problem, model.set, model.radius, discount=0.9)
    """
    chosen = _check_names(set, rule, rewards, shape)
    if not 0 < confidence < 1:
        raise DeeprokError(f"confidence is {confidence:g}; it must lie between 0 and 1, both excluded")
    if not 0 < prior < np.inf:
        raise DeeprokError(f"prior is {prior:g}; it must be a finite number above 0")
    check_bounds(counts, reward_low, reward_high)
    check_size(counts)
    seen = counts.visits()
    known = possible_successors(counts, seen, support)
    paid = known_rewards(counts, known, rewards, confidence, reward_low, reward_high)
    valid = usable_actions(counts, seen, known.possible, paid.mean)
    visits = seen.sum(-1)
    free = known.possible.sum(-1, keepdims=True)
    frequency = np.where(visits[..., None] > 0, seen / np.maximum(visits, 1)[..., None], known.possible / free)
    each = 1 - (1 - confidence) / 2 if paid.noisy else confidence

    def model(probability: np.ndarray, reward: np.ndarray) -> RMDP:
        at = np.nonzero(known.possible & valid[..., None])
        s, a, t = at
        made = assemble(s, a, t, probability[at], reward[at], nowhere, counts.shape[:2])
        return dataclasses.replace(made, counts=np.where(valid, visits, 0), support="listed")

    nominal, family = model(frequency, paid.mean), COUNT_SETS[set]
    if family is not None:
        _refuse_unreached(counts, set, family, nominal)
        problem = model(frequency, paid.low)
        radius = radii(problem, each, chosen)
        return CountedModel(counts, problem, nominal, family, radius, visits, confidence, chosen)
    centre, radius = frequency.copy(), np.where(free[..., 0] > 1, np.inf, 0.0)
    informed = (visits > 0) & valid
    found = credible_sets(seen[informed], known.possible[informed], each, prior, seed, shape)
    centre[informed], radius[informed] = found.mean, found.radius
    return CountedModel(counts, model(centre, paid.low), nominal, shape, radius, visits, confidence, chosen)


class Guarantee(NamedTuple):
    """A policy with a guaranteed value, and what the guarantee costs. With a horizon the first axis is the stage."""

    model: CountedModel
    robust: Solution  # the best policy in the worst case of the sets
    nominal: Solution  # the best policy in the nominal model
    robust_in_nominal: np.ndarray  # [S] the value of the robust policy in the nominal model

    @property
    def policy(self) -> np.ndarray:
        """[S] the robust policy."""
        return self.robust.policy

    @property
    def values(self) -> np.ndarray:
        """[S] what the robust policy is worth at least, with the model's confidence."""
        return self.robust.values

    @property
    def cost(self) -> np.ndarray:
        """[S] how far the guaranteed values are below those of the nominal policy in the nominal model."""
        return self.nominal.values - self.robust.values

    def worst_model(self, stage: int = 0) -> RMDP:
        """The worst model of the sets, as `Solution.worst_model`."""
        return self.robust.worst_model(stage)


def solve_counts(
    model: CountedModel,
    discount: float = 0.99,
    horizon: int | None = None,
    tol: float = 1e-8,
    method: Method | None = None,
    advance: Advance | None = None,
) -> Guarantee:
    """The policy with the best guaranteed value, and the nominal one beside it.

    Args:
      model: what `from_counts` returns.
      discount: γ, above 0 and below 1; 1 only with a horizon.
      horizon: the number of decisions; infinite if not given.
      tol: the error bound to reach.
      method: as in `solve`.
      advance: called with the fraction of the work done since its last call.

    Example:
      >>> log = read_counts("log.csv")
      >>> found = solve_counts(from_counts(log, 0.95, "likelihood", reward_low=0.0), discount=0.9)
      >>> print(found.policy, found.values, found.cost)
    """

    def report(work: float) -> None:
        if advance:
            advance(work / 3)

    robust = solve(model.problem, **model.setting(discount, horizon), tol=tol, method=method, advance=report)
    robust = _prefer_seen(robust, model.visits > 0, tol)
    absent = model.nominal_setting(discount, horizon)
    nominal = solve(model.nominal, **absent, tol=tol, method=method, advance=report)
    return Guarantee(model, robust, nominal, value_of_policy(model.nominal, robust.policy, absent, tol, report))


def _prefer_seen(found: Solution, seen: np.ndarray, tol: float) -> Solution:
    """The same with actions that were seen, in states where one of them is as good as the best."""
    best = found.q.max(-1, keepdims=True)
    equal = (found.q >= best - 2 * tol) & seen
    taken = np.take_along_axis(equal | ~equal.any(-1, keepdims=True), found.policy[..., None], -1)[..., 0]
    return dataclasses.replace(found, policy=np.where(taken, found.policy, equal.argmax(-1)))


def solve_best(
    models: Sequence[CountedModel],
    discount: float = 0.99,
    horizon: int | None = None,
    tol: float = 1e-8,
    method: Method | None = None,
    advance: Advance | None = None,
) -> Guarantee:
    """The best guarantee of several credible sets, by the mean over the initial states of the log.

    Each holds the true model with its posterior probability, given the data. Which one is taken depends on the data
    only, so it does too. That would not be true of confidence sets: with several there are several chances to err.

    Args:
      models: credible sets of one log, such as those of different shapes.
      discount: see `solve_counts`.
      horizon: see `solve_counts`.
      tol: see `solve_counts`.
      method: see `solve_counts`.
      advance: see `solve_counts`.
    """
    for model in models:
        if model.rule != "bayes":
            raise DeeprokError(
                f"a model has sets by the rule '{model.rule}'; the best may be chosen of credible sets only, set bayes"
            )

    def report(work: float) -> None:
        if advance:
            advance(work / len(models))

    found = [solve_counts(model, discount, horizon, tol, method, report) for model in models]
    starts = models[0].counts.starts()
    return max(found, key=lambda each: float(starts @ np.atleast_2d(each.values)[0]))


def _check_names(set: str, rule: str | None, rewards: str, shape: str) -> str:
    """The rule to take; raises if a name is not known."""
    if set not in COUNT_SETS:
        raise unknown("set", set, COUNT_SETS)
    if rewards not in get_args(RewardsBy):
        raise unknown("rewards", rewards, get_args(RewardsBy))
    if shape not in DISTANCES:
        raise unknown("shape", shape, DISTANCES)
    family = COUNT_SETS[set]
    if family is None:
        if rule is not None:
            raise DeeprokError(f"rule is '{rule}', but set is '{set}'; credible sets come from a posterior, not a rule")
        return "bayes"
    allowed = SETS[family].level_rules
    if rule is not None and rule not in RULES:
        raise unknown("rule", rule, RULES)
    if rule is not None and rule not in allowed:
        raise DeeprokError(f"rule is '{rule}', which is not for the set {set}; it must be one of {', '.join(allowed)}")
    return rule or allowed[0]


def _refuse_unreached(counts: Counts, set: str, family: str, nominal: RMDP) -> None:
    """Raises if a set gives no mass to a successor that is possible."""
    missing = np.flatnonzero(nominal.probability == 0)
    if SETS[family].reach == "support" and missing.size:
        s, a = divmod(int(nominal.row[missing[0]]), nominal.actions)
        raise DeeprokError(
            f"set is '{set}', which gives no mass to successors that were never seen, but (s, a) = {counts.pair(s, a)}"
            f" may go to {counts.states[nominal.successor[missing[0]]]}, and there are {missing.size:,} such; take the"
            " set likelihood, or support='seen' if they are impossible"
        )
