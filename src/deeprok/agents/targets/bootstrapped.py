"""Bootstrapped targets: Q(s, a) is regressed on r + γ V(s'), or on its worst case over models.

The functions are unbatched; `vmap` does the rest. Equation numbers are those of the Deep-RoK paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.agents.network import Network
from deeprok.agents.targets.base import (
    AMBIGUITY_PRESETS,
    AmbiguitySettings,
    InnerProblem,
    Target,
    TargetPart,
    action_value,
    check_ambiguity,
    level_schedule,
    search_ambiguity,
)
from deeprok.core.fields import Count, Share, added
from deeprok.core.search import Range, Space
from deeprok.environments.base import Transition
from deeprok.estimators.base import Observation
from deeprok.uncertainty import SETS, WorstCase
from deeprok.uncertainty.sets import Level

#: `Target.backup`.
Backup = Callable[[Transition, jax.Array, Level], jax.Array]


def max_value(q: jax.Array) -> jax.Array:
    """max Q(s', ·; θ') from the target network's values [A]."""
    return jnp.max(q)


def double_value(q: jax.Array, q_online: jax.Array) -> jax.Array:
    """The target network's value of the action that the online network prefers (van Hasselt, 2016)."""
    return q[jnp.argmax(q_online)]


def outcome_values(reward: jax.Array, terminated: jax.Array, next_value: jax.Array, discount: float) -> jax.Array:
    """r + γ (1 − terminated) V(s') of each outcome; all arrays [M]. Truncation does not enter."""
    return reward + discount * jnp.where(terminated, 0.0, next_value)


def robust_target(
    reward: jax.Array,
    terminated: jax.Array,
    next_value: jax.Array,
    discount: float,
    worst_case: InnerProblem,
    level: Level,
) -> jax.Array:
    """The robust target of Eq. 14; with M = 1 the nominal target of Eq. 4.

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


@dataclass(frozen=True)
class BootstrapSettings:
    """Settings of a target that bootstraps from a target network."""

    double: bool = False
    """Double Q-learning: the online network chooses the successor's action, instead of the plain max."""
    target_period: Count = 1000
    """Environment steps between copies of the weights to the target network."""
    target_rate: Share = added(1.0)
    """How far the target network's weights move towards the learned ones each time; 1 copies them."""


@dataclass(frozen=True)
class WorstCaseSettings(AmbiguitySettings, BootstrapSettings):
    """Settings of the worst-case target."""


def _only_outcome(p: jax.Array, values: jax.Array, level: Level) -> WorstCase:
    raise AssertionError("a nominal target has one outcome, which leaves nothing to choose from")


def _backup(discount: float, worst_case: InnerProblem) -> Backup:
    """`Target.backup`: the worst case of what each model's outcome is worth."""

    def backup(batch: Transition, next_value: jax.Array, level: Level) -> jax.Array:
        target = partial(robust_target, discount=discount, worst_case=worst_case, level=level)
        return jax.vmap(target)(batch.reward, batch.terminated, next_value)

    return backup


def _observe(network: Network, settings: BootstrapSettings, backup: Backup) -> Any:
    """`Target.observe`: Q(s, a) is observed to be its target."""

    def observe(
        theta: jax.Array, target_theta: jax.Array, batch: Transition, level: Level
    ) -> tuple[Observation, Any, jax.Array]:
        q = network.apply(target_theta, batch.next_obs)  # [B, M, A]
        if settings.double:
            next_value = jax.vmap(jax.vmap(double_value))(q, network.apply(theta, batch.next_obs))
        else:
            next_value = jax.vmap(jax.vmap(max_value))(q)
        return action_value(network), (batch.obs, batch.action), backup(batch, next_value, level)

    return observe


def _nominal(settings: BootstrapSettings, network: Network, discount: float) -> Target:
    backup = _backup(discount, _only_outcome)
    return Target(
        _observe(network, settings, backup),
        period=settings.target_period,
        rate=settings.target_rate,
        backup=backup,
    )


def _worst_case(settings: WorstCaseSettings, network: Network, discount: float) -> Target:
    worst_case = SETS[settings.robust_set].worst_case
    backup = _backup(discount, worst_case)
    return Target(
        _observe(network, settings, backup),
        level_schedule(settings),
        settings.target_period,
        settings.confidence == "spread",
        settings.target_rate,
        worst_case,
        backup,
    )


def _search(settings: BootstrapSettings) -> Space:
    if settings.target_rate < 1.0:
        return {"target_rate": Range(1e-3, 0.1, log=True)}
    # Copied in every step it is the averaged weights themselves.
    return {"target_period": Range(100, 5000, log=True)} if settings.target_period > 1 else {}


#: A target network that follows the weights slowly.
_SOFT: dict[str, Any] = {"target_period": 1, "target_rate": 0.005}

NOMINAL = TargetPart(
    settings=BootstrapSettings,
    presets={
        "paper": BootstrapSettings(),
        "tuned": BootstrapSettings(target_period=2000),
        "default": BootstrapSettings(**_SOFT),
    },
    make=_nominal,
    robust=False,
    search=_search,
)

WORST_CASE = TargetPart(
    settings=WorstCaseSettings,
    presets={
        "paper": WorstCaseSettings(),
        "tuned": WorstCaseSettings(target_period=2000, **AMBIGUITY_PRESETS["tuned"]),
        "default": WorstCaseSettings(**_SOFT, **AMBIGUITY_PRESETS["default"]),
    },
    make=_worst_case,
    robust=True,
    check=check_ambiguity,
    search=lambda settings: {**_search(settings), **search_ambiguity(settings)},
)
