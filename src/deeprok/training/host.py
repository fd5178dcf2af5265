"""Training in stateful simulators: a loop in Python around jitted steps of the learner.

The learner and its random numbers are those of `deeprok.training.scan`. In each step of the environment there is one
jitted call, which observes, learns when it is due, and acts; one call costs as much as a small network's update. What
it carries from one step to the next is packed into a few arrays, since each of them makes a call longer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import Learner, PlaysSteps, Task
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Transition
from deeprok.environments.host import HostEnvironment
from deeprok.runs.settings import Config
from deeprok.training.found import Found
from deeprok.training.host_trajectories import make_trajectory_program
from deeprok.training.packing import make_packing
from deeprok.training.players import Fresh, Moved, fresh_at, players_here, players_in_processes, rows_of, was_read
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

T = TypeVar("T")
_Packed = list[jax.Array]

#: The operations of a step are too short to be handed to other threads.
_COMPILER_OPTIONS = {**COMPILER_OPTIONS, "xla_cpu_enable_concurrency_optimized_scheduler": False}


@pytree_dataclass
class Several:
    """The episodes of several simulators that one learner plays in."""

    each: Episode  # with a first axis of simulators
    own: Mapping[str, jax.Array]  # fields of the learner's state that belong to an episode -> [N, …]


@pytree_dataclass
class _Carry:
    """What the device holds between two steps."""

    agent: Any
    obs: jax.Array  # [N, D]
    action: jax.Array  # [N, …] that the simulators take
    own: Mapping[str, jax.Array]  # as in `Several`
    t: jax.Array  # [] int32, the number of the step
    k: jax.Array  # [] int32, steps of this chunk so far
    episodes: jax.Array  # [] int32
    steps: jax.Array  # [] int32
    held: jax.Array
    fits: Any  # of the chunk's updates, with a first axis of rounds


class _Seen(NamedTuple):
    """A simulator's step, as the learner sees it."""

    obs: jax.Array  # [D] before it
    action: jax.Array
    drawn: Any  # the learner's random numbers
    own: Mapping[str, jax.Array]  # as in `Several`, of this simulator
    row: jax.Array  # what happened


@dataclasses.dataclass
class _Live:
    """The step of the run that the simulations are at; −1 if at none."""

    steps: int = -1


def make_program(config: Config, processes: bool = True) -> Program:
    """Builds the functions that a run on a stateful simulator consists of, for one seed at a time.

    Args:
      config: the settings.
      processes: whether several simulators may have processes of their own.
    """
    # Each step waits for its action, so that another thread could do nothing meanwhile. It has an effect where JAX has
    # not computed anything yet, as in a process that only trains.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    task, learner, count = config.task(), config.make_learner(), config.simulators
    env, plays = task.env, learner.plays
    assert isinstance(env, HostEnvironment)
    if not isinstance(plays, PlaysSteps):
        return make_trajectory_program(task, learner, plays)
    every, rounds = plays.steps_per_round, plays.rounds_per_chunk
    length, segment = every * rounds, every * (rounds // math.gcd(rounds, SEGMENTS))
    pieces = _make_pieces(task, learner, plays, count)
    dtype = np.dtype(config.precision)
    live = _Live()
    apart = processes and env.processes and count > 1
    players = players_in_processes(config) if apart else players_here(env, task.target.robust, count)

    def begun(fresh: Sequence[Fresh]) -> list[Episode]:
        """Episodes at their beginning; the simulators' states are stored at the end of a chunk."""
        first = players.ask("begin", [(one,) for one in fresh])
        return [
            _episode(None, obs.astype(dtype), one.acting, one.models, np.int32(0), dtype.type(0.0))
            for obs, one in zip(first, fresh, strict=True)
        ]

    def stored(episodes: Sequence[Episode], own: Mapping[str, Any]) -> Any:
        """What a checkpoint holds of them."""
        states = players.ask("pack", [()] * count)
        each = [dataclasses.replace(one, state=state) for one, state in zip(episodes, states, strict=True)]
        return each[0] if count == 1 else Several(jax.tree.map(lambda *leaves: np.stack(leaves), *each), own)

    def first(key: jax.Array, run: RunState) -> Any:
        """The first episodes of a run."""
        return stored(begun(freshly(key)), pieces.own(run.agent))

    def freshly(key: jax.Array, found: Found | None = None) -> list[Fresh]:
        keys = [key] if count == 1 else list(jax.random.split(key, count))
        return [_on_host(pieces.fresh(one, found)) for one in keys]

    def init(key: jax.Array, belief: Any = None) -> RunState:
        weights_key, episode_key, steps_key = jax.random.split(key, 3)
        run = pieces.start(weights_key, steps_key, belief)
        live.steps = 0
        return dataclasses.replace(run, episode=first(episode_key, run))

    def shapes() -> RunState:
        key = jax.random.key(0)
        run = jax.eval_shape(pieces.start, key, key, None)
        episode = stored(begun(freshly(key)), jax.eval_shape(pieces.own, run.agent))
        live.steps = -1
        return dataclasses.replace(
            run, episode=jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), episode)
        )

    def continued(run: RunState) -> list[Episode]:
        """The episodes under way. Simulations that can't be put where they were begin others."""
        kept = _on_host(run.episode)
        episodes = [kept] if count == 1 else [_at(kept.each, i) for i in range(count)]
        if all(was_read(one.state) for one in episodes):
            there = [Fresh(one.acting, one.models, 0) for one in episodes]
            states = [(one.state, fresh, int(one.step)) for one, fresh in zip(episodes, there, strict=True)]
            players.ask("put", states)
        elif live.steps != int(run.steps):
            key = jax.random.wrap_key_data(jnp.asarray(run.key))
            return begun(freshly(jax.random.fold_in(key, 2**31 - 1 - int(run.steps)), run.found))
        return episodes

    def advance(states: RunState, index: int) -> tuple[RunState, Log]:
        run = _at(states, 0)
        each = continued(run)
        draws, fresh = pieces.draw(run.key, index, run.found)
        fresh = _on_host(fresh)
        carry, actions = pieces.begin(run, draws, np.stack([one.obs for one in each]), index)
        episodes, steps, snapshots = int(run.episodes), int(run.steps), np.array(run.snapshots)
        begun_at = steps - index * length  # as in `pieces.begin`
        ended, earned, failed = np.zeros(length, bool), np.zeros(length, dtype), np.zeros(length, int)
        since = episodes  # the last moment of a snapshot
        live.steps = -1
        for k in range(begun_at, length, count):
            if not task.budget.lasts(episodes, steps):
                break
            chosen, following = np.asarray(actions), [fresh_at(fresh, k + i) for i in range(count)]
            moved = players.ask("play", list(zip(chosen, following, strict=True)))
            for i, one in enumerate(moved):
                if not task.budget.lasts(episodes, steps):  # nor does the learner see the rest
                    break
                each[i], earned[k + i] = _after(each[i], one, following[i], dtype)
                ended[k + i], failed[k + i] = one.ended, one.failed
                episodes, steps = episodes + one.ended, steps + 1
            rows = rows_of(moved, dtype)
            carry, actions = (pieces.learn if (k + count) % every == 0 else pieces.observe)(carry, draws, rows)
            over = not task.budget.lasts(episodes, steps)
            if task.snapshots and (over or (k + count) // segment > k // segment):
                due = range(since // task.snapshot_every, min(episodes // task.snapshot_every, task.snapshots))
                for place in due:
                    snapshots[place] = np.asarray(pieces.weights(carry))
                since = episodes
        live.steps = steps
        last = pieces.unpack(_on_host(carry))
        counters: dict[str, Any] = dict(episodes=np.int32(episodes), steps=np.int32(steps), snapshots=snapshots)
        after = dataclasses.replace(run, agent=last.agent, episode=stored(each, last.own), held=last.held, **counters)
        ends = every * np.arange(1, rounds + 1)
        learned = (index * length + ends > plays.warm_up) & (begun_at < ends) & (ends <= steps - index * length)
        updates = rounds * plays.updates_per_round
        fit = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(updates), last.fits)
        played = (ended.reshape(rounds, every), earned.reshape(rounds, every))
        lost = np.array([(failed > 0).sum(), failed.sum()])
        log = Log(*_stacked((*played, np.repeat(learned, plays.updates_per_round), fit, lost)))
        return _stacked(after), log

    def close() -> None:
        players.close()
        live.steps = -1

    return Program(learner, init, shapes, advance, lambda states: np.asarray(states.steps) // length, close)


def _after(episode: Episode, moved: Moved, fresh: Fresh, dtype: np.dtype[Any]) -> tuple[Episode, Any]:
    """The episode under way after a step, and the return of the one that the step was in."""
    obs, earned = moved.obs.astype(dtype), dtype.type(episode.earned + dtype.type(moved.earned))
    if moved.ended:
        return _episode(None, obs, fresh.acting, fresh.models, np.int32(0), dtype.type(0.0)), earned
    return _episode(None, obs, episode.acting, episode.models, np.int32(episode.step + 1), earned), earned


class _Pieces(NamedTuple):
    """The jitted functions of a run.

    Attributes:
      start: `(weights_key, steps_key, belief) -> RunState`, without an episode.
      fresh: `(key, found) -> _Fresh`.
      draw: `(key_data, index, found) -> (draws, _Fresh)`, all random numbers of a chunk, those of the learner packed.
      begin: `(run, draws, obs [N, D], index) -> (carry, actions)`, the first actions of a chunk; the carry is packed.
      observe: `(carry, draws, rows [N, …]) -> (carry, actions)`, after a step of each simulator.
      learn: likewise, after the last step of a round, or of several.
      own: `agent -> dict`, the fields of its state that each of several simulators has, with a first axis of those.
      unpack: `carry -> _Carry`, of numpy's arrays too.
      weights: `carry -> [n]`, the mean.
    """

    start: Callable[..., RunState]
    fresh: Callable[[jax.Array, Found | None], Fresh]
    draw: Callable[..., tuple[_Packed, Fresh]]
    begin: Callable[..., tuple[_Packed, jax.Array]]
    observe: Callable[..., tuple[_Packed, jax.Array]]
    learn: Callable[..., tuple[_Packed, jax.Array]]
    own: Callable[[Any], dict[str, jax.Array]]
    unpack: Callable[[_Packed], _Carry]
    weights: Callable[[_Packed], jax.Array]


def _make_pieces(task: Task, learner: Learner, plays: PlaysSteps, count: int) -> _Pieces:
    every, rounds = plays.steps_per_round, plays.rounds_per_chunk
    observations = len(task.env.observation_scale)
    names = plays.per_episode if count > 1 else ()

    def fresh(key: jax.Array, found: Found | None) -> Fresh:
        acting, models, reset_key = draw_models(task, key, found)
        return Fresh(acting, models, jax.random.bits(reset_key, (), "uint32"))

    def draw(key_data: jax.Array, index: jax.Array, found: Found | None) -> tuple[_Packed, Fresh]:
        key, first = jax.random.wrap_key_data(key_data), index * (rounds * every)

        def one(t: jax.Array) -> tuple[_Packed, Fresh]:
            agent_key, _, reset_key = jax.random.split(jax.random.fold_in(key, t), 3)
            return numbers.pack(learner.draw(agent_key, ())), fresh(reset_key, found)

        return jax.vmap(one)(first + jnp.arange(rounds * every))

    def drawn_at(draws: _Packed, k: jax.Array) -> Any:
        """The random numbers of the simulators' steps, with a first axis of simulators."""
        return jax.vmap(numbers.unpack)([jax.lax.dynamic_slice_in_dim(array, k, count) for array in draws])

    def own(agent: Any) -> dict[str, jax.Array]:
        return {name: jnp.stack([getattr(agent, name)] * count) for name in names}

    def acted(carry: _Carry, draws: _Packed) -> tuple[_Carry, jax.Array]:
        def act(own: Mapping[str, jax.Array], drawn: Any, obs: jax.Array, i: Any) -> jax.Array:
            clock = clock_of(task, dataclasses.replace(carry, steps=carry.steps + i), carry.t + i)
            return learner.act(_with_own(carry.agent, own), drawn, obs, clock)[0]

        drawn = drawn_at(draws, carry.k)
        if count == 1:
            action = act({}, _at(drawn, 0), carry.obs[0], 0)[None]
        else:
            action = jax.vmap(act)(carry.own, drawn, carry.obs, jnp.arange(count))
        return dataclasses.replace(carry, action=action), action

    def begun(run: RunState, draws: _Packed, obs: jax.Array, index: jax.Array) -> tuple[_Carry, jax.Array]:
        first = jnp.int32(index * (rounds * every))
        drawn = _at(drawn_at(draws, jnp.int32(0)), 0)
        fit = jax.eval_shape(learner.learn, run.agent, drawn, clock_of(task, run, first), jnp.bool_(True), None)[1]
        carry = _Carry(
            agent=run.agent,
            obs=obs,
            action=jnp.int32(0),
            own=getattr(run.episode, "own", None) or own(run.agent),
            t=run.steps,
            k=run.steps - first,  # 0, unless the run had ended within this chunk and was given a longer budget
            episodes=run.episodes,
            steps=run.steps,
            held=run.held,
            fits=jax.tree.map(lambda leaf: jnp.zeros((rounds, *leaf.shape), leaf.dtype), fit),
        )
        return acted(carry, draws)

    def observed(carry: _Carry, seen: _Seen) -> tuple[_Carry, tuple[Any, Any, jax.Array], _Seen]:
        """A simulator's step; what an update after it is given; and what the simulator's next step begins with."""
        models = (len(seen.row) - 1 - observations) // (observations + 2)
        sizes = np.cumsum([1, observations, models, models])
        flag, following, reward, terminated, outcomes = jnp.split(seen.row, sizes)
        clock = clock_of(task, carry, carry.t)
        # A single simulator is never asked for a step after the budget.
        active = jnp.bool_(True) if count == 1 else task.budget.lasts(carry.episodes, carry.steps)
        ended = (flag[0] != 0) & active
        transition = Transition(
            obs=seen.obs,
            action=seen.action,
            reward=reward,
            next_obs=outcomes.reshape(models, observations),
            terminated=terminated != 0,
        )
        agent = plays.observe(_with_own(carry.agent, seen.own), transition, seen.drawn, clock, ended, active)
        after = dataclasses.replace(
            carry,
            agent=agent,
            t=carry.t + 1,
            k=carry.k + 1,
            episodes=carry.episodes + ended,
            steps=carry.steps + active,
        )
        kept = seen._replace(obs=following, own={name: getattr(agent, name) for name in names})
        return after, (seen.drawn, clock, active), kept

    def updated(carry: _Carry, given: tuple[Any, Any, jax.Array]) -> _Carry:
        agent, fit = learner.learn(carry.agent, *given, None)
        place = (carry.k - 1) // every
        return dataclasses.replace(
            carry, agent=agent, fits=jax.tree.map(lambda all, one: all.at[place].set(one), carry.fits, fit)
        )

    def stepped(carry: _Carry, draws: _Packed, rows: jax.Array, learns: bool) -> tuple[_Carry, jax.Array]:
        def played(carry: _Carry, seen: _Seen) -> tuple[_Carry, _Seen]:
            """Some simulators' steps, then an update."""
            kept = []
            for i in range(min(count, every)):
                carry, given, after = observed(carry, _at(seen, i))
                kept.append(after)
            return updated(carry, given) if learns else carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)

        seen = _Seen(carry.obs, carry.action, drawn_at(draws, carry.k), carry.own, rows)
        if count <= every:
            carry, kept = played(carry, seen)
        else:  # several rounds
            rounded = jax.tree.map(lambda leaf: leaf.reshape(count // every, every, *leaf.shape[1:]), seen)
            carry, kept = jax.lax.scan(played, carry, rounded)
            kept = jax.tree.map(lambda leaf: leaf.reshape(count, *leaf.shape[2:]), kept)
        return acted(dataclasses.replace(carry, obs=kept.obs, own=kept.own), draws)

    def state(weights_key: jax.Array, steps_key: jax.Array, belief: Any) -> RunState:
        return start(task, learner, (weights_key, steps_key), belief, None)

    key = jax.random.key(0)
    numbers = make_packing(jax.eval_shape(lambda: learner.draw(key, ())))
    run, blank = jax.eval_shape(state, key, key, None), jnp.zeros((count, observations))
    packing = make_packing(jax.eval_shape(begun, run, jax.eval_shape(draw, run.key, 0, run.found)[0], blank, 0)[0])

    def packed(function: Callable[..., tuple[_Carry, jax.Array]]) -> Callable[..., tuple[_Packed, jax.Array]]:
        def call(*arguments: Any) -> tuple[_Packed, jax.Array]:
            carry, action = function(*arguments)
            return packing.pack(carry), action

        return call

    def step(learns: bool) -> Any:
        call = packed(lambda carry, draws, rows: stepped(packing.unpack(carry), draws, rows, learns))
        return jitted(call, donate_argnums=0)

    def jitted(function: Callable[..., Any], **options: Any) -> Any:
        return jax.jit(function, compiler_options=_COMPILER_OPTIONS, **options)

    return _Pieces(
        start=jitted(state),
        fresh=jitted(fresh),
        draw=jitted(draw),
        begin=jitted(packed(begun)),
        observe=step(False),
        learn=step(True),
        own=jitted(own),
        unpack=packing.unpack,
        weights=jitted(lambda carry: learner.view.mean(packing.unpack(carry).agent.belief)),
    )


def _episode(*fields: Any) -> Episode:
    """An episode of numpy's arrays."""
    return Episode(*fields)


def _with_own(agent: Any, own: Mapping[str, jax.Array]) -> Any:
    """A learner's state with what belongs to one of several episodes."""
    return dataclasses.replace(agent, **own) if own else agent


def _at(tree: T, i: int) -> T:
    """The i-th of what has a first axis."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def _on_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def _stacked(tree: Any) -> Any:
    """With a first axis, of one seed."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)
