"""Levels from counts: closed forms, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr
from scipy.stats import chi2

from deeprok.core.errors import DeeprokError
from deeprok.uncertainty import (
    RULES,
    SETS,
    anytime_l1,
    anytime_likelihood,
    anytime_linf,
    entrywise,
    hoeffding,
    likelihood_ratio,
    weissman,
)
from deeprok.uncertainty.radii import anytime_mean

every_rule = pytest.mark.parametrize("name", RULES)


@pytest.mark.parametrize(
    ("rule", "counts", "confidence", "level"),
    [
        (weissman, [50, 30, 20], 0.95, math.sqrt(2 / 100 * math.log(6 / 0.05))),
        (weissman, [500, 500], 0.9, math.sqrt(2 / 1000 * math.log(2 / 0.1))),
        (weissman, [7], 0.9, 0.0),  # one outcome is certain
        (weissman, [1, 1, 0], 0.95, 2.0),  # the bound says less than that all distributions are within 2
        (weissman, [0, 0, 0], 0.95, 2.0),
        (weissman, np.full(2000, 100), 0.95, math.sqrt(2 / 200_000 * (2000 * math.log(2) - math.log(0.05)))),
        (hoeffding, [50, 30, 20], 0.95, math.sqrt(2 / 100 * math.log(8 / 0.05))),
        (hoeffding, [0, 0], 0.5, 2.0),
        (entrywise, [50, 30, 20], 0.95, math.sqrt(math.log(6 / 0.05) / 200)),
        (entrywise, [50, 50], 0.95, math.sqrt(math.log(2 / 0.05) / 200)),  # both probabilities deviate alike
        (entrywise, [1, 0, 0], 0.95, 1.0),
        (entrywise, [0, 0], 0.95, 1.0),
        (entrywise, [7], 0.95, 0.0),
        (anytime_l1, [50, 30, 20], 0.95, math.sqrt(1.01 / 100 * (math.log(101) + 2 * math.log(3 / 0.05)))),
        (anytime_l1, [500, 500], 0.9, math.sqrt(1.001 / 1000 * (math.log(1001) + 2 * math.log(1 / 0.1)))),
        (anytime_l1, [1, 1, 0], 0.95, 2.0),
        (anytime_l1, [0, 0, 0], 0.95, 2.0),
        (anytime_l1, [7], 0.95, 0.0),
        (anytime_linf, [50, 30, 20], 0.95, 0.5 * math.sqrt(1.01 / 100 * (math.log(101) + 2 * math.log(3 / 0.05)))),
        (anytime_linf, [500, 500], 0.9, 0.5 * math.sqrt(1.001 / 1000 * (math.log(1001) + 2 * math.log(1 / 0.1)))),
        (anytime_linf, [0, 0], 0.95, 1.0),
        # The mean likelihood of two equal tosses is ½ · ¾, of two different ones ½ · ¼; the largest are 1 and ¼.
        (anytime_likelihood, [2, 0], 0.95, math.log(1 / 0.05 / (3 / 8)) / 2),
        (anytime_likelihood, [1, 1], 0.95, math.log(0.25 / 0.05 / (1 / 8)) / 2),
        (anytime_likelihood, [2, 0, 0], 0.95, math.log(1 / 0.05 / (1 / 3 * 1.5 / 2.5)) / 2),
        (anytime_likelihood, [0, 0], 0.95, math.inf),
        (anytime_likelihood, [7], 0.95, 0.0),
        (likelihood_ratio, [5, 5], 0.95, 3.841458820694124 / 20),
        (likelihood_ratio, [50, 30, 20], 1 - math.exp(-3), 6.0 / 200),  # with 2 degrees of freedom −2 log(1 − c)
        (likelihood_ratio, [0, 0], 0.95, math.inf),
        (likelihood_ratio, [7], 0.95, 0.0),
    ],
)
def test_known_levels(rule, counts, confidence: float, level: float) -> None:
    found = rule(np.asarray(counts), confidence)
    assert found.shape == ()
    np.testing.assert_allclose(found, level, rtol=1e-12)


@every_rule
def test_rows_are_independent(name: str) -> None:
    counts = np.random.default_rng(0).integers(0, 20, (3, 4, 6))
    counts[1, 2] = 0
    levels = RULES[name].level(counts, 0.9)
    assert levels.shape == (3, 4)
    for at in np.ndindex(3, 4):
        assert levels[at] == RULES[name].level(counts[at], 0.9)


@every_rule
@given(
    total=st.integers(1, 10**6), more=st.integers(1, 10**6), size=st.integers(2, 50), confidence=st.floats(0.01, 0.99)
)
def test_levels_shrink_with_data_and_grow_with_confidence(
    name: str, total: int, more: int, size: int, confidence: float
) -> None:
    rule = RULES[name].level

    def counts(n: int) -> np.ndarray:
        return np.array([n] + [0] * (size - 1))

    level = rule(counts(total), confidence)
    assert level > 0
    assert rule(counts(total + more), confidence) <= level
    assert rule(counts(total), confidence + 0.005) >= level
    assert rule(counts(total), confidence, outcomes=size + 1) >= level
    assert rule(counts(total), confidence, outcomes=size) == level
    np.testing.assert_allclose(
        rule(np.append(counts(total), 0), confidence), rule(counts(total), confidence, outcomes=size + 1), rtol=1e-9
    )
    if name == "weissman":
        assert level <= hoeffding(counts(total), confidence) <= 2


DISTANCES = {
    "l1": lambda q, p: np.abs(q - p).sum(axis=-1),
    "linf": lambda q, p: np.abs(q - p).max(axis=-1),
    "kl": lambda q, p: rel_entr(p, q).sum(axis=-1),  # of the truth from the data, the centre
    "burg": lambda q, p: rel_entr(q, p).sum(axis=-1),
}


@pytest.mark.parametrize(("name", "family"), [(name, s) for name, rule in RULES.items() for s in rule.sets])
@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_the_truth_lies_within(name: str, family: str, confidence: float) -> None:
    assert family in SETS
    rng = np.random.default_rng(1)
    p = np.array([0.35, 0.25, 0.2, 0.2])
    counts = rng.multinomial(600, p, size=20_000)
    held = np.mean(DISTANCES[family](counts / 600, p) <= RULES[name].level(counts, confidence))
    if name == "likelihood_ratio":  # as often as is asked, in the limit
        assert abs(held - confidence) < 0.02
    else:  # at least as often; the bounds of L1 are far from tight
        assert held >= confidence


SEQUENCES = np.random.default_rng(3).random((1000, 1000))


def ever_outside(name: str, family: str, p: list[float], delta: float) -> float:
    """How often the truth is outside of the set at some time between 1 and 1000 samples."""
    outcome = (SEQUENCES[..., None] > np.cumsum(p)[:-1]).sum(-1)
    counts = np.cumsum(np.eye(len(p))[outcome], axis=1)
    n = counts.sum(-1, keepdims=True)
    return float(np.mean((DISTANCES[family](counts / n, np.array(p)) > RULES[name].level(counts, 1 - delta)).any(1)))


@pytest.mark.parametrize(
    ("name", "family"), [("anytime_l1", "l1"), ("anytime_linf", "linf"), ("anytime_likelihood", "burg")]
)
@pytest.mark.parametrize("p", [[0.5, 0.5], [0.98, 0.02], [0.6, 0.3, 0.1]])
def test_anytime_rules_hold_whenever_one_stops(name: str, family: str, p: list[float]) -> None:
    assert RULES[name].assumes == ""
    assert ever_outside(name, family, p, 0.3) <= 0.3


def test_other_rules_do_not() -> None:
    """Who goes on until the truth is outside succeeds more often than one time in ten."""
    assert ever_outside("weissman", "l1", [0.5, 0.5], 0.1) > 0.1
    assert ever_outside("entrywise", "linf", [0.5, 0.5], 0.1) > 0.1
    assert ever_outside("likelihood_ratio", "burg", [0.5, 0.5], 0.1) > 0.5
    assert "" not in {RULES[name].assumes for name in ("weissman", "entrywise", "likelihood_ratio", "hoeffding")}


def test_a_mean_of_bounded_numbers_is_near_its_expectation_at_any_time() -> None:
    n = np.arange(1, 1001)
    mean = np.cumsum(SEQUENCES**2, axis=1) / n
    outside = np.abs(mean - 1 / 3) > anytime_mean(n, 0.9)
    assert outside.any(1).mean() <= 0.1
    assert anytime_mean(0, 0.9) == 1.0
    coin = np.cumsum(SEQUENCES < 0.5, axis=1) / n  # the numbers that vary most
    assert 0 < (np.abs(coin - 0.5) > anytime_mean(n, 0.5)).any(1).mean() <= 0.5


def test_two_outcomes_are_where_weissman_is_tightest() -> None:
    """One sign is left: |q₁ − p₁| by Hoeffding, which for a fair coin and 1 − c = 0.1 holds 98.6 % of the time."""
    counts = np.random.default_rng(2).multinomial(10_000, [0.5, 0.5], size=50_000)
    held = np.mean(np.abs(counts / 10_000 - 0.5).sum(axis=1) <= weissman(counts, 0.9))
    expected = chi2.cdf(2 * math.log(20), 1)  # the normal limit: 4 n (q₁ − ½)² is χ²
    assert abs(held - expected) < 0.005


@every_rule
@pytest.mark.parametrize(
    ("counts", "confidence", "outcomes", "words"),
    [
        ([1, -1], 0.9, None, r"counts have -1 at \(1,\); a count is a finite number of at least 0"),
        ([[1, 2], [math.nan, 1]], 0.9, None, r"counts have nan at \(1, 0\)"),
        ([], 0.9, None, r"counts have shape \(0,\)"),
        (3, 0.9, None, r"counts have shape \(\)"),
        ([1, 2], 1.0, None, "confidence is 1; it must lie between 0 and 1"),
        ([1, 2], 0.0, None, "confidence is 0; "),
        ([1, 2], math.nan, None, "confidence is nan; "),
        ([1, 2], 0.9, 1, "outcomes is 1; it must be at least 2"),
    ],
)
def test_refusals(name: str, counts, confidence: float, outcomes: int | None, words: str) -> None:
    with pytest.raises(DeeprokError, match=words):
        RULES[name].level(counts, confidence, outcomes)
