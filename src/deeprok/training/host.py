"""Training in stateful simulators: a loop in Python around jitted steps of the learner.

The learner and its random numbers are those of `deeprok.training.scan`. In each step of the environment there is one
jitted call, which observes, learns when it is due, and acts; one call costs as much as a small network's update. What
it carries from one step to the next is packed into a few arrays, since each of them makes a call longer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import Learner, PlaysSteps, Task
from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Transition
from deeprok.environments.host import HostEnvironment, Simulator, model_of
from deeprok.runs.settings import Config
from deeprok.training.packing import make_packing
from deeprok.training.scan import (
    COMPILER_OPTIONS,
    SEGMENTS,
    Episode,
    Log,
    Program,
    RunState,
    clock_of,
    draw_models,
    start,
)

_Packed = list[jax.Array]

#: The operations of a step are too short to be handed to other threads.
_COMPILER_OPTIONS = {**COMPILER_OPTIONS, "xla_cpu_enable_concurrency_optimized_scheduler": False}


class _Fresh(NamedTuple):
    """What decides an episode that begins; of a chunk, with a first axis of steps."""

    acting: Mapping[str, Any]  # name -> []
    models: Mapping[str, Any]  # name -> [M]
    seed: Any  # [] of the simulator's reset


@pytree_dataclass
class _Carry:
    """What the device holds between two steps."""

    agent: Any
    obs: jax.Array  # [D]
    action: jax.Array  # that the simulator takes
    t: jax.Array  # [] int32, the number of the step
    k: jax.Array  # [] int32, steps of this chunk so far
    episodes: jax.Array  # [] int32
    steps: jax.Array  # [] int32
    held: jax.Array
    fits: Any  # of the chunk's updates, with a first axis of rounds


@dataclasses.dataclass
class _Live:
    """The simulation, and the step of the run that it is at."""

    simulator: Simulator
    steps: int = -1


def make_program(config: Config) -> Program:
    """Builds the functions that a run on a stateful simulator consists of, for one seed at a time."""
    # Each step waits for its action, so that another thread could do nothing meanwhile. It has an effect where JAX has
    # not computed anything yet, as in a process that only trains.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    task, learner = config.task(), config.make_learner()
    env, plays = task.env, learner.plays
    assert isinstance(env, HostEnvironment)
    assert isinstance(plays, PlaysSteps)
    every, rounds = plays.steps_per_round, plays.rounds_per_chunk
    length, segment = every * rounds, every * (rounds // math.gcd(rounds, SEGMENTS))
    pieces = _make_pieces(task, learner, plays)
    dtype = np.dtype(config.precision)
    live = _Live(env.make())

    def begin(fresh: _Fresh) -> Episode:
        """Resets the simulator, whose state is stored at the end of a chunk."""
        obs = live.simulator.reset(int(fresh.seed), model_of(env, fresh.acting)).astype(dtype)
        return _episode(None, obs, fresh.acting, fresh.models, np.int32(0), dtype.type(0.0))

    def stored(episode: Episode) -> Episode:
        return dataclasses.replace(episode, state=_pack(live.simulator))

    def init(key: jax.Array, belief: Any = None) -> RunState:
        weights_key, episode_key, steps_key = jax.random.split(key, 3)
        run = pieces.start(weights_key, steps_key, belief)
        live.steps = 0
        return dataclasses.replace(run, episode=stored(begin(_on_host(pieces.fresh(episode_key)))))

    def shapes() -> RunState:
        key = jax.random.key(0)
        run = jax.eval_shape(pieces.start, key, key, None)
        episode = stored(begin(_on_host(pieces.fresh(key))))
        live.steps = -1
        return dataclasses.replace(
            run, episode=jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), episode)
        )

    def continued(run: RunState) -> Episode:
        """The episode under way. A simulation that can't be put where it was begins another."""
        episode = _on_host(run.episode)
        if len(episode.state):
            _unpack(live.simulator, episode.state, model_of(env, episode.acting))
        elif live.steps != int(run.steps):
            key = jax.random.wrap_key_data(jnp.asarray(run.key))
            return begin(_on_host(pieces.fresh(jax.random.fold_in(key, 2**31 - 1 - int(run.steps)))))
        return episode

    def advance(states: RunState, index: int) -> tuple[RunState, Log]:
        run = jax.tree.map(lambda leaf: leaf[0], states)
        episode = continued(run)
        draws, fresh = pieces.draw(run.key, index)
        fresh = _on_host(fresh)
        carry, action = pieces.begin(run, draws, episode.obs, index)
        episodes, steps, snapshots = int(run.episodes), int(run.steps), np.array(run.snapshots)
        ended, earned, failed = np.zeros(length, bool), np.zeros(length, dtype), np.zeros(length, int)
        since = episodes  # the last moment of a snapshot
        for k in range(length):
            if not task.budget.lasts(episodes, steps):
                break
            before = _failures(live.simulator)
            episode, row = _step(task, live.simulator, episode, np.asarray(action), dtype)
            failed[k] = _failures(live.simulator) - before
            ended[k], earned[k] = bool(row[0]), episode.earned
            if ended[k]:
                episode = begin(_Fresh(*(jax.tree.map(lambda leaf, k=k: leaf[k], part) for part in fresh)))
            row[1 : 1 + len(episode.obs)] = episode.obs
            carry, action = (pieces.learn if (k + 1) % every == 0 else pieces.observe)(carry, draws, row)
            episodes, steps = episodes + int(ended[k]), steps + 1
            if task.snapshots and ((k + 1) % segment == 0 or not task.budget.lasts(episodes, steps)):
                due = range(since // task.snapshot_every, min(episodes // task.snapshot_every, task.snapshots))
                for place in due:
                    snapshots[place] = np.asarray(pieces.weights(carry))
                since = episodes
        live.steps = steps
        last = pieces.unpack(_on_host(carry))
        counters = dict(episodes=np.int32(episodes), steps=np.int32(steps), snapshots=snapshots)
        after = dataclasses.replace(run, agent=last.agent, episode=stored(episode), held=last.held, **counters)
        learned = index * length + every * np.arange(1, rounds + 1) - 1 >= plays.warm_up
        learned &= every * np.arange(1, rounds + 1) <= steps - int(run.steps)
        updates = rounds * plays.updates_per_round
        fit = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(updates), last.fits)
        played = (ended.reshape(rounds, every), earned.reshape(rounds, every))
        lost = np.array([(failed > 0).sum(), failed.sum()])
        log = Log(*_stacked((*played, np.repeat(learned, plays.updates_per_round), fit, lost)))
        return _stacked(after), log

    return Program(learner, init, shapes, advance, lambda states: np.asarray(states.steps) // length)


def _step(
    task: Task, simulator: Simulator, episode: Episode, action: np.ndarray, dtype: np.dtype[Any]
) -> tuple[Episode, np.ndarray]:
    """One step of the simulator.

    Returns:
      The episode after it, and what the device is told: whether it ended, room for the observation that follows, and of
      each model the reward, whether it terminated, and the observation.
    """
    models: Any = episode.models
    outcomes = simulator.outcomes(action, models) if task.target.robust else None
    happened = simulator.step(action)
    told = outcomes or happened
    step = int(episode.step) + 1
    ended = bool(happened.terminated) or step >= task.env.horizon or getattr(simulator, "truncated", False)
    size, count = len(happened.obs), np.size(told.reward)
    row = np.empty(1 + size + count * (size + 2), dtype)
    row[0] = ended
    rewards, flags = 1 + size + count, 1 + size + 2 * count  # where they end
    row[1 + size : rewards], row[rewards:flags], row[flags:] = told.reward, told.terminated, told.obs.ravel()
    obs, earned = happened.obs.astype(dtype), dtype.type(episode.earned + dtype.type(happened.reward))
    return _episode(None, obs, episode.acting, episode.models, np.int32(step), earned), row


class _Pieces(NamedTuple):
    """The jitted functions of a run.

    Attributes:
      start: `(weights_key, steps_key, belief) -> RunState`, without an episode.
      fresh: `key -> _Fresh`.
      draw: `(key_data, index) -> (draws, _Fresh)`, all random numbers of a chunk, those of the learner packed.
      begin: `(run, draws, obs, index) -> (carry, action)`, the first action of a chunk; the carry is packed.
      observe: `(carry, draws, row) -> (carry, action)`, after a step.
      learn: likewise, after the last step of a round.
      unpack: `carry -> _Carry`, of numpy's arrays too.
      weights: `carry -> [n]`, the mean.
    """

    start: Callable[..., RunState]
    fresh: Callable[[jax.Array], _Fresh]
    draw: Callable[..., tuple[_Packed, _Fresh]]
    begin: Callable[..., tuple[_Packed, jax.Array]]
    observe: Callable[..., tuple[_Packed, jax.Array]]
    learn: Callable[..., tuple[_Packed, jax.Array]]
    unpack: Callable[[_Packed], _Carry]
    weights: Callable[[_Packed], jax.Array]


def _make_pieces(task: Task, learner: Learner, plays: PlaysSteps) -> _Pieces:
    every, rounds = plays.steps_per_round, plays.rounds_per_chunk
    observations = len(task.env.observation_scale)
    active = jnp.bool_(True)  # the loop ends with the budget

    def fresh(key: jax.Array) -> _Fresh:
        acting, models, reset_key = draw_models(task, key)
        return _Fresh(acting, models, jax.random.bits(reset_key, (), "uint32"))

    def draw(key_data: jax.Array, index: jax.Array) -> tuple[_Packed, _Fresh]:
        key, first = jax.random.wrap_key_data(key_data), index * (rounds * every)

        def one(t: jax.Array) -> tuple[_Packed, _Fresh]:
            agent_key, _, reset_key = jax.random.split(jax.random.fold_in(key, t), 3)
            return numbers.pack(learner.draw(agent_key, ())), fresh(reset_key)

        return jax.vmap(one)(first + jnp.arange(rounds * every))

    def now(carry: _Carry, draws: _Packed) -> tuple[Any, Any]:
        """The random numbers of the step, and when it is."""
        return numbers.unpack([array[carry.k] for array in draws]), clock_of(task, carry, carry.t)

    def acted(carry: _Carry, draws: _Packed) -> tuple[_Carry, jax.Array]:
        drawn, clock = now(carry, draws)
        action, _ = learner.act(carry.agent, drawn, carry.obs, clock)
        return dataclasses.replace(carry, action=action), action

    def begun(run: RunState, draws: _Packed, obs: jax.Array, index: jax.Array) -> tuple[_Carry, jax.Array]:
        first = jnp.int32(index * (rounds * every))
        drawn = numbers.unpack([array[0] for array in draws])
        fit = jax.eval_shape(learner.learn, run.agent, drawn, clock_of(task, run, first), active, None)[1]
        carry = _Carry(
            agent=run.agent,
            obs=obs,
            action=jnp.int32(0),
            t=first,
            k=jnp.int32(0),
            episodes=run.episodes,
            steps=run.steps,
            held=run.held,
            fits=jax.tree.map(lambda leaf: jnp.zeros((rounds, *leaf.shape), leaf.dtype), fit),
        )
        return acted(carry, draws)

    def observe(carry: _Carry, draws: _Packed, row: jax.Array, learns: bool) -> tuple[_Carry, jax.Array]:
        models = (len(row) - 1 - observations) // (observations + 2)
        sizes = np.cumsum([1, observations, models, models])
        flag, following, reward, terminated, outcomes = jnp.split(row, sizes)
        drawn, clock = now(carry, draws)
        ended = flag[0] != 0
        transition = Transition(
            obs=carry.obs,
            action=carry.action,
            reward=reward,
            next_obs=outcomes.reshape(models, observations),
            terminated=terminated != 0,
        )
        agent, fits = plays.observe(carry.agent, transition, drawn, clock, ended, active), carry.fits
        if learns:
            agent, fit = learner.learn(agent, drawn, clock, active, None)
            fits = jax.tree.map(lambda all, one: all.at[carry.k // every].set(one), fits, fit)
        after = _Carry(
            agent=agent,
            obs=following,
            action=carry.action,
            t=carry.t + 1,
            k=carry.k + 1,
            episodes=carry.episodes + ended,
            steps=carry.steps + 1,
            held=carry.held,
            fits=fits,
        )
        return acted(after, draws)

    def state(weights_key: jax.Array, steps_key: jax.Array, belief: Any) -> RunState:
        return start(task, learner, (weights_key, steps_key), belief, None)

    key = jax.random.key(0)
    numbers = make_packing(jax.eval_shape(lambda: learner.draw(key, ())))
    run, blank = jax.eval_shape(state, key, key, None), jnp.zeros(observations)
    packing = make_packing(jax.eval_shape(begun, run, jax.eval_shape(draw, run.key, 0)[0], blank, 0)[0])

    def packed(function: Callable[..., tuple[_Carry, jax.Array]]) -> Callable[..., tuple[_Packed, jax.Array]]:
        def call(*arguments: Any) -> tuple[_Packed, jax.Array]:
            carry, action = function(*arguments)
            return packing.pack(carry), action

        return call

    def stepped(learns: bool) -> Any:
        call = packed(lambda carry, draws, row: observe(packing.unpack(carry), draws, row, learns))
        return jitted(call, donate_argnums=0)

    def jitted(function: Callable[..., Any], **options: Any) -> Any:
        return jax.jit(function, compiler_options=_COMPILER_OPTIONS, **options)

    return _Pieces(
        start=jitted(state),
        fresh=jitted(fresh),
        draw=jitted(draw),
        begin=jitted(packed(begun)),
        observe=stepped(False),
        learn=stepped(True),
        unpack=packing.unpack,
        weights=jitted(lambda carry: learner.view.mean(packing.unpack(carry).agent.belief)),
    )


def _episode(*fields: Any) -> Episode:
    """An episode of numpy's arrays."""
    return Episode(*fields)


def _failures(simulator: Simulator) -> int:
    """How many simulations have failed so far."""
    return sum(simulator.failures.values())


def _on_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def _stacked(tree: Any) -> Any:
    """With a first axis, of one seed."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)


def where_resumed(env: HostEnvironment) -> str:
    """Where a run that was stopped within an episode goes on."""
    simulator = env.make()
    simulator.reset(0, model_of(env, {}))
    if simulator.read() is None:
        return "from its next episode, since the simulator's state can't be stored"
    return "within its episode, with the simulator's state"


# --- the simulator's state in a checkpoint ---------------------------------------------------------------


def _pack(simulator: Simulator) -> np.ndarray:
    """The bits [W] uint32 of the simulator's state, which no arithmetic rounds; none if it can't be read."""
    state = simulator.read()
    if state is None:
        return np.zeros(0, np.uint32)
    return np.concatenate([_words(value) for _, value in sorted(state.items())])


def _words(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return np.ascontiguousarray(array, _kind(array)).reshape(-1).view(np.uint32)


def _kind(array: np.ndarray) -> str:
    """Numbers are stored in double precision, or as whole ones."""
    return "float64" if array.dtype.kind == "f" else "int64"


def _unpack(simulator: Simulator, words: np.ndarray, model: Mapping[str, float]) -> None:
    """Puts the simulator where it was when `_pack` read it."""
    simulator.reset(0, model)
    template = {name: np.asarray(value) for name, value in sorted((simulator.read() or {}).items())}
    if 2 * sum(array.size for array in template.values()) != len(words):
        raise DeeprokError("the simulator's state has another size than at its last checkpoint; train the run again")
    state, place = {}, 0
    for name, array in template.items():
        bits = np.ascontiguousarray(words[place : place + 2 * array.size])
        state[name] = bits.view(_kind(array)).reshape(array.shape)
        place += 2 * array.size
    simulator.write(state, model)
