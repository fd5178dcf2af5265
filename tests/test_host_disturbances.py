"""Sensor noise, late actions and noisy parameters of stateful simulators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deeprok
from deeprok.core.errors import DeeprokError
from deeprok.environments import (
    ENVIRONMENTS,
    Choices,
    EnvironmentPart,
    EpisodeSettings,
    HostEnvironment,
    HostOutcome,
    Interval,
    Simulator,
    make_parameters,
    quantity,
)
from deeprok.environments.host_wrappers import disturbed_simulator
from deeprok.environments.mujoco_tasks import MUJOCO
from deeprok.runs.settings import make_config
from deeprok.training.train import train as train_run


class Pushes:
    """A reward for each push, action 1. Seen is a one, the action that was done last and the bias."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self._model: dict[str, float] = {}
        self._done = -1.0

    def reset(self, seed: int, model: Mapping[str, float]) -> np.ndarray:
        self._model, self._done = {"strength": 1.0, "bias": 1.0, **model}, -1.0
        return np.array([1.0, -1.0, 0.0])

    def step(self, action: Any) -> HostOutcome:
        self._done = float(action)
        seen = np.array([1.0, self._done, self._model["bias"]])
        return HostOutcome(seen, np.float64(self._done * self._model["strength"]), np.bool_(False))

    def outcomes(self, action: Any, models: Mapping[str, np.ndarray]) -> HostOutcome:
        done, count = float(action), len(next(iter(models.values())))
        each = {name: np.broadcast_to(models.get(name, value), (count,)) for name, value in self._model.items()}
        seen = np.stack([np.ones(count), np.full(count, done), each["bias"]], axis=1)
        return HostOutcome(seen, done * each["strength"], np.zeros(count, bool))

    def read(self) -> dict[str, np.ndarray]:
        return {"done": np.array([self._done])}

    def write(self, state: Mapping[str, np.ndarray], model: Mapping[str, float]) -> None:
        self.reset(0, model)
        self._done = float(state["done"][0])


PUSHES = HostEnvironment(
    name="pushes",
    make=Pushes,
    nominal=make_parameters(
        "Motor", {"strength": quantity(1.0, "", "reward of a push"), "bias": quantity(1.0, "", "seen", positive=False)}
    ),
    box={"strength": (0.5, 1.5)},
    observation_scale=(2.0, 1.0, 1.0),
    actions=Choices(("rest", "push")),
    horizon=10,
    success_return=9.5,
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    part = EnvironmentPart(EpisodeSettings, lambda settings: PUSHES._replace(horizon=settings.horizon))
    monkeypatch.setitem(ENVIRONMENTS._entries, "host_pushes", part)


def made(**settings: Any) -> Simulator:
    """The simulator of a run with these settings."""
    simulator: Simulator = make_config("rtd_dqn", "tuned", env="host_pushes", **settings).make_env().make()
    return simulator


@pytest.mark.parametrize("steps", [1, 3])
def test_actions_are_as_late_as_the_setting_says(known, steps: int) -> None:
    actions = [1, 0, 0, 1, 1, 0, 1]
    simulator, first = made(action_delay=steps), []
    for seed in range(40):
        simulator.reset(seed, {})
        done = [simulator.step(np.int32(action)).obs[1] for action in actions]
        np.testing.assert_array_equal(done[steps:], actions[:-steps])
        first.append(done[:steps])
    assert np.all(np.abs(np.mean(first, axis=0) - 0.5) < 0.3)  # random until the first action arrives


def test_sensor_noise_is_in_typical_sizes(known) -> None:
    simulator = made(sensor_noise=0.1)
    starts = np.stack([simulator.reset(seed, {}) for seed in range(2000)])
    np.testing.assert_allclose(starts.std(axis=0), [0.2, 0.1, 0.1], rtol=0.1)
    seen = np.stack([simulator.step(1).obs for _ in range(2000)])
    np.testing.assert_allclose(seen.mean(axis=0), [1.0, 1.0, 1.0], atol=0.02)
    np.testing.assert_allclose(seen.std(axis=0), [0.2, 0.1, 0.1], rtol=0.1)


def test_parameter_noise_is_a_fresh_factor_in_each_step(known) -> None:
    simulator = made(parameter_noise="strength=0.2,bias=2", nominal="strength=3")
    simulator.reset(0, {"bias": 5.0, "strength": 3.0})
    found = [simulator.step(1) for _ in range(3000)]
    rewards, biases = np.array([f.reward for f in found]), np.array([f.obs[2] for f in found])
    np.testing.assert_allclose([rewards.mean(), rewards.std()], [3.0, 0.6], rtol=0.06)
    np.testing.assert_allclose([biases.mean(), biases.std()], [5.0, 10.0], rtol=0.06)
    assert biases.min() < -10
    assert min(f.reward for f in _noisy_pushes(3.0)) == pytest.approx(0.01)  # a positive one stays so


def _noisy_pushes(deviation: float) -> list[HostOutcome]:
    simulator = made(parameter_noise={"strength": deviation})
    simulator.reset(1, {})
    return [simulator.step(1) for _ in range(200)]


def test_outcomes_have_the_noise_of_the_step(known) -> None:
    simulator = made(sensor_noise=0.3, action_delay=2, parameter_noise="strength=0.5")
    simulator.reset(3, {"strength": 0.7})
    for action in (1, 0, 1, 1, 0):
        before = simulator.read()
        found = simulator.outcomes(action, {"strength": np.array([0.7, 1.4, 2.1])})
        assert before is not None
        for name, array in (simulator.read() or {}).items():
            np.testing.assert_array_equal(array, before[name])
        moved = simulator.step(action)
        np.testing.assert_allclose(found.obs, np.tile(moved.obs, (3, 1)))
        np.testing.assert_allclose(found.reward, moved.reward * np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("env", [PUSHES, MUJOCO["Hopper-v5"](), MUJOCO["Reacher-v5"]()], ids=lambda env: env.name)
def test_an_episode_is_continued_with_its_own_random_numbers(env: HostEnvironment) -> None:
    name = next(iter(env.box))
    noisy = disturbed_simulator(env, 0.1, 2, {name: 0.1})
    first, other = noisy.make(), noisy.make()
    assert isinstance(first, Simulator)
    random = np.random.default_rng(0)
    continuous = isinstance(env.actions, Interval)
    actions = [np.asarray(random.uniform(-0.5, 0.5, 3)[: len(env.actions)] if continuous else 1) for _ in range(8)]
    first.reset(7, {name: 1.2})
    other.reset(8, {})
    for action in actions[:4]:
        first.step(action)
    state = first.read()
    assert state is not None
    other.write(state, {name: 1.2})
    for action in actions[4:]:
        for one, two in zip(first.step(action), other.step(action), strict=True):
            np.testing.assert_array_equal(one, two)


def test_without_disturbances_the_environment_is_itself(known) -> None:
    assert disturbed_simulator(PUSHES) is PUSHES
    assert disturbed_simulator(PUSHES, 0.0, 0, {"strength": 0.0}) is PUSHES
    assert isinstance(made(), Pushes)
    # And with hardly any it moves alike.
    nearly, plain = made(sensor_noise=1e-12, parameter_noise="strength=1e-12"), made()
    nearly.reset(0, {"strength": 0.8})
    plain.reset(0, {"strength": 0.8})
    for action in (1, 0, 1):
        for one, two in zip(nearly.step(action), plain.step(action), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-9)


def test_the_simulators_own_end_and_failures_are_seen() -> None:
    class Short(Pushes):
        truncated = True

    simulator = disturbed_simulator(PUSHES._replace(make=Short), 0.1).make()
    simulator.reset(0, {})
    assert getattr(simulator, "truncated", False)
    assert not getattr(disturbed_simulator(PUSHES, 0.1).make(), "truncated", True)
    hopper = disturbed_simulator(MUJOCO["Hopper-v5"](), 0.1).make()
    hopper.reset(0, {"gear_scale": 1e12})
    assert bool(hopper.step(np.full(3, 0.5)).terminated)
    assert hopper.failures == {"unstable": 1}


def test_a_parameter_can_only_change_where_the_state_can_be_put_back() -> None:
    for branching in ("copies", "none"):
        env = PUSHES._replace(branching=branching)
        with pytest.raises(DeeprokError, match="parameter_noise is set, but pushes can't restore its state"):
            disturbed_simulator(env, parameter_noise={"strength": 0.1})
        assert disturbed_simulator(env, 0.1, 1) is not env


def test_names_of_parameters_are_checked(known) -> None:
    with pytest.raises(DeeprokError, match="unknown parameter in parameter_noise 'strenght': did you mean 'strength'"):
        made(parameter_noise="strenght=0.1")


@pytest.mark.slow
def test_training_and_evaluation_are_disturbed(known, tmp_path: Path) -> None:
    """With ε = 1 half of the actions are pushes: their number has the variance 10/4, and each earns 1 ± 1/2."""
    learning = dict(hidden=(2,), episodes=200, chunk_steps=500, warm_up=10, trial_models=2, epsilon_end=1.0)
    config = make_config(
        "dqn", "tuned", env="host_pushes", horizon=10, acting="nominal", **learning, snapshot_every=0, trial_every=9,
        parameter_noise="strength=0.5",
    )  # fmt: skip
    run = train_run(config, tmp_path / "noisy")
    assert run.metrics.returns.var() == pytest.approx(3.75, rel=0.3)
    grid = {"strength": [1.0, 2.0]}
    own = deeprok.evaluate(run, grid, episodes=300, epsilon=1.0)
    plain = deeprok.evaluate(run, grid, episodes=300, epsilon=1.0, parameter_noise="")
    np.testing.assert_allclose(own.std_return**2, 3.75 * np.array([1.0, 4.0]), rtol=0.25)
    np.testing.assert_allclose(plain.std_return**2, 2.5 * np.array([1.0, 4.0]), rtol=0.25)
    assert (own.disturbances, plain.disturbances) == ({"parameter_noise": "strength=0.5"}, {})
    np.testing.assert_array_equal(plain.mean_return[0] * 300, np.round(plain.mean_return[0] * 300))
