"""Playing policies on lists of models, with the same random numbers on each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.environments import Environment, with_model
from deeprok.environments.base import AnyEnvironment, Model
from deeprok.environments.host import HostEnvironment
from deeprok.environments.rollout import Step, begin_episodes, rollout
from deeprok.evaluation.host_play import host_player
from deeprok.evaluation.policies import Policy, PolicyOf
from deeprok.uncertainty.models import grid_models


def play_episodes(
    env: Environment, act: Policy, models: Model, key: jax.Array, epsilon: float | jax.Array
) -> jax.Array:
    """Plays one episode on each model, all at once.

    Args:
      env: the environment.
      act: the policy.
      models: name -> [E].
      key: decides the initial states, the exploration and the environment's noise.
      epsilon: probability of a random action.

    Returns:
      [E] the returns.
    """
    return watch_episodes(env, act, models, key, epsilon)[0]


def watch_episodes(
    env: Environment,
    act: Policy,
    models: Model,
    key: jax.Array,
    epsilon: float | jax.Array,
    collect: Callable[[Step], Any] | None = None,
) -> tuple[jax.Array, Any]:
    """Plays the episodes of `play_episodes`, and collects what happens in them.

    Args:
      env: as for `play_episodes`, and so are the next four.
      act: the policy.
      models: name -> [E].
      key: a random key. The random numbers of a step are the same in an environment with a longer horizon.
      epsilon: probability of a random action.
      collect: what to store of each step, as for `rollout`.

    Returns:
      The returns [E] and what was collected.
    """
    reset_key, explore_key, env_key = jax.random.split(key, 3)
    params, start = begin_episodes(env, models, reset_key)
    episodes = start[1].shape[0]
    explore = jax.random.uniform(explore_key, (env.horizon, episodes, env.actions.draws))

    def choose(t: jax.Array, obs: jax.Array) -> tuple[jax.Array, None]:
        return jax.vmap(lambda draw, greedy: env.actions.explore(draw, epsilon, greedy))(explore[t], act(obs)), None

    def keys(t: jax.Array) -> jax.Array:
        return jax.random.split(jax.random.fold_in(env_key, t), episodes)

    return rollout(env, choose, params, start, env.horizon, keys, collect)


def cell_player(env: AnyEnvironment, policy_of: PolicyOf, episodes: int) -> Callable[..., np.ndarray]:
    """Makes a function that plays a policy on any list of models, with the same random numbers on each.

    Args:
      env: the environment.
      policy_of: what weights do on a model.
      episodes: episodes on each model.

    Returns:
      `play(weights, models, epsilon, seed=0, advance=None) -> returns [models, episodes]`, compiled
      once for all calls, with `models` name -> values, `epsilon` the probability of a random
      action, and `advance` called with the fraction of the work done since its last call.
    """
    if isinstance(env, HostEnvironment):
        return host_player(env, policy_of, episodes)

    @jax.jit
    def play_some(weights: Any, models: Model, key: jax.Array, epsilon: jax.Array) -> jax.Array:
        def cell(model: Model) -> jax.Array:
            same = {name: jnp.broadcast_to(value, (episodes,)) for name, value in model.items()}
            act = policy_of(weights, with_model(env.nominal, model))
            return play_episodes(env, act, same, key, epsilon)

        return jax.vmap(cell)(models)

    def play(
        weights: Any,
        models: Mapping[str, np.ndarray],
        epsilon: float,
        seed: int = 0,
        advance: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        count = len(next(iter(models.values())))
        # A few models at a time: enough to fill the machine, and short enough to show progress.
        groups = math.ceil(count / max(1, 4096 // episodes))
        size = math.ceil(count / groups)  # alike, so that filling up the last one wastes little
        starts = range(0, count, size)
        rows = []
        for start in starts:
            index = np.arange(start, start + size) % count  # the last group is filled up
            some = {name: jnp.asarray(values[index], float) for name, values in models.items()}
            rows.append(np.asarray(play_some(weights, some, jax.random.key(seed), jnp.asarray(epsilon, float))))
            if advance:
                advance(1 / len(starts))
        return np.concatenate(rows)[:count].astype(float)

    return play


def nominal_models(env: AnyEnvironment, count: int) -> dict[str, np.ndarray]:
    """The nominal model so many times: name -> [count], of every parameter."""
    return {f.name: np.full(count, float(getattr(env.nominal, f.name))) for f in dataclasses.fields(env.nominal)}


def grid_cells(env: AnyEnvironment, axes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The models of a grid's cells and, last, the nominal one.

    Every parameter is given, so that one program plays grids that vary different ones.
    """
    varied = grid_models(axes)
    count = len(next(iter(varied.values())))
    nominal = {f.name: getattr(env.nominal, f.name) for f in dataclasses.fields(env.nominal)}
    return {name: np.append(varied.get(name, np.full(count, value)), value) for name, value in nominal.items()}
