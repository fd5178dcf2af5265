"""Q-learning with a replay buffer: a target and an estimator put together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from deeprok.agents import replay
from deeprok.agents.exploration import linear_epsilon
from deeprok.agents.learner import Learner, LearnerPart, Played, PlaysSteps, Task, View, gigabytes
from deeprok.agents.targets.base import Target, action_value
from deeprok.core.errors import DeeprokError, shown
from deeprok.core.fields import Count, Natural, NotNegative, Probability
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Transition
from deeprok.estimators import Context, Estimator, Fit, predict

Explore = Literal["epsilon", "thompson", "ucb"]


@dataclass(frozen=True)
class QLearningSettings:
    """Settings of Q-learning."""

    batch_size: Count = 10
    """Transitions in a mini-batch."""
    replay_size: Count = 150_000
    """Transitions in the replay buffer; the oldest are replaced first."""
    warm_up: Natural = 100
    """Environment steps before learning starts."""
    train_every: Count = 1
    """Environment steps between updates."""
    epsilon_start: Probability = 1.0
    """Probability of a random action at the first step."""
    epsilon_end: Probability = 0.1
    """Probability of a random action after epsilon_steps steps."""
    epsilon_steps: Natural = 10_000
    """Environment steps over which that probability falls."""
    explore: Explore = "epsilon"
    """Exploration: ε-greedy; or by the posterior, without ε: Thompson sampling (one draw an episode) or Q + scale·σ."""
    explore_scale: NotNegative = 1.0
    """What the posterior's standard deviation is multiplied by when it directs exploration."""
    chunk_steps: Count = 2000
    """Environment steps per jitted chunk, after which metrics and checkpoints are written."""
    prior: str = ""
    """Run folder whose last posterior is the prior of this run: mean and covariance."""


@pytree_dataclass
class AgentState:
    """Everything an agent has learned and remembers."""

    belief: Any  # the estimator's record
    target: jax.Array  # [n] θ', the target network's weights
    memory: jax.Array  # [capacity, width] the replay
    drawn: jax.Array  # [n] weights drawn for the episode; [0] unless exploration acts on them
    gains: jax.Array  # [2] mean Kalman gain at first and lately; [0] unless the robustness level follows it


@pytree_dataclass
class Draw:
    """The random numbers of one step. Drawn for many steps at once they cost next to nothing."""

    explore: jax.Array  # [2] uniform, for ε-greedy
    batch: jax.Array  # [B] uint32, for `replay.sample`
    weights: jax.Array  # [2] uint32 data of the key for a draw from the posterior; [0] unless one is needed


# The mean Kalman gain is averaged over some hundred updates.
_GAIN_RATE = 0.01


def make_estimator(task: Task) -> Estimator:
    """The estimator of a task, for its network's weights."""
    assert task.estimator
    return task.estimator.make(task.estimator_settings, _context(task))


def _context(task: Task) -> Context:
    """What the estimator may know of the run."""
    settings: QLearningSettings = task.settings
    steps = task.episodes * task.env.horizon
    capacity = min(settings.replay_size, steps)
    return Context(
        network=task.network,
        batch_size=settings.batch_size,
        updates=steps // settings.train_every,
        data_size=lambda updates: jnp.minimum(settings.warm_up + settings.train_every * (updates + 1.0), capacity),
    )


def make_q_learner(task: Task) -> Learner:
    """Q-learning as the settings describe it."""
    settings: QLearningSettings = task.settings
    network, actions = task.network, task.env.actions
    estimator = make_estimator(task)
    target: Target = task.target.make(task.target_settings, network, task.discount)
    posterior = estimator.posterior
    thompson = settings.explore == "thompson"
    observations = len(task.env.observation_scale)
    outcomes = task.models.size if task.target.robust else 1
    capacity = min(settings.replay_size, task.episodes * task.env.horizon)

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
            explore=jax.random.uniform(explore_key, (*shape, actions.draws)),
            batch=jax.random.bits(batch_key, (*shape, settings.batch_size), "uint32"),
            weights=jax.random.key_data(jax.random.fold_in(key, 1)) if thompson else jnp.zeros(0, "uint32"),
        )

    def act(state: AgentState, draw: Draw, obs: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        if settings.explore == "thompson":
            return greedy(state.drawn, obs).astype(jnp.int32), None
        if settings.explore == "ucb":
            mean, deviation = values(state.belief, obs[None])
            return jnp.argmax(mean[0] + settings.explore_scale * deviation[0]).astype(jnp.int32), None
        epsilon = linear_epsilon(t, settings.epsilon_start, settings.epsilon_end, settings.epsilon_steps)
        return actions.explore(draw.explore, epsilon, greedy(estimator.mean(state.belief), obs)), None

    def values(belief: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = len(actions)
        every = (jnp.repeat(obs, count, axis=0), jnp.tile(jnp.arange(count), len(obs)))
        mean, variance = predict(estimator, belief, action_value(network), every)
        return mean.reshape(-1, count), jnp.sqrt(variance).reshape(-1, count)

    def observe(
        state: AgentState, transition: Transition, draw: Draw, t: jax.Array, ended: jax.Array, active: jax.Array
    ) -> AgentState:
        """Stores the transition; after an episode's end Thompson sampling draws new weights."""
        state = dataclasses.replace(state, memory=replay.write(state.memory, t, transition, active))
        if not thompson:
            return state
        key = jax.random.wrap_key_data(draw.weights)
        fresh = jax.lax.cond(ended, lambda: sample_weights(state.belief, key), lambda: state.drawn)
        return dataclasses.replace(state, drawn=fresh)

    def learn(
        state: AgentState, draw: Draw, t: jax.Array, active: jax.Array, played: Played | None = None
    ) -> tuple[AgentState, Fit]:
        batch = replay.sample(state.memory, draw.batch, t, observations)
        learning = active & (t >= settings.warm_up)
        level = target.level(t, state.gains)
        observed = target.observe(estimator.mean(state.belief), state.target, batch, level)
        belief, fit = estimator.update(state.belief, *observed, learning)
        copied, gains = state.target, state.gains
        if target.period is not None:
            due = active & ((t + 1) % target.period < settings.train_every)
            copied = jnp.where(due, estimator.mean(belief), copied)
        if target.follows_gain:
            if fit.health is None:  # an estimator of a user's
                raise DeeprokError("confidence is 'spread', but the estimator has no health.gain; use 'time' instead")
            now = jnp.where(gains[0] > 0, gains[1] + _GAIN_RATE * (fit.health.gain - gains[1]), fit.health.gain)
            gains = jnp.where(learning, jnp.stack([jnp.where(gains[0] > 0, gains[0], now), now]), gains)
        return dataclasses.replace(state, belief=belief, target=copied, gains=gains), fit

    def metrics(t: int, belief: Any) -> dict[str, float]:
        assert task.estimator
        epsilon = 0.0
        if settings.explore == "epsilon":
            epsilon = float(linear_epsilon(t, settings.epsilon_start, settings.epsilon_end, settings.epsilon_steps))
        return {"epsilon": epsilon, **task.estimator.metrics(task.estimator_settings, belief)}

    assert task.estimator
    return Learner(
        plays=PlaysSteps(
            observe,
            steps_per_update=settings.train_every,
            updates_per_chunk=settings.chunk_steps // settings.train_every,
            warm_up=settings.warm_up,
        ),
        init=init,
        draw=draw,
        act=act,
        learn=learn,
        view=View(task.env, network, estimator.mean, posterior, values),
        seeds="vmap" if task.estimator.vmap_seeds(task.estimator_settings) else "processes",
        batch=settings.batch_size,
        remedy=task.estimator.remedy(task.estimator_settings),
        metrics=metrics,
        warning=None
        if task.precision == "float64"
        else task.estimator.warning(task.estimator_settings, _context(task)),
    )


def _check(task: Task) -> None:
    settings: QLearningSettings = task.settings
    assert task.estimator
    if task.env.actions.continuous:
        raise DeeprokError(
            f"env is '{task.env.name}', where actions are numbers; {task.algorithm} needs actions to choose from, "
            "take pg, epopt or robust_pg"
        )
    if settings.chunk_steps % settings.train_every:
        raise DeeprokError(
            f"chunk_steps is {settings.chunk_steps}; it must be a multiple of train_every, "
            f"which is {settings.train_every}"
        )
    if settings.batch_size > settings.replay_size:
        raise DeeprokError(
            f"batch_size is {settings.batch_size}; it must be at most replay_size, which is {settings.replay_size}, or "
            "a mini-batch would hold a transition several times"
        )
    _check_memory(task)
    task.estimator.check(task.estimator_settings, task.network, task.precision)
    if not task.estimator.posterior:
        for name, plain in (("explore", "epsilon"), ("prior", "")):
            if getattr(settings, name) != plain:
                raise DeeprokError(f"{name} is {shown(getattr(settings, name))}, but {task.algorithm} has no posterior")


def _check_memory(task: Task) -> None:
    """Refuses settings whose replay, snapshots, covariance, and models drawn for a chunk, are gigabytes."""
    settings: QLearningSettings = task.settings
    network = task.network
    assert task.estimator
    stored = task.estimator.memory(task.estimator_settings, network)
    if (size := gigabytes(stored.numbers, task.precision)) > 4:
        raise DeeprokError(
            f"{stored.what} {network.num_weights} weights would take {size:.1f} GB, more than the 4 allowed; "
            f"{stored.instead}"
        )
    models, observations = task.models.size, len(task.env.observation_scale)
    rows = min(settings.replay_size, task.episodes * task.env.horizon)
    width = observations + 1 + (models if task.target.robust else 1) * (observations + 2)
    drawn = settings.chunk_steps * models * len(task.box)
    if (size := gigabytes(rows * width + drawn + task.snapshots * network.num_weights, task.precision)) > 4:
        raise DeeprokError(
            f"{models} models, a replay of {rows} transitions and {task.snapshots} snapshots would take "
            f"{size:.1f} GB a seed, more than the 4 allowed; lower models, replay_size or chunk_steps, or raise "
            "snapshot_every"
        )


PART = LearnerPart(
    settings=QLearningSettings,
    presets={"paper": QLearningSettings(), "tuned": QLearningSettings(epsilon_steps=30_000)},
    # The paper's networks take observations as they are.
    run={"paper": {"acting": "nominal", "input_scale": (1.0,)}, "tuned": {"models": 20}},
    make=make_q_learner,
    check=_check,
)
