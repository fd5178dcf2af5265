"""What to compare learned policies with: chance, one linear policy, and a controller that knows the physics.

All of them play by the same rules as a learned policy, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments import Environment
from deeprok.evaluation.play import play_episodes
from deeprok.evaluation.policies import Policy, PolicyOf
from deeprok.uncertainty.models import grid_models

#: Seed of the random numbers that references are chosen by; those they are reported with are others.
_SEARCH_SEED = 20050501


@pytree_dataclass
class Controller:
    """A linear policy: of a gain of its own, or designed for the physics it meets."""

    gain: jax.Array  # [D] push right where gain · obs > 0
    designed: jax.Array  # [] bool: use the gain of the linear-quadratic regulator for these parameters instead


def make_linear_policy(env: Environment) -> PolicyOf:
    """Linear policies as a `PolicyOf` whose weights are a `Controller`; one program plays them all.

    Chance is any of them with ε = 1.
    """

    def policy_of(controller: Controller, params: Any) -> Policy:
        gain = jnp.where(controller.designed, regulator(env, params), controller.gain)
        return lambda obs: (obs @ gain > 0).astype(jnp.int32)

    return policy_of


# Position and angle count, velocities don't. Tenfold changes of each cost move the success over the
# paper's grid by less than one per cent.
_STATE_COST = (0.01, 0.0, 10.0, 0.0)
_ACTION_COST = 1.0


def regulator(env: Environment, params: Any) -> jax.Array:
    """[D] the gain of the linear-quadratic regulator for these parameters: push right where gain · obs > 0.

    There are two pushes only, so of u = −k · s the sign is kept.
    """
    return -lqr_gain(linearise(env, params), jnp.array(_STATE_COST), _ACTION_COST)


def search_linear(
    env: Environment,
    axes: Mapping[str, np.ndarray],
    epsilon: float,
    population: int = 64,
    rounds: int = 20,
    episodes: int = 8,
) -> np.ndarray:
    """The best single linear policy for a grid, by the cross-entropy method.

    Args:
      env: an environment of two actions.
      axes: the grid, name -> values.
      epsilon: probability of a random action.
      population: policies tried in a round; the best eighth gives the next round's mean and spread.
      rounds: how often.
      episodes: episodes in each cell for each policy, fresh ones in each round.

    Returns:
      [D] the weights, of length 1.
    """
    models = {name: jnp.repeat(jnp.asarray(values, float), episodes) for name, values in grid_models(axes).items()}
    scale = 1.0 / np.asarray(env.observation_scale)

    @jax.jit
    def returns(policies: jax.Array, key: jax.Array) -> jax.Array:
        def one(weights: jax.Array) -> jax.Array:
            return jnp.mean(play_episodes(env, lambda obs: (obs @ weights > 0).astype(int), models, key, epsilon))

        return jax.lax.map(one, policies)

    def score(tried: np.ndarray, seed: int) -> np.ndarray:
        return np.asarray(returns(jnp.asarray(tried[0] * scale, float), jax.random.key(seed)))[None]

    weights = cross_entropy(score, np.zeros((1, len(scale))), 1.0, population, rounds)[0] * scale
    return weights / np.linalg.norm(weights)


def cross_entropy(
    score: Callable[[np.ndarray, int], np.ndarray],
    start: np.ndarray,
    spread: float,
    population: int = 64,
    rounds: int = 20,
) -> np.ndarray:
    """The best directions by the cross-entropy method: several searches, side by side.

    R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization",
    Methodology and Computing in Applied Probability, 1999.

    Args:
      score: `(tried [G, P, D], seed) -> [G, P]`, what is to be large.
      start: [G, D] the mean of each search's first round.
      spread: the standard deviation of its coordinates.
      population: P, directions of length 1 tried in a round; the best eighth gives the next round's mean and spread.
      rounds: how often.

    Returns:
      [G, D] the last means.
    """
    rng = np.random.default_rng(_SEARCH_SEED)
    mean, deviation = start, np.full_like(start, spread)
    for _ in range(rounds):
        tried = mean[:, None] + deviation[:, None] * rng.standard_normal((len(mean), population, mean.shape[1]))
        tried /= np.linalg.norm(tried, axis=2, keepdims=True)  # the length of the weights means nothing
        order = np.argsort(-score(tried, int(rng.integers(2**31))), axis=1)
        best = np.take_along_axis(tried, order[:, : population // 8, None], axis=1)
        mean, deviation = best.mean(axis=1), best.std(axis=1)
    return mean


class Linearisation(NamedTuple):
    """s' ≈ A s + B u near the upright position, with u = 1 a push right and u = −1 one left."""

    A: jax.Array  # [D, D]
    B: jax.Array  # [D]


def linearise(env: Environment, params: Any) -> Linearisation:
    """The linear part of an environment of two opposite actions, whose state is its observation, at state 0."""
    origin = jnp.zeros(len(env.observation_scale))
    key = jax.random.key(0)

    def following(state: jax.Array, action: int) -> jax.Array:
        return env.step(key, state, jnp.int32(action), params).state

    # The two pushes are opposite, so their mean is the motion without a push.
    A = (jax.jacfwd(following)(origin, 0) + jax.jacfwd(following)(origin, 1)) / 2
    B = (following(origin, 1) - following(origin, 0)) / 2
    return Linearisation(A, B)


def lqr_gain(linear: Linearisation, state_cost: jax.Array, action_cost: float, sweeps: int = 2000) -> jax.Array:
    """The gain k of the linear-quadratic regulator u = −k · s, by the Riccati recursion to its fixed point.

    Args:
      linear: the system.
      state_cost: [D] cost of each coordinate's square.
      action_cost: cost of the action's square.
      sweeps: sweeps of the recursion.
    """
    A, B = linear

    def gain(cost_to_go: jax.Array) -> jax.Array:
        return (B @ cost_to_go @ A) / (action_cost + B @ cost_to_go @ B)

    def sweep(_: int, cost_to_go: jax.Array) -> jax.Array:
        k = gain(cost_to_go)
        left = A - jnp.outer(B, k)
        new = jnp.diag(state_cost) + left.T @ cost_to_go @ left + action_cost * jnp.outer(k, k)
        return (new + new.T) / 2

    return gain(jax.lax.fori_loop(0, sweeps, sweep, jnp.diag(state_cost)))
