"""Point estimates by gradient descent on half the mean squared error.

D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
Plain SGD is line 7 of Algorithm 1 (RTD-DQN) of the Deep-RoK paper as it is written.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from deeprok.core.pytree import record, select
from deeprok.estimators.base import Estimator, Fit, Observation

Optimizer = Literal["adam", "sgd"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)


@record
class PointBelief:
    """Weights without a spread, and the optimizer's memory."""

    theta: jax.Array  # [n]
    optimizer: Any  # optax state


def gradient(optimizer: Optimizer = "adam", learning_rate: float = 1e-3) -> Estimator:
    """Gradient steps on ½ mean (y − h(θ, x))².

    Args:
      optimizer: `adam` or `sgd`.
      learning_rate: α.
    """
    rule = optax.adam(learning_rate) if optimizer == "adam" else optax.sgd(learning_rate)

    def init(theta: jax.Array) -> PointBelief:
        return PointBelief(theta=theta, optimizer=rule.init(theta))

    def update(
        belief: PointBelief, h: Observation, xs: Any, ys: jax.Array, active: jax.Array | bool = True
    ) -> tuple[PointBelief, Fit]:
        def loss(theta: jax.Array) -> jax.Array:
            return 0.5 * jnp.mean((ys - jax.vmap(h, (None, 0))(theta, xs)) ** 2)

        value, slope = jax.value_and_grad(loss)(belief.theta)
        change, memory = rule.update(slope, belief.optimizer)
        moved = PointBelief(theta=belief.theta + change, optimizer=memory)
        return select(jnp.asarray(active), moved, belief), Fit(value, None)

    return Estimator(init, update, lambda b: b.theta, posterior=None)
