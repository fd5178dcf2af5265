"""The simulated sweep on workers that fail, against what can be computed by hand."""

from __future__ import annotations

import json
import math
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]


def script(name: str) -> Any:
    spec = spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


failing = script("failing_workers")


@pytest.mark.parametrize("trials", [1, 6, 7, 25])
def test_without_failures_trials_come_in_waves(trials: int) -> None:
    sweep = failing.Sweep(trials, work=1800.0, start_up=20.0)
    found = failing.simulate(sweep, failing.Cluster(nodes=3, workers=2), np.random.default_rng(0))
    assert found.hours == pytest.approx(math.ceil(trials / 6) * 1820.0 / 3600.0)
    assert (found.finished, found.lost, found.node_deaths, found.given_up) == (trials, 0.0, 0, 0)


@pytest.mark.parametrize("shared", [True, False])
def test_what_a_death_costs(shared: bool) -> None:
    """One worker, whose node dies once, 100 s after it has begun to train."""
    lives = iter([120.0, math.inf])
    cluster = failing.Cluster(1, 1, node_life=lambda _: next(lives), replaced_after=300.0, shared=shared)
    found = failing.simulate(failing.Sweep(1, work=1000.0, start_up=20.0), cluster, np.random.default_rng(0))
    lost = 10.0 if shared else 100.0  # checkpoints are from every 30 s
    assert found.lost == pytest.approx(lost / 3600.0)
    assert found.hours == pytest.approx((120.0 + 300.0 + 20.0 + 1000.0 - (100.0 - lost)) / 3600.0)


def test_a_task_that_dies_too_often_waits_for_the_next_command() -> None:
    lives = iter([50.0] * 4 + [math.inf])
    cluster = failing.Cluster(1, 1, node_life=lambda _: next(lives), replaced_after=10.0, restarted_after=600.0)
    found = failing.simulate(failing.Sweep(1, work=200.0, start_up=0.0), cluster, np.random.default_rng(0))
    # Four deaths at 50 s each leave 30 s; then somebody gives the command again, and 80 s are missing.
    assert (found.finished, found.given_up, found.node_deaths) == (1, 1, 4)
    assert found.lost == pytest.approx(80.0 / 3600.0)
    assert found.hours == pytest.approx((4 * 50.0 + 3 * 10.0 + 600.0 + 80.0) / 3600.0)


def test_a_driver_that_dies_takes_all_tasks_with_it() -> None:
    lives = iter([130.0, math.inf])
    cluster = failing.Cluster(2, 1, driver_life=lambda _: next(lives), restarted_after=60.0, shared=False)
    found = failing.simulate(failing.Sweep(2, work=200.0, start_up=10.0), cluster, np.random.default_rng(0))
    assert (found.finished, found.driver_deaths, found.given_up) == (2, 1, 0)
    assert found.lost == pytest.approx(2 * 120.0 / 3600.0)
    assert found.hours == pytest.approx((130.0 + 60.0 + 210.0) / 3600.0)


def test_expected_loss_without_checkpoints() -> None:
    """Work of w that begins anew at failures of rate λ takes (e^{λw} − 1) / λ on average."""
    work, mean = 3600.0, 7200.0
    cluster = failing.Cluster(60, 1, node_life=failing.exponential(mean), replaced_after=0.0, shared=False)
    found = failing.simulate(failing.Sweep(6000, work, 0.0), cluster, np.random.default_rng(1))
    expected = (math.exp(work / mean) - 1.0) * mean - work
    assert found.lost * 3600.0 / 6000 == pytest.approx(expected, rel=0.05)


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
def test_nothing_is_lost_but_time(trials: int, nodes: int, workers: int, shared: bool, seed: int) -> None:
    cluster = failing.Cluster(
        nodes,
        workers,
        node_life=failing.exponential(2000.0),
        driver_life=failing.exponential(4000.0),
        shared=shared,
    )
    sweep = failing.Sweep(trials, work=600.0, start_up=5.0)
    found = failing.simulate(sweep, cluster, np.random.default_rng(seed))
    assert found.finished == trials
    assert found.hours * nodes * workers >= found.trained + found.lost - 1e-9


def test_the_page_says_what_was_simulated() -> None:
    stored = json.loads((ROOT / "benchmarks" / "failing_workers.json").read_text())
    page = (ROOT / "docs" / "scale.md").read_text()
    assert failing.table(stored) in page
    assert list(stored["rows"]) == list(failing.CASES)
    assert stored["sweep"] == failing.Sweep()._asdict()
    assert all(row["finished"]["least"] == stored["sweep"]["trials"] for row in stored["rows"].values())
    again = failing.simulate(failing.Sweep(), failing.CASES["preemptible nodes"], np.random.default_rng(0))
    its = stored["rows"]["preemptible nodes"]["hours"]
    assert its["least"] <= again.hours <= its["largest"]
