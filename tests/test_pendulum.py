from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from deeprok.environments import Interval, with_model
from deeprok.environments.pendulum import Pendulum, pendulum
from deeprok.environments.wrappers import with_delay

GYMNASIUM_NAMES = {"mass": "m", "length": "l", "gravity": "g", "torque": "max_torque", "time_step": "dt"}
ENV = pendulum()


@jax.jit
def play(state, actions, params):
    def step(state, action):
        outcome = ENV.step(jax.random.key(0), state, action, params)
        return outcome.state, outcome

    return jax.lax.scan(step, state, actions)[1]


@pytest.mark.parametrize("seed", range(4))
def test_equals_gymnasium(x64, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f.name for f in dataclasses.fields(Pendulum)]
    # The first time Gymnasium's own numbers, which are the nominal ones.
    physics = {name: getattr(Pendulum(), name) * (rng.uniform(0.5, 2) if seed else 1) for name in names}
    start, actions = rng.uniform(-1, 1, 2) * [np.pi, 1], rng.uniform(-1.5, 1.5, (200, 1))
    outcome = jax.tree.map(np.asarray, play(jnp.asarray(start), jnp.asarray(actions), with_model(Pendulum(), physics)))
    env = PendulumEnv()
    if seed:
        for name, value in physics.items():
            setattr(env, GYMNASIUM_NAMES[name], value)
    env.reset()
    env.state = start
    for t, action in enumerate(actions):
        obs, reward, terminated, _, _ = env.step(action * env.max_torque)
        np.testing.assert_allclose(outcome.state[t], env.state, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(outcome.obs[t], obs, rtol=1e-6, atol=1e-6)
        assert outcome.reward[t] == pytest.approx(reward, rel=1e-7)
        assert not terminated
        assert not outcome.terminated[t]


def test_starts_anywhere() -> None:
    states, obs = jax.vmap(lambda key: ENV.reset(key, ENV.nominal))(jax.random.split(jax.random.key(0), 2000))
    assert np.abs(states[:, 0]).max() == pytest.approx(np.pi, rel=0.01)
    assert np.abs(states[:, 1]).max() == pytest.approx(1.0, rel=0.01)
    np.testing.assert_allclose(obs[:, 0] ** 2 + obs[:, 1] ** 2, 1.0, rtol=1e-5)


def test_interval() -> None:
    interval = Interval((-1.0, 0.0), (1.0, 4.0))
    assert len(interval) == 2
    np.testing.assert_allclose(
        interval.at(jnp.array([[-1.0, -1.0], [0.5, 0.5], [9.0, 9.0]])), [[-1, 0], [0.5, 3], [1, 4]]
    )


def test_a_late_hand_begins_anywhere_in_the_interval() -> None:
    late = with_delay(ENV)
    first = jax.vmap(lambda key: late.reset(key, late.nominal)[0][1])(jax.random.split(jax.random.key(0), 500))
    assert first.shape == (500, 1)
    assert np.abs(first).max() > 0.95
    (inner, pending), _ = late.reset(jax.random.key(1), late.nominal)
    outcome = late.step(jax.random.key(0), (inner, pending), jnp.array([0.3]), late.nominal)
    expected = ENV.step(jax.random.key(0), inner, pending, ENV.nominal)
    np.testing.assert_array_equal(outcome.obs, expected.obs)
    np.testing.assert_allclose(outcome.state[1], [0.3])
