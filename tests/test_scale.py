"""The page on scale: what it says follows from what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_failing_workers import script

ROOT = Path(__file__).parents[1]

scale = script("scale")


def measured(**seconds: float) -> dict[str, Any]:
    """What a measurement of six trials of a minute each may have found."""
    names = (scale.ONE_BY_ONE, scale.VMAPPED, scale.ONE_CORE, scale.TWO_CORES, scale.ON_RAY)
    taken = dict(zip(names, (200.0, 80.0, 360.0, 180.0, 198.0), strict=True)) | seconds
    return {
        "cores": 2, "rounds": 1, "seeds": 16, "trials": 6, "steps": 150_000, "trial_steps": 300_000,
        "commands": {name: {"seconds": took, "processor": took, "memory": 700.0} for name, took in taken.items()},
        "trial_seconds": 50.0, "start_seconds": 10.0, "driver_seconds": 0.05, "posts_per_second": 1000.0,
        "step_micros": {"1": 20.0, "16": 160.0}, "kernels": 100.0,
    }  # fmt: skip


def test_the_model_is_what_can_be_computed_by_hand() -> None:
    said = scale.model(measured())
    assert said.worker == 60.0  # three waves of two trials in 180 seconds
    assert said.waiting == 18.0
    assert (said.by_posts, said.by_files, said.workers) == (500, 1200, 500)
    assert said.seeds == (20, 100)  # 100 kernels of 2 and 10 µs are 20 and 100 seeds of 10 µs
    assert said.hours(1000, 100) == pytest.approx((18.0 + 10 * 60.0) / 3600)
    assert said.hours(1000, 400) == pytest.approx((18.0 + 3 * 60.0) / 3600)
    assert said.hours(1000, 10_000) == said.hours(1000, 500)  # no more than the driver can serve


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ["0.40 times as long", "The aim, at most 0.6, is met.", "takes 1.10 times", "at most 1.15, is met."]),
        ({scale.VMAPPED: 130.0}, ["0.65 times as long", "The aim, at most 0.6, is missed."]),
        ({scale.ON_RAY: 216.0}, ["takes 1.20 times as long", "The aim, at most 1.15, is missed."]),
    ],
)
def test_verdicts_follow_from_the_numbers(changed: dict[str, float], said: list[str]) -> None:
    text = " ".join(scale.section(measured(**changed)).split())
    for each in said:
        assert each in text
    assert "| 16 seeds, one after another | 200 | 12,000 | 200 | 700 MB |" in text
    assert "| sweep, two cores, 6 trials | 180 | 10,000 | 180 | 700 MB |" in text
    assert "It stops scaling at 500 workers**, which are 62 nodes of 8 cores" in text


def test_the_page_says_what_was_measured() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert scale.with_section(scale.with_section(page, measured()), measured()).count("## A hundred nodes") == 1
    stored = ROOT / "benchmarks" / "scale.json"
    between = page.split(scale.BEGIN)[1].split(scale.END)[0].strip()
    assert between == (scale.section(json.loads(stored.read_text())) if stored.exists() else "")


def test_the_sizes_that_are_measured_are_those_of_the_preset() -> None:
    from deeprok.runs.settings import make_config

    assert make_config("rtd_dqn").steps == scale.Sizes().steps


def test_kernels_are_counted_in_the_largest_loop() -> None:
    text = """
%small (p: f32[]) -> f32[] {
  %a = f32[] fusion(p), kind=kLoop
}

%large (p: f32[]) -> f32[] {
  %a = f32[] fusion(p), kind=kLoop
  %b = f32[2,2]{1,0} dot(a, a)
  %c = f32[] add(a, b)
}

ENTRY %main (p: f32[]) -> f32[] {
  %x = f32[] while(p), condition=%cond, body=%small
  %y = f32[] while(x), condition=%cond, body=%large
}
"""
    assert scale.largest_loop(text) == 2
