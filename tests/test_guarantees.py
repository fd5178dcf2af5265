"""Guarantees from counts: the worst case of each set, and how often what is said holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from scipy.special import rel_entr
from scipy.stats import beta

from deeprok.core.errors import DeeprokError
from deeprok.tabular import (
    RMDP,
    CountedModel,
    Counts,
    count_transitions,
    evaluate,
    from_counts,
    solve,
    solve_best,
    solve_counts,
)
from deeprok.uncertainty import anytime_l1, anytime_likelihood

Make = Callable[[np.ndarray, np.ndarray, int, int], list[Counts]]

every_set = pytest.mark.parametrize("set", ["l1", "linf", "likelihood", "bayes"])


def log_of(visits: np.ndarray, reward: np.ndarray, **more: Any) -> Counts:
    """A log with these counts [S, A, S] and rewards, a row for each transition that was seen."""
    s, a, t = np.nonzero(visits)
    S, A, _ = visits.shape
    return count_transitions(s, a, t, reward[s, a, t], visits[s, a, t], states=range(S), actions=range(A), **more)


def crash() -> tuple[np.ndarray, np.ndarray]:
    """Action 1 pays more than action 0, and ends all one time in ten."""
    p = np.array([[[1.0, 0.0], [0.9, 0.1]], [[0.0, 1.0], [0.0, 1.0]]])
    return p, np.broadcast_to([[[0.5], [1.0]], [[0.0], [0.0]]], p.shape)


# --- the worst case -----------------------------------------------------------------------------------


def lp_ball(p: np.ndarray, v: np.ndarray, radius: float, norm: str) -> float:
    """min p'·v over distributions in an L1 or L∞ ball, as a linear program in p' and bounds of |p' − p|."""
    n = len(p)
    near = np.block([[np.eye(n), -np.eye(n)], [-np.eye(n), -np.eye(n)]])
    least = np.concatenate([np.zeros(n), np.ones(n)])[None] if norm == "l1" else np.eye(2 * n)[n:]
    solved = linprog(
        np.concatenate([v, np.zeros(n)]),
        A_ub=np.vstack([near, least]),
        b_ub=np.concatenate([p, -p, np.full(len(least), radius)]),
        A_eq=[np.concatenate([np.ones(n), np.zeros(n)])],
        b_eq=[1.0],
    )
    assert solved.status == 0, solved.message
    return float(solved.fun)


def by_descent(p: np.ndarray, v: np.ndarray, radius: float) -> float:
    """min p'·v over the likelihood set, by a general method."""
    span = np.ptp(v)
    found = minimize(
        lambda q: q @ (v - v.min()) / span,
        0.5 * p + 0.5 / len(p),
        method="SLSQP",
        bounds=[(1e-12, 1)] * len(p),
        constraints=[
            {"type": "eq", "fun": lambda q: q.sum() - 1},
            {"type": "ineq", "fun": lambda q: radius - rel_entr(p, q).sum()},
        ],
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert found.success, found.message
    return float(v.min() + span * found.fun)


@every_set
def test_values_are_those_of_programs_for_each_row(set: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(3):
        visits = rng.integers(0, 9, (3, 2, 3))
        visits[1, 1] = 0
        reward = rng.normal(size=(3, 2, 3))
        low = float(reward.min()) - 0.5
        model = from_counts(log_of(visits, reward), 0.9, set, reward_low=low)
        found = solve(model.problem, **model.setting(0.8), tol=1e-10, method="vi")
        p, r = model.problem.dense()
        for s, a in np.ndindex(3, 2):
            v = r[s, a] + 0.8 * found.values
            if not visits[s, a].any():
                assert found.q[s, a] == pytest.approx(v.min(), abs=1e-8)
            elif set == "likelihood":
                assert found.q[s, a] == pytest.approx(by_descent(p[s, a], v, model.radius[s, a]), abs=1e-5)
            else:
                norm = "linf" if set == "linf" else "l1"
                assert found.q[s, a] == pytest.approx(lp_ball(p[s, a], v, model.radius[s, a], norm), abs=1e-8)


def test_what_was_never_seen_may_happen() -> None:
    """Five samples without a crash. If nature were kept to what they show, the bound would be 10; 5.26 is true."""
    log = count_transitions([0, 0, 1], [0, 1, 0], [0, 0, 1], [0.5, 1.0, 0.0], [5, 5, 5])
    p, r = crash()
    truth = float(values_of(p, r, np.array([1, 0]), 0.9)[0])
    assert truth == pytest.approx(5.263, abs=1e-3)
    kept = solve_counts(from_counts(log, support="seen"), 0.9)
    assert kept.values[0] == pytest.approx(10)
    for set in ("l1", "linf", "likelihood", "bayes"):
        found = solve_counts(from_counts(log, set=set, rewards="state-action"), 0.9, method="vi")
        assert 1 <= found.values[0] < 2
        assert found.nominal.values[0] == pytest.approx(10)
        assert found.policy[0] == 1
        np.testing.assert_allclose(found.cost, found.nominal.values - found.values)
        worst, _ = found.worst_model().dense()
        assert worst[0, 1, 1] > 0.4  # a crash is likely
    # By hand: (1 − radius / 2) of the mass stays.
    level = 1 - 0.05 / 4
    stays = 1 - float(anytime_l1([5, 0], level)) / 2
    l1 = solve_counts(from_counts(log, rewards="state-action"), 0.9, method="vi")
    assert l1.values[0] == pytest.approx(1 / (1 - 0.9 * stays))
    likely = solve_counts(from_counts(log, set="likelihood", rewards="state-action"), 0.9, method="vi")
    stays = float(np.exp(-anytime_likelihood([5, 0], level)))
    assert likely.values[0] == pytest.approx(1 / (1 - 0.9 * stays))


def test_pairs_without_data_have_their_worst_successor() -> None:
    log = count_transitions(["a", "b", "b"], ["x"] * 3, ["b", "a", "c"], [1.0, 2.0, 0.0], [50] * 3, actions=["x", "y"])
    possible = np.ones((3, 2, 3), bool)
    possible[2, 1] = [0, 1, 1]  # from c, y leads to b or c
    for set in ("l1", "linf", "likelihood", "bayes"):
        model = from_counts(log, 0.5, set, support=possible, reward_low=-1.0)
        found = solve_counts(model, 0.5, method="vi")
        assert model.without_data.tolist() == [[0, 1], [1, 1], [2, 0], [2, 1]]
        # From c nothing is known: its least value is that of staying there.
        assert found.values[2] == pytest.approx(-2.0)
        np.testing.assert_allclose(found.robust.q[:, 1], -2.0)
        assert found.nominal.values[2] == pytest.approx(-2.0)
        assert found.policy[0] == 0


def test_actions_that_were_seen_are_preferred() -> None:
    """Where nothing is lost by it."""
    log = count_transitions([0, 1], [1, 0], [0, 1], [0.0, 1.0], [9, 9])
    found = solve_counts(from_counts(log, reward_low=0.0), 0.9, method="vi")
    assert found.policy.tolist() == [1, 0]
    staged = solve_counts(from_counts(log, reward_low=0.0), 0.9, horizon=2)
    assert staged.policy.tolist() == [[1, 0], [1, 0]]
    assert staged.values.shape == staged.cost.shape == (2, 2)
    assert staged.robust_in_nominal.tolist() == pytest.approx([0.0, 1.9])


counted = (
    st.lists(st.integers(0, 12), min_size=18, max_size=18).map(lambda x: np.array(x).reshape(3, 2, 3)).filter(np.any)
)
REWARD = np.random.default_rng(8).normal(size=(3, 2, 3))


@every_set
@settings(max_examples=12)
@given(visits=counted, order=st.permutations(range(3)))
def test_guarantees_are_below_the_nominal_values_whatever_the_names(
    set: str, visits: np.ndarray, order: Sequence[int]
) -> None:
    low = float(REWARD.min())
    found = solve_counts(from_counts(log_of(visits, REWARD), 0.9, set, reward_low=low), 0.7, tol=1e-9, method="vi")
    assert (found.values <= found.robust_in_nominal + 1e-7).all() or set == "bayes"
    assert (found.robust_in_nominal <= found.nominal.values + 1e-7).all()
    assert (found.values >= low / 0.3 - 1e-7).all()
    worst = evaluate(found.worst_model(), found.policy, objective="nominal", discount=0.7)
    np.testing.assert_allclose(worst.values, found.values, atol=1e-6)
    if set != "bayes":  # whose radii come from random numbers
        moved = visits[np.ix_(order, [1, 0], order)], REWARD[np.ix_(order, [1, 0], order)]
        other = solve_counts(from_counts(log_of(*moved), 0.9, set, reward_low=low), 0.7, tol=1e-9, method="vi")
        np.testing.assert_allclose(other.values, found.values[list(order)], atol=1e-7)


@given(visits=counted, more=st.integers(2, 5), set=st.sampled_from(["l1", "linf", "likelihood"]))
def test_sets_shrink_with_data_and_grow_with_confidence(visits: np.ndarray, more: int, set: str) -> None:
    def radius(counts: np.ndarray, confidence: float) -> np.ndarray:
        return from_counts(log_of(counts, REWARD), confidence, set, reward_low=-9.0).radius

    some = radius(visits, 0.9)
    assert (radius(more * visits, 0.9) <= some).all()
    assert (radius(visits, 0.95) >= some).all()
    assert (some[visits.sum(-1) == 0] == {"l1": 2, "linf": 1, "likelihood": np.inf}[set]).all()


@given(visits=counted, seed=st.integers(0, 10**6))
def test_one_row_or_many(visits: np.ndarray, seed: int) -> None:
    """Rows may be counted or repeated, in any order."""
    s, a, t = np.nonzero(visits)
    each = np.repeat(np.arange(len(s)), visits[s, a, t])
    each = np.random.default_rng(seed).permutation(each)
    s, a, t = s[each], a[each], t[each]
    single = count_transitions(s, a, t, REWARD[s, a, t], states=range(3), actions=range(2))
    left, right = (from_counts(log, 0.9, "likelihood", reward_low=-9.0) for log in (single, log_of(visits, REWARD)))
    np.testing.assert_allclose(left.radius, right.radius)
    np.testing.assert_allclose(left.problem.probability, right.problem.probability)
    np.testing.assert_allclose(left.problem.reward, right.problem.reward)


# --- how often guarantees hold ------------------------------------------------------------------------


def values_of(p: np.ndarray, r: np.ndarray, policy: np.ndarray, discount: float) -> np.ndarray:
    """[..., S] the values of policies [..., S] in ordinary models [..., S, A, S]."""
    at = policy[..., None, None]
    kernel = np.take_along_axis(p, at, -2)[..., 0, :]
    reward = np.sum(kernel * np.take_along_axis(np.broadcast_to(r, p.shape), at, -2)[..., 0, :], -1)
    return np.linalg.solve(np.eye(p.shape[-1]) - discount * kernel, reward[..., None])[..., 0]


def solve_all(models: Sequence[CountedModel], discount: float) -> tuple[np.ndarray, np.ndarray]:
    """[K, S] the guaranteed values and policies of K logs, solved as one model without ways from one to another."""
    each = [model.problem for model in models]
    S, A, K = each[0].states, each[0].actions, len(each)
    ends = np.cumsum([0, *(len(problem.reward) for problem in each)])
    start = np.concatenate([problem.start[:-1] + end for problem, end in zip(each, ends, strict=False)])
    joined = RMDP(
        K * S,
        A,
        np.append(start, ends[-1]),
        np.concatenate([problem.successor + k * S for k, problem in enumerate(each)]).astype(np.int32),
        np.concatenate([problem.probability for problem in each]),
        np.concatenate([problem.reward for problem in each]),
        support="listed",
    )
    radius = np.concatenate([model.radius for model in models])
    found = solve(joined, models[0].set, radius, discount, support="listed", tol=1e-7, method="vi")
    return found.values.reshape(K, S), found.policy.reshape(K, S)


def held(models: Sequence[CountedModel], p: np.ndarray, r: np.ndarray, discount: float) -> np.ndarray:
    """[K] whether the true values of the policies are at least what is guaranteed, in all states."""
    values, policy = solve_all(models, discount)
    p = np.broadcast_to(p, (len(models), *p.shape[-3:]))
    return (values_of(p, r, policy, discount) >= values - 1e-6).all(1)


def truth(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Four states, of which the last is bad and seldom reached."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([2.0, 1.0, 0.5, 0.02], (4, 2))
    reward = rng.random((4, 2, 4))
    reward[..., 3] = -5.0
    return p, reward


def fixed_logs(p: np.ndarray, r: np.ndarray, logs: int, seed: int) -> list[Counts]:
    """Logs with 10 to 30 samples of each pair."""
    rng = np.random.default_rng(seed)
    n = rng.integers(10, 30, p.shape[:2])
    return [log_of(visits, r) for visits in rng.multinomial(n, p, (logs, *p.shape[:2]))]


def trajectories(p: np.ndarray, r: np.ndarray, logs: int, seed: int) -> list[Counts]:
    """Logs of random play that end with the third visit of the bad state, or after 150 steps."""
    rng = np.random.default_rng(seed)
    visits, state, bad = np.zeros((logs, *p.shape), np.int64), np.zeros(logs, int), np.zeros(logs, int)
    for _ in range(150):
        action = rng.integers(0, p.shape[1], logs)
        following = (rng.random((logs, 1)) > np.cumsum(p[state, action], -1)).sum(-1)
        going = np.flatnonzero(bad < 3)
        visits[going, state[going], action[going], following[going]] += 1
        state, bad = following, bad + (following == 3)
    return [log_of(each, r) for each in visits]


FIXED = [("l1", "weissman"), ("l1", "hoeffding"), ("linf", "entrywise")]
ANYTIME = [("l1", None), ("linf", None), ("likelihood", None)]


@pytest.mark.parametrize(
    ("make", "set", "rule"),
    [(fixed_logs, *each) for each in FIXED + ANYTIME] + [(trajectories, *each) for each in ANYTIME],
)
def test_guarantees_hold_as_often_as_they_say(make: Make, set: str, rule: str | None) -> None:
    p, r = truth(2)
    models = [from_counts(log, 0.9, set, rule, reward_low=-5.0) for log in make(p, r, 200, 3)]
    found = held(models, p, r, 0.8)
    assert len(found) == 200
    assert found.mean() >= 0.9


@pytest.mark.parametrize("set", ["kl", "likelihood"])
def test_asymptotic_sets_do_with_many_samples(set: str) -> None:
    rng = np.random.default_rng(9)
    p, r = 0.2 + 0.4 * rng.dirichlet(np.ones(3), (3, 2)), rng.random((3, 2, 3))
    logs = [log_of(visits, r) for visits in rng.multinomial(300, p, (200, 3, 2))]
    models = [from_counts(log, 0.9, set, "likelihood_ratio") for log in logs]
    assert held(models, p, r, 0.8).mean() >= 0.9
    # They are not much larger than needed: the truth lies outside of some.
    centre = np.array([model.problem.dense()[0] for model in models])
    distance = rel_entr(p, centre) if set == "kl" else rel_entr(centre, p)
    inside = (distance.sum(-1) <= [model.radius for model in models]).all((1, 2))
    assert 0.85 < inside.mean() < 0.98


@pytest.mark.parametrize("make", [fixed_logs, trajectories])
def test_without_what_was_never_seen_they_would_not(make: Make) -> None:
    """The bad state is rare: nature kept to what a log shows is too kind."""
    p, r = truth(2)
    models = [from_counts(log, 0.9, support="seen", reward_low=-5.0) for log in make(p, r, 200, 3)]
    assert held(models, p, r, 0.8).mean() < 0.9


def drawn_from_prior(
    prior: float, shape: tuple[int, int], logs: int, seed: int
) -> tuple[np.ndarray, np.ndarray, list[Counts]]:
    """Models [K, S, A, S] drawn from the prior, their rewards, and a log of up to 12 samples a pair of each."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(shape[0], prior), (logs, *shape))
    r = rng.random(p.shape[1:])
    n = rng.integers(1, 12, shape)
    return p, r, [log_of(visits, r) for visits in rng.multinomial(n, p)]


@pytest.mark.parametrize(("shape", "prior"), [("l1", 1.0), ("linf", 0.3), ("l2", 1.0), ("kl", 0.3)])
def test_credible_sets_hold_models_of_the_prior_as_often_as_they_say(shape: str, prior: float) -> None:
    """Neither less often nor more: they are of the right size, over all rows at once."""
    p, _, logs = drawn_from_prior(prior, (3, 1), 500, 4)
    inside = []
    for k, log in enumerate(logs):
        model = from_counts(log, 0.8, "bayes", reward_low=0.0, prior=prior, shape=shape, seed=k)
        centre, _ = model.problem.dense()
        distance = {
            "l1": np.abs(p[k] - centre).sum(-1),
            "linf": np.abs(p[k] - centre).max(-1),
            "l2": np.sqrt(((p[k] - centre) ** 2).sum(-1)),
            "kl": rel_entr(p[k], centre).sum(-1),
        }[shape]
        inside.append((distance <= model.radius).all())
    assert abs(np.mean(inside) - 0.8) < 0.055  # three standard deviations


def test_credible_guarantees_hold_as_often_as_they_say() -> None:
    p, r, logs = drawn_from_prior(1.0, (3, 2), 200, 6)
    models = [from_counts(log, 0.9, "bayes", reward_low=0.0, seed=k) for k, log in enumerate(logs)]
    assert held(models, p, r, 0.8).mean() >= 0.9
    # Around the same means smaller sets would not do.
    assert held([model.scaled(0.1) for model in models], p, r, 0.8).mean() < 0.9


def test_posterior_means_and_radii() -> None:
    log = count_transitions([0, 0, 1], [0, 0, 0], [0, 1, 1], [1.0, 1.0, 0.0], [3, 1, 2])
    model = from_counts(log, 0.95, "bayes", prior=0.5, rewards="state-action")
    np.testing.assert_allclose(model.problem.dense()[0][:, 0], [[3.5 / 5, 1.5 / 5], [0.5 / 3, 2.5 / 3]])
    np.testing.assert_allclose(model.nominal.dense()[0][:, 0], [[0.75, 0.25], [0, 1]])
    assert (model.set, model.rule) == ("l1", "bayes")
    # With one row in doubt the radius is a quantile of |2 (x − mean)| for a Beta distribution.
    possible = np.array([[1, 1], [0, 1]])
    one = from_counts(log, 0.95, "bayes", prior=0.5, rewards="state-action", support=possible)
    x = beta(3.5, 1.5)
    inside = x.cdf(0.7 + one.radius[0, 0] / 2) - x.cdf(0.7 - one.radius[0, 0] / 2)
    assert inside == pytest.approx(0.95, abs=0.01)
    assert one.radius[1, 0] == 0
    again = from_counts(log, 0.95, "bayes", prior=0.5, rewards="state-action", support=possible)
    np.testing.assert_array_equal(again.radius, one.radius)
    other = from_counts(log, 0.95, "bayes", prior=0.5, rewards="state-action", support=possible, seed=1)
    assert 0 < abs(other.radius[0, 0] - one.radius[0, 0]) < 0.05


def test_the_best_of_several_shapes() -> None:
    log = fixed_logs(*truth(2), 1, 3)[0]
    models = [from_counts(log, 0.9, "bayes", reward_low=-5.0, shape=shape) for shape in ("l1", "kl")]
    each = [solve_counts(model, 0.8, method="vi") for model in models]
    best = solve_best(models, 0.8, method="vi")
    assert best.values.mean() == max(found.values.mean() for found in each)
    assert best.values.mean() > min(found.values.mean() for found in each)
    with pytest.raises(
        DeeprokError, match="sets by the rule 'anytime_l1'; the best may be chosen of credible sets only"
    ):
        solve_best([from_counts(log, 0.9, reward_low=-5.0)])
