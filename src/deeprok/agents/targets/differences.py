"""Temporal differences as observations, for filters that observe rewards: Kalman Temporal Differences.

There is no target network: the reward is observed, and the weights predict it as a difference of values.

M. Geist and O. Pietquin, "Kalman temporal differences", JAIR 39, 2010, arXiv:1406.3270.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents.network import Network
from deeprok.agents.targets.base import (
    AMBIGUITY_PRESETS,
    AmbiguitySettings,
    InnerProblem,
    Target,
    TargetPart,
    check_ambiguity,
    level_schedule,
    search_ambiguity,
)
from deeprok.agents.targets.bootstrapped import max_value, robust_target
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Transition
from deeprok.uncertainty import SETS
from deeprok.uncertainty.sets import Level

#: `(theta, obs) -> V(s)`, a number.
Value = Callable[[jax.Array, jax.Array], jax.Array]
#: `(theta, obs) -> Q(s, ·)`, [A].
ActionValues = Callable[[jax.Array, jax.Array], jax.Array]


@pytree_dataclass
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
    level: Level = 0.0,
) -> Difference:
    """Robust KTD-Q: 0 is Q(s, a) − worst_m[r_m + γ max Q(s'_m, ·)] over the M models of a transition.

    Args:
      q: the action values.
      worst_case: the inner problem, from `deeprok.uncertainty`.
      level: the size of its set.
    """

    def h(theta: jax.Array, x: Transition, discount: float) -> jax.Array:
        next_value = jax.vmap(lambda obs: max_value(q(theta, obs)))(x.next_obs)
        target = robust_target(x.reward, x.terminated, next_value, discount, worst_case, level)
        return q(theta, x.obs)[x.action] - target

    return Difference(h, lambda x: jnp.zeros((), x.reward.dtype), on_policy=False)


@dataclass(frozen=True)
class DifferenceSettings:
    """KTD-Q's target has no settings."""


def _target(difference: Callable[[Level], Difference], discount: float, **rest: Any) -> Target:
    def observe(theta: jax.Array, target_theta: jax.Array, batch: Transition, level: Level) -> Any:
        chosen = difference(level)
        return lambda theta, x: chosen.h(theta, x, discount), batch, jax.vmap(chosen.y)(batch)

    return Target(observe, **rest)


def _difference(settings: DifferenceSettings, network: Network, discount: float) -> Target:
    return _target(lambda level: q_difference(network.apply), discount)


def _robust_difference(settings: AmbiguitySettings, network: Network, discount: float) -> Target:
    worst_case = SETS[settings.robust_set].worst_case
    return _target(
        lambda level: robust_difference(network.apply, worst_case, level),
        discount,
        level=level_schedule(settings),
        follows_gain=settings.confidence == "spread",
        worst_case=worst_case,
    )


DIFFERENCE = TargetPart(
    settings=DifferenceSettings,
    presets={"paper": DifferenceSettings(), "tuned": DifferenceSettings()},
    make=_difference,
    robust=False,
)

ROBUST_DIFFERENCE = TargetPart(
    settings=AmbiguitySettings,
    presets={preset: AmbiguitySettings(**chosen) for preset, chosen in AMBIGUITY_PRESETS.items()},
    make=_robust_difference,
    robust=True,
    check=check_ambiguity,
    search=search_ambiguity,
)
