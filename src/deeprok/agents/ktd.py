"""Kalman Temporal Differences: values learned online by a filter that observes rewards.

The reward is the observation, and a difference of values its observation function.

M. Geist and O. Pietquin, "Kalman temporal differences", JAIR 39, 2010, arXiv:1406.3270.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.targets.differences import Difference
from deeprok.core.errors import DeeprokError
from deeprok.estimators.base import Fit, Posterior
from deeprok.estimators.unscented import POSTERIOR, UnscentedBelief, unscented_filter


class Update(Protocol):
    """The type of `KTD.update`."""

    def __call__(
        self, belief: UnscentedBelief, transition: Any, active: jax.Array | bool = True
    ) -> tuple[UnscentedBelief, Fit]:
        """Learns from one transition.

        Args:
          belief: what is known.
          transition: a `Transition`, or what else the difference takes; unbatched.
          active: a traced flag; where it is false the belief is returned unchanged, bit for bit.
        """
        ...


class KTD(NamedTuple):
    """Kalman Temporal Differences.

    Attributes:
      init: `theta -> belief`, before any reward.
      update: see `Update`.
      restart: `(belief, cut) -> belief`. Where `cut`, the next transition does not follow the last one, although that
        did not end in a terminal state. It matters with coloured noise only.
      mean: `belief -> theta`, the point estimate.
      posterior: what more can be asked, as of any estimator.
    """

    init: Callable[[jax.Array], UnscentedBelief]
    update: Update
    restart: Callable[[UnscentedBelief, jax.Array | bool], UnscentedBelief]
    mean: Callable[[UnscentedBelief], jax.Array]
    posterior: Posterior


def ktd(
    difference: Difference,
    discount: float,
    observation_noise: float = 1.0,
    prior_covariance: float | np.ndarray = 1.0,
    adaptive_noise: float = 0.0,
    process_noise: float | np.ndarray = 0.0,
    coloured: bool = False,
    kappa: float = 0.0,
) -> KTD:
    """Kalman Temporal Differences with the unscented transform, in square-root form.

    Args:
      difference: what is observed: `v_difference`, `sarsa_difference`, `q_difference` or `robust_difference`.
      discount: γ.
      observation_noise: Pₙ, the variance of a reward's noise. If it is coloured, the variance σ² of what the noises
        of two steps share.
      prior_covariance: P₀: a number or a vector (its diagonal) or a matrix.
      adaptive_noise: η; P becomes (1 + η) P before an update.
      process_noise: Pᵥ, added to P before an update: a number, or a vector [n] of variances. It makes an update cost
        n³ operations instead of n².
      coloured: XKTD. The noise of a step is uᵢ − γ uᵢ₊₁ with independent u ~ N(0, σ²), which makes the estimate
        that of a regression on returns.
      kappa: κ of the unscented transform, at least 0.
    """
    if not 0.0 <= discount <= 1.0:
        raise DeeprokError(f"discount is {discount:g}; it must be between 0 and 1")
    if coloured and not difference.on_policy:
        raise DeeprokError("coloured is True; it must be False where a maximum over actions is learned, off policy")
    kalman = unscented_filter(observation_noise, prior_covariance, adaptive_noise, process_noise, coloured, kappa)

    def update(
        belief: UnscentedBelief, transition: Any, active: jax.Array | bool = True
    ) -> tuple[UnscentedBelief, Fit]:
        follows: jax.Array | float = 0.0
        if coloured:
            follows = discount * jnp.where(transition.terminated[0], 0.0, 1.0).astype(belief.theta.dtype)
        observed = difference.y(transition)
        return kalman.observe(
            belief, lambda theta: difference.h(theta, transition, discount), observed, follows, active
        )

    return KTD(kalman.init, update, kalman.restart, lambda belief: belief.theta, POSTERIOR)
