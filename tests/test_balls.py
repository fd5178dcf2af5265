"""The inner problems against linear programs, and against each other."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.special import logsumexp, rel_entr

from deeprok.core.errors import DeeprokError
from deeprok.uncertainty import (
    RULES,
    SETS,
    AmbiguitySet,
    burg,
    check_cost,
    check_interval,
    check_weights,
    chi2,
    contamination,
    cvar,
    ellipsoid,
    entropic,
    finite,
    interval,
    kl,
    l1,
    l1_rows,
    l2,
    linf,
    minimum,
    on_support,
    optimistic,
    tv,
    wasserstein,
    weighted_l1,
)
from deeprok.uncertainty.sets import MODEL_SETS

M = 5  # outcomes
ROWS = 12  # problems solved at once; one shape, so one compilation a family


class Problem(NamedTuple):
    """One problem, or with a leading axis ROWS of them."""

    p: np.ndarray  # [M]
    values: np.ndarray  # [M]
    part: np.ndarray  # [] the level, as a part of the largest that is tried
    weights: np.ndarray  # [M] for the sets that have some
    cost: np.ndarray  # [M, M] likewise


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """ROWS problems, with more or fewer empty outcomes, equal values, values far apart, and small levels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    empty, equal, apart, small = (draw(st.sampled_from([0.0, 0.3, 0.8])) for _ in range(4))

    def chosen(share: float, *shape: int) -> np.ndarray:
        return rng.random((ROWS, *shape)) < share

    mass = np.where(chosen(empty, M), 0.0, rng.uniform(0.01, 1.0, (ROWS, M)))
    mass[np.arange(ROWS), rng.integers(M, size=ROWS)] = rng.uniform(0.1, 1.0, ROWS)
    values = np.where(chosen(equal, M), rng.integers(-2, 3, (ROWS, M)), rng.uniform(-10, 10, (ROWS, M)))
    values = np.where(chosen(apart, 1), values * 10.0 ** rng.integers(-4, 1, (ROWS, M)), values)
    part = np.where(chosen(small), rng.choice([0.0, 1e-4, 1e-2, 1.0], ROWS), rng.random(ROWS))
    weights = rng.choice([0.3, 0.5, 1.0, 1.7, 3.0], (ROWS, M))
    cost = rng.choice([0.0, 0.5, 1.0, 1.3, 2.0], (ROWS, M, M)) * (1 - np.eye(M))
    return Problem(mass / mass.sum(axis=1, keepdims=True), values, part, weights, cost)


def each(x: Problem) -> list[Problem]:
    return [Problem(*row) for row in zip(*x, strict=True)]


# --- programs ------------------------------------------------------------------------------------------


def linear(objective: np.ndarray, **constraints: Any) -> float:
    solved = linprog(objective, **constraints)
    assert solved.status == 0, solved.message
    return float(solved.fun)


def bounded(problem: Problem, lower: np.ndarray, upper: np.ndarray) -> float:
    bounds = list(zip(lower, upper, strict=True))
    return linear(problem.values, A_eq=np.ones((1, len(bounds))), b_eq=[1.0], bounds=bounds)


def weighted_distance_program(problem: Problem, level: float, weights: np.ndarray) -> float:
    """Over q and t: Σ w t ≤ level with t ≥ |q − p|."""
    size = len(problem.p)
    eye = np.eye(size)
    rows = np.vstack([np.hstack([np.zeros(size), weights]), np.hstack([eye, -eye]), np.hstack([-eye, -eye])])
    limits = np.concatenate([[level], problem.p, -problem.p])
    total = np.concatenate([np.ones(size), np.zeros(size)])[None]
    return linear(np.pad(problem.values, (0, size)), A_ub=rows, b_ub=limits, A_eq=total, b_eq=[1.0])


def transport_program(problem: Problem, level: float, cost: np.ndarray) -> float:
    """Over plans π[i, j] of mass that moves from i to j."""
    size = len(problem.p)
    leaves = np.kron(np.eye(size), np.ones(size))
    objective = np.tile(problem.values, size)
    return linear(objective, A_ub=cost.reshape(1, -1), b_ub=[level], A_eq=leaves, b_eq=problem.p)


def tangent_program(problem: Problem, limit: float, q: np.ndarray, found: float, slope: np.ndarray) -> float:
    """The least expectation where the tangent to a convex distance at q, rather than it, is at most the limit.

    That is a larger set, so what attains its least expectation and lies in the ball is least there too. One
    linear constraint: the answer is an outcome, or a mixture of one inside with one outside. Slopes are
    infinite for outcomes that the distance forbids.
    """
    values, outside = problem.values, slope - slope[q > 0] @ q[q > 0] + found - limit
    assert outside.min() <= 0
    inside = outside <= 0
    best = values[inside].min()
    for i, j in itertools.product(np.flatnonzero(inside), np.flatnonzero(~inside & np.isfinite(outside))):
        part = outside[i] / (outside[i] - outside[j])
        best = min(best, values[i] + part * (values[j] - values[i]))
    return float(best)


def quadratic_program(problem: Problem, level: float, q: np.ndarray, weights: np.ndarray) -> float:
    """Σ w (q − p)² ≤ level, with w infinite where q must be p."""
    away = q - problem.p
    if level == 0:
        return float(problem.p @ problem.values)
    scaled = np.where(np.isfinite(weights), weights, 0) * away
    slope = np.where(np.isfinite(weights), 2 * scaled, np.inf)
    return tangent_program(problem, level, q, scaled @ away, slope)


def entropy_program(problem: Problem, level: float, q: np.ndarray) -> float:
    """Σ q log(q / p) ≤ level."""
    p = problem.p
    if level == 0:
        return float(p @ problem.values)
    z = np.where(p > 0, np.maximum(q, 1e-300), 0)  # a tangent anywhere near serves
    slope = np.where(p > 0, np.log(np.where(p > 0, z / np.where(p > 0, p, 1), 1)) + 1, np.inf)
    return tangent_program(problem, level, z, relative_entropy(z, p), slope)


def likelihood_program(problem: Problem, level: float, q: np.ndarray) -> float:
    """Σ p log(p / q) ≤ level."""
    p = problem.p
    if level == 0:
        return float(p @ problem.values)
    slope = -p / np.where(p > 0, q, 1)
    return tangent_program(problem, level, q, relative_entropy(p, q), slope)


def relative_entropy(q: np.ndarray, p: np.ndarray) -> float:
    """Σ q log(q / p) with 0 log 0 = 0."""
    return float(np.sum(rel_entr(q, p)))


# --- the table of families -----------------------------------------------------------------------------


class Family(NamedTuple):
    """One set: how it is solved here and in the textbook, and how far a distribution is from p.

    Attributes:
      solve: (p, values, level, weights, cost) -> WorstCase.
      program: the least expectation by a linear program, which may look at the distribution that was found.
      distance: of q from p; q is in the set where it is at most the level.
      top: levels are tried up to this.
      everything: a level at which the set is all that it can be.
      keeps_support: whether it leaves outcomes without mass alone.
      zero_is_p: whether p is all there is at level 0.
    """

    solve: Callable[..., Any]
    program: Callable[[Problem, float, np.ndarray], float]
    distance: Callable[[np.ndarray, Problem], float]
    top: float
    everything: float
    keeps_support: bool = False
    zero_is_p: bool = True


def plain(worst_case: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, values, level, weights, cost: worst_case(p, values, level)


def transport_distance(q: np.ndarray, p: np.ndarray, cost: np.ndarray) -> float:
    rows = np.vstack([np.kron(np.eye(M), np.ones(M)), np.kron(np.ones(M), np.eye(M))])
    return linear(cost.reshape(-1), A_eq=rows[:-1], b_eq=np.concatenate([p, q / q.sum()])[:-1])


def line(size: int) -> np.ndarray:
    return np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)


FAMILIES: dict[str, Family] = {
    "minimum": Family(
        plain(lambda p, v, level: minimum(p, v)),
        lambda x, level, q: bounded(x, 0 * x.p, 0 * x.p + 1),
        lambda q, x: 0.0,
        top=1.0,
        everything=1.0,
        zero_is_p=False,
    ),
    "contamination": Family(
        plain(contamination),
        lambda x, level, q: bounded(x, (1 - level) * x.p, 0 * x.p + 1),
        lambda q, x: np.max(1 - q[x.p > 0] / x.p[x.p > 0]),
        top=1.0,
        everything=1.0,
    ),
    "cvar": Family(  # of the fraction 1 − level
        plain(lambda p, v, level: cvar(p, v, 1 - level)),
        lambda x, level, q: bounded(x, 0 * x.p, x.p / (1 - level)),
        lambda q, x: np.max(1 - x.p[q > 0] / q[q > 0]),
        top=0.99,
        everything=1 - 1e-9,
        keeps_support=True,
    ),
    "linf": Family(
        plain(linf),
        lambda x, level, q: bounded(x, np.maximum(x.p - level, 0), np.minimum(x.p + level, 1)),
        lambda q, x: np.max(np.abs(q - x.p)),
        top=1.0,
        everything=1.0,
    ),
    "interval": Family(  # twice as far up as down
        lambda p, v, level, w, c: interval(jnp.stack([jnp.clip(p - level, 0), jnp.clip(p + 2 * level, 0, 1)]), v),
        lambda x, level, q: bounded(x, np.maximum(x.p - level, 0), np.minimum(x.p + 2 * level, 1)),
        lambda q, x: np.max(np.maximum(x.p - q, (q - x.p) / 2)),
        top=1.0,
        everything=1.0,
    ),
    "l1": Family(
        plain(l1),
        lambda x, level, q: weighted_distance_program(x, level, 0 * x.p + 1),
        lambda q, x: np.sum(np.abs(q - x.p)),
        top=2.2,
        everything=2.0,
    ),
    "tv": Family(
        plain(tv),
        lambda x, level, q: weighted_distance_program(x, level, 0 * x.p + 0.5),
        lambda q, x: np.sum(np.abs(q - x.p)) / 2,
        top=1.1,
        everything=1.0,
    ),
    "weighted_l1": Family(
        lambda p, v, level, w, c: weighted_l1(p, v, level, w),
        lambda x, level, q: weighted_distance_program(x, level, x.weights),
        lambda q, x: np.sum(x.weights * np.abs(q - x.p)),
        top=4.0,
        everything=6.0,
    ),
    "wasserstein": Family(
        plain(wasserstein),
        lambda x, level, q: transport_program(x, level, line(len(x.p))),
        lambda q, x: transport_distance(q, x.p, line(M)),
        top=3.0,
        everything=M - 1.0,
    ),
    "wasserstein with costs": Family(
        lambda p, v, level, w, c: wasserstein(p, v, level, c),
        lambda x, level, q: transport_program(x, level, x.cost),
        lambda q, x: transport_distance(q, x.p, x.cost),
        top=1.5,
        everything=2.0,
        zero_is_p=False,  # mass may move at no cost
    ),
    "l2": Family(
        plain(l2),
        lambda x, level, q: quadratic_program(x, level**2, q, 0 * x.p + 1),
        lambda q, x: np.sqrt(np.sum((q - x.p) ** 2)),
        top=1.2,
        everything=1.5,
    ),
    "ellipsoid": Family(
        lambda p, v, level, w, c: ellipsoid(p, v, level, w),
        lambda x, level, q: quadratic_program(x, level**2, q, x.weights),
        lambda q, x: np.sqrt(np.sum(x.weights * (q - x.p) ** 2)),
        top=2.0,
        everything=3.0,
    ),
    "chi2": Family(
        plain(chi2),
        lambda x, level, q: quadratic_program(x, level, q, np.where(x.p > 0, 1 / np.where(x.p > 0, x.p, 1), np.inf)),
        lambda q, x: np.sum((q - x.p)[x.p > 0] ** 2 / x.p[x.p > 0]) + (np.inf if q[x.p == 0].any() else 0),
        top=4.0,
        everything=1000.0,
        keeps_support=True,
    ),
    "kl": Family(
        plain(kl),
        entropy_program,
        lambda q, x: relative_entropy(q, x.p),
        top=1.5,
        everything=10.0,
        keeps_support=True,
    ),
    "burg": Family(
        plain(burg),
        likelihood_program,
        lambda q, x: relative_entropy(x.p, q),
        top=1.5,
        everything=1e4,
    ),
}


@functools.cache
def compiled(name: str) -> Callable[..., Any]:
    return jax.jit(jax.vmap(FAMILIES[name].solve))


def solve(
    name: str, x: Problem, levels: np.ndarray, twin: Callable[..., Any] = lambda f: f
) -> tuple[np.ndarray, np.ndarray]:
    """Values [ROWS] and distributions [ROWS, M], in double precision."""
    with jax.enable_x64(True):
        found = twin(compiled(name))(x.p, x.values, levels, x.weights, x.cost)
        return np.asarray(found.value), np.asarray(found.distribution)


def repeated(x: Problem) -> Problem:
    """The first problem in every row."""
    return Problem(*(np.broadcast_to(field[0], field.shape) for field in x))


every_family = pytest.mark.parametrize("name", FAMILIES)


def test_the_table_has_every_set() -> None:
    assert set(SETS) - set(FAMILIES) == {"entropic"}  # which has no set of distributions


@every_family
@settings(max_examples=4)
@given(x=problems())
def test_solves_the_program(name: str, x: Problem) -> None:
    family = FAMILIES[name]
    levels = family.top * x.part
    values, distributions = solve(name, x, levels)
    programs = [family.program(*row) for row in zip(each(x), levels, distributions, strict=True)]
    np.testing.assert_allclose(values, programs, rtol=0, atol=1e-8)
    np.testing.assert_allclose(np.sum(distributions * x.values, axis=1), values, rtol=0, atol=1e-12)
    np.testing.assert_allclose(distributions.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert (distributions >= 0).all()
    distances = [family.distance(q, row) for q, row in zip(distributions, each(x), strict=True)]
    assert (distances <= levels + 1e-9).all()


@every_family
@settings(max_examples=4)
@given(x=problems())
def test_the_best_case_is_the_worst_of_losses(name: str, x: Problem) -> None:
    family = FAMILIES[name]
    levels = family.top * x.part
    values, distributions = solve(name, x, levels, optimistic)
    losses = each(x._replace(values=-x.values))
    programs = [-family.program(*row) for row in zip(losses, levels, distributions, strict=True)]
    np.testing.assert_allclose(values, programs, rtol=0, atol=1e-8)
    np.testing.assert_allclose(np.sum(distributions * x.values, axis=1), values, rtol=0, atol=1e-12)


@every_family
@settings(max_examples=20)
@given(x=problems().map(repeated))
def test_falls_from_the_mean_to_the_minimum(name: str, x: Problem) -> None:
    family = FAMILIES[name]
    p, v = x.p[0], x.values[0]
    values, distributions = solve(name, x, np.append(family.top * np.linspace(0, 1, ROWS - 1), family.everything))
    least = v[p > 0].min() if family.keeps_support else v.min()
    assert (np.diff(values[:-1]) <= 1e-12).all()
    assert (values >= least - 1e-12).all()
    np.testing.assert_allclose(values[-1], least, rtol=0, atol=1e-9)
    if family.zero_is_p:
        np.testing.assert_allclose(values[0], p @ v, rtol=0, atol=1e-12)
        np.testing.assert_allclose(distributions[0], p, rtol=0, atol=1e-15)


@every_family
@settings(max_examples=15)
@given(x=problems(), scale=st.sampled_from([1e-6, 0.3, 7.0, 1e6]), shift=st.floats(-100, 100))
def test_moves_and_scales_with_the_values(name: str, x: Problem, scale: float, shift: float) -> None:
    levels = FAMILIES[name].top * x.part
    values, _ = solve(name, x, levels)
    moved, others = solve(name, x._replace(values=scale * x.values + shift), levels)
    tolerance = 1e-12 * (scale * 10 + abs(shift))
    np.testing.assert_allclose(moved, scale * values + shift, rtol=0, atol=tolerance)
    np.testing.assert_allclose(np.sum(others * x.values, axis=1), values, rtol=0, atol=tolerance / scale)


# --- what entries say of their sets -------------------------------------------------------------------

WEIGHTED = {f"{name} with weights": entry.weighted for name, entry in SETS.items() if entry.weighted}
ENTRIES: dict[str, AmbiguitySet] = {**SETS, **WEIGHTED}
every_entry = pytest.mark.parametrize("name", ENTRIES)


@functools.cache
def of_entry(name: str, attribute: str = "worst_case") -> Callable[..., Any]:
    """A function of the entry, for many problems with a level each; sets with weights are told some."""
    function = getattr(ENTRIES[name], attribute)
    told = (jnp.array([1.0, 1.5, 1.0, 4.0, 2.0]),) if name in WEIGHTED else ()
    return jax.jit(jax.vmap(lambda p, values, level: function(p, values, level, *told)))


@functools.cache
def compiled_backup(backup: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(jax.vmap(backup))


@every_entry
@settings(max_examples=10)
@given(x=problems())
def test_the_nominal_level_leaves_p(name: str, x: Problem) -> None:
    nominal = ENTRIES[name].nominal_level
    with jax.enable_x64(True):
        if nominal is None:
            some, other = (of_entry(name)(x.p, x.values, np.full(ROWS, level)) for level in (0.0, 0.7))
            np.testing.assert_array_equal(some.value, other.value)
        else:
            found = of_entry(name)(x.p, x.values, np.full(ROWS, nominal))
            np.testing.assert_allclose(found.value, np.sum(x.p * x.values, axis=1), rtol=0, atol=1e-11)
            np.testing.assert_allclose(found.distribution, x.p, rtol=0, atol=1e-14)
            ENTRIES[name].check_level(nominal)


@every_entry
@settings(max_examples=10)
@given(x=problems())
def test_mass_goes_no_farther_than_the_reach(name: str, x: Problem) -> None:
    with jax.enable_x64(True):
        found = of_entry(name)(x.p, x.values, np.clip(x.part, 0.01, 0.99))
    gained, empty = np.asarray(found.distribution) > x.p + 1e-12, x.p == 0
    worst = x.values == x.values.min(axis=1, keepdims=True)
    allowed = {"support": ~empty, "worst": ~empty | worst, "all": True}[ENTRIES[name].reach]
    assert (allowed | ~gained).all()


@every_entry
def test_mass_goes_as_far_as_the_reach(name: str) -> None:
    p, values = np.array([0.5, 0.5, 0, 0, 0]), np.array([9.0, 8.0, 1.5, 0.0, 7.0])
    levels = np.linspace(0.05, 0.95, ROWS)
    with jax.enable_x64(True):
        found = of_entry(name)(np.tile(p, (ROWS, 1)), np.tile(values, (ROWS, 1)), levels)
    reached = (np.asarray(found.distribution) > 1e-9).any(axis=0)
    assert reached[[2, 3, 4]].any() == (ENTRIES[name].reach != "support")
    assert reached[[2, 4]].any() == (ENTRIES[name].reach == "all")


@every_entry
@settings(max_examples=10)
@given(x=problems())
def test_only_a_penalty_lifts_the_value_above_the_expectation(name: str, x: Problem) -> None:
    some = x._replace(p=np.full((ROWS, M), 1 / M), values=np.tile(np.arange(M), (ROWS, 1)))
    for problem in (x, some):
        with jax.enable_x64(True):
            value, q = map(np.asarray, of_entry(name)(problem.p, problem.values * 1.0, np.full(ROWS, 0.5)))
        above = value - np.sum(q * problem.values, axis=1)
        assert (above >= -1e-11).all()
        assert not ENTRIES[name].coherent or (above <= 1e-11).all()
    assert (above > 0.01).all() != ENTRIES[name].coherent


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.tangent])
@settings(max_examples=10)
@given(x=problems())
def test_tangents_support_the_worst_case(name: str, x: Problem) -> None:
    level, other = np.clip(x.part, 0.01, 0.99), np.clip(x.part[::-1], 0.0, 1.0)
    with jax.enable_x64(True):
        at, there = of_entry(name)(x.p, x.values, level), of_entry(name)(x.p, x.values, other)
        value, distribution, steepness = map(np.asarray, of_entry(name, "tangent")(x.p, x.values, level))
    np.testing.assert_allclose(value, at.value, rtol=0, atol=1e-12)
    np.testing.assert_allclose(distribution, at.distribution, rtol=0, atol=1e-12)
    assert (np.asarray(there.value) >= value - steepness * (other - level) - 1e-9 * (1 + steepness)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in SETS.items() if entry.shared])
@settings(max_examples=10)
@given(x=problems())
def test_one_action_has_the_budget_to_itself(name: str, x: Problem) -> None:
    entry, level = SETS[name], np.clip(x.part, 0.01, 0.99)
    with jax.enable_x64(True):
        expected = of_entry(name)(x.p, x.values, level).value
        for backup, third in zip(entry.shared, (np.ones((ROWS, 1), bool), np.ones((ROWS, 1))), strict=True):
            found = compiled_backup(backup)(x.p[:, None], x.values[:, None], third, level)
            np.testing.assert_allclose(found.value, expected, rtol=0, atol=1e-8)
        if entry.worst_values:
            same = np.broadcast_to(x.values[0], x.values.shape)
            rows = entry.worst_values(x.p.T, x.values[0], level)
            np.testing.assert_allclose(rows, of_entry(name)(x.p, same, level).value, rtol=0, atol=1e-12)


def test_sets_with_weights_or_costs(x64) -> None:
    p, values, level = np.full(M, 0.2), np.arange(M) ** 2.0, 0.3
    for entry in SETS.values():
        told = [(entry.weighted, np.ones(M))] if entry.weighted else []
        told += [(entry, line(M))] if entry.takes_cost else []
        for other, options in told:
            plain, same = entry.worst_case(p, values, level), other.worst_case(p, values, level, options)
            np.testing.assert_allclose(plain.value, same.value, rtol=1e-12)
    assert WEIGHTED
    assert any(entry.takes_cost for entry in SETS.values())


def test_sets_of_models_hold_them_alone(x64) -> None:
    models = np.random.default_rng(0).dirichlet(np.ones(M), 3)
    for entry in MODEL_SETS.values():
        assert entry.of_models
        found = entry.worst_case(models, np.arange(M) * 1.0, 0.0)
        assert np.any(np.all(np.asarray(found.distribution) == models, axis=1))


def test_level_rules_are_known() -> None:
    for name, entry in SETS.items():
        assert set(entry.level_rules) == {rule for rule, found in RULES.items() if name in found.sets}


# --- numbers known from elsewhere ----------------------------------------------------------------------


def of_one(name: str, p: list[float], values: list[float], level: float) -> float:
    """The value of one problem with four outcomes; a fifth, empty and best, changes nothing."""
    x = Problem(np.array([*p, 0.0]), np.array([*values, 99.0]), np.array(0.0), np.ones(M), np.zeros((M, M)))
    return solve(name, repeated(Problem(*(np.repeat(a[None], ROWS, axis=0) for a in x))), np.full(ROWS, level))[0][0]


@pytest.mark.parametrize(
    ("name", "level", "value"),
    [
        ("l1", 0.0, 2.1),
        ("l1", 0.5, 1.5),
        ("tv", 0.25, 1.5),
        ("linf", 0.1, 1.7),
        ("kl", 0.1, 1.6501302637715),
        ("chi2", 0.1, 1.7698485196),
        ("chi2", 0.1, 2.1 - math.sqrt(0.1 * 1.09)),  # nothing is emptied: the mean less √level deviations
        ("wasserstein", 0.5, 1.45),
        ("contamination", 0.1, 1.99),
    ],
)
def test_known_values(name: str, level: float, value: float) -> None:
    found = of_one(name, [0.3, 0.2, 0.1, 0.4], [3.0, 2.0, 4.0, 1.0], level)
    np.testing.assert_allclose(found, value, rtol=0, atol=5e-11)


@pytest.mark.parametrize(("level", "value"), [(0.0, 2.3), (1.0, 1.1), (2.0, 1.0)])
def test_known_l1(level: float, value: float) -> None:
    found = of_one("l1", [0.4, 0.3, 0.1, 0.2], [1.0, 2.0, 5.0, 4.0], level)
    np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)


def test_finite_takes_the_worst_model(x64) -> None:
    models = np.random.default_rng(0).dirichlet(np.ones(M), 7)
    values = np.random.default_rng(1).normal(size=M)
    worst, best = (jax.jit(f)(models, values) for f in (finite, optimistic(finite)))
    np.testing.assert_allclose(worst.value, min(models @ values), atol=1e-14)
    np.testing.assert_array_equal(worst.distribution, models[np.argmin(models @ values)])
    np.testing.assert_allclose(best.value, max(models @ values), atol=1e-14)


# --- one set is a case of another ----------------------------------------------------------------------

ONES = np.ones((ROWS, M))
APART = np.ones((ROWS, M, M)) - np.eye(M)
SAME: dict[str, tuple[str, str, Callable[[Problem], Problem]]] = {
    "weights of 1": ("l1", "weighted_l1", lambda x: x._replace(weights=ONES)),
    "an ellipsoid with weights of 1": ("l2", "ellipsoid", lambda x: x._replace(weights=ONES)),
    "transport at unit cost": ("tv", "wasserstein with costs", lambda x: x._replace(cost=APART)),
    "transport at the cost of both ends": (
        "weighted_l1",
        "wasserstein with costs",
        lambda x: x._replace(cost=APART * (x.weights[:, :, None] + x.weights[:, None, :])),
    ),
}


@pytest.mark.parametrize(("one", "other", "turned"), SAME.values(), ids=SAME)
@settings(max_examples=15)
@given(x=problems())
def test_is_a_case_of_a_wider_family(one: str, other: str, turned: Callable[[Problem], Problem], x: Problem) -> None:
    x = turned(x)
    (found, _), (expected, _) = (solve(name, x, x.part) for name in (one, other))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# --- sorted once, many rows ----------------------------------------------------------------------------


def rows_with_ties(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Distributions with empty outcomes and values with ties."""
    rng = np.random.default_rng(size)
    mass = np.where(rng.random((count, size)) < 0.3, 0.0, rng.exponential(size=(count, size)))
    mass[:, rng.integers(size)] += 0.1
    return mass / mass.sum(axis=1, keepdims=True), rng.normal(size=size).round(1)


@pytest.mark.parametrize(("worst_case", "size"), [(l1, 7), (l1, 90), (cvar, 90), (linf, 90)])
def test_a_known_order_changes_nothing(x64, worst_case: Callable[..., Any], size: int) -> None:
    p, values = rows_with_ties(20, size)
    levels = np.linspace(0.02, 1, 20)
    plain = jax.jit(jax.vmap(worst_case, (0, None, 0)))(p, values, levels)
    ordered = jax.jit(jax.vmap(worst_case, (0, None, 0, None)))(p, values, levels, np.argsort(values, stable=True))
    np.testing.assert_allclose(ordered.value, plain.value, atol=1e-13)
    np.testing.assert_allclose(ordered.distribution, plain.distribution, atol=1e-13)


@pytest.mark.parametrize("size", [1, 8, 90])
def test_rows_that_share_their_values(x64, size: int) -> None:
    p, values = rows_with_ties(20, size)
    radius = np.concatenate([[0.0, 2.0, 5.0], np.linspace(0.01, 1.9, 17)])
    unused = np.zeros(0)
    expected = [
        FAMILIES["l1"].program(Problem(row, values, unused, unused, unused), r, unused)
        for row, r in zip(p, radius, strict=True)
    ]
    fast = jax.jit(l1_rows)
    np.testing.assert_allclose(fast(p.T, values, radius), expected, atol=1e-8)
    if size == 8:
        np.testing.assert_allclose(fast(p.T, values, radius, np.argsort(values)), expected, atol=1e-8)
        np.testing.assert_allclose(fast(p.T, values, 2.0), values.min(), atol=1e-12)


# --- edges ---------------------------------------------------------------------------------------------

every_set = pytest.mark.parametrize("name", SETS)


def kept_program(name: str, x: Problem, level: float, q: np.ndarray) -> float:
    """The program on the outcomes that have mass."""
    has = x.p > 0
    x = Problem(x.p[has], x.values[has], x.part, x.weights[has], x.cost[np.ix_(has, has)])
    if name == "entropic":
        return float(-logsumexp(-level * x.values, b=x.p) / level)
    if name == "wasserstein":
        return transport_program(x, level, line(M)[np.ix_(has, has)])
    return FAMILIES[name].program(x, level, q[has])


@every_set
def test_single_precision_on_the_support(name: str) -> None:
    single = jax.jit(jax.vmap(on_support(SETS[name].worst_case)))
    rng = np.random.default_rng(0)
    for p in (np.array([0.0, 0.5, 0.0, 0.2, 0.3]), np.full(M, 1 / M)):  # some, and as the deep agents have it
        values = rng.normal(size=(ROWS, M)).round(1)
        x = Problem(np.tile(p, (ROWS, 1)), values, np.zeros(ROWS), np.ones((ROWS, M)), np.zeros((ROWS, M, M)))
        levels = np.geomspace(1e-3, 1.0, ROWS)
        found = single(*(a.astype(np.float32) for a in (x.p, x.values, levels)))
        assert found.value.dtype == found.distribution.dtype == np.float32
        asked = 1 - levels if name == "cvar" else levels
        rows = zip(each(x), asked, np.asarray(found.distribution, float), strict=True)
        programs = [kept_program(name, *row) for row in rows]
        np.testing.assert_allclose(found.value, programs, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.distribution.sum(axis=1), 1.0, rtol=0, atol=1e-6)
        assert (found.distribution >= 0).all()
        assert not found.distribution[:, p == 0].any()

    equal = single(np.tile(p, (ROWS, 1)).astype(np.float32), np.full((ROWS, M), 0.7, np.float32), np.float32(levels))
    np.testing.assert_allclose(equal.value, 0.7, rtol=2e-7)
    values[:, 2] = np.nan
    assert np.isnan(single(*(a.astype(np.float32) for a in (x.p, values, levels))).value).all()


@pytest.mark.parametrize("name", ["l1", "l2", "kl", "burg", "wasserstein"])
def test_equal_values_leave_no_choice(name: str) -> None:
    """Whatever the mass sums to after rounding."""
    equal, cost = np.full((ROWS, M), 1.3), np.broadcast_to(line(M), (ROWS, M, M))
    for seed, level in itertools.product(range(5), (1e-300, 1e-16, 0.1)):
        p = np.random.default_rng(seed).dirichlet(np.ones(M), ROWS)
        value, q = solve(
            name, Problem(p=p, values=equal, part=0 * p[:, 0], weights=equal, cost=cost), p[:, 0] * 0 + level
        )
        np.testing.assert_array_equal(value, 1.3)
        np.testing.assert_allclose(q.sum(1), 1.0, atol=1e-14)


@pytest.mark.parametrize("name", ["l1", "l2", "kl", "burg", "wasserstein"])
def test_one_outcome_leaves_no_choice(name: str) -> None:
    single = jax.jit(SETS[name].worst_case)(jnp.ones(1), jnp.array([-3.3]), 0.5)
    assert single.value == np.float32(-3.3)
    assert single.distribution == 1.0


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"cvar", "contamination"}))  # whose levels are fractions
def test_infinite_radius(name: str) -> None:
    p, v = np.tile([0.3, 0.0, 0.6, 0.1, 0.0], (ROWS, 1)), np.tile([1.0, 0.0, 3.0, 1.0, 5.0], (ROWS, 1))
    x = Problem(p, v, np.zeros(ROWS), np.ones((ROWS, M)), np.ones((ROWS, M, M)) - np.eye(M))
    values, distributions = solve(name, x, np.full(ROWS, np.inf))
    np.testing.assert_allclose(values, 1.0 if FAMILIES[name].keeps_support else 0.0, atol=1e-12)
    np.testing.assert_allclose(distributions.sum(axis=1), 1.0, atol=1e-12)


# --- entropic risk -------------------------------------------------------------------------------------

fast_entropic = jax.jit(entropic)


@given(x=problems().map(lambda x: each(x)[0]), level=st.sampled_from([1e-9, 1e-3, 0.1, 1.0, 30.0, 1e6]))
def test_entropic_risk_is_the_penalised_minimum(x: Problem, level: float) -> None:
    with jax.enable_x64(True):
        value, q = map(np.asarray, fast_entropic(x.p, x.values, level))
        mean = float(fast_entropic(x.p, x.values, 0.0).value)
    penalised = lambda q: q @ x.values + relative_entropy(q, x.p) / level  # noqa: E731
    has = x.p > 0
    log_sum = logsumexp(-level * x.values[has], b=x.p[has])
    np.testing.assert_allclose(value, -log_sum / level, rtol=0, atol=1e-9 + 1e-15 / level)
    np.testing.assert_allclose(penalised(q), value, rtol=0, atol=1e-9 + 1e-15 / level)
    assert penalised(0.9 * q + 0.1 * x.p) >= value - 1e-9 - 1e-15 / level
    assert x.values[has].min() - 1e-12 <= value <= mean + 1e-12
    np.testing.assert_allclose(mean, x.p @ x.values, atol=1e-12)


# --- refusals ------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
ALLOWED = {
    "minimum": ((-1.0, 0.0, NAN), ()),
    "cvar": ((1e-9, 1.0), (0.0, -0.1, 1.1, NAN)),
    "contamination": ((0.0, 1.0), (-0.1, 1.1, NAN)),
    "entropic": ((0.0, 99.0), (-0.1, INF, NAN)),
    **dict.fromkeys(
        ("l1", "tv", "linf", "l2", "chi2", "kl", "burg", "wasserstein"), ((0.0, 0.3, 99.0, INF), (-0.1, -INF, NAN))
    ),
}


@every_set
def test_sets_check_their_level(name: str) -> None:
    allowed, refused = ALLOWED[name]
    for level in allowed:
        SETS[name].check_level(level)
    for level in refused:
        with pytest.raises(DeeprokError, match=f"^robust_level is {level:g}; for the set {name} it must be"):
            SETS[name].check_level(level)
        with pytest.raises(DeeprokError, match=r"^radius of \(3, 1\) is"):
            SETS[name].check_level(level, "radius of (3, 1)")


@pytest.mark.parametrize(
    ("check", "given", "words"),
    [
        (check_weights, [1.0, 0.0], "weights has 0 for outcome 1"),
        (check_weights, [NAN, 1.0], "weights has nan for outcome 0"),
        (check_cost, np.zeros((2, 3)), r"cost has shape \(2, 3\); it must be square"),
        (check_cost, [[0, -1], [1, 0]], "cost is -1 from outcome 0 to 1; a cost is a finite number of at least 0"),
        (check_cost, [[0, INF], [1, 0]], "cost is inf from outcome 0 to 1"),
        (check_cost, [[0, 1], [1, 2]], "cost is 2 from outcome 1 to 1; staying costs 0"),
        (check_interval, [[0.1, 0.5], [0.2, 0.4]], "interval is 0.5 to 0.4 for outcome 1"),
        (check_interval, [[-0.1, 0.5], [0.2, 0.9]], "interval is -0.1 to 0.2 for outcome 0"),
        (check_interval, [[0.6, 0.5], [0.7, 0.9]], "lower bounds that sum to 1.1"),
        (check_interval, [[0.1, 0.1], [0.2, 0.2]], "upper bounds that sum to 0.4"),
    ],
)
def test_what_can_not_be_a_set(check: Callable[..., None], given: Any, words: str) -> None:
    with pytest.raises(DeeprokError, match=words):
        check(np.asarray(given, float))
    with pytest.raises(DeeprokError, match=r"^row 3 "):
        check(np.asarray(given, float), "row 3")


def test_what_can_be_a_set() -> None:
    check_weights(np.array([0.1, 3.0]))
    check_cost(np.array([[0.0, 1.0], [0.0, 0.0]]))
    check_interval(np.array([[0.1, 0.2], [0.8, 0.9]]))
    check_interval(np.array([[0.1, 0.9], [0.1, 0.9]]))
