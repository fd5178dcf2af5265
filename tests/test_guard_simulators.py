"""A guard of stateful simulators: it predicts as one in JAX does, and says which simulators it can't take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from identified import POINT_MASS, played
from test_identification_simulators import Slider, Windy, slider

import deeprok
from deeprok.core.errors import DeeprokError
from deeprok.environments import HostEnvironment, from_gymnasium
from deeprok.environments.base import AnyEnvironment
from deeprok.evaluation.guard import Guard, make_guard, models
from deeprok.evaluation.guard.likeliest import climb_to_likeliest
from deeprok.evaluation.guard.noise import with_noise
from deeprok.identification.result import Noise

BOX = {"push": (0.8, 1.2), "friction": (0.4, 0.8)}
NOISE = Noise(process=(0.005, 0.005), sensor=(0.01, 0.005))


def make(env: AnyEnvironment, box: dict[str, tuple[float, float]] = BOX, noise: Noise = NOISE) -> Guard:
    with jax.enable_x64(True):
        watched = models.watch(env, box, noise)
    return Guard(env._replace(box=box), None, watched, None, noise, "", 0.01, None)


@pytest.fixture(scope="module")
def guard() -> Guard:
    return make(slider())


def drive(truth: dict[str, float], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations [T + 1, 2] and actions [T, 1] of a slider with the noise."""
    log = played(POINT_MASS, truth, (steps,), seed=3, process=0.005, sensor=0.01)
    return log.obs[0], log.action[0]


def feed(guard: Guard, obs: np.ndarray, action: np.ndarray) -> list[deeprok.GuardCheck]:
    guard.reset(forget=True)
    return [guard.check(obs[t], action[t], obs[t + 1]) for t in range(len(action))]


@pytest.mark.parametrize("truth", [{"push": 1.2, "friction": 0.4}, {"push": 2.0, "friction": 0.6}])
def test_a_simulator_has_the_likelihood_of_the_environment_in_jax(guard: Guard, truth: dict[str, float]) -> None:
    """By polynomials on one side, by automatic differentiation on the other; alarms are those of the same steps."""
    ours = make(POINT_MASS)
    obs, action = drive(truth, 20)
    found, alarms = [], []
    for each in (guard, ours):
        said = feed(each, obs, action)
        state, watched = each._state, each._watched
        alarms.append([one.alarm for one in said].index(True) if said[-1].alarm else None)
        each.reset(forget=True)
        segment = state.segment
        for t in range(segment.steps, 20):  # an alarm has ended the watching
            segment = models.extended(watched, segment, obs[t], action[t], obs[t + 1])
        with jax.enable_x64(True):
            found.append(climb_to_likeliest(watched, watched.first, segment, in_box=True))
    outside = truth["push"] > BOX["push"][1]
    # An error of the polynomials of a tenth of the noise is let through.
    assert found[0].bound == pytest.approx(found[1].bound, abs=2.0 if outside else 0.2)
    np.testing.assert_allclose(np.exp(found[0].x[0]), [np.exp(found[1].x[0, 0]), found[1].x[0, 1]], rtol=0.02)
    if outside:
        assert abs(alarms[0] - alarms[1]) <= 2
    else:
        assert alarms == [None, None]


def test_a_saved_guard_of_a_simulator_goes_on(guard: Guard) -> None:
    obs, action = drive({"push": 1.5, "friction": 0.6}, 12)
    expected = feed(guard, obs, action)[6:]
    feed(guard, obs[:7], action[:6])
    saved = guard.to_dict()
    guard.reset(forget=True)
    guard.from_dict(saved)
    assert [guard.check(obs[t], action[t], obs[t + 1]) for t in range(6, 12)] == expected


class Cliff(Slider):
    """A slider that fails where it is far to the right."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.state[0] > 3:
            raise ZeroDivisionError
        return super().step(action)


def cliff() -> HostEnvironment:
    return from_gymnasium(Cliff, box=BOX, state=["unwrapped.state"], observation_scale=(1.0, 0.5))


def test_where_a_simulator_fails() -> None:
    """Models around the box are brought nearer until it does not; a step in which it does is left out."""
    wide = {"push": (0.8, 1.2), "friction": (0.1, 1.0)}
    guard = make(cliff(), wide)
    assert np.log(1.0) < guard._watched.around.high[1] <= np.log(1.2)
    first = guard.check([0.0, 0.1], [0.0], [0.01, 0.1])
    said = guard.check([3.5, 0.0], [0.0], [3.5, 0.0])
    assert said.reason == "this step is left out: Cliff fails in it, under a model of the box or around it"
    assert (said.alarm, said.parameters, guard._state.segment.steps) == (False, first.parameters, 0)
    assert guard.check([0.0, 0.1], [0.0], [0.01, 0.1]).reason.startswith("nothing says")
    with pytest.raises(DeeprokError, match=r"^Cliff fails under models of the box, or very close to it; a guard needs"):
        make(cliff(), {"friction": (1.3, 1.5)})


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            slider(state=None),
            r"^env is 'Slider', and nothing says which state an observation stands for; give .*state_of",
        ),
        (
            slider(state_of=lambda obs: obs + 0.1),
            r"is not its state: .*; a guard can't be used where part of the state",
        ),
        (slider(branching="copies"), r"can't be restored; a guard can't be used with it$"),
        (from_gymnasium(Windy, state=["unwrapped.state"]), r"a guard takes such .* in JAX only$"),
    ],
    ids=["unknown", "wrong", "copies", "random"],
)
def test_simulators_that_can_not_be_watched(env: HostEnvironment, sentence: str) -> None:
    with pytest.raises(DeeprokError, match=sentence):
        make(env)


def test_a_run_on_a_simulator_with_memory_and_a_posterior() -> None:
    """The episodes in the box are played with the policy's memory, on the nominal model and the corners."""
    settings = deeprok.make_config("deep_rok", env="CartPole-v1", box="pole_length=0.4:0.6", horizon=8, memory=2)
    widths: list[int] = []
    done: list[float] = []

    def greedy(obs: jax.Array) -> jax.Array:
        widths.append(obs.shape[1])
        return (obs[:, 2] > 0).astype(jnp.int32)

    def values(obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((len(obs), 2)), jnp.stack([jnp.abs(obs[:, 0]), 10 + jnp.abs(obs[:, 0])], axis=1)

    guard = make_guard(settings, settings.make_env(), greedy, values, 0.01, None, None, None, done.append)
    assert set(widths) == {4 + 2 * (4 + 2)}
    assert sum(done) == pytest.approx(1)
    assert guard._values
    assert guard._values.simulated.shape == (3, 100)
    assert np.all((guard._values.simulated > 10) & (guard._values.simulated < 11))  # each goes right at some time
    said = guard.check([0.0, 0.1, 0.02, 0.1], 1, [0.002, 0.3, 0.022, -0.18])
    assert not said.alarm
    assert said.uncertainty == pytest.approx(1, abs=0.5)
    noisy = settings.disturbed(parameter_noise="pole_length=0.1")
    with pytest.raises(DeeprokError, match=r"^parameter_noise is 'pole_length=0\.1', which makes CartPole-v1 itself"):
        make_guard(noisy, noisy.make_env(), greedy, None, 0.01, None, None, None)


def test_the_simulated_system_is_that_of_the_likelihood() -> None:
    """Process noise moves the state, sensor noise only what is seen of it; `outcomes` and `step` have the same."""
    env = slider()
    bare, noisy = env.make(), with_noise(env, Noise((0.3, 0.2), (0.4, 0.1))).make()  # type: ignore[union-attr]
    seen, moved = [], []
    for seed in range(2000):
        start = bare.reset(seed, {})
        noisy.reset(seed, {})
        expected = bare.step(np.zeros(1)).obs
        told = noisy.outcomes(np.zeros(1), {"push": np.ones(1)})
        outcome = noisy.step(np.zeros(1))
        np.testing.assert_array_equal(told.obs[0], outcome.obs)
        moved.append(noisy.inner._env.unwrapped.state - expected)
        seen.append(outcome.obs - expected)
        assert np.all(np.isfinite(start))
    assert np.std(moved, axis=0) == pytest.approx([0.3, 0.2], rel=0.07)
    assert np.std(seen, axis=0) == pytest.approx([0.5, np.hypot(0.2, 0.1)], rel=0.07)
