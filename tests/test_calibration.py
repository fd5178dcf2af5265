from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.evaluation import calibration
from deeprok.evaluation.calibration import Intervals, coverage, earned_values, fit_temperature, summarise
from deeprok.evaluation.policies import ensemble_policy
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.training.loop import train_together


def test_coverage_of_known_errors() -> None:
    np.testing.assert_allclose(coverage(np.array([0.0, 0.6, -0.7, 1.2, -1.3, 1.9, 2.0, -5.0])), [2 / 8, 4 / 8, 6 / 8])


@pytest.mark.parametrize("factor", [0.1, 1.0, 7.0])
def test_temperature_makes_normal_errors_what_they_claim(factor: float) -> None:
    errors = factor * np.random.default_rng(0).normal(size=20_000)
    assert fit_temperature(errors) == pytest.approx(factor, rel=0.02)
    np.testing.assert_allclose(coverage(errors / fit_temperature(errors)), calibration.LEVELS, atol=0.01)


def test_each_seed_is_scaled_by_the_others() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(4000, 2))
    # Two seeds claim half of what they should, the third twice as much.
    found = {
        seed: Intervals(np.zeros((4000, 2)), np.full((4000, 2), s), truth) for seed, s in enumerate((0.5, 0.5, 2.0))
    }
    result = summarise(found)
    np.testing.assert_allclose(result.temperature, [2, 2, 0.5], rtol=0.05)
    errors = [found[seed].errors for seed in found]
    scaled = [
        errors[i] / fit_temperature(np.concatenate([other for j, other in enumerate(errors) if j != i]))
        for i in range(3)
    ]
    np.testing.assert_allclose(result.calibrated, coverage(np.concatenate(scaled)))
    assert result.points == 24_000
    assert result.deviation == pytest.approx(1.0)
    assert result.error == pytest.approx(1.0, rel=0.02)
    alone = summarise({0: found[0]})
    assert alone.calibrated is None


def test_points_have_no_intervals() -> None:
    point = Intervals(np.zeros((2, 2)), np.array([[1.0, 0.0], [1.0, 1.0]]), np.ones((2, 2)))
    with pytest.raises(DeeprokError, match="seed 7 is still a point"):
        summarise({7: point})


def test_earned_values_of_the_treadmill(probes) -> None:
    """Each step earns 1; one that ends after L steps leaves a state of age a worth (1 − γ^(L − a)) / (1 − γ)."""
    config = make_config("ekf_dqn", "tuned", env="treadmill", horizon=4, hidden=(2,))
    env = config.make_env()
    network = config.make_network(env)
    act = ensemble_policy(network, env.actions, network.init(jax.random.key(0))[None], "mean")

    @jax.jit
    def earned(lifetimes: jax.Array) -> jax.Array:
        return earned_values(env, act, {"lifetime": lifetimes}, 0.9, 50, jax.random.key(1))[1]

    for lifetime in (3.0, 1e9):
        values = earned(jnp.full((50, 2), lifetime))
        assert values.shape == (50, 2)
        if lifetime > 1e6:
            np.testing.assert_allclose(values, 10.0, rtol=1e-3)
        else:
            possible = [(1 - 0.9 ** (lifetime - age)) / 0.1 for age in range(3)]
            nearest = np.abs(np.asarray(values)[..., None] - possible).min(axis=-1)
            assert nearest.max() < 1e-4
            assert len(np.unique(np.round(np.asarray(values), 3))) == 3  # states of every age are visited
    values = earned(jnp.tile(jnp.array([[1.0, 2.0], [2.0, 1.0]]), (25, 1)))
    # The mean over models: at first 1 and 1 + γ; a step later both end.
    np.testing.assert_allclose(np.unique(np.round(np.asarray(values), 4)), [1.0, 1.45])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calibration") / "runs"
    config = make_config(
        "ekf_dqn", "tuned", hidden=(3,), episodes=3, horizon=20, chunk_steps=60, warm_up=20, trial_models=2
    )
    folders = runs.create_seeds(out, config, [0, 1])
    for folder in folders:
        train_together([folder])
    return out


def test_command(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", str(trained), "--states", "20", "--models", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["levels"] == [0.5, 0.8, 0.95]
    assert found["points"] == 2 * 20 * 2
    assert all(0 <= share <= 1 for share in found["coverage"] + found["calibrated"])
    assert found["coverage"] == sorted(found["coverage"])
    assert main(["calibrate", str(trained / "seed-0"), "--states", "20", "--models", "3"]) == 0
    assert "one seed" in capsys.readouterr().out


BAD: dict[str, tuple[dict[str, Any], list[str], tuple[str, ...]]] = {
    "states": ({}, ["--states", "0"], ("states is 0", "at least 1")),
    "policy": (dict(algorithm="pg"), [], ("pg has no posterior",)),
    "point": (dict(algorithm="dqn"), [], ("dqn has no posterior",)),
}


@pytest.mark.parametrize(("run", "words", "needed"), BAD.values(), ids=BAD)
def test_bad_input(
    tmp_path: Path, run: dict[str, Any], words: list[str], needed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.create(tmp_path / "run", make_config(run.get("algorithm", "ekf_dqn"), "tuned"))
    assert main(["calibrate", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err
    assert [word for word in needed if word not in said] == []
