from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize_scalar
from scipy.stats import binom

from deeprok.core.errors import DeeprokError
from deeprok.tabular import (
    RMDP,
    TABULAR_SETS,
    Solution,
    evaluate,
    from_arrays,
    from_models,
    from_samples,
    from_transitions,
    radii,
    solve,
    sweep_radii,
)
from deeprok.tabular.setting import Setting

# --- oracles ------------------------------------------------------------------------------------------


def plain_policy(p: np.ndarray, r: np.ndarray, policy: np.ndarray, discount: float) -> np.ndarray:
    """The values of a policy [S, A] in an ordinary model [S, A, S]."""
    kernel = np.einsum("sa,sat->st", policy, p)
    reward = np.einsum("sa,sat,sat->s", policy, p, r)
    return np.linalg.solve(np.eye(len(p)) - discount * kernel, reward)


def as_weights(policy: np.ndarray, actions: int) -> np.ndarray:
    return np.eye(actions)[policy] if policy.ndim == 1 else policy


def lp_l1(p: np.ndarray, v: np.ndarray, radius: float) -> float:
    n = len(p)
    above = np.block([[np.eye(n), -np.eye(n)], [-np.eye(n), -np.eye(n)], [np.zeros(n), np.ones(n)]])
    solved = linprog(
        np.concatenate([v, np.zeros(n)]),
        A_ub=above,
        b_ub=np.concatenate([p, -p, [radius]]),
        A_eq=[np.concatenate([np.ones(n), np.zeros(n)])],
        b_eq=[1.0],
    )
    assert solved.status == 0, solved.message
    return float(solved.fun)


def lp_wasserstein(p: np.ndarray, v: np.ndarray, radius: float, cost: np.ndarray) -> float:
    n = len(p)
    leaves = np.kron(np.eye(n), np.ones(n))  # Σ_j plan[i, j] = p_i
    solved = linprog(np.tile(v, n), A_ub=[cost.reshape(-1)], b_ub=[radius], A_eq=leaves, b_eq=p)
    assert solved.status == 0, solved.message
    return float(solved.fun)


def dual_kl(p: np.ndarray, v: np.ndarray, radius: float) -> float:
    p, v = p[p > 0], v[p > 0]

    def lower(log_price: float) -> float:
        price = np.exp(log_price)
        return -(price * -radius - price * np.log(np.sum(p * np.exp(-(v - v.min()) / price))) + v.min())

    return max(v.min(), -minimize_scalar(lower, bounds=(-12, 12), method="bounded", options={"xatol": 1e-12}).fun)


# --- problems -----------------------------------------------------------------------------------------


def forest() -> RMDP:
    """Three ages of a forest; to wait grows it unless it burns, to cut takes it back."""
    p = np.zeros((3, 2, 3))
    for s in range(3):
        p[s, 0, 0], p[s, 0, min(s + 1, 2)] = 0.1, 0.9
        p[s, 1, 0] = 1.0
    return from_arrays(p, np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 2.0]]))


def chain() -> RMDP:
    state = np.repeat(np.arange(3), 2)
    return from_transitions(state, np.tile([1, 0], 3), [1, 0, 2, 0, 2, 1], np.ones(6), [0, 0, 0, 1, 1.1, 1])


def two_outcomes() -> RMDP:
    """One state in two copies: both outcomes are equally likely, and the second pays more."""
    return from_arrays(np.full((2, 1, 2), 0.5), np.tile([1.0, 2.0], (2, 1, 1)))


def coin_toss() -> RMDP:
    """Bets on whether ten tosses show more heads than the last ten did, with a coin of two possible biases."""
    x, bets, y = np.ogrid[:11, -1:2, :11]
    reward = bets * (y > x) - bets * (y < x) - np.abs(bets) * (y == x)
    return from_models(
        [from_arrays(np.broadcast_to(binom.pmf(np.arange(11), 10, p), (11, 3, 11)), reward * 1.0) for p in (0.5, 0.6)]
    )


@functools.cache
def random_problem(by_successor: bool = False) -> RMDP:
    """Five states with rows of one to four successors; one state lacks an action."""
    rng = np.random.default_rng(7)
    p = rng.dirichlet(np.ones(5), (5, 3))
    for s, a in itertools.product(range(5), range(3)):
        p[s, a, rng.permutation(5)[: rng.integers(1, 5)]] = 0.0
    valid = np.ones((5, 3), bool)
    valid[3, 1] = False
    reward = rng.normal(size=(5, 3, 5))
    return from_arrays(p / p.sum(-1, keepdims=True), reward if by_successor else reward[:, :, 0], valid)


LEVELS = {
    "minimum": 0.0,
    "cvar": 0.6,
    "contamination": 0.15,
    "l1": 0.4,
    "tv": 0.2,
    "linf": 0.1,
    "l2": 0.2,
    "chi2": 0.2,
    "kl": 0.1,
    "burg": 0.1,
    "wasserstein": 0.3,
    "entropic": 0.5,
}


def solved(problem: RMDP, set: str, radius: Any = None, discount: float = 0.9, **settings: Any) -> Solution:
    return solve(problem, set, LEVELS[set] if radius is None else radius, discount, **settings)


# --- known numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["vi", "ppi", "mpi"])
def test_chain(method: Any) -> None:
    solution = solve(chain(), objective="nominal", discount=0.9, method=method)
    np.testing.assert_allclose(solution.values, [8.91, 9.9, 11.0], atol=1e-8)
    np.testing.assert_array_equal(solution.policy, [1, 1, 1])


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"set": "minimum"}, 10),
        ({"objective": "nominal"}, 15),
        ({"set": "minimum", "objective": "optimistic"}, 20),
        ({"set": "l1", "radius": 0.5}, 12.5),
    ],
)
def test_two_outcomes(settings: Any, value: float) -> None:
    np.testing.assert_allclose(solve(two_outcomes(), discount=0.9, method="vi", **settings).values, value, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"objective": "nominal"}, [26.244, 29.484, 33.484]),
        ({"set": "l1", "radius": 0.2}, [20.736, 23.616, 27.616]),
        ({"set": "tv", "radius": [0.1, 0.1, 0.1]}, [20.736, 23.616, 27.616]),
        ({"set": "kl", "radius": np.full((3, 2), 0.05)}, [20.3886409, 23.24441687, 27.24441687]),
    ],
)
def test_forest(settings: Any, values: list[float]) -> None:
    np.testing.assert_allclose(solve(forest(), discount=0.9, method="vi", **settings).values, values, atol=1e-7)


def test_coin_toss() -> None:
    solution = solve(coin_toss(), "finite", discount=0.95, method="vi")
    np.testing.assert_allclose(solution.values[[0, 5, 6]], [5.57422273, 4.57443245, 4.57443245], atol=1e-8)
    np.testing.assert_array_equal(solution.policy - 1, [1, 1, 1, 1, 1, 0, 0, -1, -1, -1, -1])


# --- what must hold -----------------------------------------------------------------------------------


def inside(set: str, q: np.ndarray, p: np.ndarray, level: float) -> bool:
    """Whether a row belongs to the set around another, by the definition of the set."""
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = {
            "minimum": lambda: 0.0,
            "cvar": lambda: np.max(q - p / level) + level,
            "contamination": lambda: np.max((1 - level) * p - q) + level,
            "l1": lambda: np.abs(q - p).sum(),
            "tv": lambda: np.abs(q - p).sum() / 2,
            "linf": lambda: np.abs(q - p).max(),
            "l2": lambda: np.sqrt(np.square(q - p).sum()),
            "chi2": lambda: np.where(p > 0, np.square(q - p) / p, 0).sum(),
            "kl": lambda: np.where(q > 0, q * np.log(q / p), 0).sum(),
            "burg": lambda: np.where(p > 0, p * np.log(p / q), 0).sum(),
            "wasserstein": lambda: np.abs(np.cumsum(q - p)).sum(),
            "entropic": lambda: 0.0,
        }[set]()
    return distance <= level + 1e-9


@functools.cache
def nominal() -> Solution:
    return solve(random_problem(), discount=0.9, objective="nominal", method="vi", tol=1e-10)


@pytest.mark.parametrize("set", LEVELS)
def test_nature_keeps_to_its_set_and_gives_the_values(set: str) -> None:
    problem = random_problem()
    solution = solved(problem, set, method="vi", tol=1e-10)
    assert solution.error_bound <= 1e-10
    worst = solution.worst_model()
    (p, _), (q, r) = problem.dense(), worst.dense()
    np.testing.assert_array_equal(worst.valid, problem.valid)
    for s, a in np.argwhere(problem.valid):
        assert inside(set, q[s, a], p[s, a], LEVELS[set]), (s, a)
        assert (q[s, a][p[s, a] == 0] == 0).all()
    assert (solution.values < nominal().values - 1e-3).all()
    values = plain_policy(q, r, as_weights(solution.policy, 3), 0.9)
    if set == "entropic":
        assert (values < solution.values).all()  # nature pays for what it does
    else:
        np.testing.assert_allclose(values, solution.values, atol=1e-8)
        actions = np.sum(q * (r + 0.9 * values), axis=-1)  # and no other action does better there
        np.testing.assert_allclose(np.where(problem.valid, actions, -np.inf), solution.q, atol=1e-8)
        np.testing.assert_allclose(solution.q.max(1), solution.values, atol=1e-8)


def test_against_enumeration() -> None:
    """Without nature: the best of all deterministic policies."""
    problem = random_problem()
    p, r = problem.dense()
    policies = itertools.product(*(np.flatnonzero(row) for row in problem.valid))
    best = np.max([plain_policy(p, r, np.eye(3)[list(policy)], 0.9) for policy in policies], axis=0)
    np.testing.assert_allclose(nominal().values, best, atol=1e-9)


def bellman_error(problem: RMDP, solution: Solution, inner: Any, support: str) -> float:
    """How far the values are from what the oracle makes of them in one step."""
    p, r = problem.dense()
    first = r[:, :, :1] if np.ndim(problem.reward) and support == "all" else r
    rows = problem.start[:-1].reshape(5, 3)
    worst = 0.0
    for s in range(5):
        best = -np.inf
        for a in np.flatnonzero(problem.valid[s]):
            kept = np.ones(5, bool) if support == "all" else p[s, a] > 0
            rewards = np.full(5, problem.reward[rows[s, a]]) if support == "all" else first[s, a]
            best = max(best, inner(p[s, a][kept], (rewards + 0.9 * solution.values)[kept], np.flatnonzero(kept)))
        worst = max(worst, abs(best - solution.values[s]))
    return worst


COST = np.abs(np.subtract.outer(np.array([0.0, 2.0, 1.0, 5.0, 4.0]), np.array([0.0, 2.0, 1.0, 5.0, 4.0])))


@pytest.mark.parametrize("support", ["nominal", "all"])
def test_l1_against_linear_programs(support: Any) -> None:
    solution = solved(random_problem(), "l1", support=support, method="vi", tol=1e-10)
    assert bellman_error(random_problem(), solution, lambda p, v, at: lp_l1(p, v, 0.4), support) < 1e-8


def test_wasserstein_against_linear_programs() -> None:
    solution = solved(random_problem(), "wasserstein", support="all", cost=COST, method="vi", tol=1e-10)
    error = bellman_error(random_problem(), solution, lambda p, v, at: lp_wasserstein(p, v, 0.3, COST), "all")
    assert error < 1e-8
    worst = solution.worst_model()
    assert (np.diff(worst.start) > np.diff(random_problem().start)).any()  # mass went to new states
    values = plain_policy(*worst.dense(), np.eye(3)[solution.policy], 0.9)
    np.testing.assert_allclose(values, solution.values, atol=1e-8)


def test_kl_against_its_dual() -> None:
    solution = solved(random_problem(), "kl", support="all", method="vi", tol=1e-10)
    assert bellman_error(random_problem(), solution, lambda p, v, at: dual_kl(p, v, 0.1), "nominal") < 1e-7


def test_rewards_by_successor() -> None:
    """They matter where nature may go, even if the nominal model does not go there."""
    problem = random_problem(by_successor=True)
    p, r = problem.dense()
    for support in ("nominal", "all"):
        solution = solved(problem, "l1", support=support, method="vi", tol=1e-10)
        for s in range(5):
            q = [
                lp_l1(p[s, a][kept], (r[s, a] + 0.9 * solution.values)[kept], 0.4)
                for a in np.flatnonzero(problem.valid[s])
                for kept in [(p[s, a] > 0) | (support == "all")]
            ]
            assert max(q) == pytest.approx(solution.values[s], abs=1e-8)


def test_methods_agree_and_keep_their_bounds() -> None:
    problem = random_problem()
    exact = solved(problem, "l1", method="vi", tol=1e-12).values
    for method, tol in itertools.product(("vi", "ppi", "mpi"), (1e-2, 1e-5)):
        solution = solved(problem, "l1", method=method, tol=tol)
        assert np.abs(solution.values - exact).max() <= solution.error_bound <= tol
        assert solution.error_bound == pytest.approx(9 * solution.residual)
        assert solution.iterations > 0
        np.testing.assert_array_equal(solution.policy, np.argmax(solution.q, 1))


def test_an_unreachable_tolerance_ends_where_rounding_begins() -> None:
    for method in ("vi", "ppi", "mpi"):  # the last two hand over to the first
        assert solved(random_problem(), "l1", method=method, tol=1e-30).error_bound < 1e-13


def test_values_fall_with_the_radius_from_the_nominal_ones() -> None:
    problem = random_problem()
    curve = np.array([solved(problem, "l1", radius, method="vi").values for radius in np.linspace(0, 2, 9)])
    np.testing.assert_allclose(curve[0], nominal().values, atol=1e-7)
    assert (np.diff(curve, axis=0) <= 1e-7).all()
    np.testing.assert_allclose(curve[-1], solved(problem, "minimum", method="vi").values, atol=1e-7)


@pytest.mark.parametrize("set", ["kl", "chi2", "burg", "linf", "l2", "wasserstein", "contamination", "entropic"])
def test_radius_0_is_ordinary_dynamic_programming(set: str) -> None:
    np.testing.assert_allclose(solved(random_problem(), set, 0.0, method="vi").values, nominal().values, atol=1e-7)


def test_each_row_has_its_own_radius() -> None:
    """A radius in one state and action moves that action alone, in one step."""
    problem = random_problem()
    radius = np.zeros((5, 3))
    radius[2, 0] = 1.0
    q = {
        (own, horizon): np.where(problem.valid, solved(problem, "l1", level, horizon=horizon).q[0], 0.0)
        for own, level in ((True, radius), (False, 0.0))
        for horizon in (1, 2)
    }
    np.testing.assert_allclose(q[True, 1], q[False, 1])  # rewards are the same wherever it goes
    change = q[True, 2] - q[False, 2]
    assert change[2, 0] < -1e-3
    change[2, 0] = 0.0
    np.testing.assert_allclose(change, 0.0, atol=1e-12)


def test_operator_contracts_and_is_monotone() -> None:
    """A horizon of 1 with values V of the successors, put there as rewards by successor, is one sweep."""
    p, _ = random_problem().dense()
    rng = np.random.default_rng(3)

    def sweep(values: np.ndarray) -> np.ndarray:
        rewards = np.broadcast_to(0.9 * values, p.shape)
        problem = from_arrays(np.where(random_problem().valid[:, :, None], p, np.eye(5)[:, None]), rewards)
        return solved(problem, "l1", horizon=1, discount=1.0).values[0]

    for _ in range(20):
        v, w = rng.normal(size=(2, 5))
        assert np.abs(sweep(v) - sweep(w)).max() <= 0.9 * np.abs(v - w).max() + 1e-12
        assert (sweep(np.maximum(v, w)) >= sweep(v) - 1e-12).all()
        np.testing.assert_allclose(sweep(v + 3.0), sweep(v) + 2.7, atol=1e-12)


def test_horizon_is_backward_induction() -> None:
    problem = random_problem()
    p, r = problem.dense()
    solution = solved(problem, "l1", horizon=4, discount=1.0)
    values = np.zeros(5)
    for stage in reversed(range(4)):
        q = np.full((5, 3), -np.inf)
        for s, a in np.argwhere(problem.valid):
            kept = p[s, a] > 0
            q[s, a] = lp_l1(p[s, a][kept], (r[s, a] + values)[kept], 0.4)
        values = q.max(1)
        np.testing.assert_allclose(solution.q[stage], q, atol=1e-9)
        np.testing.assert_allclose(solution.values[stage], values, atol=1e-9)
        np.testing.assert_array_equal(solution.policy[stage], q.argmax(1))
    assert (solution.residual, solution.error_bound, solution.iterations) == (0.0, 0.0, 4)
    # Stage by stage nature's models give the same values.
    values = np.zeros(5)
    for stage in reversed(range(4)):
        q, rewards = solution.worst_model(stage).dense()
        values = np.sum(q * (rewards + values), -1)[np.arange(5), solution.policy[stage]]
        np.testing.assert_allclose(values, solution.values[stage], atol=1e-9)
    with pytest.raises(DeeprokError, match="stage is 4; there are the stages 0 to 3"):
        solution.worst_model(4)


def test_a_friend_is_an_enemy_of_the_opposite() -> None:
    """With one action to take, the best case is the worst case of the negated rewards."""
    problem = random_problem()
    policy = solved(problem, "l1", method="vi").policy
    negated = from_transitions(*np.divmod(problem.row, 3), problem.successor, problem.probability, -problem.reward)
    best = evaluate(problem, policy, set="l1", radius=0.4, discount=0.9, objective="optimistic")
    worst = evaluate(negated, policy, set="l1", radius=0.4, discount=0.9)
    np.testing.assert_allclose(best.values, -worst.values, atol=1e-7)
    best_of_all = solved(problem, "l1", objective="optimistic", method="vi")
    assert (best_of_all.values >= best.values - 1e-7).all()
    assert (best_of_all.values >= nominal().values).all()
    values = plain_policy(*best_of_all.worst_model().dense(), np.eye(3)[best_of_all.policy], 0.9)
    np.testing.assert_allclose(values, best_of_all.values, atol=1e-7)


def test_policies_are_evaluated() -> None:
    problem = random_problem()
    best = solved(problem, "l1", method="vi")
    setting: Setting = {"set": "l1", "radius": 0.4, "discount": 0.9}
    again = evaluate(problem, best.policy, **setting)
    np.testing.assert_allclose(again.values, best.values, atol=1e-7)
    np.testing.assert_allclose(again.q, best.q, atol=1e-7)
    mixed = np.where(problem.valid, 1.0, 0.0)
    mixed /= mixed.sum(1, keepdims=True)
    solution = evaluate(problem, mixed, **setting)
    assert (solution.values < best.values - 1e-3).all()
    p, r = solution.worst_model().dense()
    np.testing.assert_allclose(plain_policy(p, r, mixed, 0.9), solution.values, atol=1e-7)
    np.testing.assert_array_equal(solution.policy, mixed)


def dense_problem(holes: bool) -> RMDP:
    rng = np.random.default_rng(11)
    p = rng.dirichlet(np.ones(8), (8, 2)) * (rng.random((8, 2, 8)) < (0.8 if holes else 1.1))
    return from_arrays(p / p.sum(-1, keepdims=True), rng.normal(size=(8, 2)), np.arange(16).reshape(8, 2) != 5)


@pytest.mark.parametrize("holes", [False, True])
def test_dense_models_of_one_order(holes: bool) -> None:
    """Rows that share their order are solved column by column, with the same result."""
    problem = dense_problem(holes)
    radius = np.random.default_rng(0).random((8, 2))
    support: Any = "all" if holes else "nominal"
    solution = solve(problem, "l1", radius, 0.9, support=support, method="vi", tol=1e-10)
    p, _ = problem.dense()
    for s in range(8):
        for a in np.flatnonzero(problem.valid[s]):
            v = problem.reward[problem.start[2 * s + a]] + 0.9 * solution.values
            assert solution.q[s, a] == pytest.approx(lp_l1(p[s, a], v, radius[s, a]), abs=1e-8)
    assert solution.q[2, 1] == -np.inf
    worst = solution.worst_model()
    np.testing.assert_allclose(
        plain_policy(*worst.dense(), np.eye(2)[solution.policy], 0.9), solution.values, atol=1e-8
    )
    tv = solve(problem, "tv", radius / 2, 0.9, support=support, method="vi", objective="optimistic", tol=1e-10)
    l1 = solve(problem, "l1", radius, 0.9, support=support, method="vi", objective="optimistic", tol=1e-10)
    np.testing.assert_allclose(tv.values, l1.values, atol=1e-9)
    assert (l1.values > solution.values).all()


def test_rows_of_all_lengths() -> None:
    """States in several blocks and chunks come out in their own order."""
    S = 3000
    state = np.concatenate([np.arange(S), np.zeros(S, int), [7, 7]])
    action = np.concatenate([np.zeros(S, int), np.ones(S, int), [2, 2]])
    successor = np.concatenate([(np.arange(S) + 1) % S, np.arange(S), [3, 4]])
    probability = np.concatenate([np.ones(S), np.full(S, 1 / S), [0.5, 0.5]])
    reward = np.concatenate([np.cos(np.arange(S)), np.full(S, 2.0), [-1.0, -1.0]])
    problem = from_transitions(state, action, successor, probability, reward)
    solution = solve(problem, "minimum", discount=0.5, method="vi", tol=1e-12)
    values = np.zeros(S)
    for _ in range(60):
        q0 = np.cos(np.arange(S)) + 0.5 * np.roll(values, -1)
        q0[0] = max(q0[0], 2.0 + 0.5 * values.min())
        q0[7] = max(q0[7], -1.0 + 0.5 * min(values[3], values[4]))
        values = q0
    np.testing.assert_allclose(solution.values, values, atol=1e-10)
    assert solution.q.shape == (S, 3)
    assert np.isneginf(solution.q[1, 1])
    worst = solution.worst_model()
    assert len(worst.reward) == S + 2  # each row goes to its one worst successor


# --- models of samples --------------------------------------------------------------------------------


def sampled(p: np.ndarray, r: np.ndarray, count: int, rng: np.random.Generator, **more: Any) -> RMDP:
    """A model of `count` samples of each row that is not empty."""
    state, action = np.repeat(np.argwhere(p.any(-1)), count, axis=0).T
    successor = (rng.random((len(state), 1)) > np.cumsum(p[state, action], axis=1)).sum(1)
    return from_samples(state, action, successor, r[state, action, successor], unseen_actions="leave_out", **more)


def crash() -> tuple[np.ndarray, np.ndarray]:
    """Action 1 pays more than action 0, and ends all one time in ten."""
    p = np.array([[[1.0, 0.0], [0.9, 0.1]], [[0.0, 1.0], [0.0, 0.0]]])
    return p, np.broadcast_to([[[0.5], [1.0]], [[0.0], [0.0]]], p.shape)


def of_three_states() -> tuple[np.ndarray, np.ndarray]:
    """Rewards by successor, some of which are seldom seen."""
    rng = np.random.default_rng(2)
    return rng.dirichlet([3.0, 1.0, 0.1], (3, 2)), np.broadcast_to([0.0, 1.0, -4.0], (3, 2, 3))


@pytest.mark.parametrize(
    ("truth", "count", "more", "set", "rule"),
    [
        (crash(), 5, {}, "l1", "weissman"),
        (of_three_states(), 40, {"unseen_reward": -4.0}, "l1", "weissman"),
        (of_three_states(), 40, {"unseen_reward": -4.0}, "burg", "likelihood_ratio"),
    ],
)
def test_bounds_from_data_hold_as_often_as_they_say(
    truth: tuple[np.ndarray, np.ndarray], count: int, more: dict[str, Any], set: str, rule: str
) -> None:
    """What the policy is worth in the true model is at least what the solution says, nine times in ten."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(150):
        model = sampled(*truth, count, rng, **more)
        solution = solve(model, set, radii(model, 0.9, rule), discount=0.9, method="vi", tol=1e-6)
        worth = plain_policy(*truth, np.eye(2)[solution.policy], 0.9)
        held.append((solution.values <= worth + 1e-5).all())
    assert np.mean(held) >= 0.9


def test_what_was_not_seen_may_happen() -> None:
    """Five samples without a crash: if nature were kept to what they show, the bound would be 10; 5.26 is true."""
    _, r = crash()
    safe = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    model = sampled(safe, r, 5, np.random.default_rng(0))
    radius = radii(model, 0.95)
    truth = plain_policy(*crash(), np.eye(2)[[1, 0]], 0.9)[0]
    assert truth == pytest.approx(1 / (1 - 0.81))
    assert solve(model, "l1", radius, discount=0.9, support="nominal", method="vi").values[0] == pytest.approx(10)
    assert 0 < solve(model, "l1", radius, discount=0.9, method="vi").values[0] < 2 < truth
    with pytest.raises(DeeprokError, match=r"set is 'kl', which never gives mass .* or give support='nominal'"):
        solve(model, "kl", 0.1, discount=0.9)
    certain = sampled(safe, r, 5, np.random.default_rng(0), possible=np.eye(2, dtype=bool))
    np.testing.assert_array_equal(radii(certain, 0.95), 0.0)
    assert solve(certain, "kl", 0.1, discount=0.9, method="vi").values[0] == pytest.approx(10)


def test_listed_successors_are_those_that_nature_may_choose() -> None:
    """State 0 besides those of the nominal model."""
    p = random_problem().dense()[0]
    listed = (p > 0) | (np.arange(5) == 0)
    state, action, successor = np.nonzero(listed & random_problem().valid[:, :, None])
    problem = from_transitions(state, action, successor, p[state, action, successor], 0.1 * successor - action)
    solution = solve(problem, "l1", 0.4, discount=0.9, support="listed", method="vi", tol=1e-10)
    for s in range(5):
        q = [
            lp_l1(p[s, a][kept], (0.1 * np.arange(5) - a + 0.9 * solution.values)[kept], 0.4)
            for a in np.flatnonzero(random_problem().valid[s])
            for kept in [listed[s, a]]
        ]
        assert max(q) == pytest.approx(solution.values[s], abs=1e-8)


def test_progress_adds_up_to_one() -> None:
    for settings in ({"method": "vi"}, {"method": "ppi"}, {"horizon": 5}):
        parts: list[float] = []
        solved(random_problem(), "l1", advance=parts.append, **settings)
        assert sum(parts) == pytest.approx(1.0)
        assert min(parts) > 0
        assert len(parts) > 1


FULL = np.full((5, 3), 0.1)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"set": "l3"}, "unknown set 'l3'.*did you mean 'l2'"),
    ({"rect": "as"}, "unknown rect 'as'"),
    ({"support": "some"}, "unknown support 'some'"),
    ({"objective": "best"}, "unknown objective 'best'"),
    ({"method": "pi"}, "unknown method 'pi'"),
    ({"discount": 0.0}, "discount is 0; it must be above 0 and below 1"),
    ({"discount": 1.5}, "discount is 1.5; it must be above 0 and below 1"),
    ({"discount": float("nan")}, "discount is nan"),
    ({"discount": 1.0}, "discount is 1; it must be above 0 and below 1, as there is no horizon"),
    ({"tol": 0.0}, "tol is 0; it must be above 0"),
    ({"horizon": 0}, "horizon is 0; it must be a whole number of at least 1"),
    ({"radius": None}, "radius is not given; the set l1 needs one"),
    ({"radius": -0.1}, "radius is -0.1"),
    ({"radius": float("nan")}, "radius is nan"),
    ({"radius": [0.1, 0.1, -0.2, 0.1, 0.1]}, "radius at s = 2 is -0.2"),
    ({"radius": np.where(np.arange(15).reshape(5, 3) == 7, np.nan, FULL)}, r"radius at \(s, a\) = \(2, 1\) is nan"),
    (
        {"radius": np.zeros(4)},
        r"radius has the shape \[4\]; it must be a number or \[S\] = \[5\] or \[S, A\] = \[5, 3\]",
    ),
    ({"radius": FULL, "rect": "s"}, r"radius has the shape \[5, 3\]; it must be a number or \[S\] = \[5\]$"),
    ({"set": "cvar", "radius": 0.0}, "radius is 0; for the set cvar"),
    ({"set": "contamination", "radius": 1.1}, "radius is 1.1; for the set contamination"),
    (
        {"set": "cvar", "radius": 0.5, "rect": "s"},
        "rect is 's' and set 'cvar'; the sets with a budget to share are contamination, l1",
    ),
    ({"radius": np.inf, "rect": "s"}, "radius is inf; a shared budget must be finite"),
    ({"set": "finite"}, "the problem has no models"),
    ({"weights": np.ones(5), "set": "kl"}, "weights are given, but set is 'kl'"),
    ({"weights": np.ones(4)}, r"weights has the shape \[4\]; it must be \[S\] = \[5\]"),
    ({"weights": -np.ones(5)}, "weights has -1 for outcome 0"),
    ({"cost": np.zeros((5, 5))}, "cost is given, but set is 'l1'"),
    ({"cost": np.zeros((4, 5)), "set": "wasserstein"}, r"cost has the shape \[4, 5\]"),
]


@pytest.mark.parametrize(("settings", "said"), BAD, ids=[said[:30] for _, said in BAD])
def test_bad_settings_get_one_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        solve(random_problem(), **{"set": "l1", "radius": 0.1, "discount": 0.9, **settings})
    assert "\n" not in str(error.value)


def test_all_states_need_all_rewards() -> None:
    problem = from_transitions([0, 0, 1], [0, 0, 0], [0, 1, 1], [0.5, 0.5, 1.0], [0.0, 1.0, 0.0])
    with pytest.raises(DeeprokError, match=r"rewards of \(s, a\) = \(1, 0\)|rewards of \(s, a\)"):
        solve(
            from_transitions([0, 0, 1, 2], [0, 0, 0, 0], [0, 1, 1, 2], [0.5, 0.5, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]),
            "l1",
            0.1,
            support="all",
        )
    assert solve(problem, "minimum", support="all", discount=0.5, method="vi").values[1] == 0.0


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ([0, 0, 0, 1, 0], "policy takes action 1 in state 3, which does not have it"),
        ([0, 0, 0, 3, 0], "policy takes action 3 in state 3"),
        ([0, 0], r"policy has the shape \[2\]"),
        (np.zeros((5, 3)), r"policy is \[0.0, 0.0, 0.0\] in state 0"),
        (np.full((5, 3), 1 / 3), "in state 3; it must be probabilities of actions that the state has"),
    ],
)
def test_bad_policies(policy: Any, said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        evaluate(random_problem(), policy, set="l1", radius=0.1)


# --- the price of robustness ---------------------------------------------------------------------------


def test_a_sweep_judges_each_policy_twice() -> None:
    problem, radii, heard = random_problem(), [0.0, 0.3, 1.2], []
    setting: Setting = {"set": "l1", "discount": 0.9}
    swept = sweep_radii(problem, radii, 2, advance=lambda count, work: heard.append((count, work)), **setting)
    nominal = solve(problem, objective="nominal", discount=0.9)
    for i, radius in enumerate(radii):
        robust = solve(problem, radius=radius, **setting)
        assert swept.value[i] == pytest.approx(robust.values[2], abs=1e-7)
        worth = evaluate(problem, robust.policy, objective="nominal", discount=0.9).values[2]
        assert swept.price[i] == pytest.approx(nominal.values[2] - worth, abs=1e-7)
        worst = evaluate(problem, nominal.policy, radius=radius, **setting).values[2]
        assert swept.protection[i] == pytest.approx(robust.values[2] - worst, abs=1e-7)
    assert swept.nominal == pytest.approx(nominal.values[2], abs=1e-7)
    assert sum(work for _, work in heard) == pytest.approx(1.0)
    assert heard[-1][0] == len(radii)
    friendly = sweep_radii(problem, radii, objective="optimistic", **setting)
    assert friendly.price is None
    assert friendly.protection is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"radii": [0.1], "set": "l3"}, "unknown set 'l3'"),
        ({"radii": []}, r"radii have the shape \[0\]"),
        ({"radii": [-0.1, 0.1]}, "radius is -0.1"),
        ({"radii": [0.1], "state": 5}, "state is 5; there are the states 0 to 4"),
    ],
)
def test_bad_sweeps(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        sweep_radii(random_problem(), **arguments)


def test_every_set_is_tested() -> None:
    assert set(TABULAR_SETS) == set(LEVELS) | {"finite"}
    assert not jax.config.jax_enable_x64  # double precision stays inside the solvers
    assert jnp.zeros(1).dtype == jnp.float32


def test_examples_of_the_documentation_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "tabular.md").read_text()
    scope: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, scope)
    np.testing.assert_allclose(scope["nominal"].values, [26.244, 29.484, 33.484], atol=1e-7)
    np.testing.assert_allclose(scope["robust"].values, [20.736, 23.616, 27.616], atol=1e-7)
    np.testing.assert_allclose(scope["worst"].dense()[0][0, 0], [0.2, 0.8, 0.0], atol=1e-9)
    np.testing.assert_allclose(scope["judged"].values, scope["shared"].values, atol=1e-7)
    np.testing.assert_allclose(scope["learnt"].values, [20.736, 23.616, 27.616], rtol=0.03)
    assert "[20.736 23.616 27.616]" in capsys.readouterr().out
    assert set(re.findall(r"^\| `(\w+)` \| (?:.*)\| (?:yes|no) \|$", page, re.MULTILINE)) == set(TABULAR_SETS)
