from __future__ import annotations

import functools

import numpy as np
import pytest

from deeprok.core.errors import DeeprokError
from deeprok.tabular import RMDP, adp, solve
from deeprok.tabular.problems import make, parse

GARNET = parse("garnet:states=6,actions=2,branching=3,seed=1").model
POLICY = np.array([0, 1, 1, 0, 1, 0])
DISCOUNT = 0.8


def one_hot(model: RMDP) -> np.ndarray:
    pairs = model.states * model.actions
    return np.eye(pairs).reshape(model.states, model.actions, pairs)


def worst_l1(p: np.ndarray, v: np.ndarray, radius: float) -> float:
    """Half the radius of mass moved from the best outcomes to the worst, one by one."""
    p, left = p.copy(), min(radius / 2, 1 - p[np.argmin(v)])
    p[np.argmin(v)] += left
    for k in np.argsort(-v):
        moved = min(left, p[k])
        p[k], left = p[k] - moved, left - moved
    return float(p @ v)


def exact_q(model: RMDP, policy: np.ndarray, radius: float) -> np.ndarray:
    """[S, A] values of a policy by robust value iteration, row by row."""
    q = np.zeros(model.states * model.actions)
    for _ in range(150):
        v = q.reshape(model.states, -1)[np.arange(model.states), policy]
        rows = [slice(*model.start[i : i + 2]) for i in range(len(q))]
        q = np.array(
            [worst_l1(model.probability[i], model.reward[i] + DISCOUNT * v[model.successor[i]], radius) for i in rows]
        )
    return q.reshape(model.states, -1)


@pytest.mark.parametrize("radius", [0.0, 0.3])
def test_complete_features_give_the_exact_values(radius: float) -> None:
    simulator = adp.of_problem(GARNET, one_hot(GARNET))
    visits = adp.visit(simulator, lambda s: POLICY[s], episodes=40, steps=20, exploration=0.5)
    fit = adp.projected_value_iteration(visits, "l1", radius, DISCOUNT)
    np.testing.assert_allclose(fit.weights.reshape(6, 2), exact_q(GARNET, POLICY, radius), atol=1e-7)


def test_without_a_radius_it_is_lstd() -> None:
    features = np.random.default_rng(3).normal(size=(6, 2, 4))
    simulator = adp.of_problem(GARNET, features)
    visits = adp.visit(simulator, lambda s: POLICY[s], episodes=40, steps=20)
    fit = adp.projected_value_iteration(visits, "kl", 0.0, DISCOUNT)
    ahead = np.einsum("nk,nkd->nd", visits.probability, visits.following)
    reward = (visits.probability * visits.reward).sum(1)
    matrix = visits.features.T @ (visits.features - DISCOUNT * ahead)
    np.testing.assert_allclose(fit.weights, np.linalg.solve(matrix, visits.features.T @ reward), atol=1e-6)
    assert fit.beta == pytest.approx(DISCOUNT)
    assert fit.contracts


def test_policy_iteration_with_complete_features_is_optimal() -> None:
    simulator = adp.of_problem(GARNET, one_hot(GARNET))
    found = adp.iterate(simulator, "l1", 0.3, DISCOUNT, episodes=40, steps=20, exploration=0.5)
    best = solve(GARNET, "l1", 0.3, discount=DISCOUNT, method="vi")
    assert found.settled
    assert found.policy(np.arange(6)).tolist() == best.policy.tolist()
    np.testing.assert_allclose(adp.values(simulator, found.fit.weights, np.arange(6)), best.values, atol=1e-6)


# --- the put ------------------------------------------------------------------------------------------


def exercise_tree(spot: float, chance: float, stops: adp.PolicyFunction | None = None) -> float:
    """The put on its tree, exercised at best or by a rule on (date, price)."""
    value = np.zeros(21)
    for t in range(19, -1, -1):
        price = spot * 1.02 ** np.arange(t + 1) * 0.98 ** (t - np.arange(t + 1.0))
        wait = 0.998 * (chance * value[1 : t + 2] + (1 - chance) * value[: t + 1])
        payoff = np.maximum(100 - price, 0)
        if stops is None:
            value = np.maximum(payoff, wait)
        else:
            value = np.where(stops(np.stack([np.full(t + 1, t), price], axis=1)) == 1, payoff, wait)
    return float(value[0])


@functools.cache
def priced(radius: float) -> adp.Improved:
    return adp.iterate(adp.american_put(), "l1", radius, 0.998, episodes=300, steps=20)


@pytest.mark.parametrize("radius", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_put_is_near_the_exact_value(radius: float) -> None:
    # The worst case of a put is a likelier rise, by half the radius.
    chance, found = 0.5 + radius / 2, priced(radius)
    spots = np.linspace(85, 115, 13)
    approximate = adp.values(adp.american_put(), found.fit.weights, np.stack([0 * spots, spots], axis=1))
    exact = [exercise_tree(spot, chance) for spot in spots]
    np.testing.assert_allclose(approximate, exact, atol=0.15)
    assert found.settled
    # What the policy earns against nature is nearer still, and never above the best.
    earned = np.array([exercise_tree(spot, chance, found.policy) for spot in spots])
    assert (earned <= np.array(exact) + 1e-12).all()
    np.testing.assert_allclose(earned, exact, atol=0.03)


@pytest.mark.slow
def test_robust_put_is_exercised_earlier() -> None:
    def boundary(found: adp.Improved) -> float:
        prices = np.arange(80, 100, 0.1)
        stopped = found.policy(np.stack([np.full(len(prices), 10.0), prices], axis=1)) == 1
        return float(prices[stopped].max(initial=0.0))

    assert boundary(priced(0.0)) + 3 < boundary(priced(0.2)) < 99


def test_the_simulation_repeats_and_seeds_differ() -> None:
    def visits(seed: int) -> adp.Visits:
        return adp.visit(adp.american_put(), lambda s: np.zeros(len(s), int), episodes=3, steps=3, seed=seed)

    assert np.array_equal(visits(0).features, visits(0).features)
    assert not np.array_equal(visits(0).features, visits(1).features)


def test_successors_are_drawn_as_often_as_they_are_likely() -> None:
    """On a share that rises nine times in ten, most of the prices that are visited next have risen."""
    put = adp.american_put(chance=0.9, low=100.0, high=100.0)
    seen: list[np.ndarray] = []

    def wait(states: np.ndarray) -> np.ndarray:
        seen.append(states)
        return np.zeros(len(states), int)

    adp.visit(put, wait, episodes=2000, steps=2)
    second = seen[2]  # what the policy is asked on the way: the first states, their successors, the second states
    assert (second[:, 0] == 1).all()
    assert np.mean(second[:, 1] > 100) == pytest.approx(0.9, abs=0.03)


# --- the condition ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "radius", "discount", "beta"),
    [
        ("l1", 0.2, 0.8, 0.8 * 1.2),  # from 1/2 to 1/2 + radius/2
        ("l1", 0.2, 0.998, 0.998 * 1.2),
        ("contamination", 0.1, 0.9, 0.9 * 1.1),  # to 0.9/2 + 0.1
        ("minimum", 0.0, 0.45, 0.9),  # to 1
        ("cvar", 0.5, 0.6, 1.2),
        ("kl", 0.0, 1.0, 1.0),
    ],
)
def test_condition_of_a_fair_coin(kind: str, radius: float, discount: float, beta: float) -> None:
    visits = adp.visit(adp.american_put(), lambda s: np.zeros(len(s), int), episodes=5, steps=3)
    assert adp.contraction(visits, kind, radius, discount) == pytest.approx(beta, rel=1e-9)
    if kind == "l1" and beta < 1:
        assert adp.projected_value_iteration(visits, kind, radius, discount).contracts


def test_condition_counts_exploration_and_not_where_the_policy_stops() -> None:
    simulator = adp.of_problem(GARNET, one_hot(GARNET))
    visits = adp.visit(simulator, lambda s: POLICY[s], episodes=10, steps=5, exploration=0.2)
    assert adp.contraction(visits, "l1", 0.0, 0.95) == pytest.approx(0.95 / 0.9)
    stopped = adp.visit(adp.american_put(), lambda s: np.ones(len(s), int), episodes=5, steps=3)
    assert adp.contraction(stopped, "l1", 0.2, 0.99) == 0.0


def test_divergence_is_said_with_its_condition() -> None:
    # Two states with the features 1 and 2, of which only the first is visited: w becomes 1 + 2γw.
    visits = adp.Visits(*map(np.array, ([[1.0]], [[1.0]], [[1.0]], [[[2.0]]], [[0.0]], [[5.0]])))
    with pytest.raises(DeeprokError, match=r"does not converge: .* β being 4\.5; take a smaller"):
        adp.projected_value_iteration(visits, "l1", 0.0, 0.9)
    assert adp.projected_value_iteration(visits, "l1", 0.0, 0.4).weights == pytest.approx([5.0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(set="l3"), "unknown set 'l3'"),
        (dict(set="entropic"), "unknown set 'entropic'"),
        (dict(radius=-1.0), "radius is -1"),
        (dict(discount=1.5), "discount is 1.5; it must be above 0 and at most 1"),
        (dict(exploration=2.0), "exploration is 2; it must lie between 0 and 1"),
        (dict(rounds=0), "rounds is 0; it must be at least 1"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(DeeprokError) as error:
        adp.iterate(adp.american_put(), **{"episodes": 2, "steps": 2, **arguments})  # type: ignore[arg-type]
    assert str(error.value).startswith(sentence)


def test_a_table_must_have_all_actions() -> None:
    model = make("inventory").model
    with pytest.raises(DeeprokError, match=r"\(s, a\) = \(1, 3\) is not an action"):
        adp.of_problem(model, np.zeros((4, 4, 1)))
