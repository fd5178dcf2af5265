"""Robust MDPs from the literature, with their usual parameters as defaults.

Each problem is a function that builds its model. An annotation describes each parameter. State 0 is the initial state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.tabular.model import RMDP, from_arrays, from_models, from_transitions


class Names(NamedTuple):
    """Names of states and actions, for output."""

    states: Sequence[object]
    actions: Sequence[object]


def river_swim(
    states: Annotated[int, "places along the river"] = 6,
    forward: Annotated[float, "probability that a stroke to the right gets ahead"] = 0.3,
    back: Annotated[float, "probability that the current wins"] = 0.1,
    left: Annotated[float, "reward of resting at the left end"] = 5.0,
    right: Annotated[float, "reward of staying at the right end"] = 10_000.0,
) -> RMDP:
    """A swimmer against the current: resting is safe and pays little, the far end pays much."""
    _at_least("states", states, 2)
    _chance("forward", forward)
    _chance("back", back)
    _chance("forward + back", forward + back)
    p = np.zeros((states, 2, states))
    for s in range(states):
        p[s, 0, max(s - 1, 0)] = 1.0
        p[s, 1, max(s - 1, 0)] += back
        p[s, 1, min(s + 1, states - 1)] += forward
        p[s, 1, s] += 1 - forward - back
    # At the right end the swimmer stays or drifts back.
    p[-1, 1] = 0.0
    p[-1, 1, -2:] = 1 - forward, forward
    state, action, successor = np.nonzero(p)
    reward = left * ((state == 0) & (action == 0)) + right * (
        (action == 1) & (state == successor) & (state == states - 1)
    )
    return from_transitions(state, action, successor, p[state, action, successor], reward)


def machine_replacement(
    conditions: Annotated[int, "conditions of the machine, from new to broken"] = 8,
    wear: Annotated[float, "probability that a machine left alone gets worse"] = 0.8,
    fails: Annotated[float, "probability that it gets worse before a repair begins"] = 0.3,
    hard: Annotated[float, "probability that the repair is a long one"] = 0.1,
    broken: Annotated[float, "cost of a period with a broken machine"] = 20.0,
    short: Annotated[float, "cost of a period of short repair"] = 2.0,
    long: Annotated[float, "cost of a period of long repair"] = 10.0,
) -> RMDP:
    """A machine that wears out: when should it be repaired?"""
    _at_least("conditions", conditions, 2)
    for field, value in (("wear", wear), ("fails", fails), ("hard", hard), ("fails + hard", fails + hard)):
        _chance(field, value)
    last, quick, slow = conditions - 1, conditions, conditions + 1
    p = np.zeros((conditions + 2, 2, conditions + 2))
    for s in range(conditions):
        worse = min(s + 1, last)
        p[s, 0, s] += 1 - wear
        p[s, 0, worse] += wear
        p[s, 1, [worse, quick, slow]] = fails, 1 - fails - hard, hard
    p[quick, 0, [0, quick]] = 0.8, 0.2
    p[quick, 1, quick] = 1.0
    p[slow, 0, slow] = 1.0
    p[slow, 1, [quick, slow]] = 0.6, 0.4
    cost = np.zeros(conditions + 2)
    cost[[last, quick, slow]] = broken, short, long
    return from_arrays(p, -cost)


def inventory(
    capacity: Annotated[int, "units that can be stored"] = 3,
    customers: Annotated[int, "customers in a period, each of whom may want a unit"] = 2,
    chance: Annotated[float, "probability that a customer wants one"] = 0.5,
    fixed: Annotated[float, "cost of an order, whatever its size"] = 4.0,
    unit: Annotated[float, "cost of each unit ordered"] = 2.0,
    holding: Annotated[float, "cost of storing a unit for a period"] = 1.0,
    price: Annotated[float, "what a unit is sold for"] = 8.0,
) -> RMDP:
    """A shop orders stock before demand is known; unmet demand is lost."""
    _at_least("capacity", capacity, 1)
    _at_least("customers", customers, 1)
    _chance("chance", chance)
    demand = _binomial(customers, chance)
    rows = []
    for stock, order in itertools.product(range(capacity + 1), repeat=2):
        filled = stock + order
        if filled > capacity:
            continue
        cost = (fixed if order else 0.0) + unit * order + holding * filled
        for rest in range(filled + 1):
            sold = filled - rest
            probability = demand[sold:].sum() if rest == 0 else demand[sold] if sold <= customers else 0.0
            rows.append((stock, order, rest, probability, price * sold - cost))
    s, a, t, p, r = map(np.array, zip(*rows, strict=True))
    return from_transitions(s, a, t, p, r)


def forest(
    ages: Annotated[int, "ages of the forest, from cut to old"] = 3,
    fire: Annotated[float, "probability of a fire in a year"] = 0.1,
    old: Annotated[float, "reward of keeping an old forest"] = 4.0,
    cut: Annotated[float, "reward of cutting an old forest; a younger one pays 1"] = 2.0,
) -> RMDP:
    """A forest grows unless it burns; cutting it pays and resets its age."""
    _at_least("ages", ages, 2)
    _chance("fire", fire)
    p, r = np.zeros((ages, 2, ages)), np.zeros((ages, 2))
    for s in range(ages):
        p[s, 0, min(s + 1, ages - 1)] = 1 - fire
        p[s, 0, 0] += fire
        p[s, 1, 0] = 1.0
    r[1:, 1] = 1.0
    r[-1] = old, cut
    return from_arrays(p, r)


def coin_toss(
    coins: Annotated[int, "coins tossed each time"] = 10,
    low: Annotated[float, "least probability of heads"] = 0.5,
    high: Annotated[float, "greatest probability of heads"] = 0.6,
    models: Annotated[int, "probabilities between them, at equal distances"] = 2,
) -> RMDP:
    """Bets on whether the next toss shows more heads than the last; a tie loses. For the set `finite`."""
    _at_least("coins", coins, 1)
    _at_least("models", models, 1)
    _chance("low", low)
    _chance("high", high)
    before, bet, after = np.meshgrid(np.arange(coins + 1), (-1, 0, 1), np.arange(coins + 1), indexing="ij")
    reward = bet * np.sign(after - before) - np.abs(bet) * (after == before)
    rows = [np.broadcast_to(_binomial(coins, x), reward.shape) for x in np.linspace(low, high, models)]
    return from_models([from_arrays(p, reward) for p in rows])


def american_put(
    dates: Annotated[int, "exercise dates, the first of them now"] = 20,
    spot: Annotated[float, "price of the share now"] = 100.0,
    strike: Annotated[float, "price that the option sells it for"] = 100.0,
    up: Annotated[float, "factor of a rise"] = 1.02,
    down: Annotated[float, "factor of a fall"] = 0.98,
    chance: Annotated[float, "probability of a rise"] = 0.5,
) -> RMDP:
    """An American put option: wait (action 0) or exercise (1). A state is a date and a price."""
    _at_least("dates", dates, 1)
    _chance("chance", chance)
    _positive("spot", spot)
    _positive("strike", strike)
    _positive("down", down)
    if not up > down:
        raise DeeprokError(f"up is {up:g} and down {down:g}; up must be the larger")
    end = dates * (dates + 1) // 2
    date, rises = _lattice(dates)
    price = spot * up**rises * down ** (date - rises)
    last = date == dates - 1
    # From (date, rises) to (date + 1, rises) or (date + 1, rises + 1).
    falls = np.where(last, end, np.arange(end) + date + 1)
    s = np.concatenate([np.arange(end), np.arange(end)[~last], np.arange(end), [end]])
    a = np.concatenate([np.zeros(end), np.zeros((~last).sum()), np.ones(end), [0]]).astype(int)
    t = np.concatenate([falls, falls[~last] + 1, np.full(end, end), [end]])
    p = np.concatenate([np.where(last, 1.0, 1 - chance), np.full((~last).sum(), chance), np.ones(end), [1.0]])
    r = np.where(a == 1, np.maximum(strike - np.append(price, strike)[s], 0.0), 0.0)
    return from_transitions(s, a, t, p, r)


def garnet(
    states: Annotated[int, "number of states"] = 100,
    actions: Annotated[int, "actions of each"] = 4,
    branching: Annotated[int, "successors of each state and action"] = 5,
    seed: Annotated[int, "seed of the random numbers"] = 0,
) -> RMDP:
    """A random model: random successors, random probabilities, normal rewards."""
    for field, value in (("states", states), ("actions", actions), ("branching", branching)):
        _at_least(field, value, 1)
    _at_least("seed", seed, 0)
    if branching > states:
        raise DeeprokError(f"branching is {branching}; there are only {states} states")
    rng = np.random.default_rng(seed)
    rows = states * actions
    successor = np.stack([rng.choice(states, branching, replace=False) for _ in range(rows)])
    cuts = np.sort(rng.random((rows, branching - 1)), axis=1)
    probability = np.diff(cuts, prepend=0.0, append=1.0, axis=1)
    reward = rng.normal(size=rows)
    pair = np.repeat(np.arange(rows), branching)
    return from_transitions(*np.divmod(pair, actions), successor.reshape(-1), probability.reshape(-1), reward[pair])


def aircraft_routing(
    columns: Annotated[int, "legs from start to destination"] = 12,
    aside: Annotated[int, "lanes on each side of the straight route"] = 4,
    storms: Annotated[int, "storms on the way, each a wall across all lanes but the outermost"] = 2,
    stay: Annotated[float, "probability that a storm stays for another leg"] = 0.8,
    begin: Annotated[float, "probability that one comes up again"] = 0.05,
    delay: Annotated[float, "cost of a leg into a storm, besides its length"] = 2.0,
) -> RMDP:
    """An aircraft flies from west to east and may leave its lane, at the cost of longer legs, to avoid storms.

    At first all storms are active. Before each leg it is observed which ones still are.
    """
    _at_least("columns", columns, 2)
    _at_least("aside", aside, 1)
    _at_least("storms", storms, 1)
    if storms > 6 or storms >= columns:
        raise DeeprokError(f"storms is {storms}; there can be up to 6, and fewer than columns")
    _chance("stay", stay)
    _chance("begin", begin)
    cells = _cells(columns, aside)
    place = {cell: i for i, cell in enumerate(cells)}
    weathers = list(itertools.product((True, False), repeat=storms))
    at = [round((k + 1) * columns / (storms + 1)) for k in range(storms)]
    end = len(cells) * len(weathers)
    rows = []
    for (column, lane), (w, raging) in itertools.product(cells, enumerate(weathers)):
        state = place[column, lane] * len(weathers) + w
        if column == columns:
            rows.append((state, 1, end, 1.0, 0.0))
            continue
        for turn in (-1, 0, 1):
            target = (column + 1, lane + turn)
            if target not in place:
                continue
            for v, later in enumerate(weathers):
                chances = [
                    (stay if x else begin) if y else 1 - (stay if x else begin)
                    for x, y in zip(raging, later, strict=True)
                ]
                caught = abs(lane + turn) < aside and any(y and column + 1 == c for y, c in zip(later, at, strict=True))
                cost = math.hypot(1, turn) + delay * caught
                rows.append((state, turn + 1, place[target] * len(weathers) + v, math.prod(chances), -cost))
    rows.append((end, 1, end, 1.0, 0.0))
    s, a, t, p, r = map(np.array, zip(*rows, strict=True))
    return from_transitions(s, a, t, p, r)


# --- names of states and actions -----------------------------------------------------------------------


def numbered(states: int, actions: Sequence[str], what: str = "") -> Names:
    """States named by a word and their number."""
    return Names([f"{what}{i}" for i in range(states)], actions)


def machine_names(conditions: int, **_: Any) -> Names:
    """Names for `machine_replacement`."""
    return Names([*map(str, range(1, conditions + 1)), "short repair", "long repair"], ("nothing", "repair"))


def put_names(dates: int, spot: float, up: float, down: float, **_: Any) -> Names:
    """Names for `american_put`."""
    date, rises = _lattice(dates)
    price = spot * up**rises * down ** (date - rises)
    named = [f"date {t}, price {x:.2f}" for t, x in zip(date, price, strict=True)]
    return Names([*named, "over"], ("wait", "exercise"))


def flight_names(columns: int, aside: int, storms: int, **_: Any) -> Names:
    """Names for `aircraft_routing`."""
    weathers = ["".join("-S"[x] for x in raging) for raging in itertools.product((1, 0), repeat=storms)]
    named = [f"leg {c}, lane {lane:+d}, {w}" for (c, lane), w in itertools.product(_cells(columns, aside), weathers)]
    return Names([*named, "landed"], ("left", "straight", "right"))


# --- parts ---------------------------------------------------------------------------------------------


def _binomial(n: int, chance: float) -> np.ndarray:
    return np.array([math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(n + 1)])


def _lattice(dates: int) -> tuple[np.ndarray, np.ndarray]:
    """Date and number of rises of each state before the end."""
    pairs = np.array([(t, k) for t in range(dates) for k in range(t + 1)])
    return pairs[:, 0], pairs[:, 1]


def _cells(columns: int, aside: int) -> list[tuple[int, int]]:
    """All (column, lane) on a route from start to destination."""
    return [
        (column, lane)
        for column in range(columns + 1)
        for lane in range(-aside, aside + 1)
        if abs(lane) <= min(column, columns - column)
    ]


def _at_least(field: str, value: int, least: int) -> None:
    if not value >= least:
        raise DeeprokError(f"{field} is {value}; it must be at least {least}")


def _chance(field: str, value: float) -> None:
    if not 0 <= value <= 1 + 1e-12:
        raise DeeprokError(f"{field} is {value:g}; it must lie between 0 and 1")


def _positive(field: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise DeeprokError(f"{field} is {value:g}; it must be above 0")
