"""Training in JAX environments: chunks of a jitted scan, for several seeds at once.

Everything here is pure; `deeprok.training.loop` loops over the chunks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.clock import Clock
from deeprok.agents.learner import Learner, Played, PlaysSteps, PlaysTrajectories, State, Task
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.environments import branch, with_model
from deeprok.environments.base import Model, Transition, in_jax
from deeprok.environments.rollout import Step, play_trajectories
from deeprok.estimators import Fit
from deeprok.runs.settings import Config
from deeprok.training.found import Found, nothing_found, or_found, with_found
from deeprok.uncertainty import sample_box


@pytree_dataclass
class Episode:
    """The episode under way."""

    state: Any  # the environment's state
    obs: jax.Array  # [D]
    acting: Model  # name -> [], the model acted on
    models: Model  # name -> [M], the models of a robust target; empty for a nominal one
    step: jax.Array  # [] int32
    earned: jax.Array  # [] return so far


@pytree_dataclass
class RunState:
    """A run between two chunks: with its settings, all that its future depends on."""

    agent: State  # the learner's
    episode: Any  # Episode; None where whole trajectories are played
    key: jax.Array  # [2] uint32 data of the key that every step's key is folded from
    episodes: jax.Array  # [] int32, finished
    steps: jax.Array  # [] int32, taken
    snapshots: jax.Array  # [K, n], row k: the mean weights after (k + 1)·snapshot_every episodes; 0 until then
    held: jax.Array  # [1] `Clock.held`; [0] unless the run goes back to its best weights on the way
    found: Found | None = None  # models that join the sets; None without an adversary


@pytree_dataclass
class StepDraw:
    """All random numbers of one step."""

    agent: Any  # the learner's
    env: jax.Array  # [2] uint32 data of the key for the environment's step
    fresh: Episode  # the episode that begins if this step ends one


class Log(NamedTuple):
    """What the steps of a round, or trajectories, and the updates after them leave behind.

    Of a chunk, what was played has a first axis of rounds. What was learned has one of updates, of which a round may
    have several.
    """

    ended: jax.Array  # [...] bool, whether each step, or trajectory, ended an episode
    earned: jax.Array  # [...] the return so far after each
    learned: jax.Array  # [] bool, whether the update changed anything
    fit: Fit
    failed: Any = None  # [2] of a chunk in a simulator: steps in which a simulation failed, and simulations that did


class Program(NamedTuple):
    """A run made executable: all that the loop over chunks knows of it.

    Attributes:
      learner: what learns.
      init: `(key, belief=None) -> RunState`, from a given estimate of the weights or from fresh ones; jitted.
      shapes: the shapes of such a state.
      advance: `(states, index) -> (states, Log)`, jitted: the chunk of that index, for states stacked along a first
        axis of seeds, which are donated.
      chunks_done: `states -> [S]`, how many chunks each of stacked states has behind it, unless it has finished.
      close: ends what was begun beside it, when nothing is to be computed any more.
    """

    learner: Learner
    init: Callable[..., RunState]
    shapes: Callable[[], RunState]
    advance: Callable[[RunState, int], tuple[RunState, Log]]
    chunks_done: Callable[[RunState], np.ndarray]
    close: Callable[[], None] = lambda: None


#: One thread: these matrices are too small to share, and sums keep one order on every machine. Of LLVM's levels of
#: effort the last but one, unless `XLA_FLAGS` names another: the last takes twice as long, for programs no faster.
COMPILER_OPTIONS: dict[str, bool | int] = {"xla_cpu_multi_thread_eigen": False}
if "--xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    COMPILER_OPTIONS["xla_backend_optimization_level"] = 2


def make_program(config: Config) -> Program:
    """Builds the functions that a run consists of."""
    learner, task = config.make_learner(), config.task()

    def init(models: _Numbers, key: jax.Array, belief: Any = None) -> RunState:
        return make_driver(_with_numbers(task, models), learner).init(key, belief)

    def advance(models: _Numbers, runs: RunState, index: jax.Array) -> tuple[RunState, Log]:
        chunk = make_driver(_with_numbers(task, models), learner).chunk
        if learner.seeds == "vmap":
            return jax.vmap(chunk, in_axes=(0, None))(runs, index)
        # Covariances gain nothing from a vmap, in which conditions would compute both sides.
        if len(runs.steps) == 1:  # without the copies that a loop makes
            return jax.tree.map(lambda leaf: leaf[None], chunk(jax.tree.map(lambda leaf: leaf[0], runs), index))
        return jax.lax.map(lambda run: chunk(run, index), runs)

    models, driver = _numbers_of(task), make_driver(task, learner)
    # Arguments and not constants, so that a run with another box or another nominal model compiles nothing anew.
    compiled = jax.jit(advance, donate_argnums=1, compiler_options=COMPILER_OPTIONS)
    return Program(
        learner=learner,
        init=functools.partial(jax.jit(init), models),
        shapes=lambda: jax.eval_shape(driver.init, jax.random.key(0)),
        advance=functools.partial(compiled, models),
        chunks_done=driver.chunks_done,
    )


class _Numbers(NamedTuple):
    """The numbers of the models that a run is trained on, as arrays."""

    nominal: Any  # the environment's record of parameters
    box: Any  # name -> (low, high)
    models: Any  # of the set of models


def _numbers_of(task: Task) -> _Numbers:
    numbers = _Numbers(task.env.nominal, dict(task.box), task.models.numbers)
    return jax.tree.map(lambda number: jnp.asarray(number, float), numbers)


def _with_numbers(task: Task, numbers: _Numbers) -> Task:
    env = in_jax(task.env, "a scan")._replace(nominal=numbers.nominal)
    box = {name: numbers.box[name] for name in task.box}  # whose names JAX has sorted, and random numbers go by them
    return task._replace(env=env, box=box, models=task.models._replace(numbers=numbers.models))


class Driver(NamedTuple):
    """A learner that plays, for one seed; as in `Program`, but not compiled."""

    init: Callable[..., RunState]
    chunk: Callable[[RunState, jax.Array], tuple[RunState, Log]]
    chunks_done: Callable[[RunState], np.ndarray]


def make_driver(task: Task, learner: Learner) -> Driver:
    """The functions of a run for one seed, to be vmapped and compiled.

    Args:
      task: what the learner was made for.
      learner: the learner.
    """
    plays = learner.plays
    if isinstance(plays, PlaysSteps):
        return _by_steps(task, learner, plays)
    return _by_trajectories(task, learner, plays)


def clock_of(task: Task, run: Any, t: jax.Array) -> Clock:
    """When it is, for a record with the fields `episodes`, `steps` and `held` of a `RunState`."""
    progress = task.budget.progress(run.episodes, run.steps)
    return Clock(t, progress, run.held[0]) if task.refines else Clock(t, progress)


def start(task: Task, learner: Learner, keys: tuple[jax.Array, jax.Array], belief: Any, episode: Any) -> RunState:
    """A run at its beginning.

    Args:
      task: what the learner was made for.
      learner: the learner.
      keys: of the first weights, and of all steps.
      belief: an estimate of the weights to start from; None for fresh ones.
      episode: the first episode.
    """
    agent = learner.init(keys[0], belief)
    theta = learner.view.mean(agent.belief)
    return RunState(
        agent=agent,
        episode=episode,
        key=jax.random.key_data(keys[1]),
        episodes=jnp.int32(0),
        steps=jnp.int32(0),
        snapshots=jnp.zeros((task.snapshots, *theta.shape), theta.dtype),
        held=jnp.full(int(task.refines), -1.0, theta.dtype),
        found=nothing_found(task),
    )


def _with_snapshots(task: Task, learner: Learner, before: RunState, after: RunState, most: int) -> RunState:
    """The run with the snapshots that became due; `most` episodes can have ended since."""
    if not task.snapshots:
        return after
    # Where short episodes make several due at once, they are the same.
    rows = after.episodes // task.snapshot_every - 1 - jnp.arange(most // task.snapshot_every + 1)
    due = jnp.where(rows >= before.episodes // task.snapshot_every, rows, task.snapshots)
    mean = learner.view.mean(after.agent.belief)
    return dataclasses.replace(after, snapshots=after.snapshots.at[due].set(mean, mode="drop"))


#: Places in a chunk at which snapshots are taken, so that the steps between pay nothing for them.
SEGMENTS = 20


def draw_models(task: Task, key: jax.Array, found: Found | None) -> tuple[Model, Model, jax.Array]:
    """The model that an episode is played on, the models of its targets, and the key of its reset.

    Found models are acted on as well: only there are the states seen that they lead to.
    """
    models_key, acting_key, reset_key = jax.random.split(key, 3)
    drawn = with_found(found, task.box, task.models.draw(models_key), models_key)
    if task.acting == "sampled":
        acting = or_found(found, task.box, sample_box(acting_key, task.box, (), task.edges), acting_key)
    elif task.acting == "member":
        member = jax.random.randint(acting_key, (), 0, task.models.size)
        acting = {name: values[member] for name, values in drawn.items()}
    else:
        acting = {name: jnp.asarray(getattr(task.env.nominal, name), float) for name in task.box}
    return acting, drawn if task.target.robust else {}, reset_key


def _by_steps(task: Task, learner: Learner, plays: PlaysSteps) -> Driver:
    """One episode after the other, updates every few steps."""
    env, robust = in_jax(task.env, "a scan"), task.target.robust
    every, rounds, updates = plays.steps_per_round, plays.rounds_per_chunk, plays.updates_per_round
    segments = math.gcd(rounds, SEGMENTS)

    def begin_episode(key: jax.Array, found: Found | None) -> Episode:
        acting, drawn, state_key = draw_models(task, key, found)
        state, obs = env.reset(state_key, with_model(env.nominal, acting))
        return Episode(
            state=state,
            obs=obs,
            acting=acting,
            models=drawn,
            step=jnp.int32(0),
            earned=jnp.zeros((), obs.dtype),
        )

    def init(key: jax.Array, belief: Any = None) -> RunState:
        weights_key, episode_key, steps_key = jax.random.split(key, 3)
        return start(task, learner, (weights_key, steps_key), belief, begin_episode(episode_key, None))

    def draw(key: jax.Array, found: Found | None) -> StepDraw:
        agent_key, env_key, reset_key = jax.random.split(key, 3)
        return StepDraw(
            agent=learner.draw(agent_key, ()),
            env=jax.random.key_data(env_key),
            fresh=begin_episode(reset_key, found),
        )

    def step(run: RunState, clock: Clock, active: jax.Array, drawn: StepDraw) -> tuple[RunState, Any]:
        """One step in the environment, observed by the learner."""
        episode = run.episode
        env_key = jax.random.wrap_key_data(drawn.env)
        action, _ = learner.act(run.agent, drawn.agent, episode.obs, clock)
        happened = env.step(env_key, episode.state, action, with_model(env.nominal, episode.acting))
        if robust:
            outcomes = branch(env, env_key, episode.state, action, episode.models)
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
        truncated = episode.step + 1 >= env.horizon
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
        after = RunState(
            agent=plays.observe(run.agent, transition, drawn.agent, clock, ended, active),
            episode=select(active, following, episode),
            key=run.key,
            episodes=run.episodes + ended,
            steps=run.steps + active,
            snapshots=run.snapshots,
            held=run.held,
            found=run.found,
        )
        return after, (ended, earned)

    def update_round(run: RunState, moment: tuple[jax.Array, StepDraw]) -> tuple[RunState, Log]:
        """Some steps, then the updates."""
        times, draws = moment
        played = []
        for i in range(every):
            t, drawn = jax.tree.map(lambda leaf, i=i: leaf[i], (times, draws))
            # A run that had ended within this chunk and was given a longer budget goes on where it was.
            active = task.budget.lasts(run.episodes, run.steps) & (t >= run.steps)
            clock = clock_of(task, run, t)
            run, seen = step(run, clock, active, drawn)
            played.append(seen)
        learned, fit = learner.learn(run.agent, drawn.agent, clock, active, None)
        ended, earned = (jnp.stack(column) for column in zip(*played, strict=True))
        effective = jnp.broadcast_to(active & (t >= plays.warm_up), fit.loss.shape)
        return dataclasses.replace(run, agent=learned), Log(ended, earned, effective, fit)

    def segment(run: RunState, moments: tuple[jax.Array, StepDraw]) -> tuple[RunState, Log]:
        """A part of a chunk, then a snapshot if one was due within it."""
        after, log = jax.lax.scan(update_round, run, moments)
        return _with_snapshots(task, learner, run, after, rounds // segments * every), log

    def chunk(run: RunState, index: jax.Array) -> tuple[RunState, Log]:
        steps = jnp.arange(rounds * every).reshape(segments, rounds // segments, every)
        times = index * (rounds * every) + steps
        key = jax.random.wrap_key_data(run.key)
        # Random numbers depend on the seed and the step alone, so the whole chunk's are drawn at
        # once; inside the scan each draw would cost more than an update of the network.
        draws = jax.vmap(jax.vmap(jax.vmap(lambda t: draw(jax.random.fold_in(key, t), run.found))))(times)
        run, log = jax.lax.scan(segment, run, (times, draws))
        ended, earned = (leaf.reshape(rounds, every) for leaf in (log.ended, log.earned))
        return run, Log(ended, earned, *jax.tree.map(lambda leaf: leaf.reshape(rounds * updates), log[2:]))

    return Driver(init, chunk, lambda states: np.asarray(states.steps) // (rounds * every))


def _by_trajectories(task: Task, learner: Learner, plays: PlaysTrajectories) -> Driver:
    """Whole trajectories side by side, then one update from all of them."""
    env, parts = in_jax(task.env, task.algorithm), trajectory_parts(task, learner, plays)

    def chunk(run: RunState, index: jax.Array) -> tuple[RunState, Log]:
        batch, clock = parts.begin(run, index), clock_of(task, run, index)
        played = play_trajectories(
            env, lambda noise, obs: learner.act(batch.state, noise, obs, clock), batch.models, batch.key, learner.draw
        )
        return parts.finish(run, index, batch, played)

    return Driver(parts.init, chunk, parts.chunks_done)


class Batch(NamedTuple):
    """Trajectories that are to be played."""

    state: Any  # the learner's
    drawn: Model  # name -> [K], the models
    models: Model  # name -> [N], that of each trajectory
    key: jax.Array  # of playing
    learn_key: jax.Array


class TrajectoryParts(NamedTuple):
    """A chunk of whole trajectories but for how they are played.

    Attributes:
      init: as in `Program`.
      begin: `(run, index) -> Batch`.
      finish: `(run, index, batch, steps) -> (run, Log)`, the update from what was played.
      chunks_done: as in `Program`.
    """

    init: Callable[..., RunState]
    begin: Callable[[RunState, jax.Array], Batch]
    finish: Callable[[RunState, jax.Array, Batch, Step], tuple[RunState, Log]]
    chunks_done: Callable[[RunState], np.ndarray]


def trajectory_parts(task: Task, learner: Learner, plays: PlaysTrajectories) -> TrajectoryParts:
    """What a chunk does before and after playing, wherever that is."""
    count = plays.trajectories

    def init(key: jax.Array, belief: Any = None) -> RunState:
        weights_key, steps_key = jax.random.split(key)
        return start(task, learner, (weights_key, steps_key), belief, None)

    def begin(run: RunState, index: jax.Array) -> Batch:
        keys = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(run.key), index), 4)
        state, drawn = plays.models(run.agent, keys[jnp.array([0, 3])], index)
        drawn = with_found(run.found, task.box, drawn, keys[0])
        models = {name: jnp.tile(values, count // len(values)) for name, values in drawn.items()}
        return Batch(state, drawn, models, keys[1], keys[2])

    def finish(run: RunState, index: jax.Array, batch: Batch, played: Step) -> tuple[RunState, Log]:
        active, clock = task.budget.lasts(run.episodes, run.steps), clock_of(task, run, index)
        learned, fit = learner.learn(batch.state, batch.learn_key, clock, active, Played(played, batch.drawn))
        after = RunState(
            agent=select(active, learned, run.agent),
            episode=None,
            key=run.key,
            episodes=run.episodes + count * active,
            steps=run.steps + jnp.sum(played.alive, dtype=jnp.int32) * active,
            snapshots=run.snapshots,
            held=run.held,
            found=run.found,
        )
        log = Log(
            ended=jnp.broadcast_to(active, (1, count)),
            earned=jnp.sum(played.reward, axis=0)[None],
            learned=active[None],
            fit=jax.tree.map(lambda leaf: leaf[None], fit),
        )
        return _with_snapshots(task, learner, run, after, count), log

    return TrajectoryParts(init, begin, finish, lambda states: np.asarray(states.episodes) // count)
