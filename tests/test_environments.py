from __future__ import annotations

import dataclasses
import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import probe_envs
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from hypothesis import example, given
from hypothesis import strategies as st

from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Environment, branch, cartpole, check_quantity, with_model
from deeprok.environments.cartpole import CartPole, Integrator
from deeprok.environments.wrappers import with_delay, with_parameter_noise, with_sensor_noise

GYMNASIUM_NAMES = {
    "cart_mass": "masscart",
    "pole_length": "length",
    "pole_mass": "masspole",
    "gravity": "gravity",
    "force": "force_mag",
    "time_step": "tau",
}
KEY = jax.random.key(0)
QUANTITIES = [f.name for f in dataclasses.fields(CartPole)]


def gymnasium_env(physics: dict[str, float], integrator: str) -> CartPoleEnv:
    env = CartPoleEnv()
    env.kinematics_integrator = integrator
    for name, value in physics.items():
        setattr(env, GYMNASIUM_NAMES[name], value)
    env.total_mass = env.masspole + env.masscart
    env.polemass_length = env.masspole * env.length
    return env


@functools.cache
def player(integrator: str):
    """Plays a list of actions from a state, whatever happens on the way."""
    env = cartpole(integrator)

    def play(state, actions, params):
        def step(state, action):
            outcome = env.step(KEY, state, action, params)
            return outcome.state, outcome

        return jax.lax.scan(step, state, actions)[1]

    return jax.jit(play)


def expect_gymnasium(physics: dict[str, float], integrator: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start, actions = rng.uniform(-0.05, 0.05, 4), rng.integers(0, 2, 200)
    with jax.enable_x64(True):
        params = with_model(cartpole().nominal, physics)
        outcome = jax.tree.map(np.asarray, player(integrator)(jnp.asarray(start), jnp.asarray(actions), params))
    assert outcome.state.dtype == np.float64
    env = gymnasium_env(physics, integrator)
    env.reset()
    env.state = start
    for t, action in enumerate(actions):
        _, _, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(outcome.state[t], env.state, rtol=1e-9, atol=1e-12, err_msg=f"step {t}")
        assert outcome.terminated[t] == terminated
        assert outcome.reward[t] == (0.0 if terminated else 1.0)
        if terminated:
            break


@pytest.mark.parametrize("integrator", get_args(Integrator))
@pytest.mark.parametrize("cart_mass", [1.0, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_equals_gymnasium_at_nominal(integrator: str, cart_mass: float, seed: int) -> None:
    # Names without a value here keep Gymnasium's own number, and so must the nominal environment.
    expect_gymnasium({"cart_mass": cart_mass}, integrator, seed)


@given(
    integrator=st.sampled_from(get_args(Integrator)),
    physics=st.fixed_dictionaries(
        {
            "pole_length": st.floats(0.2, 1.4),
            "cart_mass": st.floats(0.1, 7.0),
            "pole_mass": st.floats(0.01, 1.0),
            "gravity": st.floats(1.0, 25.0),
            "force": st.floats(1.0, 30.0),
            "time_step": st.floats(0.005, 0.04),
        }
    ),
    seed=st.integers(0, 2**32 - 1),
)
@example("euler", dict(pole_length=1.4, cart_mass=7.0, pole_mass=0.1, gravity=9.8, force=10.0, time_step=0.02), 0)
def test_equals_gymnasium_at_perturbed(integrator: str, physics: dict[str, float], seed: int) -> None:
    expect_gymnasium(physics, integrator, seed)


STEPS = [
    # pole length, cart mass, action, next velocities
    (0.5, 1.0, 0, -0.395797654644, 0.608023313606),
    (0.5, 1.0, 1, -0.005625065782, 0.023495851519),
    (0.5, 1.5, 0, -0.331609587703, 0.511861540748),
    (0.5, 1.5, 1, -0.069346724307, 0.118958886086),
    (0.2, 0.1, 0, -1.803452635593, 6.342167454398),
    (1.4, 7.0, 0, -0.228571648134, 0.320534924031),
]


@pytest.mark.parametrize(("pole_length", "cart_mass", "action", "x_dot", "theta_dot"), STEPS)
def test_known_steps(x64, pole_length, cart_mass, action, x_dot, theta_dot) -> None:
    env = cartpole()
    params = with_model(env.nominal, {"pole_length": pole_length, "cart_mass": cart_mass})
    outcome = env.step(KEY, jnp.array([0.1, -0.2, 0.05, 0.3]), jnp.int32(action), params)
    np.testing.assert_allclose(outcome.state, [0.096, x_dot, 0.056, theta_dot], rtol=0, atol=6e-13)
    np.testing.assert_array_equal(outcome.obs, outcome.state)


def test_nominal_is_the_papers() -> None:
    part = ENVIRONMENTS["cartpole"]
    env = part.make(part.settings())
    assert (env.nominal.pole_length, env.nominal.cart_mass) == (0.5, 1.5)
    assert env.box == {"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)}
    assert (env.horizon, env.success_return) == (200, 195.0)
    assert part.make(part.settings(horizon=80)).success_return == 78.0  # no return is above 80


FALLING = {
    "pole right": [0.0, 0.0, 0.20, 3.0],
    "pole left": [0.0, 0.0, -0.20, -3.0],
    "cart right": [2.39, 3.0, 0.0, 0.0],
    "cart left": [-2.39, -3.0, 0.0, 0.0],
    "not a number": [float("nan"), 0.0, 0.0, 0.0],
    "angle not a number": [0.0, 0.0, float("nan"), 0.0],
    "infinite": [0.0, float("inf"), 0.0, 0.0],
}


@pytest.mark.parametrize("failing_reward", [0.0, 1.0, -2.0])
@pytest.mark.parametrize("state", FALLING.values(), ids=FALLING)
def test_failing_step_ends_with_its_reward(state: list[float], failing_reward: float) -> None:
    env = cartpole(failing_reward=failing_reward)
    outcome = env.step(KEY, jnp.array(state), jnp.int32(0), env.nominal)
    assert bool(outcome.terminated)
    assert float(outcome.reward) == failing_reward
    fine = env.step(KEY, jnp.zeros(4), jnp.int32(0), env.nominal)
    assert not bool(fine.terminated)
    assert float(fine.reward) == 1.0


@pytest.mark.parametrize("name", QUANTITIES)
def test_every_quantity_matters(name: str) -> None:
    env = cartpole()
    changed = dataclasses.replace(env.nominal, **{name: getattr(env.nominal, name) * 1.1})

    def look(params):
        state = jnp.array([0.1, -0.2, 0.05, 0.3])
        return env.reset(KEY, params)[0], env.step(KEY, state, jnp.int32(1), params).state

    (reset, step), (new_reset, new_step) = look(env.nominal), look(changed)
    assert (name == "initial_range") == bool(jnp.any(reset != new_reset))
    assert (name != "initial_range") == bool(jnp.any(step != new_step))


@pytest.mark.parametrize("size", [0.05, 0.2])
def test_start_fills_the_initial_range(size: float) -> None:
    env = cartpole()
    params = with_model(env.nominal, {"initial_range": size})
    states, obs = jax.vmap(lambda key: env.reset(key, params))(jax.random.split(KEY, 2000))
    np.testing.assert_array_equal(states, obs)
    assert (np.abs(states) <= size).all()
    assert (np.max(states, axis=0) > 0.99 * size).all()
    assert (np.min(states, axis=0) < -0.99 * size).all()
    assert len(np.unique(states)) > 7900


def test_time_never_terminates() -> None:
    # Without gravity and force an upright pole stays where it is, far beyond the horizon.
    env = cartpole(horizon=10)
    params = with_model(env.nominal, {"gravity": 1e-30, "force": 1e-30})
    outcome = player("euler")(jnp.zeros(4), jnp.zeros(1000, jnp.int32), params)
    assert not np.any(outcome.terminated)
    assert np.all(outcome.reward == 1.0)


def test_branch_is_one_step_per_model() -> None:
    env = cartpole()
    state = jnp.array([0.1, -0.2, 0.05, 0.3])
    models = {"pole_length": jnp.array([0.2, 0.5, 1.4]), "force": jnp.array([5.0, 10.0, 12.0])}
    outcomes = branch(env, KEY, state, jnp.int32(1), models)
    assert outcomes.reward.shape == outcomes.terminated.shape == (3,)
    for m in range(3):
        params = with_model(env.nominal, {name: values[m] for name, values in models.items()})
        alone = env.step(KEY, state, jnp.int32(1), params)
        np.testing.assert_allclose(outcomes.state[m], alone.state, rtol=1e-6)
        np.testing.assert_allclose(outcomes.obs[m], alone.obs, rtol=1e-6)
    assert len(np.unique(outcomes.state[:, 1])) == 3


def test_branches_share_their_luck() -> None:
    env = probe_envs.drift()
    outcomes = branch(env, KEY, jnp.zeros(1), jnp.int32(0), {"size": jnp.array([1.0, 1.0, 2.0])})
    first, same, double = np.asarray(outcomes.reward)
    assert first != 0
    assert same == first
    np.testing.assert_allclose(double, 2 * first, rtol=1e-6)
    other = branch(env, jax.random.key(1), jnp.zeros(1), jnp.int32(0), {"size": jnp.array([1.0])})
    assert other.reward[0] != first


def test_a_model_replaces_only_its_quantities() -> None:
    params = with_model(CartPole(), {"cart_mass": 3.0})
    assert dataclasses.asdict(jax.tree.map(float, params)) == pytest.approx(
        {**dataclasses.asdict(CartPole()), "cart_mass": 3.0}
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pole_lenght", 1.0, "'pole_length'"),
        ("cart_mass", 0.0, "cart_mass the value 0"),
        ("cart_mass", -1.0, "must be positive"),
        ("gravity", float("inf"), "inf"),
        ("force", float("nan"), "nan"),
    ],
)
def test_impossible_quantities_are_refused(name: str, value: float, said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        check_quantity(CartPole(), name, value, "here")
    check_quantity(CartPole(), "cart_mass", 1.0, "here")


# What disturbs an environment.

KEY = jax.random.key(3)


def outcomes(env: Environment, count: int = 4000, action: int = 1) -> Any:
    state, _ = env.reset(KEY, env.nominal)
    keys = jax.random.split(jax.random.key(5), count)
    return jax.vmap(lambda key: env.step(key, state, jnp.int32(action), env.nominal))(keys)


def test_sensor_noise_blurs_what_is_seen_and_nothing_else() -> None:
    clean, noisy = cartpole(), with_sensor_noise(cartpole(), 0.05)
    found = outcomes(noisy)
    state, _ = noisy.reset(KEY, noisy.nominal)
    expected = clean.step(KEY, state, jnp.int32(1), clean.nominal)
    np.testing.assert_allclose(found.state, np.broadcast_to(expected.state, found.state.shape), rtol=1e-6)
    np.testing.assert_allclose(found.obs.mean(axis=0), expected.obs, atol=0.01)
    np.testing.assert_allclose(found.obs.std(axis=0), 0.05 * np.array(clean.observation_scale), rtol=0.05)
    starts = jax.vmap(lambda key: noisy.reset(key, noisy.nominal))(jax.random.split(KEY, 4000))
    np.testing.assert_allclose((starts[1] - starts[0]).std(axis=0), 0.05 * np.array(clean.observation_scale), rtol=0.05)


def test_parameter_noise_is_a_fresh_factor_in_each_step() -> None:
    found = outcomes(with_parameter_noise(cartpole(), "force", 0.3))
    speeds = np.asarray(found.obs[:, 1], float)
    state, _ = cartpole().reset(KEY, cartpole().nominal)
    pushed, other = (cartpole().step(KEY, state, jnp.int32(a), cartpole().nominal).obs[1] for a in (1, 0))
    # The speed gained is proportional to the force, and left and right are opposite.
    assert speeds.mean() == pytest.approx(float(pushed), abs=0.01 * abs(float(pushed - other)))
    assert speeds.std() == pytest.approx(0.3 * abs(float(pushed - other)) / 2, rel=0.05)


def test_delay_plays_the_action_before() -> None:
    late, clean = with_delay(cartpole()), cartpole()
    starts = jax.vmap(lambda key: late.reset(key, late.nominal)[0][1])(jax.random.split(KEY, 200))
    assert 0.3 < float(starts.mean()) < 0.7
    (inner, first), _ = late.reset(KEY, late.nominal)
    state = (inner, first)
    pending = first
    for action in (1, 1, 0, 1, 0, 0):
        outcome = late.step(KEY, state, jnp.int32(action), late.nominal)
        expected = clean.step(KEY, inner, pending, clean.nominal)
        np.testing.assert_array_equal(outcome.obs, expected.obs)
        np.testing.assert_array_equal(outcome.reward, expected.reward)
        state, inner, pending = outcome.state, expected.state, jnp.int32(action)
