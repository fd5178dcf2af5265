"""Policies with memory: what they see, what they learn, and how they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

import deeprok
from deeprok import Run
from deeprok.agents import replay
from deeprok.core.errors import DeeprokError
from deeprok.environments import Environment, Interval, branch, cartpole, with_model
from deeprok.environments.ferry import ferry
from deeprok.environments.pendulum import pendulum
from deeprok.environments.wrappers import with_delay, with_memory, with_sensor_noise
from deeprok.evaluation.export import json_q_values, read_policy
from deeprok.runs.settings import Config, from_json, make_config
from deeprok.training.train import train as train_run

# --- what is seen -------------------------------------------------------------------------------------------------


def encoded(env: Environment, action: Any) -> np.ndarray:
    """The numbers of an action, from the words of its definition."""
    if isinstance(env.actions, Interval):
        low, high = np.array(env.actions.low), np.array(env.actions.high)
        return (np.asarray(action) - (low + high) / 2) / ((high - low) / 2)
    return np.eye(len(env.actions))[int(action)]


@pytest.mark.parametrize("make", [cartpole, pendulum])
def test_observations_are_followed_by_the_last_steps(make: Any) -> None:
    plain, env = make(), with_memory(make(), 3)
    past = np.zeros((3, len(plain.observation_scale) + len(plain.actions)))
    params, key = with_model(plain.nominal, {}), jax.random.key(0)
    state, obs = plain.reset(key, params)
    remembering, seen = env.reset(key, params)
    for t in range(6):
        np.testing.assert_allclose(seen, np.concatenate([obs, past.reshape(-1)]), atol=1e-6)
        assert seen.shape == (len(env.observation_scale),)
        key = jax.random.fold_in(key, t)
        action = plain.actions.sample(key)
        past = np.concatenate([[np.concatenate([obs, encoded(plain, action)])], past[:2]])
        expected, outcome = plain.step(key, state, action, params), env.step(key, remembering, action, params)
        state, obs = expected.state, expected.obs
        remembering, seen = outcome.state, outcome.obs
        np.testing.assert_array_equal(outcome.reward, expected.reward)
        np.testing.assert_array_equal(outcome.terminated, expected.terminated)
    assert past.all(axis=0).any()  # all of the three steps by now


def test_the_parts_of_what_is_seen() -> None:
    env = with_memory(cartpole(), 2)
    sizes = cartpole().observation_scale
    assert env.observation_scale == (*sizes, *sizes, 1.0, 1.0, *sizes, 1.0, 1.0)
    assert env.past
    assert (env.past.observations, env.past.size, env.past.env.name) == (4, 12, "cartpole")
    assert env.past.describe() == {
        "steps": 2,
        "observations": 4,
        "actions": 2,
        "order": "newest first",
        "action": "one-hot",
    }


def test_numbers_of_actions_are_their_places() -> None:
    space = Interval((-2.0, 1.0, 3.0), (2.0, 5.0, 3.0))
    places = jnp.array([[-1.0, 0.5, 0.0], [1.0, -0.25, 0.0]])
    np.testing.assert_allclose(space.encode(space.at(places)), places, atol=1e-6)


def test_all_models_share_the_past() -> None:
    plain, env = cartpole(), with_memory(cartpole(), 2)
    models = {"cart_mass": jnp.array([0.5, 1.5, 4.0])}
    key, action = jax.random.key(1), jnp.int32(1)
    state, seen = env.reset(key, env.nominal)
    outcomes = branch(env, key, state, action, models)
    alone = branch(plain, key, plain.reset(key, plain.nominal)[0], action, models)
    np.testing.assert_array_equal(outcomes.obs[:, :4], alone.obs)
    assert len(np.unique(alone.obs, axis=0)) == 3
    np.testing.assert_array_equal(outcomes.obs[:, 4:8], np.tile(seen[:4], (3, 1)))
    np.testing.assert_array_equal(outcomes.obs[:, 8:10], [[0.0, 1.0]] * 3)
    np.testing.assert_array_equal(outcomes.obs[:, 10:], np.zeros((3, 6)))


@pytest.mark.parametrize("change", [lambda env: with_sensor_noise(env, 0.1), with_delay], ids=["noise", "delay"])
def test_disturbances_go_beneath_the_memory(change: Any) -> None:
    """What is remembered is what was observed and decided."""
    first, second = with_memory(change(cartpole()), 2), change(with_memory(cartpole(), 2)._replace(horizon=9))
    assert (first.observation_scale, second.horizon) == (second.observation_scale, 9)
    params, key = with_model(first.nominal, {}), jax.random.key(2)
    (state, seen), (other, too) = first.reset(key, params), second.reset(key, params)
    for action in (1, 0, 1):
        np.testing.assert_array_equal(seen, too)
        before, key = seen, jax.random.fold_in(key, action)
        outcome, again = (env.step(key, s, jnp.int32(action), params) for env, s in ((first, state), (second, other)))
        (state, seen), (other, too) = (outcome.state, outcome.obs), (again.state, again.obs)
        np.testing.assert_array_equal(seen[4:10], [*before[:4], 1 - action, action])


def test_memories_that_are_refused() -> None:
    with pytest.raises(DeeprokError, match="memory is 3, but cartpole remembers 2 steps by itself"):
        with_memory(with_memory(cartpole(), 2), 3)
    with pytest.raises(DeeprokError, match="memory is 201; it must be at most 200"):
        with_memory(cartpole(), 201)
    with pytest.raises(DeeprokError, match="memory is 100000, which makes 600004 inputs"):
        with_memory(cartpole(horizon=10**6), 100_000)
    with pytest.raises(DeeprokError, match="steps is 0; a memory must have at least 1"):
        with_memory(cartpole(), 0)
    with pytest.raises(DeeprokError, match=r"ferry has a memory of 2 steps, .*; screen it without, as env\.past\.env"):
        deeprok.screen(with_memory(ferry(), 2))


# --- settings -----------------------------------------------------------------------------------------------------


def test_without_memory_nothing_is_written_of_it() -> None:
    assert "memory" not in json.loads(make_config("dqn", "tuned").to_json())
    config = make_config("dqn", "tuned", memory=4)
    assert json.loads(config.to_json())["memory"] == 4
    assert from_json(config.to_json(), "config.json") == config
    assert config.replace(memory=0) == make_config("dqn", "tuned")


OWN = (1.0, 2.0, 3.0, 4.0)


def test_remembered_observations_have_the_factors_of_the_present_one() -> None:
    config = make_config("dqn", "tuned", input_scale=OWN, memory=2)
    assert config.input_scale == (*OWN, *OWN, 1.0, 1.0, *OWN, 1.0, 1.0)
    assert make_config("dqn", "tuned", input_scale=OWN).replace(memory=2) == config
    assert config.replace(memory=1) == make_config("dqn", "tuned", input_scale=OWN, memory=1)
    assert config.replace(memory=0) == make_config("dqn", "tuned", input_scale=OWN)
    assert make_config("dqn", "paper", memory=1).input_scale == (1.0,) * 10
    assert make_config("dqn", "tuned", memory=1).replace(memory=2) == make_config("dqn", "tuned", memory=2)
    every = tuple(float(i) for i in range(1, 11))  # of the past others
    assert make_config("dqn", "tuned", input_scale=every, memory=1).input_scale == every
    with pytest.raises(DeeprokError, match=r"input_scale is \(1.0, 2.0\); cartpole has 4 observations"):
        make_config("dqn", "tuned", input_scale=(1.0, 2.0), memory=2)
    with pytest.raises(DeeprokError, match=r"input_scale is .*; cartpole has 4 observations"):
        make_config("dqn", "tuned", input_scale=every, memory=1).replace(memory=2)


def test_wide_rows_are_counted() -> None:
    wide: dict[str, Any] = dict(models=40, episodes=750)
    make_config("rtd_dqn", "tuned", **wide)
    with pytest.raises(DeeprokError, match=r"a replay of 150000 .* GB .*; lower models, replay_size, memory or"):
        make_config("rtd_dqn", "tuned", **wide, memory=40)


# --- learning -----------------------------------------------------------------------------------------------------


def test_rows_of_the_replay_continue_each_other(train) -> None:
    config = make_config("dqn", "tuned", memory=2, horizon=7, chunk_steps=60, hidden=(2,), epsilon_end=1.0)
    run = train(config)
    steps = jax.tree.map(np.asarray, replay.unpack(jnp.asarray(run.last.agent.memory[0, :60]), 16))
    ended = run.logs[0].ended[0, :, 0]
    age = 0
    for t in range(59):
        following, action = steps.obs[t + 1], np.eye(2)[steps.action[t]]
        assert steps.obs[t, 4:].any() == (age > 0)
        expected = np.concatenate([steps.obs[t, :4], action, steps.obs[t, 4:10]])
        np.testing.assert_array_equal(steps.next_obs[t, 0, 4:], expected)
        np.testing.assert_array_equal(following[4:], np.zeros(12) if ended[t] else expected)
        age = 0 if ended[t] else age + 1
    assert ended.sum() > 5


GAMMA = 0.9
QUICK: dict[str, Any] = dict(
    env="ring", acting="sampled", episodes=100_000, chunk_steps=2000, replay_size=4000, warm_up=50, target_period=50,
    batch_size=16, epsilon_end=1.0, discount=GAMMA, hidden=(16,), learning_rate=5e-3,
)  # fmt: skip


def histories(memory: int) -> tuple[np.ndarray, np.ndarray]:
    """What is seen at first [3, ·] and after the wind has blown [2, 3, ·], by wind and place."""
    env: Environment = make_config("dqn", "tuned", env="ring", memory=memory).make_env()
    first, later = [], []
    for key in map(jax.random.key, range(40)):
        state, seen = env.reset(key, env.nominal)
        if not any(np.array_equal(seen, other) for other in first):
            first.append(np.asarray(seen))
            winds = [with_model(env.nominal, {"wind": wind}) for wind in (-1.0, 1.0)]
            later.append([np.asarray(env.step(key, state, jnp.int32(0), params).obs) for params in winds])
    assert len(first) == 3
    return np.stack(first), np.stack(later, axis=1)


def q_of(run: Any, build: Any, config: Config, obs: np.ndarray) -> np.ndarray:
    view = build(config).program.learner.view
    theta = view.mean(jax.tree.map(lambda leaf: leaf[0], run.last.agent.belief))
    return np.asarray(view.network.apply(jnp.asarray(theta), jnp.asarray(obs)))


@pytest.mark.parametrize(
    "more", [{}, pytest.param(dict(normalise=True), marks=pytest.mark.slow)], ids=["plain", "normalised"]
)
def test_memory_tells_what_one_observation_does_not(train, build, probes, more: dict[str, Any]) -> None:
    """With the last step the wind is known, and each guess earns 1."""
    config = make_config("dqn", "tuned", **QUICK, **more, memory=1)
    first, later = histories(1)
    q = q_of(train(config, chunks=3), build, config, later)
    np.testing.assert_array_equal(q.argmax(axis=-1), [[0] * 3, [1] * 3])
    np.testing.assert_allclose(q, np.broadcast_to(np.eye(2)[:, None], q.shape), atol=0.1)
    np.testing.assert_allclose(q_of(train(config, chunks=3), build, config, first), GAMMA, atol=0.1)


@pytest.mark.slow
def test_without_memory_guesses_are_right_half_of_the_time(train, build, probes) -> None:
    """Over winds and places any policy without memory is right in exactly half of the cases."""
    config = make_config("dqn", "tuned", **QUICK)
    first, later = histories(0)
    guesses = q_of(train(config, chunks=1), build, config, later).argmax(axis=-1)
    assert np.mean(guesses == [[0], [1]]) == 0.5
    # Each place is as likely the first one, worth γ times the next, as the second, worth 1/2: Q = (γQ + 1/2) / 2.
    q = q_of(train(config, chunks=3), build, config, first)
    np.testing.assert_allclose(q, 0.25 / (1 - GAMMA / 2), atol=0.1)


def test_the_worst_model_of_each_step_leaves_nothing_to_be_known(train, build, probes) -> None:
    """All models share the past, so that after either wind the other one is still possible."""
    config = make_config("rtd_dqn", "tuned", **QUICK, memory=1, robust_set="minimum", fixed_models="wind=-1;wind=1")
    _, later = histories(1)
    np.testing.assert_allclose(q_of(train(config, chunks=3), build, config, later), 0.0, atol=0.1)


@pytest.fixture(scope="module")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A policy gradient that has learned to guess the wind."""
    from probe_envs import PROBES

    from deeprok.environments import ENVIRONMENTS

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENTS._entries, "ring", PROBES["ring"])
        learning = dict(learning_rate=0.01, entropy=0.01, episodes=6000, hidden=(16,))
        config = make_config("pg", "tuned", env="ring", memory=1, horizon=2, **learning)
        return train_run(config, tmp_path_factory.mktemp("guesser") / "run")


@pytest.mark.slow
def test_policy_gradients_remember_too(guesser: Run, probes) -> None:
    result = deeprok.evaluate(guesser, grid={"wind": [-1.0, 1.0]}, episodes=50, epsilon=0.0)
    np.testing.assert_array_equal(result.mean_return, [1.0, 1.0])
    np.testing.assert_array_equal(result.success, [1.0, 1.0])


# --- use ----------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = dict(hidden=(3,), episodes=4, horizon=20, chunk_steps=40, warm_up=20, trial_models=2, memory=2)


@pytest.fixture(scope="module")
def kalman(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = make_config("ekf_dqn", "tuned", **SMALL, acting="nominal")
    return train_run(config, tmp_path_factory.mktemp("kalman") / "run")


def episode(env: Environment, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What a random episode of `steps` shows [steps, ·], and the actions taken."""
    params, key = with_model(env.nominal, {}), jax.random.key(seed)
    state, seen = env.reset(key, params)
    rows, actions = [], []
    for t in range(steps):
        action = env.actions.sample(jax.random.fold_in(key, t))
        rows.append(np.asarray(seen))
        actions.append(np.asarray(action))
        outcome = env.step(key, state, action, params)
        state, seen = outcome.state, outcome.obs
    return np.stack(rows), np.stack(actions)


def test_predict_keeps_the_past(kalman: Run) -> None:
    """Played with plain observations, a policy does what it does where the environment remembers."""
    plain, env = kalman.env.past.env, kalman.env
    params, key = with_model(plain.nominal, {}), jax.random.key(4)
    (state, obs), (whole, seen) = plain.reset(key, params), env.reset(key, params)
    past: Any = None
    taken: list[int] = []
    for _ in range(8):
        if taken:
            np.testing.assert_allclose(np.concatenate([obs, past]), seen, atol=1e-6)
        action, past = kalman.predict(obs, past)
        assert action == kalman.act(seen)
        mean, deviation = kalman.q_values(seen)
        assert mean.shape == deviation.shape == (2,)
        taken.append(int(action))
        outcome, known = plain.step(key, state, action, params), env.step(key, whole, action, params)
        (state, obs), (whole, seen) = (outcome.state, outcome.obs), (known.state, known.obs)
        assert isinstance(past, np.ndarray)
        assert past.shape == (12,)
    np.testing.assert_array_equal(past[4:6], np.eye(2)[taken[-1]])
    np.testing.assert_array_equal(past[10:12], np.eye(2)[taken[-2]])


def test_predict_in_batches(kalman: Run) -> None:
    """Episodes side by side are the same as one by one; a new one begins with an empty past."""
    obs = np.random.default_rng(0).normal(size=(5, 3, 4)) * [1, 1, 0.1, 1]
    state = None
    for t in range(5):
        actions, state = kalman.predict(obs[t], state, episode_start=[False, t == 2, t == 0])
        assert actions.shape == (3,)
        assert state.shape == (3, 12)
    for i, start in enumerate((0, 2, 0)):
        alone = None
        for t in range(start, 5):
            action, alone = kalman.predict(obs[t, i], alone)
        assert action == actions[i]
        np.testing.assert_allclose(state[i], alone, atol=1e-6)
        again, _ = kalman.predict(obs[t, i], alone, episode_start=np.array([True]))
        assert again == kalman.predict(obs[t, i])[0]
    np.testing.assert_array_equal(state[1, 6:], [*obs[3, 1].astype(np.float32), *state[1, 10:]])
    assert kalman.predict(obs[0, :0])[1].shape == (0, 12)


def test_random_actions_are_remembered(kalman: Run) -> None:
    obs = np.zeros((400, 4))
    actions, state = kalman.predict(obs, deterministic=False)
    np.testing.assert_array_equal(state[:, 4:6], np.eye(2)[actions])
    assert 0 < np.mean(actions != kalman.predict(obs)[0]) < 0.15


PREDICTS: dict[str, tuple[dict[str, Any], str]] = {
    "with the past": (dict(obs=np.zeros(16)), r"obs has shape \(16,\); cartpole has 4 observations"),
    "short": (dict(obs=np.zeros(4), state=np.zeros(3)), r"state has shape \(3,\); it must be \[12\]"),
    "of others": (dict(obs=np.zeros((2, 4)), state=np.zeros(12)), r"state has shape \(12,\); it must be \[2, 12\]"),
    "infinite": (dict(obs=np.zeros(4), state=np.full(12, np.inf)), "state is .*; it must be finite numbers"),
    "text": (dict(obs=np.zeros(4), state="past"), "state is 'past'; it must be numbers"),
    "starts": (dict(obs=np.zeros((2, 4)), episode_start=[True] * 3), "episode_start is .*; it must be true or false"),
    "ragged": (dict(obs=np.zeros(4), episode_start=[0.5]), r"episode_start is \[0.5\]; it must be true or false$"),
}


@pytest.mark.parametrize(("given", "said"), PREDICTS.values(), ids=PREDICTS)
def test_bad_arguments_of_predict(kalman: Run, given: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        kalman.predict(**given)


def test_act_and_q_values_take_the_past_with_them(kalman: Run) -> None:
    said = (
        r"obs has shape \(4,\); cartpole with a memory of 2 steps has 16 observations, .*; "
        "use predict for observations without the past, which it keeps as its state$"
    )
    for method in (kalman.act, kalman.q_values):
        with pytest.raises(DeeprokError, match=said):
            method(np.zeros(4))


@pytest.mark.slow
def test_numbers_as_actions_are_remembered(tmp_path: Path) -> None:
    shape = dict(trajectories=4, horizon=5, trial_models=2, precision="float64")
    config = make_config("pg", "tuned", env="pendulum", memory=1, hidden=(2,), episodes=4, **shape)
    run = train_run(config, tmp_path / "run")
    obs = np.random.default_rng(1).normal(size=(6, 3))
    actions, state = run.predict(obs)
    np.testing.assert_allclose(
        state, [[*x, *encoded(run.env, a)] for x, a in zip(obs, actions, strict=True)], rtol=1e-9
    )
    assert state.dtype == np.float64
    path = tmp_path / "policy.json"
    deeprok.export(run, path)
    assert read_policy(path)["memory"]["action"] == "places"


def test_exported_policies_say_how_their_inputs_are_laid_out(kalman: Run, tmp_path: Path) -> None:
    for kind in ("json", "onnx"):
        deeprok.export(kalman, tmp_path / f"policy.{kind}")
    policy = read_policy(tmp_path / "policy.json")
    layout = policy["memory"]
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["memory"]) == layout
    # As a user would who knows this layout alone.
    rows, _ = episode(kalman.env.past.env, 6)
    past, state = np.zeros(layout["steps"] * (layout["observations"] + layout["actions"])), None
    for obs in rows:
        seen = np.concatenate([obs, past])[None]
        action = int(json_q_values(policy, seen).argmax())
        assert session.run(["action"], {"obs": seen.astype(np.float32)})[0].tolist() == [action]
        expected, state = kalman.predict(obs, state)
        assert action == expected
        past = np.concatenate([obs, np.eye(layout["actions"])[action], past])[: len(past)]
    np.testing.assert_allclose(past, state, atol=1e-6)


@pytest.mark.parametrize(
    "memory", [3, {}, {"steps": 1, "observations": 4, "actions": 2}, {"steps": 2, "observations": 4, "actions": "2"}]
)
def test_damaged_layouts(kalman: Run, tmp_path: Path, memory: Any) -> None:
    path = tmp_path / "policy.json"
    deeprok.export(kalman, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"memory": memory}))
    with pytest.raises(DeeprokError, match=r"its memory is .*, which does not make 16 inputs; export it again"):
        read_policy(path)


@pytest.mark.slow
def test_calibration_where_the_past_tells_nothing_of_the_model(kalman: Run, tmp_path: Path) -> None:
    assert deeprok.calibrate(kalman, states=5).points == 10
    sampled = train_run(make_config("ekf_dqn", "tuned", **SMALL, acting="sampled"), tmp_path / "run")
    with pytest.raises(DeeprokError, match="acting is 'sampled' and the run has a memory"):
        deeprok.calibrate(sampled)


def test_evaluation_and_caution(kalman: Run) -> None:
    options: dict[str, Any] = dict(grid={"cart_mass": [0.5, 3.0]}, episodes=3)
    assert deeprok.evaluate(kalman, **options).mean_return.shape == (2,)
    assert deeprok.evaluate(kalman, **options, policy="lcb").mean_return.shape == (2,)
    assert deeprok.evaluate(kalman, **options, policy="vote", members=3).mean_return.shape == (2,)
