"""Policy gradients on an ensemble of models: EPOpt, domain randomisation, and robust ones beyond.

An iteration plays N trajectories in step, each on a model from the box. The inner problem of `uncertainty`
says how much each trajectory counts: for EPOpt the worst fraction ε alike and the others nothing (`cvar`),
for plain domain randomisation all alike. With these weights the baseline is fitted, advantages are centred
and the policy moves, by PPO or along the natural gradient.

A. Rajeswaran, S. Ghotra, B. Ravindran and S. Levine, "EPOpt: learning robust neural network policies using model
  ensembles", ICLR, 2017, arXiv:1610.01283.
A. Tamar, Y. Glassner and S. Mannor, "Optimizing the CVaR via sampling", AAAI, 2015.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from deeprok.agents.policy.settings import PolicyConfig
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
    ridge,
    time_features,
)
from deeprok.core.pytree import record, select
from deeprok.environments import Interval, with_model
from deeprok.environments.base import Model
from deeprok.estimators import Fit, Keeper
from deeprok.runs.settings import Config
from deeprok.training.scan import Log, Program, RunState
from deeprok.uncertainty import SETS, parse_values, sample_box


@record
class PolicyBelief:
    """A policy: the network's weights and, for actions that are numbers, how far they stray."""

    theta: jax.Array  # [n]
    log_deviation: jax.Array  # [A']
    updates: jax.Array  # [] int32, iterations


@record
class PolicyState:
    """Everything a policy gradient carries from one iteration to the next."""

    belief: PolicyBelief
    baseline: jax.Array  # [F] weights of the features
    optimizer: Any  # optax state; empty for the natural gradient
    source: Source  # what models are drawn from
    adversary: Source  # where it looks for the policy's worst model


@record
class Trajectories:
    """N trajectories of at most T steps, as they were played."""

    obs: jax.Array  # [T, N, D]
    action: jax.Array  # [T, N] int32, or [T, N, A] places between the ends
    outputs: jax.Array  # [T, N, A]
    reward: jax.Array  # [T, N], 0 after the end
    alive: jax.Array  # [T, N] bool, whether the step was taken
    state: Any  # [T, N] the world's
    next_obs: jax.Array  # [T, N, D]


#: How little the source may be spread after it has seen a target, in widths of the box.
_LEAST_SPREAD = 0.01
_GRADIENT_NORM = 0.5
_LIKELIHOODS_AT_ONCE = 50


def trajectory_weights(settings: PolicyConfig, returns: jax.Array, models: int) -> jax.Array:
    """How much each trajectory counts: the inner problem over trajectories, or over the models' mean returns.

    Args:
      settings: the set, its level, and what it is a set over.
      returns: [N]; the i-th trajectory was played on the i-th model, counted round.
      models: how many there were.
    """
    group = returns.size // models if settings.weigh == "models" else 1
    mean = returns.reshape(group, -1).mean(axis=0)
    p = jnp.full(mean.shape, 1.0 / mean.size, mean.dtype)
    worst = SETS[settings.trajectory_set].worst_case(p, mean, settings.trajectory_level)
    return jnp.tile(worst.distribution, group) / group


def make_policy_program(config: Config) -> Program:
    """Builds the functions that a run of a policy gradient consists of."""
    world = config.make_world()
    network = config.make_network(world)
    box = config.make_box(world)
    settings = config.estimator
    assert isinstance(settings, PolicyConfig)
    count, horizon = settings.trajectories, config.horizon
    numbers = isinstance(world.actions, Interval)
    distribution = (gaussian if numbers else categorical)(len(world.actions))
    surrogate = make_surrogate(network, distribution)
    features = time_features(jnp.zeros((1, 1, network.sizes[0])), world.observation_scale).shape[-1]
    rule = optax.chain(optax.clip_by_global_norm(_GRADIENT_NORM), optax.adam(settings.learning_rate, eps=1e-5))
    member = config.make_models(world)
    models = member.size if config.acting == "member" else count
    searched = round(settings.adversary * models)
    target = parse_values(settings.target, world.nominal, "target") if settings.target else {}

    def init(key: jax.Array, belief: Any = None) -> RunState:
        weights_key, steps_key = jax.random.split(key)
        if belief is None:
            belief = PolicyBelief(
                theta=network.init(weights_key),
                log_deviation=jnp.zeros(distribution.deviations),
                updates=jnp.int32(0),
            )
        weights = jnp.concatenate([belief.theta, belief.log_deviation])
        everywhere = wide_source(len(box))
        spread = settings.source_spread
        source = dataclasses.replace(everywhere, deviation=jnp.full(len(box), spread)) if spread else everywhere
        return RunState(
            agent=PolicyState(
                belief=belief,
                baseline=jnp.zeros(features),
                optimizer=rule.init(weights) if settings.inner == "ppo" else (),
                source=jax.tree.map(jnp.copy, source),
                adversary=everywhere,
            ),
            episode=None,
            key=jax.random.key_data(steps_key),
            episodes=jnp.int32(0),
            steps=jnp.int32(0),
            snapshots=jnp.zeros((config.snapshots, *belief.theta.shape), belief.theta.dtype),
        )

    def play(belief: PolicyBelief, models: Model, key: jax.Array) -> Trajectories:
        """A trajectory on each model, all in step."""
        size = len(next(iter(models.values())))
        reset_key, noise_key, world_key = jax.random.split(key, 3)
        params = jax.vmap(lambda model: with_model(world.nominal, model))(models)
        state, obs = jax.vmap(world.reset)(jax.random.split(reset_key, size), params)
        noise = distribution.noise(noise_key, (horizon, size))
        keys = jax.random.split(world_key, (horizon, size))

        def step(carry: Any, chance: Any) -> tuple[Any, Trajectories]:
            state, obs, alive = carry
            noise, keys = chance
            outputs = network.apply(belief.theta, obs)
            action = distribution.draw(outputs, belief.log_deviation, noise)
            taken = world.actions.at(action) if isinstance(world.actions, Interval) else action
            outcome = jax.vmap(world.step)(keys, state, taken, params)
            reward = jnp.where(alive, outcome.reward, 0.0)
            seen = Trajectories(obs, action, outputs, reward, alive, state, outcome.obs)
            return (outcome.state, outcome.obs, alive & ~outcome.terminated), seen

        return jax.lax.scan(step, (state, obs, jnp.ones(size, bool)), (noise, keys))[1]

    def draw_models(state: PolicyState, key: jax.Array) -> Model:
        """The models of an iteration: name -> [models]; the last ones are the adversary's."""
        own_key, search_key = jax.random.split(key)
        if config.acting == "member":
            drawn = member.draw(own_key)
        elif config.acting == "nominal":
            drawn = {name: jnp.full(models, getattr(world.nominal, name), float) for name in box}
        elif settings.target or settings.source_spread:
            drawn = to_models(draw(own_key, state.source, models), box)
        else:
            drawn = sample_box(own_key, box, (models,))
        if not searched:
            return drawn
        worst = to_models(draw(search_key, state.adversary, searched), box)
        return {name: jnp.concatenate([values[: models - searched], worst[name]]) for name, values in drawn.items()}

    def improve(state: PolicyState, played: Trajectories, weight: jax.Array, key: jax.Array) -> tuple[Any, jax.Array]:
        """A policy that does better on trajectories that count so much, and how far off the baseline was."""
        share = jnp.where(played.alive, weight, 0.0)
        share = share / jnp.sum(share)
        x = time_features(played.obs, world.observation_scale)
        value = x @ state.baseline
        goal = returns_to_go(played.reward, config.discount)
        advantage = advantages(played.reward, value, played.alive, config.discount, settings.gae_lambda)
        centred = advantage - jnp.sum(share * advantage)
        advantage = centred / (jnp.sqrt(jnp.sum(share * centred**2)) + 1e-8)
        belief = state.belief
        steps = Steps(
            obs=played.obs,
            action=played.action,
            outputs=played.outputs,
            log_density=distribution.log_density(played.outputs, belief.log_deviation, played.action),
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
            baseline=ridge(x, goal, share),
            optimizer=optimizer,
        )
        return improved, 0.5 * jnp.sum(share * (goal - value) ** 2)

    def adapt(state: PolicyState, key: jax.Array) -> Source:
        """The source, after the policy was watched on the target."""
        play_key, particle_key = jax.random.split(key)
        real = {name: jnp.full(settings.target_trajectories, value, float) for name, value in target.items()}
        seen = play(state.belief, real, play_key)
        taken = world.actions.at(seen.action) if isinstance(world.actions, Interval) else seen.action
        scale = settings.target_noise * jnp.asarray(world.observation_scale)

        def log_likelihood(model: Model) -> jax.Array:
            params = with_model(world.nominal, model)

            def foretell(state: Any, action: jax.Array) -> jax.Array:
                return world.step(jax.random.key(0), state, action, params).obs

            missed = (seen.next_obs - jax.vmap(jax.vmap(foretell))(seen.state, taken)) / scale
            return -0.5 * jnp.sum(jnp.where(seen.alive[..., None], missed**2, 0.0))

        def each(points: jax.Array) -> jax.Array:
            return jax.lax.map(log_likelihood, to_models(points, box), batch_size=_LIKELIHOODS_AT_ONCE)

        found = posterior(state.source, each, particle_key, settings.particles)
        return dataclasses.replace(found, deviation=jnp.maximum(found.deviation, _LEAST_SPREAD))

    def iterate(run: RunState, t: jax.Array) -> tuple[RunState, Log]:
        iteration = t // config.chunk_steps
        active = run.episodes < config.episodes
        key = jax.random.fold_in(jax.random.wrap_key_data(run.key), iteration)
        models_key, play_key, step_key, target_key = jax.random.split(key, 4)
        state: PolicyState = run.agent
        if target:
            due = (iteration > 0) & (iteration % settings.adapt_every == 0)
            source = jax.lax.cond(due, lambda: adapt(state, target_key), lambda: state.source)
            state = dataclasses.replace(state, source=source)
        drawn = draw_models(state, models_key)
        played = play(state.belief, {name: jnp.tile(v, count // models) for name, v in drawn.items()}, play_key)
        returns = returns_to_go(played.reward, config.discount)[0]
        weight = jnp.full(count, 1.0 / count, returns.dtype)
        if not settings.neutral:
            uneven = trajectory_weights(settings, returns, models)
            weight = jnp.where(iteration < settings.level_iterations, weight, uneven)
        improved, loss = improve(state, played, weight, step_key)
        if searched:
            mean = returns.reshape(-1, models).mean(axis=0)[models - searched :]
            points = to_points(drawn, box)[models - searched :]
            improved = dataclasses.replace(improved, adversary=seek_worst(state.adversary, points, mean))
        after = RunState(
            agent=select(active, improved, run.agent),
            episode=None,
            key=run.key,
            episodes=run.episodes + count * active,
            steps=run.steps + jnp.sum(played.alive, dtype=jnp.int32) * active,
            snapshots=run.snapshots,
        )
        if config.snapshots:
            rows = after.episodes // config.snapshot_every - 1 - jnp.arange(count // config.snapshot_every + 1)
            due = jnp.where(rows >= run.episodes // config.snapshot_every, rows, config.snapshots)
            kept = after.snapshots.at[due].set(after.agent.belief.theta, mode="drop")
            after = dataclasses.replace(after, snapshots=kept)
        log = Log(
            ended=jnp.broadcast_to(active, (1, count)),
            earned=jnp.sum(played.reward, axis=0)[None],
            learned=active[None],
            fit=Fit(loss[None], None),
        )
        return after, log

    def one_by_one(runs: RunState, t: jax.Array) -> tuple[RunState, Log]:
        """One seed's trajectories fill a core, so seeds gain nothing from sharing their matrices."""
        return jax.lax.map(lambda run: iterate(run, t), runs)

    together = jax.jit(one_by_one, donate_argnums=0, compiler_options={"xla_cpu_multi_thread_eigen": False})

    def clock(states: RunState) -> np.ndarray:
        return np.asarray(states.agent.belief.updates) * config.chunk_steps

    return Program(world, network, Keeper(lambda belief: belief.theta, posterior=None), None, init, together, clock)
