"""TD3: an actor for continuous actions, and two critics."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from comparisons import assert_equal_to_rounding, bits
from configurations import make_readable

import deeprok
from deeprok import tabular
from deeprok.agents import replay
from deeprok.agents.actor_critic import ActorCriticState
from deeprok.agents.clock import Clock
from deeprok.agents.ensemble import ActorCritic
from deeprok.agents.learner import Learner, PlaysSteps
from deeprok.agents.network import MLP, MLPSettings, Network, NetworkPart
from deeprok.core.errors import DeeprokError
from deeprok.environments import Environment, Interval, branch
from deeprok.environments.base import Transition
from deeprok.evaluation.export import json_q_values, read_policy
from deeprok.runs.settings import Config, make_config

ON, OFF = jnp.array(True), jnp.array(False)
SMALL: dict[str, Any] = dict(
    hidden=(4,), activation="tanh", steps=300, horizon=25, chunk_steps=60, warm_up=20, batch_size=5, models=2,
    trial_models=2, normalise=False,
)  # fmt: skip
#: A run of one episode whose replay holds 40 transitions.
DIRECT: dict[str, Any] = SMALL | dict(steps=40, horizon=40, warm_up=0, models=1, precision="float64")
LATE = Clock(jnp.int32(39), 0.5)


def settings(algorithm: str = "td3", **changes: Any) -> Config:
    return make_readable(algorithm, **{**SMALL, **changes})


def networks_of(learner: Learner) -> ActorCritic:
    assert isinstance(learner.view.network, ActorCritic)
    return learner.view.network


def filled(config: Config, seed: int = 0) -> ActorCriticState:
    """A state with a full replay of random transitions, and targets that differ from the weights."""
    rng = np.random.default_rng(seed)
    state = config.make_learner().init(jax.random.key(seed))
    memory = rng.normal(size=state.memory.shape)
    memory[:, 3] = rng.uniform(-1, 1, len(memory))
    memory[:, -1] = rng.random(len(memory)) < 0.3
    return dataclasses.replace(
        state,
        memory=jnp.asarray(memory, state.memory.dtype),
        target=jnp.asarray(rng.normal(size=state.target.shape) * 0.5, state.target.dtype),
    )


# --- the network ---------------------------------------------------------------------------------------------


ACTOR = MLP((3, 5, 2), "tanh", (1.0, 0.5, -2.0))
CRITIC = MLP((5, 4, 3, 1), "relu", (1.0, 0.5, -2.0, 1.0, 1.0))


def test_the_network_is_the_actor(x64) -> None:
    networks = ActorCritic(ACTOR, CRITIC)
    theta = networks.init(jax.random.key(0))
    assert theta.shape == (networks.num_weights,) == (ACTOR.num_weights + 2 * CRITIC.num_weights,)
    obs, places = np.random.default_rng(0).normal(size=(6, 3)), np.random.default_rng(1).uniform(-1, 1, (6, 2))
    actor, critics = networks.split(theta)
    expected = [
        np.tanh(oracles.mlp(np.asarray(actor), ACTOR.sizes, "tanh", np.array(ACTOR.input_scale), x)) for x in obs
    ]
    np.testing.assert_allclose(networks.apply(theta, jnp.asarray(obs)), expected, rtol=1e-12)
    assert not np.array_equal(*critics)
    for critic in critics:
        both = np.concatenate([obs, places], axis=1)
        values = [oracles.mlp(np.asarray(critic), CRITIC.sizes, "relu", np.array(CRITIC.input_scale), x) for x in both]
        found = networks.value(critic, jnp.asarray(obs), jnp.asarray(places))
        np.testing.assert_allclose(found, np.ravel(values), rtol=1e-12)


@pytest.mark.parametrize("partition", ["slices", "neurons"])
def test_partitions_of_all_weights(partition: str) -> None:
    networks = ActorCritic(ACTOR, CRITIC)
    theta = np.arange(networks.num_weights)
    parts = [theta[part] for part in getattr(networks, partition)]
    assert sorted(np.concatenate(parts)) == list(theta)
    begins = [0, ACTOR.num_weights, ACTOR.num_weights + CRITIC.num_weights]
    expected = [
        begin + np.arange(network.num_weights)[part]
        for begin, network in zip(begins, (ACTOR, CRITIC, CRITIC), strict=True)
        for part in getattr(network, partition)
    ]
    assert [part.tolist() for part in parts] == [part.tolist() for part in expected]


# --- an update, by hand --------------------------------------------------------------------------------------


class Adam:
    """D. P. Kingma and J. Ba, 2015, Algorithm 1."""

    def __init__(self, rate: float) -> None:
        self.rate, self.m, self.v, self.t = rate, np.zeros(()), np.zeros(()), 0

    def step(self, theta: np.ndarray, slope: np.ndarray) -> np.ndarray:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * slope
        self.v = 0.999 * self.v + 0.001 * slope**2
        hat_m, hat_v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return theta - self.rate * hat_m / (np.sqrt(hat_v) + 1e-8)


def slope_of(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    return np.array([(function(at + h) - function(at - h)) / 2e-6 for h in 1e-6 * np.eye(len(at))])


@pytest.mark.parametrize(("low", "high"), [pytest.param((-1.0,), (1.0,), marks=pytest.mark.slow), ((-3.0,), (1.0,))])
def test_td3_by_hand(x64, monkeypatch: pytest.MonkeyPatch, low: tuple[float, ...], high: tuple[float, ...]) -> None:
    """Four updates of critics, actor and target networks as Algorithm 1 of the paper has them, in numpy."""
    config = settings(**DIRECT | dict(warm_up=0, discount=0.9, target_rate=0.1, actor_rate=0.02, learning_rate=0.01))
    task = config.task()
    task = task._replace(env=task.env._replace(actions=Interval(low, high)))
    learner, state = config.parts.learner.make(task), filled(config)
    networks = networks_of(learner)
    memory = np.asarray(state.memory)
    sizes = (networks.actor.sizes, networks.critic.sizes)  # type: ignore[attr-defined]
    scale = np.asarray(config.input_scale)

    def act(theta: np.ndarray, obs: np.ndarray) -> np.ndarray:
        return np.tanh(oracles.mlp(theta, sizes[0], "tanh", scale, obs))

    def q(theta: np.ndarray, obs: np.ndarray, place: np.ndarray) -> float:
        return float(oracles.mlp(theta, sizes[1], "tanh", np.append(scale, 1.0), np.append(obs, place))[0])

    def cut(theta: jax.Array) -> list[np.ndarray]:
        actor, critics = networks.split(theta)
        return [np.asarray(part) for part in (actor, *critics)]

    now, old = cut(learner.view.mean(state.belief)), cut(state.target)
    rules = [Adam(0.02), Adam(0.01), Adam(0.01)]
    learn = jax.jit(learner.learn)
    for t in range(40, 44):
        draw = learner.draw(jax.random.key(t))
        state, fit = learn(state, draw, Clock(jnp.int32(t), 0.0), ON, None)
        rows = memory[np.asarray(draw.batch[0]) % len(memory)]
        ys, xs = [], []
        for row, noise in zip(rows, np.asarray(draw.smoothing[0]), strict=True):
            obs, action, reward, following, over = row[:3], row[3], row[4], row[5:8], row[8]
            xs.append((obs, (action - low[0]) / (high[0] - low[0]) * 2 - 1))
            place = np.clip(act(old[0], following) + np.clip(0.2 * noise, -0.5, 0.5), -1, 1)
            ys.append(reward + (1 - over) * 0.9 * min(q(old[1], following, place), q(old[2], following, place)))
        errors = []
        for k in (1, 2):

            def loss(theta: np.ndarray, xs: Any = xs, ys: Any = ys) -> float:
                return 0.5 * float(np.mean([(y - q(theta, *x)) ** 2 for x, y in zip(xs, ys, strict=True)]))

            errors.append(loss(now[k]))
            now[k] = rules[k].step(now[k], slope_of(loss, now[k]))
        if t % 2:  # the second and the fourth update

            def cost(theta: np.ndarray, xs: Any = xs) -> float:
                return -float(np.mean([q(now[1], obs, act(theta, obs)) for obs, _ in xs]))

            now[0] = rules[0].step(now[0], slope_of(cost, now[0]))
            old = [copied + 0.1 * (theta - copied) for copied, theta in zip(old, now, strict=True)]
        assert fit.loss == pytest.approx(np.mean(errors), rel=1e-6)
    assert [rule.t for rule in rules] == [2, 4, 4]
    np.testing.assert_allclose(learner.view.mean(state.belief), np.concatenate(now), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state.target, np.concatenate(old), rtol=1e-5, atol=1e-7)


def test_noise_in_the_target_is_clipped(x64) -> None:
    """With no room for it there is none, and with wide limits its size counts."""
    found = {}
    for clip, noise in ((0.0, 5.0), (0.0, 0.2), (0.5, 5.0), (9.0, 5.0)):
        config = settings(**DIRECT | dict(smoothing_clip=clip, smoothing_noise=noise))
        learner = config.make_learner()
        _, fit = jax.jit(learner.learn)(filled(config), learner.draw(jax.random.key(0)), LATE, ON, None)
        found[clip, noise] = float(fit.loss)
    assert found[0.0, 5.0] == found[0.0, 0.2]
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("several", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_actor_waits(x64, several: int) -> None:
    config = settings(**DIRECT | dict(policy_delay=3, target_period=1000, updates=several))
    learner, state = config.make_learner(), filled(config)
    learn = jax.jit(learner.learn)
    moved = []
    for t in range(40, 46):
        before = state.belief
        state, _ = learn(state, learner.draw(jax.random.key(t)), Clock(jnp.int32(t), 0.0), ON, None)
        moved.append(not np.array_equal(before.actor, state.belief.actor))
        assert not np.array_equal(before.critics.theta, state.belief.critics.theta)
    assert moved == [(t + 1) % 3 == 0 or several == 3 for t in range(40, 46)]
    assert int(state.belief.optimizer[0].count) == (2 if several == 1 else 6)


@pytest.mark.slow
def test_inactive_learner_stands_still() -> None:
    for config in (settings(**DIRECT | dict(precision="float32")), settings(**DIRECT | dict(normalise=True))):
        with config.arithmetic():
            learner, state = config.make_learner(), filled(config)
            draw = learner.draw(jax.random.key(1))
            for t in (39, 499):
                still, _ = jax.jit(learner.learn)(state, draw, Clock(jnp.int32(t), 0.5), OFF, None)
                assert bits(still) == bits(state)


# --- acting and the replay -----------------------------------------------------------------------------------


def test_noise_around_the_action_and_random_ones_first() -> None:
    learner = settings(warm_up=20, action_noise=0.3).make_learner()
    state, obs = learner.init(jax.random.key(0)), jnp.array([0.6, 0.8, -1.0])
    place = learner.view.network.apply(learner.view.mean(state.belief), obs)
    for t, key in ((19, 1), (20, 1), (20, 2), (999, 3)):
        draw = learner.draw(jax.random.key(key))
        action, _ = learner.act(state, draw, obs, Clock(jnp.int32(t), 0.0))
        expected = draw.anywhere if t < 20 else np.clip(place + 0.3 * draw.noise, -1, 1)
        np.testing.assert_allclose(action, expected, rtol=1e-6)
    many = learner.draw(jax.random.key(5), (4000,))
    assert float(jnp.mean(many.noise)) == pytest.approx(0.0, abs=0.05)
    assert float(jnp.std(many.noise)) == pytest.approx(1.0, abs=0.05)
    assert float(jnp.max(jnp.abs(many.anywhere))) <= 1.0
    assert float(jnp.var(many.anywhere)) == pytest.approx(1 / 3, abs=0.02)


def test_actions_of_numbers_in_the_replay() -> None:
    rng = np.random.default_rng(0)
    ring = replay.empty(3, 2, 7, 4)
    put = Transition(
        obs=jnp.asarray(rng.normal(size=3), jnp.float32),
        action=jnp.asarray(rng.normal(size=4), jnp.float32),
        reward=jnp.asarray(rng.normal(size=2), jnp.float32),
        next_obs=jnp.asarray(rng.normal(size=(2, 3)), jnp.float32),
        terminated=jnp.array([True, False]),
    )
    ring = replay.write(ring, jnp.int32(9), put, ON)
    found = replay.sample(ring, jnp.array([2 + 7 * 5], "uint32"), jnp.int32(9), 3, 4)
    for got, given in zip(jax.tree.leaves(found), jax.tree.leaves(put), strict=True):
        assert got.dtype == given.dtype
        np.testing.assert_array_equal(got[0], given)
    assert ring.shape == (7, 3 + 4 + 2 * 5)


# --- robust targets ------------------------------------------------------------------------------------------

STATES, PLACES, MODELS = 4, np.linspace(-1.0, 1.0, 5), 3


class _Linear(NamedTuple):
    """f(s) = θ_s for one-hot s, before the actor's tanh."""

    num_weights = STATES
    slices = neurons = (slice(0, STATES),)

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(STATES)

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        return (obs @ theta)[..., None]


class _Table(NamedTuple):
    """Q(s, a) = θ_sk at the k-th of some places, and linear between."""

    num_weights = STATES * len(PLACES)
    slices = neurons = (slice(0, STATES * len(PLACES)),)

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(STATES * len(PLACES))

    def apply(self, theta: jax.Array, x: jax.Array) -> jax.Array:
        hats = jnp.maximum(1.0 - jnp.abs(x[..., -1:] - PLACES) / (PLACES[1] - PLACES[0]), 0.0)
        return jnp.sum((x[..., :STATES] @ theta.reshape(STATES, -1)) * hats, axis=-1, keepdims=True)


def _made(settings: MLPSettings, scale: tuple[float, ...], outputs: int) -> Network:
    return _Linear() if len(scale) == STATES else _Table()


TABLE = NetworkPart(MLPSettings, _made)


@deeprok.core.pytree.pytree_dataclass
class Wind:
    wind: Any = deeprok.environments.quantity(1.0, "", "places that it blows on by, less one")


#: Where to aim in each state, and what arriving in each is worth.
GOALS, WORTH = np.array([-1.0, 0.5, 0.0, 1.0]), np.array([0.0, 1.0, -0.5, 2.0])


def rounds(horizon: int = 5) -> Environment:
    """Four states in a ring, seen one-hot. The wind blows on by 1, 2 or 3; an action is to come near a state's goal."""

    def reset(key: jax.Array, params: Wind) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jax.nn.one_hot(0, STATES, dtype=float)

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Wind) -> Any:
        arrived = (state + params.wind.astype(int)) % STATES
        reward = jnp.asarray(WORTH)[arrived] - (action[0] - jnp.asarray(GOALS)[state]) ** 2
        obs = jax.nn.one_hot(arrived, STATES, dtype=float)
        return deeprok.environments.Outcome(arrived, obs, reward, jnp.array(False))

    box = {"wind": (1.0, 3.0)}
    return Environment("rounds", reset, step, Wind(), box, (1.0,) * STATES, Interval((-1.0,), (1.0,)), horizon, 0.0)


@pytest.mark.parametrize(
    ("robust_set", "level"),
    [
        ("cvar", 0.5),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("minimum", 0.4), ("tv", 0.3), ("kl", 0.2), ("chi2", 0.5), ("contamination", 0.3))
        ),
    ],
)
def test_the_worst_case_is_the_tabular_one(x64, robust_set: str, level: float) -> None:
    """The critics become the robust Q of the discretised problem, and the actor its best policy."""
    config = make_config(
        "rtd_td3", "tuned", env="test_actor_critic:rounds", network="test_actor_critic:TABLE", precision="float64",
        fixed_models="wind=1:3:3", robust_set=robust_set, robust_level=level, discount=0.8, smoothing_noise=0.0,
        steps=STATES * len(PLACES), batch_size=20, optimizer="sgd", learning_rate=10.0, target_rate=0.5, warm_up=0,
        actor_rate=0.05, target_period=1, policy_delay=1, normalise=False,
    )  # fmt: skip
    learner, env = config.make_learner(), config.make_env()
    p, r = np.zeros((STATES, len(PLACES), STATES)), np.zeros((STATES, len(PLACES), STATES))
    state = learner.init(jax.random.key(0))
    models = {"wind": jnp.arange(1.0, 4.0)}
    assert isinstance(learner.plays, PlaysSteps)
    for s in range(STATES):
        for k, place in enumerate(PLACES):
            happened = branch(env, jax.random.key(0), jnp.int32(s), jnp.array([place]), models)
            obs = jax.nn.one_hot(s, STATES, dtype=float)
            row = Transition(obs, jnp.array([place]), happened.reward, happened.obs, happened.terminated)
            at = Clock(jnp.int32(s * len(PLACES) + k), 0.0)
            state = learner.plays.observe(state, row, learner.draw(jax.random.key(0)), at, OFF, ON)
            for model in (1, 2, 3):
                p[s, k, (s + model) % STATES] += 1 / MODELS
                r[s, k, (s + model) % STATES] = WORTH[(s + model) % STATES] - (place - GOALS[s]) ** 2
    solved = tabular.solve(tabular.from_arrays(p, r), robust_set, None if robust_set == "minimum" else level, 0.8)
    # Every transition once in each mini-batch.
    draw = dataclasses.replace(learner.draw(jax.random.key(0)), batch=jnp.arange(20, dtype="uint32")[None])
    clock = Clock(jnp.int32(19), 0.0)
    state, _ = jax.jit(
        lambda state: jax.lax.fori_loop(0, 600, lambda _, both: learner.learn(both[0], draw, clock, ON), both(state))
    )(state)
    actor, critics = networks_of(learner).split(learner.view.mean(state.belief))
    np.testing.assert_allclose(np.tanh(actor), PLACES[solved.policy], atol=0.03)
    np.testing.assert_allclose(critics[0].reshape(STATES, -1), solved.q, atol=0.03)
    nominal = tabular.solve(tabular.from_arrays(p, r), discount=0.8, objective="nominal")
    assert np.abs(nominal.q - solved.q).max() > 0.3
    # With the best policy, the targets of exact values are these values themselves, to rounding.
    best = jnp.arctanh(jnp.clip(jnp.asarray(PLACES[solved.policy]), -1 + 1e-15, 1 - 1e-15))
    exact = jnp.concatenate([best, jnp.tile(jnp.ravel(jnp.asarray(solved.q)), 2)])
    belief = dataclasses.replace(
        state.belief, critics=dataclasses.replace(state.belief.critics, theta=exact[STATES:].reshape(2, -1))
    )
    _, fit = learner.learn(dataclasses.replace(state, belief=belief, target=exact), draw, clock, ON, None)
    assert float(fit.loss) < 1e-13


def both(state: Any) -> Any:
    return state, deeprok.estimators.Fit(jnp.zeros(()), None)


@pytest.mark.slow
@pytest.mark.parametrize("normalise", [False, True])
def test_one_model_is_the_plain_agent(build, normalise: bool) -> None:
    same = dict(acting="member", models=1, normalise=normalise, robust_set="cvar", robust_level=0.5)
    robust, plain = build(settings("rtd_td3", **same)), build(settings("td3", **same))
    found, expected = (built.start(jnp.arange(2)) for built in (robust, plain))
    assert_equal_to_rounding(found.agent, expected.agent)
    for chunk in range(2):
        found, its = robust.program.advance(found, chunk)
        expected, log = plain.program.advance(expected, chunk)
        assert_equal_to_rounding((its.earned, its.fit.loss), (log.earned, log.fit.loss), 1e-4)
    assert_equal_to_rounding(found.agent, expected.agent, 1e-4)


@pytest.mark.parametrize("algorithm", ["rtd_td3", pytest.param("rok_td3", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_equal_models_are_one(build, algorithm: str) -> None:
    one, three = ("mass=1.2,length=0.8", ";".join(["mass=1.2,length=0.8"] * 3))
    same = dict(acting="nominal", robust_set="cvar", robust_level=0.5, covariance="diagonal")
    alone, together = (build(settings(algorithm, **same, fixed_models=models)) for models in (one, three))
    found, expected = (built.start(jnp.arange(1)) for built in (together, alone))
    for chunk in range(2):
        found, _ = together.program.advance(found, chunk)
        expected, _ = alone.program.advance(expected, chunk)
    assert_equal_to_rounding(found.agent.belief, expected.agent.belief, 1e-4)
    assert_equal_to_rounding(found.agent.target, expected.agent.target, 1e-4)


# --- learning ------------------------------------------------------------------------------------------------

AIM: dict[str, Any] = dict(
    env="probe_envs:aim", hidden=(16, 16), steps=3000, warm_up=200, chunk_steps=500, batch_size=32, fixed_models="",
    robust_set="minimum", confidence="fixed", smoothing_noise=0.0, target_period=1, learning_rate=3e-3, actor_rate=3e-3,
    actor_final_rate=0.0, final_rate=0.0, action_noise=0.4, activation="tanh",
)  # fmt: skip
SLOPES = "slope=0.2;slope=0.2;slope=1"


@pytest.mark.parametrize(
    ("algorithm", "changes", "slope"),
    [
        ("rtd_td3", dict(fixed_models=SLOPES), 0.6),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("td3", {}, 0.2),
                ("td3_dr", dict(acting="member", fixed_models=SLOPES), 1.4 / 3),
                ("rok_td3", dict(fixed_models=SLOPES, covariance="neuron"), 0.6),
            )
        ),
    ],
)
@pytest.mark.slow
def test_the_best_action_is_found(train, algorithm: str, changes: dict[str, Any], slope: float) -> None:
    known = dict(AIM, **changes)
    if algorithm == "rok_td3":
        known = {name: value for name, value in known.items() if name not in ("learning_rate", "final_rate")}
    config = make_readable(algorithm, "default", **known)
    learner = config.make_learner()
    last = train(config, chunks=6).last
    theta = learner.view.mean(jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), last.agent.belief))
    x = jnp.linspace(-0.9, 0.9, 7)[:, None]
    found = learner.view.env.actions.choose(learner.view.network.apply(theta, x))
    # A straight line through what was found; the reward of one model among several is noisy.
    np.testing.assert_allclose(np.polyfit(x[:, 0], found[:, 0], 1), [slope, 0.0], atol=0.07)


@pytest.mark.parametrize("algorithm", ["td3", pytest.param("rok_td3", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_seed_repeats_and_two_differ(train, algorithm: str) -> None:
    config = settings(algorithm, covariance="diagonal", updates=2, train_every=2, normalise=True)
    first, again = (train(config, seeds=(0, 1), chunks=2).last for _ in range(2))
    assert bits(first) == bits(again)
    assert not np.array_equal(*first.agent.belief.actor)
    assert (
        np.abs(first.agent.belief.critics.inner.theta[0, 0] - first.agent.belief.critics.inner.theta[0, 1]).max() > 0.1
    )


def test_units_change_and_the_functions_stay(x64) -> None:
    """At the step at which units change the weights outside are what they are at another step."""
    config = settings(**DIRECT | dict(normalise=True))
    learner, state = config.make_learner(), filled(config)
    assert isinstance(learner.plays, PlaysSteps)
    row = replay.unpack(state.memory, 3, 1)
    for i in range(30):
        transition = jax.tree.map(lambda leaf, i=i: leaf[i], row)
        state = learner.plays.observe(
            state, transition, learner.draw(jax.random.key(i)), Clock(jnp.int32(i), 0.0), OFF, ON
        )
    seen = np.asarray(state.memory[:30, :4])
    np.testing.assert_allclose(state.statistics.mean, seen.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(state.statistics.variance, seen.var(axis=0), rtol=1e-10)
    draw = learner.draw(jax.random.key(1))
    learn = jax.jit(learner.learn)
    changed, plain = (learn(state, draw, Clock(jnp.int32(t), 0.5), ON, None)[0] for t in (499, 497))
    assert np.abs(changed.belief.actor - plain.belief.actor).max() > 0.01
    assert np.abs(changed.belief.critics.inner.theta - plain.belief.critics.inner.theta).max() > 0.01
    for mean in (learner.view.mean(changed.belief), changed.target):
        other = learner.view.mean(plain.belief) if mean is not changed.target else plain.target
        np.testing.assert_allclose(mean, other, rtol=1e-9, atol=1e-12)
    again = learn(changed, draw, Clock(jnp.int32(501), 0.5), ON, None)[0]
    assert np.isfinite(learner.view.mean(again.belief)).all()


# --- the posterior -------------------------------------------------------------------------------------------

QUIET: dict[str, Any] = dict(
    observation_noise=1.0, process_noise=0.0, prior_covariance=0.1, remembered=1.0, window=0, noise_share=0.0
)


@pytest.mark.parametrize(
    "covariance",
    ["neuron", *(pytest.param(x, marks=pytest.mark.slow) for x in ("full", "layer", "diagonal", "low_rank"))],
)
@pytest.mark.slow
def test_widths_shrink_with_data(covariance: str) -> None:
    config = settings("rok_td3", **DIRECT | dict(precision="float32", **QUIET, covariance=covariance, rank=2))
    learner, state = config.make_learner(), filled(config)
    posterior, networks = learner.view.posterior, networks_of(learner)
    assert posterior
    rows = replay.unpack(state.memory, 3, 1)

    def width(belief: Any) -> float:
        """The mean variance of the first critic's Q where data are."""
        theta = learner.view.mean(belief)
        value = lambda theta, obs, place: networks.value(networks.split(theta)[1][0], obs, place)  # noqa: E731
        H = jax.vmap(jax.grad(value), (None, 0, 0))(theta, rows.obs, rows.action)
        return float(jnp.mean(posterior.predictive_variance(belief, H)))

    found = [width(state.belief)]
    learn = jax.jit(learner.learn)
    for t in range(40, 60):
        state, fit = learn(state, learner.draw(jax.random.key(t)), Clock(jnp.int32(t), 0.0), ON, None)
        if t % 5 == 4:
            found.append(width(state.belief))
        assert fit.health
        assert float(fit.health.variance) > 0.0
    assert all(later < before for before, later in itertools.pairwise(found))
    assert found[-1] < 0.7 * found[0]
    assert posterior.definite(state.belief)


@pytest.mark.slow
def test_the_posterior_of_all_weights(x64) -> None:
    config = settings("rok_td3", **DIRECT | dict(**QUIET, covariance="layer", normalise=True))
    learner, state = config.make_learner(), filled(config)
    posterior, n = learner.view.posterior, networks_of(learner).actor.num_weights
    assert posterior
    learn = jax.jit(learner.learn)
    for t in range(40, 44):
        state, _ = learn(state, learner.draw(jax.random.key(t)), Clock(jnp.int32(t), 0.0), ON, None)
    belief = state.belief
    P = np.asarray(posterior.covariance(belief))
    assert not P[:n].any()
    assert not P[:, :n].any()
    half = (len(P) - n) // 2
    assert not P[n : n + half, n + half :].any()
    H = np.random.default_rng(0).normal(size=(6, len(P)))
    np.testing.assert_allclose(posterior.predictive_variance(belief, jnp.asarray(H)), np.diag(H @ P @ H.T), rtol=1e-8)
    mean = np.asarray(learner.view.mean(belief))
    draws = np.asarray(jax.vmap(posterior.sample, (None, 0))(belief, jax.random.split(jax.random.key(0), 300)))
    np.testing.assert_array_equal(draws[:, :n], np.tile(mean[:n], (300, 1)))
    variance = (draws - mean)[:, n:].var(axis=0) / np.diag(P)[n:]
    assert variance.mean() == pytest.approx(1.0, abs=0.1)
    assert posterior.definite(belief)
    assert not posterior.definite(dataclasses.replace(belief, actor=belief.actor.at[0].set(jnp.nan)))


@pytest.mark.slow
def test_a_level_that_follows_the_gain(build) -> None:
    level: dict[str, Any] = dict(robust_set="cvar", confidence="spread", level_start=1.0, robust_level=0.2)
    config = settings("rok_td3", **QUIET, covariance="diagonal", **level)
    built = build(config)
    states, _ = built.program.advance(built.start(jnp.arange(1)), 0)
    learner = built.program.learner
    state = jax.tree.map(lambda leaf: leaf[0], states.agent)
    assert np.all(np.asarray(state.gains) > 0)
    contracted = dataclasses.replace(state, gains=jnp.array([0.4, 0.1]))
    assert learner.level(contracted, LATE) == pytest.approx(1.0 - 0.8 * 0.75)


# --- as a run ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_loaded_evaluated_and_exported(tmp_path: Path) -> None:
    config = settings("rok_td3", covariance="diagonal", normalise=True, warm_up=20, activation="relu")
    run = deeprok.train(config, out=tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    action, state = run.predict(obs[0])
    assert (action.shape, state) == ((1,), None)
    assert np.abs(run.act(obs)).max() <= 1.0
    places = np.asarray(run.network.apply(jnp.asarray(run.weights), jnp.asarray(obs)))
    np.testing.assert_allclose(run.act(obs), places, rtol=1e-5)
    assert deeprok.evaluate(run, grid="mass=0.8:1.2:2", episodes=2).mean_return.shape == (2,)
    for kind in ("json", "onnx", "h"):  # checked against the agent before it is written
        deeprok.export(run, tmp_path / f"policy.{kind}")
    policy = read_policy(tmp_path / "policy.json")
    assert (policy["version"], policy["output_activation"]) == (2, "tanh")
    np.testing.assert_allclose(json_q_values(policy, obs), places, rtol=1e-4, atol=1e-5)
    assert run.sample_weights(0).shape == run.weights.shape
    for wrong in ("sample", "vote", "lcb"):
        with pytest.raises(
            DeeprokError, match=f"policy is {wrong}, but rok_td3 acts by an actor alone; use policy mean"
        ):
            deeprok.evaluate(run, policy=wrong)
    with pytest.raises(DeeprokError, match="rok_td3 has no actions to choose from"):
        deeprok.calibrate(run)
    with pytest.raises(DeeprokError, match="has no Q-values"):
        run.q_values(obs)


def test_a_policy_of_which_the_outputs_are_not_squashed_is_another() -> None:
    policy = {
        "format": "deeprok-policy", "version": 2, "env": "pendulum", "interval": {"low": [-1.0], "high": [1.0]},
        "input_scale": [1.0], "activation": "relu", "layers": [{"weights": [[2.0]], "bias": [0.0]}],
    }  # fmt: skip
    with pytest.raises(DeeprokError, match="its output_activation is None"):
        json_q_values(policy, np.ones((1, 1)))
    assert json_q_values(policy | {"output_activation": "tanh"}, np.ones((1, 1)))[0, 0] == pytest.approx(np.tanh(2.0))
    with pytest.raises(DeeprokError, match="its output_activation is 'tanh'"):
        json_q_values(policy | {"output_activation": "tanh", "version": 1}, np.ones((1, 1)))


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        ("td3", {"env": "cartpole"}, "^cartpole has actions to choose from; td3 needs actions that"),
        ("dqn", {"env": "pendulum"}, "dqn needs actions to choose from, take td3"),
        ("td3", {"double": True}, "double is True, but with td3 the actor chooses"),
        ("td3", {"policy_delay": 0}, "policy_delay is 0; it must be a whole number of at least 1"),
        ("td3", {"actor_rate": 0.0}, "actor_rate is 0.0; it must be a positive number"),
        ("td3", {"actor_final_rate": 2.0}, "actor_final_rate is 2.0; it must be a probability"),
        ("td3", {"action_noise": -0.1}, "action_noise is -0.1; it must be a number of at least 0"),
        ("td3", {"smoothing_noise": -0.1}, "smoothing_noise is -0.1; it must be"),
        ("td3", {"smoothing_clip": -0.1}, "smoothing_clip is -0.1; it must be"),
        ("td3", {"batch_size": 300_000}, "batch_size is 300000; it must be at most replay_size"),
        ("td3", {"train_every": 3}, "chunk_steps is 2000; it must be a multiple of train_every"),
        ("rok_td3", {"hidden": (300, 300), "covariance": "full"}, "weights in each of 2 networks would take .* GB"),
        ("rtd_td3", {"confidence": "spread"}, "confidence is 'spread', but the estimator has no posterior"),
        ("td3", {"explore": "thompson"}, "explore"),
    ],
)
def test_what_is_refused(algorithm: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        make_config(algorithm, **changes)


def test_a_target_without_values_of_successors_is_refused() -> None:
    task = make_config("td3").task()
    differences = deeprok.agents.targets.TARGETS["difference"]
    check = make_config("td3").parts.learner.check
    with pytest.raises(DeeprokError, match="the target of td3 has no backup from values of successors"):
        check(task._replace(target=differences, target_settings=differences.settings()))
