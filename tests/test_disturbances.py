"""Sensor noise, late actions and noisy parameters as settings: of training, and of a test."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import probe_envs
import pytest
from finished_runs import write_run
from scipy.stats import norm

import deeprok
from deeprok.cli import streams
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Environment, EnvironmentPart, EpisodeSettings
from deeprok.environments.ferry import ferry
from deeprok.environments.wrappers import disturbed, with_delay
from deeprok.evaluation.report import print_evaluation
from deeprok.runs.settings import make_config
from deeprok.training.train import train as train_run

pytestmark = pytest.mark.usefixtures("probes")

#: Weights of a 3-1-2 network that pushes if and only if the first observation, a one, is positive.
PUSH = np.array([1.0, 0.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.0], np.float32)
PUSHES: dict[str, Any] = dict(env="pushes", input_scale=(1.0,) * 3, best=PUSH, last=PUSH)
GRID = {"strength": [1.0, 2.0]}


def make_env(**settings: Any) -> Environment:
    return make_config("dqn", "tuned", env="pushes", **settings).make_env()


def seen_after(env: Environment, actions: list[int], seed: int = 0) -> np.ndarray:
    """What is seen after each of the actions [T, 3]."""
    key = jax.random.key(seed)
    state, _ = env.reset(key, env.nominal)
    seen = []
    for t, action in enumerate(actions):
        outcome = env.step(jax.random.fold_in(key, t), state, jnp.int32(action), env.nominal)
        state = outcome.state
        seen.append(np.asarray(outcome.obs))
    return np.stack(seen)


def many(env: Environment, count: int = 4000) -> Any:
    """Outcomes of one push, with other random numbers each."""
    state, _ = env.reset(jax.random.key(0), env.nominal)
    keys = jax.random.split(jax.random.key(1), count)
    return jax.vmap(lambda key: env.step(key, state, jnp.int32(1), env.nominal))(keys)


# --- what a setting does to the environment -----------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_actions_are_as_late_as_the_setting_says(steps: int) -> None:
    actions = [1, 0, 0, 1, 1, 0, 1, 0, 1]
    env = make_env(action_delay=steps)
    starts = np.stack([seen_after(env, actions, seed)[:, 1] for seed in range(40)])
    np.testing.assert_array_equal(starts[:, steps:], np.tile(actions[:-steps], (40, 1)))
    assert np.all(np.abs(starts[:, :steps].mean(axis=0) - 0.5) < 0.3)  # random until the first action arrives


def test_sensor_noise_is_in_typical_sizes() -> None:
    obs = many(make_env(sensor_noise=0.1)).obs
    np.testing.assert_allclose(obs.mean(axis=0), [1.0, 1.0, 1.0], atol=0.02)
    np.testing.assert_allclose(obs.std(axis=0), [0.2, 0.1, 0.1], rtol=0.05)


def test_parameter_noise_multiplies_the_named_ones() -> None:
    found = many(make_env(parameter_noise="strength=0.2,bias=0.1"))
    np.testing.assert_allclose([found.reward.mean(), found.reward.std()], [1.0, 0.2], atol=0.01)
    np.testing.assert_allclose([found.obs[:, 2].mean(), found.obs[:, 2].std()], [1.0, 0.1], atol=0.01)
    assert abs(np.corrcoef(found.reward, found.obs[:, 2])[0, 1]) < 0.05  # each has a factor of its own
    one = many(make_env(parameter_noise={"strength": 0.2}))
    np.testing.assert_array_equal(one.obs[:, 2], 1.0)


def test_positive_parameters_stay_positive() -> None:
    found = many(make_env(parameter_noise="strength=2,bias=2"))
    assert float(found.reward.min()) == pytest.approx(0.01)
    assert float(found.obs[:, 2].min()) < -3.0


def test_noise_is_about_the_runs_own_nominal_parameters() -> None:
    found = many(make_env(parameter_noise="strength=0.1", nominal="strength=5"))
    np.testing.assert_allclose([found.reward.mean(), found.reward.std()], [5.0, 0.5], atol=0.05)


def test_without_disturbances_the_environment_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    env = probe_envs.pushes()
    assert disturbed(env) is env
    monkeypatch.setitem(ENVIRONMENTS._entries, "pushes", EnvironmentPart(EpisodeSettings, lambda settings: env))
    for noise in ("", " ", "strength=0"):
        made = make_env(sensor_noise=0.0, action_delay=0, parameter_noise=noise)
        assert (made.reset, made.step) == (env.reset, env.step)
    assert make_env(action_delay=1).step != env.step


def test_the_digest_of_a_run_without_them_is_as_it_was() -> None:
    config = make_config("deep_rok", "paper")
    fields = json.loads(config.to_json())
    assert not {"sensor_noise", "action_delay", "parameter_noise"} & set(fields)
    assert config.replace(action_delay=1).digest() != config.digest()
    assert json.loads(config.replace(parameter_noise={"force": 0.3}).to_json())["parameter_noise"] == "force=0.3"


def test_memory_remembers_what_was_decided() -> None:
    """The action that was done is that of two steps before; the remembered one is the last decision."""
    seen = seen_after(make_env(action_delay=2, memory=1), [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(seen[:, -1], [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(seen[2:, 1], [1, 0, 1])


def test_a_late_environment_has_no_grid_of_states() -> None:
    assert ferry().grid is not None
    with pytest.raises(DeeprokError, match="ferry has no grid of states"):
        deeprok.screen(with_delay(ferry()))
    with pytest.raises(DeeprokError, match="steps is 0; a delay must have at least 1"):
        with_delay(ferry(), 0)


# --- training -----------------------------------------------------------------------------------------------------


def test_training_earns_what_the_settings_leave(tmp_path: Path) -> None:
    """With ε = 1 half of the actions are pushes, whatever was learned."""
    learning = dict(hidden=(2,), episodes=300, chunk_steps=1000, warm_up=10, trial_models=2, epsilon_end=1.0)
    config = make_config("dqn", "tuned", env="pushes", horizon=10, acting="nominal", **learning, snapshot_every=0)
    plain = train_run(config, tmp_path / "plain").metrics.returns
    np.testing.assert_array_equal(plain, np.round(plain))
    noisy = train_run(config.replace(parameter_noise="strength=0.5"), tmp_path / "noisy").metrics.returns
    # Each push earns 1 with a deviation of 1/2: to the binomial variance 10/4 of the pushes comes 5/4.
    assert plain.var() == pytest.approx(2.5, rel=0.25)
    assert noisy.var() == pytest.approx(3.75, rel=0.25)
    assert noisy.mean() == pytest.approx(5.0, abs=0.4)


# --- a test -------------------------------------------------------------------------------------------------------


def test_evaluation_has_the_disturbances_that_are_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "dqn", **PUSHES, horizon=10)

    def evaluate(**options: Any) -> Any:
        return deeprok.evaluate(run, GRID, episodes=400, epsilon=0.0, **options)

    plain = evaluate()
    np.testing.assert_array_equal(plain.mean_return, [10.0, 20.0])
    np.testing.assert_array_equal(evaluate(sensor_noise=0.0, action_delay=0).mean_return, [10.0, 20.0])
    late = evaluate(action_delay=4)  # four actions are coins
    np.testing.assert_allclose(late.mean_return, [8.0, 16.0], atol=0.4)
    np.testing.assert_allclose(late.std_return, [1.0, 2.0], rtol=0.2)
    blurred = evaluate(sensor_noise=0.5)  # of a typical size of 2: the one is seen with a deviation of 1
    np.testing.assert_allclose(blurred.mean_return, 10 * norm.cdf(1.0) * np.array([1.0, 2.0]), rtol=0.05)
    noisy = evaluate(parameter_noise={"strength": 0.2})
    np.testing.assert_allclose(noisy.mean_return, [10.0, 20.0], rtol=0.02)
    np.testing.assert_allclose(noisy.std_return, 0.2 * np.sqrt(10) * np.array([1.0, 2.0]), rtol=0.15)
    assert (plain.disturbances, late.disturbances) == ({}, {"action_delay": 4})
    assert noisy.disturbances == {"parameter_noise": "strength=0.2"}


@pytest.mark.slow
def test_evaluation_has_the_runs_own_disturbances_unless_others_are_given(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "dqn", **PUSHES, horizon=10, action_delay=10, parameter_noise="bias=0.1")

    def evaluate(**options: Any) -> Any:
        return deeprok.evaluate(run, GRID, episodes=400, epsilon=0.0, **options)

    own = evaluate()  # no action ever arrives
    np.testing.assert_allclose(own.mean_return, [5.0, 10.0], atol=0.6)
    assert own.disturbances == {"action_delay": 10, "parameter_noise": "bias=0.1"}
    prompt = evaluate(action_delay=0, parameter_noise="")
    np.testing.assert_array_equal(prompt.mean_return, [10.0, 20.0])
    assert evaluate(action_delay=10).file == own.file
    assert prompt.file.replace("action_delay=0,parameter_noise=,", "") == own.file
    assert prompt.disturbances == {}


@pytest.mark.slow
def test_evaluation_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", "dqn", **PUSHES, horizon=10, sensor_noise=0.1)
    words = "--grid strength=1:2:2 --episodes 50 --epsilon 0 --sensor-noise 0 --action-delay 3"
    assert main(["evaluate", str(run), *words.split(), "--parameter-noise", "strength=0.1,bias=0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    given = {"action_delay": 3, "parameter_noise": "strength=0.1,bias=0.5"}
    assert found["disturbances"] == given
    expected = deeprok.evaluate(run, GRID, 50, 0.0, sensor_noise=0.0, **given)
    np.testing.assert_array_equal(found["mean_return"], expected.mean_return)
    assert found["file"] == expected.file
    assert 5.0 < found["mean_return"][0] < 9.5


def test_the_report_says_what_disturbed_the_test(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "dqn", **PUSHES, horizon=10)
    result = deeprok.evaluate(run, GRID, episodes=2, action_delay=2)
    console = type(streams.out)(file=io.StringIO(), width=200)
    print_evaluation(result, console)
    assert "2 episodes a cell · action_delay 2\n" in console.file.getvalue()
    print_evaluation(dataclasses.replace(result, disturbances={}), console)
    assert "2 episodes a cell\n" in console.file.getvalue()
