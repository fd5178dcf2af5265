"""Agents: a label and an estimator put together, one row of the table each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents import replay, targets
from deeprok.agents.exploration import epsilon_greedy, linear_epsilon
from deeprok.agents.network import QNetwork
from deeprok.core.pytree import record
from deeprok.environments import World
from deeprok.environments.base import Transition
from deeprok.estimators import (
    Estimator,
    Fit,
    Observation,
    predict,
)
from deeprok.runs.settings import Config
from deeprok.uncertainty import SETS


@record
class AgentState:
    """Everything an agent has learned and remembers."""

    belief: Any  # the estimator's record
    target: jax.Array  # [n] θ', the target network's weights
    memory: jax.Array  # [capacity, width] the replay
    drawn: jax.Array  # [n] weights drawn for the episode; [0] unless exploration acts on them
    gains: jax.Array  # [2] the filter's gain at first and lately; [0] unless the robustness level follows it


@record
class Draw:
    """The random numbers of one step. Drawn for many steps at once they cost next to nothing."""

    explore: jax.Array  # [2] uniform, for `epsilon_greedy`
    batch: jax.Array  # [B] uint32, for `replay.sample`
    weights: jax.Array  # [2] uint32 data of the key for a draw from the posterior; [0] unless one is needed


#: `(belief, obs) -> (mean, deviation)` of Q [C, A] at observations [C, D].
Values = Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]


class Agent(NamedTuple):
    """Pure functions; drivers call them and know nothing else of an algorithm.

    Step counters `t` are the driver's, shared by all seeds that run in step, so that nothing
    expensive hangs on a per-seed condition. Where `active` is false the state stays as it is.

    Attributes:
      init: `(key, models, belief=None) -> AgentState`, with room for transitions of that many
        outcomes; it begins with the given belief, or with fresh weights.
      draw: `key -> Draw`, the randomness of one step's `act` and `learn`.
      act: `(state, draw, obs, t) -> action`, exploring.
      remember: `(state, transition, t, active) -> state`.
      renew: `(state, draw, ended) -> state`, what changes when an episode has ended.
      learn: `(state, draw, t, active) -> (state, Fit)`, one mini-batch.
      greedy: `(theta, obs) -> action`, for any leading axes of `obs`.
      values: `(belief, obs) -> (mean, deviation)` of Q [C, A] at observations [C, D].
      estimator: keeper of `AgentState.belief`.
      network: the Q-network.
    """

    init: Callable[..., AgentState]
    draw: Callable[[jax.Array], Draw]
    act: Callable[[AgentState, Draw, jax.Array, jax.Array], jax.Array]
    remember: Callable[[AgentState, Transition, jax.Array, jax.Array], AgentState]
    renew: Callable[[AgentState, Draw, jax.Array], AgentState]
    learn: Callable[[AgentState, Draw, jax.Array, jax.Array], tuple[AgentState, Fit]]
    greedy: Callable[[jax.Array, jax.Array], jax.Array]
    values: Values
    estimator: Estimator
    network: QNetwork


def make_estimator(config: Config, network: QNetwork) -> Estimator:
    """The estimator that the settings describe, for a network's weights."""
    assert config.part.make
    return config.part.make(config.estimator, config.context(network))


# The filter's gain is followed over some hundred updates.
_GAIN_RATE = 0.01


def make_agent(config: Config, world: World) -> Agent:
    """The agent that the settings describe."""
    network = config.make_network(world)
    estimator = make_estimator(config, network)
    posterior = estimator.posterior
    worst_case = SETS[config.robust_set].worst_case
    thompson = config.explore == "thompson"
    num_actions = len(world.actions)
    observations = network.sizes[0]
    capacity = min(config.replay_size, config.episodes * config.horizon)

    def init(key: jax.Array, models: int, belief: Any = None) -> AgentState:
        if belief is None:
            belief = estimator.init(network.init(key))
        theta = estimator.mean(belief)
        # The target is a copy: donated buffers must not be shared.
        return AgentState(
            belief=belief,
            target=jnp.copy(theta),
            memory=replay.empty(observations, models, capacity),
            drawn=draw_weights(belief, jax.random.fold_in(key, 1)) if thompson else jnp.zeros(0),
            gains=jnp.zeros(2 if config.confidence == "spread" else 0),
        )

    def draw_weights(belief: Any, key: jax.Array) -> jax.Array:
        assert posterior
        mean = estimator.mean(belief)
        return mean + config.explore_scale * (posterior.sample(belief, key) - mean)

    def greedy(theta: jax.Array, obs: jax.Array) -> jax.Array:
        return jnp.argmax(network.apply(theta, obs), axis=-1)

    def draw(key: jax.Array) -> Draw:
        explore_key, batch_key = jax.random.split(key)
        return Draw(
            explore=jax.random.uniform(explore_key, (2,)),
            batch=jax.random.bits(batch_key, (config.batch_size,), "uint32"),
            weights=jax.random.key_data(jax.random.fold_in(key, 1)) if thompson else jnp.zeros(0, "uint32"),
        )

    def act(state: AgentState, draw: Draw, obs: jax.Array, t: jax.Array) -> jax.Array:
        if config.explore == "thompson":
            return greedy(state.drawn, obs).astype(jnp.int32)
        if config.explore == "ucb":
            mean, deviation = values(state.belief, obs[None])
            return jnp.argmax(mean[0] + config.explore_scale * deviation[0]).astype(jnp.int32)
        epsilon = linear_epsilon(t, config.epsilon_start, config.epsilon_end, config.epsilon_steps)
        return epsilon_greedy(draw.explore, epsilon, greedy(estimator.mean(state.belief), obs), num_actions)

    def values(belief: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        every = (jnp.repeat(obs, num_actions, axis=0), jnp.tile(jnp.arange(num_actions), len(obs)))
        mean, variance = predict(estimator, belief, h, every)
        return mean.reshape(-1, num_actions), jnp.sqrt(variance).reshape(-1, num_actions)

    def remember(state: AgentState, transition: Transition, t: jax.Array, active: jax.Array) -> AgentState:
        return dataclasses.replace(state, memory=replay.write(state.memory, t, transition, active))

    def renew(state: AgentState, draw: Draw, ended: jax.Array) -> AgentState:
        if not thompson:
            return state
        key = jax.random.wrap_key_data(draw.weights)
        fresh = jax.lax.cond(ended, lambda: draw_weights(state.belief, key), lambda: state.drawn)
        return dataclasses.replace(state, drawn=fresh)

    def h(theta: jax.Array, x: tuple[jax.Array, jax.Array]) -> jax.Array:
        obs, action = x
        return network.apply(theta, obs)[action]

    def level(state: AgentState, t: jax.Array) -> float | jax.Array:
        """The size of the set of distributions, as confidence has it at this time."""
        if config.confidence == "fixed":
            return config.robust_level
        if config.confidence == "time":
            done = t / config.level_steps
        else:
            first, lately = state.gains
            done = jnp.where(first > 0, 1.0 - lately / jnp.where(first > 0, first, 1.0), 0.0)
        return config.level_start + (config.robust_level - config.level_start) * jnp.clip(done, 0.0, 1.0)

    def labels(theta: jax.Array, target: jax.Array, batch: Transition, level: float | jax.Array) -> jax.Array:
        q = network.apply(target, batch.next_obs)  # [B, M, A]
        if config.double:
            next_value = jax.vmap(jax.vmap(targets.double_value))(q, network.apply(theta, batch.next_obs))
        else:
            next_value = jax.vmap(jax.vmap(targets.max_value))(q)
        label = partial(targets.label, discount=config.discount, worst_case=worst_case, level=level)
        return jax.vmap(label)(batch.reward, batch.terminated, next_value)

    def regression(
        state: AgentState, batch: Transition, level: float | jax.Array
    ) -> tuple[Observation, Any, jax.Array]:
        """Q(s, a) is observed to be its label."""
        return h, (batch.obs, batch.action), labels(estimator.mean(state.belief), state.target, batch, level)

    def differences(
        state: AgentState, batch: Transition, level: float | jax.Array
    ) -> tuple[Observation, Any, jax.Array]:
        """The reward is observed as a difference of values, without a target network."""
        robust = config.row.robust
        seen = (
            targets.robust_difference(network.apply, worst_case, level)
            if robust
            else targets.q_difference(network.apply)
        )
        return lambda theta, x: seen.h(theta, x, config.discount), batch, jax.vmap(seen.y)(batch)

    def learn(state: AgentState, draw: Draw, t: jax.Array, active: jax.Array) -> tuple[AgentState, Fit]:
        batch = replay.sample(state.memory, draw.batch, t, observations)
        learning = active & (t >= config.warm_up)
        observe = differences if config.online else regression
        belief, fit = estimator.update(state.belief, *observe(state, batch, level(state, t)), learning)
        target, gains = state.target, state.gains
        if not config.online:  # which needs no target network
            copy = active & ((t + 1) % config.target_period < config.train_every)
            target = jnp.where(copy, estimator.mean(belief), target)
        if config.confidence == "spread":
            assert fit.health
            now = jnp.where(gains[0] > 0, gains[1] + _GAIN_RATE * (fit.health.gain - gains[1]), fit.health.gain)
            gains = jnp.where(learning, jnp.stack([jnp.where(gains[0] > 0, gains[0], now), now]), gains)
        return dataclasses.replace(state, belief=belief, target=target, gains=gains), fit

    return Agent(init, draw, act, remember, renew, learn, greedy, values, estimator, network)
