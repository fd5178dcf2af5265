"""s-rectangular sets: nature has one budget for all actions of a state, and the best policy is randomised.

All functions are of one state, unbatched. With q_a(ξ) the worst expectation of action a when nature
spends ξ on it, convex and falling, and ξ_a(u) its inverse, what it costs to push action a down to u,

    max over π of min { Σ_a π_a q_a(ξ_a) : Σ_a ξ_a ≤ κ }  =  min { u : Σ_a ξ_a(u) ≤ κ }.

The right-hand side is one convex equation in u. All methods here draw lines that lie below the q_a: with
such a line for each action, of slope −1/λ_a, the equation is solved at once. Its root is a lower bound of
u, and the policy π ∝ λ is worth at least that against the true q_a. So the policy comes with the value,
at kinks too, where any line that touches will do. What no line says is that an action may be worth u by
itself, as nature can't push it farther: then it is taken for certain.

- `l1` and `tv` have q_a made of straight pieces that are known: Newton's method ends on the right ones.
- `kl`, `chi2` and `burg` have an answer of nature to each price of the budget: the lines are chosen by
  their slope, and u is the greatest value of a fractional program (Dinkelbach).
- Other sets give tangents (`Tangent`), drawn where the last ones met u: u rises from step to step.

C. P. Ho, M. Petrik and W. Wiesemann, "Partial policy iteration for L1-robust Markov decision
processes", Journal of Machine Learning Research 22(275), 2021.
W. Wiesemann, D. Kuhn and B. Rustem, "Robust Markov decision processes", Mathematics of Operations
Research 38(1), 2013.
W. Dinkelbach, "On nonlinear fractional programming", Management Science 13(7), 1967.
J. E. Kelley, "The cutting-plane method for solving convex programs", Journal of the SIAM 8(4), 1960.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.uncertainty.sets import Tangent

_STEPS = 100  # of Newton's method, which takes about a dozen
_Carry = tuple[jax.Array, ...]  # of a loop


class Shared(NamedTuple):
    """What a state is worth when nature shares one budget over its actions."""

    value: jax.Array  # []
    policy: jax.Array  # [A]
    distribution: jax.Array  # [A, M] nature's answer


_Solve = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Shared]


def _from_least(solve: _Solve) -> _Solve:
    """The same, computed with values measured from their least: nearly equal ones keep their digits."""

    @functools.wraps(solve)
    def moved(p: jax.Array, values: jax.Array, third: jax.Array, budget: jax.Array) -> Shared:
        least = jnp.min(values)
        found = solve(p, values - least, third, budget)
        return found._replace(value=least + found.value)

    return moved


@_from_least
def l1(p: jax.Array, values: jax.Array, valid: jax.Array, budget: jax.Array) -> Shared:
    """The best policy if the L1 distances of all rows sum to at most the budget.

    Nature moves mass from the best outcomes of an action to its worst one, so ξ_a(u) is made of
    straight pieces, one for each outcome. Newton's method from below ends on the piece of the root.

    Args:
      p: [A, M] the nominal rows.
      values: [A, M] the value of each outcome.
      valid: [A] which actions there are.
      budget: κ.
    """
    least = jnp.min(values, axis=1)
    gain = values - least[:, None]
    fall = p * gain  # how far emptying an outcome lowers its action
    before = _sum_above(fall, values)
    mean = least + jnp.sum(fall, axis=1)
    moves = (fall > 0) & valid[:, None]
    steep = jnp.where(moves, 1.0 / jnp.where(moves, gain, 1.0), 0.0)

    def moved(u: jax.Array) -> jax.Array:
        """[A, M] the mass taken from each outcome so that no action exceeds u."""
        return jnp.clip(((mean - u)[:, None] - before) * steep, 0.0, p)

    def step(carry: _Carry) -> _Carry:
        u, rate, _ = carry
        excess = jnp.sum(moved(u)) - budget / 2
        # One over the gain of the outcome that is being emptied, the last and least of those begun.
        now = jnp.max(jnp.where(before < (mean - u)[:, None], steep, 0.0), axis=1)
        ahead = u + excess / jnp.sum(now)
        rises = (excess > 0) & (ahead > u)
        return jnp.where(rises, ahead, u), jnp.where(rises, now, rate), rises

    floor = jnp.where(valid, least, -jnp.inf)
    highest = jax.nn.one_hot(jnp.argmax(floor), len(floor), dtype=p.dtype)
    start: _Carry = (jnp.max(floor), highest, jnp.bool_(True))
    u, rate, _ = jax.lax.while_loop(lambda c: c[2], step, start)
    return Shared(u, rate / jnp.sum(rate), _to_worst(p, values, moved(u)))


@_from_least
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


class _Tilt(NamedTuple):
    """Nature's answer to a price for each action: the least of distance + price · expectation."""

    mean: jax.Array  # [A] the expectation
    slope: jax.Array  # [A] how fast it falls with the price
    dual: jax.Array  # [A] that least, expectations being measured from the least value
    distribution: jax.Array  # [A, M]


#: `(p [A, M], values [A, M] from the least of each action on, price [A]) -> _Tilt`, its mean measured from there too.
_Tilted = Callable[[jax.Array, jax.Array, jax.Array], _Tilt]


def _tilt_kl(p: jax.Array, above: jax.Array, price: jax.Array) -> _Tilt:
    """Rows p exp(−λ v), scaled to sum to 1."""
    exponent = -price[:, None] * above
    kept = p * jnp.exp(exponent)
    mass = jnp.sum(kept, axis=1)
    lost = -jnp.sum(p * jnp.expm1(exponent), axis=1)  # 1 − mass, with all its digits where the price is small
    log = jnp.where(mass > 0.5, jnp.log1p(-lost), jnp.log(mass))
    distribution = kept / mass[:, None]
    mean = jnp.sum(distribution * above, axis=1)
    variance = jnp.sum(distribution * (above - mean[:, None]) ** 2, axis=1)
    return _Tilt(mean, variance, -log, distribution)


def _tilt_chi2(p: jax.Array, above: jax.Array, price: jax.Array) -> _Tilt:
    """Rows p (c − λv/2)₊ with c such that they sum to 1: too large at first, as outcomes above c drop out."""
    half = price[:, None] / 2 * above

    def level(active: jax.Array) -> tuple[jax.Array, jax.Array]:
        q = jnp.where(active, p, 0.0)
        c = (1.0 + jnp.sum(q * half, axis=1)) / jnp.sum(q, axis=1)
        return active, c[:, None] - half

    def drop(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return level(state[0] & (state[1] > 0.0))

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[0] & ~(state[1] > 0.0))

    active, factor = jax.lax.while_loop(unfinished, drop, level(p > 0.0))
    factor = jnp.where(active, factor, 0.0)
    distribution = p * factor
    mean = jnp.sum(distribution * above, axis=1)
    kept = jnp.where(active, p, 0.0)
    centre = jnp.sum(kept * above, axis=1) / jnp.sum(kept, axis=1)
    slope = jnp.sum(kept * (above - centre[:, None]) ** 2, axis=1) / 2
    return _Tilt(mean, slope, jnp.sum(p * (factor - 1.0) ** 2, axis=1) + price * mean, distribution)


def _tilt_burg(p: jax.Array, above: jax.Array, price: jax.Array) -> _Tilt:
    """Rows p / (λ (v + s)) with s such that they sum to 1, or s = 0 and the rest on an outcome at 0 that is free."""
    lam = jnp.where(price > 0, price, 1.0)[:, None]
    has = p > 0.0

    def mass(s: jax.Array) -> jax.Array:
        """[A, M] the rows; where v + s is 0 there is mass that no s of the search leaves so small."""
        return jnp.where(has, p / jnp.where(has, lam * (above + s[:, None]), 1.0), 0.0)

    def step(carry: _Carry) -> _Carry:
        s, _, count = carry
        q = mass(s)
        total, square = jnp.sum(q, axis=1), jnp.sum(jnp.where(has, q * q / jnp.where(has, p, 1.0), 0.0), axis=1)
        # Newton's method for 1 / total, which grows with s at a rate that hardly changes; from below.
        ahead = s + (total - 1.0) * total / (lam[:, 0] * square)
        rises = (ahead > s * (1 + 4 * np.finfo(s.dtype).eps)) & (total > 1.0)
        return jnp.where(rises, ahead, s), jnp.any(rises), count + 1

    free = jnp.any(~has & (above <= 0.0), axis=1)
    low = jnp.max(jnp.where(has, p / lam - above, -jnp.inf), axis=1)  # where one outcome alone would take all
    low = jnp.where(free, jnp.maximum(low, 0.0), low)
    # With nothing at 0 but what is free, s = 0 may leave too little mass to others: the rest is the free one's.
    at_zero = jnp.any(has & (above <= 0.0), axis=1)
    room = free & ~at_zero
    start: _Carry = (jnp.where(room & (low <= 0.0), 0.0, low), jnp.bool_(True), jnp.int32(0))
    s, *_ = jax.lax.while_loop(lambda c: c[1] & (c[2] < _STEPS), step, start)
    rows = mass(s)
    total = jnp.sum(rows, axis=1)
    rest = jnp.where(room, jnp.maximum(1.0 - total, 0.0), 0.0)
    taken = jax.nn.one_hot(jnp.argmax(~has & (above <= 0.0), axis=1), p.shape[1], dtype=p.dtype)
    scaled = jnp.where((rest > 0.0)[:, None], rows, rows / total[:, None])
    distribution = scaled + rest[:, None] * taken
    distance = jnp.sum(jnp.where(has, p * jnp.log(jnp.where(has, p / jnp.where(has, scaled, 1.0), 1.0)), 0.0), axis=1)
    mean = jnp.sum(distribution * above, axis=1)
    weight = jnp.where(has, scaled * scaled / jnp.where(has, p, 1.0), 0.0)
    centre = jnp.sum(weight * above, axis=1) / jnp.sum(weight, axis=1)
    slope = jnp.sum(weight * (above - centre[:, None]) ** 2, axis=1)
    slope = jnp.where(rest > 0.0, 1.0 / jnp.square(lam[:, 0]), slope)
    at = _Tilt(mean, slope, distance + price * mean, distribution)
    nominal = jnp.sum(p * above, axis=1)
    still = _Tilt(nominal, jnp.sum(p * (above - nominal[:, None]) ** 2, axis=1), jnp.zeros_like(price), p)
    moves = price > 0
    return _Tilt(*(jnp.where(moves.reshape(-1, *(1,) * (x.ndim - 1)), x, y) for x, y in zip(at, still, strict=True)))


def _least(name: str, p: jax.Array, values: jax.Array) -> jax.Array:
    """[A] the least expectation that nature can come near: of the outcomes that have mass, or of all (Burg)."""
    return jnp.min(values if name == "burg" else jnp.where(p > 0, values, jnp.inf), axis=1)


_TILTS: dict[str, _Tilted] = {"kl": _tilt_kl, "chi2": _tilt_chi2, "burg": _tilt_burg}


def _tilting(name: str) -> _Solve:
    """The best policy for a set whose answers to prices are known.

    With λ_a = π_a / μ, and μ the price of the budget, the dual is the fractional program

        max over λ ≥ 0 of ( −κ + Σ_a min over p' of (distance + λ_a p'·v_a) ) / Σ_a λ_a.
    """

    def solve(p: jax.Array, values: jax.Array, valid: jax.Array, budget: jax.Array) -> Shared:
        least = _least(name, p, values)
        above = jnp.maximum(values - least[:, None], 0.0)
        tilt = functools.partial(_TILTS[name], p, above)
        mean = least + jnp.sum(p * above, axis=1)
        floor, mean = (jnp.where(valid, x, -jnp.inf) for x in (least, mean))
        found = _dinkelbach(tilt, floor, mean, budget)
        # Where nature has nothing to spend the best action is taken.
        best = jax.nn.one_hot(jnp.argmax(mean), len(p), dtype=p.dtype)
        policy = jnp.where(budget > 0, found.policy, best)
        return Shared(found.value, policy, tilt(found.price).distribution)

    return _from_least(solve)


def _tilting_of_policy(name: str) -> _Solve:
    """The worst case of a policy for such a set: one price for all actions."""

    def solve(p: jax.Array, values: jax.Array, policy: jax.Array, budget: jax.Array) -> Shared:
        least = _least(name, p, values)
        above = jnp.maximum(values - least[:, None], 0.0)

        def tilt(price: jax.Array) -> _Tilt:
            each = _TILTS[name](p, above, price * policy)
            mean, slope, dual = policy @ each.mean, policy**2 @ each.slope, jnp.sum(each.dual)
            return _Tilt(mean[None], slope[None], dual[None], each.distribution)

        low, mean = policy @ least, policy @ (least + jnp.sum(p * above, axis=1))
        found = _dinkelbach(tilt, low[None], mean[None], budget)
        return Shared(found.value, policy, tilt(found.price).distribution)

    return _from_least(solve)


class _Ratio(NamedTuple):
    """The greatest ratio, its λ, and the policy that is proportional to it."""

    value: jax.Array  # []
    price: jax.Array  # [n]
    policy: jax.Array  # [n]


def _dinkelbach(tilt: Callable[[jax.Array], _Tilt], floor: jax.Array, mean: jax.Array, budget: jax.Array) -> _Ratio:
    """The greatest ratio ( Σ λ floor + Σ dual(λ) − κ ) / Σ λ, at least the highest floor.

    Each step is one of Newton's for the λ that are best at the ratio u found so far. The ratio of any
    λ is a lower bound, so u rises; a λ whose expectation is below u will therefore always be too large.

    Args:
      tilt: [n] λ -> nature's answer.
      floor: [n] the least value of each, −∞ for those that don't take part.
      mean: [n] the expectation of each, at λ = 0.
      budget: κ.
    """
    tiny = np.finfo(mean.dtype).tiny
    low = jnp.where(floor > -jnp.inf, floor, 0.0)

    def step(carry: _Carry) -> _Carry:
        count, u, price, policy, too_large, _ = carry
        at = tilt(price)
        top = low + at.dual / jnp.where(price > 0, price, 1.0)
        found, weights = _meet(top, price, budget)
        policy = jnp.where(found > u, weights, policy)
        u = jnp.maximum(u, found)
        too_large = jnp.where(low + at.mean < u, jnp.minimum(too_large, price), too_large)
        ahead = price + (low + at.mean - u) / jnp.maximum(at.slope, tiny)
        ahead = jnp.clip(ahead, price / 4, 2 * price)
        ahead = jnp.where(ahead < too_large, ahead, (price + too_large) / 2)
        ahead = jnp.where(mean > u, ahead, 0.0)
        moving = jnp.any(jnp.abs(ahead - price) > 1e-10 * price)
        return count + 1, u, ahead, policy, too_large, moving

    # A first guess, from the slope at 0 if that says something of the way to the floor.
    spread = jnp.maximum(tilt(jnp.zeros_like(mean)).slope, 1e-4 * jnp.square(jnp.where(mean > low, mean - low, 1.0)))
    price = jnp.where(mean > jnp.max(floor), jnp.sqrt(2 * budget / (len(mean) * spread)), 0.0)
    held = jax.nn.one_hot(jnp.argmax(floor), len(floor), dtype=price.dtype)
    start: _Carry = (jnp.int32(0), jnp.max(floor), price, held, jnp.full_like(price, jnp.inf), jnp.bool_(True))
    _, u, price, policy, *_ = jax.lax.while_loop(lambda c: c[5] & (c[0] < _STEPS), step, start)
    return _Ratio(jnp.where(budget > 0, u, jnp.max(mean)), price, policy)


def _meet(top: jax.Array, rate: jax.Array, budget: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The least u such that Σ_a rate_a (top_a − u)₊ ≤ κ, −∞ if all rates are 0; and the policy that holds it.

    It is the greatest (Σ rate top − κ) / Σ rate over those with the highest tops.

    Args:
      top: [A] where the line of an action is when nothing is spent on it.
      rate: [A] what it costs to push it down by 1; 0 for actions that don't take part.
      budget: κ.
    """
    highest = jnp.max(jnp.where(rate > 0, top, -jnp.inf))
    below = jnp.where(rate > 0, top - highest, -jnp.inf)
    members = below[None, :] >= below[:, None]  # [A, A] those at least as high as each
    total = jnp.sum(jnp.where(members, rate, 0.0), axis=1)
    cost = jnp.sum(jnp.where(members & (rate > 0), rate * below, 0.0), axis=1) - budget
    held = jnp.where(rate > 0, cost / jnp.where(total > 0, total, 1.0), -jnp.inf)
    last = jnp.argmax(held)
    return highest + held[last], jnp.where(members[last], rate, 0.0) / jnp.where(total[last] > 0, total[last], 1.0)


_Tangents = Callable[[jax.Array], Tangent]


def by_tangents(tangent: _Tangents, valid: jax.Array, budget: jax.Array) -> Shared:
    """The best policy for any ball.

    A tangent underrates what it costs to push an action down to u. So the shares of the budget by which
    tangents meet at one u leave all actions at u or above it, and the tangents drawn there meet higher: u
    rises, as in Newton's method, until no action is above it.

    Args:
      tangent: [A] what is spent on each action -> the worst case of each.
      valid: [A] which actions there are.
      budget: κ.
    """
    nothing = jnp.zeros(len(valid))
    ends = jax.vmap(tangent)(jnp.stack([nothing, nothing + budget]))  # one program for both, and one for the loop
    first, last = ends.value
    alone = jnp.where(valid, last, -jnp.inf)
    scale = jnp.max(jnp.where(valid, first, 0.0))
    flat = 1e-13 * (first - last)  # what a tangent must fall by, or it says nothing

    def step(carry: _Carry) -> _Carry:
        count, u, top, rate, policy, share, *_ = carry
        at = tangent(share)
        slopes = valid & (at.steepness * budget > flat)  # if not, its last outcome is emptied: the tangent before holds
        rate = jnp.where(slopes, 1.0 / jnp.where(slopes, at.steepness, 1.0), rate)
        top = jnp.where(slopes, at.value + at.steepness * share, top)
        met, weights = _meet(top, rate, budget)
        policy = jnp.where(met > u, weights, policy)
        u = jnp.maximum(u, met)
        ahead = jnp.clip(rate * (top - u), 0.0, budget)
        above = jnp.max(jnp.where(valid, at.value, -jnp.inf)) - u > 4 * np.finfo(u.dtype).eps * scale
        return count + 1, u, top, rate, policy, ahead, at.distribution, above & jnp.any(ahead != share)

    pure = jax.nn.one_hot(jnp.argmax(alone), len(valid), dtype=nothing.dtype)
    start: _Carry = (
        jnp.int32(0),
        jnp.max(alone),
        nothing,
        nothing,
        pure,
        nothing,
        ends.distribution[0],
        jnp.bool_(True),
    )
    _, u, *_, policy, _, rows, _ = jax.lax.while_loop(lambda c: c[7] & (c[0] < _STEPS), step, start)
    return Shared(u, policy, rows)


def of_policy_by_tangents(tangent: _Tangents, policy: jax.Array, budget: jax.Array) -> Shared:
    """The worst case of a policy for any ball.

    At a price for the budget each action has its own best share, which lies where the tangents on both sides of
    it cross. The price sought lies between two, at which shares are too small and too large in all: `cheap`
    and `dear`. The slope from one to the other is the next price to try; its shares need not be known exactly
    if it can be seen on which side it is. A mixture of both spends all of the budget.

    Args:
      tangent: [A] what is spent on each action -> the worst case of each.
      policy: [A] the probability of each action.
      budget: κ.
    """

    # A way to share the budget is [3, A]: shares, what they make of the policy's actions, and how fast these fall.
    def spend(share: jax.Array) -> jax.Array:
        at = tangent(share)
        return jnp.stack([share, policy * at.value, policy * at.steepness])

    def through(cheap: jax.Array, dear: jax.Array) -> jax.Array:
        room, fall, _ = jnp.sum((dear - cheap) * jnp.array([[1.0], [-1.0], [0.0]]), axis=1)
        return jnp.where(room > 0, fall / jnp.where(room > 0, room, 1.0), 0.0)

    cheap, dear = jax.vmap(spend)(jnp.stack([jnp.zeros_like(policy), jnp.where(policy > 0, budget, 0.0)]))
    enough = jnp.sum(dear[0]) <= budget  # one action is taken, and all is spent on it
    cheap = jnp.where(enough, dear, cheap)
    tolerance = 500 * np.finfo(policy.dtype).eps * jnp.sum(jnp.abs(cheap[1]))

    def step(carry: _Carry) -> _Carry:
        count, cheap, dear, low, high, price, _ = carry
        pays, idle = high[2] >= price, low[2] <= price  # at its end, or at its beginning
        low = jnp.where(pays & (high[0] > low[0]), high, low)
        high = jnp.where(idle | pays, low, high)
        (begin, value, steep), (end, value_end, steep_end) = low, high
        bent = (end > begin) & (steep > steep_end)
        cross = (value + steep * begin - value_end - steep_end * end) / jnp.where(bent, steep - steep_end, 1.0)
        share = jnp.where(bent, jnp.clip(cross, begin, end), begin)
        least = value - steep * (share - begin)
        gap = jnp.sum(cheap[1] - least + price * (cheap[0] - share))
        at = spend(share)
        found, pays = at[1] - least <= tolerance, at[2] >= price
        low = jnp.where((end > begin) & (found | pays), at, low)
        high = jnp.where((end > begin) & (found | ~pays), at, high)
        over, under = jnp.sum(low[0]) > budget, jnp.sum(high[0]) <= budget
        less, more = jnp.where(under, low, cheap), jnp.where(over, high, dear)
        ahead = through(less, more)
        exact = jnp.all(high[0] <= low[0])
        decided = exact | ((over | under) & (jnp.abs(ahead - price) > 0.01 * price))
        cheap, dear = jnp.where(decided, less, cheap), jnp.where(decided, more, dear)
        low, high = jnp.where(decided, cheap, low), jnp.where(decided, dear, high)
        return count + 1, cheap, dear, low, high, jnp.where(decided, ahead, price), gap > tolerance

    start: _Carry = (jnp.int32(0), cheap, dear, cheap, dear, through(cheap, dear), ~enough)
    _, cheap, dear, *_ = jax.lax.while_loop(lambda c: c[6] & (c[0] < 4 * _STEPS), step, start)
    room = jnp.sum(dear[0] - cheap[0])
    part = jnp.clip((budget - jnp.sum(cheap[0])) / jnp.where(room > 0, room, 1.0), 0.0, 1.0)
    less, more = jax.vmap(tangent)(jnp.stack([cheap[0], dear[0]])).distribution
    return Shared(jnp.sum((1 - part) * cheap[1] + part * dear[1]), policy, (1 - part) * less + part * more)


def _sum_above(amount: jax.Array, values: jax.Array) -> jax.Array:
    """[A, M] the amounts of all outcomes with a higher value; equal ones count in the order they stand."""
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


def _half(solve: _Solve) -> _Solve:
    """Total variation is half of L1."""
    return lambda p, values, third, budget: solve(p, values, third, 2 * budget)


#: The best policy: `(p [A, M], values [A, M], valid [A], budget) -> Shared`.
BACKUPS: dict[str, _Solve] = {"l1": l1, "tv": _half(l1), **{name: _tilting(name) for name in _TILTS}}
#: A given policy: `(p [A, M], values [A, M], policy [A], budget) -> Shared`.
OF_POLICY: dict[str, _Solve] = {
    "l1": l1_of_policy,
    "tv": _half(l1_of_policy),
    **{name: _tilting_of_policy(name) for name in _TILTS},
}
#: All sets with a budget to share.
BUDGETS = (*BACKUPS, "linf", "l2", "wasserstein", "contamination")
