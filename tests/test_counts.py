"""Logs and the models and sets that are made of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeprok.core.errors import DeeprokError
from deeprok.tabular import Possible, count_transitions, from_counts, read_counts, read_support, solve_counts
from deeprok.uncertainty import anytime_l1, anytime_likelihood
from deeprok.uncertainty.radii import anytime_mean

# --- logs ---------------------------------------------------------------------------------------------


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_log_is_read_with_its_names(tmp_path: Path) -> None:
    text = """\ufeffstate, action ,next_state,reward,count,episode
worn,run,broken,-1,2,b
new,run,worn,1.5,30,a
new,"run",new,1.5,0,a

worn,repair,new,-0.5,7,b
"""
    log = read_counts(written(tmp_path / "log.csv", text))
    assert log.states == ("broken", "new", "worn")
    assert log.actions == ("repair", "run")
    np.testing.assert_array_equal(log.state, [2, 1, 1, 2])
    np.testing.assert_array_equal(log.action, [1, 1, 1, 0])
    np.testing.assert_array_equal(log.successor, [0, 2, 1, 1])
    np.testing.assert_array_equal(log.count, [2, 30, 0, 7])
    assert log.reward is not None
    np.testing.assert_array_equal(log.reward, [-1, 1.5, 1.5, -0.5])
    assert log.episode is not None
    np.testing.assert_array_equal(log.episode, [1, 0, 0, 1])
    np.testing.assert_allclose(log.starts(), [0, 0.5, 0.5])
    assert log.visits()[1, 1, 2] == 30
    assert log.visits().sum() == 39
    assert log.listed().sum() == 4


def test_whole_numbers_are_sorted_by_size_and_text_by_letters(tmp_path: Path) -> None:
    log = read_counts(written(tmp_path / "a.csv", "state,action,next_state\n10,0,9\n9,0,-2\n"))
    assert log.states == (-2, 9, 10)
    assert log.reward is None
    np.testing.assert_array_equal(log.count, [1, 1])
    assert read_counts(written(tmp_path / "b.csv", "state,action,next_state\n10,0,x\n9,0,9\n")).states == (
        "10",
        "9",
        "x",
    )
    assert read_counts(written(tmp_path / "c.csv", "state,action,next_state\n01,0,1\n")).states == ("01", "1")
    np.testing.assert_allclose(log.starts(), [0, 0.5, 0.5])


rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b b", "3", "ä,;"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["a", "b b", "3"]),
        st.integers(0, 10**6),
        st.floats(-1e6, 1e6),
    ),
    min_size=1,
    max_size=12,
).filter(lambda found: any(row[3] for row in found))


@given(rows)
def test_a_file_is_what_arrays_are(tmp_path_factory: pytest.TempPathFactory, found: list[tuple[Any, ...]]) -> None:
    lines = [f'"{s}",{a},"{t}",{n},{r!r}' for s, a, t, n, r in found]
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    log = read_counts(written(path, "\n".join(["state,action,next_state,count,reward", *lines])))
    s, a, t, n, r = zip(*found, strict=True)
    same = count_transitions(s, a, t, r, n)
    assert (log.states, log.actions) == (same.states, same.actions)
    for field in ("state", "action", "successor", "count", "reward"):
        np.testing.assert_array_equal(getattr(log, field), getattr(same, field))
    assert [str(log.states[i]) for i in log.state] == list(s)
    assert [str(log.actions[i]) for i in log.action] == list(a)


HEADER = "state,action,next_state,reward,count\n"
BAD_LOGS = {
    "empty file": ("", "log.csv, line 1: there is no column state in an empty first line; needed are state, action"),
    "no rows": (HEADER + "\n \n", "log.csv has no transitions"),
    "missing column": ("state,next_state\n0,0\n", "log.csv, line 1: there is no column action in the columns state,"),
    "unknown column": ("state,action,next_state,time\n", "log.csv, line 1: there is the column 'time' too many"),
    "column twice": ("state,action,next_state,state\n", "log.csv, line 1: there is the column 'state' twice"),
    "values missing": (HEADER + "0,0,0,1,1\n0,0,1\n", "log.csv, line 3: there are 3 values; there must be 5"),
    "no name": (HEADER + "0,0,0,1,1\n\n0, ,1,1,1\n", "log.csv, line 4: action is empty"),
    "reward": (HEADER + "0,0,0,one,1\n", "log.csv, line 2: reward is 'one'; it must be a number"),
    "no reward": (HEADER + "0,0,0,,1\n", "log.csv, line 2: reward is ''; it must be a number"),
    "reward nan": (HEADER + "0,0,0,1,1\n0,0,0,nan,1\n", "log.csv, line 3: reward is nan; it must be a finite number"),
    "reward inf": (HEADER + "0,0,0,-inf,1\n", "log.csv, line 2: reward is -inf; it must be a finite number"),
    "negative count": (HEADER + "0,0,0,1,-1\n", "log.csv, line 2: count is -1; it must be a whole number"),
    "count nan": (HEADER + "0,0,0,1,nan\n", "log.csv, line 2: count is nan; it must be a whole number of at least 0"),
    "part of a count": (HEADER + "0,0,0,1,1.5\n", "log.csv, line 2: count is 1.5; it must be a whole number"),
    "endless count": (HEADER + "0,0,0,1,1e300\n", "log.csv, line 2: count is 1e+300; it must be a whole number"),
    "nothing seen": (HEADER + "0,0,0,1,0\n", "no transition was seen; count is 0 in every row"),
    "no text": (b"\xff\xfe\x00", "can't read log.csv: it is not a text file"),
    "no file": (None, "can't read log.csv: No such file or directory"),
}


@pytest.mark.parametrize(("text", "said"), BAD_LOGS.values(), ids=BAD_LOGS)
def test_bad_logs_get_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("log.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DeeprokError) as error:
        read_counts("log.csv")
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"state": [0, 1]}, r"the columns have the shapes state \(2,\), action \(1,\)"),
        ({"state": [], "action": [], "successor": []}, "there are no transitions"),
        ({"state": [0.5]}, "state holds float64; names are whole numbers or text"),
        ({"count": [np.nan]}, "count is nan"),
        ({"states": [1, 2]}, "unknown state '0': .*known are 1, 2"),
        ({"actions": ["go"]}, "unknown action '0': .*known are go"),
    ],
)
def test_bad_arrays_get_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        count_transitions(**({"state": [0], "action": [0], "successor": [0]} | arguments))


# --- what is possible, and what it pays ---------------------------------------------------------------


SUPPORT = "state,action,next_state,reward\n"


def test_support_file_says_what_is_possible(tmp_path: Path) -> None:
    log = count_transitions(["a", "a", "b"], ["x", "y", "x"], ["b", "a", "end"], [1, 2, 3])
    found = read_support(written(tmp_path / "s.csv", SUPPORT + "end,,end,0\na,x,b,\na,x,end,-5\n"), log)
    expected = np.ones((3, 2, 3), bool)  # of other pairs nothing is said
    expected[2] = [0, 0, 1]
    expected[0, 0] = [0, 1, 1]
    np.testing.assert_array_equal(found.possible, expected)
    known = np.argwhere(~np.isnan(found.reward)).tolist()
    assert known == [[0, 0, 2], [2, 0, 2], [2, 1, 2]]
    assert found.reward[0, 0, 2] == -5
    assert read_support(written(tmp_path / "t.csv", "state,action,next_state\na,x,b\n"), log).possible.sum() == 16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SUPPORT + "a,x,b,\nd,x,b,\n", "s.csv, line 3: unknown state 'd': "),
        (SUPPORT + "a,x,bb,\n", "s.csv, line 2: unknown state 'bb': did you mean 'b'? known are a, b"),
        (SUPPORT + "a,z,b,\n", "s.csv, line 2: unknown action 'z': "),
        (SUPPORT + ",x,b,\n", "s.csv, line 2: unknown state ''"),
        (SUPPORT + "a,x,b,nan\n", "s.csv, line 2: reward is nan; it must be a finite number, or empty"),
        (SUPPORT, "s.csv has no transitions"),
        ("state,action\n", "s.csv, line 1: there is no column next_state"),
        ("state,action,next_state,count\n", "s.csv, line 1: there is the column 'count' too many"),
    ],
)
def test_bad_support_files_get_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("s.csv"), text)
    with pytest.raises(DeeprokError) as error:
        read_support("s.csv", count_transitions(["a", "b"], ["x", "y"], ["b", "a"]))
    assert str(error.value).startswith(said)


def test_model_of_counts() -> None:
    """Frequencies where there are data; elsewhere anything, of the least reward."""
    log = count_transitions(
        [0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1], [1.0, 3.0, 1.0, 2.0], [3, 2, 5, 4], actions=[0, 1]
    )
    model = from_counts(log, 0.9, reward_low=-7.0)
    p, r = model.nominal.dense()
    np.testing.assert_allclose(p, [[[0.8, 0.2], [0.5, 0.5]], [[0, 1], [0.5, 0.5]]])
    np.testing.assert_allclose(r, [[[1, 3], [-7, -7]], [[-7, 2], [-7, -7]]])
    np.testing.assert_array_equal(model.visits, [[10, 0], [4, 0]])
    level = 1 - 0.1 / 4  # pairs without data count: which ones are visited is random
    np.testing.assert_allclose(model.radius, [[anytime_l1([8, 2], level), 2], [anytime_l1([4, 0], level), 2]])
    assert model.without_data.tolist() == [[0, 1], [1, 1]]
    assert model.left_out.size == 0
    assert (model.set, model.rule, model.assumes) == ("l1", "anytime_l1", "")
    likely = from_counts(log, 0.9, "likelihood", reward_low=-7.0)
    expected = [[anytime_likelihood([8, 2], level), np.inf], [anytime_likelihood([0, 4], level), np.inf]]
    np.testing.assert_allclose(likely.radius, expected)
    assert likely.set == "burg"
    assert (
        from_counts(log, 0.9, "likelihood", "likelihood_ratio", reward_low=0).assumes == "there are very many samples"
    )


def test_rewards_of_what_was_not_seen() -> None:
    """In this order: rows of count 0 and the support's, what the others pay, the lower bound."""
    log = count_transitions(
        [0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 2], [1.0, 1.0, 5.0, 6.0], [1, 1, 1, 0], actions=[0, 1]
    )
    with pytest.raises(
        DeeprokError, match=r"reward of \(s, a\) = \(0, 0\) on the way to 2 is not known, as that was never"
    ):
        from_counts(log)
    by_low = from_counts(log, reward_low=-1.0).problem.dense()[1]
    np.testing.assert_allclose(by_low[:, 0], [[1, 1, -1], [5, -1, 6], [-1, -1, -1]])
    # By state and action: 2 has no data at all, so something must be known of it.
    with pytest.raises(DeeprokError, match=r"reward of \(s, a\) = \(2, 0\) on the way to 0 is not known"):
        from_counts(dataclasses.replace(log, reward=np.array([1.0, 1.0, 5.0, 5.0])), rewards="state-action")
    possible, reward = np.ones((3, 2, 3), bool), np.full((3, 2, 3), np.nan)
    possible[2], reward[2] = [0, 0, 1], 0.0
    ends = Possible(possible, reward)
    model = from_counts(
        dataclasses.replace(log, reward=np.array([1.0, 1.0, 5.0, 5.0])), rewards="state-action", support=ends
    )
    np.testing.assert_allclose(
        model.problem.dense()[1], [[[1, 1, 1], [0, 0, 0]], [[5, 5, 5], [0, 0, 0]], np.zeros((2, 3))]
    )
    assert model.left_out.tolist() == [[0, 1], [1, 1]]  # the policy does without them
    assert model.without_data.tolist() == []  # the end is known to be one
    np.testing.assert_array_equal(model.radius[2], 0)
    assert set(solve_counts(model, 0.9).policy[:2]) == {0}


def test_noisy_rewards_need_bounds_and_become_lower_ones() -> None:
    log = count_transitions([0] * 40, [0] * 40, [0] * 40, [0.0, 1.0] * 20)
    with pytest.raises(
        DeeprokError, match=r"rewards of \(s, a\) = \(0, 0\) on the way to 0 differ, one is 0 and their mean 0.5"
    ):
        from_counts(log)
    model = from_counts(log, 0.9, reward_low=-1.0, reward_high=2.0)
    assert model.nominal.reward.tolist() == [0.5]
    np.testing.assert_allclose(model.problem.reward, 0.5 - 3 * anytime_mean(40, 1 - 0.05))
    np.testing.assert_allclose(model.scaled(0.5).problem.reward, 0.5 - 1.5 * anytime_mean(40, 1 - 0.05))
    two = count_transitions([0, 0, 1], [0] * 3, [0, 1, 1], [0.0, 1.0, 0.0], [30, 30, 5])
    np.testing.assert_allclose(from_counts(two, 0.9, reward_low=0.0).radius[0, 0], anytime_l1([30, 30], 1 - 0.1 / 2))
    pooled = from_counts(
        two, 0.9, rewards="state-action", reward_low=0.0, reward_high=1.0
    )  # so the first pair is noisy
    np.testing.assert_allclose(pooled.radius[0, 0], anytime_l1([30, 30], 1 - 0.05 / 2))
    np.testing.assert_allclose(pooled.problem.dense()[1][0, 0], 0.5 - anytime_mean(60, 1 - 0.05 / 2))


def test_lower_bounds_of_noisy_rewards_hold() -> None:
    rng = np.random.default_rng(5)
    held = []
    for _ in range(200):
        log = count_transitions(
            [0] * 60, [0] * 30 + [1] * 30, [0] * 60, np.repeat([0.2, 0.6], 30) + 0.4 * rng.random(60)
        )
        model = from_counts(log, 0.8, reward_low=0.0, reward_high=1.0)
        held.append((model.problem.reward <= [0.4, 0.8]).all())
        assert (model.problem.reward > [0.0, 0.3]).all()
    assert np.mean(held) >= 0.8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"confidence": 0.0}, "confidence is 0; it must lie between 0 and 1"),
        ({"confidence": 1.0}, "confidence is 1; it must lie between 0 and 1"),
        ({"confidence": np.nan}, "confidence is nan; "),
        ({"set": "l7"}, "unknown set 'l7': .*known are bayes, kl, l1, likelihood, linf"),
        ({"rule": "wald"}, "unknown rule 'wald'"),
        (
            {"rule": "likelihood_ratio"},
            "rule is 'likelihood_ratio', which is not for the set l1; .* anytime_l1, weissman",
        ),
        ({"set": "bayes", "rule": "weissman"}, "rule is 'weissman', but set is 'bayes'"),
        ({"support": "some"}, "unknown support 'some'"),
        ({"support": np.ones((3, 3))}, r"support has the shape \(3, 1, 3\), which does not fit \(2, 2, 2\)"),
        ({"support": np.eye(2)}, r"support does not have the successor 1 of \(s, a\) = \(0, 0\), which the log shows"),
        ({"support": np.array([[1, 1], [0, 0]])}, r"support gives \(s, a\) = \(1, 0\) no successor"),
        ({"rewards": "state"}, "unknown rewards 'state'"),
        ({"reward_low": np.inf}, "reward_low is inf; it must be a finite number"),
        ({"reward_low": 1.0, "reward_high": 0.5}, "reward_low is 1, above reward_high, 0.5"),
        ({"reward_low": 0.5}, "reward_low is 0.5, but the log has a reward of 0, which is below it"),
        ({"reward_high": 0.5}, "reward_high is 0.5, but the log has a reward of 1, which is above it"),
        ({"set": "bayes", "prior": 0.0}, "prior is 0; it must be a finite number above 0"),
        ({"set": "bayes", "shape": "round"}, "unknown shape 'round'"),
        ({"set": "bayes", "confidence": 0.99999999}, "confidence is 1; for a credible set.* it must be at most 0.9999"),
        ({"set": "kl"}, r"set is 'kl', which gives no mass to successors.*\(0, 1\) may go to 1, and there are 1 such"),
    ],
)
def test_bad_settings_get_one_sentence(arguments: dict[str, Any], said: str) -> None:
    log = count_transitions([0, 0, 0, 1, 1], [0, 0, 1, 0, 0], [0, 1, 0, 0, 1], [0.0, 1.0, 1.0, 0.0, 0.0])
    with pytest.raises(DeeprokError, match=said):
        from_counts(log, **({"reward_low": 0.0} | arguments))


def test_too_large_a_table_is_refused() -> None:
    with pytest.raises(DeeprokError, match="4,000 states and 4 actions have 64,000,000 transitions"):
        from_counts(count_transitions([0], [0], [0], [0.0], states=range(4000), actions=range(4)))
