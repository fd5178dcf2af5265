"""The study of Table 1's systems, small."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from studies import engine, exam, plan, table1
from studies.engine import Options, run_study
from studies.exam import CONDITIONS
from studies.table1_page import SYSTEMS, table1_page

pytestmark = pytest.mark.slow

SOME = {name: CONDITIONS[name] for name in ("outside", "sensor_noise")}


def small(algorithm: str, preset: str = "tuned", **changes: Any) -> Config:
    tiny: dict[str, Any] = dict(trial_models=2, horizon=20, models=2)
    if ALGORITHMS[algorithm].learner == "policy_gradient":
        tiny |= dict(trajectories=12, minibatches=1, snapshot_every=12)
        length = 24
    else:
        tiny |= dict(chunk_steps=60, snapshot_every=2, warm_up=20)
        tiny |= dict(burn_in=5, thinning=2) if algorithm.startswith("psgld") else {}
        length = 4
    return make_config(algorithm, preset, **{**tiny, **changes, "hidden": (4,), "episodes": length})


def study(out: Path, seeds: int) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "make_config", small)
        patch.setattr(plan, "TUNING_SEEDS", (1000,))
        patch.setattr(exam, "CONDITIONS", SOME)
        patch.setattr(engine, "search_linear", lambda *_: np.array([0.0217, 0.0464, 1.0, 0.1881]))
        options = Options(seeds=seeds, out=out, episodes=50, jobs=1)
        found = run_study(table1.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    return found, written.getvalue()


def test_study_adds_up(tmp_path: Path) -> None:
    first, text = study(tmp_path, seeds=1)
    assert all(name in text for pair in plan.PAIRS.values() for name in pair)
    assert all(name in text for name in ("epopt", "robust_pg", "Bayes by Backprop"))
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(runs.CHECKPOINT)}
    found, _ = study(tmp_path, seeds=2)
    assert all(path.stat().st_mtime_ns == time for path, time in trained.items())
    saved = json.loads((tmp_path / "report" / "table1" / "table1.json").read_text())
    assert saved == json.loads(json.dumps(found))
    page = (tmp_path / "report" / "table1.md").read_text()
    assert page == table1_page(saved)
    assert all(f"[{system.name}]({system.page})" in page for system in SYSTEMS)
    for name in ("beliefs", "learning-nominal", "learning-robust", "policies", "calibration"):
        assert (tmp_path / "report" / "table1" / f"{name}.png").stat().st_size > 5000
    assert {row["seeds"] for row in saved["tables"]["beliefs"].values()} == {2}
    assert {row["seeds"] for row in first["tables"]["policies"].values()} == {1}
    assert set(saved["calibration"]) == {"ekf_dqn", "bbb_dqn", "psgld_dqn", "ktd_q"}
