from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeprok.core.errors import DeeprokError
from deeprok.tabular import (
    RMDP,
    from_arrays,
    from_models,
    from_samples,
    from_successors,
    from_transitions,
    radii,
    read_csv,
    write_csv,
)
from deeprok.tabular.files import COLUMNS
from deeprok.tabular.layout import lay_out
from deeprok.uncertainty import likelihood_ratio, weissman

HEADER = ",".join(COLUMNS)
FIELDS = ("start", "successor", "probability", "reward")


def random_arrays(seed: int, S: int = 5, A: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities with many zeros, rewards by successor, and which actions there are."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(S), (S, A)) * (rng.random((S, A, S)) < 0.5)
    p[..., 0] += 0.1
    valid = rng.random((S, A)) < 0.7
    valid[:, 0] |= ~valid.any(1)
    return p / p.sum(-1, keepdims=True), rng.normal(size=(S, A, S)), valid


def same(one: RMDP, other: RMDP) -> None:
    assert (one.states, one.actions) == (other.states, other.actions)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_arrays_come_back() -> None:
    p, r, valid = random_arrays(0)
    model = from_arrays(p, r, valid)
    dense, reward = model.dense()
    np.testing.assert_allclose(dense, p * valid[:, :, None], atol=1e-15)
    np.testing.assert_array_equal(reward, r * valid[:, :, None])
    np.testing.assert_array_equal(model.valid, valid)
    assert model.successor.dtype == np.int32


@pytest.mark.parametrize("by", ["state", "action"])
def test_rewards_by_state_or_action_are_spread(by: str) -> None:
    p, r, _ = random_arrays(1)
    given = r[:, 0, 0] if by == "state" else r[:, :, 0]
    model = from_arrays(p, given)
    assert (model.probability > 0).all()  # nothing is listed that can't happen
    dense, reward = model.dense()
    np.testing.assert_allclose(dense, p, atol=1e-15)
    full = np.broadcast_to(given[:, None, None] if by == "state" else given[:, :, None], p.shape)
    np.testing.assert_array_equal(reward, np.where(p > 0, full, 0))


def test_successors_and_transitions_agree_with_arrays() -> None:
    p, r, valid = random_arrays(2)
    expected = from_arrays(p, r[:, :, 0], valid)
    order = np.argsort(-p, axis=-1, kind="stable")  # successors first, then padding
    padded = from_successors(order, np.take_along_axis(p, order, -1), r[:, :, 0], valid)
    same(padded, expected)
    s, a, t = np.nonzero(p * valid[:, :, None])
    shuffled = np.random.default_rng(0).permutation(len(s))
    s, a, t = s[shuffled], a[shuffled], t[shuffled]
    same(from_transitions(s, a, t, p[s, a, t], r[s, a, 0]), expected)


def test_equal_transitions_are_joined() -> None:
    model = from_transitions([0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1], [0.2, 0.5, 0.3, 1.0], [1.0, 7.0, 2.0, 0.0])
    np.testing.assert_array_equal(model.successor, [0, 1, 1])
    np.testing.assert_allclose(model.probability, [0.5, 0.5, 1.0])
    np.testing.assert_allclose(model.reward, [7.0, (0.2 * 1 + 0.3 * 2) / 0.5, 0.0])


def test_samples_are_counted() -> None:
    rng = np.random.default_rng(0)
    s, a, t = rng.integers(0, 4, 500), rng.integers(0, 2, 500), rng.integers(0, 4, 500)
    keep = ~((s == 2) & (a == 1))
    s, a, t = s[keep], a[keep], t[keep]
    r = rng.normal(size=len(s))
    model = from_samples(s, a, t, r, unseen_reward=0.0, unseen_actions="leave_out")
    assert model.counts is not None
    counts = np.zeros((4, 2, 4))
    total = np.zeros((4, 2, 4))
    for i in range(len(s)):
        counts[s[i], a[i], t[i]] += 1
        total[s[i], a[i], t[i]] += r[i]
    np.testing.assert_array_equal(model.counts, counts.sum(-1))
    assert not model.valid[2, 1]
    assert model.valid.sum() == 7
    dense, reward = model.dense()
    np.testing.assert_allclose(dense, counts / np.maximum(counts.sum(-1, keepdims=True), 1), atol=1e-12)
    np.testing.assert_allclose(reward, total / np.maximum(counts, 1), atol=1e-12)


SEEN = ([0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 1])


def test_successors_that_were_not_seen_are_there_too() -> None:
    every = from_samples(*SEEN, [1.0, 1.0, 2.0, 0.0], unseen_actions="leave_out")
    assert every.support == "all"
    assert len(every.reward) == 4  # rewards don't depend on the successor: nothing needs to be listed
    known = from_samples(*SEEN, [1.0, 3.0, 2.0, 0.0], unseen_reward=-5.0, unseen_actions="leave_out")
    assert known.support == "listed"
    p, r = known.dense()
    np.testing.assert_allclose(p, [[[0.5, 0.5], [1, 0]], [[0, 1], [0, 0]]])
    np.testing.assert_allclose(r, [[[1, 3], [2, -5]], [[-5, 0], [0, 0]]])
    assert len(known.reward) == 6
    by_action = from_samples(*SEEN, [1.0, 3.0, 2.0, 0.0], np.array([[9, 8], [7, 6]]), unseen_actions="leave_out")
    np.testing.assert_allclose(by_action.dense()[1], [[[1, 3], [2, 8]], [[7, 0], [0, 0]]])
    # A terminal state stays where it is.
    possible = np.array([[True, True], [False, True]])
    ruled = from_samples(*SEEN, [1.0, 1.0, 2.0, 0.0], possible=possible, unseen_actions="leave_out")
    assert ruled.support == "listed"
    np.testing.assert_array_equal(ruled.successor, [0, 1, 0, 1, 1])
    np.testing.assert_allclose(ruled.reward, [1, 1, 2, 2, 0])
    assert from_arrays(P, R).support == "nominal"


def test_radii_hold_all_rows_at_once() -> None:
    """What is missing to the confidence is shared by the rows that leave a doubt, over all outcomes there may be."""
    rows = [0] * 30 + [1] * 20 + [2] * 10
    model = from_samples(rows, [0] * 60, rows, [0.0] * 60)
    expected = weissman(np.array([[[30, 0, 0]], [[20, 0, 0]], [[10, 0, 0]]]), 1 - 0.1 / 3)
    np.testing.assert_allclose(radii(model, 0.9), expected)
    possible = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1]], bool)
    ruled = from_samples(rows, [0] * 60, rows, [0.0] * 60, possible=possible)
    expected = [[weissman([30, 0], 0.95)], [weissman([20, 0, 0], 0.95)], [0.0]]
    np.testing.assert_allclose(radii(ruled, 0.9), expected)
    np.testing.assert_allclose(radii(ruled, 0.9, "likelihood_ratio")[1, 0], likelihood_ratio([20, 0, 0], 0.95))


def test_models_are_joined_on_all_their_successors() -> None:
    ps = [random_arrays(seed)[0] for seed in (3, 4, 5)]
    reward = random_arrays(3)[1][:, :, 0]
    model = from_models([from_arrays(p, reward) for p in ps])
    assert model.models is not None
    index = (*np.divmod(model.row, model.actions), model.successor)
    for k, p in enumerate(ps):
        np.testing.assert_allclose(model.models[k], p[index], atol=1e-15)
        assert p.sum() == pytest.approx(model.models[k].sum())  # nothing is left out
    np.testing.assert_allclose(model.dense()[0], np.mean(ps, axis=0), atol=1e-15)


def test_csv_comes_back_bit_for_bit(tmp_path: Path) -> None:
    p, r, valid = random_arrays(6)
    model = from_arrays(p, r, valid)
    write_csv(model, tmp_path / "model.csv")
    assert (tmp_path / "model.csv").read_text().startswith(HEADER + "\n0,")
    same(read_csv(tmp_path / "model.csv"), model)


def test_csv_takes_any_order_of_columns_and_lines(tmp_path: Path) -> None:
    file = tmp_path / "model.csv"
    file.write_text(
        "reward,idaction,probability,idstateto,idstatefrom\r\n\r\n2,0,1,0,1\r\n\r\n1,0,.25,1,0\r\n0,0,.75,0,0\r\n"
    )
    same(read_csv(file), from_transitions([0, 0, 1], [0, 0, 0], [0, 1, 0], [0.75, 0.25, 1], [0, 1, 2]))


def test_rounded_rows_are_scaled(tmp_path: Path) -> None:
    file = tmp_path / "model.csv"
    lines = [f"{s},0,{t},0.333333,1" for s in range(3) for t in range(3)]
    file.write_text("\n".join([HEADER, *lines]))
    np.testing.assert_array_equal(read_csv(file).probability, 1 / 3)


GOOD = ["0,0,0,0.5,1", "0,0,1,0.5,2", "0,1,1,1,0", "1,0,0,1,0"]
BAD_FILES: list[tuple[str, list[str], str]] = [
    ("sum", ["0,0,0,0.5,1", "0,0,1,0.4,2", *GOOD[2:]], r"line 2: the probabilities of \(s, a\) = \(0, 0\) sum to 0.9;"),
    ("sum in any order", [*GOOD[2:], "0,0,1,.6,2", "0,0,0,.5,1"], r"line 5: .*\(0, 0\) sum to 1.1;"),
    ("negative", ["0,0,0,1.5,1", "0,0,1,-0.5,2", *GOOD[2:]], r"line 2: \(s, a\) = \(0, 0\).* probability 1.5;"),
    ("negative too", [*GOOD[:3], "1,0,0,1.1,0", "1,0,1,-0.1,0"], r"line 5: \(s, a\) = \(1, 0\).*1.1;"),
    ("nan probability", [*GOOD[:3], "1,0,0,nan,0"], r"line 5: \(s, a\) = \(1, 0\).* probability nan;"),
    ("nan reward", [*GOOD[:3], "1,0,0,1,nan"], r"line 5: \(s, a\) = \(1, 0\) has the reward nan.*finite"),
    ("infinite reward", ["", GOOD[0], "0,0,1,0.5,inf", *GOOD[2:]], r"line 4: \(s, a\) = \(0, 0\) has the reward inf"),
    ("gap of states", [*GOOD, "3,0,0,1,0"], "state 2 has no transitions though ids go up to 3; .*without gaps"),
    ("successor without row", [*GOOD[:3], "1,0,2,1,0"], "state 2 has no transitions.*a terminal state moves to itself"),
    ("gap of actions", [*GOOD, "1,3,0,1,0"], "action 2 has no transitions though ids go up to 3"),
    ("negative id", ["-1,0,0,1,0", *GOOD], r"line 2: \(s, a\) = \(-1, 0\).*count from 0"),
    ("no id", [*GOOD, "1.5,0,0,1,0"], "line 6: idstatefrom is '1.5'; it must be a whole number"),
    ("no number", [*GOOD, "1,0,0,one,0"], "line 6: probability is 'one'; it must be a number"),
    (
        "long cell",
        [*GOOD, "1,0,0," + "9x" * 100_000 + ",0"],
        "line 6: probability is '(9x){26}9…(9x){13}'; it must be a number",
    ),
    ("quotes", [*GOOD, '1,0,0,"1,0'], "line 6: probability is '\"1'; it must be a number"),
    ("short line", [*GOOD, "1,0,0,1"], "line 6: there are 4 values; there must be 5"),
    ("long line", [*GOOD, "1,0,0,1,0,0"], "line 6: there are 6 values; there must be 5"),
    ("nothing", [], "has no transitions"),
]


@pytest.mark.parametrize(("lines", "said"), [x[1:] for x in BAD_FILES], ids=[x[0] for x in BAD_FILES])
def test_bad_files_get_one_sentence_with_the_line(lines: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "model.csv"
    file.write_text("\n".join([HEADER, *lines]) + "\n")
    with pytest.raises(DeeprokError, match=said) as error:
        read_csv(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (
            HEADER.replace(",reward", ""),
            "line 1: there is no column reward in the columns idstatefrom.*; needed are idstatefrom",
        ),
        (HEADER + ",idoutcome", "line 1: there is the column 'idoutcome' too many"),
        (HEADER + ",reward", "line 1: there is the column 'reward' too many"),
        (HEADER + "," + "x" * 1000, "line 1: there is the column 'x{53}…x{26}' too many in the columns .{80}; needed"),
    ],
)
def test_bad_headers(header: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "model.csv"
    file.write_text(header + "\n")
    with pytest.raises(DeeprokError, match=said):
        read_csv(file)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DeeprokError, match=r"can't read .*none.csv: No such file"):
        read_csv(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)))
    with pytest.raises(DeeprokError, match=r"can't read .*bytes.csv: it is not a text file"):
        read_csv(tmp_path / "bytes.csv")


P = np.array([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.3, 0.7]]])
R = np.zeros((2, 2))
BAD_ARRAYS: list[tuple[str, Callable[[], RMDP], str]] = [
    ("sum", lambda: from_arrays(P * [[[1, 1], [0.9, 1]], [[1, 1], [1, 1]]], R), r"\(s, a\) = \(0, 1\) sum to 0.9"),
    ("empty", lambda: from_arrays(P * [[[1], [0]], [[1], [1]]], R), r"\(s, a\) = \(0, 1\) sum to 0; .*valid"),
    (
        "negative",
        lambda: from_arrays(P + np.array([[[0, 0], [0, 0]], [[-0.1, 0.1], [0, 0]]]), R),
        r"\(1, 0\).*-0.1; prob",
    ),
    ("nan", lambda: from_arrays(P, R + np.array([[0, 0], [0, np.nan]])), r"\(1, 1\) has the reward nan"),
    ("shape", lambda: from_arrays(P[:, :1, :1], R), r"shape \(2, 1, 1\); it must be \[S, A, S\]"),
    ("reward", lambda: from_arrays(P, np.zeros(3)), "reward has the shape"),
    ("no action", lambda: from_arrays(P, R, [[True, True], [False, False]]), "state 1 no action"),
    ("valid", lambda: from_arrays(P, R, [True, False]), r"valid has the shape \(2,\)"),
    (
        "successor",
        lambda: from_successors([[[0, 2]], [[0, 0]]], [[[0.5, 0.5]], [[1, 0]]], 0 * R[:, :1]),
        "state 2; there are only",
    ),
    ("fraction", lambda: from_transitions([0.0], [0], [0], [1.0], [0.0]), "state holds numbers of the type float64"),
    ("lengths", lambda: from_transitions([0, 0], [0], [0], [1.0], [0.0]), "lists of one length"),
    ("samples", lambda: from_samples([0], [0], [1], [0.0]), "state 1 has no transitions"),
    ("sample", lambda: from_samples([0], [-1], [0], [0.0]), "count from 0"),
    ("no samples", lambda: from_samples(*np.zeros((3, 0), int), np.zeros(0)), "no transitions"),
    (
        "unseen action",
        lambda: from_samples(*SEEN, [0.0] * 4),
        r"\(s, a\) = \(1, 1\) and 0 others of 4 were never observed; unseen_",
    ),
    ("unseen actions", lambda: from_samples(*SEEN, [0.0] * 4, unseen_actions="drop"), "unknown unseen_actions 'drop'"),
    (
        "unseen reward",
        lambda: from_samples(*SEEN, [1.0, 3.0, 0.0, 0.0], unseen_actions="leave_out"),
        r"rewards of \(s, a\) = \(0, 0\) differ .*, and 2 possible successors .*; give unseen_reward, .* possible$",
    ),
    (
        "impossible",
        lambda: from_samples(*SEEN, [0.0] * 4, possible=np.eye(2), unseen_actions="leave_out"),
        r"possible is false for \(s, a\) = \(0, 0\) and its successor 1, which was observed",
    ),
    (
        "shape of possible",
        lambda: from_samples(*SEEN, [0.0] * 4, possible=np.eye(3), unseen_actions="leave_out"),
        "possible has the shape",
    ),
    (
        "no reward",
        lambda: from_samples(*SEEN, [0.0] * 4, unseen_reward=np.nan, unseen_actions="leave_out"),
        r"\(s, a\) = \(0, 1\) has the reward nan on the way to state 1",
    ),
    ("no models", lambda: from_models([]), "models is empty"),
    (
        "models",
        lambda: from_models([from_arrays(P, R), from_arrays(P[:, :1], R[:, :1])]),
        r"models\[1\] has other states",
    ),
    (
        "rewards",
        lambda: from_models([from_arrays(P, R), from_arrays(P, R + 1)]),
        r"models\[1\] has the reward 1 .*\(0, 0\)",
    ),
]


@pytest.mark.parametrize(("make", "said"), [x[1:] for x in BAD_ARRAYS], ids=[x[0] for x in BAD_ARRAYS])
def test_bad_arrays_get_one_sentence(make: Callable[[], RMDP], said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"confidence": 1.0}, "confidence is 1; it must lie between 0 and 1"),
        ({"confidence": 0.9, "rule": "wald"}, "unknown rule 'wald'"),
    ],
)
def test_bad_radii(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        radii(from_samples([0], [0], [0], [0.0]), **arguments)
    with pytest.raises(DeeprokError, match="the problem has no counts; make it with from_samples"):
        radii(from_arrays(P, R), 0.9)


def test_dense_models_are_read_as_others_are() -> None:
    """In order already, they are not sorted."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), (4, 3)).round(6)  # which does not quite sum to 1
    for reward in (rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 4))):
        s, a, t = np.indices(p.shape).reshape(3, -1)
        full = np.broadcast_to(reward[:, :, None] if reward.ndim == 2 else reward, p.shape)
        model = from_arrays(p, reward)
        same(model, from_transitions(s[::-1], a[::-1], t[::-1], p.reshape(-1)[::-1], full.reshape(-1)[::-1]))
        np.testing.assert_allclose(np.add.reduceat(model.probability, model.start[:-1]), 1.0, atol=1e-15)
        assert not np.shares_memory(model.probability, p)
        assert not np.shares_memory(model.reward, reward)


def test_large_files_are_read_at_once(tmp_path: Path) -> None:
    S = 50_000
    rng = np.random.default_rng(0)
    p = rng.random((S, 1, 1))
    model = from_successors(rng.integers(0, S, (S, 1, 2)), np.concatenate([p, 1 - p], 2), rng.random((S, 1)))
    write_csv(model, tmp_path / "large.csv")
    began = time.process_time()
    again = read_csv(tmp_path / "large.csv")
    assert time.process_time() - began < 2.0  # 0.15 s; a loop in Python would take longer by far
    same(again, model)


def test_one_long_row_does_not_pad_the_others(x64) -> None:
    S = 3000
    state = np.concatenate([np.arange(S), np.zeros(S, int), [7, 7]])
    action = np.concatenate([np.zeros(S, int), np.ones(S, int), [2, 2]])
    successor = np.concatenate([(np.arange(S) + 1) % S, np.arange(S), [3, 4]])
    probability = np.concatenate([np.ones(S), np.full(S, 1 / S), [0.5, 0.5]])
    model = from_transitions(state, action, successor, probability, 0.0)
    layout = lay_out(model, np.zeros((S, 3)), False, False, False)
    assert sum(block.successor.size for block in layout.blocks) < 5 * len(state)
    for block in layout.blocks:
        length = block.successor.shape[-1] if block.length is None else np.asarray(block.length)[..., None]
        real = np.broadcast_to(np.arange(block.successor.shape[-1]) < length, block.successor.shape)
        np.testing.assert_allclose(np.sum(np.asarray(block.probability) * real, -1), 1.0)
        np.testing.assert_array_equal(np.asarray(block.probability)[~real], 0.0)
    joined = np.concatenate([np.asarray(block.state).reshape(-1) for block in layout.blocks])
    np.testing.assert_array_equal(joined[np.asarray(layout.position)], np.arange(S))
