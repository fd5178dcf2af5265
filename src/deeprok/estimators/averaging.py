"""Averaged weights: the estimate is a moving average of the weights that another estimator learns.

B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM Journal on Control and
Optimization, 1992.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from deeprok.core.pytree import pytree_dataclass, select
from deeprok.estimators.base import Estimator, Fit, Observation, Posterior


@pytree_dataclass
class AveragedBelief:
    """The state of an estimator whose weights are averaged."""

    inner: Any
    average: jax.Array  # [n] moving average of the weights


def averaged(estimator: Estimator, rate: float) -> Estimator:
    """The estimator whose estimate is the moving average of its weights; a posterior is moved to be around it.

    Args:
      estimator: what learns; it knows nothing of the average.
      rate: share of the way that the average moves to the weights in an update; 0 for the estimator as it is.
    """
    if not rate:
        return estimator

    def init(theta: jax.Array) -> AveragedBelief:
        return AveragedBelief(inner=estimator.init(theta), average=jnp.copy(theta))

    def update(
        belief: AveragedBelief,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[AveragedBelief, Fit]:
        inner, fit = estimator.update(belief.inner, h, xs, ys, active, progress)
        moved = belief.average + rate * (estimator.mean(inner) - belief.average)
        return AveragedBelief(inner=inner, average=select(jnp.asarray(active), moved, belief.average)), fit

    def around_average(own: Posterior) -> Posterior:
        def of_inner(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda belief, *rest: function(belief.inner, *rest)

        def sample(belief: AveragedBelief, key: jax.Array) -> jax.Array:
            return belief.average + (own.sample(belief.inner, key) - estimator.mean(belief.inner))

        return Posterior(*(of_inner(function) for function in own))._replace(sample=sample)

    def map_weights(belief: AveragedBelief, f: Callable[[jax.Array], jax.Array]) -> AveragedBelief:
        assert estimator.map_weights
        return AveragedBelief(inner=estimator.map_weights(belief.inner, f), average=f(belief.average))

    return Estimator(
        init,
        update,
        lambda belief: belief.average,
        estimator.posterior and around_average(estimator.posterior),
        map_weights if estimator.map_weights else None,
    )
