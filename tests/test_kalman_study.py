"""The study of the Kalman agents, small."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from studies import engine, exam, kalman, plan
from studies.engine import Options, run_study
from studies.exam import CONDITIONS
from studies.kalman_page import kalman_page

pytestmark = pytest.mark.slow

SOME = {name: CONDITIONS[name] for name in ("outside", "strong_gravity", "sensor_noise")}


def small(algorithm: str, preset: str = "tuned", **changes: Any) -> Config:
    tiny: dict[str, Any] = dict(hidden=(4,), chunk_steps=60, trial_models=2, warm_up=20, snapshot_every=2, models=2)
    length: dict[str, Any] = dict(horizon=20) if changes.get("env", "cartpole") == "cartpole" else {}
    return make_config(algorithm, preset, **{**tiny, **length, **changes, "episodes": 4})


def study(out: Path, seeds: int) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "make_config", small)
        patch.setattr(plan, "STRUCTURES", {"full": 0.12, "diagonal": 0.04})
        patch.setattr(plan, "TUNING_SEEDS", (1000,))
        patch.setattr(kalman, "KAPPAS", (0.0, 1.0))
        patch.setattr(exam, "CONDITIONS", SOME)
        patch.setattr(engine, "search_linear", lambda *_: np.array([0.0217, 0.0464, 1.0, 0.1881]))
        options = Options(seeds=seeds, out=out, episodes=50, jobs=1)
        found = run_study(kalman.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    return found, written.getvalue()


def test_study_adds_up(tmp_path: Path) -> None:
    first, text = study(tmp_path, seeds=1)
    assert all(name in text for name in ("full", "diagonal", "thompson", "ucb", "Deep-RoK, ferry full"))
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(runs.CHECKPOINT)}
    found, _ = study(tmp_path, seeds=2)
    assert all(path.stat().st_mtime_ns == time for path, time in trained.items())
    saved = json.loads((tmp_path / "report" / "kalman" / "kalman.json").read_text())
    assert saved == json.loads(json.dumps(found))
    assert (tmp_path / "report" / "kalman.md").read_text() == kalman_page(saved)
    for name in ("structures", "exploration", "calibration"):
        assert (tmp_path / "report" / "kalman" / f"{name}.png").stat().st_size > 5000
    assert {row["seeds"] for row in saved["tables"]["structures"].values()} == {2}
    assert {row["seeds"] for row in first["tables"]["structures"].values()} == {1}
    assert saved["calibration"]["ferry full"]["points"] > 0
    assert set(saved["cautious"]) == {"0", "1"}
    # A warm start begins with the posterior of its own seed.
    warm = tmp_path / "warm_start" / "from a posterior" / "seed-1"
    assert runs.read_config(warm).prior == str(tmp_path / "structures" / "full" / "seed-1")
