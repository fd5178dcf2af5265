from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from deeprok.cli import streams
from deeprok.cli.main import main
from deeprok.tabular import evaluate, read_csv, write_csv
from deeprok.tabular.problems import PROBLEMS, make

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(streams, "out", Console(width=200))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(words: str, capsys: Captured) -> dict[str, Any]:
    assert main(["solve", *words.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(words: Sequence[str], capsys: Captured) -> str:
    """The sentence on standard error; nothing is printed besides."""
    assert main(["solve", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("deeprok: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("deeprok: ").strip()


# --- one radius ---------------------------------------------------------------------------------------


def test_json_has_the_solution(capsys: Captured) -> None:
    found = asked("forest --set l1 --radius 0.2", capsys)
    np.testing.assert_allclose(found["values"], [20.736, 23.616, 27.616], atol=1e-8)
    assert found["policy"] == [0, 0, 0]
    assert found["discount"] == 0.9  # the problem's own
    assert 0 <= found["residual"] <= found["error_bound"] <= 1e-8
    assert found["iterations"] > 0
    assert found["seconds"] > 0
    assert {"model", "set", "radius", "rect", "support", "objective", "horizon"} <= set(found)


def test_file_and_name_give_the_same(place: Path, capsys: Captured) -> None:
    write_csv(make("forest").model, place / "my forest.csv")
    assert main(["solve", "my forest.csv", "--radius", "0.2", "--discount", "0.9", "--json"]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert from_file["values"] == asked("forest --radius 0.2", capsys)["values"]
    assert main(["solve", "my forest.csv", "--objective", "nominal", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["discount"] == 0.99


def test_table_names_states_and_actions(capsys: Captured) -> None:
    assert main(["solve", "forest", "--radius", "0.2"]) == 0
    out = capsys.readouterr().out
    assert "3 states, 2 actions, 9 transitions · robust, l1 0.2 · discount 0.9" in out
    assert [line.split() for line in out.splitlines()[1:5]] == [
        ["state", "value", "action"],
        ["age", "0", "20.736", "wait"],
        ["age", "1", "23.616", "wait"],
        ["age", "2", "27.616", "wait"],
    ]
    assert "no value is farther than" in out


def test_shared_budget_prints_probabilities(capsys: Captured) -> None:
    words = "garnet:states=5,actions=3,branching=3 --radius 0.5 --rect s"
    assert main(["solve", *words.split()]) == 0
    out = capsys.readouterr().out
    assert "shared by the actions of a state" in out
    policy = np.array(asked(words, capsys)["policy"])
    assert policy.shape == (5, 3)
    np.testing.assert_allclose(policy.sum(1), 1)
    mixed = np.sort(policy[policy.max(1) < 0.9], axis=1)[:, ::-1]
    assert len(mixed)
    for most, next_most, _ in mixed:
        assert f" {most:.3f}, " in out
        assert f" {next_most:.3f}" in out


def test_long_tables_are_cut(capsys: Captured) -> None:
    assert main(["solve", "garnet:states=30,branching=3", "--objective", "nominal"]) == 0
    out = capsys.readouterr().out
    assert "… and 10 more; values from" in out
    assert len(out.splitlines()) == 1 + 1 + 20 + 1 + 1


def test_horizon(capsys: Captured) -> None:
    words = "inventory --objective nominal --discount 1 --horizon 3"
    found = asked(words, capsys)
    np.testing.assert_allclose(
        np.array(found["values"]) * 16, [[67, 129, 194, 227], [32, 100, 160, 168], [0, 80, 96, 80]]
    )
    assert found["policy"][0] == [3, 0, 0, 0]
    assert main(["solve", *words.split()]) == 0
    out = capsys.readouterr().out
    assert "3 decisions" in out
    assert "order 3" in out


def test_worst_model_is_written_and_has_the_values(place: Path, capsys: Captured) -> None:
    found = asked("forest --radius 0.2 --worst-model worst.csv", capsys)
    worst = read_csv(place / "worst.csv")
    np.testing.assert_allclose(worst.dense()[0][0, 0], [0.2, 0.8, 0.0], atol=1e-12)
    judged = evaluate(worst, np.array(found["policy"]), objective="nominal", discount=0.9)
    np.testing.assert_allclose(judged.values, found["values"], atol=1e-7)
    assert [path.name for path in place.iterdir()] == ["worst.csv"]


# --- sweeps -------------------------------------------------------------------------------------------


def test_sweep_shows_price_and_protection(place: Path, capsys: Captured) -> None:
    # With more fires it is better to cut at once.
    model = "forest:old=2,cut=1.9"
    found = asked(f"{model} --radius 0:1:6", capsys)
    assert list(place.iterdir()) == []  # no plot unless asked for
    radius, value, price, protection = (np.array(found[x]) for x in ("radius", "value", "price", "protection"))
    np.testing.assert_allclose(radius, np.linspace(0, 1, 6))
    assert (np.diff(value) <= 1e-9).all()
    assert price[0] == protection[0] == 0
    assert (price >= 0).all()
    assert price[-1] > 0
    assert protection[-1] > 0
    np.testing.assert_allclose(value - found["unprotected"], protection)
    np.testing.assert_allclose(found["nominal"] - np.array(found["nominal_value"]), price)
    alone = asked(f"{model} --radius 0.6", capsys)
    assert value[3] == pytest.approx(alone["values"][0], abs=1e-7)
    nominal = asked(f"{model} --objective nominal", capsys)
    assert found["nominal"] == pytest.approx(nominal["values"][0], abs=1e-7)


def test_sweep_prints_and_plots(place: Path, capsys: Captured) -> None:
    assert main(["solve", "forest", "--radius", "0:1:3", "--state", "2"]) == 0
    out = capsys.readouterr().out
    assert "values of state 2 (age 2)" in out
    assert [line.split()[0] for line in out.splitlines()[3:6]] == ["0", "0.5", "1"]
    assert "plot: sweep-forest.png" in out
    picture = matplotlib.image.imread(place / "sweep-forest.png")
    assert min(picture.shape[:2]) > 300
    assert picture.std() > 0.05
    assert main(["solve", "forest", "--radius", "0:1:3", "--objective", "optimistic", "--plot", "best.png"]) == 0
    assert "price" not in capsys.readouterr().out
    assert sorted(path.name for path in place.iterdir()) == ["best.png", "sweep-forest.png"]


def test_sweep_with_a_horizon_judges_policies_stage_by_stage(capsys: Captured) -> None:
    found = asked("inventory --discount 1 --horizon 3 --radius 0:0.4:2", capsys)
    assert found["nominal"] == pytest.approx(67 / 16)
    assert found["nominal_value"][0] == pytest.approx(67 / 16)
    assert found["unprotected"][0] == pytest.approx(67 / 16)
    # Ordering nothing earns nothing whatever nature does.
    assert (found["value"][1], found["nominal_value"][1], found["price"][1]) == pytest.approx((0, 0, 67 / 16))


# --- bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("frest --radius 0.1", "unknown problem 'frest': did you mean 'forest'? known are"),
        ("forest:fire=2 --radius 0.1", "forest: fire is 2; it must lie between 0 and 1"),
        ("missing.csv --radius 0.1", "can't read missing.csv: No such file or directory"),
        ("forest", "radius is not given; the set l1 needs one"),
        ("forest --radius x", "radius is 'x'; it must be a finite number, or LOW:HIGH:COUNT"),
        ("forest --radius inf", "radius is 'inf'; it must be a finite number, or LOW:HIGH:COUNT"),
        ("forest --radius 0:1", "radius is '0:1'; it must be a finite number, or LOW:HIGH:COUNT"),
        ("forest --radius 1:0:3", "radius is '1:0:3'; it must be a finite number, or LOW:HIGH:COUNT"),
        ("forest --radius 0:1:1", "radius is '0:1:1'; it must be"),
        ("forest --radius=-1", "radius is -1"),
        ("forest --radius=-1:1:3", "radius is -1"),
        ("forest --radius 0:1:3 --set cvar", "radius is 0"),
        ("forest --radius 0:1:3 --set l9", "unknown set 'l9'"),
        ("forest --radius 0:1:3 --set minimum", "radius is '0:1:3', but the set minimum has no radius"),
        ("forest --radius 0:1:3 --objective nominal", "radius is '0:1:3', but objective is nominal"),
        ("forest --radius 0.1 --discount 1", "discount is 1; it must be above 0 and below 1, as there is no horizon"),
        ("forest --radius 0.1 --discount 1.5", "discount is 1.5; it must be above 0 and below 1"),
        ("forest --radius 0.1 --horizon 0", "horizon is 0; it must be a whole number of at least 1"),
        ("forest --radius 0.1 --tol 0", "tol is 0; it must be above 0"),
        ("forest --radius 0.1 --state 3", "state is 3; there are the states 0 to 2"),
        ("forest --set finite", "set is 'finite', but the problem has no models"),
        ("forest --radius 0.1 --rect s --set cvar", "rect is 's' and set 'cvar'"),
        ("forest --radius 0.1 --plot a.png", "--plot draws a sweep"),
        ("forest --radius 0:1:3 --plot a.txt", "--plot is a.txt; it must be a .png file"),
        ("forest --radius 0:1:3 --plot no/a.png", "--plot is no/a.png, but there is no folder no"),
        ("forest --radius 0:1:3 --worst-model a.csv", "--worst-model writes one model, but --radius gives more"),
        ("forest --radius 1 --horizon 2 --worst-model a.csv", "--worst-model writes one model, but with a horizon"),
        ("forest --radius 0.1 --worst-model no/a.csv", "--worst-model is no/a.csv, but there is no folder no"),
    ],
)
def test_bad_options_are_one_sentence(words: str, sentence: str, place: Path, capsys: Captured) -> None:
    assert refused(words.split(), capsys).startswith(sentence)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("0,0,0,0.5,1\n", "model.csv, line 2: the probabilities of (s, a) = (0, 0) sum to 0.5; they must sum to 1"),
        ("0,0,0,1,1\n0,1,0,-1,1\n", "model.csv, line 3: (s, a) = (0, 1) goes to state 0 with probability -1"),
        ("0,0,0,1,nan\n", "model.csv, line 2: (s, a) = (0, 0) has the reward nan"),
        ("0,0,0,1,1\n2,0,0,1,1\n", "state 1 has no transitions though ids go up to 2"),
        ("0,0,0,one,1\n", "model.csv, line 2: probability is 'one'; it must be a number"),
    ],
)
def test_bad_files_are_named_with_their_line(body: str, sentence: str, place: Path, capsys: Captured) -> None:
    (place / "model.csv").write_text("idstatefrom,idaction,idstateto,probability,reward\n" + body)
    assert refused(["model.csv", "--radius", "0.1"], capsys).startswith(sentence)


def test_the_model_is_never_written_over(place: Path, capsys: Captured) -> None:
    write_csv(make("forest").model, place / "m.csv")
    before = (place / "m.csv").read_bytes()
    words = ["m.csv", "--radius", "0.2", "--worst-model", "./m.csv"]
    assert refused(words, capsys).endswith("the model itself; give another file")
    assert (place / "m.csv").read_bytes() == before


# --- problems -----------------------------------------------------------------------------------------


def test_problems_are_listed_with_their_parameters(capsys: Captured) -> None:
    assert main(["problems"]) == 0
    out = capsys.readouterr().out
    for name, problem in PROBLEMS.items():
        assert f"{name}: {problem.summary}" in out
        for field, parameter in problem.parameters.items():
            assert f"{field} " in out
            assert parameter.meaning in out
    assert main(["problems", "now"]) == 2


# --- what a page shows --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", "--rect s", "--horizon 4", "--objective optimistic"])
def test_moves_of_nature_explain_the_values(place: Path, capsys: Captured, options: str) -> None:
    """Under nature's model the value of a state is its reward and the values of its successors; within the l1 ball."""
    found = asked(f"river_swim --radius 0.3 --state 2 {options} --out river.json", capsys)
    written = json.loads((place / "river.json").read_text())
    assert "worst" not in found  # what --json prints is what it was
    assert (written["radius"], written["state"]) == (0.3, 2)
    _, reward = make("river_swim").model.dense()
    nominal, _ = make("river_swim").model.dense()
    staged = "--horizon" in options
    values = np.array(found["values"][0] if staged else found["values"])
    after = np.array(found["values"][1]) if staged else values
    policy = np.array(found["policy"][0] if staged else found["policy"])
    weights = policy if policy.ndim == 2 else np.eye(2)[policy]
    assert written["value"] == pytest.approx(values[2])
    ((radius, moves),) = [(each["radius"], each["moves"]) for each in written["nature"]]
    assert radius == 0.3
    assert [one["state"] for one in moves] == [0, 1, 2, 3, 4, 5]
    shifted = 0.0
    for one in moves:
        state, successors, worst = one["state"], one["successors"], np.array(one["worst"])
        np.testing.assert_allclose(one["nominal"], (weights[state] @ nominal[state])[successors], atol=1e-12)
        assert worst.sum() == pytest.approx(1.0)
        paid = (weights[state] @ reward[state])[successors]  # the same for all successors of an action in this problem
        assert worst @ paid + 0.95 * worst @ after[successors] == pytest.approx(values[state], rel=1e-6, abs=1e-6)
        assert np.abs(worst - one["nominal"]).sum() <= 0.3 + 1e-9
        shifted = max(shifted, np.abs(worst - one["nominal"]).sum())
    assert shifted == pytest.approx(0.3)


def test_moves_of_a_sweep(place: Path, capsys: Captured) -> None:
    found = asked("river_swim --radius 0:0.4:3 --out sweep.json", capsys)
    written = json.loads((place / "sweep.json").read_text())
    assert {name: written[name] for name in found if name != "seconds"} == {
        name: value for name, value in found.items() if name != "seconds"
    }
    assert written["command"] == "deeprok solve river_swim --radius 0:0.4:3 --out sweep.json --json"
    for radius, value, each in zip(found["radius"], found["value"], written["nature"], strict=True):
        assert each["radius"] == radius
        assert each["moves"][0]["value"] == pytest.approx(value)
        moved = [np.abs(np.subtract(one["worst"], one["nominal"])).sum() for one in each["moves"]]
        assert max(moved) == pytest.approx(radius, abs=1e-9)


def test_moves_of_a_large_model_are_those_of_one_state(place: Path, capsys: Captured) -> None:
    asked("garnet:states=200 --radius 0.1 --support all --state 7 --out garnet.json", capsys)
    (each,) = json.loads((place / "garnet.json").read_text())["nature"]
    assert [one["state"] for one in each["moves"]] == [7]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("forest --radius 0.1 --out no/file.json", "--out is no/file.json, but there is no folder no"),
        ("--counts log.csv --out file.json", "--out is given with --counts; it is for the radii of a model"),
    ],
)
def test_mistakes_in_out(capsys: Captured, words: str, sentence: str) -> None:
    assert sentence in refused(words.split(), capsys)
