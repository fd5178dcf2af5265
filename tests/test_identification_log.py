"""Reading logs: the three kinds of file, both forms of next observations, and a sentence for each mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeprok.core.errors import DeeprokError
from deeprok.environments.cartpole import cartpole
from deeprok.environments.pendulum import pendulum
from deeprok.identification.log import Log, read_log

CARTPOLE = cartpole()
LENGTHS = (3, 1, 5)  # steps


def columns(following: bool = True, lengths: tuple[int, ...] = LENGTHS) -> dict[str, np.ndarray]:
    """A log of the Cart-Pole with random numbers, and an action of 1 in every step whose t is odd."""
    table: dict[str, list[float]] = {"episode": [], "t": [], "action": []}
    table |= {f"{kind}_{i}": [] for kind in (("obs", "next_obs") if following else ("obs",)) for i in range(4)}
    draws = np.random.default_rng(0)
    for episode, length in enumerate(lengths):
        seen = draws.normal(size=(length + 1, 4))
        for t in range(length if following else length + 1):
            table["episode"].append(episode + 7)
            table["t"].append(t)
            table["action"].append(t % 2)
            for i in range(4):
                table[f"obs_{i}"].append(seen[t, i])
                if following:
                    table[f"next_obs_{i}"].append(seen[t + 1, i])
    return {name: np.array(column) for name, column in table.items()}


def write(table: dict[str, Any], path: Path) -> Path:
    if path.suffix == ".csv":
        pd.DataFrame(table).to_csv(path, index=False, float_format="%.17g")
    elif path.suffix == ".npz":
        np.savez(path, **table)
    else:
        pd.DataFrame(table).to_parquet(path)
    return path


def same(one: Log, other: Log) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
@pytest.mark.parametrize("following", [True, False])
def test_every_kind_of_file_holds_the_same_log(tmp_path: Path, kind: str, following: bool) -> None:
    found = read_log(write(columns(following), tmp_path / f"log.{kind}"), CARTPOLE)
    assert found.length.tolist() == list(LENGTHS)
    assert found.steps == sum(LENGTHS)
    assert found.obs.shape == (3, 6, 4)
    draws = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        assert np.array_equal(found.obs[episode, : length + 1], draws.normal(size=(length + 1, 4)))
        assert found.action[episode, :length].tolist() == [t % 2 for t in range(length)]
    assert not found.obs[1, 2:].any()  # beyond the end


def test_a_data_frame_is_a_log() -> None:
    assert same(read_log(pd.DataFrame(columns()), CARTPOLE), read_log(columns(), CARTPOLE))


@given(st.permutations(range(sum(LENGTHS))))
def test_the_order_of_rows_does_not_matter(order: list[int]) -> None:
    mixed = {name: column[order] for name, column in columns().items()}
    assert same(read_log(mixed, CARTPOLE), read_log(columns(), CARTPOLE))


def test_an_episode_of_one_row_without_a_next_observation_is_no_step() -> None:
    found = read_log(columns(False, (2, 0, 3)), CARTPOLE)
    assert found.length.tolist() == [2, 3]


@pytest.mark.parametrize("name", ["action", "action_0"])
def test_actions_that_are_numbers(name: str) -> None:
    table = {"episode": [0, 0], "t": [0, 1], name: [-1.0, 0.25], **{f"obs_{i}": [0.1, 0.2] for i in range(3)}}
    found = read_log(table, pendulum())
    assert found.action.tolist() == [[[-1.0]]]
    with pytest.raises(DeeprokError, match=rf"^data, row 1: {name} is -2; in pendulum it must be between -1 and 1$"):
        read_log({**table, name: [-2.0, 0.0]}, pendulum())


def put(name: str, row: int, value: float) -> Any:
    """A mistake: a value in a row, counted from 1."""

    def change(table: dict[str, np.ndarray]) -> None:
        table[name] = table[name].astype(float)
        table[name][row - 1] = value

    return change


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda table: table.pop("obs_2"), "data has no column obs_2; a log of cartpole has episode, t, obs_0, .*"),
        (lambda table: table.pop("action"), "data has no column action; a log of cartpole has .*"),
        (lambda table: table.pop("next_obs_3"), "data has no column next_obs_3; .*"),
        (lambda table: table.update(obs_4=table["t"]), "data has a column obs_4 too many; .*"),
        (put("obs_1", 4, np.nan), "data, row 4: obs_1 is nan; it must be a finite number"),
        (put("next_obs_1", 9, np.inf), "data, row 9: next_obs_1 is inf; it must be a finite number"),
        (put("action", 2, 2), "data, row 2: action is 2; in cartpole it must be a whole number from 0 to 1"),
        (put("action", 2, 0.5), "data, row 2: action is 0.5; in cartpole it must be a whole number from 0 to 1"),
        (put("t", 3, 5), "data, row 3: t is 5 after 1 in episode 7; it must go up by 1, .*"),
        (put("t", 3, 1), "data, row 3: t is 1 after 1 in episode 7; it must go up by 1, .*"),
        (put("t", 3, 1.5), "data, row 3: t is 1.5; it must be a whole number"),
        (put("episode", 1, 0.5), "data, row 1: episode is 0.5; it must be a whole number"),
        (put("next_obs_0", 1, 9), "data, row 1: next_obs_0 is 9, but obs_0 of the next step, in row 2, is .*"),
        (lambda table: table.update(obs_0=np.zeros(3)), "data: the column obs_0 has 3 rows, but episode has 9"),
        (lambda table: table.update(obs_0=np.zeros((9, 2))), "data: the column 'obs_0' has shape .*"),
        (lambda table: table.update(obs_0=["x"] * 9), "data, row 1: obs_0 is 'x'; it must be a number"),
        (lambda table: table.clear(), "data has no rows; a log has one row a step"),
    ],
)
def test_each_mistake_is_a_sentence(mistake: Any, sentence: str) -> None:
    table = columns()
    mistake(table)
    with pytest.raises(DeeprokError, match=f"^{sentence}$"):
        read_log(table, CARTPOLE)


def test_too_few_rows() -> None:
    with pytest.raises(DeeprokError, match=r"^data has 2 rows and no step: without next_obs_0, .*"):
        read_log(columns(False, (0, 0)), CARTPOLE)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("log.txt", b"", "data is '.*log.txt'; it must be a file that ends with .csv, .npz or .parquet"),
        ("log.csv", None, "can't read .*log.csv: No such file or directory"),
        ("log.csv", b"", ".*log.csv has no rows; .*"),
        ("log.csv", b"episode,t,obs_0\n", ".*log.csv has no rows; .*"),
        ("log.csv", b"\xff\xfe\x00", "can't read .*log.csv: it is not a text file"),
        ("log.csv", b"t,t\n1,2\n", ".*log.csv has the column 't' twice"),
        ("log.csv", b"t,obs_0\n1,2\n1\n", ".*log.csv, row 2: there are 1 values for 2 columns"),
        ("log.csv", b"t,obs_0\n1,2\n1,abc\n", ".*log.csv, row 2: obs_0 is 'abc'; it must be a number"),
        ("log.npz", b"no archive", "can't read .*log.npz: it is not an .npz file of numbers"),
        ("log.parquet", b"no parquet", "can't read .*log.parquet: it is not a parquet file"),
    ],
)
def test_files_that_are_no_logs(tmp_path: Path, name: str, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DeeprokError, match=f"^{sentence}$"):
        read_log(tmp_path / name, CARTPOLE)


def test_an_empty_cell_is_named(tmp_path: Path) -> None:
    path = write(columns(), tmp_path / "log.csv")
    lines = path.read_text().splitlines()
    lines[3] = re.sub(",[^,]*$", ",", lines[3])
    path.write_text("\n".join(lines))
    with pytest.raises(DeeprokError, match=r"log.csv, row 3: next_obs_3 is nan; it must be a finite number$"):
        read_log(path, CARTPOLE)
