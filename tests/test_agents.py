from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from configurations import make_readable

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.clock import Clock
from deeprok.agents.learner import Learner
from deeprok.agents.network import MLP
from deeprok.agents.q_learning import AgentState, Draw
from deeprok.agents.replaying import make_estimator
from deeprok.agents.targets import TARGETS
from deeprok.core.errors import DeeprokError
from deeprok.environments.base import Transition
from deeprok.estimators import Fit, GradientConfig
from deeprok.runs.settings import Config, make_config

OBS = jnp.array([0.1, -0.2, 0.05, 0.3])
ON, OFF = jnp.array(True), jnp.array(False)
LATE = Clock(jnp.int32(39), 0.5)
SMALL: dict[str, Any] = dict(
    hidden=(4, 3), episodes=1, horizon=40, warm_up=0, target_period=10**6, robust_set="minimum"
)


class Case(NamedTuple):
    """An agent with a full replay of random transitions and a target that differs from its weights."""

    config: Config
    agent: Learner
    learn: Callable[..., tuple[AgentState, Fit]]
    state: AgentState
    draw: Draw
    batch: Transition

    @property
    def models(self) -> int:
        return self.batch.reward.shape[1]


def make_case(algorithm: str, models: int, **changes: Any) -> Case:
    """All but `learn` is numpy or compiled once for all cases, operation by operation."""
    config = make_readable(algorithm, "paper", **{**SMALL, "models": models, **changes})
    agent = config.make_learner()
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(40, 4)), rng.integers(2, size=(40, 1))
    outcomes = rng.normal(size=(40, models)), rng.normal(size=(40, models * 4)), rng.random((40, models)) < 0.3
    seen = np.concatenate([obs, action, *outcomes], axis=1)
    state = agent.init(jax.random.key(0))
    memory = np.zeros(state.memory.shape, state.memory.dtype)
    for t, row in enumerate(seen):
        memory[t % len(memory)] = row
    target = np.asarray(rng.normal(size=agent.view.network.num_weights) * 0.5, state.target.dtype)
    draw = agent.draw(jax.random.key(1))
    rows = memory[np.asarray(draw.batch).reshape(-1) % min(40, len(memory))]
    obs, action, reward, next_obs, terminated = np.split(rows, np.cumsum([4, 1, models, 4 * models]), axis=1)
    batch = Transition(
        obs=obs,
        action=action[:, 0].astype(np.int32),
        reward=reward,
        next_obs=next_obs.reshape(-1, models, 4),
        terminated=terminated != 0,
    )
    state = dataclasses.replace(state, target=jnp.asarray(target), memory=jnp.asarray(memory))
    return Case(config, agent, jax.jit(agent.learn), state, draw, batch)


def q_of(case: Case, theta: jax.Array, obs: jax.Array) -> np.ndarray:
    network = case.agent.view.network
    theta, scale = np.asarray(theta, float), np.asarray(network.input_scale)
    return oracles.mlp(theta, network.sizes, network.activation, scale, np.asarray(obs, float))


def labels_of(case: Case, level: float | None = None) -> np.ndarray:
    """The batch's labels, one by one."""
    batch, ys = case.batch, []
    theta = case.agent.view.mean(case.state.belief)
    for reward, terminated, next_obs in zip(batch.reward, batch.terminated, batch.next_obs, strict=True):
        next_q = np.array([q_of(case, case.state.target, x) for x in next_obs])
        if case.config.target.double:
            best = [int(np.argmax(q_of(case, theta, x))) for x in next_obs]
            next_q = np.array([[q[a]] for q, a in zip(next_q, best, strict=True)])
        ys.append(oracles.label(reward, terminated, next_q, case.config.discount, level))
    return np.array(ys)


CASES = {
    "dqn": dict(algorithm="dqn", models=1),
    "ddqn": dict(algorithm="ddqn", models=1),
    "rtd_dqn": dict(algorithm="rtd_dqn", models=3),
    "rtd_dqn double": dict(algorithm="rtd_dqn", models=3, double=True),
    "rtd_dqn cvar": dict(algorithm="rtd_dqn", models=3, robust_set="cvar", robust_level=0.5),
    "ekf_dqn": dict(algorithm="ekf_dqn", models=1),
    "deep_rok": dict(algorithm="deep_rok", models=3),
    "deep_rok cvar": dict(algorithm="deep_rok", models=3, robust_set="cvar", robust_level=0.8),
}


@functools.cache
def linearise(network: MLP) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """`(theta, obs, action) -> ` Q(s, a) of a batch and its Jacobian, compiled once for all agents."""

    def q(theta: jax.Array, obs: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.take_along_axis(network.apply(theta, obs), action[:, None], axis=1)[:, 0]

    return jax.jit(lambda *x: (q(*x), jax.jacfwd(q)(*x)))


def linearised(case: Case) -> tuple[np.ndarray, np.ndarray]:
    value, slope = linearise(case.agent.view.network)(case.state.belief.theta, case.batch.obs, case.batch.action)
    return np.asarray(value), np.asarray(slope)


def fitted(case: Case, ys: np.ndarray) -> np.ndarray:
    """The weights after an update that observes these labels: Adam's first step, or Algorithm 2."""
    theta, settings = np.asarray(case.state.belief.theta), case.config.estimator
    value, slope = linearised(case)
    if isinstance(settings, GradientConfig):
        descent = slope.T @ (ys - value) / len(ys)
        return theta + settings.learning_rate * descent / (np.abs(descent) + 1e-8)
    prior = settings.prior_covariance * np.eye(len(theta))
    noises = settings.observation_noise, settings.process_noise
    return oracles.averaged_filter(theta, prior, slope, ys - value, *noises).theta


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_learn_fits_the_labels(x64, settings: dict[str, Any]) -> None:
    case = make_case(**settings)
    level = case.config.target.robust_level if case.models > 1 and case.config.target.robust_set == "cvar" else None
    learned, fit = case.learn(case.state, case.draw, LATE, ON)
    theta = case.state.belief.theta
    values = [q_of(case, theta, x)[a] for x, a in zip(case.batch.obs, case.batch.action, strict=True)]
    ys = labels_of(case, level)
    np.testing.assert_allclose(fit.loss, 0.5 * np.mean((ys - values) ** 2), rtol=1e-9)
    np.testing.assert_allclose(learned.belief.theta, fitted(case, ys), rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(learned.target, case.state.target)


def test_double_and_plain_labels_differ() -> None:
    plain, double = (make_case("dqn", 1, double=double) for double in (False, True))
    assert not np.allclose(labels_of(plain), labels_of(double))


NOISE: dict[str, Any] = dict(observation_noise=0.02, process_noise=0.03, discount=0.9)
LABELS = {"nominal labels (theorem 1)": ("ekf_dqn", 1), "robust labels (theorem 2)": ("deep_rok", 5)}


def gradient_ratio(case: Case) -> float:
    """The size of the objective's gradient after an update over that before.

    The objective is 1/(2 Pₙ) mean (y − Q(s, a))² + ½ (θ − θ̂)ᵀ P⁻¹ (θ − θ̂), with Q linearised at
    the prior mean θ̂ and P the predicted covariance.
    """
    prior, settings = case.state.belief, case.config.estimator
    theta = np.asarray(prior.theta)
    predicted = case.agent.view.posterior.covariance(prior) + settings.process_noise * np.eye(len(theta))
    (value, slope), ys = linearised(case), labels_of(case)

    def size(at: np.ndarray) -> float:
        missed = ys - value - slope @ (at - theta)
        pull = -slope.T @ missed / (len(ys) * settings.observation_noise)
        return float(np.linalg.norm(pull + np.linalg.solve(predicted, at - theta)))

    learned, _ = case.learn(case.state, case.draw, LATE, ON)
    before, after = size(theta), size(np.asarray(learned.belief.theta))
    assert before > 0.1
    return after / before


def with_correlated_prior(case: Case) -> Case:
    """The same case after a few updates, so that the covariance has no simple form."""
    state = case.state
    for k in range(2, 5):
        state, _ = case.learn(state, case.agent.draw(jax.random.key(k)), LATE, ON)
    return case._replace(state=state)


@pytest.mark.parametrize(("algorithm", "models"), LABELS.values(), ids=LABELS)
@pytest.mark.parametrize(("batching", "batch_size"), [("joint", 10), ("joint", 1), ("averaged", 1)])
def test_update_minimises_the_papers_objective(x64, algorithm, models, batching, batch_size) -> None:
    case = make_case(algorithm, models, batching=batching, batch_size=batch_size, **NOISE)
    assert gradient_ratio(with_correlated_prior(case)) <= 1e-8


@pytest.mark.parametrize(("algorithm", "models"), LABELS.values(), ids=LABELS)
def test_averaged_gains_do_not_minimise_it(x64, algorithm: str, models: int) -> None:
    case = make_case(algorithm, models, batching="averaged", batch_size=10, **NOISE)
    assert gradient_ratio(with_correlated_prior(case)) > 0.01


@pytest.mark.parametrize(("batching", "batch_size"), [("joint", 10), ("averaged", 1)])
def test_theorem_2_at_the_papers_size(x64, batching: str, batch_size: int) -> None:
    case = make_case("deep_rok", 5, batching=batching, batch_size=batch_size, hidden=(20, 20))
    assert case.state.belief.theta.shape == (562,)
    assert case.config.estimator.observation_noise == 0.001
    assert gradient_ratio(case) <= 1e-8


@functools.cache
def one_and_three_models(algorithm: str) -> tuple[Case, Case]:
    return make_case(algorithm, 1), make_case(algorithm, 3)


@pytest.mark.parametrize(
    ("algorithm", "family"),
    [("rtd_dqn", "minimum"), ("rtd_dqn", "kl"), ("rtd_dqn", "wasserstein"), ("deep_rok", "cvar")],
)
def test_repeated_models_are_one_model(algorithm: str, family: str) -> None:
    one, many = one_and_three_models(algorithm)
    config = make_config(algorithm, "paper", **{**SMALL, "robust_set": family, "robust_level": 0.5})
    learn = jax.jit(config.make_learner().learn)
    obs_action, reward, next_obs, over = np.split(np.asarray(one.state.memory), [5, 6, 10], axis=1)
    memory = np.concatenate([obs_action, *[reward] * 3, *[next_obs] * 3, *[over] * 3], axis=1)
    learned = one.learn(one.state, one.draw, LATE, ON)[0].belief.theta
    same_state, other_state = (dataclasses.replace(one.state, memory=m) for m in (memory, many.state.memory))
    np.testing.assert_allclose(learn(same_state, one.draw, LATE, ON)[0].belief.theta, learned, rtol=1e-4, atol=1e-5)
    assert not np.allclose(learn(other_state, one.draw, LATE, ON)[0].belief.theta, learned, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", params=[name for name, row in ALGORITHMS.items() if row.learner == "q_learning"])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param, 3 if TARGETS[ALGORITHMS[request.param].target].robust else 1)


def same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def test_inactive_agent_stands_still(case: Case) -> None:
    assert same(case.learn(case.state, case.draw, LATE, OFF)[0], case.state)
    assert not same(case.learn(case.state, case.draw, LATE, ON)[0], case.state)


def test_starts_with_its_target_equal_to_its_weights(case: Case) -> None:
    state = case.agent.init(jax.random.key(5))
    np.testing.assert_array_equal(state.target, case.agent.view.mean(state.belief))
    assert state.memory.shape == (min(40, case.config.learner.replay_size), 4 + 1 + case.models * 6)


def test_greedy_takes_the_best_action(case: Case) -> None:
    theta, obs = case.agent.view.mean(case.state.belief), jax.random.normal(jax.random.key(2), (3, 20, 4))
    actions = case.agent.view.env.actions.choose(case.agent.view.network.apply(theta, obs))
    assert actions.shape == (3, 20)
    assert set(np.unique(actions)) == {0, 1}
    for action, x in zip(actions.reshape(-1), obs.reshape(-1, 4), strict=True):
        assert action == np.argmax(q_of(case, theta, x))


@pytest.mark.parametrize(("replay_size", "capacity"), [(30, 30), (500, 40)])
def test_replay_is_no_larger_than_a_run(replay_size: int, capacity: int) -> None:
    assert make_case("dqn", 1, replay_size=replay_size).state.memory.shape[0] == capacity


@pytest.mark.parametrize(("t", "epsilon"), [(0, 0.8), (50, 0.5), (100, 0.2), (5000, 0.2)])
def test_acts_by_the_schedule(t: int, epsilon: float) -> None:
    case = make_case("dqn", 1, epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100)
    best = int(jnp.argmax(case.agent.view.network.apply(case.state.belief.theta, OBS)))
    other = 1 - best
    for coin, action in ((epsilon - 0.01, other), (epsilon + 0.01, best)):
        draw = dataclasses.replace(case.draw, explore=jnp.array([coin, 0.25 if other == 0 else 0.75]))
        assert case.agent.act(case.state, draw, OBS, Clock(jnp.int32(t), 0.0))[0] == action


def test_draws_depend_on_their_key_alone(case: Case) -> None:
    again, other = (case.agent.draw(jax.random.key(k)) for k in (1, 2))
    assert same(again, case.draw)
    assert not np.any(again.explore == other.explore)
    assert not np.any(again.batch == other.batch)
    assert again.batch.shape == (case.config.learner.batch_size,)


def test_joint_agents_multiply_the_noise_by_the_batch(x64) -> None:
    def h(theta, x):
        return theta[0] * x

    for batching, noise in (("joint", 10 * 0.3), ("averaged", 0.3)):
        config = make_config(
            "ekf_dqn",
            "tuned",
            batching=batching,
            batch_size=10,
            observation_noise=0.3,
            process_noise=0.0,
            prior_covariance=1.0,
        )
        estimator = make_estimator(config.task())
        belief = estimator.init(jnp.zeros(1))
        belief, _ = jax.jit(lambda belief, of=estimator: of.update(belief, h, jnp.ones(1), jnp.ones(1)))(belief)
        np.testing.assert_allclose(estimator.posterior.covariance(belief), [[noise / (1 + noise)]], rtol=1e-12)


ROUNDS: dict[str, dict[str, Any]] = {
    "gradient": dict(algorithm="rtd_dqn", models=3, averaging=0.2),
    "normalised": dict(algorithm="dqn", models=1, normalise=True),
    "kalman": dict(algorithm="deep_rok", models=3, robust_set="cvar", confidence="spread", level_start=0.9),
    "backprop": dict(algorithm="bbb_dqn", models=1),
    "langevin": dict(algorithm="psgld_rtd", models=2, burn_in=1, thinning=1, members=2),
    "unscented": dict(algorithm="ktd_q", models=1, batch_size=2, replay_size=40),
}


@pytest.mark.parametrize("settings", ROUNDS.values(), ids=ROUNDS)
def test_a_round_is_its_updates_one_by_one(x64, settings: dict[str, Any]) -> None:
    """Each from its own mini-batch, all with the targets of the round's beginning."""
    # With all data from the first update on: they grow with the rounds.
    one, many = (make_case(**settings, warm_up=39, precision="float64", updates=updates) for updates in (1, 3))
    state, batches = many.state, np.asarray(many.draw.batch)
    assert batches.shape == (3, many.config.learner.batch_size)
    assert len(np.unique(batches)) == batches.size
    losses = []
    for bits in batches:
        state, fit = one.learn(state, dataclasses.replace(one.draw, batch=jnp.asarray(bits)), LATE, ON)
        losses.append(float(fit.loss))
    found, fit = many.learn(many.state, many.draw, LATE, ON)
    assert len(set(losses)) == 3
    np.testing.assert_allclose(fit.loss, losses, rtol=1e-6)
    for expected, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, atol=1e-9)
    still, _ = many.learn(many.state, many.draw, LATE, OFF)
    np.testing.assert_array_equal(still.target, many.state.target)
    np.testing.assert_array_equal(many.agent.view.mean(still.belief), many.agent.view.mean(many.state.belief))


def test_the_target_is_copied_after_the_last_update_of_a_round(x64) -> None:
    often, never = (make_case("dqn", 1, precision="float64", updates=3, target_period=p) for p in (40, 10**6))
    copied, kept = (case.learn(case.state, case.draw, LATE, ON)[0] for case in (often, never))
    np.testing.assert_array_equal(copied.belief.theta, kept.belief.theta)
    np.testing.assert_array_equal(copied.target, copied.belief.theta)
    np.testing.assert_array_equal(kept.target, never.state.target)


def test_several_updates_need_several_transitions() -> None:
    with pytest.raises(DeeprokError, match="updates is 2, but replay_size is 1"):
        make_config("ktd_q", "tuned", updates=2)
    assert "updates" not in make_config("dqn", "tuned").to_json()


SOFT: dict[str, dict[str, Any]] = {
    "gradient": dict(algorithm="rtd_dqn", models=3),
    "averaged weights": dict(algorithm="dqn", models=1, averaging=0.2),
    "several updates": dict(algorithm="dqn", models=1, updates=2),
    "kalman": dict(algorithm="deep_rok", models=3),
}


@pytest.mark.parametrize("settings", SOFT.values(), ids=SOFT)
def test_the_target_follows_at_its_rate(x64, settings: dict[str, Any]) -> None:
    """θ' ← θ' + rate (θ − θ') after every second step, with the weights that the update has left."""
    case = make_case(**settings, precision="float64", target_period=2, target_rate=0.3)
    state, target = case.state, np.asarray(case.state.target)
    for t in range(5):
        clock = Clock(jnp.int32(40 + t), 0.5)
        state, _ = case.learn(state, case.agent.draw(jax.random.key(t)), clock, ON)
        if t % 2:
            target = target + 0.3 * (np.asarray(case.agent.view.mean(state.belief)) - target)
        np.testing.assert_allclose(state.target, target, rtol=1e-12, atol=1e-15)
    still, _ = case.learn(state, case.draw, Clock(jnp.int32(45), 0.5), OFF)
    np.testing.assert_array_equal(still.target, state.target)


LEVELS: dict[str, Any] = dict(robust_set="cvar", robust_level=0.4, confidence="time", level_start=1.0)


@pytest.mark.parametrize("progress", [0.0, 0.15, 0.45, 0.6, 1.0])
def test_labels_are_of_the_level_at_that_progress(x64, progress: float) -> None:
    case = make_case("rtd_dqn", 3, **LEVELS, level_fraction=0.6, level_steps=1)
    _, fit = case.learn(case.state, case.draw, Clock(jnp.int32(39), progress), ON)
    ys = labels_of(case, 1.0 - 0.6 * min(1.0, progress / 0.6))
    theta = case.state.belief.theta
    values = [q_of(case, theta, x)[a] for x, a in zip(case.batch.obs, case.batch.action, strict=True)]
    np.testing.assert_allclose(fit.loss, 0.5 * np.mean((ys - values) ** 2), rtol=1e-9)
