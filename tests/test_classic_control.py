"""The acrobot, the mountain car, the pendulum with three torques, and the harder Cart-Pole."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from deeprok.environments import ENVIRONMENTS, Environment, Outcome, cartpole, check_quantity, with_model
from deeprok.environments.acrobot import Acrobot, acrobot
from deeprok.environments.hard_cartpole import hard_cartpole
from deeprok.environments.mountain_car import MountainCar, mountain_car
from deeprok.environments.pendulum import Pendulum
from deeprok.environments.swing_up import swing_up

KEY = jax.random.key(0)
ENVS = {env.name: env for env in (acrobot(), mountain_car(), swing_up(), hard_cartpole())}
every_env = pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)


@functools.cache
def player(name: str) -> Callable[[jax.Array, jax.Array, Any], Outcome]:
    """Plays a list of actions from a state, whatever happens on the way: leaves [T, ...]."""

    def play(state: jax.Array, actions: jax.Array, params: Any) -> Outcome:
        def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, Outcome]:
            outcome = ENVS[name].step(KEY, state, action, params)
            return outcome.state, outcome

        return jax.lax.scan(step, state, actions)[1]

    return jax.jit(play)


@functools.cache
def stepper(name: str) -> Callable[[jax.Array, jax.Array, Any], Outcome]:
    """One step from each of 20 states: leaves [20, ...]."""
    env = ENVS[name]
    return jax.jit(jax.vmap(lambda state, action, params: env.step(KEY, state, action, params), (0, 0, None)))


def move(name: str, states: Any, action: int = 1, model: dict[str, float] | None = None) -> Outcome:
    """The outcome of one action, from one state or from 20."""
    padded = jnp.broadcast_to(jnp.asarray(states, jnp.float32), (20, np.shape(states)[-1]))
    env = ENVS[name]
    found = stepper(name)(padded, jnp.full(20, action), with_model(env.nominal, model or {}))
    return jax.tree.map(lambda leaf: np.asarray(leaf[0] if np.ndim(states) == 1 else leaf), found)


def play(name: str, start: np.ndarray, actions: np.ndarray, params: Any) -> Outcome:
    return jax.tree.map(np.asarray, player(name)(jnp.asarray(start), jnp.asarray(actions), params))


def drawn(rng: np.random.Generator, params: Any, same: bool, fixed: tuple[str, ...] = ()) -> dict[str, float]:
    """Values of all parameters: those of the nominal model, or up to twice or half of them but for the fixed ones."""
    nominal = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    return {k: v * (1.0 if same or k in fixed else rng.uniform(0.5, 2.0)) for k, v in nominal.items()}


# --- the acrobot ----------------------------------------------------------------------------------------------------

ACROBOT_NAMES = {
    "link_length_1": "LINK_LENGTH_1",
    "link_mass_1": "LINK_MASS_1",
    "link_mass_2": "LINK_MASS_2",
    "link_centre_1": "LINK_COM_POS_1",
    "link_centre_2": "LINK_COM_POS_2",
    "link_inertia": "LINK_MOI",
    "time_step": "dt",
}


@pytest.mark.parametrize("seed", range(6))
def test_acrobot_equals_gymnasium(x64, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Gymnasium's gravity is fixed. The first two times all numbers are its own, which are the nominal ones.
    physics = drawn(rng, Acrobot(), seed < 2, ("gravity", "initial_range"))
    theirs = AcrobotEnv()
    if seed >= 2:
        for ours, name in ACROBOT_NAMES.items():
            setattr(theirs, name, physics[ours])
        theirs.AVAIL_TORQUE = [-physics["torque"], 0.0, physics["torque"]]
    # Begun high up, so that both sides of the goal are seen, and fast enough for the limits of speed.
    start = rng.uniform(-1, 1, 4) * [0.3, 0.3, 6, 12] + [np.pi, 0, 0, 0]
    actions = rng.integers(0, 3, 200)
    found = play("acrobot", start, actions, with_model(Acrobot(), physics))
    theirs.reset()
    for t, action in enumerate(actions):
        # Each step from our state before it: a double pendulum is chaotic.
        theirs.state = start if t == 0 else found.state[t - 1]
        obs, reward, terminated, _, _ = theirs.step(int(action))
        np.testing.assert_allclose(found.state[t], theirs.state, rtol=1e-9, atol=1e-9, err_msg=f"step {t}")
        np.testing.assert_allclose(found.obs[t], obs, rtol=1e-6, atol=1e-6)
        assert (found.reward[t], found.terminated[t]) == (reward, terminated)
    assert 0 < found.terminated.sum() < 200


def test_stronger_gravity_is_a_faster_clock(x64) -> None:
    """With gravity and torque k-fold, steps shorter by √k go through the same positions, at speeds √k-fold."""
    factor, start, actions = 1.7, np.array([0.3, -0.2, 0.1, 0.4]), np.random.default_rng(0).integers(0, 3, 200)
    scale = np.array([1, 1, factor**0.5, factor**0.5])
    faster = {"gravity": 9.8 * factor, "torque": factor, "time_step": 0.2 / factor**0.5}
    slow = play("acrobot", start, actions, with_model(Acrobot(), {}))
    fast = play("acrobot", start * scale, actions, with_model(Acrobot(), faster))
    # Not for ever: a double pendulum is chaotic.
    np.testing.assert_allclose(fast.state[:40], (slow.state * scale)[:40], rtol=1e-9, atol=1e-9)


# --- the mountain car -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_mountain_car_equals_gymnasium(x64, seed: int) -> None:
    rng = np.random.default_rng(seed)
    physics = drawn(rng, MountainCar(), seed == 0)
    theirs = MountainCarEnv()
    if seed:
        theirs.force, theirs.gravity = physics["force"], physics["gravity"]
    # With the motion, so that the goal and the left end are reached, and now and then anything.
    start, actions, states = rng.uniform([-1.2, -0.07], [0.4, 0.07]), [], []
    theirs.reset()
    theirs.state = start
    for t in range(200):
        coin = rng.random() < 0.8
        actions.append((0 if theirs.state[1] < 0 else 2) if coin else int(rng.integers(0, 3)))
        obs, reward, terminated, _, _ = theirs.step(actions[-1])
        states.append((*theirs.state, reward, terminated))
        if t == 0:
            np.testing.assert_allclose(obs, theirs.state, rtol=1e-6)
    found = play("mountain_car", start, np.array(actions), with_model(MountainCar(), physics))
    np.testing.assert_allclose(found.state, np.array(states)[:, :2], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.obs, found.state)
    np.testing.assert_array_equal(np.stack([found.reward, found.terminated], 1), np.array(states)[:, 2:])
    assert found.terminated.any()


def test_the_wall_stops_the_car() -> None:
    outcome = move("mountain_car", [-1.18, -0.06], 0)
    np.testing.assert_allclose(outcome.state, [-1.2, 0.0])
    assert not outcome.terminated


@pytest.mark.parametrize(("speed", "arrived"), [(0.03, True), (-0.03, False)])
def test_who_rolls_back_over_the_goal_has_not_arrived(speed: float, arrived: bool) -> None:
    assert move("mountain_car", [0.55, speed], 2).terminated == arrived


# --- the pendulum with three torques --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_swing_up_moves_as_gymnasiums_pendulum(x64, seed: int) -> None:
    rng = np.random.default_rng(seed)
    physics = drawn(rng, Pendulum(), seed == 0)
    theirs = PendulumEnv()
    if seed:
        names = {"mass": "m", "length": "l", "gravity": "g", "torque": "max_torque", "time_step": "dt"}
        for ours, name in names.items():
            setattr(theirs, name, physics[ours])
    start, actions = rng.uniform(-1, 1, 2) * [np.pi, 1], rng.integers(0, 3, 200)
    found = play("swing_up", start, actions, with_model(Pendulum(), physics))
    theirs.reset()
    theirs.state = start
    for t, action in enumerate(actions):
        theirs.step(np.array([(action - 1) * theirs.max_torque]))
        np.testing.assert_allclose(found.state[t], theirs.state, rtol=1e-9, atol=1e-9)
        angle = np.arctan2(np.sin(theirs.state[0]), np.cos(theirs.state[0]))
        assert found.reward[t] == (abs(angle) <= 0.3)
    assert not found.terminated.any()


def test_a_rod_that_turns_round_and_round_does_not_succeed() -> None:
    env = ENVS["swing_up"]
    found = play("swing_up", np.array([0.0, 8.0], np.float32), np.full(200, 2), env.nominal)
    assert 0 < found.reward.sum() < env.success_return


# --- the harder Cart-Pole -------------------------------------------------------------------------------------------


def test_hard_cartpole_is_cartpole_with_other_numbers() -> None:
    env, easy = ENVS["hard_cartpole"], cartpole(horizon=500)
    assert (env.horizon, env.success_return) == (500, 475.0)
    assert env.box == {"gravity": (5.0, 20.0), "force": (4.0, 12.0)}
    assert env.nominal == dataclasses.replace(easy.nominal, initial_range=0.15)
    for state in ([0.1, -0.2, 0.05, 0.3], [2.39, 3.0, 0.0, 0.0]):
        expected = easy.step(KEY, jnp.array(state), jnp.int32(1), easy.nominal)
        found = move("hard_cartpole", state)
        np.testing.assert_allclose(found.state, expected.state, rtol=1e-5)
        assert (found.reward, found.terminated) == (expected.reward, expected.terminated)
    start, far = (env.reset(KEY, model.nominal)[0] for model in (easy, env))
    np.testing.assert_allclose(far, 3.0 * start, rtol=1e-6)


@pytest.mark.parametrize("failing_reward", [0.0, 1.0])
def test_settings_reach_the_harder_cartpole(failing_reward: float) -> None:
    part = ENVIRONMENTS["hard_cartpole"]
    settings = part.settings(integrator="semi-implicit", failing_reward=failing_reward, horizon=100)
    env, other = part.make(settings), cartpole("semi-implicit", failing_reward)
    assert (env.horizon, env.success_return) == (100, 95.0)
    for state in ([0.1, -0.2, 0.05, 0.3], [2.39, 3.0, 0.0, 0.0]):
        found, expected = (e.step(KEY, jnp.array(state), jnp.int32(0), env.nominal) for e in (env, other))
        np.testing.assert_array_equal(found.state, expected.state)
        assert found.reward == expected.reward


# --- all of them ----------------------------------------------------------------------------------------------------


@every_env
def test_every_parameter_matters(env: Environment) -> None:
    start = env.reset(KEY, env.nominal)[0]
    states = np.random.default_rng(0).uniform(-0.1, 0.1, (20, len(start)))
    moved = move(env.name, states, 0).state
    for field in dataclasses.fields(env.nominal):
        model = {field.name: 1.1 * getattr(env.nominal, field.name)}
        matters_later = bool(np.any(move(env.name, states, 0, model).state != moved))
        matters_first = bool(jnp.any(env.reset(KEY, dataclasses.replace(env.nominal, **model))[0] != start))
        assert (matters_first, matters_later) == (field.name == "initial_range", field.name != "initial_range")


@every_env
def test_what_is_not_a_number_ends_without_success(env: Environment) -> None:
    state, obs = env.reset(KEY, env.nominal)
    outcome = move(env.name, np.full(len(state), np.nan))
    assert outcome.terminated
    assert outcome.reward < {"acrobot": 0.0, "mountain_car": 0.0, "swing_up": 1.0, "hard_cartpole": 1.0}[env.name]
    assert obs.shape == outcome.obs.shape == (len(env.observation_scale),)


STILL = {"acrobot": [0.1] * 4, "mountain_car": [-0.5, 0.0], "swing_up": [2.0, 0.0]}


@pytest.mark.parametrize(("name", "start"), STILL.items())
def test_time_never_terminates(x64, name: str, start: list[float]) -> None:
    # Nobody pushes: the links and the car stay below, and the rod swings, far beyond the horizon.
    env, state, total = ENVS[name], np.array(start), 0.0
    for _ in range(5):
        found = play(name, state, np.ones(200, int), with_model(env.nominal, {}))
        assert not found.terminated.any()
        state, total = found.state[-1], total + found.reward.sum()
    assert total <= env.success_return


@every_env
def test_boxes_hold_the_nominal_model_and_names_are_registered(env: Environment) -> None:
    part = ENVIRONMENTS[env.name]
    assert part.make(part.settings()).horizon == env.horizon
    assert part.make(part.settings(horizon=7)).horizon == 7
    for name, (low, high) in env.box.items():
        assert low < getattr(env.nominal, name) < high
        check_quantity(env.nominal, name, low, "box")


@pytest.mark.parametrize("name", ["mountain_car", "swing_up"])
def test_grids_hold_every_state(name: str) -> None:
    env = ENVS[name]
    assert env.grid is not None
    axes = env.grid.axes
    assert np.prod([axis.points for axis in axes]) <= 40_000
    low, high = np.array([axis.low for axis in axes]), np.array([axis.high for axis in axes])
    rng = np.random.default_rng(0)
    states = rng.uniform(low, high, (20, 2)).astype(np.float32)
    np.testing.assert_array_equal([env.grid.to_state(env.grid.from_state(state)) for state in states], states)
    for action in range(len(env.actions)):
        reached = [env.grid.from_state(state) for state in move(name, states, action).state]
        for axis, values in zip(axes, np.transpose(reached), strict=True):
            assert axis.periodic or (axis.low - 1e-6 <= values.min() and values.max() <= axis.high + 1e-6)
