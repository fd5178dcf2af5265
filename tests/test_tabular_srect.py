from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize, minimize_scalar
from test_tabular_solve import plain_policy, random_problem

from deeprok.tabular import RMDP, Solution, evaluate, from_arrays, solve, srect
from deeprok.uncertainty import SETS

A, M = 3, 4
NO_PADDING = np.ones(A, bool)


def shared_lp(p: np.ndarray, v: np.ndarray, budget: float, policy: np.ndarray | None) -> float:
    """min over rows, whose L1 distances sum to the budget, of the best action or of a policy."""
    n, least, span = p.size, v.min(), np.ptp(v) or 1.0
    v = (v - least) / span
    cost = np.zeros(1 + 2 * n)  # u, the rows, their distances
    bounds: list[tuple[float | None, float | None]] = [(None, None)] + [(0, None)] * (2 * n)
    above, below = [], []
    for a in range(len(p)):
        row = np.zeros(1 + 2 * n)
        row[0], row[1 + a * M : 1 + (a + 1) * M] = -1.0, v[a]
        above.append(row)
        below.append(0.0)
    for i, sign in np.ndindex(n, 2):
        row = np.zeros(1 + 2 * n)
        row[1 + i], row[1 + n + i] = 1 - 2 * sign, -1.0
        above.append(row)
        below.append((1 - 2 * sign) * p.reshape(-1)[i])
    above.append(np.concatenate([np.zeros(1 + n), np.ones(n)]))
    below.append(budget)
    if policy is None:
        cost[0] = 1.0
    else:
        cost[1 : 1 + n] = (policy[:, None] * v).reshape(-1)
        bounds[0] = (-1e6, 1e6)
    each = np.hstack([np.zeros((len(p), 1)), np.kron(np.eye(len(p)), np.ones(M)), np.zeros((len(p), n))])
    solved = linprog(cost, above, below, each, np.ones(len(p)), bounds)
    assert solved.status == 0, solved.message
    return float(least + span * solved.fun)


def dual_kl(p: np.ndarray, v: np.ndarray, policy: np.ndarray, budget: float) -> float:
    """What a policy is worth if relative entropies sum to the budget, by its dual in the price of the budget."""
    least = np.min(np.where(p > 0, v, np.inf), axis=1)
    if budget == 0:
        return float(policy @ np.sum(p * v, axis=1))

    def negative(log_price: float) -> float:
        price = np.exp(log_price)
        tilted = np.sum(p * np.exp(-policy[:, None] * np.maximum(v - least[:, None], 0) / price), axis=1)
        return price * (budget + np.sum(np.log(tilted)))

    found = min(
        (
            minimize_scalar(negative, bounds=b, method="bounded", options={"xatol": 1e-13}).fun
            for b in [(-40, 0), (-3, 25)]
        ),
    )
    return float(policy @ least - min(found, 0.0))


def entropy(q: np.ndarray, p: np.ndarray) -> float:
    return float(np.sum(np.where(q > 0, q * np.log(np.where(q > 0, q, 1) / np.where(p > 0, p, 1)), 0)))


def drawn(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows with and without empty outcomes, values with ties, and budgets of all sizes."""
    rng = np.random.default_rng(0)
    p = np.array([rng.dirichlet(np.full(M, rng.choice([0.2, 1, 5])), A) for _ in range(count)])
    p = np.where(p < 1e-3, 0, p)
    p /= p.sum(-1, keepdims=True)
    v = rng.normal(size=(count, A, M)) * rng.choice([0.01, 1, 100], (count, 1, 1))
    v[rng.random(v.shape) < 0.2] = 0
    v[::10] = 0.1 * np.arange(A)[:, None]  # nothing that nature does matters
    v[1::10] = 1e3 + 1e-7 * v[1::10]  # little does
    v = np.where(p > 0, v, np.max(np.where(p > 0, v, -np.inf), -1, keepdims=True))  # nominal support
    return p, v, rng.choice([0.0, 1e-8, 1e-3, 0.1, 1.0, 5.0], count)


COUNT = 60
BEST, GIVEN = ({name: jax.jit(jax.vmap(f)) for name, f in table.items()} for table in (srect.BACKUPS, srect.OF_POLICY))


@pytest.fixture(scope="module")
def batch() -> dict[str, Any]:
    p, v, budget = drawn(COUNT)
    valid = np.broadcast_to(NO_PADDING, (COUNT, A))
    out: dict[str, Any] = {"p": p, "v": v, "budget": budget}
    with jax.enable_x64(True):
        for name in ("l1", "kl"):
            best = BEST[name](p, v, valid, budget)
            given = GIVEN[name](p, v, best.policy, budget)
            out[name] = jax.tree.map(np.asarray, (best, given))
    return out


CRAAM_P = np.array([[0.3, 0.2, 0.1, 0.4], [0.3, 0.6, 0.1, 0.0], [0.1, 0.3, 0.6, 0.0]])
CRAAM_V = np.array([[3, 2, 4, 1], [3, 1.3, 4, 4], [6, 0.3, 4.5, 6]])


def test_known_numbers(x64) -> None:
    budgets = np.array([0, 0.5, 1, 2])
    best = jax.jit(jax.vmap(srect.l1, (None, None, None, 0)))(CRAAM_P, CRAAM_V, NO_PADDING, budgets)
    np.testing.assert_allclose(best.value, [3.39, 2.19, 1.849438202, 1.459767687], atol=1e-9)


def test_l1_against_linear_programs(batch: dict[str, Any]) -> None:
    best, given = batch["l1"]
    for i in range(COUNT):
        p, v, budget = batch["p"][i], batch["v"][i], batch["budget"][i]
        scale = np.ptp(v) + 1e-5 * np.abs(v).max() + 1e-9
        assert best.value[i] == pytest.approx(shared_lp(p, v, budget, None), abs=1e-8 * scale)
        assert given.value[i] == pytest.approx(shared_lp(p, v, budget, best.policy[i]), abs=1e-8 * scale)
        assert given.value[i] == pytest.approx(best.value[i], abs=1e-10 * scale)
        for found in (best, given):
            q = found.distribution[i]
            assert np.abs(q - p).sum() <= budget + 1e-12
            assert q.min() >= 0
            np.testing.assert_allclose(q.sum(1), 1.0, atol=1e-12)
        assert np.sum(best.distribution[i] * v, axis=1).max() == pytest.approx(best.value[i], abs=1e-10 * scale)


def test_kl_between_its_bounds(batch: dict[str, Any]) -> None:
    """What nature does is an upper bound, what the policy is worth by its dual a lower one."""
    best, given = batch["kl"]
    for i in range(COUNT):
        p, v, budget = batch["p"][i], batch["v"][i], batch["budget"][i]
        scale = np.ptp(v) + 1e-5 * np.abs(v).max() + 1e-9
        q = best.distribution[i]
        assert entropy(q, p) <= budget + 1e-9
        assert entropy(given.distribution[i], p) <= budget + 1e-9
        np.testing.assert_allclose(q.sum(1), 1.0, atol=1e-12)
        assert np.sum(q * v, axis=1).max() == pytest.approx(best.value[i], abs=1e-9 * scale)
        assert dual_kl(p, v, best.policy[i], budget) == pytest.approx(best.value[i], abs=1e-7 * scale)
        assert given.value[i] == pytest.approx(best.value[i], abs=1e-9 * scale)
        assert best.policy[i].sum() == pytest.approx(1.0)
        assert best.policy[i].min() >= 0


@pytest.mark.parametrize("name", ["l1", "kl"])
def test_actions_that_are_not_there_don_t_count(x64, batch: dict[str, Any], name: str) -> None:
    """As if they were far below the others, where no budget is spent on them."""
    p, v, budget = batch["p"], batch["v"], batch["budget"]
    scale = np.ptp(v, axis=(1, 2)) + 1e-9
    there = np.broadcast_to([True, True, False], (COUNT, A))
    below = np.where(there[:, :, None], v, v - 3 * scale[:, None, None])
    absent = BEST[name](p, v, there, budget)
    low = BEST[name](p, below, np.ones_like(there), budget)
    np.testing.assert_allclose(absent.value / scale, low.value / scale, atol=1e-9)
    np.testing.assert_allclose(absent.policy, low.policy, atol=1e-6)
    np.testing.assert_array_equal(absent.policy[:, 2], 0.0)


@pytest.mark.parametrize(("set", "budget"), [("l1", 0.9), ("chi2", 0.6), ("linf", 0.3), ("contamination", 0.4)])
def test_any_ball_by_inversion(x64, set: str, budget: float) -> None:
    p, v = (np.asarray(x) for x in drawn(8)[:2])
    v = v / (np.ptp(v, axis=(1, 2), keepdims=True) + 1e-9)
    ball = jax.vmap(SETS[set].worst_case)

    def backup(p: jax.Array, v: jax.Array) -> srect.Shared:
        return srect.by_inversion(lambda share: ball(p, v, share), jnp.asarray(NO_PADDING), jnp.float64(budget))

    best = jax.tree.map(np.asarray, jax.jit(jax.vmap(backup))(p, v))
    worst = jax.jit(lambda p, v, share: ball(p, v, share).value)
    for i in range(len(p)):
        np.testing.assert_allclose(np.sum(best.distribution[i] * v[i], axis=1).max(), best.value[i], atol=1e-10)
        if set == "l1":
            np.testing.assert_allclose(best.value[i], shared_lp(p[i], v[i], budget, None), atol=1e-9)
        # No way to share the budget hurts the policy more.
        found = minimize(
            lambda share, i=i: float(best.policy[i] @ worst(p[i], v[i], np.maximum(share, 0))),
            np.full(A, budget / A),
            bounds=[(0, budget)] * A,
            constraints={"type": "ineq", "fun": lambda share: budget - share.sum()},
            options={"ftol": 1e-12},
        )
        assert found.fun >= best.value[i] - 1e-6


# --- in the solvers -----------------------------------------------------------------------------------


@functools.cache
def close_problem() -> RMDP:
    """Five states with three actions each that are worth about the same, so that the best policy mixes them."""
    rng = np.random.default_rng(3)
    return from_arrays(rng.dirichlet(np.ones(5), (5, 3)), rng.normal(size=5)[:, None] + 0.1 * rng.normal(size=(5, 3)))


def shared(set: str, budget: Any, **settings: Any) -> Solution:
    return solve(random_problem(), set, budget, 0.9, rect="s", **settings)


@pytest.mark.parametrize(("set", "budget"), [("l1", 0.6), ("kl", 0.15)])
def test_solvers_agree_and_nature_keeps_to_its_budget(set: str, budget: float) -> None:
    problem, setting = close_problem(), {"discount": 0.9, "rect": "s"}
    solution = solve(problem, set, budget, method="vi", tol=1e-10, **setting)
    for method in ("ppi", "mpi"):
        again = solve(problem, set, budget, method=method, tol=1e-9, **setting)
        np.testing.assert_allclose(again.values, solution.values, atol=2e-9)
        np.testing.assert_allclose(again.policy, solution.policy, atol=1e-4)
    assert solution.policy.shape == (5, 3)
    assert ((solution.policy > 1e-2).sum(1) > 1).sum() >= 3  # most states mix
    (p, _), (q, r) = problem.dense(), solution.worst_model().dense()
    for s in range(5):
        rows = np.flatnonzero(problem.valid[s])
        distance = {
            "l1": lambda a: np.abs(q[s, a] - p[s, a]).sum(),  # noqa: B023
            "kl": lambda a: entropy(q[s, a], p[s, a]),  # noqa: B023
        }[set]
        assert sum(map(distance, rows)) <= budget + 1e-9
    np.testing.assert_allclose(plain_policy(q, r, solution.policy, 0.9), solution.values, atol=1e-8)
    np.testing.assert_allclose(solution.q.max(1), solution.values, atol=1e-8)
    judged = evaluate(problem, solution.policy, set=set, radius=budget, **setting)
    np.testing.assert_allclose(judged.values, solution.values, atol=1e-7)
    # Nature is weaker than one with the budget for each action, and stronger than one with equal parts.
    weaker = solve(problem, set, budget, 0.9, method="vi").values
    stronger = solve(problem, set, budget / 3, 0.9, method="vi").values
    assert (weaker < solution.values - 1e-4).all()
    assert (solution.values < stronger + 1e-8).all()
    # The best action for certain does worse, and its worst case is that of the whole budget.
    certain = evaluate(problem, solution.policy.argmax(1), set=set, radius=budget, **setting)
    assert (certain.values < solution.values + 1e-8).all()
    assert (certain.values < solution.values - 1e-4).any()


def test_one_action_is_the_same_either_way() -> None:
    rng = np.random.default_rng(5)
    problem = from_arrays(rng.dirichlet(np.ones(5), (5, 1)), rng.normal(size=(5, 1)))
    one, other = (solve(problem, "kl", 0.3, 0.9, rect=rect, method="vi").values for rect in ("s", "sa"))
    np.testing.assert_allclose(one, other, atol=1e-7)


def test_total_variation_is_half_of_l1() -> None:
    np.testing.assert_allclose(shared("tv", 0.3, method="vi").values, shared("l1", 0.6, method="vi").values, atol=1e-8)


def test_other_sets_are_solved_by_value_iteration() -> None:
    solution = shared("chi2", np.full(5, 0.2), tol=1e-6)
    (p, _), (q, r) = random_problem().dense(), solution.worst_model().dense()
    spent = np.where(p > 0, (q - p) ** 2 / np.where(p > 0, p, 1), 0).sum((1, 2))
    assert (spent <= 0.2 + 1e-7).all()
    np.testing.assert_allclose(plain_policy(q, r, solution.policy, 0.9), solution.values, atol=1e-5)


def test_a_friend_helps_the_action_that_is_taken() -> None:
    friendly = shared("l1", 0.3, objective="optimistic", method="vi")
    np.testing.assert_allclose(
        friendly.values, solve(random_problem(), "l1", 0.3, 0.9, objective="optimistic", method="vi").values, atol=1e-8
    )
    (p, _), (q, r) = random_problem().dense(), friendly.worst_model().dense()
    assert (np.abs(q - p).sum((1, 2)) <= 0.3 + 1e-9).all()
    np.testing.assert_allclose(plain_policy(q, r, np.eye(3)[friendly.policy], 0.9), friendly.values, atol=1e-7)
