"""Sets with a closed-form worst case, which moves mass from the best outcomes to the worst.

- `minimum`, `contamination` and `finite` need a minimum only.
- `cvar`, `interval`, `linf`, `l1` and `tv` sort the outcomes and fill them with mass from the worst on.

R. T. Rockafellar and S. Uryasev, "Optimization of conditional value-at-risk", Journal of Risk, 2000.
C. P. Ho, M. Petrik and W. Wiesemann, "Fast Bellman updates for robust MDPs", ICML, 2018.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.search import Range
from deeprok.uncertainty.sets.base import (
    AmbiguitySet,
    Level,
    Tangent,
    WorstCase,
    expectation,
    level_check,
    radius_check,
)
from deeprok.uncertainty.sets.shared_budget import Carry, Shared, SharedBackup, SharedBudget, from_least
from deeprok.uncertainty.sets.transport import WEIGHTED_L1


def minimum(p: jax.Array, values: jax.Array, level: Level = 0.0) -> WorstCase:
    """All distributions over the outcomes: the hard minimum of the paper. The level is not used."""
    worst = jnp.argmin(values)
    return WorstCase(jnp.min(values), jax.nn.one_hot(worst, values.shape[0], dtype=p.dtype))


def contamination(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    """(1 − level) p + level q for any distribution q: a fraction of the mass moves to the worst outcome.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the fraction, between 0 and 1.
    """
    return WorstCase(*contamination_tangent(p, values, level)[:2])


def contamination_tangent(p: jax.Array, values: jax.Array, level: Level) -> Tangent:
    """`contamination` with its tangent; the value is linear in the level."""
    q = (1.0 - level) * p + level * jax.nn.one_hot(jnp.argmin(values), values.shape[0], dtype=p.dtype)
    return Tangent(expectation(q, values), q, jnp.sum(p * (values - jnp.min(values))))


def finite(p: jax.Array, values: jax.Array, level: Level = 0.0) -> WorstCase:
    """A finite set of distributions, or their convex hull: the worst of them. The level is not used.

    Args:
      p: [K, M] a distribution per row.
      values: [M] the value of each outcome.
      level: not used.
    """
    expectations = jax.vmap(expectation, (0, None))(p, values)
    worst = jnp.argmin(expectations)
    return WorstCase(expectations[worst], p[worst])


def cvar(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """Distributions with p' ≤ p / level: the mean of the worst fraction `level` of the mass.

    The outcome at the boundary of the fraction counts in proportion to the mass inside.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the fraction, in (0, 1]; 1 is the mean, and small levels approach the minimum over outcomes with mass.
      order: [M] `argsort(values)`, if it is known.
    """
    taken = _fill(p, level, values, order) / level
    return WorstCase(jnp.sum(taken * values), taken)


def interval(p: jax.Array, values: jax.Array, level: Level = 0.0, order: jax.Array | None = None) -> WorstCase:
    """Distributions between two bounds. The level is not used.

    Args:
      p: [2, M] the lower and the upper bound of each probability; the lower bounds sum to at most 1, the upper bounds
        to at least 1.
      values: [M] the value of each outcome.
      level: not used.
      order: [M] `argsort(values)`, if it is known.
    """
    lower, upper = p
    q = lower + _fill(upper - lower, 1.0 - jnp.sum(lower), values, order)
    return WorstCase(expectation(q, values), q)


def linf(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """No probability changes by more than the level: max |p' − p| ≤ level.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius; with 1 the set contains all distributions.
      order: [M] `argsort(values)`, if it is known.
    """
    bounds = jnp.stack([jnp.maximum(p - level, 0.0), jnp.minimum(p + level, 1.0)])
    return interval(bounds, values, order=order)


def linf_tangent(p: jax.Array, values: jax.Array, level: Level) -> Tangent:
    """`linf` with its tangent: outcomes worse than the last one filled gain mass with the level, others lose it."""
    value, q = linf(p, values, level)
    filled = q > jnp.maximum(p - level, 0.0)
    last = jnp.max(jnp.where(filled, values, jnp.min(values)))
    moves = jnp.where(values > last, p > level, p + level < 1.0)
    return Tangent(value, q, jnp.sum(jnp.where(moves, jnp.abs(values - last), 0.0)))


def l1(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """Σ |p' − p| ≤ level: half the level of mass moves from the best outcomes to the worst one.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius; with 2 the set contains all distributions.
      order: [M] `argsort(values)`, if it is known.
    """
    worst = jnp.argmin(values) if order is None else order[0]
    moved = jnp.clip(0.5 * level, 0.0, jnp.maximum(1.0 - p[worst], 0.0))
    remaining = _fill(p, 1.0 - moved, values, order)
    q = remaining + moved * jax.nn.one_hot(worst, values.shape[0], dtype=remaining.dtype)
    return WorstCase(expectation(q, values), q)


def tv(p: jax.Array, values: jax.Array, level: Level, order: jax.Array | None = None) -> WorstCase:
    """Total variation ½ Σ |p' − p| ≤ level: `l1` of twice the level.

    Args:
      p: [M] the nominal distribution.
      values: [M] the value of each outcome.
      level: the radius; with 1 the set contains all distributions.
      order: [M] `argsort(values)`, if it is known.
    """
    return l1(p, values, 2.0 * level, order)


def l1_rows(columns: jax.Array, values: jax.Array, radius: jax.Array, order: jax.Array | None = None) -> jax.Array:
    """The value of `l1` for many distributions with the same values, as in dynamic programming on all states.

    It is the mean minus the loss from emptying the best outcomes, one after another, until half the radius has been
    moved in every distribution. Outcomes are the first axis, so that each step works on one contiguous vector of all
    distributions. Only outcomes that lose mass in some distribution are visited.

    Args:
      columns: [M, R] the R distributions, an outcome per row.
      values: [M] the value of each outcome.
      radius: [R] or a number, the radius of each distribution.
      order: [M] `argsort(values)`, if it is known.

    Returns:
      [R] the worst-case expectation of each distribution.
    """
    columns, values = jnp.asarray(columns), jnp.asarray(values)
    size = values.shape[0]
    order = jnp.argsort(values) if order is None else order
    worst, best_first = order[0], order[::-1]
    drop = values[best_first] - values[worst]
    moved = jnp.clip(0.5 * radius, 0.0, jnp.maximum(1.0 - columns[worst], 0.0))

    def empty(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        done, left, value = state
        for ahead in range(_STRIDE):
            place = jnp.minimum(done + ahead, size - 1)  # the last is the worst outcome, from which nothing is moved
            taken = jnp.minimum(left, columns[best_first[place]])
            left, value = left - taken, value - taken * drop[place]
        return done + _STRIDE, left, value

    def unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return (state[0] < size) & jnp.any(state[1] > 0.0)

    return jax.lax.while_loop(unfinished, empty, (jnp.asarray(0), moved, values @ columns))[2]


_STRIDE = 8  # outcomes visited in one pass over the rows


def _fill(room: jax.Array, amount: Level, values: jax.Array, order: jax.Array | None) -> jax.Array:
    """Distributes an amount over the outcomes from the worst on, to each at most its room."""
    return jnp.clip(amount - _mass_before(room, values, order), 0.0, room)


def _mass_before(p: jax.Array, values: jax.Array, order: jax.Array | None = None) -> jax.Array:
    """The mass of all outcomes worse than each; ties are ordered by index."""
    if order is not None:  # often one order for many p: its inverse is then computed once
        mass = p[order]
        return (jnp.cumsum(mass) - mass)[jnp.argsort(order)]
    if values.shape[0] <= 64:  # comparing all pairs is one fused loop, sorting is not
        place = jnp.arange(values.shape[0])
        worse = values[None, :] < values[:, None]
        earlier = (values[None, :] == values[:, None]) & (place[None, :] < place[:, None])
        return jnp.sum(jnp.where(worse | earlier, p[None, :], 0.0), axis=1)
    order = jnp.argsort(values)
    mass = p[order]
    return jnp.zeros_like(p).at[order].set(jnp.cumsum(mass) - mass)


def check_interval(bounds: np.ndarray, field: str = "interval") -> None:
    """Raises unless there is a distribution between the bounds [2, M], lower and upper."""
    lower, upper = np.asarray(bounds, float)
    wrong = np.flatnonzero(~((lower >= 0) & (lower <= upper) & (upper <= 1)))
    if wrong.size:
        i = wrong[0]
        raise DeeprokError(
            f"{field} is {lower[i]:g} to {upper[i]:g} for outcome {i}; bounds lie between 0 and 1, the lower one first"
        )
    if not lower.sum() <= 1 + 1e-9 <= upper.sum() + 2e-9:
        raise DeeprokError(
            f"{field} has lower bounds that sum to {lower.sum():g} and upper bounds that sum to {upper.sum():g}; "
            "1 must lie between the two"
        )


# --- shared budgets ------------------------------------------------------------------------------------


@from_least
def l1_best_policy(p: jax.Array, values: jax.Array, valid: jax.Array, budget: jax.Array) -> Shared:
    """The best policy if the L1 distances of all rows sum to at most the budget.

    Nature moves mass from the best outcomes of an action to its worst one, so ξ_a(u) is piecewise linear, with one
    piece for each outcome. Newton's method from below ends on the piece of the root.

    Args:
      p: [A, M] the nominal rows.
      values: [A, M] the value of each outcome.
      valid: [A] which actions the state has.
      budget: κ.
    """
    least = jnp.min(values, axis=1)
    gain = values - least[:, None]
    fall = p * gain  # by how much emptying an outcome lowers its action
    before = _sum_above(fall, values)
    mean = least + jnp.sum(fall, axis=1)
    moves = (fall > 0) & valid[:, None]
    steep = jnp.where(moves, 1.0 / jnp.where(moves, gain, 1.0), 0.0)

    def moved(u: jax.Array) -> jax.Array:
        """[A, M] the mass moved from each outcome so that no action exceeds u."""
        return jnp.clip(((mean - u)[:, None] - before) * steep, 0.0, p)

    def step(carry: Carry) -> Carry:
        u, rate, _ = carry
        excess = jnp.sum(moved(u)) - budget / 2
        # One over the gain of the outcome that is being emptied: the smallest gain of those begun.
        now = jnp.max(jnp.where(before < (mean - u)[:, None], steep, 0.0), axis=1)
        ahead = u + excess / jnp.sum(now)
        rises = (excess > 0) & (ahead > u)
        return jnp.where(rises, ahead, u), jnp.where(rises, now, rate), rises

    floor = jnp.where(valid, least, -jnp.inf)
    highest = jax.nn.one_hot(jnp.argmax(floor), len(floor), dtype=p.dtype)
    start: Carry = (jnp.max(floor), highest, jnp.bool_(True))
    u, rate, _ = jax.lax.while_loop(lambda c: c[2], step, start)
    return Shared(u, rate / jnp.sum(rate), _to_worst(p, values, moved(u)))


@from_least
def l1_of_policy(p: jax.Array, values: jax.Array, policy: jax.Array, budget: jax.Array) -> Shared:
    """The worst case of a policy if the L1 distances of all rows sum to at most the budget.

    Args:
      p: [A, M] the nominal rows.
      values: [A, M] the value of each outcome.
      policy: [A] the probability of each action.
      budget: κ.
    """
    gain = policy[:, None] * (values - jnp.min(values, axis=1, keepdims=True))
    before = _sum_above(p.reshape(1, -1), gain.reshape(1, -1)).reshape(p.shape)
    moved = jnp.where(gain > 0, jnp.clip(budget / 2 - before, 0.0, p), 0.0)
    value = policy @ jnp.sum(p * values, axis=1) - jnp.sum(moved * gain)
    return Shared(value, policy, _to_worst(p, values, moved))


def _sum_above(amount: jax.Array, values: jax.Array) -> jax.Array:
    """[A, M] the sum of the amounts of all outcomes with a higher value; ties are ordered by index."""
    if values.shape[1] <= 64:  # comparing all pairs is one fused loop, sorting is not
        place = jnp.arange(values.shape[1])
        higher = values[:, None, :] > values[:, :, None]
        earlier = (values[:, None, :] == values[:, :, None]) & (place[None, :] < place[:, None])
        return jnp.sum(jnp.where(higher | earlier, amount[:, None, :], 0.0), axis=2)
    order = jnp.argsort(-values, axis=1)
    ordered = jnp.take_along_axis(amount, order, axis=1)
    return jnp.put_along_axis(
        jnp.zeros_like(amount), order, jnp.cumsum(ordered, axis=1) - ordered, axis=1, inplace=False
    )


def _to_worst(p: jax.Array, values: jax.Array, moved: jax.Array) -> jax.Array:
    """[A, M] rows after mass has moved to the worst outcome of each."""
    worst = jax.nn.one_hot(jnp.argmin(values, axis=1), values.shape[1], dtype=p.dtype)
    return p - moved + worst * jnp.sum(moved, axis=1, keepdims=True)


def _half(backup: SharedBackup) -> SharedBackup:
    """The same for total variation, which is half of L1."""
    return lambda p, values, third, budget: backup(p, values, third, 2 * budget)


def _tv_rows(columns: jax.Array, values: jax.Array, radius: jax.Array) -> jax.Array:
    return l1_rows(columns, values, 2 * radius)


# --- entries -------------------------------------------------------------------------------------------

MINIMUM = AmbiguitySet(minimum, level_check("minimum", lambda level: True, "not used"), None, reach="worst")
FINITE = AmbiguitySet(
    finite, level_check("finite", lambda level: True, "not used"), None, reach="support", of_models=True
)
CVAR = AmbiguitySet(
    cvar,
    level_check("cvar", lambda level: 0.0 < level <= 1.0, "a fraction above 0 and at most 1"),
    nominal_level=1.0,
    reach="support",
    levels=Range(0.05, 0.8),
)
CONTAMINATION = AmbiguitySet(
    contamination,
    level_check("contamination", lambda level: 0.0 <= level <= 1.0, "a fraction between 0 and 1"),
    nominal_level=0.0,
    reach="worst",
    tangent=contamination_tangent,
    levels=Range(0.05, 0.9),
)
L1 = AmbiguitySet(
    l1,
    radius_check("l1"),
    nominal_level=0.0,
    reach="worst",
    level_rules=("anytime_l1", "weissman", "hoeffding"),
    weighted=WEIGHTED_L1,
    shared=SharedBudget(l1_best_policy, l1_of_policy),
    worst_values=l1_rows,
    levels=Range(0.1, 1.8),
)
TV = AmbiguitySet(
    tv,
    radius_check("tv"),
    nominal_level=0.0,
    reach="worst",
    shared=SharedBudget(_half(l1_best_policy), _half(l1_of_policy)),
    worst_values=_tv_rows,
    levels=Range(0.05, 0.9),
)
LINF = AmbiguitySet(
    linf,
    radius_check("linf"),
    nominal_level=0.0,
    reach="all",
    level_rules=("anytime_linf", "entrywise"),
    tangent=linf_tangent,
    levels=Range(0.02, 0.5),
)
