"""Correction of what a posterior says of Q, by play on which nothing was learned.

A filter counts a replayed transition as often as it meets it, and its targets come from its own weights. So its values
may share an error, and its deviations may be of the wrong size everywhere. The Kalman gain depends on the ratios of the
variances of prior, process and observations alone: what they are all multiplied by is free, and can be learned from
returns, as the unknown variance of a dynamic linear model is.

M. West and J. Harrison, "Bayesian forecasting and dynamic models", Springer, 1997, section 4.5.
V. Kuleshov, N. Fenner and S. Ermon, "Accurate uncertainties for deep learning using calibrated regression", ICML, 2018.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from deeprok.core.pytree import pytree_dataclass
from deeprok.estimators.base import Estimator, Fit, Observation, Posterior

#: Shares that intervals claim, by which deviations are fitted. Errors have heavier tails than a normal distribution: if
#: half of them were fitted too, the wide intervals would be too narrow.
LEVELS = (0.8, 0.95)


@pytree_dataclass
class Correction:
    """What is made of a posterior's mean m and deviation σ of Q: m + shift and √((factor σ)² + floor²)."""

    shift: jax.Array  # []
    factor: jax.Array  # []
    floor: jax.Array  # []
    level: jax.Array  # [] the size of the ambiguity set that Q is the worst case over; 0 for a nominal target

    def __call__(self, mean: jax.Array, deviation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The corrected mean and deviation. A shift of all actions' values alike leaves the greedy policy as it is."""
        return mean + self.shift, jnp.hypot(self.factor * deviation, self.floor)


@pytree_dataclass
class CorrectedBelief:
    """An estimator's state with the correction of its values."""

    inner: Any
    correction: Correction

    @property
    def scales(self) -> Any:
        """The units that the estimator learns in; None if it has none of its own."""
        return getattr(self.inner, "scales", None)


def no_correction() -> Correction:
    """Leaves everything as it is."""
    return Correction(shift=jnp.zeros(()), factor=jnp.ones(()), floor=jnp.zeros(()), level=jnp.zeros(()))


def correctable(estimator: Estimator) -> Estimator:
    """The same estimator, whose state has room for a correction; learning knows nothing of it."""

    def init(theta: jax.Array) -> CorrectedBelief:
        return CorrectedBelief(inner=estimator.init(theta), correction=no_correction())

    def update(
        belief: CorrectedBelief,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[CorrectedBelief, Fit]:
        inner, fit = estimator.update(belief.inner, h, xs, ys, active, progress)
        return dataclasses.replace(belief, inner=inner), fit

    def of_inner(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda belief, *rest: function(belief.inner, *rest)

    posterior = estimator.posterior and Posterior(*(of_inner(function) for function in estimator.posterior))
    return Estimator(init, update, of_inner(estimator.mean), posterior)


def beneath(change: Callable[..., Any]) -> Callable[..., Any]:
    """A change of an estimator's state, made beneath the correction of its values."""
    return lambda belief, *rest: dataclasses.replace(belief, inner=change(belief.inner, *rest))


def uncorrected(begin: Callable[..., Any]) -> Callable[..., Any]:
    """What makes an estimator's state, of which the correction is still to come."""
    return lambda *given: CorrectedBelief(inner=begin(*given), correction=no_correction())


class Fitted(NamedTuple):
    """What held-out values come to: the numbers of a `Correction` but for its level."""

    shift: float
    factor: float
    floor: float


def fit_correction(
    mean: np.ndarray, deviation: np.ndarray, truth: np.ndarray, levels: Sequence[float] = LEVELS
) -> Fitted:
    """A correction after which intervals of these levels have their nominal coverage of the true values.

    The shift is the median error. How much of the variance follows the posterior's, and how much is the same
    everywhere, is what makes the errors most likely under a Student distribution of 4 degrees of freedom, which is not
    led astray by few large ones. Quantiles of the errors decide the size.

    Args:
      mean: the posterior's means of some values, of any shape.
      deviation: its deviations.
      truth: what these values are.
      levels: shares that intervals claim.
    """
    errors = (truth - mean).reshape(-1)
    shift = float(np.median(errors))
    errors = errors - shift
    variance = deviation.reshape(-1).astype(float) ** 2
    size = variance.mean()
    relative = variance / size if size > 0 else np.zeros_like(variance)

    def spread(share: float) -> np.ndarray:
        return np.asarray(np.sqrt(share * relative + (1.0 - share)))

    def likelihood(share: float) -> float:
        deviations = spread(share)
        scale = _scale(errors / deviations, (0.8,))
        return float(-np.mean(np.log(scale * deviations) + 2.5 * np.log1p((errors / deviations / scale) ** 2 / 4.0)))

    shares = np.linspace(0.0, 1.0, 11) if np.all(relative > 0) else np.zeros(1)
    share = max(shares, key=likelihood)
    scale = _scale(errors / spread(share), levels)
    return Fitted(shift, scale * float(np.sqrt(share / size)) if share else 0.0, scale * float(np.sqrt(1.0 - share)))


def _scale(errors: np.ndarray, levels: Sequence[float]) -> float:
    """What deviations of 1 must be multiplied by: each level asks for a factor, their geometric mean is taken."""
    bounds = ndtri(0.5 + 0.5 * np.asarray(levels))
    asked = np.quantile(np.abs(errors), levels) / bounds
    return float(np.exp(np.mean(np.log(np.maximum(asked, np.finfo(np.float32).tiny)))))
