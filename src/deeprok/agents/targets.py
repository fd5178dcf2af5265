"""Targets: what Q(s, a) is regressed on, given what nature may do; and temporal differences as observations.

The functions are unbatched; `vmap` does the rest. Equation numbers are those of the Deep-RoK paper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.core.pytree import record
from deeprok.environments.base import Transition
from deeprok.uncertainty import WorstCase

#: `(theta, obs) -> V(s)`, a number.
Value = Callable[[jax.Array, jax.Array], jax.Array]
#: `(theta, obs) -> Q(s, ·)`, [A].
ActionValues = Callable[[jax.Array, jax.Array], jax.Array]
#: The inner problem of `deeprok.uncertainty`: `(p, values, level) -> WorstCase`.
InnerProblem = Callable[[jax.Array, jax.Array, float | jax.Array], WorstCase]


def max_value(q: jax.Array) -> jax.Array:
    """max Q(s', ·; θ') from the target network's values [A]."""
    return jnp.max(q)


def double_value(q: jax.Array, q_online: jax.Array) -> jax.Array:
    """The target network's value of the action that the online network prefers (van Hasselt, 2016)."""
    return q[jnp.argmax(q_online)]


def outcome_values(reward: jax.Array, terminated: jax.Array, next_value: jax.Array, discount: float) -> jax.Array:
    """r + γ (1 − terminated) V(s') of each outcome; all arrays [M]. Truncation does not enter."""
    return reward + discount * jnp.where(terminated, 0.0, next_value)


def label(
    reward: jax.Array,
    terminated: jax.Array,
    next_value: jax.Array,
    discount: float,
    worst_case: InnerProblem,
    level: float | jax.Array,
) -> jax.Array:
    """The robust label of Eq. 14; with M = 1 the nominal label of Eq. 4.

    Args:
      reward: [M] reward under each model. The paper's r(s, a) is the same for all.
      terminated: [M] whether each model's successor is terminal.
      next_value: [M] value of each model's successor.
      discount: γ.
      worst_case: the inner problem, from `deeprok.uncertainty`.
      level: the size of its set.
    """
    values = outcome_values(reward, terminated, next_value, discount)
    if values.shape == (1,):
        return values[0]  # one outcome leaves nature no choice, whatever the set
    uniform = jnp.full(values.shape, 1.0 / values.shape[0], values.dtype)
    return worst_case(uniform, values, level).value


# --- temporal differences, for filters that observe rewards ----------------------------------------------


@record
class SarsaTransition(Transition):
    """One step and the action taken after it."""

    next_action: jax.Array  # [] int32


class Difference(NamedTuple):
    """A temporal difference as an observation: what is observed, and what the weights predict it to be.

    Attributes:
      h: `(theta, transition, discount) -> []`, the observation function.
      y: `transition -> []`, what is observed.
      on_policy: whether it evaluates the policy that acts, which coloured noise presupposes.
    """

    h: Callable[[jax.Array, Any, float], jax.Array]
    y: Callable[[Any], jax.Array]
    on_policy: bool


def _reward(transition: Transition) -> jax.Array:
    return transition.reward[0]


def _future(transition: Transition, value: jax.Array, discount: float) -> jax.Array:
    return discount * jnp.where(transition.terminated[0], 0.0, value)


def v_difference(v: Value) -> Difference:
    """KTD-V: the reward is V(s) − γ V(s')."""

    def h(theta: jax.Array, x: Transition, discount: float) -> jax.Array:
        return v(theta, x.obs) - _future(x, v(theta, x.next_obs[0]), discount)

    return Difference(h, _reward, on_policy=True)


def sarsa_difference(q: ActionValues) -> Difference:
    """KTD-SARSA: the reward is Q(s, a) − γ Q(s', a'), of a `SarsaTransition`."""

    def h(theta: jax.Array, x: SarsaTransition, discount: float) -> jax.Array:
        return q(theta, x.obs)[x.action] - _future(x, q(theta, x.next_obs[0])[x.next_action], discount)

    return Difference(h, _reward, on_policy=True)


def q_difference(q: ActionValues) -> Difference:
    """KTD-Q: the reward is Q(s, a) − γ max Q(s', ·)."""

    def h(theta: jax.Array, x: Transition, discount: float) -> jax.Array:
        return q(theta, x.obs)[x.action] - _future(x, max_value(q(theta, x.next_obs[0])), discount)

    return Difference(h, _reward, on_policy=False)


def robust_difference(
    q: ActionValues,
    worst_case: InnerProblem,
    level: float | jax.Array = 0.0,
) -> Difference:
    """Robust KTD-Q: 0 is Q(s, a) − worst_m[r_m + γ max Q(s'_m, ·)] over the M models of a transition.

    Args:
      q: the action values.
      worst_case: the inner problem, from `deeprok.uncertainty`.
      level: the size of its set.
    """

    def h(theta: jax.Array, x: Transition, discount: float) -> jax.Array:
        next_value = jax.vmap(lambda obs: max_value(q(theta, obs)))(x.next_obs)
        target = label(x.reward, x.terminated, next_value, discount, worst_case, level)
        return q(theta, x.obs)[x.action] - target

    return Difference(h, lambda x: jnp.zeros((), x.reward.dtype), on_policy=False)
