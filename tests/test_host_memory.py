"""Memory of stateful simulators: what is seen, what is put back, and how trained runs use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_host import settings
from test_host_disturbances import PUSHES, Pushes

import deeprok
from deeprok import Run
from deeprok.agents import replay
from deeprok.core.errors import DeeprokError
from deeprok.environments import Environment, HostEnvironment, Outcome, Simulator
from deeprok.environments.host_wrappers import action_sampler, disturbed_simulator, remembering_simulator
from deeprok.environments.mujoco_tasks import MUJOCO
from deeprok.environments.wrappers import with_memory
from deeprok.evaluation.export import json_q_values, read_policy
from deeprok.runs.settings import make_config
from deeprok.training import host
from deeprok.training.train import train as train_run

pytestmark = pytest.mark.usefixtures("compiled_once")

ENVS = {
    "CartPole-v1": make_config("ddqn_dr", env="CartPole-v1").make_env(),
    "Pendulum-v1": make_config("td3", env="Pendulum-v1").make_env(),
    "Hopper-v5": MUJOCO["Hopper-v5"](),
}


def actions_of(env: HostEnvironment, count: int) -> list[np.ndarray]:
    sample, random = action_sampler(env), np.random.default_rng(5)
    return [sample(random) for _ in range(count)]


def replayed(env: HostEnvironment, tape: np.ndarray) -> Environment:
    """An environment in JAX whose observations are those of a tape, whatever is done."""
    rows = jnp.asarray(tape)
    return Environment(
        name="tape",
        reset=lambda key, params: (jnp.int32(0), rows[0]),
        step=lambda key, state, action, params: Outcome(state + 1, rows[state + 1], jnp.zeros(()), jnp.bool_(False)),
        nominal=env.nominal,
        box=env.box,
        observation_scale=env.observation_scale,
        actions=env.actions,
        horizon=env.horizon,
        success_return=env.success_return,
    )


# --- what is seen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_what_is_seen_is_laid_out_as_in_jax(name: str) -> None:
    """The memory of JAX, given the observations of an episode without memory, and its actions."""
    env, actions = ENVS[name], actions_of(ENVS[name], 6)
    plain, remembering = env.make(), remembering_simulator(env, 3)
    tape = np.stack([plain.reset(4, {}), *(plain.step(action).obs for action in actions)])
    simulator = remembering.make()
    assert isinstance(simulator, Simulator)
    with jax.enable_x64(True):
        wide, key = with_memory(replayed(env, tape), 3), jax.random.key(0)
        assert remembering.observation_scale == wide.observation_scale
        state, expected = wide.reset(key, env.nominal)
        np.testing.assert_array_equal(simulator.reset(4, {}), expected)
        for action in actions:
            outcome = wide.step(key, state, jnp.asarray(action), env.nominal)
            state = outcome.state
            np.testing.assert_allclose(simulator.step(action).obs, outcome.obs, rtol=1e-15)
    assert np.asarray(outcome.obs[-len(tape[0]) - len(env.actions) :]).any()  # all three steps by now
    # The next episode begins without a past.
    np.testing.assert_array_equal(simulator.reset(4, {}), [*tape[0], *np.zeros(len(expected) - len(tape[0]))])


def test_all_models_share_the_past() -> None:
    env = ENVS["CartPole-v1"]
    simulator, plain = remembering_simulator(env, 2).make(), env.make()
    simulator.reset(1, {"cart_mass": 2.0})
    plain.reset(1, {"cart_mass": 2.0})
    models = {"cart_mass": np.array([0.5, 2.0, 4.0])}
    for action in (1, 0, 1, 1):
        found, alone = simulator.outcomes(action, models), plain.outcomes(action, models)
        taken = simulator.step(action)
        plain.step(action)
        np.testing.assert_array_equal(found.obs[:, :4], alone.obs)
        assert len(np.unique(alone.obs, axis=0)) == 3
        np.testing.assert_array_equal(found.obs[:, 4:], np.tile(taken.obs[4:], (3, 1)))
        np.testing.assert_array_equal(found.obs[1], taken.obs)  # the model of the episode
        np.testing.assert_array_equal(found.reward, alone.reward)


def test_disturbances_go_beneath_the_memory() -> None:
    """What is remembered is what was observed and decided."""
    disturb: Any = dict(sensor_noise=0.1, action_delay=1, parameter_noise={"strength": 0.2})
    env = remembering_simulator(disturbed_simulator(PUSHES, **disturb), 2)
    other = disturbed_simulator(remembering_simulator(PUSHES, 2)._replace(horizon=9), **disturb)
    assert (env.observation_scale, other.horizon) == (other.observation_scale, 9)
    first, second = env.make(), other.make()
    seen = first.reset(3, {})
    np.testing.assert_array_equal(seen, second.reset(3, {}))
    for action in (1, 0, 0, 1):
        after, again = first.step(action), second.step(action)
        for one, two in zip(after, again, strict=True):
            np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(after.obs[3:8], [*seen[:3], 1 - action, action])
        seen = after.obs


def test_the_simulators_own_end_and_failures_are_seen() -> None:
    class Short(Pushes):
        truncated = True

    simulator = remembering_simulator(PUSHES._replace(make=Short), 1).make()
    simulator.reset(0, {})
    assert getattr(simulator, "truncated", False)
    hopper = remembering_simulator(ENVS["Hopper-v5"], 1).make()
    hopper.reset(0, {"gear_scale": 1e12})
    assert bool(hopper.step(np.full(3, 0.5)).terminated)
    assert hopper.failures == {"unstable": 1}


def test_memories_that_are_refused() -> None:
    with pytest.raises(DeeprokError, match="memory is 3, but pushes remembers 2 steps by itself; set it to 0"):
        remembering_simulator(remembering_simulator(PUSHES, 2), 3)
    with pytest.raises(DeeprokError, match="memory is 41; it must be at most 40, the steps of an episode"):
        settings("rtd_dqn", "CartPole-v1", memory=41)


# --- what is put back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENVS)
def test_an_episode_is_continued_with_its_past(name: str) -> None:
    env = remembering_simulator(disturbed_simulator(ENVS[name], 0.1, 2), 3)
    first, second, actions = env.make(), env.make(), actions_of(env, 8)
    parameter = next(iter(env.box))
    model = {parameter: 1.1 * getattr(env.nominal, parameter)}
    first.reset(7, model)
    second.reset(8, {})
    for action in actions[:4]:
        first.step(action)
    state = first.read()
    assert state is not None
    second.write(state, model)
    for action in actions[4:]:
        for one, two in zip(first.step(action), second.step(action), strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_state_that_cannot_be_read_is_none() -> None:
    copies = make_config("rtd_dqn", env="CartPole-v1", branching="copies", memory=2).make_env().make()
    copies.reset(0, {})
    assert copies.read() is None


# --- learning -----------------------------------------------------------------------------------------------------


def test_rows_of_the_replay_continue_each_other() -> None:
    """In turns of two simulators, each with a past of its own."""
    config = settings("ddqn", "CartPole-v1", memory=2, simulators=2, horizon=7, chunk_steps=60, epsilon_end=1.0)
    program = host.make_program(config, processes=False)
    states = jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf)[None]), program.init(jax.random.key(0)))
    states, log = program.advance(states, 0)
    steps = jax.tree.map(np.asarray, replay.unpack(jnp.asarray(states.agent.memory[0, :60]), 16))
    ended = np.asarray(log.ended[0]).reshape(-1)
    for t in range(58):
        expected = np.concatenate([steps.obs[t, :4], np.eye(2)[steps.action[t]], steps.obs[t, 4:10]])
        np.testing.assert_array_equal(steps.next_obs[t, 0, 4:], expected)
        np.testing.assert_array_equal(steps.obs[t + 2, 4:], np.zeros(12) if ended[t] else expected)
    assert ended.sum() > 5


@pytest.mark.slow
def test_numbers_as_actions_are_remembered(tmp_path: Path) -> None:
    config = settings("rtd_td3", "Pendulum-v1", memory=1, steps=100, chunk_steps=50)
    run = train_run(config, tmp_path / "run")
    assert run.metrics.returns.size > 0
    obs = np.random.default_rng(1).normal(size=(6, 3))
    actions, state = run.predict(obs)
    np.testing.assert_allclose(state, np.concatenate([obs, actions / 2.0], axis=1), rtol=1e-5)


# --- use ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = settings("ddqn_dr", "CartPole-v1", memory=2, steps=100)
    return train_run(config, tmp_path_factory.mktemp("host-memory") / "run")


def test_predict_and_exported_policies_keep_the_past_that_the_simulator_shows(trained: Run, tmp_path: Path) -> None:
    env = trained.env
    assert isinstance(env, HostEnvironment)
    assert env.past
    deeprok.export(trained, tmp_path / "policy.json")
    policy = read_policy(tmp_path / "policy.json")
    assert policy["memory"] == env.past.describe()
    plain, remembering = env.past.env.make(), env.make()
    obs, seen = plain.reset(3, {}), remembering.reset(3, {})
    past: Any = None
    for _ in range(6):
        if past is not None:
            np.testing.assert_allclose(np.concatenate([obs, past]), seen, rtol=1e-6)
        action, past = trained.predict(obs, past)
        assert action == trained.act(seen)
        assert action == json_q_values(policy, seen[None]).argmax()
        obs, seen = plain.step(action).obs, remembering.step(action).obs


def test_runs_with_memory_are_evaluated(trained: Run) -> None:
    options: dict[str, Any] = dict(grid={"cart_mass": [0.5, 3.0]}, episodes=3)
    assert deeprok.evaluate(trained, **options).mean_return.shape == (2,)
    late = deeprok.evaluate(trained, **options, action_delay=2)
    assert late.disturbances == {"action_delay": 2}
    assert json.loads((trained.folder / "config.json").read_text())["memory"] == 2
