"""An environment in which nature chooses between models in every step: the one whose values robust targets learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.agents.targets.base import InnerProblem
from deeprok.agents.targets.bootstrapped import outcome_values
from deeprok.environments.base import Environment, Outcome
from deeprok.uncertainty.sets import Level


def against_nature(
    env: Environment, value: Callable[[jax.Array], jax.Array], discount: float, worst_case: InnerProblem, level: Level
) -> Environment:
    """The environment whose parameters are those of M models, stacked, of which nature draws one in every step.

    It draws from the distribution that attains the worst case of r + γ V(s'). With the V of a policy these are the
    choices that are worst for it; with another V they are worst by that V, and the policy may earn more than its
    robust value.

    Args:
      env: the environment.
      value: V: observations [M, D] -> [M].
      discount: γ.
      worst_case: the inner problem.
      level: the size of its set.
    """

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        return env.reset(key, jax.tree.map(lambda leaf: leaf[0], params))

    def step(key: jax.Array, state: Any, action: jax.Array, params: Any) -> Outcome:
        env_key, nature_key = jax.random.split(key)
        outcomes = jax.vmap(env.step, (None, None, None, 0))(env_key, state, action, params)
        values = outcome_values(outcomes.reward, outcomes.terminated, value(outcomes.obs), discount)
        uniform = jnp.full(values.shape, 1.0 / len(values), values.dtype)
        chosen = jax.random.choice(nature_key, len(values), p=worst_case(uniform, values, level).distribution)
        return jax.tree.map(lambda leaf: leaf[chosen], outcomes)

    return env._replace(reset=reset, step=step)
