"""`deeprok identify`, and `deeprok train` with what it writes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from identified import as_table, played

from deeprok.cli.identify import _print
from deeprok.cli.main import main
from deeprok.cli.train import _parse, _with_identified
from deeprok.core.console import WordConsole
from deeprok.environments.cartpole import cartpole
from deeprok.identification.result import Identified, read_identified
from deeprok.runs.settings import Config

TRUTH = {"pole_length": 0.6, "cart_mass": 1.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("identified")
    table = as_table(played(cartpole(), TRUTH, (40,) * 3, seed=0, process=0.003, sensor=0.003))
    pd.DataFrame(table).to_csv(path / "log.csv", index=False)
    words = ["identify", "--env", "cartpole", "--data", str(path / "log.csv"), "--out", str(path / "found.json")]
    assert main(words) == 0
    return path


@pytest.fixture
def found(folder: Path) -> Identified:
    return read_identified(folder / "found.json")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    return capsys.readouterr().err.removeprefix("deeprok: ").strip()


def test_the_table_says_what_was_found(found: Identified) -> None:
    out = WordConsole(file=io.StringIO(), width=160)
    _print(found, out)
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "3 episodes · 120 steps · the ranges hold all parameters with a confidence of 90 %" in lines[0]
    length = found.parameters["pole_length"]
    expected = ["pole_length", "m", "0.5", *(f"{x:.4g}" for x in (length.estimate, length.low, length.high)), "–"]
    assert lines[2].split() == expected
    assert lines[-1] == "- what the simulator does not predict looks like noise"


def test_a_parameter_that_is_taken_as_known_makes_the_simulator_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cart weighs 1.2 kg and not 1.5, which no length of the pole explains."""
    words = ["identify", "--env", "cartpole", "--data", str(folder / "log.csv"), "--parameters", "pole_length"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {"env", "parameters", "confidence", "unidentified", "noise", "fit", "models", "box"} <= set(printed)
    assert set(printed["parameters"]["pole_length"]) == {"estimate", "low", "high"}
    assert any("the simulator is wrong there" in note for note in printed["notes"])


def trained(words: list[str]) -> Config:
    return _parse("rtd_dqn", _with_identified("rtd_dqn", words))[0]


@pytest.mark.parametrize("joined", [False, True])
def test_training_takes_the_ranges_as_its_box(folder: Path, found: Identified, joined: bool) -> None:
    file = str(folder / "found.json")
    config = trained([f"--box={file}"] if joined else ["--box", file])
    env = config.make_env()
    assert config.make_box(env) == found.box
    np.testing.assert_allclose(env.nominal.cart_mass, found.nominal["cart_mass"], rtol=1e-6)
    assert "found.json" not in config.to_json()  # the run does not need the file
    assert config.fixed_models == ""


def test_training_takes_the_sample_as_its_models(folder: Path, found: Identified) -> None:
    config = trained(["--models", str(folder / "found.json"), "--nominal", "cart_mass=1.5"])
    env = config.make_env()
    models = config.make_models(env)
    assert models.size == len(found.model_list) == 100
    assert config.make_box(env) == found.box
    assert config.nominal == "cart_mass=1.5"  # which was given
    assert trained(["--models", "7"]).models == 7


def test_mistakes_are_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(folder / "found.json")
    train = ["train", "rtd_dqn", "--out", str(tmp_path / "run")]
    said = refused([*train, "--env", "hard_cartpole", "--box", file], capsys)
    assert said == f"box is {file}, which is for env 'cartpole', but env is 'hard_cartpole'"
    assert refused([*train, "--models", str(tmp_path / "none.json")], capsys).startswith("can't read ")
    (tmp_path / "other.json").write_text("{}")
    assert "is no file of identified parameters" in refused([*train, "--box", str(tmp_path / "other.json")], capsys)
    log = str(folder / "log.csv")
    assert refused([*train, "--box", log], capsys) == f"box is {log}; a file of identified parameters ends with .json"
    assert not (tmp_path / "run").exists()
    identify = ["identify", "--env", "cartpole", "--data", str(folder / "log.csv")]
    said = refused([*identify, "--out", "found.txt"], capsys)
    assert said == "out is found.txt; it must be a file that ends with .json"
    assert "there is no folder" in refused([*identify, "--out", str(tmp_path / "no" / "found.json")], capsys)
    assert refused(["identify", "--env", "cartpole"], capsys).startswith("--data must be given")
