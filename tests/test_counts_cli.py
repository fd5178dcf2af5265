"""`deeprok solve --counts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deeprok.cli import streams
from deeprok.cli.main import main
from deeprok.tabular import evaluate, from_counts, read_counts, read_csv, solve_counts

Captured = pytest.CaptureFixture[str]

LOG = """state,action,next_state,reward,count
up,slow,up,0.5,5
up,fast,up,1,5
down,slow,down,0,5
"""
SUPPORT = "state,action,next_state,reward\ndown,,down,0\n"
EPISODES = "state,action,next_state,reward,episode\n" + "".join(
    f"up,fast,up,1,{i}\nup,fast,{'down' if i % 3 == 0 else 'up'},1,{i}\ndown,slow,up,0,{i}\n" for i in range(12)
)
BASE = "--counts log.csv --discount 0.9 --method vi"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(streams, "out", Console(width=200))
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(LOG)
    Path("support.csv").write_text(SUPPORT)
    Path("episodes.csv").write_text(EPISODES)
    return tmp_path


def asked(words: str, capsys: Captured) -> dict[str, Any]:
    assert main(["solve", *words.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_guarantee(capsys: Captured) -> None:
    found = asked(f"{BASE} --rewards state-action", capsys)
    expected = solve_counts(from_counts(read_counts("log.csv"), rewards="state-action"), 0.9)
    np.testing.assert_allclose(found["values"], expected.values, atol=1e-7)
    assert 1 < found["values"][1] < 2  # not 10, as if nothing could happen that was not seen
    assert (found["states"], found["actions"]) == (["down", "up"], ["fast", "slow"])
    assert found["policy"] == [1, 0]
    np.testing.assert_allclose(found["nominal_values"], [0, 10], atol=1e-6)
    np.testing.assert_allclose(found["robust_in_nominal"], [0, 10], atol=1e-6)
    np.testing.assert_allclose(np.array(found["nominal_values"]) - found["values"], found["cost"])
    assert found["visits"] == [[0, 5], [5, 5]]
    assert found["never_taken"] == [["down", "fast"]]
    assert found["without_data"] == []
    assert found["guaranteed"] is True
    assert (found["confidence"], found["set"], found["rule"], found["assumes"]) == (0.95, "l1", "anytime_l1", "")
    assert "validation" not in found
    assert "prior" not in found
    assert 0 <= found["residual"] <= found["error_bound"] <= 1e-8


@pytest.mark.parametrize("set", ["l1", "linf", "likelihood", "bayes"])
def test_pairs_without_data_are_named(set: str, capsys: Captured) -> None:
    found = asked(f"{BASE} --set {set} --reward-low 0 --confidence 0.8", capsys)
    assert found["without_data"] == [["down", "fast"]]
    assert found["radius"][0][0] == {"l1": 2.0, "linf": 1.0}.get(set)  # null is anything
    assert main(["solve", *f"{BASE} --set {set} --reward-low 0 --confidence 0.8".split()]) == 0
    out = capsys.readouterr().out
    assert "(down, fast): without data; their successor may be any that is possible" in out
    certain = "posterior probability 0.8" if set == "bayes" else "probability 0.8"
    assert f"with {certain} the policy is worth at least its guaranteed value in every state" in out
    assert ("Dirichlet(1" in out) == (set == "bayes")
    assert ("however the log was collected and ended" in out) == (set != "bayes")


def test_table_has_names_and_what_the_guarantee_costs(capsys: Captured) -> None:
    assert main(["solve", *f"{BASE} --reward-low 0 --support support.csv".split()]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "2 states, 2 actions, 15 transitions · l1 (anytime_l1), confidence 0.95, to successors of sup" in out[0]
    assert out[1].split() == ["state", "guaranteed", "nominal", "cost", "action", "seen"]
    assert out[2].split() == ["down", "0", "0", "0", "slow", "5"]
    state, value, nominal, cost, action, seen = out[3].split()
    assert (state, nominal, action, seen) == ("up", "10", "fast", "5")
    assert float(value) + float(cost) == pytest.approx(10, abs=1e-4)
    assert "if there are no other successors" in out[4]
    assert "loses at most 0 to the nominal one" in out[5]


def test_what_a_rule_assumes_is_said(capsys: Captured) -> None:
    for words, said in (
        ("--rule weissman", "if the number of samples was fixed in advance"),
        ("--set likelihood --rule likelihood_ratio", "if there are very many samples"),
        ("--set kl --support seen", "if there are very many samples and there are no other successors"),
    ):
        assert main(["solve", *f"{BASE} --rewards state-action {words}".split()]) == 0
        assert said in capsys.readouterr().out


def test_worst_model_is_written_and_has_the_values(place: Path, capsys: Captured) -> None:
    found = asked(f"{BASE} --reward-low 0 --set likelihood --worst-model worst.csv", capsys)
    worst = read_csv(place / "worst.csv")
    judged = evaluate(worst, np.array(found["policy"]), objective="nominal", discount=0.9)
    np.testing.assert_allclose(judged.values, found["values"], atol=1e-6)


def test_the_best_shape_is_found(capsys: Captured) -> None:
    words = f"{BASE} --reward-low 0 --set bayes"
    best = asked(f"{words} --shape best", capsys)
    plain = asked(f"{words} --shape l1", capsys)
    assert (best["shape"], best["prior"]) == ("best", 1.0)
    assert np.mean(best["values"]) >= np.mean(plain["values"])
    assert asked(f"{words} --seed 3", capsys)["radius"] != plain["radius"]
    assert asked(f"{words} --prior 0.1", capsys)["values"][1] > plain["values"][1]


def test_horizon(capsys: Captured) -> None:
    found = asked(f"{BASE} --reward-low 0 --horizon 2", capsys)
    assert np.shape(found["values"]) == (2, 2)
    assert np.shape(found["policy"]) == (2, 2)
    assert found["nominal_values"][0][1] == pytest.approx(1.9)
    assert main(["solve", *f"{BASE} --reward-low 0 --horizon 2".split()]) == 0
    assert "2 decisions" in capsys.readouterr().out


def test_validation_chooses_a_factor_and_promises_nothing(capsys: Captured) -> None:
    words = "--counts episodes.csv --discount 0.8 --method vi --reward-low 0 --validate --splits 2 --factors 0:1:3"
    found = asked(words, capsys)
    assert found["guaranteed"] is False
    assert found["confidence"] is None
    curve = found["validation"]
    assert curve["factors"] == [0, 0.5, 1]
    assert curve["chosen"] in curve["factors"]
    assert len(curve["held_out"]) == len(curve["deviation"]) == 3
    assert curve["splits"] == 2
    assert main(["solve", *words.split()]) == 0
    out = capsys.readouterr().out
    assert "no guarantee: the radii are" in out
    assert "guaranteed" not in out
    assert "held-out value" in out
    assert out.count("chosen") == 1
    assert asked(f"{words} --split-by rows", capsys)["validation"] != curve


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "MODEL or --counts must be given"),
        ("log.csv --counts log.csv", "MODEL is given with --counts; the log takes the place of MODEL"),
        (
            "--counts log.csv",
            "the reward of (s, a) = (down, fast) on the way to down is not known, as that was never seen",
        ),
        ("--counts no.csv", "can't read no.csv: No such file or directory"),
        ("--counts .", "can't read .: Is a directory"),
        ("--counts log.csv --confidence 1", "confidence is 1; it must lie between 0 and 1, both excluded"),
        ("--counts log.csv --confidence=-0.1", "confidence is -0.1; it must lie between 0 and 1"),
        ("--counts log.csv --confidence nan", "confidence is nan; it must lie between 0 and 1"),
        ("--counts log.csv --set l2", "unknown set 'l2': did you mean 'l1'? known are bayes, kl, l1, likelihood, linf"),
        ("--counts log.csv --rule linf", "unknown rule 'linf': "),
        ("--counts log.csv --rule entrywise", "rule is 'entrywise', which is not for the set l1"),
        ("--counts log.csv --radius 0.1", "--radius is given with --counts; radii come from --confidence"),
        ("--counts log.csv --rect s", "--rect is given with --counts"),
        ("--counts log.csv --objective optimistic", "--objective is given with --counts; a guarantee is about"),
        ("--counts log.csv --plot a.png", "--plot is given with --counts"),
        ("--counts log.csv --prior 2", "--prior is given, but the set is l1; it is for the set bayes"),
        ("--counts log.csv --splits 3", "--splits is given, but --validate is not"),
        ("--counts log.csv --validate --set bayes --shape best", "--shape is best, which goes by the guarantee"),
        ("--counts log.csv --set bayes --shape round", "unknown shape 'round'"),
        (
            "--counts log.csv --validate --factors 1:0:3 --reward-low 0",
            "factors is '1:0:3'; it must be a finite number",
        ),
        ("--counts log.csv --validate --split-by episodes", "by is 'episodes', but the log has no column episode"),
        ("--counts log.csv --support some", "--support is 'some'; with --counts it must be all, seen or a CSV file"),
        ("--counts log.csv --support no.csv", "can't read no.csv: No such file or directory"),
        ("--counts log.csv --support log.csv", "log.csv, line 1: there is the column 'count' too many"),
        ("--counts log.csv --support wrong.csv", "wrong.csv, line 2: unknown state 'dwon': did you mean 'down'?"),
        ("--counts log.csv --reward-low 0.1", "reward_low is 0.1, but the log has a reward of 0, which is below it"),
        ("--counts log.csv --reward-low low", "--reward-low is 'low'; it must be a number"),
        ("--counts log.csv --rewards state", "--rewards is 'state'; it must be transition or state-action"),
        ("--counts log.csv --seed -1", "seed is -1; it must be at least 0"),
        ("--counts log.csv --discount 1 --reward-low 0", "discount is 1; it must be above 0 and below 1"),
        ("--counts log.csv --worst-model log.csv", "--worst-model is log.csv, the model itself; give another file"),
        ("--counts log.csv --worst-model no/w.csv", "--worst-model is no/w.csv, but there is no folder no"),
        ("--counts log.csv --horizon 2 --worst-model w.csv", "--worst-model writes one model, but with a horizon"),
        ("forest --radius 0.1 --confidence 0.9", "--confidence is given, but --counts is not"),
        ("forest --radius 0.1 --reward-low 0", "--reward-low is given, but --counts is not"),
        ("forest --radius 0.1 --support seen", "unknown support 'seen'"),
    ],
)
def test_bad_input_is_one_sentence(words: str, sentence: str, place: Path, capsys: Captured) -> None:
    (place / "wrong.csv").write_text("state,action,next_state\ndwon,slow,up\n")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    assert main(["solve", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"deeprok: {sentence}")
    assert captured.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "log.csv, line 1: there is no column state in an empty first line"),
        ("state,action,next_state\n", "log.csv has no transitions"),
        ("state,action,reward\n0,0,0\n", "log.csv, line 1: there is no column next_state"),
        ("state,action,next_state,reward\n0,0,0,nan\n", "log.csv, line 2: reward is nan"),
        ("state,action,next_state,count\n0,0,0,-3\n", "log.csv, line 2: count is -3"),
        (
            "state,action,next_state\n0,0,0\n",
            "the reward of (s, a) = (0, 0) on the way to 0 is not known, as that has no",
        ),
    ],
)
def test_bad_logs_are_one_sentence(body: str, sentence: str, place: Path, capsys: Captured) -> None:
    (place / "log.csv").write_text(body)
    assert main(["solve", "--counts", "log.csv"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"deeprok: {sentence}")
    assert captured.err.count("\n") == 1
