"""Training: chunks of a jitted scan, many seeds in step.

Everything here is pure; `deeprok.training.loop` loops over the chunks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.network import QNetwork
from deeprok.agents.q_learning import Draw, Values, make_agent
from deeprok.core.pytree import record, select
from deeprok.environments import World, branch, with_model
from deeprok.environments.base import Model, Transition
from deeprok.estimators import Estimator, Fit, Keeper
from deeprok.runs.settings import Config
from deeprok.uncertainty import sample_box


@record
class Episode:
    """The episode under way."""

    state: Any  # the world's state
    obs: jax.Array  # [D]
    acting: Model  # name -> [], the model acted on
    models: Model  # name -> [M], the models that label; empty for nominal labels
    step: jax.Array  # [] int32
    earned: jax.Array  # [] return so far


@record
class RunState:
    """A run between two steps: with its settings, all that its future depends on."""

    agent: Any  # AgentState, or PolicyState
    episode: Any  # Episode; None where whole trajectories are played
    key: jax.Array  # [2] uint32 data of the key that every step's key is folded from
    episodes: jax.Array  # [] int32, finished
    steps: jax.Array  # [] int32, taken
    snapshots: jax.Array  # [K, n], row k: the mean weights after (k + 1)·snapshot_every episodes; 0 until then


@record
class StepDraw:
    """All that chance contributes to one step."""

    agent: Draw
    world: jax.Array  # [2] uint32 data of the key for the world's step
    fresh: Episode  # the episode that begins if this step ends one


class Log(NamedTuple):
    """What one update and the steps since the last one leave behind."""

    ended: jax.Array  # [train_every] bool, whether each step ended an episode
    earned: jax.Array  # [train_every] the return so far after each step
    learned: jax.Array  # [] bool, whether the update changed anything
    fit: Fit


class Program(NamedTuple):
    """A run's settings made executable: all that the drivers and those who look at a run know of it.

    Attributes:
      world: the world.
      network: what the weights are the weights of.
      estimator: keeper of the belief over them, `RunState.agent.belief`.
      values: `(belief, obs) -> (mean, deviation)` of Q [C, A] at observations [C, D]; None for a policy.
      init: `(key, belief=None) -> RunState`, from a given belief or from fresh weights.
      chunk: `(states, t) -> (states, Log)`, jitted: `chunk_steps` steps from step t on, for
        states stacked along a first axis of seeds, which are donated.
      clock: `states -> [S]`, the step t that each of stacked states goes on from, unless it has finished.
    """

    world: World
    network: QNetwork
    estimator: Estimator | Keeper
    values: Values | None
    init: Callable[..., RunState]
    chunk: Callable[[RunState, int], tuple[RunState, Log]]
    clock: Callable[[RunState], np.ndarray]


#: Places in a chunk at which snapshots are taken, so that the steps between pay nothing for them.
_LOOKS = 20


def make_program(config: Config) -> Program:
    """Builds the functions that a run consists of."""
    if config.row.estimator == "policy":
        from deeprok.agents.policy.gradient import make_policy_program  # which is made of this module's records

        return make_policy_program(config)
    world = config.make_world()
    agent = make_agent(config, world)
    box = config.make_box(world)
    models = config.make_models(world)
    robust = config.row.robust
    rounds = config.chunk_steps // config.train_every
    looks = math.gcd(rounds, _LOOKS)

    def begin_episode(key: jax.Array) -> Episode:
        models_key, acting_key, state_key = jax.random.split(key, 3)
        drawn = models.draw(models_key)
        if config.acting == "sampled":
            acting = sample_box(acting_key, box, ())
        elif config.acting == "member":
            member = jax.random.randint(acting_key, (), 0, models.size)
            acting = {name: values[member] for name, values in drawn.items()}
        else:
            acting = {name: jnp.asarray(getattr(world.nominal, name), float) for name in box}
        state, obs = world.reset(state_key, with_model(world.nominal, acting))
        return Episode(
            state=state,
            obs=obs,
            acting=acting,
            models=drawn if robust else {},
            step=jnp.int32(0),
            earned=jnp.zeros((), obs.dtype),
        )

    def init(key: jax.Array, belief: Any = None) -> RunState:
        weights_key, episode_key, steps_key = jax.random.split(key, 3)
        start = agent.init(weights_key, models.size if robust else 1, belief)
        return RunState(
            agent=start,
            episode=begin_episode(episode_key),
            key=jax.random.key_data(steps_key),
            episodes=jnp.int32(0),
            steps=jnp.int32(0),
            snapshots=jnp.zeros((config.snapshots, *start.target.shape), start.target.dtype),
        )

    def draw(key: jax.Array) -> StepDraw:
        agent_key, world_key, reset_key = jax.random.split(key, 3)
        return StepDraw(
            agent=agent.draw(agent_key),
            world=jax.random.key_data(world_key),
            fresh=begin_episode(reset_key),
        )

    def play(run: RunState, t: jax.Array, active: jax.Array, drawn: StepDraw) -> tuple[RunState, Any]:
        """One step in the world, remembered."""
        episode = run.episode
        world_key = jax.random.wrap_key_data(drawn.world)
        action = agent.act(run.agent, drawn.agent, episode.obs, t)
        physics = with_model(world.nominal, episode.acting)
        happened = world.step(world_key, episode.state, action, physics)
        if robust:
            outcomes = branch(world, world_key, episode.state, action, episode.models)
        else:
            outcomes = jax.tree.map(lambda leaf: leaf[None], happened)
        transition = Transition(
            obs=episode.obs,
            action=action,
            reward=outcomes.reward,
            next_obs=outcomes.obs,
            terminated=outcomes.terminated,
        )
        earned = episode.earned + happened.reward
        truncated = episode.step + 1 >= config.horizon
        ended = active & (happened.terminated | truncated)
        continued = Episode(
            state=happened.state,
            obs=happened.obs,
            acting=episode.acting,
            models=episode.models,
            step=episode.step + 1,
            earned=earned,
        )
        following = select(ended, drawn.fresh, continued)
        remembered = agent.remember(run.agent, transition, t, active)
        played = RunState(
            agent=agent.renew(remembered, drawn.agent, ended),
            episode=select(active, following, episode),
            key=run.key,
            episodes=run.episodes + ended,
            steps=run.steps + active,
            snapshots=run.snapshots,
        )
        return played, (ended, earned)

    def update_round(run: RunState, moment: tuple[jax.Array, StepDraw]) -> tuple[RunState, Log]:
        """`train_every` steps, then one update."""
        times, draws = moment
        played = []
        for step in range(config.train_every):
            t, drawn = jax.tree.map(lambda leaf, step=step: leaf[step], (times, draws))
            active = run.episodes < config.episodes
            run, seen = play(run, t, active, drawn)
            played.append(seen)
        learned, fit = agent.learn(run.agent, drawn.agent, t, active)
        ended, earned = (jnp.stack(column) for column in zip(*played, strict=True))
        return dataclasses.replace(run, agent=learned), Log(ended, earned, active & (t >= config.warm_up), fit)

    def look(run: RunState, moments: tuple[jax.Array, StepDraw]) -> tuple[RunState, Log]:
        """A part of a chunk, then a snapshot if it was due within."""
        after, log = jax.lax.scan(update_round, run, moments)
        if config.snapshots:
            # Where short episodes make several due at once, they are the same.
            steps = rounds // looks * config.train_every
            newest = after.episodes // config.snapshot_every - 1
            rows = newest - jnp.arange(steps // config.snapshot_every + 1)
            due = jnp.where(rows >= run.episodes // config.snapshot_every, rows, config.snapshots)
            mean = agent.estimator.mean(after.agent.belief)
            after = dataclasses.replace(after, snapshots=after.snapshots.at[due].set(mean, mode="drop"))
        return after, log

    def chunk(run: RunState, t: jax.Array) -> tuple[RunState, Log]:
        times = t + jnp.arange(rounds * config.train_every).reshape(looks, rounds // looks, config.train_every)
        key = jax.random.wrap_key_data(run.key)
        # Random numbers depend on the seed and the step alone, so the whole chunk's are drawn at
        # once; inside the scan each draw would cost more than an update of the network.
        draws = jax.vmap(jax.vmap(jax.vmap(lambda t: draw(jax.random.fold_in(key, t)))))(times)
        run, log = jax.lax.scan(look, run, (times, draws))
        return run, jax.tree.map(lambda leaf: leaf.reshape(rounds, *leaf.shape[2:]), log)

    def one_by_one(runs: RunState, t: jax.Array) -> tuple[RunState, Log]:
        """Covariances gain nothing from being in step, and in a vmap conditions compute both sides."""
        if len(runs.steps) == 1:  # without the copies that a loop makes
            return jax.tree.map(lambda leaf: leaf[None], chunk(jax.tree.map(lambda leaf: leaf[0], runs), t))
        return jax.lax.map(lambda run: chunk(run, t), runs)

    # One thread: these matrices are too small to share, and sums keep one order on every machine.
    options = {"xla_cpu_multi_thread_eigen": False}
    each = jax.vmap(chunk, in_axes=(0, None)) if config.in_step else one_by_one
    together = jax.jit(each, donate_argnums=0, compiler_options=options)
    return Program(
        world, agent.network, agent.estimator, agent.values, init, together, lambda states: np.asarray(states.steps)
    )
