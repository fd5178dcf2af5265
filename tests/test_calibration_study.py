"""The study of the posterior's intervals, small."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from deeprok.agents.correction import Fitted
from deeprok.evaluation.calibration import Intervals
from deeprok.runs.settings import Config, make_config
from studies import calibration, calibration_page, plan
from studies.engine import Options, numbers_file, write_page

pytestmark = pytest.mark.usefixtures("compiled_once")

MEASURE = functools.partial(calibration.measure, envs=("ferry",), posteriors=("filter", "ensemble"), states=6, models=2)


def small(algorithm: str, preset: str, **changes: Any) -> Config:
    assert preset == "default"
    tiny: dict[str, Any] = dict(hidden=(3,), batch_size=4, warm_up=20, train_every=1, chunk_steps=60, trial_models=2)
    tiny |= dict(normalise=False, longest_repeat=1, models=2, discount=0.9)
    if "rok" in algorithm or "ekf" in algorithm:
        tiny |= dict(covariance="diagonal")  # whose seeds need no processes
    return make_config(algorithm, preset, **{**tiny, **changes, "trial_episodes": 1, "trial_every": 1, "steps": 120})


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """The folder of a small study, what it found, and what the same call says when there is nothing left to do."""
    out = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "make_config", small)
        patch.setattr(calibration, "_MEMBERS", 2)
        patch.setattr(calibration, "_HELD_OUT", (6, 2, 1))
        patch.setattr(calibration, "_EPISODES", 2)
        patch.setattr("deeprok.evaluation.calibration._HELD_OUT_STATES", 6)
        path = numbers_file(calibration.STUDY, out / "report")
        options = Options(seeds=2, out=out, jobs=1)
        found = MEASURE(options, path, lambda *_: None)
        patch.setattr(calibration, "examined", None)  # not called again
        patch.setattr(calibration, "train", None)
        said: list[str] = []
        again = MEASURE(options, path, lambda what, work: said.append(what))
        assert again == json.loads(path.read_text()) == json.loads(json.dumps(found))
    return out, found, said


@pytest.mark.slow
def test_every_row_is_measured_once(report: tuple[Path, dict[str, Any], list[str]]) -> None:
    _, found, said = report
    assert said == ["ferry: ekf_dqn", "ferry: dqn", "ferry: deep_rok", "ferry: rtd_dqn"]
    for target, names in (("nominal", ("ekf_dqn", "dqn")), ("robust", ("deep_rok", "rtd_dqn"))):
        rows = found["rows"]["ferry"][target]
        assert tuple(row["agent"] for row in rows.values()) == names
        assert list(rows["filter"]["agents"]) == ["0", "1"]
        assert list(rows["ensemble"]["agents"]) == ["0–1"]
        assert set(rows["filter"]["cautious"]) == {"0", "1", "3"}
        for row in rows.values():
            for agent in row["agents"].values():
                assert (agent["level"] > 0) == (target == "robust")
                for kind in ("raw", "corrected"):
                    assert all(0 <= share <= 1 for share in agent[kind]["coverage"])
                    assert np.isfinite([agent[kind][name] for name in ("surprise", "deviation", "error")]).all()
    assert (
        found["rows"]["ferry"]["nominal"]["filter"]["settings"]
        != found["rows"]["ferry"]["robust"]["filter"]["settings"]
    )


@pytest.mark.slow
def test_page(report: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, found, _ = report
    write_page(calibration.STUDY, out / "report")
    page = (out / "report" / "calibration.md").read_text()
    assert "2 seeds each" in page
    assert "deeprok reproduce --study calibration --seeds 2" in page
    for row in calibration_page.table(found)[1:]:
        assert " | ".join(row) in page
    assert (out / "report" / "calibration" / "coverage.png").stat().st_size > 10_000


def row(*agents: tuple[float, float, float]) -> dict[str, Any]:
    """A row whose corrected coverages of 80 and 95 %, and surprise, are given for each agent."""
    numbers = [dict(coverage=[0.5, low, high], surprise=surprise) for low, high, surprise in agents]
    return {"agents": {str(i): {"raw": its, "corrected": its} for i, its in enumerate(numbers)}}


def test_verdicts() -> None:
    rows = {
        "good": {"nominal": {"filter": row((0.8, 0.95, 1.0)), "bbb": row((0, 0, 2.0)), "ensemble": row((0, 0, 0.5))}},
        "narrow": {"nominal": {"filter": row((0.8, 0.87, 1.0)), "bbb": row((0, 0, 2.0))}},
        # Means over agents count.
        "mixed": {"nominal": {"filter": row((0.6, 0.8, 1.0), (1.0, 1.0, 1.0)), "bbb": row((0, 0, 0.9))}},
        "none": {"nominal": {}},
    }
    said = calibration_page.verdicts({"levels": [0.5, 0.8, 0.95], "rows": rows})
    assert (said["cases"], said["raw"], said["corrected"]) == (3, 2, 2)
    assert (said["less than bbb raw"], said["less than ensemble corrected"]) == ("2 of 3", "0 of 1")


def test_alarm_and_caution_in_words() -> None:
    def agent(failing: float, auroc: float | None) -> dict[str, Any]:
        return {"failing": failing, "auroc": auroc}

    def filter_row(name: str, cautious: dict[str, float], *agents: dict[str, Any]) -> dict[str, Any]:
        return {"agent": name, "cautious": cautious, "agents": {str(i): its for i, its in enumerate(agents)}}

    risen, fallen, same = {"0": 0.5, "3": 0.6}, {"0": 0.8, "3": 0.5}, {"0": 0.7, "3": 0.69}
    found = {
        "cells": {"road": 49, "ferry": 7},
        "rows": {
            "road": {
                "nominal": {"filter": filter_row("ekf_dqn", risen, agent(1 / 49, 0.5), agent(4 / 49, 0.7))},
                "robust": {"filter": filter_row("deep_rok", fallen, agent(7 / 49, 1.0))},
            },
            "ferry": {"robust": {"filter": filter_row("deep_rok", same, agent(1 / 7, 0.9), agent(0.0, None))}},
        },
    }
    assert calibration_page.alarm_verdict(found) == (
        "With the robust target the filter's mean AUROC is 0.90 to 1.00; failing are 7 of 49 cells on `road`, 0 to 1 "
        "of 7 cells on `ferry`. With the nominal target the filter's mean AUROC is 0.60 to 0.60; failing are 1 to 4 of "
        "49 cells on `road`."
    )
    said = calibration_page.cautious_verdict(found)
    assert said.startswith(
        "**It helps in 1 of 3 cases and harms in 1.** With κ = 3 it raises the success of EKF-DQN on"
    )
    assert "lowers the success of Deep-RoK on `road` (80.0 to 50.0 %)" in said
    row = filter_row("deep_rok", same, *({"corrected": {"coverage": [x]}} for x in (0.7, 0.9)))
    assert calibration_page._covered({"levels": [0.8]}, row, "corrected", 0.8) == "80.0 (70 – 90)"


def test_stored_cells_are_those_of_the_grid() -> None:
    found = json.loads((Path(__file__).parent.parent / "docs" / "calibration" / "calibration.json").read_text())
    assert found["cells"] == {env: calibration.cells_beyond(env) for env in calibration.ENVS}
    for env, targets in found["rows"].items():
        failing = [
            its["failing"] for rows in targets.values() for row in rows.values() for its in row["agents"].values()
        ]
        counts = np.array(failing) * found["cells"][env]
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_statistic_of_mann_and_whitney(cells: list[tuple[int, bool]]) -> None:
    score, failing = (np.array(part) for part in zip(*cells, strict=True))
    found = calibration.auroc(score, failing)
    if failing.all() or not failing.any():
        assert found is None
    else:
        pairs = failing.sum() * (~failing).sum()
        assert found == pytest.approx(mannwhitneyu(score[failing], score[~failing]).statistic / pairs)


def test_members_of_an_ensemble() -> None:
    config = small("dqn", "default", env="ferry")
    view = config.make_learner().view
    together = calibration.ensemble_view(view)
    thetas = jax.random.normal(jax.random.key(0), (5, view.network.num_weights))
    cells = jnp.arange(8.0).reshape(4, 2)
    each = np.stack([view.network.apply(theta, cells) for theta in thetas])
    assert together.values
    mean, deviation = together.values(thetas, cells)
    np.testing.assert_allclose(mean, each.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deviation, each.std(axis=0, ddof=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(together.network.apply(together.mean(thetas), cells), mean, rtol=1e-6)


def test_corrected_intervals() -> None:
    found = Intervals(np.zeros((1, 2)), np.array([[3.0, 0.0]]), np.ones((1, 2)))
    after = calibration.applied(Fitted(shift=0.5, factor=2.0, floor=8.0), found)
    np.testing.assert_allclose(after.mean, [[0.5, 0.5]])
    np.testing.assert_allclose(after.deviation, [[10.0, 8.0]])
    np.testing.assert_array_equal(after.truth, found.truth)


def test_beyond_the_box() -> None:
    """Half a width on either side, but never a parameter of the other sign."""
    for name in calibration.ENVS:
        env = make_config("dqn", env=name).make_env()
        for parameter, values in calibration.beyond(env).items():
            low, high = env.box[parameter]
            assert values[-1] == pytest.approx(high + 0.5 * (high - low))
            assert values[0] < low or low == 0
            assert values[0] >= 0.25 * low
