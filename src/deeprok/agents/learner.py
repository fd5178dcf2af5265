"""What a learner is: the pure functions that a driver calls, and what others may look at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from deeprok.agents.clock import Clock
from deeprok.agents.correction import Correction
from deeprok.agents.network import Network
from deeprok.agents.targets.base import InnerProblem, TargetPart
from deeprok.core.fields import Precision
from deeprok.core.registry import Registry, expect
from deeprok.core.search import Space, nothing_searched
from deeprok.environments.base import AnyEnvironment, Model, Transition
from deeprok.environments.rollout import Step
from deeprok.estimators.base import EstimatorPart, Fit, Posterior
from deeprok.uncertainty.models import Box, ModelSet
from deeprok.uncertainty.sets import Level

#: The model that an agent acts on: the nominal one, a fresh draw from the box in each episode, or one of the model set.
Acting = Literal["nominal", "sampled", "member"]

#: What looks for models that join the set: nothing, or the search of `deeprok stress`.
Adversary = Literal["none", "stress"]

#: Where several seeds train: vmapped in one program, one after the other in one program, or in processes of their own.
Seeds = Literal["vmap", "loop", "processes"]


class Budget(NamedTuple):
    """How long a run trains: so many episodes or so many steps, whichever comes first; 0 is no limit."""

    episodes: int
    steps: int

    def lasts(self, episodes: Any, steps: Any) -> Any:
        """Whether there is something left after so many episodes and steps: numbers or arrays."""
        return (episodes < (self.episodes or _NO_LIMIT)) & (steps < (self.steps or _NO_LIMIT))

    def progress(self, episodes: Any, steps: Any) -> Any:
        """The fraction that is used up after so many episodes and steps: numbers or arrays."""
        if not (self.episodes and self.steps):
            return steps / self.steps if self.steps else episodes / self.episodes
        return jnp.maximum(episodes / self.episodes, steps / self.steps)

    def most_steps(self, horizon: int) -> int:
        """The steps of a run, at most, in which no episode is longer than the horizon."""
        limits = [limit for limit in (self.episodes * horizon, self.steps) if limit]
        return min(limits)


_NO_LIMIT = 2**31 - 1


class Task(NamedTuple):
    """What a learner may know of the run that it is made for."""

    algorithm: str  # its name, for messages
    env: AnyEnvironment
    network: Network
    layers: Callable[[int, int], Network]  # (inputs, outputs) -> such a network with more inputs, of size one
    box: Box
    models: ModelSet
    acting: Acting
    edges: float  # the probability that a parameter drawn from the box is at one of its ends
    discount: float
    budget: Budget
    precision: Precision
    snapshot_every: int  # episodes between snapshots of the weights; 0 for none
    refines: bool  # whether the run goes back to its best weights on the way
    settings: Any  # the learner's
    target: TargetPart
    target_settings: Any
    estimator: EstimatorPart | None
    estimator_settings: Any
    searches: bool  # whether models are searched for on the way that join the set

    @property
    def most_steps(self) -> int:
        """The environment steps of a run, at most."""
        return self.budget.most_steps(self.env.horizon)

    @property
    def snapshots(self) -> int:
        """How many snapshots of the weights a run takes."""
        return self.budget.episodes // self.snapshot_every if self.snapshot_every else 0


class State(Protocol):
    """What a learner carries from one step to the next: a pytree with the estimate of the weights as `belief`."""

    @property
    def belief(self) -> Any:
        """The estimator's record."""


class View(NamedTuple):
    """Read-only access to what a learner has learned.

    Attributes:
      env: the environment.
      network: the network whose weights are estimated.
      mean: `belief -> theta` [n], the point estimate.
      posterior: the posterior over the weights; None for a point estimate.
      values: `(belief, obs [C, D]) -> (mean, deviation)` of Q [C, A]; None for a policy.
      correct: `(belief, mean, deviation) -> (mean, deviation)`, what is made of the posterior's own numbers of Q.
      worst_case: the inner problem that Q is the worst case of; None for a nominal target.
    """

    env: AnyEnvironment
    network: Network
    mean: Callable[[Any], jax.Array]
    posterior: Posterior | None
    values: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]] | None
    correct: Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, jax.Array]] = lambda belief, mean, deviation: (
        mean,
        deviation,
    )
    worst_case: InnerProblem | None = None


class Played(NamedTuple):
    """Whole trajectories, with time as the first axis and trajectories as the second."""

    steps: Step
    models: Model  # name -> [K], the models that the i-th trajectory, counted round, was played on


class PlaysSteps(NamedTuple):
    """A learner that acts in one episode after the other, in rounds: a few steps, then one or more updates.

    Attributes:
      observe: `(state, transition, draw, clock, ended, active) -> state`, what a step changes: the replay, for example.
      steps_per_round: environment steps in a round.
      rounds_per_chunk: rounds in a chunk, after which metrics are written.
      warm_up: the step before which updates have no effect.
      updates_per_round: updates after the steps of a round.
      per_episode: fields of the state that belong to the episode under way. Where a learner plays in several simulators
        each has its own.
    """

    observe: Callable[[Any, Transition, Any, Clock, jax.Array, jax.Array], Any]
    steps_per_round: int
    rounds_per_chunk: int
    warm_up: int = 0
    updates_per_round: int = 1
    per_episode: tuple[str, ...] = ()

    def chunk_steps(self, horizon: int) -> int:
        """Environment steps in a chunk."""
        return self.steps_per_round * self.rounds_per_chunk


class PlaysTrajectories(NamedTuple):
    """A learner that plays whole trajectories side by side and learns from all of them: a chunk is one update.

    Attributes:
      models: `(state, keys [2], t) -> (state, name -> [K])`, the models that trajectories are played on.
      trajectories: N, how many are played; a multiple of K.
    """

    models: Callable[[Any, jax.Array, jax.Array], tuple[Any, Model]]
    trajectories: int

    def chunk_steps(self, horizon: int) -> int:
        """Environment steps in a chunk, at most."""
        return self.trajectories * horizon


class Learner(NamedTuple):
    """Pure functions; drivers call them and know nothing else of an algorithm.

    The counter of a clock is the driver's and shared by all seeds of a program, so that nothing expensive depends on a
    per-seed condition; the progress is each seed's own. Where `active` is false the state stays as it is.

    Attributes:
      plays: how a driver plays.
      init: `(key, belief=None) -> State`, from a given estimate of the weights or from fresh ones.
      draw: `(key, shape) -> pytree`, the random numbers of steps of that shape, for `act` and `observe`.
      act: `(state, draw, obs, clock) -> (action, note)`, exploring; the note is what `learn` wants to know of it.
      learn: `(state, draw, clock, active, played) -> (state, Fit)`, one update, or all of a round, whose `Fit` then has
        a first axis of updates. A learner that plays steps gets the random numbers of the last of them, and None; one
        that plays trajectories gets a random key, and what was played.
      view: what others may look at.
      seeds: where several seeds train. A small network leaves a core idle, so that a vmap pays; a covariance fills its
        cache by itself.
      batch: observations in an update, for its statistics.
      remedy: what to change when a run diverges.
      metrics: `(clock, belief) -> dict`, more numbers for a line of metrics.
      warning: what a user should know of the settings before training, if anything.
      restored: `(state, belief) -> state`, with the weights of an earlier moment.
      begin_at: `(theta, scales=None) -> belief`, the estimate before any observation, at the weights that another run
        has ended with and in its units, if it had some; None where a run can't start from another.
      level: `(state, clock) -> level`, the size of the ambiguity set that the values are learned with.
      corrected: `(belief, correction) -> belief`, with another correction of the values; None if the run has none.
    """

    plays: PlaysSteps | PlaysTrajectories
    init: Callable[..., Any]
    draw: Callable[[jax.Array, tuple[int, ...]], Any]
    act: Callable[[Any, Any, jax.Array, Clock], tuple[jax.Array, Any]]
    learn: Callable[[Any, Any, Clock, jax.Array, Played | None], tuple[Any, Fit]]
    view: View
    seeds: Seeds
    batch: int
    remedy: str
    metrics: Callable[[Clock, Any], dict[str, float]] = lambda clock, belief: {}
    warning: str | None = None
    restored: Callable[[Any, Any], Any] = lambda state, belief: dataclasses.replace(state, belief=belief)
    begin_at: Callable[..., Any] | None = None
    level: Callable[[Any, Clock], Level] = lambda state, clock: 0.0
    corrected: Callable[[Any, Correction], Any] | None = None

    @property
    def chunk_steps(self) -> int:
        """Environment steps in a chunk, at most."""
        return self.plays.chunk_steps(self.view.env.horizon)


class LearnerPart(NamedTuple):
    """A learner as the settings of a run name it.

    Attributes:
      settings: a dataclass whose fields' types are those of `deeprok.core.fields`, each with a default.
      make: `Task -> Learner`.
      presets: preset -> its settings; where there are none, the defaults.
      run: preset -> settings of the run, by name, that go with it.
      check: `Task -> None`; raises where settings don't fit each other, the environment or the memory.
      like: the learner whose targets it takes, and whose presets environments have for it; itself if empty.
      search: `settings -> Space`, what `deeprok tune` tries for its settings and for those of the run that go with it.
    """

    settings: type[Any]
    make: Callable[[Task], Learner]
    presets: Mapping[str, Any] = {}
    run: Mapping[str, Mapping[str, Any]] = {}
    check: Callable[[Task], None] = lambda task: None
    like: str = ""
    search: Callable[[Any], Space] = nothing_searched


LEARNERS: Registry[LearnerPart] = Registry(
    "learner",
    {
        "q_learning": "deeprok.agents.q_learning:PART",
        "bootstrap": "deeprok.agents.bootstrap:PART",
        "actor_critic": "deeprok.agents.actor_critic:PART",
        "policy_gradient": "deeprok.agents.policy.gradient:PART",
    },
    expect(LearnerPart, "a LearnerPart"),
)


def gigabytes(numbers: int, precision: Precision) -> float:
    """What so many numbers take."""
    return (8 if precision == "float64" else 4) * numbers / 10**9
