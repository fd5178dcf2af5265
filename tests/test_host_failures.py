"""Simulations that fail: counted in the metrics of a run and in the cells of an evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import deeprok
from deeprok.cli.main import main
from deeprok.evaluation.result import Evaluation, merge
from deeprok.runs import folder as runs
from deeprok.runs.metrics import failures

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
