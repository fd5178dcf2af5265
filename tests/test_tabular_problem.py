from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deeprok.errors import DeeprokError
from deeprok.tabular import (
    RMDP,
    from_arrays,
    from_models,
    from_samples,
    from_successors,
    from_transitions,
    read_csv,
    write_csv,
)
from deeprok.tabular.problem import COLUMNS, lay_out

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
    model = from_samples(s, a, t, r)
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
    ("no models", lambda: from_models([]), "models is empty"),
    (
        "models",
        lambda: from_models([from_arrays(P, R), from_arrays(P[:, :1], R[:, :1])]),
        r"models\[1\] has not the states",
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
    layout = lay_out(model, np.zeros((S, 3)), False, False)
    assert sum(block.successor.size for block in layout.blocks) < 5 * len(state)
    for block in layout.blocks:
        length = block.successor.shape[-1] if block.length is None else np.asarray(block.length)[..., None]
        real = np.broadcast_to(np.arange(block.successor.shape[-1]) < length, block.successor.shape)
        np.testing.assert_allclose(np.sum(np.asarray(block.probability) * real, -1), 1.0)
        np.testing.assert_array_equal(np.asarray(block.probability)[~real], 0.0)
    joined = np.concatenate([np.asarray(block.state).reshape(-1) for block in layout.blocks])
    np.testing.assert_array_equal(joined[np.asarray(layout.position)], np.arange(S))
