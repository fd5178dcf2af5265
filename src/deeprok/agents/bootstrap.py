"""Bootstrapped DQN: an ensemble of Q-networks, of which one acts for a whole episode.

Each member has weights, a target network, an optimizer and a fixed random prior network of its own, and learns from its
own random part of a shared replay. Where data are few the members disagree, so that what one of them believes of an
untried action is tried consistently.

I. Osband, C. Blundell, A. Pritzel and B. Van Roy, "Deep exploration via bootstrapped DQN", NeurIPS, 2016,
  arXiv:1602.04621.
I. Osband, J. Aslanides and A. Cassirer, "Randomized prior functions for deep reinforcement learning", NeurIPS, 2018,
  arXiv:1806.03335.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.agents import q_learning, replay
from deeprok.agents.clock import Clock
from deeprok.agents.ensemble import Ensemble, WithPrior
from deeprok.agents.learner import Learner, LearnerPart, Played, PlaysSteps, Task, View
from deeprok.agents.network import Network
from deeprok.agents.replaying import (
    GreedySettings,
    check_choices,
    check_replay,
    epsilon_of,
    followed,
    make_estimator,
    search_replay,
)
from deeprok.agents.targets.base import Target
from deeprok.core.fields import Count, NotNegative, Share
from deeprok.core.pytree import pytree_dataclass
from deeprok.core.search import Range
from deeprok.environments.base import Transition
from deeprok.estimators import Fit, Posterior


@dataclass(frozen=True)
class EnsembleSettings(GreedySettings):
    """Settings of bootstrapped Q-learning."""

    chunk_steps: Count = 2000
    """Environment steps per jitted chunk, after which metrics and checkpoints are written."""
    members: Count = 10
    """Members of the ensemble."""
    mask: Share = 0.5
    """Probability that a member learns from a transition, drawn once for each of both; 1: all learn from all."""
    prior_scale: NotNegative = 3.0
    """What the outputs of a member's fixed random network are multiplied by before its own are added; 0 for none."""


@pytree_dataclass
class EnsembleBelief:
    """The members of an ensemble."""

    members: Any  # the estimator's records, each leaf with a first axis of K members
    prior: jax.Array  # [K, n] weights of the prior networks, which never change; [K, 0] without


@pytree_dataclass
class EnsembleState:
    """Everything the learner has learned and remembers."""

    belief: EnsembleBelief
    target: jax.Array  # [K, n] the weights of each member's own target network
    memory: jax.Array  # [capacity, width] the replay
    masks: jax.Array  # [capacity, K] bool, who learns from each transition of it; [capacity, 0] if all do
    acting: jax.Array  # [] int32, the member that acts


@pytree_dataclass
class Draw:
    """The random numbers of one step."""

    explore: jax.Array  # [2] uniform, for ε-greedy
    batch: jax.Array  # [B] uint32, for `replay.choose`; [U, B] where a round has several updates
    member: jax.Array  # [] int32, who acts next if an episode ends
    mask: jax.Array  # [K] bool; [0] if all learn from all


def ensemble_of(task: Task) -> Ensemble:
    """The network whose weights are those of all members."""
    settings: EnsembleSettings = task.settings
    scale = settings.prior_scale
    member: Network = WithPrior(task.network, scale) if scale else task.network
    return Ensemble(member, settings.members)


def make_bootstrapped(task: Task) -> Learner:
    """Bootstrapped Q-learning as the settings describe it."""
    settings: EnsembleSettings = task.settings
    ensemble, actions = ensemble_of(task), task.env.actions
    n, K = task.network.num_weights, settings.members
    estimator = make_estimator(task)
    target: Target = task.target.make(task.target_settings, ensemble.member, task.discount)
    observations = len(task.env.observation_scale)
    outcomes = task.models.size if task.target.robust else 1
    capacity = min(settings.replay_size, task.most_steps)
    masked = settings.mask < 1.0
    several = (settings.updates,) if settings.updates > 1 else ()

    def init(key: jax.Array, belief: EnsembleBelief | None = None) -> EnsembleState:
        if belief is None:
            rows = ensemble.rows(ensemble.init(key))
            belief = EnsembleBelief(members=jax.vmap(estimator.init)(rows[:, :n]), prior=rows[:, n:])
        return EnsembleState(
            belief=belief,
            target=jnp.copy(jax.vmap(estimator.mean)(belief.members)),
            memory=replay.empty(observations, outcomes, capacity),
            masks=jnp.zeros((capacity, K if masked else 0), bool),
            acting=jax.random.randint(jax.random.fold_in(key, 1), (), 0, K),
        )

    def rows_of(belief: EnsembleBelief) -> jax.Array:
        """Of each member all weights, [K, n] or with those of the prior [K, 2n]."""
        return jnp.concatenate([jax.vmap(estimator.mean)(belief.members), belief.prior], axis=1)

    def draw(key: jax.Array, shape: tuple[int, ...] = ()) -> Draw:
        explore_key, batch_key = jax.random.split(key)
        member_key, mask_key = jax.random.split(jax.random.fold_in(key, 1))
        return Draw(
            explore=jax.random.uniform(explore_key, (*shape, actions.draws)),
            batch=jax.random.bits(batch_key, (*shape, *several, settings.batch_size), "uint32"),
            member=jax.random.randint(member_key, shape, 0, K),
            mask=jax.random.bernoulli(mask_key, float(settings.mask), (*shape, K if masked else 0)),
        )

    def act(state: EnsembleState, draw: Draw, obs: jax.Array, clock: Clock) -> tuple[jax.Array, None]:
        own = jax.tree.map(lambda leaf: leaf[state.acting], state.belief)
        theta = jnp.concatenate([estimator.mean(own.members), own.prior])
        best = actions.choose(ensemble.member.apply(theta, obs))
        return actions.explore(draw.explore, epsilon_of(settings, clock), best), None

    def observe(
        state: EnsembleState, transition: Transition, draw: Draw, clock: Clock, ended: jax.Array, active: jax.Array
    ) -> EnsembleState:
        """Stores the transition and who learns from it; after an episode's end another member acts."""
        slot = clock.t % capacity
        masks = state.masks
        if masked:
            masks = masks.at[slot].set(jnp.where(active, draw.mask, masks[slot]))
        return dataclasses.replace(
            state,
            memory=replay.write(state.memory, clock.t, transition, active),
            masks=masks,
            acting=jnp.where(ended, draw.member, state.acting),
        )

    def learn(
        state: EnsembleState, draw: Draw, clock: Clock, active: jax.Array, played: Played | None = None
    ) -> tuple[EnsembleState, Fit]:
        t = clock.t
        learning = active & (t >= settings.warm_up)
        level = target.level(clock, jnp.zeros(2))
        prior = state.belief.prior

        def update(members: Any, bits: jax.Array) -> tuple[Any, Fit]:
            """One update of all members from the same mini-batch, each from its own part of it."""
            chosen = replay.choose(capacity, bits, t)
            batch = replay.unpack(state.memory[chosen], observations)
            shape = (settings.batch_size, K)
            masks = (state.masks[chosen] if masked else jnp.ones(shape)).astype(batch.reward.dtype)

            def one(member: Any, prior: jax.Array, copied: jax.Array, mask: jax.Array) -> tuple[Any, Fit]:
                def whole(theta: jax.Array) -> jax.Array:
                    return jnp.concatenate([theta, prior])

                h, xs, ys = target.observe(whole(estimator.mean(member)), whole(copied), batch, level)

                # An observation of 0 by a function that is 0 tells nothing, whatever the estimator.
                def seen(theta: jax.Array, x: tuple[Any, jax.Array]) -> jax.Array:
                    return x[1] * h(whole(theta), x[0])

                return estimator.update(member, seen, (xs, mask), mask * ys, learning, clock.progress)

            members, fit = jax.vmap(one, (0, 0, 0, 1))(members, prior, state.target, masks)
            return members, Fit(jnp.mean(fit.loss) / settings.mask, None)

        members = state.belief.members
        members, fit = jax.lax.scan(update, members, draw.batch) if several else update(members, draw.batch)
        copied = state.target
        if target.period is not None:
            due = active & ((t + 1) % target.period < settings.train_every)
            copied = jnp.where(due, followed(target, copied, jax.vmap(estimator.mean)(members)), copied)
        return dataclasses.replace(state, belief=EnsembleBelief(members=members, prior=prior), target=copied), fit

    def restored(state: EnsembleState, belief: EnsembleBelief) -> EnsembleState:
        return dataclasses.replace(state, belief=belief, target=jnp.copy(jax.vmap(estimator.mean)(belief.members)))

    def values(belief: EnsembleBelief, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        q = jax.vmap(ensemble.member.apply, (0, None))(rows_of(belief), obs)
        return jnp.mean(q, axis=0), jnp.std(q, axis=0)

    def mean(belief: EnsembleBelief) -> jax.Array:
        return rows_of(belief).ravel()

    def deviations(belief: EnsembleBelief) -> jax.Array:
        """What each member differs from their mean by, [K, n_all], where it takes the place of all."""
        rows = rows_of(belief)
        return jnp.tile(rows - jnp.mean(rows, axis=0), (1, K))

    posterior = Posterior(
        sample=lambda belief, key: jnp.tile(rows_of(belief)[jax.random.randint(key, (), 0, K)], K),
        predictive_variance=lambda belief, H: jnp.mean((H @ deviations(belief).T) ** 2, axis=1),
        variances=lambda belief: jnp.mean(deviations(belief) ** 2, axis=0),
        covariance=lambda belief: deviations(belief).T @ deviations(belief) / K,
        definite=lambda belief: jnp.all(jnp.isfinite(rows_of(belief))),
    )
    assert task.estimator
    return Learner(
        plays=PlaysSteps(
            observe,
            steps_per_round=settings.train_every,
            rounds_per_chunk=settings.chunk_steps // settings.train_every,
            warm_up=settings.warm_up,
            updates_per_round=settings.updates,
            per_episode=("acting",),
        ),
        init=init,
        draw=draw,
        act=act,
        learn=learn,
        view=View(task.env, ensemble, mean, posterior, values),
        seeds="vmap" if task.estimator.vmap_seeds(task.estimator_settings) else "processes",
        batch=settings.batch_size,
        remedy=task.estimator.remedy(task.estimator_settings),
        metrics=lambda clock, belief: {"epsilon": float(epsilon_of(settings, clock))},
        restored=restored,
    )


def _check(task: Task) -> None:
    settings: EnsembleSettings = task.settings
    check_choices(task)
    check_replay(task._replace(network=ensemble_of(task)), settings, settings.chunk_steps, settings.members)


#: Members that disagree explore by themselves.
_NO_EPSILON: dict[str, Any] = {"epsilon_start": 0.0, "epsilon_end": 0.0}

PART = LearnerPart(
    settings=EnsembleSettings,
    presets={
        "paper": EnsembleSettings(**_NO_EPSILON),
        "tuned": EnsembleSettings(**_NO_EPSILON),
        "default": EnsembleSettings(batch_size=64, warm_up=1000, train_every=2, **_NO_EPSILON),
    },
    run=q_learning.PART.run,
    make=make_bootstrapped,
    check=_check,
    like="q_learning",
    search=lambda settings: {
        **search_replay(settings),
        "members": (5, 10, 20),
        "prior_scale": Range(0.3, 10.0, log=True),
        "mask": (0.5, 0.75, 1.0),
    },
)
