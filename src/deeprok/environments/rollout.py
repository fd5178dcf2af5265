"""Playing: the one loop that takes a policy through an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Environment, Model, with_model

#: `(t, obs [E, D]) -> (action, note)`: the actions [E] or [E, A] at step t, and whatever the caller wants to collect.
Act = Callable[[jax.Array, jax.Array], tuple[jax.Array, Any]]


@pytree_dataclass
class Step:
    """A step of E episodes side by side."""

    state: Any  # [E] before the action
    obs: jax.Array  # [E, D] before the action
    action: jax.Array  # [E], or [E, A] numbers
    note: Any  # what `act` noted
    reward: jax.Array  # [E], 0 after an episode's end
    alive: jax.Array  # [E] bool, whether the step was taken
    next_obs: jax.Array  # [E, D]


def rollout(
    env: Environment,
    act: Act,
    params: Any,
    start: tuple[Any, jax.Array],
    steps: int,
    keys: Callable[[jax.Array], jax.Array],
    collect: Callable[[Step], Any] | None = None,
    discount: float = 1.0,
) -> tuple[jax.Array, Any]:
    """Plays E episodes side by side, each until it terminates or time is up.

    Args:
      env: the environment.
      act: the policy.
      params: the parameters of each episode, with a first axis E.
      start: state and observation of each episode, as `env.reset` gives them.
      steps: steps after which episodes are truncated.
      keys: `t -> [E]`, the environment's random keys at step t.
      collect: what to store of each step; if None nothing is, and the loop ends with the last episode.
      discount: γ of the returns.

    Returns:
      The returns [E] and what was collected, with a first axis of steps.
    """
    state, obs = start
    episodes = obs.shape[0]

    def step(carry: Any, t: jax.Array) -> tuple[Any, Any]:
        state, obs, alive, earned, worth = carry
        action, note = act(t, obs)
        outcome = jax.vmap(env.step)(keys(t), state, action, params)
        reward = jnp.where(alive, outcome.reward, 0.0)
        taken = Step(state, obs, action, note, reward, alive, outcome.obs)
        earned = earned + (reward if discount == 1.0 else worth * reward)
        following = (outcome.state, outcome.obs, alive & ~outcome.terminated, earned, discount * worth)
        return following, collect(taken) if collect else None

    first = (state, obs, jnp.ones(episodes, bool), jnp.zeros(episodes, obs.dtype), jnp.ones((), obs.dtype))
    if collect:
        (*_, earned, _), collected = jax.lax.scan(step, first, jnp.arange(steps))
        return earned, collected

    def going(carry: Any) -> jax.Array:
        t, (_, _, alive, _, _) = carry
        return (t < steps) & jnp.any(alive)

    _, (*_, earned, _) = jax.lax.while_loop(
        going, lambda carry: (carry[0] + 1, step(carry[1], carry[0])[0]), (jnp.int32(0), first)
    )
    return earned, None


def begin_episodes(env: Environment, models: Model, key: jax.Array) -> tuple[Any, tuple[Any, jax.Array]]:
    """The parameters and the start of an episode on each model.

    Args:
      env: the environment.
      models: name -> [E].
      key: decides the initial states.
    """
    episodes = len(next(iter(models.values())))
    params = jax.vmap(lambda model: with_model(env.nominal, model))(models)
    return params, jax.vmap(env.reset)(jax.random.split(key, episodes), params)


def play_trajectories(
    env: Environment,
    act: Callable[[Any, jax.Array], tuple[jax.Array, Any]],
    models: Model,
    key: jax.Array,
    draw: Callable[[jax.Array, tuple[int, ...]], Any],
) -> Step:
    """A whole trajectory on each model; every leaf has axes of steps and of trajectories.

    Args:
      env: the environment.
      act: `(noise, obs [N, D]) -> (action, note)`.
      models: name -> [N].
      key: decides the initial states, the noise of `act` and that of the environment.
      draw: `(key, shape) -> noise`, the random numbers of `act` for steps of that shape.
    """
    reset_key, noise_key, env_key = jax.random.split(key, 3)
    params, start = begin_episodes(env, models, reset_key)
    shape = (env.horizon, start[1].shape[0])
    noise, keys = draw(noise_key, shape), jax.random.split(env_key, shape)

    def at(t: jax.Array, obs: jax.Array) -> tuple[jax.Array, Any]:
        return act(jax.tree.map(lambda leaf: leaf[t], noise), obs)

    played: Step = rollout(env, at, params, start, env.horizon, lambda t: keys[t], collect=lambda step: step)[1]
    return played
