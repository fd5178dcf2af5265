"""Simulations that fail: counted in the metrics of a run and in the cells of an evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import own_simulators
import pytest

import deeprok
from deeprok.cli.main import main
from deeprok.evaluation.result import Evaluation, merge
from deeprok.runs import folder as runs
from deeprok.runs.metrics import failures
from deeprok.training.loop import progress_of

pytestmark = pytest.mark.usefixtures("compiled_once")

SMALL = (
    "--steps 40 --chunk-steps 20 --hidden 4 --batch-size 4 --warm-up 8 --trial-models 1 --trial-episodes 1 --no-settle"
)


def test_failed_simulations_are_counted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second of three models is lost in every step, and the third one too; the one acted on never is."""
    out = str(tmp_path / "run")
    words = [
        "--env",
        "own_simulators:Explosive",
        "--box",
        "current=0:2",
        "--fixed-models",
        "current=0;current=1.5;current=2",
    ]
    assert (
        main(["train", "rtd_dqn", *words, "--acting", "nominal", *SMALL.split(), "--horizon", "10", "--out", out]) == 0
    )
    assert (
        f"{out}: 80 simulations failed, in 40 of 40 steps: their numbers were not finite or too large, which counts as "
        "the end of an episode on that model"
    ) in capsys.readouterr().err
    lines = runs.read_metrics(tmp_path / "run")
    assert [(line["failed_steps"], line["failed_simulations"]) for line in lines] == [(20, 40), (20, 40)]
    assert deeprok.load(out).metrics["failed_simulations"].tolist() == [40, 40]

    assert main(["evaluate", out, "--grid", "current=0:2:3", "--episodes", "4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "the simulation failed in 4 of 12 episodes, in 1 of 3 cells: its numbers were not finite or too large" in said
    )
    assert "nothing says when an episode of Explosive succeeds: here it does if its return is above 0" in said
    stored = next((tmp_path / "run").glob("evaluation*.json"))
    result = Evaluation.from_dict(json.loads(stored.read_text()))
    assert result.failed is not None
    assert result.failed.tolist() == [0, 0, 4]
    assert result.columns()["failed"].tolist() == [0, 0, 4]
    both = merge([result, result])
    assert both.failed is not None
    assert both.failed.tolist() == [0, 0, 8]
    np.testing.assert_array_equal(result.mean_return[2] < 2, True)  # lost in its first step


def test_nothing_is_said_where_nothing_failed() -> None:
    assert failures([{"steps": 10, "returns": []}, {"steps": 20, "failed_steps": 0, "failed_simulations": 0}]) == ""
    assert failures([]) == ""


def trained(out: Path, *words: str) -> int:
    box = ["--env", "own_simulators:Divided", "--box", "mass=0:2", "--horizon", "10"]
    return main(["train", "rtd_dqn", *box, *SMALL.split(), "--out", str(out), *words])


def test_a_division_by_zero_is_a_failure_of_that_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "run", "--fixed-models", "mass=0;mass=1", "--acting", "nominal") == 0
    assert "40 simulations failed, in 40 of 40 steps" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--grid", "mass=0:2:2", "--episodes", "3"]) == 0
    assert "the simulation failed in 3 of 6 episodes, in 1 of 2 cells" in " ".join(capsys.readouterr().out.split())


def test_what_a_simulator_raises_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "no", "--fixed-models", "mass=-1;mass=1", "--acting", "nominal") == 2
    assert capsys.readouterr().err.strip().endswith("the simulator has failed: ValueError: negative mass")
    assert trained(tmp_path / "run", "--fixed-models", "mass=1;mass=2", "--acting", "nominal") == 0
    assert main(["evaluate", str(tmp_path / "run"), "--grid", "mass=-1:1:2", "--episodes", "3"]) == 2
    assert "the simulator has failed: ValueError: negative mass" in capsys.readouterr().err


def test_a_chunk_that_fails_does_not_take_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, taken = own_simulators.Boat.step, []

    def fails_late(self: Any, action: Any) -> Any:
        taken.append(action)
        if len(taken) > 120:  # of 40 steps each one, and its outcomes under two models
            raise RuntimeError("lost contact")
        return step(self, action)

    monkeypatch.setattr(own_simulators.Boat, "step", fails_late)
    words = ["--fixed-models", "mass=1;mass=2", "--acting", "nominal", "--steps", "80", "--trial-every", "100"]
    assert trained(tmp_path / "run", *words) == 2
    steps = runs.read_metrics(tmp_path / "run")[-1]["steps"]
    assert steps == progress_of(tmp_path / "run")[0]
    assert 0 < steps < 80


def test_noisy_parameters_of_an_environment_that_is_copied(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", "--fixed-models", "mass=1;mass=2", "--parameter-noise", "mass=0.2") == 0
    words = ["--grid", "mass=1:2:2", "--episodes", "2", "--parameter-noise", "mass=0.3"]
    assert main(["evaluate", str(tmp_path / "run"), *words]) == 0
