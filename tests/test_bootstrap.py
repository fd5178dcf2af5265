"""Bootstrapped DQN: an ensemble whose members learn each on its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from comparisons import assert_equal_to_rounding, bits
from configurations import make_readable

from deeprok.agents.bootstrap import EnsembleBelief, EnsembleState
from deeprok.agents.clock import Clock
from deeprok.agents.ensemble import Ensemble, WithPrior, as_perceptron
from deeprok.agents.network import ACTIVATIONS, MLP, Network
from deeprok.core.errors import DeeprokError
from deeprok.environments.base import Transition
from deeprok.evaluation.export import export_policy, json_q_values, read_policy
from deeprok.evaluation.policies import draw_members
from deeprok.runs.settings import Config, make_config

ON, OFF = jnp.array(True), jnp.array(False)
LATE = Clock(jnp.int32(39), 0.5)
SMALL: dict[str, Any] = dict(
    hidden=(4,), episodes=30, horizon=30, chunk_steps=60, warm_up=20, target_period=25, batch_size=5, models=2,
    members=3, trial_models=2,
)  # fmt: skip
MLP3 = MLP((3, 5, 4, 2), "tanh", (1.0, 0.5, -2.0))


def settings(algorithm: str = "boot_dqn", **changes: Any) -> Config:
    return make_readable(algorithm, "paper", **{**SMALL, **changes})


def filled(config: Config, seed: int = 0) -> EnsembleState:
    """A state with a full replay of 40 random transitions, random masks and targets that differ from the weights."""
    rng = np.random.default_rng(seed)
    state = config.make_learner().init(jax.random.key(seed))
    capacity, width = state.memory.shape
    memory = rng.normal(size=(capacity, width))
    memory[:, 4] = rng.integers(0, 2, capacity)
    memory[:, -1] = rng.random(capacity) < 0.3
    return dataclasses.replace(
        state,
        memory=jnp.asarray(memory, state.memory.dtype),
        masks=jnp.asarray(rng.random(state.masks.shape) < 0.5),
        target=jnp.asarray(rng.normal(size=state.target.shape) * 0.5, state.target.dtype),
    )


DIRECT: dict[str, Any] = dict(episodes=1, horizon=40, warm_up=0, models=1, precision="float64")


# --- the networks ------------------------------------------------------------------------------------------


def members_of(theta: jax.Array, scale: float, obs: np.ndarray) -> np.ndarray:
    """Q of each member, [K, E, A], one weight after the other; each has its own weights and then its prior's."""

    def q(row: np.ndarray, x: np.ndarray) -> np.ndarray:
        return oracles.mlp(row, MLP3.sizes, MLP3.activation, np.array(MLP3.input_scale), x)

    rows = np.asarray(theta).reshape(3, 2, MLP3.num_weights)
    return np.array([[q(own, x) + scale * q(prior, x) for x in obs] for own, prior in rows])


def test_an_ensemble_is_the_mean_of_its_members(x64) -> None:
    network = Ensemble(WithPrior(MLP3, 2.5), 3)
    theta, obs = network.init(jax.random.key(0)), np.random.default_rng(0).normal(size=(6, 3))
    assert theta.shape == (network.num_weights,) == (6 * MLP3.num_weights,)
    expected = members_of(theta, 2.5, obs).mean(axis=0)
    np.testing.assert_allclose(network.apply(theta, jnp.asarray(obs)), expected, rtol=1e-12)


@pytest.mark.parametrize("partition", ["slices", "neurons"])
def test_partitions_of_all_weights(partition: str) -> None:
    network = Ensemble(WithPrior(MLP3, 1.0), 3)
    theta = np.arange(network.num_weights)
    parts = [theta[part] for part in getattr(network, partition)]
    assert sorted(np.concatenate(parts)) == list(theta)
    inner = [np.arange(MLP3.num_weights)[part] for part in getattr(MLP3, partition)]
    for k in range(6):
        for part, own in zip(parts[k * len(inner) :], inner, strict=False):
            np.testing.assert_array_equal(part, own + k * MLP3.num_weights)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_ensemble_of_perceptrons_is_one_perceptron(x64, activation: str) -> None:
    for hidden in ((4,), (2, 3, 4)):
        member = MLP((3, *hidden, 2), activation, (1.0, 0.5, -2.0))
        network = Ensemble(WithPrior(member, 1.7), 3)
        theta, obs = network.init(jax.random.key(0)) * 2, jax.random.normal(jax.random.key(1), (7, 3))
        # With biases too, which begin at 0.
        theta = theta + 0.1 * jax.random.normal(jax.random.key(2), theta.shape)
        merged, _ = as_perceptron(network, theta)
        assert isinstance(merged, MLP)
        assert merged.sizes == (3, *(6 * units for units in hidden), 2)

        @jax.jit
        def outputs(theta: jax.Array, network: Any = network, obs: jax.Array = obs) -> tuple[jax.Array, jax.Array]:
            merged, weights = as_perceptron(network, theta)
            return merged.apply(weights, obs), network.apply(theta, obs)

        np.testing.assert_allclose(*outputs(theta), rtol=1e-10, atol=1e-12)


class _Own:
    """A network of which nothing is known but its outputs."""

    num_weights, slices, neurons = MLP3.num_weights, MLP3.slices, MLP3.neurons
    init, apply = MLP3.init, MLP3.apply


def test_what_is_no_sum_of_perceptrons_stays_as_it_is() -> None:
    own: Network = _Own()
    for network in (own, Ensemble(own, 2), Ensemble(WithPrior(own, 1.0), 2), MLP3):
        theta = network.init(jax.random.key(0))
        assert as_perceptron(network, theta) == (network, theta)


@pytest.mark.slow
def test_export_of_an_ensemble(tmp_path: Path) -> None:
    learner = settings(hidden=(4, 3)).make_learner()
    theta = learner.view.mean(learner.init(jax.random.key(0)).belief)
    obs = np.asarray(jax.random.normal(jax.random.key(1), (20, 4)))
    for kind in ("json", "onnx", "c"):  # checked against the ensemble before it is written
        export_policy(learner.view.network, np.asarray(theta), learner.view.env, kind, tmp_path / f"policy.{kind}")
    written = json_q_values(read_policy(tmp_path / "policy.json"), obs)
    np.testing.assert_allclose(written, learner.view.network.apply(theta, jnp.asarray(obs)), rtol=1e-4, atol=1e-5)


# --- learning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boot", "plain"), [("boot_dqn", "dqn"), pytest.param("boot_rtd", "rtd_dqn", marks=pytest.mark.slow)]
)
def test_one_member_without_mask_and_prior_is_the_plain_agent(build, boot: str, plain: str) -> None:
    same = dict(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=200, updates=2, train_every=2)
    alone = build(settings(boot, **same, members=1, mask=1.0, prior_scale=0.0)).program
    usual = build(settings(plain, **same)).program
    key = jax.random.key(3)
    expected = usual.init(key)
    members = jax.tree.map(lambda leaf: jnp.copy(leaf[None]), expected.agent.belief)
    found = alone.init(key, EnsembleBelief(members=members, prior=jnp.zeros((1, 0))))
    found, expected = (jax.tree.map(lambda leaf: jnp.copy(leaf[None]), run) for run in (found, expected))
    before = np.array(expected.agent.target)
    for chunk in range(2):
        found, its = alone.advance(found, chunk)
        expected, log = usual.advance(expected, chunk)
        assert_equal_to_rounding((its.earned, its.fit.loss), (log.earned, log.fit.loss), 1e-4)
    assert_equal_to_rounding(found.agent.memory, expected.agent.memory)
    assert_equal_to_rounding(found.agent.belief.members.theta[:, 0], expected.agent.belief.theta, 1e-4)
    assert_equal_to_rounding(found.agent.target[:, 0], expected.agent.target, 1e-4)
    assert np.abs(expected.agent.target - before).max() > 0.01


@pytest.mark.parametrize("double", [False, True])
def test_each_member_learns_from_its_own_target_and_its_own_part(x64, double: bool) -> None:
    """An SGD step of every member, its gradient by finite differences of the textbook loss."""
    changes = dict(DIRECT, optimizer="sgd", learning_rate=0.1, double=double, target_period=1000)
    config = settings(**changes, prior_scale=1.5, batch_size=8)
    learner, state = config.make_learner(), filled(config)
    n, obs_size = config.make_network(config.make_env()).num_weights, 4
    draw = learner.draw(jax.random.key(1))
    after, fit = jax.jit(learner.learn)(state, draw, LATE, ON, None)
    rows = np.asarray(draw.batch) % len(state.memory)
    memory, masks = np.asarray(state.memory)[rows], np.asarray(state.masks)[rows]
    network = config.make_network(config.make_env())
    scale = np.asarray(config.input_scale)
    losses = []
    for k in range(3):
        prior, target, theta = (
            np.asarray(x[k]) for x in (state.belief.prior, state.target, state.belief.members.theta)
        )

        def q(weights: np.ndarray, x: np.ndarray, prior: np.ndarray = prior) -> np.ndarray:
            values = [oracles.mlp(w, network.sizes, network.activation, scale, x) for w in (weights, prior)]
            return values[0] + 1.5 * values[1]

        ys = []
        for row in memory:
            reward, following, over = row[obs_size + 1], row[obs_size + 2 : -1], row[-1]
            best = int(np.argmax(q(theta if double else target, following)))
            ys.append(reward + (1 - over) * config.discount * q(target, following)[best])

        def loss(weights: np.ndarray, ys: list[float] = ys, q: Any = q, k: int = k) -> float:
            errors = [
                mask * (y - q(weights, row[:obs_size])[int(row[obs_size])]) ** 2
                for row, y, mask in zip(memory, ys, masks[:, k], strict=True)
            ]
            return 0.5 * float(np.mean(errors))

        losses.append(loss(theta))
        slope = [(loss(theta + step) - loss(theta - step)) / 2e-6 for step in 1e-6 * np.eye(n)]
        np.testing.assert_allclose(after.belief.members.theta[k], theta - 0.1 * np.array(slope), rtol=1e-6, atol=1e-9)
        assert np.abs(slope).max() > 0.01
    assert fit.loss == pytest.approx(np.mean(losses) / config.learner.mask)
    np.testing.assert_array_equal(after.belief.prior, state.belief.prior)


def test_who_is_masked_out_of_everything_does_not_move(x64) -> None:
    config = settings(**DIRECT)
    state = filled(config)
    state = dataclasses.replace(state, masks=state.masks.at[:, 1].set(False).at[:, 0].set(True))
    learner = config.make_learner()
    after, _ = jax.jit(learner.learn)(state, learner.draw(jax.random.key(1)), LATE, ON, None)
    moved = np.abs(after.belief.members.theta - state.belief.members.theta).max(axis=1)
    assert moved[0] > 1e-4
    assert moved[1] == 0.0


def test_masks_are_drawn_once_for_each_transition_and_member() -> None:
    config = settings(**DIRECT | dict(members=40, mask=0.3))
    learner = config.make_learner()
    state = learner.init(jax.random.key(0))
    shape = state.memory[0].shape
    row = Transition(jnp.ones(4), jnp.int32(1), jnp.ones(1), jnp.ones((1, 4)), jnp.zeros(1, bool))
    drawn = [learner.draw(jax.random.key(t)) for t in range(40)]
    for t, draw in enumerate(drawn):
        state = learner.plays.observe(state, row, draw, Clock(jnp.int32(t), 0.0), OFF, ON)
    np.testing.assert_array_equal(state.masks, [draw.mask for draw in drawn])
    assert np.mean(state.masks) == pytest.approx(0.3, abs=0.04)  # 1600 draws: three standard deviations
    still = learner.plays.observe(state, row, drawn[7], Clock(jnp.int32(2), 0.0), OFF, OFF)
    assert bits(still) == bits(state)
    assert (shape, state.memory.shape) == ((11,), (40, 11))
    everyone = settings(**DIRECT, mask=1.0).make_learner()
    assert everyone.init(jax.random.key(0)).masks.shape == (40, 0)
    assert everyone.draw(jax.random.key(0)).mask.shape == (0,)


def test_inactive_ensemble_stands_still() -> None:
    config = settings(**DIRECT | dict(target_period=40))
    learner, state = config.make_learner(), filled(config)
    draw = learner.draw(jax.random.key(1))
    assert bits(jax.jit(learner.learn)(state, draw, LATE, OFF, None)[0]) == bits(state)
    copied, _ = jax.jit(learner.learn)(state, draw, LATE, ON, None)
    np.testing.assert_array_equal(copied.target, copied.belief.members.theta)  # each its own


@pytest.mark.parametrize("algorithm", ["boot_dqn", pytest.param("boot_rtd", marks=pytest.mark.slow)])
def test_members_differ_and_a_seed_repeats(train, algorithm: str) -> None:
    config = settings(algorithm, averaging=0.1, robust_set="cvar", robust_level=0.5)
    first, again = (train(config, seeds=(0, 1), chunks=2).last for _ in range(2))
    assert bits(first) == bits(again)
    theta, prior = first.agent.belief.members.inner.theta, first.agent.belief.prior
    for rows in (theta[0], prior[0], first.agent.target[0]):
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert np.abs(rows[i] - rows[j]).max() > 0.1
    assert np.mean(theta[0] == theta[1]) < 0.1  # two seeds
    assert not np.array_equal(theta, prior)
    assert set(np.unique(first.agent.masks)) == {False, True}


# --- acting and what others see ------------------------------------------------------------------------------


def test_one_member_acts_until_the_episode_ends() -> None:
    config = settings(**DIRECT | dict(members=5))
    learner = config.make_learner()
    state = learner.init(jax.random.key(0))
    row = Transition(jnp.ones(4), jnp.int32(1), jnp.ones(1), jnp.ones((1, 4)), jnp.zeros(1, bool))
    rows = learner.view.network.rows(learner.view.mean(state.belief))  # type: ignore[attr-defined]
    seen = set()
    for t in range(30):
        draw = learner.draw(jax.random.key(t))
        obs = jax.random.normal(jax.random.key(100 + t), (4,))
        q = learner.view.network.member.apply(rows[state.acting], obs)  # type: ignore[attr-defined]
        assert learner.act(state, draw, obs, LATE)[0] == jnp.argmax(q)
        going = learner.plays.observe(state, row, draw, LATE, OFF, ON)
        assert going.acting == state.acting
        state = learner.plays.observe(state, row, draw, LATE, ON, ON)
        assert state.acting == draw.member
        seen.add(int(state.acting))
    assert seen == set(range(5))


def test_random_actions_by_the_schedule() -> None:
    learner = settings(**DIRECT | dict(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100)).make_learner()
    state, obs = learner.init(jax.random.key(0)), jnp.array([0.1, -0.2, 0.05, 0.3])
    draw = learner.draw(jax.random.key(0))
    at = Clock(jnp.int32(50), 0.0)
    best = int(learner.act(state, dataclasses.replace(draw, explore=jnp.array([0.99, 0.0])), obs, at)[0])
    for coin, action in ((0.49, 1 - best), (0.51, best)):
        forced = dataclasses.replace(draw, explore=jnp.array([coin, 0.25 if best else 0.75]))
        assert learner.act(state, forced, obs, at)[0] == action


def test_the_posterior_is_the_members(x64) -> None:
    learner = settings(**DIRECT).make_learner()
    view, state = learner.view, filled(settings(**DIRECT))
    belief, obs = state.belief, jax.random.normal(jax.random.key(1), (6, 4))
    assert view.posterior
    assert view.values
    theta = np.asarray(view.mean(belief))
    rows = theta.reshape(3, -1)
    q = np.array([view.network.member.apply(jnp.asarray(row), obs) for row in rows])  # type: ignore[attr-defined]
    mean, deviation = view.values(belief, obs)
    np.testing.assert_allclose(mean, q.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(mean, view.network.apply(jnp.asarray(theta), obs), rtol=1e-10)
    np.testing.assert_allclose(deviation, q.std(axis=0), rtol=1e-8)
    # A draw is a member in the place of all: its mean Q is that member's.
    drawn = draw_members(view, belief, "vote", 60, seed=0)
    alone = np.array([view.network.apply(jnp.asarray(one), obs) for one in drawn])
    nearest = [int(np.argmin(np.abs(q - one).max(axis=(1, 2)))) for one in alone]
    np.testing.assert_allclose(alone, q[nearest], rtol=1e-10)
    assert set(nearest) == {0, 1, 2}
    # Moments of that draw, by the list of its three values.
    values = np.array([np.tile(row, 3) for row in rows])
    H = np.random.default_rng(0).normal(size=(4, values.shape[1]))
    np.testing.assert_allclose(view.posterior.variances(belief), values.var(axis=0), atol=1e-12)
    np.testing.assert_allclose(view.posterior.covariance(belief), np.cov(values.T, bias=True), atol=1e-12)
    variance = view.posterior.predictive_variance(belief, jnp.asarray(H))
    np.testing.assert_allclose(variance, (values @ H.T).var(axis=0), rtol=1e-9)
    assert view.posterior.definite(belief)
    broken = dataclasses.replace(belief, prior=belief.prior.at[0, 0].set(jnp.nan))
    assert not view.posterior.definite(broken)


@pytest.mark.slow
def test_the_prior_stays_where_no_data_are(train) -> None:
    """With data of one state alone, members agree there and differ elsewhere by their priors."""
    config = settings(**DIRECT | dict(mask=1.0, prior_scale=3.0, members=6, learning_rate=0.03, hidden=(20,)))
    learner, state = config.make_learner(), filled(config)
    here, far = jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.array([-1.0, 2.0, 1.0, -2.0])
    both = state.memory.at[:, :4].set(here).at[:, 5].set(0.7).at[:, -1].set(1.0)  # one step, reward 0.7
    state = dataclasses.replace(state, memory=both)
    learn = jax.jit(learner.learn)
    for t in range(400):
        state, _ = learn(state, learner.draw(jax.random.key(t)), LATE, ON, None)
    assert learner.view.values
    mean, deviation = learner.view.values(state.belief, jnp.stack([here, far]))
    np.testing.assert_allclose(mean[0], 0.7, atol=0.02)
    assert deviation[0].max() < 0.02
    assert deviation[1].min() > 0.3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"members": 0}, "members is 0; it must be a whole number of at least 1"),
        ({"mask": 0.0}, "mask is 0.0; it must be above 0 and at most 1"),
        ({"prior_scale": -1.0}, "prior_scale is -1.0; it must be a number of at least 0"),
        ({"members": 10**6}, "weights would take .* GB"),
        ({"env": "pendulum"}, "pendulum has continuous actions; boot_dqn needs actions to choose from"),
        ({"train_every": 3, "chunk_steps": 100}, "chunk_steps is 100; it must be a multiple of train_every"),
        ({"explore": "thompson"}, "explore"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        make_config("boot_dqn", **changes)


def test_a_robust_level_can_not_follow_a_gain() -> None:
    with pytest.raises(DeeprokError, match="confidence is 'spread', but the estimator has no posterior"):
        make_config("boot_rtd", confidence="spread")
