"""Agents: a label and an estimator put together, one row of the table each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok import bellman, replay
from deeprok.config import Config, GradientConfig
from deeprok.estimators import Estimator, Fit, ekf, gradient
from deeprok.exploration import epsilon_greedy, linear_epsilon
from deeprok.networks import QNetwork
from deeprok.types import Transition, record
from deeprok.uncertainty import SETS
from deeprok.worlds import World


@record
class AgentState:
    """Everything an agent has learned and remembers."""

    belief: Any  # the estimator's record
    target: jax.Array  # [n] θ', the target network's weights
    memory: jax.Array  # [capacity, width] the replay


@record
class Draw:
    """The random numbers of one step. Drawn for many steps at once they cost next to nothing."""

    explore: jax.Array  # [2] uniform, for `epsilon_greedy`
    batch: jax.Array  # [B] uint32, for `replay.sample`


class Agent(NamedTuple):
    """Pure functions; drivers call them and know nothing else of an algorithm.

    Step counters `t` are the driver's, shared by all seeds that run in step, so that nothing
    expensive hangs on a per-seed condition. Where `active` is false the state stays as it is.

    Attributes:
      init: `(key, models) -> AgentState`, with room for transitions of that many outcomes.
      draw: `key -> Draw`, the randomness of one step's `act` and `learn`.
      act: `(state, draw, obs, t) -> action`, exploring.
      remember: `(state, transition, t, active) -> state`.
      learn: `(state, draw, t, active) -> (state, Fit)`, one mini-batch.
      greedy: `(theta, obs) -> action`, for any leading axes of `obs`.
      estimator: keeper of `AgentState.belief`.
      network: the Q-network.
    """

    init: Callable[[jax.Array, int], AgentState]
    draw: Callable[[jax.Array], Draw]
    act: Callable[[AgentState, Draw, jax.Array, jax.Array], jax.Array]
    remember: Callable[[AgentState, Transition, jax.Array, jax.Array], AgentState]
    learn: Callable[[AgentState, Draw, jax.Array, jax.Array], tuple[AgentState, Fit]]
    greedy: Callable[[jax.Array, jax.Array], jax.Array]
    estimator: Estimator
    network: QNetwork


def make_estimator(config: Config) -> Estimator:
    """The estimator that the settings describe."""
    settings = config.estimator
    if isinstance(settings, GradientConfig):
        return gradient(settings.optimizer, settings.learning_rate)
    # The paper's objective averages over the batch, which leaves each observation B times the noise.
    copies = config.batch_size if settings.batching == "joint" else 1
    return ekf(
        observation_noise=copies * settings.observation_noise,
        process_noise=settings.process_noise,
        prior_covariance=np.asarray(settings.prior_covariance),
        batching=settings.batching,
        learning_rate=settings.learning_rate,
    )


def make_agent(config: Config, world: World) -> Agent:
    """The agent that the settings describe."""
    network = config.make_network(world)
    estimator = make_estimator(config)
    worst_case = SETS[config.robust_set].worst_case
    num_actions = len(world.actions)
    observations = network.sizes[0]
    capacity = min(config.replay_size, config.episodes * config.horizon)

    def init(key: jax.Array, models: int) -> AgentState:
        theta = network.init(key)
        # The target is a copy: donated buffers must not be shared.
        return AgentState(
            belief=estimator.init(theta),
            target=jnp.copy(theta),
            memory=replay.empty(observations, models, capacity),
        )

    def greedy(theta: jax.Array, obs: jax.Array) -> jax.Array:
        return jnp.argmax(network.apply(theta, obs), axis=-1)

    def draw(key: jax.Array) -> Draw:
        explore_key, batch_key = jax.random.split(key)
        return Draw(
            explore=jax.random.uniform(explore_key, (2,)),
            batch=jax.random.bits(batch_key, (config.batch_size,), "uint32"),
        )

    def act(state: AgentState, draw: Draw, obs: jax.Array, t: jax.Array) -> jax.Array:
        epsilon = linear_epsilon(t, config.epsilon_start, config.epsilon_end, config.epsilon_steps)
        return epsilon_greedy(draw.explore, epsilon, greedy(estimator.mean(state.belief), obs), num_actions)

    def remember(state: AgentState, transition: Transition, t: jax.Array, active: jax.Array) -> AgentState:
        memory = replay.write(state.memory, t, transition, active)
        return AgentState(belief=state.belief, target=state.target, memory=memory)

    def h(theta: jax.Array, x: tuple[jax.Array, jax.Array]) -> jax.Array:
        obs, action = x
        return network.apply(theta, obs)[action]

    def labels(theta: jax.Array, target: jax.Array, batch: Transition) -> jax.Array:
        q = network.apply(target, batch.next_obs)  # [B, M, A]
        if config.double:
            next_value = jax.vmap(jax.vmap(bellman.double_value))(q, network.apply(theta, batch.next_obs))
        else:
            next_value = jax.vmap(jax.vmap(bellman.max_value))(q)
        label = partial(bellman.label, discount=config.discount, worst_case=worst_case, level=config.robust_level)
        return jax.vmap(label)(batch.reward, batch.terminated, next_value)

    def learn(state: AgentState, draw: Draw, t: jax.Array, active: jax.Array) -> tuple[AgentState, Fit]:
        batch = replay.sample(state.memory, draw.batch, t, observations)
        ys = labels(estimator.mean(state.belief), state.target, batch)
        learning = active & (t >= config.warm_up)
        belief, fit = estimator.update(state.belief, h, (batch.obs, batch.action), ys, learning)
        copy = active & ((t + 1) % config.target_period < config.train_every)
        target = jnp.where(copy, estimator.mean(belief), state.target)
        return AgentState(belief=belief, target=target, memory=state.memory), fit

    return Agent(init, draw, act, remember, learn, greedy, estimator, network)
