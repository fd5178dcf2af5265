"""What a policy gradient maximises: the mean return of its trajectories, or their worst case over an ambiguity set.

For CVaR the worst case is EPOpt's objective.

A. Rajeswaran, S. Ghotra, B. Ravindran and S. Levine, "EPOpt: learning robust neural network policies using model
  ensembles", ICLR, 2017, arXiv:1610.01283.
A. Tamar, Y. Glassner and S. Mannor, "Optimizing the CVaR via sampling", AAAI, 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents.targets.base import TargetPart
from deeprok.core.fields import Finite, Natural, OneOf
from deeprok.core.search import Space
from deeprok.uncertainty import SETS

Weigh = Literal["trajectories", "models"]


@dataclass(frozen=True)
class MeanReturnSettings:
    """The mean return has no settings."""


@dataclass(frozen=True)
class WorstTrajectoriesSettings:
    """The ambiguity set over trajectories."""

    trajectory_set: Annotated[str, OneOf(SETS)] = "cvar"
    """Ambiguity set over the trajectories, as robust_set is over outcomes: cvar is EPOpt."""
    trajectory_level: Finite = 0.1
    """Size of that set: for cvar EPOpt's ε, the worst fraction; 1, or a radius of 0, weighs all alike."""
    level_iterations: Natural = 100
    """Iterations in which all trajectories have equal weight, before the set is used."""
    weigh: Weigh = "trajectories"
    """Take the worst case over single trajectories or, with acting member, over the models' mean returns."""


class Objective(NamedTuple):
    """How much each trajectory counts.

    Attributes:
      weights: `(returns [N], models, iteration) -> [N]`, a distribution over trajectories; the i-th was played on the
        i-th of so many models, counted round.
      over_models: whether it compares models by their mean returns, for which each needs several trajectories.
    """

    weights: Callable[[jax.Array, int, jax.Array], jax.Array]
    over_models: bool = False


def _alike(returns: jax.Array) -> jax.Array:
    return jnp.full(returns.shape, 1.0 / returns.size, returns.dtype)


def trajectory_weights(settings: WorstTrajectoriesSettings, returns: jax.Array, models: int) -> jax.Array:
    """The worst distribution over trajectories, or over the models' mean returns.

    Args:
      settings: the set, its level, and what it is a set over.
      returns: [N]; the i-th trajectory was played on the i-th model, counted round.
      models: how many there were.
    """
    group = returns.size // models if settings.weigh == "models" else 1
    mean = returns.reshape(group, -1).mean(axis=0)
    p = jnp.full(mean.shape, 1.0 / mean.size, mean.dtype)
    worst = SETS[settings.trajectory_set].worst_case(p, mean, settings.trajectory_level)
    return jnp.tile(worst.distribution, group) / group


def _mean_return(settings: MeanReturnSettings) -> Objective:
    return Objective(lambda returns, models, iteration: _alike(returns))


def _worst_trajectories(settings: WorstTrajectoriesSettings) -> Objective:
    if settings.trajectory_level == SETS[settings.trajectory_set].nominal_level:  # exactly, and not to rounding
        return _mean_return(MeanReturnSettings())._replace(over_models=settings.weigh == "models")

    def weights(returns: jax.Array, models: int, iteration: jax.Array) -> jax.Array:
        worst = trajectory_weights(settings, returns, models)
        return jnp.where(iteration < settings.level_iterations, _alike(returns), worst)

    return Objective(weights, settings.weigh == "models")


def _check(settings: WorstTrajectoriesSettings, has_posterior: bool) -> None:
    SETS[settings.trajectory_set].check_level(settings.trajectory_level, "trajectory_level")


def _search(settings: WorstTrajectoriesSettings) -> Space:
    levels = SETS[settings.trajectory_set].levels
    return {"trajectory_level": levels} if levels else {}


MEAN_RETURN = TargetPart(
    settings=MeanReturnSettings,
    presets={"paper": MeanReturnSettings(), "tuned": MeanReturnSettings()},
    make=_mean_return,
    robust=False,
    learner="policy_gradient",
)

WORST_TRAJECTORIES = TargetPart(
    settings=WorstTrajectoriesSettings,
    presets={"paper": WorstTrajectoriesSettings(), "tuned": WorstTrajectoriesSettings(level_iterations=10)},
    make=_worst_trajectories,
    robust=True,
    check=_check,
    search=_search,
    learner="policy_gradient",
)
