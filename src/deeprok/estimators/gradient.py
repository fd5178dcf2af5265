"""Point estimates by gradient descent on half the mean squared error.

D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
Plain SGD is line 7 of Algorithm 1 (RTD-DQN) of the Deep-RoK paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from deeprok.core.fields import Fraction, Positive, Probability, added
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.core.search import Range, Space
from deeprok.estimators.averaging import averaged
from deeprok.estimators.base import (
    Estimator,
    EstimatorPart,
    Fit,
    Observation,
    lower_rate,
    map_theta,
    memory_of_vectors,
)

Optimizer = Literal["adam", "sgd"]


@pytree_dataclass
class PointBelief:
    """A point estimate of the weights, and the optimizer's state."""

    theta: jax.Array  # [n]
    optimizer: Any  # optax state


def gradient(optimizer: Optimizer = "adam", learning_rate: float = 1e-3, final_rate: float = 1.0) -> Estimator:
    """Gradient steps on ½ mean (y − h(θ, x))².

    Args:
      optimizer: `adam` or `sgd`.
      learning_rate: α.
      final_rate: what α has become when the budget is used up, relative to its first value; it falls linearly.
    """
    rule = optax.adam(learning_rate) if optimizer == "adam" else optax.sgd(learning_rate)

    def init(theta: jax.Array) -> PointBelief:
        return PointBelief(theta=theta, optimizer=rule.init(theta))

    def update(
        belief: PointBelief,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[PointBelief, Fit]:
        def loss(theta: jax.Array) -> jax.Array:
            return 0.5 * jnp.mean((ys - jax.vmap(h, (None, 0))(theta, xs)) ** 2)

        value, gradients = jax.value_and_grad(loss)(belief.theta)
        change, optimizer_state = rule.update(gradients, belief.optimizer)
        if final_rate != 1.0:
            change = (1.0 - (1.0 - final_rate) * progress) * change
        moved = PointBelief(theta=belief.theta + change, optimizer=optimizer_state)
        return select(jnp.asarray(active), moved, belief), Fit(value, None)

    return Estimator(init, update, lambda belief: belief.theta, None, map_theta)


@dataclass(frozen=True)
class GradientConfig:
    """A point estimate of the weights, by gradient descent."""

    learning_rate: Positive = 1e-3
    """Step size α."""
    optimizer: Optimizer = "adam"
    """Adam, or plain SGD as in Algorithm 1 of the paper."""
    final_rate: Probability = added(1.0)
    """The step size when the budget is used up, relative to the first; it falls linearly."""
    averaging: Fraction = added(0.0)
    """Rate of the moving average of the weights that acts and is copied to the target network; 0 averages none."""


def _search(settings: GradientConfig) -> Space:
    averaging = {"averaging": Range(1e-3, 0.03, log=True)} if settings.averaging else {}
    return {"learning_rate": Range(1e-4, 1e-2, log=True), **averaging}


PART = EstimatorPart(
    settings=GradientConfig,
    make=lambda settings, context: averaged(
        gradient(settings.optimizer, settings.learning_rate, settings.final_rate), settings.averaging
    ),
    presets={
        "paper": GradientConfig(),
        "tuned": GradientConfig(learning_rate=1e-4),
        "default": GradientConfig(final_rate=0.0, averaging=0.005),
    },
    # The averaged weights, which act, are the target network too.
    run={"default": {"target_rate": 1.0}},
    posterior=False,
    vmap_seeds=lambda settings: True,
    memory=memory_of_vectors(lambda settings: 0),
    remedy=lower_rate,
    search=_search,
)
