"""Budgets that the actions of a state share, against cutting planes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import rel_entr
from test_tabular_solve import plain_policy, random_problem

from deeprok.tabular import RMDP, TABULAR_SETS, Solution, evaluate, from_arrays, solve
from deeprok.tabular import s_rectangular as srect
from deeprok.uncertainty.sets import Tangent, ellipsoid, fill, transport
from deeprok.uncertainty.sets.fill import l1_best_policy, l1_of_policy
from deeprok.uncertainty.sets.shared_budget import Shared, SharedBudget

A, M, COUNT = 3, 4, 32


class Extra(NamedTuple):
    """What weighted sets know of the outcomes of one problem."""

    weights: np.ndarray  # [M]
    places: np.ndarray  # [M] on a line


class Family(NamedTuple):
    """A set with a budget: the textbook's distance of q from p and a slope of it, any where it has a kink."""

    distance: Callable[[np.ndarray, np.ndarray, Extra], float]
    slope: Callable[[np.ndarray, np.ndarray, Extra], np.ndarray]
    everything: float  # that lets nature do all it can with one action
    keeps_support: bool = False
    tangent: Callable[..., Tangent] | None = None  # (p, v, level, extra), if it has no backup of its own


def over(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.where(p > 0, x / np.where(p > 0, p, 1), 0.0)


def norm(q: np.ndarray, p: np.ndarray, x: Extra) -> float:
    return np.sqrt(x.weights @ (q - p) ** 2)


def largest(q: np.ndarray, p: np.ndarray, x: Extra) -> np.ndarray:
    i = np.argmax(np.abs(q - p))
    return np.sign(q[i] - p[i]) * np.eye(len(p))[i]


def passed(x: Extra) -> np.ndarray:
    """The width of each gap, times what mass passes it, is the cost of moving mass on a line."""
    return np.append(np.diff(x.places), 0.0)


def emptied(q: np.ndarray, p: np.ndarray) -> tuple[float, np.ndarray]:
    """Of contamination: the largest part of its mass that an outcome has lost."""
    part = np.where(p > 0, 1 - over(q, p), -np.inf)
    i = np.argmax(part)
    return max(part[i], 0.0), -np.eye(len(p))[i] / p[i] * (part[i] > 0)


FAMILIES: dict[str, Family] = {
    "l1": Family(lambda q, p, x: np.abs(q - p).sum(), lambda q, p, x: np.sign(q - p), 2.0),
    "tv": Family(lambda q, p, x: np.abs(q - p).sum() / 2, lambda q, p, x: np.sign(q - p) / 2, 1.0),
    "kl": Family(
        lambda q, p, x: rel_entr(q, p).sum(),
        lambda q, p, x: np.where(p > 0, np.log(over(q, p) + (p == 0)) + 1, 0),
        everything=4.0,
        keeps_support=True,
    ),
    "chi2": Family(
        lambda q, p, x: over((q - p) ** 2, p).sum(),
        lambda q, p, x: 2 * over(q - p, p),
        everything=30.0,
        keeps_support=True,
    ),
    "burg": Family(lambda q, p, x: rel_entr(p, q).sum(), lambda q, p, x: -over(p, q), everything=6.0),
    "linf": Family(
        lambda q, p, x: np.abs(q - p).max(),
        largest,
        everything=1.0,
        tangent=lambda p, v, level, x: fill.linf_tangent(p, v, level),
    ),
    "l2": Family(  # and ellipsoids
        norm,
        lambda q, p, x: x.weights * (q - p) / max(norm(q, p, x), 1e-300),
        everything=2.0,
        tangent=lambda p, v, level, x: ellipsoid.ellipsoid_tangent(p, v, level, x.weights),
    ),
    "weighted l1": Family(
        lambda q, p, x: x.weights @ np.abs(q - p),
        lambda q, p, x: x.weights * np.sign(q - p),
        everything=4.0,
        tangent=lambda p, v, level, x: transport.weighted_l1_tangent(p, v, level, x.weights),
    ),
    "wasserstein": Family(
        lambda q, p, x: passed(x) @ np.abs(np.cumsum(q - p)),
        lambda q, p, x: np.cumsum((passed(x) * np.sign(np.cumsum(q - p)))[::-1])[::-1],
        everything=4.0,
        tangent=lambda p, v, level, x: transport.wasserstein_tangent(
            p, v, level, jnp.abs(x.places[:, None] - x.places[None, :])
        ),
    ),
    "contamination": Family(
        lambda q, p, x: emptied(q, p)[0],
        lambda q, p, x: emptied(q, p)[1],
        everything=1.0,
        tangent=lambda p, v, level, x: fill.contamination_tangent(p, v, level),
    ),
}


class Problem(NamedTuple):
    """One state, or with a leading axis COUNT of them."""

    p: np.ndarray  # [A, M]
    v: np.ndarray  # [A, M]
    valid: np.ndarray  # [A]
    policy: np.ndarray  # [A]
    part: np.ndarray  # [] the budget, as a part of what lets nature do all it can with one action
    extra: Extra


@functools.cache
def problems() -> Problem:
    """Rows with and without empty outcomes, values with ties, some actions missing, budgets from 0 on."""
    rng = np.random.default_rng(0)
    p = np.array([rng.dirichlet(np.full(M, rng.choice([0.2, 1, 5])), A) for _ in range(COUNT)])
    p = np.where(p < 1e-3, 0, p)
    p[::8, 0] = np.eye(M)[0]  # what an action does can be certain
    v = rng.normal(size=(COUNT, A, M)) + rng.choice([0.0, 3.0], (COUNT, A, 1), p=[0.7, 0.3])
    v[rng.random(v.shape) < 0.3] = 0
    v *= 10.0 ** rng.integers(-2, 3, (COUNT, 1, 1))
    v[3::8] += 1e3
    v[5::16] = 0.1 * np.arange(A)[:, None]  # nothing that nature does matters
    valid = np.ones((COUNT, A), bool)
    valid[1::5, 2] = False
    policy = rng.dirichlet(np.ones(A), COUNT) * valid
    policy[2::9] = np.eye(A)[1]
    part = np.array([0.0, 1e-6, 0.01, 0.05, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0])[np.arange(COUNT) % 11]
    weights = np.where(np.arange(COUNT)[:, None] % 2, [0.5, 2.0, 1.0, 1.3], 1.0)
    places = np.where(np.arange(COUNT)[:, None] % 2, [0.0, 2.0, 2.5, 4.0], np.arange(M))
    rows = p / p.sum(-1, keepdims=True)
    return Problem(rows, v, valid, policy / policy.sum(1, keepdims=True), part, Extra(weights, places))


def lower_bound(
    family: Family,
    problem: Problem,
    v: np.ndarray,
    policy: np.ndarray,
    budget: float,
    starts: list[np.ndarray],
    enough: float,
) -> float:
    """A lower bound of what a policy is worth: a linear program in the rows and what is spent on each.

    Tangents of the distance make the set larger, never smaller. They are drawn at some points to start with and at
    the solutions, until the bound is high enough.
    """
    p, extra = problem.p, problem.extra
    if budget == 0:
        return float(policy @ np.sum(p * v, axis=1))
    allowed = (p > 0) | (not family.keeps_support)
    # What is spent is counted in budgets, so that the program's tolerance means little.
    rows, limits = [np.concatenate([np.zeros(A * M), np.ones(A)])], [1.0]
    bounds = [(0.0, float(x)) for x in allowed.reshape(-1)] + [
        (0.0, 1 / budget if family is FAMILIES["contamination"] else None)
    ] * A
    each = np.hstack([np.kron(np.eye(A), np.ones(M)), np.zeros((A, A))])
    cost = np.concatenate([(policy[:, None] * v).reshape(-1), np.zeros(A)])
    points, bound = starts, -np.inf
    for _ in range(60):
        for q, a in itertools.product(points, range(A)):
            emptied = np.min(q[a], initial=1.0, where=p[a] > 0) <= 0  # where slopes may be infinite
            at = np.where(allowed[a], 0.999 * q[a] + 0.001 * p[a] if emptied else q[a], 0.0)
            slope = family.slope(at, p[a], extra)
            slope = slope - slope.mean()  # rows sum to 1
            row = np.concatenate([np.zeros(A * M), -np.eye(A)[a]])
            row[a * M : (a + 1) * M] = slope / budget
            rows.append(row)
            limits.append((slope @ at - family.distance(at, p[a], extra)) / budget)
        tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        solved = linprog(cost, np.array(rows), limits, each, np.ones(A), bounds, options=tight)
        assert solved.status == 0, solved.message
        bound, points = float(solved.fun), [solved.x[: A * M].reshape(A, M)]
        if bound >= enough:
            break
    return bound


class Found(NamedTuple):
    best: Shared  # the best policy
    own: Shared  # the worst case of that policy
    given: Shared  # of another


def both(family: str, problem: Problem, budget: jax.Array) -> Found:
    p, v, tangent = problem.p, problem.v, FAMILIES[family].tangent
    if tangent is None:
        best = TABULAR_SETS[family].shared.best_policy(p, v, problem.valid, budget)
        of_policy = functools.partial(TABULAR_SETS[family].shared.of_policy, p, v)
    else:
        each = functools.partial(jax.vmap(tangent, (0, 0, 0, None)), p, v)
        best = srect.by_tangents(lambda share: each(share, problem.extra), problem.valid, budget)
        of_policy = functools.partial(srect.of_policy_by_tangents, lambda share: each(share, problem.extra))
    worst = jax.vmap(of_policy, (0, None))(jnp.stack([best.policy, problem.policy]), budget)
    return Found(best, *(jax.tree.map(lambda x, i=i: x[i], worst) for i in range(2)))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("linf", "weighted l1"))) for name in FAMILIES],
)
def test_policy_nature_and_value_are_the_best_there_are(name: str) -> None:
    """Nature's answer bounds the value from above, for every policy; what the policy is worth does so from below."""
    family, all_of_them = FAMILIES[name], problems()
    budgets = all_of_them.part * family.everything
    budgets = np.minimum(budgets, 1.0) if name == "contamination" else budgets
    with jax.enable_x64(True):
        solved = jax.jit(jax.vmap(functools.partial(both, name)))(all_of_them, budgets)
    for i, budget in enumerate(budgets):
        x, (best, own, given) = jax.tree.map(lambda field, i=i: np.asarray(field)[i], (all_of_them, solved))
        lowest, scale = x.v.min(), np.ptp(x.v) + 1e-6 * np.abs(x.v).max()
        for nature in (best, own, given):
            q = nature.distribution
            spent = [family.distance(q[a], x.p[a], x.extra) for a in range(A) if np.abs(q[a] - x.p[a]).any()]
            assert sum(spent) <= budget * (1 + 1e-7) + 1e-10
            assert q.min() >= -1e-15
            np.testing.assert_allclose(q.sum(1), 1.0, atol=1e-12)
        actions = np.sum(best.distribution * x.v, axis=1)
        assert actions[x.valid].max() == pytest.approx(best.value, abs=1e-9 * scale)
        assert best.policy.sum() == pytest.approx(1.0)
        assert best.policy.min() >= 0
        assert not best.policy[~x.valid].any()
        assert own.value == pytest.approx(best.value, abs=1e-9 * scale)
        for policy, nature in ((best.policy, own), (x.policy, given)):
            q = nature.distribution
            assert policy @ np.sum(q * x.v, axis=1) == pytest.approx(nature.value, abs=1e-9 * scale)
            enough = (nature.value - lowest) / scale - 1e-7
            starts = [x.p, q, best.distribution]
            assert lower_bound(family, x, (x.v - lowest) / scale, policy, budget, starts, enough) >= enough


def test_every_set_with_a_budget_is_tested() -> None:
    assert {name for name, family in TABULAR_SETS.items() if family.shares_budget} == set(FAMILIES) - {"weighted l1"}


def test_known_numbers(x64) -> None:
    p = np.array([[0.3, 0.2, 0.1, 0.4], [0.3, 0.6, 0.1, 0.0], [0.1, 0.3, 0.6, 0.0]])
    v = np.array([[3, 2, 4, 1], [3, 1.3, 4, 4], [6, 0.3, 4.5, 6]])
    backup = jax.jit(jax.vmap(l1_best_policy, (None, None, None, 0)))
    best = backup(p, v, np.ones(A, bool), np.array([0, 0.5, 1, 2]))
    np.testing.assert_allclose(best.value, [3.39, 2.19, 1.849438202, 1.459767687], atol=1e-9)


# --- in the solvers -----------------------------------------------------------------------------------


@functools.cache
def close_problem() -> RMDP:
    """Five states with three actions each that are worth about the same, so that the best policy mixes them."""
    rng = np.random.default_rng(3)
    return from_arrays(rng.dirichlet(np.ones(5), (5, 3)), rng.normal(size=5)[:, None] + 0.1 * rng.normal(size=(5, 3)))


def shared(set: str, budget: Any, **settings: Any) -> Solution:
    return solve(random_problem(), set, budget, 0.9, rect="s", **settings)


def test_solvers_agree_and_nature_keeps_to_its_budget() -> None:
    set, budget = "l1", 0.6
    problem, setting = close_problem(), {"discount": 0.9, "rect": "s"}
    solution = solve(problem, set, budget, method="vi", tol=1e-10, **setting)
    for method in ("ppi", "mpi"):
        again = solve(problem, set, budget, method=method, tol=1e-9, **setting)
        np.testing.assert_allclose(again.values, solution.values, atol=2e-9)
        np.testing.assert_allclose(again.policy, solution.policy, atol=1e-4)
    assert solution.policy.shape == (5, 3)
    assert ((solution.policy > 1e-2).sum(1) > 1).sum() >= 3  # most states mix
    (p, _), (q, r) = problem.dense(), solution.worst_model().dense()
    assert (np.abs(q - p).sum((1, 2)) <= budget + 1e-9).all()
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


# --- certificates -------------------------------------------------------------------------------------


def test_values_policy_and_model_belong_together() -> None:
    setting: dict[str, Any] = {"set": "linf", "discount": 0.9, "rect": "s", "tol": 1e-11}
    for seed in (8, 21, 33, 52):
        rng = np.random.default_rng(seed)
        problem = from_arrays(rng.dirichlet(np.ones(3), size=(3, 2)), rng.normal(size=(3, 2)))
        for budget in (0.1, 0.5, 1.0, 2.0):
            solution = solve(problem, radius=budget, **setting)
            own = evaluate(problem, solution.policy, radius=budget, **setting)
            np.testing.assert_allclose(own.values, solution.values, atol=1e-9)
            in_worst = plain_policy(*solution.worst_model().dense(), solution.policy, 0.9)
            np.testing.assert_allclose(in_worst, solution.values, atol=1e-9)
            assert solution.error_bound <= 1e-10
        # The last budget lets both rows be anything at once.
        anything = evaluate(problem, solution.policy, set="minimum", discount=0.9, tol=1e-11)
        np.testing.assert_allclose(anything.values, solution.values, atol=1e-9)


def test_a_policy_that_is_not_the_best_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are its own, and the bound says what it may fall short of."""
    rng = np.random.default_rng(1)
    problem = from_arrays(rng.dirichlet(np.ones(7), (7, 2)), rng.normal(size=(7, 2)))
    even = np.full((7, 2), 0.5)

    def wrong(*args: Any) -> Shared:
        best = l1_best_policy(*args)
        return best._replace(policy=jnp.full_like(best.policy, 0.5))

    monkeypatch.setitem(
        TABULAR_SETS._entries, "tv", TABULAR_SETS["l1"]._replace(shared=SharedBudget(wrong, l1_of_policy))
    )
    setting: dict[str, Any] = {"radius": 0.3, "discount": 0.9, "rect": "s", "method": "vi"}
    given = {key: value for key, value in setting.items() if key != "method"}
    found, exact = solve(problem, "tv", **setting), solve(problem, "l1", **setting).values
    own = evaluate(problem, even, set="l1", **given).values
    assert np.abs(own - exact).max() > 0.05
    for truth in (own, exact):
        assert np.abs(truth - found.values).max() <= found.error_bound
    staged, best = (solve(problem, set, horizon=3, **setting) for set in ("tv", "l1"))
    own = evaluate(problem, even, set="l1", horizon=3, **given).values
    np.testing.assert_allclose(staged.values, own, atol=1e-12)
    assert 0.01 < np.abs(staged.values - best.values).max() <= staged.error_bound
    assert best.error_bound < 1e-12


def test_a_friend_helps_the_action_that_is_taken() -> None:
    friendly = shared("l1", 0.3, objective="optimistic", method="vi")
    np.testing.assert_allclose(
        friendly.values, solve(random_problem(), "l1", 0.3, 0.9, objective="optimistic", method="vi").values, atol=1e-8
    )
    (p, _), (q, r) = random_problem().dense(), friendly.worst_model().dense()
    assert (np.abs(q - p).sum((1, 2)) <= 0.3 + 1e-9).all()
    np.testing.assert_allclose(plain_policy(q, r, np.eye(3)[friendly.policy], 0.9), friendly.values, atol=1e-7)
