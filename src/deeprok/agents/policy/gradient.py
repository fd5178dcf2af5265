"""Policy gradients on an ensemble of models: EPOpt, domain randomisation, and robust ones beyond.

An iteration plays N trajectories side by side, each on a model from the box. The objective says how much each of them
counts: for EPOpt the worst fraction ε equally and the others not at all, for plain domain randomisation all equally.
With these weights the baseline is fitted, advantages are centred and the policy moves, by PPO or along the natural
gradient.

A. Rajeswaran, S. Ghotra, B. Ravindran and S. Levine, "EPOpt: learning robust neural network policies using model
  ensembles", ICLR, 2017, arXiv:1610.01283.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
from msgspec import Meta

from deeprok.agents.clock import Clock
from deeprok.agents.learner import Learner, LearnerPart, Played, PlaysTrajectories, Task, View, gigabytes
from deeprok.agents.network import Hidden
from deeprok.agents.policy.critic import Critic, critic_network, explained_variance, linear_critic, network_critic
from deeprok.agents.policy.objectives import Objective
from deeprok.agents.policy.sources import Source, draw, posterior, seek_worst, to_models, to_points, wide_source
from deeprok.agents.policy.steps import (
    Steps,
    advantages,
    categorical,
    gaussian,
    make_surrogate,
    natural_step,
    proximal_steps,
    returns_to_go,
)
from deeprok.core.errors import DeeprokError, shown
from deeprok.core.fields import Count, Fraction, InnerFraction, NotNegative, Positive, Probability, added, at_least
from deeprok.core.pytree import pytree_dataclass
from deeprok.core.search import Range, Space
from deeprok.environments.base import Model, in_jax, with_model
from deeprok.environments.rollout import Step, play_trajectories
from deeprok.estimators import Fit, KalmanConfig, block, ekf, gradient
from deeprok.estimators.kalman import PART as KALMAN
from deeprok.uncertainty import parse_values, sample_box

CriticKind = Literal["linear", "adam", "kalman"]
Stress = Annotated[Literal["stress"], Meta(description="stress")]


@dataclass(frozen=True)
class PolicySettings:
    """Settings of a policy gradient."""

    inner: Literal["natural", "ppo"] = "natural"
    """Policy update: the natural gradient within a KL bound (TRPO), or PPO."""
    trajectories: Annotated[int, at_least(2)] = 240
    """Trajectories in an iteration."""
    learning_rate: Positive = 1e-3
    """PPO's step size α, for Adam."""
    clip: InnerFraction = 0.2
    """PPO's clip range of the probability ratio, above and below 1."""
    epochs: Count = 10
    """PPO's passes over an iteration's trajectories."""
    minibatches: Count = 4
    """Mini-batches in a pass, of whole trajectories."""
    entropy: NotNegative = 0.0
    """PPO's entropy bonus, per nat."""
    kl_bound: Positive = 0.01
    """Largest mean KL divergence of a natural step."""
    gae_lambda: Probability = 0.97
    """λ of the generalised advantage estimates."""
    adversary: Probability | Stress = 0.0
    """Fraction of the models that an adversary chooses, which searches the box for the policy's worst while it learns;
    or stress: up to five searches on the way, as `deeprok stress` does them, for models that join the others."""
    source_spread: NotNegative = 0.0
    """Standard deviation, in widths of the box, of the normal distributions that models are drawn from; 0: uniform."""
    target: str = ""
    """Parameters of a target system to adapt the source of models to, as name=value,…; if empty it is not adapted. For
    environments in JAX."""
    adapt_every: Count = 10
    """Iterations between adaptations to the target."""
    target_trajectories: Count = 2
    """Trajectories on the target for each adaptation."""
    particles: Annotated[int, at_least(10)] = 500
    """Models weighed by how well they predict the target's trajectories."""
    target_noise: Positive = 0.01
    """Standard deviation of the target's next observation around a model's, in units of observation_scale."""
    critic: CriticKind = added("linear")
    """Baseline: linear in features, or a network whose weights are kept by Adam or by the extended Kalman filter."""
    critic_hidden: Hidden = added((32, 32))
    """Units of each hidden layer of the critic's network."""
    critic_updates: Count = added(200)
    """Mini-batches that the critic's network learns from in an iteration."""
    critic_batch: Count = added(16)
    """Steps in each of them."""
    critic_rate: Positive = added(1e-3)
    """Step size α of Adam for the critic."""
    critic_noise: Positive = added(0.1)
    """Variance of the targets around V that the critic's Kalman filter assumes, where targets are of size one."""
    critic_drift: Fraction = added(0.003)
    """η of the critic's Kalman filter: before an update the covariance grows by 1 / (1 − η), as the values move."""


@pytree_dataclass
class PolicyBelief:
    """A policy: the network's weights and, for continuous actions, their log standard deviations."""

    theta: jax.Array  # [n]
    log_deviation: jax.Array  # [A']
    updates: jax.Array  # [] int32, iterations


@pytree_dataclass
class PolicyState:
    """Everything a policy gradient carries from one iteration to the next."""

    belief: PolicyBelief
    baseline: Any  # the critic's state: of the linear one its weights [F]
    optimizer: Any  # optax state; empty for the natural gradient
    source: Source  # what models are drawn from
    adversary: Source  # where it looks for the policy's worst model


#: How little the source may be spread after it has been fitted to a target, in widths of the box.
_LEAST_SPREAD = 0.01
_GRADIENT_NORM = 0.5
_LIKELIHOODS_AT_ONCE = 50

#: P₀ of the critic's filter: the network's first weights are of that size squared.
_CRITIC_PRIOR = 0.1


def make_critic(settings: PolicySettings, scale: tuple[float, ...]) -> Critic:
    """The critic as the settings describe it.

    Args:
      settings: of the policy gradient.
      scale: [D] a typical size of each observation.
    """
    if settings.critic == "linear":
        return linear_critic(scale)
    network = critic_network(len(scale), settings.critic_hidden)
    if settings.critic == "adam":
        estimator = gradient("adam", settings.critic_rate)
    else:
        # Blocks by neuron: a full covariance of that many weights would cost more than all the rest of an iteration.
        estimator = ekf(
            observation_noise=settings.critic_noise,
            process_noise=0.0,
            prior_covariance=_CRITIC_PRIOR,
            batching="joint",
            covariance=block(*network.neurons),
            fading=settings.critic_drift,
            variance_cap=_CRITIC_PRIOR,
        )
    return network_critic(scale, network, estimator, settings.critic_updates, settings.critic_batch)


def make_policy_gradient(task: Task) -> Learner:
    """A policy gradient as the settings describe it."""
    settings: PolicySettings = task.settings
    env, network, box = task.env, task.network, task.box
    count = settings.trajectories
    distribution = (gaussian if env.actions.continuous else categorical)(len(env.actions))
    surrogate = make_surrogate(network, distribution)
    critic = make_critic(settings, env.observation_scale)
    rule = optax.chain(optax.clip_by_global_norm(_GRADIENT_NORM), optax.adam(settings.learning_rate, eps=1e-5))
    objective: Objective = task.target.make(task.target_settings)
    models = task.models.size if task.acting == "member" else count
    searched = 0 if settings.adversary == "stress" else round(settings.adversary * models)
    target = parse_values(settings.target, env.nominal, "target") if settings.target else {}

    def init(key: jax.Array, belief: Any = None) -> PolicyState:
        if belief is None:
            belief = PolicyBelief(
                theta=network.init(key),
                log_deviation=jnp.zeros(distribution.deviations),
                updates=jnp.int32(0),
            )
        weights = jnp.concatenate([belief.theta, belief.log_deviation])
        everywhere = wide_source(len(box))
        spread = settings.source_spread
        source = dataclasses.replace(everywhere, deviation=jnp.full(len(box), spread)) if spread else everywhere
        return PolicyState(
            belief=belief,
            baseline=critic.init(jax.random.fold_in(key, 1)),
            optimizer=rule.init(weights) if settings.inner == "ppo" else (),
            source=jax.tree.map(jnp.copy, source),
            adversary=everywhere,
        )

    def act(state: PolicyState, noise: jax.Array, obs: jax.Array, clock: Clock | None = None) -> tuple[jax.Array, Any]:
        """What the environment takes, and beside it the action as the policy drew it and the network's outputs."""
        outputs = network.apply(state.belief.theta, obs)
        drawn = distribution.draw(outputs, state.belief.log_deviation, noise)
        return env.actions.at(drawn), (drawn, outputs)

    def choose_models(state: PolicyState, keys: jax.Array, iteration: jax.Array) -> tuple[PolicyState, Model]:
        if target:
            due = (iteration > 0) & (iteration % settings.adapt_every == 0)
            source = jax.lax.cond(due, lambda: adapt(state, keys[1]), lambda: state.source)
            state = dataclasses.replace(state, source=source)
        return state, draw_models(state, keys[0])

    def draw_models(state: PolicyState, key: jax.Array) -> Model:
        """The models of an iteration: name -> [models]; the last ones are the adversary's."""
        own_key, search_key = jax.random.split(key)
        if task.acting == "member":
            drawn = task.models.draw(own_key)
        elif task.acting == "nominal":
            drawn = {name: jnp.full(models, getattr(env.nominal, name), float) for name in box}
        elif settings.target or settings.source_spread:
            drawn = to_models(draw(own_key, state.source, models), box)
        else:
            drawn = sample_box(own_key, box, (models,), task.edges)
        if not searched:
            return drawn
        worst = to_models(draw(search_key, state.adversary, searched), box)
        return {name: jnp.concatenate([values[: models - searched], worst[name]]) for name, values in drawn.items()}

    def learn(
        state: PolicyState, key: jax.Array, clock: Clock, active: jax.Array, played: Played | None
    ) -> tuple[PolicyState, Fit]:
        assert played
        returns = returns_to_go(played.steps.reward, task.discount)[0]
        improved, fit = improve(state, played.steps, objective.weights(returns, models, clock.t), key)
        if searched:
            mean = returns.reshape(-1, models).mean(axis=0)[models - searched :]
            points = to_points(played.models, box)[models - searched :]
            improved = dataclasses.replace(improved, adversary=seek_worst(state.adversary, points, mean))
        return improved, fit

    def improve(state: PolicyState, played: Step, weight: jax.Array, key: jax.Array) -> tuple[PolicyState, Fit]:
        """A policy that does better on trajectories of these weights, and how good the baseline was."""
        drawn, outputs = played.note
        share = jnp.where(played.alive, weight, 0.0)
        share = share / jnp.sum(share)
        x = critic.inputs(played.obs)
        value = critic.value(state.baseline, x)
        goal = returns_to_go(played.reward, task.discount)
        advantage = advantages(played.reward, value, played.alive, task.discount, settings.gae_lambda)
        targets = value + advantage if critic.bootstraps else goal
        centred = advantage - jnp.sum(share * advantage)
        advantage = centred / (jnp.sqrt(jnp.sum(share * centred**2)) + 1e-8)
        belief = state.belief
        steps = Steps(
            obs=played.obs,
            action=drawn,
            outputs=outputs,
            log_density=distribution.log_density(outputs, belief.log_deviation, drawn),
            advantage=advantage,
            share=share,
        )
        before, optimizer = jnp.concatenate([belief.theta, belief.log_deviation]), state.optimizer
        if settings.inner == "natural":
            weights = natural_step(
                lambda w: surrogate.gain(w, steps),
                lambda w: surrogate.divergence(w, steps, belief.log_deviation),
                before,
                settings.kl_bound,
            )
        else:
            weights, optimizer = proximal_steps(
                lambda w, some: surrogate.clipped(w, some, settings.clip, settings.entropy),
                rule,
                before,
                optimizer,
                steps,
                key,
                settings.epochs,
                settings.minibatches,
            )
        n = network.num_weights
        improved = dataclasses.replace(
            state,
            belief=PolicyBelief(theta=weights[:n], log_deviation=weights[n:], updates=belief.updates + 1),
            baseline=critic.fit(state.baseline, x, targets, share, jax.random.fold_in(key, 1)),
            optimizer=optimizer,
        )
        loss = 0.5 * jnp.sum(share * (goal - value) ** 2)
        if settings.critic == "linear":
            return improved, Fit(loss, None)
        measures = {"explained_variance": explained_variance(value, goal, share)}
        if critic.deviation:
            measures["critic_deviation"] = critic.deviation(state.baseline, x, share, jax.random.fold_in(key, 2))
        return improved, Fit(loss, None, measures)

    def adapt(state: PolicyState, key: jax.Array) -> Source:
        """The source of models, fitted to trajectories of the policy on the target."""
        plain, (play_key, particle_key) = in_jax(env, "a target"), jax.random.split(key)
        real = {name: jnp.full(settings.target_trajectories, value, float) for name, value in target.items()}
        seen = play_trajectories(plain, lambda noise, obs: act(state, noise, obs), real, play_key, distribution.noise)
        scale = settings.target_noise * jnp.asarray(env.observation_scale)

        def log_likelihood(model: Model) -> jax.Array:
            params = with_model(env.nominal, model)

            def foretell(state: Any, action: jax.Array) -> jax.Array:
                return plain.step(jax.random.key(0), state, action, params).obs

            missed = (seen.next_obs - jax.vmap(jax.vmap(foretell))(seen.state, seen.action)) / scale
            return -0.5 * jnp.sum(jnp.where(seen.alive[..., None], missed**2, 0.0))

        def each(points: jax.Array) -> jax.Array:
            return jax.lax.map(log_likelihood, to_models(points, box), batch_size=_LIKELIHOODS_AT_ONCE)

        found = posterior(state.source, each, particle_key, settings.particles)
        return dataclasses.replace(found, deviation=jnp.maximum(found.deviation, _LEAST_SPREAD))

    return Learner(
        plays=PlaysTrajectories(choose_models, count),
        init=init,
        draw=distribution.noise,
        act=act,
        learn=learn,
        view=View(env, network, lambda belief: belief.theta, posterior=None, values=None),
        seeds="loop",  # one seed's trajectories fill a core, so that seeds gain nothing from sharing their matrices
        batch=count,
        remedy=_remedy(settings),
    )


def _remedy(settings: PolicySettings) -> str:
    if settings.inner == "natural":
        policy = f"lower --kl-bound (now {settings.kl_bound:g})"
    else:
        policy = f"lower --learning-rate (now {settings.learning_rate:g})"
    critic = {
        "linear": "",
        "adam": f" or --critic-rate (now {settings.critic_rate:g})",
        "kalman": f" or raise --critic-noise (now {settings.critic_noise:g})",
    }
    return policy + critic[settings.critic]


#: The critics that read each of their settings.
_READ_BY = {
    **dict.fromkeys(("critic_hidden", "critic_updates", "critic_batch"), ("adam", "kalman")),
    "critic_rate": ("adam",),
    **dict.fromkeys(("critic_noise", "critic_drift"), ("kalman",)),
}


def _check_critic(settings: PolicySettings) -> None:
    """Refuses settings of another critic, which would have no effect."""
    for field in dataclasses.fields(settings):
        readers, value = _READ_BY.get(field.name), getattr(settings, field.name)
        if readers and settings.critic not in readers and value != field.default:
            wanted = " or ".join(f"'{kind}'" for kind in readers)
            raise DeeprokError(
                f"{field.name} is {shown(value)}, but critic is '{settings.critic}'; use critic {wanted}"
            )


def _critic_numbers(task: Task) -> tuple[int, int]:
    """Numbers that the critic takes: of each step, and in all."""
    settings: PolicySettings = task.settings
    observations = len(task.env.observation_scale)
    if settings.critic == "linear":
        return 2 * (observations * (observations + 5) // 2 + 4), 0
    network = critic_network(observations, settings.critic_hidden)
    blocks = KalmanConfig(covariance="neuron" if settings.critic == "kalman" else "diagonal")
    stored = KALMAN.memory(blocks, network).numbers
    drawn = settings.critic_updates * settings.critic_batch
    # Beside the weights, the gradients of a mini-batch and the covariance of what it predicts.
    batch = settings.critic_batch * (2 * network.num_weights + 2 * settings.critic_batch)
    return 2 * (observations + 1) + 2 * sum(network.sizes[1:]), stored + drawn + batch


def _check(task: Task) -> None:
    settings: PolicySettings = task.settings
    _check_critic(settings)
    observations = len(task.env.observation_scale)
    of_critic, critic = _critic_numbers(task)
    # What is computed of a step; the hidden units are what is left of a neuron each beside the outputs.
    units = len(task.network.neurons) - len(task.env.actions)
    a_step = 3 * observations + 3 * len(task.env.actions) + of_critic + 4 * units
    numbers = settings.trajectories * task.env.horizon * a_step + task.snapshots * task.network.num_weights + critic
    if (size := gigabytes(numbers, task.precision)) > 4:
        raise DeeprokError(
            f"{settings.trajectories} trajectories of {task.env.horizon} steps and {task.snapshots} snapshots would "
            f"take {size:.1f} GB a seed, more than the 4 allowed; lower trajectories or horizon, or raise "
            f"snapshot_every{', or lower critic_hidden or critic_batch' if critic else ''}"
        )
    if settings.inner == "ppo" and settings.trajectories % settings.minibatches:
        raise DeeprokError(
            f"trajectories is {settings.trajectories}; it must be a multiple of minibatches, "
            f"which is {settings.minibatches}"
        )
    if task.acting == "member" and settings.trajectories % task.models.size:
        raise DeeprokError(
            f"trajectories is {settings.trajectories}; with acting member it must be a multiple of the number of "
            f"models, which is {task.models.size}"
        )
    if task.target.make(task.target_settings).over_models and task.acting != "member":
        raise DeeprokError(f"weigh is 'models', but acting is '{task.acting}'; use acting 'member'")
    for name, value in (("target", settings.target), ("source_spread", settings.source_spread)):
        if value and task.acting != "sampled":
            raise DeeprokError(f"{name} is {shown(value)}, but acting is '{task.acting}'; use acting 'sampled'")
    if settings.target:
        in_jax(task.env, f"target {shown(settings.target)}")
        parse_values(settings.target, task.env.nominal, "target")


def _search(settings: PolicySettings) -> Space:
    ppo: Space = {"learning_rate": Range(1e-4, 1e-2, log=True), "clip": Range(0.1, 0.3), "epochs": (4, 10, 20)}
    step: Space = ppo if settings.inner == "ppo" else {"kl_bound": Range(1e-3, 0.1, log=True)}
    return {**step, "gae_lambda": Range(0.9, 1.0), "trajectories": (60, 120, 240)}


PART = LearnerPart(
    settings=PolicySettings,
    presets={"paper": PolicySettings(), "tuned": PolicySettings(inner="ppo", trajectories=60, minibatches=2)},
    run={
        "paper": {"hidden": (64, 64), "discount": 0.99, "episodes": 36_000, "snapshot_every": 240},
        "tuned": {"discount": 0.99, "episodes": 3000, "snapshot_every": 60},
    },
    make=make_policy_gradient,
    check=_check,
    search=_search,
)
