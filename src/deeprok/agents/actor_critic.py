"""TD3: an actor for continuous actions, and two critics that learn from a replay buffer.

The critics learn as a Q-network does: by any estimator, from a nominal target or from the worst case over the models'
outcomes. What is taken for the value of an outcome is the smaller of the two target critics' values of the target
actor's action, with a little noise on it. The actor climbs the first critic, once in a few updates.

S. Fujimoto, H. van Hoof and D. Meger, "Addressing function approximation error in actor-critic methods", ICML, 2018,
  arXiv:1802.09477.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import optax

from deeprok.agents import q_learning, replay
from deeprok.agents.clock import Clock
from deeprok.agents.ensemble import TWINS, ActorCritic
from deeprok.agents.learner import Learner, LearnerPart, Played, PlaysSteps, Task, View
from deeprok.agents.network import RescalableNetwork
from deeprok.agents.replaying import (
    Estimated,
    ReplaySettings,
    check_replay,
    estimator_context,
    followed,
    gain_followed,
    make_estimator,
    search_replay,
)
from deeprok.agents.scaling import EVERY, Scales, Statistics, in_units, no_statistics, with_observation, with_targets
from deeprok.agents.targets.base import Target
from deeprok.core.errors import DeeprokError
from deeprok.core.fields import Count, NotNegative, Positive, Probability
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.core.search import Range
from deeprok.environments.base import Transition
from deeprok.estimators import Fit, Health, Posterior


@dataclass(frozen=True)
class ActorCriticSettings(ReplaySettings):
    """Settings of an actor-critic."""

    chunk_steps: Count = 2000
    """Environment steps per jitted chunk, after which metrics and checkpoints are written."""
    policy_delay: Count = 2
    """Updates of the critics for each update of the actor."""
    actor_rate: Positive = 1e-3
    """Step size α of Adam for the actor."""
    actor_final_rate: Probability = 1.0
    """The actor's step size when the budget is used up, relative to the first; it falls linearly."""
    action_noise: NotNegative = 0.1
    """Exploration: standard deviation of the noise on the actor's action, of which −1 and 1 are the ends. During the
    warm-up actions are uniformly random."""
    smoothing_noise: NotNegative = 0.2
    """Standard deviation of the noise on the target actor's action in a target."""
    smoothing_clip: NotNegative = 0.5
    """The most that this noise may be, either way."""
    normalise: bool = False
    """Running normalisation of observations and targets, with an estimator and a network that can do it, as all that
    come with the package can."""


@pytree_dataclass
class ActorCriticBelief:
    """An actor and its critics."""

    actor: jax.Array  # [n_a] weights, in the critics' units of the observations
    optimizer: Any  # of the actor, optax state
    critics: Any  # the estimator's records, each leaf with a first axis of two


@pytree_dataclass
class ActorCriticState:
    """Everything the learner has learned and remembers."""

    belief: ActorCriticBelief
    target: jax.Array  # [n] the weights of the target networks: an actor and two critics
    memory: jax.Array  # [capacity, width] the replay
    gains: jax.Array  # [2] mean Kalman gain at first and lately; [0] unless the robustness level follows it
    statistics: Statistics | None  # of observations with actions, and of targets; None unless they are normalised


@pytree_dataclass
class Draw:
    """The random numbers of one step."""

    noise: jax.Array  # [A] normal, on the actor's action
    anywhere: jax.Array  # [A] uniform between −1 and 1, the action during the warm-up
    batch: jax.Array  # [U, B] uint32, for `replay.sample`
    smoothing: jax.Array  # [U, B, A] normal, on the target actor's actions


class Learned(NamedTuple):
    """What an update changes of the state."""

    belief: ActorCriticBelief
    gains: jax.Array
    statistics: Statistics | None


def networks_of(task: Task) -> ActorCritic:
    """The network whose weights are those of the actor and both critics."""
    return ActorCritic(task.network, task.layers(len(task.env.actions), 1))


def make_actor_critic(task: Task) -> Learner:
    """An actor-critic as the settings describe it."""
    settings: ActorCriticSettings = task.settings
    networks, actions = networks_of(task), task.env.actions
    actor_network, critic_network = networks
    numbers, observations = len(actions), len(task.env.observation_scale)
    of_critics = task._replace(network=critic_network)
    typical = (*task.env.observation_scale, *(1.0,) * numbers)
    units, _, estimator = in_units(make_estimator(of_critics), critic_network, typical, settings.normalise)
    target: Target = task.target.make(task.target_settings, critic_network, task.discount)
    rule = optax.adam(settings.actor_rate)
    outcomes = task.models.size if task.target.robust else 1
    capacity = min(settings.replay_size, task.most_steps)

    def init(key: jax.Array, belief: ActorCriticBelief | None = None) -> ActorCriticState:
        if belief is None:
            actor, critics = networks.split(networks.init(key))
            begun = jax.vmap(estimator.init)(critics)
            belief = ActorCriticBelief(actor=actor, optimizer=rule.init(actor), critics=begun)
        return ActorCriticState(
            belief=belief,
            target=jnp.copy(mean(belief)),
            memory=replay.empty(observations, outcomes, capacity, numbers),
            gains=jnp.zeros(2 if target.follows_gain else 0),
            statistics=no_statistics(observations + numbers) if units else None,
        )

    def in_actor_units(actor: jax.Array, critics: Any, back: bool = False) -> jax.Array:
        """The actor's weights for observations as they are, from those in the critics' units; or back."""
        if not units:
            return actor
        assert isinstance(actor_network, RescalableNetwork)
        scales: Scales = critics.scales  # the same for both
        return actor_network.rescale(actor, scales.centre[0, :observations], scales.spread[0, :observations], 1.0, back)

    def mean(belief: ActorCriticBelief) -> jax.Array:
        critics = jax.vmap(estimator.mean)(belief.critics)
        return jnp.concatenate([in_actor_units(belief.actor, belief.critics), critics.ravel()])

    def draw(key: jax.Array, shape: tuple[int, ...] = ()) -> Draw:
        noise_key, anywhere_key, batch_key, smoothing_key = jax.random.split(key, 4)
        several = (*shape, settings.updates, settings.batch_size)
        return Draw(
            noise=jax.random.normal(noise_key, (*shape, numbers)),
            anywhere=jax.random.uniform(anywhere_key, (*shape, numbers), minval=-1.0),
            batch=jax.random.bits(batch_key, several, "uint32"),
            smoothing=jax.random.normal(smoothing_key, (*several, numbers)),
        )

    def act(state: ActorCriticState, draw: Draw, obs: jax.Array, clock: Clock) -> tuple[jax.Array, None]:
        place = networks.act(in_actor_units(state.belief.actor, state.belief.critics), obs)
        explored = place + settings.action_noise * draw.noise
        return actions.at(jnp.where(clock.t < settings.warm_up, draw.anywhere, explored)), None

    def observe(
        state: ActorCriticState, transition: Transition, draw: Draw, clock: Clock, ended: jax.Array, active: jax.Array
    ) -> ActorCriticState:
        """Stores the transition."""
        state = dataclasses.replace(state, memory=replay.write(state.memory, clock.t, transition, active))
        if state.statistics:
            seen = jnp.concatenate([transition.obs, actions.encode(transition.action)])
            state = dataclasses.replace(state, statistics=with_observation(state.statistics, seen, active))
        return state

    def next_values(theta: jax.Array, next_obs: jax.Array, noise: jax.Array) -> jax.Array:
        """The values [B, M] of successors [B, M, D]: the smaller of both critics', of a noisy action."""
        actor, critics = networks.split(theta)
        most = settings.smoothing_clip
        moved = jnp.clip(settings.smoothing_noise * noise, -most, most)
        # The same noise for all models, whose outcomes are to differ by their parameters alone.
        places = jnp.clip(networks.act(actor, next_obs) + moved[:, None], -1.0, 1.0)
        return jnp.minimum(*(networks.value(critic, next_obs, places) for critic in critics))

    def improved(belief: ActorCriticBelief, obs: jax.Array, progress: jax.Array | float) -> ActorCriticBelief:
        """The actor after a step up the first critic."""
        critic = estimator.mean(jax.tree.map(lambda leaf: leaf[0], belief.critics))

        def loss(actor: jax.Array) -> jax.Array:
            places = networks.act(in_actor_units(actor, belief.critics), obs)
            return -jnp.mean(networks.value(critic, obs, places))

        change, optimizer = rule.update(jax.grad(loss)(belief.actor), belief.optimizer)
        if settings.actor_final_rate != 1.0:
            change = (1.0 - (1.0 - settings.actor_final_rate) * progress) * change
        return dataclasses.replace(belief, actor=belief.actor + change, optimizer=optimizer)

    def value(critic: jax.Array, x: jax.Array) -> jax.Array:
        """Q of an observation and places [D + A]."""
        return critic_network.apply(critic, x)[0]

    def learn(
        state: ActorCriticState, draw: Draw, clock: Clock, active: jax.Array, played: Played | None = None
    ) -> tuple[ActorCriticState, Fit]:
        t = clock.t
        learning = active & (t >= settings.warm_up)
        rounds = (t + 1) // settings.train_every
        backup = target.backup
        assert backup

        def update(learned: Learned, moment: tuple[jax.Array, ...]) -> tuple[Learned, Fit]:
            """One update, from a mini-batch."""
            bits, noise, number = moment
            gains, statistics = learned.gains, learned.statistics
            batch = replay.sample(state.memory, bits, t, observations, numbers)
            level = target.level(clock, gains)
            ys = backup(batch, next_values(state.target, batch.next_obs, noise), level)
            xs = jnp.concatenate([batch.obs, actions.encode(batch.action).astype(batch.obs.dtype)], axis=1)

            def fitted(critic: Any) -> tuple[Any, Fit]:
                return estimator.update(critic, value, xs, ys, learning, clock.progress)

            critics, fits = jax.vmap(fitted)(learned.belief.critics)
            fit = _of_both(fits)
            belief = dataclasses.replace(learned.belief, critics=critics)
            # All seeds of a program share the counter, so that this is computed when it is due, and not else.
            due = number % settings.policy_delay == 0
            belief = jax.lax.cond(
                due, lambda: select(learning, improved(belief, batch.obs, clock.progress), belief), lambda: belief
            )
            if statistics:
                statistics = with_targets(statistics, ys, learning)
            if target.follows_gain:
                gains = gain_followed(gains, fit, learning)
            return Learned(belief, gains, statistics), fit

        learned = Learned(state.belief, state.gains, state.statistics)
        moments = (draw.batch, draw.smoothing, settings.updates * rounds + jnp.arange(settings.updates))
        if settings.updates > 1:
            learned, fit = jax.lax.scan(update, learned, moments)
        else:
            learned, fit = update(learned, jax.tree.map(lambda leaf: leaf[0], moments))
        # What depends on the step, and not on the update, follows the last one.
        belief, copied = learned.belief, state.target
        assert target.period
        due = (t + 1) % target.period < settings.train_every
        copied = jnp.where(active & due, followed(target, copied, mean(belief)), copied)
        if learned.statistics:
            due = (t + 1) % EVERY < settings.train_every
            seen = learned.statistics
            belief = jax.lax.cond(due, lambda: select(learning, in_new_units(belief, seen), belief), lambda: belief)
        after = ActorCriticState(
            belief=belief,
            target=copied,
            memory=state.memory,
            gains=learned.gains,
            statistics=learned.statistics,
        )
        return after, fit

    def in_new_units(belief: ActorCriticBelief, seen: Statistics) -> ActorCriticBelief:
        """The same functions in the units that the statistics say."""
        assert units
        critics = jax.vmap(units, (0, None))(belief.critics, seen)
        actor = in_actor_units(in_actor_units(belief.actor, belief.critics), critics, back=True)
        return ActorCriticBelief(actor=actor, optimizer=belief.optimizer, critics=critics)

    def restored(state: ActorCriticState, belief: ActorCriticBelief) -> ActorCriticState:
        return dataclasses.replace(state, belief=belief, target=jnp.copy(mean(belief)))

    def metrics(clock: Clock, belief: ActorCriticBelief) -> dict[str, float]:
        assert task.estimator
        first = jax.tree.map(lambda leaf: leaf[0], belief.critics)
        return task.estimator.metrics(task.estimator_settings, first.inner if units else first)

    posterior = estimator.posterior and _of_all(networks, estimator.posterior, mean)
    assert task.estimator
    return Learner(
        plays=PlaysSteps(
            observe,
            steps_per_round=settings.train_every,
            rounds_per_chunk=settings.chunk_steps // settings.train_every,
            warm_up=settings.warm_up,
            updates_per_round=settings.updates,
        ),
        init=init,
        draw=draw,
        act=act,
        learn=learn,
        view=View(task.env, networks, mean, posterior, values=None, worst_case=target.worst_case),
        seeds="vmap" if task.estimator.vmap_seeds(task.estimator_settings) else "processes",
        batch=settings.batch_size,
        remedy=f"{task.estimator.remedy(task.estimator_settings)}, or lower --actor-rate (now {settings.actor_rate:g})",
        metrics=metrics,
        restored=restored,
        level=lambda state, clock: target.level(clock, state.gains),
        warning=None
        if task.precision == "float64"
        else task.estimator.warning(task.estimator_settings, estimator_context(of_critics)),
    )


def _of_both(fits: Fit) -> Fit:
    """What an update leaves behind, of two critics' [2]."""
    health = fits.health
    if health is None:
        return Fit(jnp.mean(fits.loss), None)
    counts = health.extras and {name: jnp.sum(count) for name, count in health.extras.items()}
    both = Health(jnp.min(health.variance), jnp.mean(health.consistency), jnp.mean(health.gain), counts)
    return Fit(jnp.mean(fits.loss), both)


def _of_all(networks: ActorCritic, of_critic: Posterior, mean: Any) -> Posterior:
    """The posterior over all weights, in which the critics are independent and the actor is a point."""
    n = networks.actor.num_weights

    def sample(belief: ActorCriticBelief, key: jax.Array) -> jax.Array:
        critics = jax.vmap(of_critic.sample)(belief.critics, jax.random.split(key, TWINS))
        return jnp.concatenate([mean(belief)[:n], critics.ravel()])

    def predictive_variance(belief: ActorCriticBelief, H: jax.Array) -> jax.Array:
        rows = H[:, n:].reshape(len(H), TWINS, -1)
        return jnp.sum(jax.vmap(of_critic.predictive_variance, (0, 1))(belief.critics, rows), axis=0)

    def variances(belief: ActorCriticBelief) -> jax.Array:
        critics = jax.vmap(of_critic.variances)(belief.critics)
        return jnp.concatenate([jnp.zeros(n, critics.dtype), critics.ravel()])

    def covariance(belief: ActorCriticBelief) -> jax.Array:
        critics = jax.vmap(of_critic.covariance)(belief.critics)
        return jax.scipy.linalg.block_diag(jnp.zeros((n, n), critics.dtype), *critics)

    def definite(belief: ActorCriticBelief) -> jax.Array:
        return jnp.all(jax.vmap(of_critic.definite)(belief.critics)) & jnp.all(jnp.isfinite(belief.actor))

    return Posterior(sample, predictive_variance, variances, covariance, definite)


def _check(task: Task) -> None:
    settings: ActorCriticSettings = task.settings
    if not task.env.actions.continuous:
        raise DeeprokError(
            f"{task.env.name} has actions to choose from; {task.algorithm} needs actions that are numbers, as those of "
            "pendulum; or take dqn, ddqn_dr, rtd_dqn or deep_rok"
        )
    networks = networks_of(task)
    target: Target = task.target.make(task.target_settings, networks.critic, task.discount)
    if target.backup is None or target.period is None:
        raise DeeprokError(
            f"the target of {task.algorithm} has no backup from values of successors; an actor-critic needs the target "
            "nominal or worst_case"
        )
    if getattr(task.target_settings, "double", False):
        raise DeeprokError(f"double is True, but with {task.algorithm} the actor chooses the successor's action")
    estimated = Estimated(networks.critic, TWINS)
    numbers = len(task.env.actions)
    check_replay(task._replace(network=networks), settings, settings.chunk_steps, noises=numbers, estimated=estimated)


_RUN: dict[str, Any] = {"activation": "relu", "discount": 0.99, "episodes": 0}

PART = LearnerPart(
    settings=ActorCriticSettings,
    presets={
        "paper": ActorCriticSettings(batch_size=100, warm_up=1000, replay_size=1_000_000),
        "tuned": ActorCriticSettings(batch_size=64, warm_up=1000, normalise=True),
        "default": ActorCriticSettings(batch_size=64, warm_up=1000, normalise=True, actor_final_rate=0.0),
    },
    run={
        "paper": {**_RUN, "hidden": (400, 300), "steps": 1_000_000},
        "tuned": {**_RUN, "hidden": (64, 64), "models": 10, "steps": 30_000},
        "default": {**q_learning.PART.run["default"], **_RUN},
    },
    make=make_actor_critic,
    check=_check,
    like="q_learning",
    search=lambda settings: {
        **search_replay(settings),
        "actor_rate": Range(1e-4, 3e-3, log=True),
        "action_noise": Range(0.03, 0.5, log=True),
        "smoothing_noise": Range(0.0, 0.4),
    },
)
