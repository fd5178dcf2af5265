"""What learners from a replay buffer share: their settings, checks, schedules and the estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents import replay
from deeprok.agents.clock import Clock
from deeprok.agents.exploration import linear_epsilon
from deeprok.agents.learner import Adversary, Task, gigabytes
from deeprok.agents.network import Network
from deeprok.agents.targets.base import Target
from deeprok.core.errors import DeeprokError
from deeprok.core.fields import Count, Natural, Probability, added
from deeprok.core.search import Range, Space
from deeprok.estimators import Context, Estimator, Fit


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of learning from a replay buffer."""

    batch_size: Count = 10
    """Transitions in a mini-batch."""
    replay_size: Count = 150_000
    """Transitions in the replay buffer; the oldest are replaced first."""
    warm_up: Natural = 100
    """Environment steps before learning starts."""
    train_every: Count = 1
    """Environment steps between updates."""
    updates: Count = added(1)
    """Updates after every train_every steps, each from a mini-batch of its own."""
    adversary: Adversary = added("none")
    """What adds to the set of models: none; or stress, which searches the box for the model on which the present policy
    does worst, up to five times, from a quarter of the budget on."""


@dataclass(frozen=True)
class GreedySettings(ReplaySettings):
    """Settings of learning from a replay buffer, with ε-greedy exploration."""

    epsilon_start: Probability = 1.0
    """Probability of a random action at the first step."""
    epsilon_end: Probability = 0.1
    """Probability of a random action after epsilon_steps steps."""
    epsilon_steps: Natural = 10_000
    """Environment steps over which that probability falls, unless epsilon_fraction is set."""
    epsilon_fraction: Probability = added(0.0)
    """Fraction of the budget over which that probability falls; 0 to count steps instead."""


def search_replay(settings: ReplaySettings) -> Space:
    """What is tried for learning from a replay buffer."""
    return {"batch_size": Range(16, 128, log=True), "train_every": (1, 2, 4)}


def search_greedy(settings: GreedySettings) -> Space:
    """What is tried for it, and for ε-greedy exploration."""
    return {
        **search_replay(settings),
        "epsilon_end": Range(0.01, 0.2),
        **({"epsilon_fraction": Range(0.1, 0.8)} if settings.epsilon_fraction else {}),
    }


def make_estimator(task: Task) -> Estimator:
    """The estimator of a task, for its network's weights, in whatever units it learns."""
    assert task.estimator
    return task.estimator.make(task.estimator_settings, estimator_context(task))


def estimator_context(task: Task) -> Context:
    """What the estimator may know of the run."""
    settings: ReplaySettings = task.settings
    steps = task.most_steps
    capacity = min(settings.replay_size, steps)

    def data_size(updates: jax.Array) -> jax.Array:
        rounds = updates // settings.updates if settings.updates > 1 else updates
        return jnp.minimum(settings.warm_up + settings.train_every * (rounds + 1.0), capacity)

    return Context(
        network=task.network,
        batch_size=settings.batch_size,
        updates=steps // settings.train_every * settings.updates,
        data_size=data_size,
    )


def epsilon_of(settings: GreedySettings, clock: Clock) -> jax.Array:
    """The probability of a random action at a moment."""
    start, end, fraction = settings.epsilon_start, settings.epsilon_end, settings.epsilon_fraction
    if fraction:
        return linear_epsilon(clock.progress, start, end, fraction)
    return linear_epsilon(clock.t, start, end, settings.epsilon_steps)


def followed(target: Target, copied: jax.Array, mean: jax.Array) -> jax.Array:
    """The target network's weights, moved towards the learned ones."""
    return mean if target.rate == 1.0 else copied + target.rate * (mean - copied)


# The mean Kalman gain is averaged over some hundred updates.
_GAIN_RATE = 0.01


def gain_followed(gains: jax.Array, fit: Fit, learning: jax.Array) -> jax.Array:
    """The mean Kalman gain at first and lately, after one more update."""
    if fit.health is None:  # an estimator of a user's
        raise DeeprokError("confidence is 'spread', but the estimator has no health.gain; use 'time' instead")
    now = jnp.where(gains[0] > 0, gains[1] + _GAIN_RATE * (fit.health.gain - gains[1]), fit.health.gain)
    return jnp.where(learning, jnp.stack([jnp.where(gains[0] > 0, gains[0], now), now]), gains)


def check_choices(task: Task) -> None:
    """Raises where actions are not to be chosen from."""
    if task.env.actions.continuous:
        raise DeeprokError(
            f"{task.env.name} has continuous actions; {task.algorithm} needs actions to choose from, "
            "take td3, td3_dr, rtd_td3, rok_td3, pg, epopt or robust_pg"
        )


class Estimated(NamedTuple):
    """The networks whose weights an estimator estimates."""

    network: Network
    copies: int = 1  # each with an estimator of its own


def check_replay(
    task: Task,
    settings: ReplaySettings,
    chunk_steps: int,
    members: int = 0,
    noises: int = 0,
    estimated: Estimated | None = None,
) -> None:
    """Raises where the settings of learning from a replay don't fit each other or the memory.

    Args:
      task: the run, with the network whose weights are all that is learned.
      settings: the learner's.
      chunk_steps: environment steps in a chunk.
      members: numbers that are stored beside each transition, and drawn for it.
      noises: numbers that are drawn for each transition of a mini-batch.
      estimated: what the estimator estimates, if that is not all of the network.
    """
    assert task.estimator
    if chunk_steps % settings.train_every:
        raise DeeprokError(
            f"chunk_steps is {chunk_steps}; it must be a multiple of train_every, which is {settings.train_every}"
        )
    if settings.batch_size > settings.replay_size:
        raise DeeprokError(
            f"batch_size is {settings.batch_size}; it must be at most replay_size, which is {settings.replay_size}, or "
            "a mini-batch would hold a transition several times"
        )
    if settings.updates > 1 and settings.replay_size == 1:
        raise DeeprokError(
            f"updates is {settings.updates}, but replay_size is 1, so that all of them would learn from the same "
            "transition; raise replay_size, or take 1"
        )
    # Settings whose replay, snapshots, covariance, and models drawn for a chunk, are gigabytes.
    network, copies = estimated or Estimated(task.network)
    stored = task.estimator.memory(task.estimator_settings, network)
    if (size := gigabytes(copies * stored.numbers, task.precision)) > 4:
        each = f" in each of {copies} networks" if copies > 1 else ""
        raise DeeprokError(
            f"{stored.what} {network.num_weights} weights{each} would take {size:.1f} GB, more than the 4 allowed; "
            f"{stored.instead}"
        )
    models, observations = task.models.size, len(task.env.observation_scale)
    rows = min(settings.replay_size, task.most_steps)
    actions = len(task.env.actions) if task.env.actions.continuous else 0
    width = replay.width(observations, models if task.target.robust else 1, actions) + members
    # Of each step of a chunk: mini-batches, and the models and the first observation of an episode that may begin.
    batches = settings.updates * settings.batch_size * (1 + noises)
    drawn = chunk_steps * (batches + models * len(task.box) + observations + members)
    if (size := gigabytes(rows * width + drawn + task.snapshots * task.network.num_weights, task.precision)) > 4:
        lower = "models, replay_size, memory or chunk_steps" if task.env.past else "models, replay_size or chunk_steps"
        raise DeeprokError(
            f"{models} models, a replay of {rows} transitions and {task.snapshots} snapshots would take "
            f"{size:.1f} GB a seed, more than the 4 allowed; lower {lower}, or raise snapshot_every"
        )
    task.estimator.check(task.estimator_settings, network, task.precision)
