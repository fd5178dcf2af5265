"""Gymnasium's tables: FrozenLake, Taxi and CliffWalking as models."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.tabular import from_gymnasium, solve
from deeprok.tabular.gymnasium import ACTIONS, is_id
from deeprok.tabular.problems import parse

SLIPPERY = "CliffWalking-v1:is_slippery=true"
RAINY = "Taxi-v4:is_rainy=true,rainy_probability=0.7"


def optimal(table: Any, discount: float, sweeps: int) -> np.ndarray:
    """The values [S] of value iteration over Gymnasium's own lists, in which an end is worth nothing."""
    values = np.zeros(len(table))
    for _ in range(sweeps):
        values = np.array(
            [
                max(sum(p * (r + discount * (not end) * values[t]) for p, t, r, end in table[s][a]) for a in table[s])
                for s in range(len(table))
            ]
        )
    return values


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("FrozenLake-v1", lambda: gymnasium.make("FrozenLake-v1")),
        ("FrozenLake-v1:map_name=8x8,success_rate=0.5", lambda: gymnasium.make("FrozenLake8x8-v1", success_rate=0.5)),
        ("Taxi-v4", lambda: gymnasium.make("Taxi-v4")),
        pytest.param(
            RAINY,
            lambda: gymnasium.make("Taxi-v4", is_rainy=True, rainy_probability=0.7),
            marks=pytest.mark.slow,
        ),
        ("CliffWalking-v1", lambda: gymnasium.make("CliffWalking-v1")),
        (SLIPPERY, lambda: gymnasium.make("CliffWalking-v1", is_slippery=True)),
    ],
    ids=["lake", "large lake", "taxi", "rainy taxi", "cliff", "slippery cliff"],
)
def test_values_are_those_of_value_iteration_on_gymnasiums_table(text: str, make: Any) -> None:
    with make() as env:
        table = env.unwrapped.P
    found = parse(text)
    solved = solve(found.model, objective="nominal", discount=0.9, tol=1e-9)
    np.testing.assert_allclose(solved.values[: len(table)], optimal(table, 0.9, 300), atol=1e-8)
    np.testing.assert_allclose(solved.values[len(table) :], 0.0, atol=1e-8)
    assert len(found.names.states) == len(set(found.names.states)) == found.model.states
    assert len(found.names.actions) == found.model.actions == len(table[0])


def test_frozen_lake_has_its_known_values() -> None:
    """Walked for ever, the best policy on the 4 × 4 lake reaches the goal with probability 14/17."""
    found = parse("FrozenLake-v1")
    assert (found.model.states, found.model.actions) == (16, 4)
    for_ever = solve(found.model, objective="nominal", discount=1.0, horizon=3000)
    assert for_ever.values[0, 0] == pytest.approx(14 / 17, abs=1e-9)
    assert solve(found.model, objective="nominal", discount=0.99).values[0] == pytest.approx(0.5420259, abs=1e-7)
    names = [found.names.actions[a] for a in solve(found.model, objective="nominal", discount=0.99).policy]
    assert names[:4] == ["left", "up", "up", "up"]
    assert (names[13], names[14]) == ("right", "down")


def test_a_lake_that_is_not_slippery_is_a_shortest_path() -> None:
    model = parse("FrozenLake-v1:is_slippery=false").model
    assert solve(model, objective="nominal", discount=0.9).values[0] == pytest.approx(0.9**5, abs=1e-8)  # six steps


def test_the_cliff_is_thirteen_steps_long() -> None:
    values = solve(parse("CliffWalking-v1").model, objective="nominal", discount=0.95).values
    assert values[36] == pytest.approx(-(1 - 0.95**13) / 0.05, abs=1e-7)


def test_a_taxi_drives_waits_for_no_one_and_ends() -> None:
    """Taxi at (0, 0), passenger there too, destination green (0, 4) behind no wall from row 2 on."""
    found = parse("Taxi-v4")
    with gymnasium.make("Taxi-v4") as env:
        start = env.unwrapped.encode(0, 0, 0, 1)
    values = solve(found.model, objective="nominal", discount=1.0, horizon=100).values[0]
    # One to pick up, eight to drive (two down, four across, two up), then 20 for the drop.
    assert values[start] == pytest.approx(20 - 9)
    assert found.model.states == 504
    assert [*found.names.states[500:]] == ["end 0", "end 1", "end 2", "end 3"]


def table_env(table: Any) -> Any:
    return SimpleNamespace(unwrapped=SimpleNamespace(P=table), spec=None)


def test_nature_can_tell_an_end_that_was_earned_from_one_that_was_not() -> None:
    """A coin decides between two ends, of which one pays 1; an l1 radius of 0.2 moves 0.1 from it to the other."""
    coin = [(0.5, 1, 1.0, True), (0.5, 2, 0.0, True)]
    model = from_gymnasium(table_env({0: {0: coin}, 1: {0: [(1.0, 0, 5.0, False)]}, 2: {0: [(1.0, 2, 0.0, True)]}}))
    # The state 1 goes on if a table is followed that knows no ends, so that its end is another state.
    np.testing.assert_allclose(model.dense()[0][0, 0], [0.0, 0.0, 0.5, 0.5])
    assert solve(model, "l1", 0.0, discount=0.9).values[0] == pytest.approx(0.5, abs=1e-7)
    assert solve(model, "l1", 0.2, discount=0.9).values[0] == pytest.approx(0.4, abs=1e-7)
    assert solve(model, "l1", 0.2, discount=0.9).values[1] == pytest.approx(5 + 0.9 * 0.4, abs=1e-7)


def test_tables_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "FrozenLake-v1:success_rate=0.5", "--set", "l1", "--radius", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = parse("FrozenLake-v1:success_rate=0.5").model
    np.testing.assert_allclose(found["values"], solve(model, "l1", 0.1, discount=0.99).values, atol=1e-7)
    assert found["discount"] == 0.99
    assert main(["problems"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ACTIONS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CartPole-v1", "CartPole-v1 has no table of transitions (env.unwrapped.P); those that have: FrozenLake-v1"),
        ("Nope-v1", "Nope-v1 can't be made by Gymnasium: Environment `Nope` doesn't exist"),
        ("Taxi-v3", "Taxi-v3 can't be made by Gymnasium: Environment version v3 for `Taxi` is deprecated"),
        ("FrozenLake-v1:map_name=9x9", "FrozenLake-v1 can't be made by Gymnasium: it does not know '9x9'"),
        ("FrozenLake-v1:ice=3", "FrozenLake-v1 can't be made by Gymnasium: FrozenLakeEnv"),
        ("FrozenLake-v1:ice", "'ice' in 'FrozenLake-v1:ice' is not a parameter; write FrozenLake-v1:name=value,…"),
        ("Taxi-v4:is_rainy=1,is_rainy=0", "is_rainy is given twice"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", text]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"deeprok: {said}")
    assert error.count("\n") == 1


def test_a_table_of_another_form_is_refused() -> None:
    env = SimpleNamespace(unwrapped=SimpleNamespace(P={0: {0: [(1.0, 0)]}}), spec=None)
    with pytest.raises(
        DeeprokError, match=r"the table of transitions has .* it must have lists of \(probability, succ"
    ):
        from_gymnasium(env)


def test_gymnasium_need_not_be_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert main(["solve", "FrozenLake-v1"]) == 2
    assert capsys.readouterr().err == (
        "deeprok: FrozenLake-v1 is an environment of Gymnasium, which is missing: pip install gymnasium\n"
    )
    assert main(["problems"]) == 0
    assert len(parse("forest").names.states) == 3


@pytest.mark.parametrize(
    ("name", "known"), [("Taxi-v4", True), ("garnet", False), ("model.csv", False), ("a-v1b", False)]
)
def test_ids(name: str, known: bool) -> None:
    assert is_id(name) == known
