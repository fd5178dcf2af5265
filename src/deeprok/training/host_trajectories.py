"""Training in stateful simulators by learners that play whole trajectories, such as policy gradients.

Beginning and updating are those of `deeprok.training.scan`, with the same random numbers. Between them the trajectories
of a chunk are played in simulators of this process. None is under way when a chunk ends, so that no simulator's state
is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import Learner, PlaysTrajectories, Task
from deeprok.environments.host import HostEnvironment, model_of
from deeprok.environments.host_rollout import Start, make_host_rollout
from deeprok.environments.rollout import Step
from deeprok.training.scan import COMPILER_OPTIONS, Batch, Log, Program, RunState, clock_of, trajectory_parts


def make_trajectory_program(task: Task, learner: Learner, plays: PlaysTrajectories) -> Program:
    """Builds the functions that a run on a stateful simulator consists of, for one seed at a time.

    Args:
      task: what the learner was made for.
      learner: the learner.
      plays: how it plays.
    """
    env = task.env
    assert isinstance(env, HostEnvironment)
    rollout, parts = make_host_rollout(env), trajectory_parts(task, learner, plays)
    count, shape = plays.trajectories, (env.horizon, plays.trajectories)

    def begin(run: RunState, index: jax.Array) -> tuple[Batch, jax.Array, Any]:
        """What is to be played, the seeds of the simulators' resets, and the noise of all actions."""
        batch = parts.begin(run, index)
        reset_key, noise_key, _ = jax.random.split(batch.key, 3)  # as `play_trajectories` has them
        seeds = jax.vmap(lambda key: jax.random.bits(key, (), "uint32"))(jax.random.split(reset_key, count))
        return batch, seeds, learner.draw(noise_key, shape)

    def act(state: Any, noise: Any, obs: jax.Array, run: RunState, index: jax.Array) -> tuple[jax.Array, Any]:
        return learner.act(state, noise, obs, clock_of(task, run, index))

    def jitted(function: Callable[..., Any]) -> Any:
        return jax.jit(function, compiler_options=COMPILER_OPTIONS)

    begun, acted, finished = jitted(begin), jitted(act), jitted(parts.finish)

    def played(run: RunState, index: int, batch: Batch, seeds: np.ndarray, noise: Any) -> tuple[Step, list[int]]:
        """The steps of all trajectories, and how many simulations failed in each step in which some did."""
        models = {name: np.asarray(values) for name, values in batch.models.items()}
        starts = [
            Start(int(seed), model_of(env, {name: values[i] for name, values in models.items()}))
            for i, seed in enumerate(seeds)
        ]
        dtype = jnp.zeros(0).dtype
        obs, next_obs = (np.zeros((*shape, len(env.observation_scale)), dtype) for _ in range(2))
        # After the end of a trajectory all are zeros: steps that were not taken have no share in an update.
        reward, alive, failed = np.zeros(shape, dtype), np.zeros(shape, bool), list[int]()
        notes: Any = None

        def choose(episodes: np.ndarray, steps: np.ndarray, seen: np.ndarray) -> np.ndarray:
            nonlocal notes
            given = jax.tree.map(lambda leaf: leaf[steps, episodes], noise)
            chosen = jax.tree.map(np.asarray, acted(batch.state, given, seen.astype(dtype), run, index))
            if notes is None:
                notes = jax.tree.map(lambda leaf: np.zeros((*shape, *leaf.shape[1:]), leaf.dtype), chosen)
            playing = episodes >= 0
            place = steps[playing], episodes[playing]
            obs[place] = seen[playing]
            for all_of_it, now in zip(jax.tree.leaves(notes), jax.tree.leaves(chosen), strict=True):
                all_of_it[place] = now[playing]
            actions: np.ndarray = chosen[0]
            return actions

        for taken in rollout(starts, choose):
            place = taken.step, taken.episode
            reward[place], alive[place], next_obs[place] = taken.outcome.reward, True, taken.outcome.obs
            if taken.failed:
                failed.append(taken.failed)
        return _step(None, obs, *notes, reward, alive, next_obs), failed

    def advance(states: RunState, index: int) -> tuple[RunState, Log]:
        run = jax.tree.map(lambda leaf: leaf[0], states)
        batch, seeds, noise = begun(run, index)
        steps, failed = played(run, index, batch, np.asarray(seeds), jax.tree.map(np.asarray, noise))
        after, log = finished(run, index, batch, steps)
        log = log._replace(failed=np.array([len(failed), sum(failed)]))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (after, log))

    return Program(
        learner=learner,
        init=jax.jit(parts.init),
        shapes=lambda: jax.eval_shape(parts.init, jax.random.key(0)),
        advance=advance,
        chunks_done=parts.chunks_done,
    )


def _step(*fields: Any) -> Step:
    """Steps of numpy's arrays."""
    return Step(*fields)
