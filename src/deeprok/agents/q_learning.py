"""Q-learning with a replay buffer: a target and an estimator put together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents import replay
from deeprok.agents.clock import Clock
from deeprok.agents.correction import CorrectedBelief, Correction, beneath, correctable, uncorrected
from deeprok.agents.exploration import Repeats
from deeprok.agents.learner import Learner, LearnerPart, Played, PlaysSteps, Task, View
from deeprok.agents.replaying import (
    GreedySettings,
    check_choices,
    check_replay,
    epsilon_of,
    estimator_context,
    followed,
    gain_followed,
    make_estimator,
    search_greedy,
    search_replay,
)
from deeprok.agents.scaling import EVERY, Statistics, in_units, no_statistics, with_observation, with_targets
from deeprok.agents.targets.base import Target, action_value
from deeprok.core.errors import DeeprokError, shown
from deeprok.core.fields import Count, NotNegative, added
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Environment, Transition
from deeprok.estimators import Fit, predict

Explore = Literal["epsilon", "thompson", "ucb"]
PriorPart = Literal["all", "mean"]


@dataclass(frozen=True)
class QLearningSettings(GreedySettings):
    """Settings of Q-learning."""

    longest_repeat: Count = added(1)
    """Steps that a random action is repeated for, at most: their number has a zeta distribution, short ones are most
    frequent. With 1 none is repeated."""
    explore: Explore = "epsilon"
    """Exploration: ε-greedy; or by the posterior, without ε: Thompson sampling (one draw an episode) or Q + scale·σ."""
    explore_scale: NotNegative = 1.0
    """What the posterior's standard deviation is multiplied by when it directs exploration."""
    chunk_steps: Count = 2000
    """Environment steps per jitted chunk, after which metrics and checkpoints are written."""
    prior: str = ""
    """Run folder that this run starts from: its last posterior is the prior, or its last weights are the first ones."""
    prior_part: PriorPart = added("all")
    """What is taken from it: all (mean and covariance, or weights and the optimizer's moments), or the mean alone,
    also of another estimator, with the covariance or the moments of a new run."""
    normalise: bool = added(False)
    """Running normalisation of observations and targets, with an estimator and a network that can do it, as all that
    come with the package can."""
    recalibrate: bool = added(False)
    """At the end, correct the posterior's intervals for Q by held-out play: what the greedy policy earns, for a robust
    target against models that are the worst in every step. Not with a memory, unless acting is nominal, and not in a
    stateful simulator."""


@pytree_dataclass
class AgentState:
    """Everything an agent has learned and remembers."""

    belief: Any  # the estimator's record
    target: jax.Array  # [n] θ', the target network's weights
    memory: jax.Array  # [capacity, width] the replay
    drawn: jax.Array  # [n] weights drawn for the episode; [0] unless exploration acts on them
    gains: jax.Array  # [2] mean Kalman gain at first and lately; [0] unless the robustness level follows it
    repeating: jax.Array  # [2] int32, a random action and how many more times to take it; [0] unless any is repeated
    statistics: Statistics | None  # of observations and targets; None unless they are normalised


@pytree_dataclass
class Draw:
    """The random numbers of one step. Drawn for many steps at once they cost next to nothing."""

    explore: jax.Array  # [2] uniform, for ε-greedy; [3] with the length of a repetition
    batch: jax.Array  # [B] uint32, for `replay.sample`; [U, B] where a round has several updates
    weights: jax.Array  # [2] uint32 data of the key for a draw from the posterior; [0] unless one is needed


class Learned(NamedTuple):
    """What an update changes of an agent's state."""

    belief: Any
    gains: jax.Array
    statistics: Statistics | None


def make_q_learner(task: Task) -> Learner:
    """Q-learning as the settings describe it."""
    settings: QLearningSettings = task.settings
    network, actions = task.network, task.env.actions
    typical = task.env.observation_scale
    units, begin_at, estimator = in_units(make_estimator(task), network, typical, settings.normalise)
    plays_on = isinstance(task.env, Environment)  # a stateful simulator can't be played from states in its middle
    recalibrates = settings.recalibrate and plays_on and not (task.env.past and task.acting != "nominal")
    if recalibrates:
        units, begin_at, estimator = units and beneath(units), uncorrected(begin_at), correctable(estimator)
    target: Target = task.target.make(task.target_settings, network, task.discount)
    posterior = estimator.posterior
    thompson = settings.explore == "thompson"
    observations = len(task.env.observation_scale)
    outcomes = task.models.size if task.target.robust else 1
    capacity = min(settings.replay_size, task.most_steps)
    repeats = Repeats(settings.longest_repeat) if settings.longest_repeat > 1 else None
    several = (settings.updates,) if settings.updates > 1 else ()

    def init(key: jax.Array, belief: Any = None) -> AgentState:
        if belief is None:
            belief = estimator.init(network.init(key))
        # The target is a copy: donated buffers must not be shared.
        return AgentState(
            belief=belief,
            target=jnp.copy(estimator.mean(belief)),
            memory=replay.empty(observations, outcomes, capacity),
            drawn=sample_weights(belief, jax.random.fold_in(key, 1)) if thompson else jnp.zeros(0),
            gains=jnp.zeros(2 if target.follows_gain else 0),
            repeating=jnp.zeros(2 if repeats else 0, jnp.int32),
            statistics=no_statistics(observations) if units else None,
        )

    def sample_weights(belief: Any, key: jax.Array) -> jax.Array:
        assert posterior
        mean = estimator.mean(belief)
        return mean + settings.explore_scale * (posterior.sample(belief, key) - mean)

    def greedy(theta: jax.Array, obs: jax.Array) -> jax.Array:
        return actions.choose(network.apply(theta, obs))

    def draw(key: jax.Array, shape: tuple[int, ...] = ()) -> Draw:
        explore_key, batch_key = jax.random.split(key)
        return Draw(
            explore=jax.random.uniform(explore_key, (*shape, actions.draws + bool(repeats))),
            batch=jax.random.bits(batch_key, (*shape, *several, settings.batch_size), "uint32"),
            weights=jax.random.key_data(jax.random.fold_in(key, 1)) if thompson else jnp.zeros(0, "uint32"),
        )

    def act(state: AgentState, draw: Draw, obs: jax.Array, clock: Clock) -> tuple[jax.Array, None]:
        if settings.explore == "thompson":
            return greedy(state.drawn, obs).astype(jnp.int32), None
        if settings.explore == "ucb":
            mean, deviation = values(state.belief, obs[None])
            return jnp.argmax(mean[0] + settings.explore_scale * deviation[0]).astype(jnp.int32), None
        epsilon, best = epsilon_of(settings, clock), greedy(estimator.mean(state.belief), obs)
        if not repeats:
            return actions.explore(draw.explore, epsilon, best), None
        fresh = actions.explore(draw.explore[:2], repeats.begins(epsilon), best)
        action, more = state.repeating
        return jnp.where(more > 0, action, fresh), None

    def values(belief: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = len(actions)
        every = (jnp.repeat(obs, count, axis=0), jnp.tile(jnp.arange(count), len(obs)))
        mean, variance = predict(estimator, belief, action_value(network), every)
        return correct(belief, mean.reshape(-1, count), jnp.sqrt(variance).reshape(-1, count))

    def correct(belief: Any, mean: jax.Array, deviation: jax.Array) -> tuple[jax.Array, jax.Array]:
        return belief.correction(mean, deviation) if recalibrates else (mean, deviation)

    def observe(
        state: AgentState, transition: Transition, draw: Draw, clock: Clock, ended: jax.Array, active: jax.Array
    ) -> AgentState:
        """Stores the transition; after an episode's end Thompson sampling draws new weights."""
        state = dataclasses.replace(state, memory=replay.write(state.memory, clock.t, transition, active))
        if state.statistics:
            state = dataclasses.replace(state, statistics=with_observation(state.statistics, transition.obs, active))
        if repeats and settings.explore == "epsilon":
            coin, _, length = draw.explore
            begins = coin < repeats.begins(epsilon_of(settings, clock))
            before = state.repeating[1]
            more = jnp.where(before > 0, before - 1, jnp.where(begins, repeats.length(length) - 1, 0))
            now = jnp.stack([transition.action, jnp.where(ended, 0, more)]).astype(jnp.int32)
            state = dataclasses.replace(state, repeating=jnp.where(active, now, state.repeating))
        if not thompson:
            return state
        key = jax.random.wrap_key_data(draw.weights)
        fresh = jax.lax.cond(ended, lambda: sample_weights(state.belief, key), lambda: state.drawn)
        return dataclasses.replace(state, drawn=fresh)

    def learn(
        state: AgentState, draw: Draw, clock: Clock, active: jax.Array, played: Played | None = None
    ) -> tuple[AgentState, Fit]:
        t = clock.t
        learning = active & (t >= settings.warm_up)

        def update(learned: Learned, bits: jax.Array) -> tuple[Learned, Fit]:
            """One update, from a mini-batch."""
            gains, statistics = learned.gains, learned.statistics
            batch = replay.sample(state.memory, bits, t, observations)
            level = target.level(clock, gains)
            observed = target.observe(estimator.mean(learned.belief), state.target, batch, level)
            belief, fit = estimator.update(learned.belief, *observed, learning, clock.progress)
            if units and statistics:
                statistics = with_targets(statistics, observed[2], learning)
            if target.follows_gain:
                gains = gain_followed(gains, fit, learning)
            return Learned(belief, gains, statistics), fit

        before = Learned(state.belief, state.gains, state.statistics)
        learned, fit = jax.lax.scan(update, before, draw.batch) if several else update(before, draw.batch)
        # What depends on the step, and not on the update, follows the last one.
        belief, copied = learned.belief, state.target
        if target.period is not None:
            due = active & ((t + 1) % target.period < settings.train_every)
            copied = jnp.where(due, followed(target, copied, estimator.mean(belief)), copied)
        if units and learned.statistics:
            changes = learning & ((t + 1) % EVERY < settings.train_every)
            belief = jax.lax.cond(changes, units, lambda belief, _: belief, belief, learned.statistics)
        after = dict(belief=belief, target=copied, gains=learned.gains, statistics=learned.statistics)
        return dataclasses.replace(state, **after), fit

    def restored(state: AgentState, belief: Any) -> AgentState:
        return dataclasses.replace(state, belief=belief, target=jnp.copy(estimator.mean(belief)))

    def corrected(belief: CorrectedBelief, correction: Correction) -> CorrectedBelief:
        return dataclasses.replace(belief, correction=correction)

    def metrics(clock: Clock, belief: Any) -> dict[str, float]:
        assert task.estimator
        epsilon = float(epsilon_of(settings, clock)) if settings.explore == "epsilon" else 0.0
        own = belief.inner if recalibrates else belief
        own = own.inner if units else own
        return {"epsilon": epsilon, **task.estimator.metrics(task.estimator_settings, own)}

    assert task.estimator
    return Learner(
        plays=PlaysSteps(
            observe,
            steps_per_round=settings.train_every,
            rounds_per_chunk=settings.chunk_steps // settings.train_every,
            warm_up=settings.warm_up,
            updates_per_round=settings.updates,
            per_episode=("drawn", "repeating"),
        ),
        init=init,
        draw=draw,
        act=act,
        learn=learn,
        view=View(task.env, network, estimator.mean, posterior, values, correct, target.worst_case),
        seeds="vmap" if task.estimator.vmap_seeds(task.estimator_settings) else "processes",
        batch=settings.batch_size,
        remedy=task.estimator.remedy(task.estimator_settings),
        metrics=metrics,
        restored=restored,
        begin_at=begin_at,
        level=lambda state, clock: target.level(clock, state.gains),
        corrected=corrected if recalibrates else None,
        warning=None
        if task.precision == "float64"
        else task.estimator.warning(task.estimator_settings, estimator_context(task)),
    )


def _check(task: Task) -> None:
    settings: QLearningSettings = task.settings
    assert task.estimator
    check_choices(task)
    check_replay(task, settings, settings.chunk_steps)
    if not task.estimator.posterior:
        for name, plain in (("explore", "epsilon"), ("recalibrate", False)):
            if getattr(settings, name) != plain:
                raise DeeprokError(f"{name} is {shown(getattr(settings, name))}, but {task.algorithm} has no posterior")


PART = LearnerPart(
    settings=QLearningSettings,
    presets={
        "paper": QLearningSettings(),
        "tuned": QLearningSettings(epsilon_steps=30_000),
        "default": QLearningSettings(
            batch_size=64,
            warm_up=1000,
            train_every=2,
            epsilon_end=0.05,
            epsilon_fraction=0.4,
            longest_repeat=50,
            normalise=True,
        ),
    },
    run={
        # The paper's networks take observations as they are.
        "paper": {"acting": "nominal", "input_scale": (1.0,)},
        "tuned": {"models": 20},
        "default": {
            "steps": 150_000,
            "episodes": 0,
            "models": 10,
            "edges": 0.3,
            "discount": 0.995,
            "hidden": (64, 64),
            "trial_every": 4,
            "trial_episodes": 4,
            "trial_epsilon": 0.05,
            "trial_tail": 0.1,
            "refine_from": 0.6,
            "settle": True,
        },
    },
    make=make_q_learner,
    check=_check,
    search=lambda settings: search_greedy(settings) if settings.explore == "epsilon" else search_replay(settings),
)
