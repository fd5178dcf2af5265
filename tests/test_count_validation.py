"""The size of sets by validation: halves of a log, and what is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeprok.core.errors import DeeprokError
from deeprok.tabular import Counts, count_transitions, from_counts, solve, validate_counts
from deeprok.tabular.validation import split_counts


def risky(samples: int, safe: int, seed: int) -> Counts:
    """Action 0 pays 0.5 for sure. Seven others pay 1 and fail every other time: few samples make some look safe."""
    rng = np.random.default_rng(seed)
    state, action, successor, reward = [0] * safe, [0] * safe, [0] * safe, [0.5] * safe
    for a in range(1, 8):
        fails = (rng.random(samples) < 0.5).astype(int)
        state, action, successor = state + [0] * samples, action + [a] * samples, successor + fails.tolist()
        reward += [1.0] * samples
    ends = [1] * 8
    return count_transitions(
        state + ends, action + list(range(8)), successor + ends, reward + [0.0] * 8, count=[1] * len(state) + [50] * 8
    )


POSSIBLE = np.ones((2, 8, 2), bool)
POSSIBLE[1] = [0, 1]
POSSIBLE[0, 0] = [1, 0]
SETTING: dict[str, Any] = {"rewards": "state-action", "support": POSSIBLE}


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2), st.integers(0, 40)), min_size=2)


@given(rows.filter(lambda found: sum(row[3] for row in found) > 12), st.integers(0, 100))
def test_halves_are_halves(found: list[tuple[int, ...]], seed: int) -> None:
    s, a, t, n = map(np.array, zip(*found, strict=True))
    log = count_transitions(s, a, t, None, n, states=range(3), actions=range(2))
    left, right = split_counts(log, "rows", np.random.default_rng(seed))
    assert (left.count >= 0).all()
    assert (right.count >= 0).all()
    np.testing.assert_array_equal(left.count + right.count, log.count)
    apart = np.abs(left.visits().sum(-1) - right.visits().sum(-1))
    np.testing.assert_array_equal(apart, log.visits().sum(-1) % 2)  # each state and action is halved
    again, _ = split_counts(log, "rows", np.random.default_rng(seed))
    np.testing.assert_array_equal(left.count, again.count)


def test_episodes_stay_together() -> None:
    rng = np.random.default_rng(0)
    episode = rng.integers(0, 9, 100)
    log = count_transitions(rng.integers(0, 3, 100), [0] * 100, rng.integers(0, 3, 100), episode=episode)
    left, right = split_counts(log, "episodes", rng)
    taken = {int(e) for e in episode[left.count > 0]}
    assert len(taken) == 4
    assert taken.isdisjoint(episode[right.count > 0].tolist())
    assert left.count.sum() + right.count.sum() == 100
    assert any({int(e) for e in episode[split_counts(log, "episodes", rng)[0].count > 0]} != taken for _ in range(5))


def test_huge_counts_are_split_too() -> None:
    log = count_transitions([0, 0], [0, 0], [0, 1], None, [10**12, 3 * 10**11])
    left, _ = split_counts(log, "rows", np.random.default_rng(0))
    np.testing.assert_array_equal(left.count, [5 * 10**11, 15 * 10**10])


def test_held_out_values_are_those_of_the_other_halfs_frequencies() -> None:
    """By numpy: the policy of one half in the empirical model of the other, which has all pairs here."""
    log = risky(20, 20, 1)
    found = validate_counts(log, [0.0, 0.3], splits=1, by="rows", discount=0.8, method="vi", split_seed=5, **SETTING)
    halves = split_counts(log, "rows", np.random.default_rng(5))
    expected = np.zeros((2, 2))
    for i, (train, test) in enumerate((halves, halves[::-1])):
        model, visits = from_counts(train, **SETTING), test.visits()
        p = visits / visits.sum(-1, keepdims=True)
        for j, factor in enumerate((0.0, 0.3)):
            scaled = model.scaled(factor)
            np.testing.assert_allclose(scaled.radius, factor * model.radius)
            assert scaled.confidence is None  # there is none to speak of
            policy = solve(scaled.problem, "l1", scaled.radius, 0.8, method="vi").policy
            reward = 0.5 if policy[0] == 0 else 1.0
            # The second state pays nothing; the mean is over both.
            expected[i, j] = 0.5 * reward / (1 - 0.8 * p[0, policy[0], 0])
    np.testing.assert_allclose(found.values, expected.mean(0), rtol=1e-5)


def test_a_radius_is_chosen_that_does_better_than_none() -> None:
    """The nominal policy takes what looks best by luck; the held-out half shows that it was luck."""
    gained, truly, chosen = [], [], []
    for seed in range(6):
        log = risky(6, 60, seed)
        found = validate_counts(log, [0.0, 0.1, 0.4], splits=3, discount=0.8, method="vi", **SETTING)
        gained.append(found.values.max() - found.values[0])
        chosen.append(found.chosen)
        model = from_counts(log, **SETTING)
        taken = [
            solve(x.problem, "l1", x.radius, 0.8).policy[0] for x in (model.scaled(found.chosen), model.scaled(0.0))
        ]
        worth = [0.5 / (1 - 0.8) if action == 0 else 1 / (1 - 0.8 * 0.5) for action in taken]
        truly.append(worth[0] - worth[1])
        assert found.held_out.shape == (3, 3)
        np.testing.assert_allclose(found.deviations, found.held_out.std(0, ddof=1))
    assert np.mean(gained) > 0.05
    assert np.mean(truly) > 0
    assert min(truly) >= 0
    assert np.median(chosen) > 0


def test_the_largest_of_equal_factors_is_chosen_and_seeds_repeat() -> None:
    log = count_transitions([0, 1], [0, 0], [1, 0], [1.0, 0.0], [9, 9])
    heard: list[tuple[int, float]] = []
    setting: dict[str, Any] = {"discount": 0.5, "support": "seen", "method": "vi"}
    found = validate_counts(log, [0.0, 0.5], 2, advance=lambda *x: heard.append(x), **setting)
    np.testing.assert_allclose(found.values, np.mean([1 / 0.75, 0.5 / 0.75]), rtol=1e-5)
    assert found.chosen == 0.5
    assert sum(work for _, work in heard) == pytest.approx(1)
    assert heard[-1][0] == 1
    assert validate_counts(log, [0.0, 0.5], 1, **setting).deviations.tolist() == [0, 0]
    one, same, other = (
        validate_counts(risky(6, 60, 0), [0.0, 0.1], 2, discount=0.8, method="vi", split_seed=seed, **SETTING).held_out
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"factors": []}, r"factors is \[\]; give a list of finite numbers of at least 0"),
        ({"factors": [-0.1, 1.0]}, r"factors is \[-0.1, 1.0\]"),
        ({"splits": 0}, "splits is 0; it must be at least 1"),
        ({"by": "days"}, "unknown by 'days'"),
        ({"by": "episodes"}, "by is 'episodes', but the log has no column episode"),
        ({"confidence": 2.0}, "confidence is 2"),
    ],
)
def test_bad_settings_get_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        validate_counts(risky(2, 2, 0), **(SETTING | arguments))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (count_transitions([0], [0], [0], [0.0], [1]), "the log is too short to be split"),
        (count_transitions([0, 0], [0, 0], [0, 0], [0.0, 0.0], episode=[3, 3]), "one episode only; split it by rows"),
    ],
)
def test_short_logs_get_one_sentence(log: Counts, said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        validate_counts(log, splits=3)
