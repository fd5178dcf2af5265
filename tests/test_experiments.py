from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from deeprok import runs
from deeprok.config import Config, make_config
from deeprok.errors import DeeprokError
from deeprok.evaluation import evaluate
from deeprok.experiments import paper

SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=4, horizon=30, chunk_steps=100, models=2, trial_models=2, trial_every=1, warm_up=20
)


@pytest.fixture(autouse=True)
def _small_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(algorithm: str, preset: str = "tuned", **changes: Any) -> Config:
        return make_config(algorithm, preset, **{**SMALL, **changes})

    monkeypatch.setattr(paper, "make_config", small)


def reproduce(out: Path, seeds: int) -> tuple[dict[str, Any], str]:
    written = io.StringIO()
    maps = paper.reproduce(
        seeds=seeds,
        out=out,
        episodes=3,
        processes=1,
        console=Console(file=io.StringIO()),
        results=Console(file=written, width=160),
    )
    return maps, written.getvalue()


def test_trains_compares_and_draws_and_does_nothing_twice(tmp_path: Path) -> None:
    maps, text = reproduce(tmp_path, seeds=2)
    assert list(maps) == ["ddqn", "rtd_dqn", "deep_rok"]
    for name, result in maps.items():
        assert [seed.seed for seed in result.per_seed] == [0, 1]
        assert result.keep == "last"
        alone = evaluate(tmp_path / "tuned" / name, episodes=3, keep="last")
        assert alone.success == result.success
        assert any(name in line and f"{result.overall.mean_return:.1f}" in line for line in text.splitlines())
    saved = json.loads((tmp_path / "tuned" / "results.json").read_text())
    assert saved["deep_rok"]["success"] == maps["deep_rok"].success
    for figure in ("returns", "success"):
        assert (tmp_path / "tuned" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "tuned" / f"{figure}.svg").read_text()

    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(runs.CHECKPOINT)}
    assert len(trained) == 6
    # A run of a larger experiment that never began is none of this one's business.
    runs.create(tmp_path / "tuned" / "ddqn" / "seed-2", paper.make_config("ddqn", seed=2))
    again, _ = reproduce(tmp_path, seeds=2)
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    np.testing.assert_array_equal(again["ddqn"].success, maps["ddqn"].success)


def test_runs_of_other_settings_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tuned" / "rtd_dqn" / "seed-0"
    runs.create(folder, make_config("rtd_dqn", **{**SMALL, "episodes": 5}))
    with pytest.raises(DeeprokError, match=r"rtd_dqn.seed-0 was trained with other settings"):
        reproduce(tmp_path, seeds=1)
    assert [path.name for path in folder.iterdir()] == [runs.CONFIG]


@pytest.mark.parametrize("option", ["seeds", "episodes"])
def test_bad_numbers_are_named(tmp_path: Path, option: str) -> None:
    with pytest.raises(DeeprokError, match=f"{option} is 0; it must be at least 1"):
        paper.reproduce(**{option: 0}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
