"""What a target is: how a transition becomes something that an estimator can learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents.clock import Clock
from deeprok.agents.network import Network
from deeprok.core.errors import DeeprokError
from deeprok.core.fields import Count, Finite, OneOf, Probability, added
from deeprok.core.search import Range, Searched, Space, nothing_searched
from deeprok.environments.base import Transition
from deeprok.estimators.base import Observation
from deeprok.uncertainty import SETS, WorstCase
from deeprok.uncertainty.sets import Level

#: The inner problem of `deeprok.uncertainty`: `(p, values, level) -> WorstCase`.
InnerProblem = Callable[[jax.Array, jax.Array, float | jax.Array], WorstCase]

Confidence = Literal["fixed", "time", "spread"]


class Target(NamedTuple):
    """The target of a Q-learner.

    Attributes:
      observe: `(theta, target_theta, batch, level) -> (h, xs, ys)`: an observation function, its inputs and the
        observations [B] that the estimator learns from, for a mini-batch of transitions.
      level: `(clock, gains) -> level`, the size of the ambiguity set at that moment; `gains` [2] are the mean Kalman
        gain at first and lately.
      period: steps between copies of the weights to the target network; None if it needs no target network.
      follows_gain: whether the level depends on the gains.
      rate: how far the target network's weights move towards the learned ones each time; 1 copies them.
      worst_case: the inner problem of a robust target; None for a nominal one.
      backup: `(batch, next_value [B, M], level) -> ys [B]`, the observations where the values of the successors are
        given, for a learner that has its own; None if there is no such form.
    """

    observe: Callable[[jax.Array, jax.Array, Transition, Level], tuple[Observation, Any, jax.Array]]
    level: Callable[[Clock, jax.Array], Level] = lambda clock, gains: 0.0
    period: int | None = None
    follows_gain: bool = False
    rate: float = 1.0
    worst_case: InnerProblem | None = None
    backup: Callable[[Transition, jax.Array, Level], jax.Array] | None = None


def _nothing(*_: Any) -> None:
    return None


class TargetPart(NamedTuple):
    """A target as the settings of a run name it.

    Attributes:
      settings: a dataclass whose fields' types are those of `deeprok.core.fields`, each with a default.
      make: for the learner `q_learning`, `(settings, network, discount) -> Target`.
      robust: whether it is the worst case over models, so that a transition carries the outcomes of all of them.
      presets: preset -> its settings; where there are none, the defaults.
      check: `(settings, has_posterior) -> None`; raises where settings don't fit each other or the estimator.
      learner: the learner that it is a target of.
      search: `settings -> Space`, what `deeprok tune` tries for its settings and for those of the run that go with it.
    """

    settings: type[Any]
    make: Callable[..., Any]
    robust: bool
    presets: Mapping[str, Any] = {}
    check: Callable[[Any, bool], None] = _nothing
    learner: str = "q_learning"
    search: Callable[[Any], Space] = nothing_searched


@dataclass(frozen=True)
class AmbiguitySettings:
    """The ambiguity set of a robust target."""

    robust_set: Annotated[str, OneOf(SETS)] = "minimum"
    """Ambiguity set over the models' outcomes: minimum (the paper's), cvar, contamination, l1, tv, linf, l2, chi2,
    kl, burg, wasserstein, entropic, or your own module:object."""
    robust_level: Finite = 0.4
    """Size of that set: its radius; for cvar the fraction of worst outcomes that is averaged."""
    confidence: Confidence = "fixed"
    """Schedule of the level: fixed, or from level_start to robust_level, with time or as the posterior contracts."""
    level_start: Finite = 1.0
    """The level at first, if it changes; for cvar 1 is the mean over the models, for a radius 0 is."""
    level_steps: Count = 30_000
    """Steps over which it changes with time, unless level_fraction is set."""
    level_fraction: Probability = added(0.0)
    """Fraction of the budget over which it changes with time; 0 to count steps instead."""


#: The paper's hard minimum; the softer set that did best on Cart-Pole; and from the mean over the models towards the
#: worst case. A nature that may choose another model in every step can be so strong that nothing is learned from it
#: alone.
AMBIGUITY_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "tuned": {"robust_set": "cvar", "robust_level": 0.15},
    "default": {
        "robust_set": "cvar",
        "robust_level": 0.2,
        "confidence": "time",
        "level_start": 1.0,
        "level_fraction": 0.45,
    },
}


def check_ambiguity(settings: AmbiguitySettings, has_posterior: bool) -> None:
    """Raises unless the level fits the set, and the schedule fits the estimator."""
    SETS[settings.robust_set].check_level(settings.robust_level, "robust_level")
    if settings.confidence != "fixed":
        SETS[settings.robust_set].check_level(settings.level_start, "level_start")
    if settings.confidence == "spread" and not has_posterior:
        raise DeeprokError("confidence is 'spread', but the estimator has no posterior; use 'time' instead")


def search_ambiguity(settings: AmbiguitySettings) -> Space:
    """What is tried for the level of the set, its schedule, and the models that it is a set over."""
    found: dict[str, Searched] = {"models": Range(4, 20, log=True), "edges": Range(0.0, 0.6)}
    levels = SETS[settings.robust_set].levels
    found |= {"robust_level": levels} if levels else {}
    return found | ({"level_fraction": Range(0.1, 0.8)} if settings.level_fraction else {})


def level_schedule(settings: AmbiguitySettings) -> Callable[[Clock, jax.Array], Level]:
    """`(clock, gains) -> level`, as `Target` has it."""

    def level(clock: Clock, gains: jax.Array) -> Level:
        if settings.confidence == "fixed":
            return settings.robust_level
        if settings.confidence == "time":
            fraction = settings.level_fraction
            done = jnp.asarray(clock.level_progress / fraction if fraction else clock.t / settings.level_steps)
        else:
            first, lately = gains
            done = jnp.where(first > 0, 1.0 - lately / jnp.where(first > 0, first, 1.0), 0.0)
        return settings.level_start + (settings.robust_level - settings.level_start) * jnp.clip(done, 0.0, 1.0)

    return level


def action_value(network: Network) -> Observation:
    """The observation function Q(s, a; θ) of pairs (s, a)."""

    def q(theta: jax.Array, x: tuple[jax.Array, jax.Array]) -> jax.Array:
        obs, action = x
        return network.apply(theta, obs)[action]

    return q
