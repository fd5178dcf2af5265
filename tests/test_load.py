"""Runs in notebooks: load, act, ask, train without a folder."""

from __future__ import annotations

import atexit
import dataclasses
import doctest
import importlib
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from test_evaluation import GOOD, LEFT, LINEAR, unplayed, write_run  # noqa: F401

import deeprok
from deeprok import Run
from deeprok.core.errors import DeeprokError
from deeprok.evaluation import trained
from deeprok.evaluation.trained import load
from deeprok.runs import folder as runs
from deeprok.runs import metrics
from deeprok.runs.settings import make_config
from deeprok.training import jobs
from deeprok.training.train import train

SMALL: dict[str, Any] = dict(hidden=(3,), episodes=4, horizon=20, chunk_steps=40, warm_up=20, trial_models=2)

OBS = np.random.default_rng(0).normal(size=(50, 4)) * [1, 1, 0.1, 1]


@pytest.fixture(scope="module")
def kalman(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A Kalman agent that was really trained, a little."""
    return train(make_config("ekf_dqn", "tuned", **SMALL), tmp_path_factory.mktemp("kalman") / "run")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A point estimate whose best weights act as a linear policy; its last ones always go left."""
    return load(write_run(tmp_path_factory.mktemp("good") / "run"))


# --- acting -------------------------------------------------------------------------------------------------------


def test_actions(good: Run) -> None:
    expected = (OBS @ np.array(LINEAR) > 0).astype(int)
    assert 10 < expected.sum() < 40
    np.testing.assert_array_equal(good.act(OBS), expected)
    assert good.act(OBS).dtype == np.int64
    for obs, action in zip(OBS[:5], expected, strict=False):
        assert good.act(obs) == action
        assert np.shape(good.act(list(obs))) == ()
    assert good.act(OBS[:0]).shape == (0,)
    np.testing.assert_array_equal(good.weights, GOOD)
    last = load(good.folder, keep="last")
    assert last.act(OBS).tolist() == [0] * 50
    np.testing.assert_array_equal(last.weights, LEFT)


@pytest.mark.parametrize("algorithm", ["td3", "pg"])
def test_actions_that_are_numbers(tmp_path: Path, algorithm: str) -> None:
    """The actor's outputs are places between the ends: squashed by tanh, or cut off at the ends."""
    config = make_config(algorithm, "tuned", env="pendulum", hidden=(3,))
    learner = config.make_learner()
    belief = learner.init(jax.random.key(0)).belief
    run = Run(tmp_path, config, "best", trained._agent_of(learner.view, belief))
    actor = getattr(run.network, "actor", run.network)
    obs = np.random.default_rng(3).normal(size=(40, 3)) * [1, 1, 60]  # far enough to reach the ends
    weights, scale = run.weights[: actor.num_weights].astype(float), np.array(actor.input_scale)
    outputs = np.array([oracles.mlp(weights, actor.sizes, actor.activation, scale, x) for x in obs])
    expected = np.tanh(outputs) if algorithm == "td3" else np.clip(outputs, -1.0, 1.0)  # of a torque from −1 to 1
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(run.act(obs), expected, atol=1e-5)
    assert run.act(obs).shape == (40, 1)
    np.testing.assert_allclose(run.act(list(obs[0])), expected[0], atol=1e-5)
    action, state = run.predict(obs[0])
    np.testing.assert_array_equal(action, run.act(obs[0]))
    assert (action.shape, action.dtype, state) == ((1,), np.float32, None)


def test_predict_is_that_of_stable_baselines3(good: Run) -> None:
    state = object()
    action, same = good.predict(OBS[0], state, np.array([True]), deterministic=True)
    assert (action, same) == (good.act(OBS[0]), state)
    assert good.predict(OBS)[1] is None


def test_undeterministic_actions_are_epsilon_greedy(good: Run) -> None:
    obs = np.tile(OBS, (200, 1))
    first, again = good.predict(obs, deterministic=False)[0], good.predict(obs, deterministic=False)[0]
    for actions in (first, again):  # half of the random actions are the greedy one
        assert np.mean(actions != good.act(obs)) == pytest.approx(0.05, abs=0.01)
    assert (first != again).any()
    np.testing.assert_array_equal(load(good.folder).predict(obs, deterministic=False)[0], first)
    assert good.predict(OBS[0], deterministic=False)[0] in (0, 1)


OBSERVATIONS: dict[str, tuple[Any, str]] = {
    "few": ([0.0, 1.0], r"obs has shape \(2,\); cartpole has 4 observations, so it must be \[4\], or \[E, 4\]"),
    "one number": (1.0, r"obs has shape \(\)"),
    "axes": (np.zeros((2, 3, 4)), r"obs has shape \(2, 3, 4\)"),
    "text": (["a", "b", "c", "d"], "obs is .*; it must be numbers"),
    "ragged": ([[0.0], [0.0, 1.0]], "obs is .*; it must be numbers"),
    "nothing": (None, "obs"),
    "not a number": ([0.0, np.nan, 0.0, 0.0], "observations must be finite numbers"),
    "infinite as float32": ([0.0, 1e39, 0.0, 0.0], "observations must be finite numbers"),
}


@pytest.mark.parametrize(("obs", "said"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_bad_observations(good: Run, obs: Any, said: str) -> None:
    for method in (good.act, good.predict, good.q_values):
        with pytest.raises(DeeprokError, match=said):
            method(obs)


# --- Q-values and weights -----------------------------------------------------------------------------------------


def test_q_values_of_a_point(good: Run) -> None:
    mean, std = good.q_values(OBS)
    value = np.tanh(OBS @ np.array(LINEAR))
    np.testing.assert_allclose(mean, np.stack([-value, value], axis=1), atol=1e-5)
    np.testing.assert_array_equal(std, np.zeros((50, 2)))
    np.testing.assert_allclose(good.q_values(OBS[0])[0], mean[0], atol=1e-6)
    with pytest.raises(DeeprokError, match="rtd_dqn has no posterior to sample from"):
        good.sample_weights(0)


def test_q_values_of_a_posterior(kalman: Run) -> None:
    """To first order, the deviation is that of the gradient under the covariance."""
    learner = kalman.settings.make_learner()
    belief, posterior = runs.load_belief(kalman.folder, learner, "best"), learner.view.posterior
    theta = jnp.asarray(kalman.weights)
    assert posterior
    P = np.asarray(posterior.covariance(belief), float)
    mean, std = kalman.q_values(OBS[:3])
    for obs, q, spread in zip(OBS[:3], mean, std, strict=True):
        g = np.asarray(jax.jacobian(lambda w, obs=obs: learner.view.network.apply(w, jnp.asarray(obs)))(theta), float)
        np.testing.assert_allclose(q, kalman.network.apply(theta, jnp.asarray(obs)), atol=1e-5)
        np.testing.assert_allclose(spread**2, np.einsum("an,nm,am->a", g, P, g), rtol=1e-3)


def test_draws_from_the_posterior(kalman: Run) -> None:
    draw = kalman.sample_weights(3)
    np.testing.assert_array_equal(draw, kalman.sample_weights(jax.random.key(3)))
    np.testing.assert_array_equal(draw, kalman.sample_weights(np.int64(3)))
    assert draw.shape == kalman.weights.shape
    assert (draw != kalman.sample_weights(4)).any()
    assert (draw != kalman.weights).any()
    with pytest.raises(DeeprokError, match="key is -1; a seed must be from 0"):
        kalman.sample_weights(-1)


def test_weights_are_a_copy(kalman: Run) -> None:
    before = kalman.act(OBS)
    kalman.weights[:] = 0
    np.testing.assert_array_equal(kalman.act(OBS), before)
    assert kalman.weights.any()


@pytest.mark.slow
def test_a_policy_has_no_q_values(tmp_path: Path) -> None:
    config = make_config(
        "pg", "tuned", env="pendulum", hidden=(2,), episodes=4, trajectories=4, horizon=5, trial_models=2
    )
    run = train(config, tmp_path / "run")
    obs = np.zeros((3, len(run.env.observation_scale)))
    (low,), (high,) = run.env.actions.low, run.env.actions.high
    assert run.act(obs).shape == (3, 1)
    assert run.act(obs[0]).shape == (1,)
    actions = run.predict(np.tile(obs, (300, 1)), deterministic=False)[0]
    strayed = np.abs(actions - run.act(obs[0])) > 1e-6
    assert strayed.mean() == pytest.approx(run.settings.trial_epsilon, abs=0.04)
    assert low <= actions.min() < actions.max() <= high
    with pytest.raises(DeeprokError, match="pg learns a policy and has no Q-values"):
        run.q_values(obs)


def test_double_precision(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", precision="float64"))
    assert run.weights.dtype == np.float64
    value = np.tanh(OBS @ np.array(LINEAR, np.float32).astype(float))
    np.testing.assert_allclose(run.q_values(OBS)[0][:, 1], value, rtol=1e-12)
    assert run.q_values(OBS)[0].dtype == np.float64
    assert not jax.config.jax_enable_x64


# --- which run ----------------------------------------------------------------------------------------------------


def test_of_several_seeds_the_best_one(tmp_path: Path) -> None:
    for seed in (0, 2, 10):  # a later seed did better in its trials
        write_run(tmp_path / f"seed-{seed}", seed=seed)
    runs.create(tmp_path / "seed-11", dataclasses.replace(load(tmp_path).settings, seed=11))  # not yet begun
    assert load(tmp_path).folder == tmp_path / "seed-10"
    assert load(str(tmp_path), seed=2).settings.seed == 2
    assert repr(load(tmp_path, 0)) == f"Run('{tmp_path}/seed-0': rtd_dqn on cartpole, best weights)"
    with pytest.raises(DeeprokError, match=r"seed is 3; .* has 0, 2, 10, 11"):
        load(tmp_path, seed=3)
    write_run(tmp_path / "seed-12", seed=12, discount=0.5)
    with pytest.raises(DeeprokError, match="differ in more than their seed; load them one by one"):
        load(tmp_path)


LOADS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nowhere": ("nowhere", {}, "there is no run folder nowhere"),
    "kind": (3, {}, "path is 3; it must be the path"),
    "keep": (".", {"keep": "first"}, "unknown keep 'first'"),
}


@pytest.mark.parametrize(("path", "options", "said"), LOADS.values(), ids=LOADS)
def test_bad_arguments(path: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        load(path, **options)


# --- metrics and evaluation ---------------------------------------------------------------------------------------


def test_metrics_are_arrays(kalman: Run) -> None:
    lines = runs.read_metrics(kalman.folder)
    found = kalman.metrics
    assert {"steps", "episodes", "loss", "trial_return", "variances"} <= set(found)
    assert found["steps"].tolist() == [line["steps"] for line in lines]
    assert found["variances"].shape == (len(lines), 2)
    assert found.returns.tolist() == [x for line in lines for x in line["returns"]]
    assert len(found.returns) == 4


def write_metrics(folder: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"steps": 10, "episodes": 2, "returns": [4.0, 6.0]},
        {"steps": 20, "episodes": 2, "returns": [], "loss": 0.5, "variances": [1.0, 2.0]},
        {"steps": 30, "episodes": 3, "returns": [9.0], "loss": 0.25, "variances": [3.0, 4.0], "trial_return": 7.0},
    ]
    for line in lines:
        runs.append_metrics(folder, line)


def test_what_a_chunk_lacks_is_not_a_number(tmp_path: Path) -> None:
    write_metrics(tmp_path)
    found = metrics.read(tmp_path)
    assert found.returns.tolist() == [4, 6, 9]
    np.testing.assert_array_equal(found["loss"], [np.nan, 0.5, 0.25])
    np.testing.assert_array_equal(found["trial_return"], [np.nan, np.nan, 7.0])
    columns = found.columns()
    np.testing.assert_array_equal(columns["mean_return"], [5.0, np.nan, 9.0])
    np.testing.assert_array_equal(columns["variances_1"], [np.nan, 2.0, 4.0])
    assert {len(column) for column in columns.values()} == {3}


def test_a_run_before_its_first_chunk(tmp_path: Path) -> None:
    found = metrics.read(tmp_path)
    assert (len(found.returns), len(found["steps"]), len(found.columns()["mean_return"])) == (0, 0, 0)


def test_frames_need_pandas(kalman: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DeeprokError, match=r"pip install -c constraints.txt '\.\[frame\]'"):
        kalman.metrics.to_frame()


def test_frames(kalman: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=dict))
    assert list(kalman.metrics.to_frame()) == list(kalman.metrics.columns())
    result = deeprok.evaluate(kalman, grid={"force": [5.0, 10.0]}, episodes=2)
    assert list(result.to_frame()["force"]) == [5.0, 10.0]


def test_real_frames(kalman: Run) -> None:
    frame = kalman.metrics.to_frame()
    assert frame["steps"].tolist() == kalman.metrics["steps"].tolist()
    assert frame["loss"].dtype == float


def test_evaluations_are_of_the_loaded_weights(tmp_path: Path) -> None:
    write_run(tmp_path / "run", horizon=30)
    best, last = (load(tmp_path / "run", keep=keep) for keep in ("best", "last"))
    assert best.evaluation is None
    options: dict[str, Any] = dict(grid={"cart_mass": [1.5]}, episodes=3, epsilon=0.0)
    assert deeprok.evaluate(best, **options).mean_return[0] == 30
    assert deeprok.evaluate(last, **options).mean_return[0] < 15
    assert deeprok.evaluate([last], **options).keep == "last"
    assert deeprok.evaluate(last, **options, keep="best").mean_return[0] == 30
    with pytest.raises(DeeprokError, match="some of the runs stand for their best weights"):
        deeprok.evaluate([best, last])
    assert not list(best.folder.glob("evaluation*"))
    deeprok.evaluate(last, save=True)
    assert best.evaluation is None
    assert last.evaluation
    assert (last.evaluation.keep, last.evaluation.success.shape) == ("last", (7, 7))


def test_calibration_of_a_run(kalman: Run) -> None:
    found = deeprok.calibrate(kalman, states=5, models=2)
    assert found.points == 10
    assert found.to_dict() == deeprok.calibrate(kalman.folder, states=5, models=2, keep="best").to_dict()


# --- training -----------------------------------------------------------------------------------------------------


def test_a_temporary_folder_is_removed_at_exit(good: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *call, **options: at_exit.append((call, options)))
    made: list[Path] = []

    def write(config: Any, out: Path, *_: Any) -> list[Path]:
        made.append(out)
        return [shutil.copytree(good.folder, out)]

    monkeypatch.setattr(jobs, "train", write)
    run = train(make_config("rtd_dqn", "tuned"))
    assert run.folder == made[0]
    (((remove, *arguments), options),) = at_exit
    remove(*arguments, **options)
    assert not made[0].parent.exists()
    np.testing.assert_array_equal(run.act(OBS), good.act(OBS))  # all of it is loaded


def test_seeds_give_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (4, 5):
        write_run(tmp_path / f"seed-{seed}", seed=seed)
    monkeypatch.setattr(jobs, "train", lambda config, out, seeds, *rest: [out / f"seed-{seed}" for seed in seeds])
    trained = train(make_config("rtd_dqn", "tuned"), tmp_path, seeds=[4, 5])
    assert [run.settings.seed for run in trained] == [4, 5]


def test_public_names() -> None:
    from deeprok import plot, tabular

    assert deeprok.plot is plot
    assert deeprok.solve is tabular.solve
    assert set(dir(deeprok)) >= {"load", "train", "evaluate", "calibrate", "export", "solve", "plot"}


# --- the examples of the docstrings -------------------------------------------------------------------------------

#: Module -> how many lines of examples it has.
EXAMPLES = {
    "evaluation.trained": 8,
    "training.train": 2,
    "evaluation.grid": 2,
    "evaluation.result": 4,
    "evaluation.comparison.compare": 3,
    "evaluation.comparison.result": 4,
    "evaluation.calibration": 2,
    "evaluation.export.write": 1,
    "plot": 4,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the runs that the examples speak of."""
    out = tmp_path_factory.mktemp("examples")
    for name, algorithm in (("rok", "deep_rok"), ("ddqn", "ddqn"), ("ekf", "ekf_dqn")):
        write_run(out / "runs" / name, algorithm, spread=0.1)
    return out


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.usefixtures("unplayed")
def test_examples(folders: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def begin(config: Any, out: Path, *_: Any) -> list[Path]:
        run = write_run(out)
        runs.append_metrics(run, {"steps": 90, "episodes": config.episodes, "returns": [1.0] * (config.episodes - 3)})
        return [run]

    monkeypatch.chdir(folders)
    monkeypatch.setattr(jobs, "train", begin)
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=dict))
    module = importlib.import_module(f"deeprok.{name}")
    assert doctest.testmod(module, globs={"deeprok": deeprok, "np": np}) == (0, EXAMPLES[name])
