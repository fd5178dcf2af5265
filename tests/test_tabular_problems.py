from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from deeprok.core.errors import DeeprokError
from deeprok.tabular import RMDP, solve
from deeprok.tabular.literature import american_put
from deeprok.tabular.problems import PROBLEMS, make, parse

# --- oracles ------------------------------------------------------------------------------------------


def plain(model: RMDP, discount: float, sweeps: int) -> tuple[np.ndarray, np.ndarray]:
    """Values [S] and q [S, A] after so many sweeps of ordinary value iteration."""
    p, r = model.dense()
    reward, values = (p * r).sum(-1), np.zeros(model.states)
    for _ in range(sweeps):
        q = np.where(model.valid, reward + discount * p @ values, -np.inf)
        values = q.max(1)
    return values, q


def binomial_tree(spot: float, dates: int, chance: float, discount: float) -> float:
    """An American put by the textbook's recursion over an array of prices."""
    up, down, strike = 1.02, 0.98, 100.0
    value = np.zeros(dates + 1)
    for t in range(dates - 1, -1, -1):
        k = np.arange(t + 1)
        price = spot * up**k * down ** (t - k)
        value = np.maximum(strike - price, discount * (chance * value[1 : t + 2] + (1 - chance) * value[: t + 1]))
    return float(value[0])


# --- all of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_a_model_with_a_name_for_each_state_and_action(name: str) -> None:
    found = make(name)
    assert len(found.names.states) == len(set(found.names.states)) == found.model.states
    assert len(found.names.actions) == len(set(found.names.actions)) == found.model.actions
    assert 0 < found.discount < 1
    np.testing.assert_allclose(
        np.add.reduceat(found.model.probability, found.model.start[:-1][found.model.valid.ravel()]), 1
    )
    for parameter in PROBLEMS[name].parameters.values():
        assert type(parameter.default) is parameter.kind
        assert parameter.meaning


def test_parameters_are_read() -> None:
    found = parse("garnet: states=7, actions=2,branching=3,seed=5")
    assert (found.model.states, found.model.actions, len(found.model.reward)) == (7, 2, 42)
    same, other = (parse(f"garnet:states=7,actions=2,branching=3,seed={seed}").model for seed in (5, 6))
    assert np.array_equal(found.model.probability, same.probability)
    assert not np.array_equal(found.model.probability, other.probability)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("riverswim", "unknown problem 'riverswim': did you mean 'river_swim'?"),
        ("garnet:state=3", "unknown parameter of garnet 'state': did you mean 'states'?"),
        ("garnet:states", "'states' in 'garnet:states' is not a parameter; write garnet:name=value,…"),
        ("garnet:", "'' in 'garnet:' is not a parameter"),
        ("garnet:states=3.5", "garnet: states is '3.5'; it must be a whole number"),
        ("garnet:states=3,states=4", "states is given twice"),
        ("garnet:states=3", "garnet: branching is 5; there are only 3 states"),
        ("garnet:seed=-1", "garnet: seed is -1; it must be at least 0"),
        ("forest:fire=x", "forest: fire is 'x'; it must be a number"),
        ("forest:fire=nan", "forest: fire is nan; it must lie between 0 and 1"),
        ("forest:ages=1", "forest: ages is 1; it must be at least 2"),
        ("river_swim:forward=0.8,back=0.4", "river_swim: forward + back is 1.2; it must lie between 0 and 1"),
        ("american_put:up=0.9", "american_put: up is 0.9 and down 0.98; up must be the larger"),
        ("american_put:spot=0", "american_put: spot is 0; it must be above 0"),
        ("aircraft_routing:storms=7", "aircraft_routing: storms is 7; there can be up to 6, and fewer than columns"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(text: str, sentence: str) -> None:
    with pytest.raises(DeeprokError) as error:
        parse(text)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


# --- each ---------------------------------------------------------------------------------------------


def test_forest_has_its_published_values() -> None:
    model = make("forest").model
    np.testing.assert_allclose(plain(model, 0.9, 400)[0], [26.244, 29.484, 33.484])
    for kind, radius, values in (
        ("l1", 0.2, [20.736, 23.616, 27.616]),
        ("kl", 0.05, [20.3886409, 23.24441687, 27.24441687]),
    ):
        np.testing.assert_allclose(solve(model, kind, radius, discount=0.9, method="vi").values, values, atol=1e-6)


def test_coin_toss_has_its_published_values() -> None:
    found = make("coin_toss")
    solved = solve(found.model, "finite", discount=found.discount, method="vi")
    np.testing.assert_allclose(solved.values[[0, 5, 6]], [5.57422273, 4.57443245, 4.57443245], atol=1e-7)
    assert (solved.policy - 1).tolist() == [1, 1, 1, 1, 1, 0, 0, -1, -1, -1, -1]


def test_inventory_is_putermans() -> None:
    # Puterman (1994), section 4.6.1: three periods, in sixteenths.
    model = make("inventory").model
    for periods, values, orders in (
        (3, [67, 129, 194, 227], [3, 0, 0, 0]),
        (2, [32, 100, 160, 168], [2, 0, 0, 0]),
        (1, [0, 80, 96, 80], [0, 0, 0, 0]),
    ):
        found, q = plain(model, 1.0, periods)
        np.testing.assert_allclose(16 * found, values)
        assert np.argmax(q, axis=1).tolist() == orders


def test_without_a_fixed_cost_stock_is_filled_up_to_one_level() -> None:
    model = parse("inventory:capacity=12,customers=10,fixed=0").model
    orders = np.argmax(plain(model, 0.95, 500)[1], axis=1)
    level = orders[0]
    assert 0 < level < 12
    assert orders.tolist() == [max(level - stock, 0) for stock in range(13)]


def test_river_swim_by_hand() -> None:
    p, r = make("river_swim").model.dense()
    np.testing.assert_allclose(p[:, 0], np.eye(6)[[0, 0, 1, 2, 3, 4]])
    np.testing.assert_allclose(p[0, 1], [0.7, 0.3, 0, 0, 0, 0])
    np.testing.assert_allclose(p[2, 1], [0, 0.1, 0.6, 0.3, 0, 0])
    np.testing.assert_allclose(p[5, 1], [0, 0, 0, 0, 0.7, 0.3])
    assert {(s, a, t): r[s, a, t] for s, a, t in np.argwhere(r).tolist()} == {(0, 0, 0): 5.0, (5, 1, 5): 10_000.0}
    # With a far end that pays nothing it is best to rest.
    values, _ = plain(parse("river_swim:right=0").model, 0.9, 500)
    np.testing.assert_allclose(values, 50 * 0.9 ** np.arange(6))


def test_machine_is_repaired_from_some_condition_on() -> None:
    found = make("machine_replacement")
    p, _ = found.model.dense()
    np.testing.assert_allclose(p[3, :, [3, 4, 8, 9]].T, [[0.2, 0.8, 0, 0], [0, 0.3, 0.6, 0.1]])
    np.testing.assert_allclose(p[7, :, [7, 8, 9]].T, [[1, 0, 0], [0.3, 0.6, 0.1]])
    assert (p[8, 0, 0], p[8, 1, 8], p[9, 0, 9], p[9, 1, 8]) == (0.8, 1.0, 1.0, 0.6)
    q = plain(found.model, found.discount, 300)[1]
    repair = np.argmax(q, axis=1)[:8]
    assert repair.tolist() == sorted(repair)
    assert 0 < repair.sum() < 8
    # Left alone for ever, a broken machine costs 20 / (1 − γ).
    assert plain(parse("machine_replacement:fails=1,hard=0").model, 0.8, 300)[0][7] == pytest.approx(-100)


@pytest.mark.parametrize(("chance", "discount"), [(0.5, 0.998), (0.6, 0.99), (0.45, 1.0)])
def test_put_is_the_binomial_tree(chance: float, discount: float) -> None:
    for spot in (90.0, 100.0, 107.0):
        model = american_put(spot=spot, chance=chance)
        assert plain(model, discount, 20)[0][0] == pytest.approx(binomial_tree(spot, 20, chance, discount), rel=1e-12)


def test_put_worst_case_is_a_likelier_rise() -> None:
    # A put is worth less the dearer the share, so nature raises the probability of a rise by half the radius.
    found = make("american_put")
    robust = solve(found.model, "l1", 0.2, discount=found.discount, horizon=20)
    assert robust.values[0, 0] == pytest.approx(binomial_tree(100, 20, 0.6, found.discount), rel=1e-12)


def test_put_is_exercised_below_a_price_that_rises_with_time() -> None:
    found = make("american_put")
    q = plain(found.model, found.discount, 20)[1]
    date, boundary = 0, []
    for date in range(20):
        lattice = slice(date * (date + 1) // 2, (date + 1) * (date + 2) // 2)  # from many falls to many rises
        price = 100 * 1.02 ** np.arange(date + 1) * 0.98 ** (date - np.arange(date + 1.0))
        exercised = (q[lattice, 1] >= q[lattice, 0]) & (price < 100)
        assert exercised.tolist() == sorted(exercised, reverse=True)
        boundary.append(price[exercised].max(initial=0.0))
    assert boundary[0] == 0
    assert boundary[-1] > boundary[12] > boundary[9] > 80
    # Without interest on a fair game waiting costs nothing.
    q = plain(found.model, 1.0, 20)[1]
    assert (q[:190, 0] >= q[:190, 1] - 1e-12).all()


def test_garnet_has_so_many_successors() -> None:
    model = parse("garnet:states=20,actions=3,branching=4").model
    assert set(np.diff(model.start)) == {4}
    assert (model.probability > 0).all()
    assert len(np.unique(model.reward)) == 60


def shortest_flight(raging: tuple[bool, bool], delay: float) -> float:
    """The flight in weather that never changes, by the shortest path over (column, lane)."""
    best = {0: 0.0}
    for column in range(1, 13):
        ahead: dict[int, float] = {}
        for lane, cost in best.items():
            for turn in (-1, 0, 1):
                to = lane + turn
                if abs(to) > 4:
                    continue
                wall = abs(to) < 4 and ((column == 4 and raging[0]) or (column == 8 and raging[1]))
                ahead[to] = min(ahead.get(to, math.inf), cost + math.hypot(1, turn) + delay * wall)
        best = ahead
    return best[0]


@pytest.mark.parametrize("delay", [0.5, 2.0, 9.0])
def test_flight_in_steady_weather_is_the_shortest_path(delay: float) -> None:
    found = parse(f"aircraft_routing:stay=1,begin=0,delay={delay}")
    values, _ = plain(found.model, 1.0, 14)
    for w, raging in enumerate(((True, True), (True, False), (False, True), (False, False))):
        assert values[w] == pytest.approx(-shortest_flight(raging, delay))
    assert found.names.states[:4] == [
        "leg 0, lane +0, SS",
        "leg 0, lane +0, S-",
        "leg 0, lane +0, -S",
        "leg 0, lane +0, --",
    ]


def test_flight_is_dearer_the_longer_storms_may_stay() -> None:
    model = make("aircraft_routing").model
    values = [solve(model, "l1", radius, discount=1, horizon=13).values[0, 0] for radius in (0.0, 0.1, 0.2, 2.0)]
    assert values == sorted(values, reverse=True)
    # In the end all storms last, and the flight goes round them.
    assert values[-1] == pytest.approx(-shortest_flight((True, True), 2.0))
    assert values[0] == pytest.approx(plain(model, 1.0, 13)[0][0])


# --- the page -----------------------------------------------------------------------------------------

PAGE = (Path(__file__).parent.parent / "docs" / "problems.md").read_text()


@pytest.mark.parametrize("name", PROBLEMS)
def test_page_has_every_parameter_with_its_default(name: str) -> None:
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    for field, parameter in PROBLEMS[name].parameters.items():
        assert f"| `{field}` | {parameter.default:g} | {parameter.meaning} |" in section


@pytest.mark.parametrize("name", PROBLEMS)
def test_page_has_the_nominal_value(name: str) -> None:
    found = make(name)
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [`{name}`](#{name})"))
    size, discount, nominal = (cell.strip() for cell in row.split("|")[2:5])
    assert size == f"{found.model.states} × {found.model.actions}"
    assert float(discount) == found.discount
    value = plain(found.model, found.discount, 500 if found.model.states < 200 else 25)[0][0]
    assert abs(float(nominal.replace("−", "-")) - value) <= 0.0051
