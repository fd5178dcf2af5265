"""The unscented Kalman filter over the weights, in square-root form.

The unscented transform replaces derivatives. The covariance is stored as a Cholesky factor.

R. van der Merwe and E. A. Wan, "The square-root unscented Kalman filter for state and parameter estimation",
  ICASSP 2001.
N. A. Carlson, "Fast triangular formulation of the square root filter", AIAA Journal, 1973.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import CheckedElsewhere, NotNegative, Positive, Precision
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.core.search import Range
from deeprok.estimators import variances
from deeprok.estimators.base import (
    NUMBERS_A_WEIGHT,
    Context,
    Estimator,
    EstimatorPart,
    Fit,
    Health,
    Memory,
    Observation,
    Posterior,
    Prediction,
    Weights,
    map_theta,
    raise_noise,
)
from deeprok.estimators.variances import Variances


@pytree_dataclass
class NoiseMemory:
    """The part u of the last observation's noise that enters the next one: Gaussian noise correlated with θ."""

    mean: jax.Array  # []
    shared: jax.Array  # [n] cov(θ, u) is S times this
    own: jax.Array  # [] standard deviation of the part of u that is independent of θ


@pytree_dataclass
class UnscentedBelief:
    """A Gaussian posterior over the weights, with the covariance P = S Sᵀ."""

    theta: jax.Array  # [n] mean
    S: jax.Array  # [n, n] lower triangular, with a positive diagonal
    memory: NoiseMemory | None  # None for white noise
    updates: jax.Array  # [] int32


class Moments(NamedTuple):
    """Moments of a function f of θ ~ N(θ̂, S Sᵀ), by the unscented transform."""

    mean: jax.Array  # []
    cross_covariance: jax.Array  # [n] d: cov(θ, f) is S d
    excess_variance: jax.Array  # [] var f − dᵀd, which is 0 for a linear function


def unscented(f: Callable[[jax.Array], jax.Array], theta: jax.Array, S: jax.Array, kappa: float = 0.0) -> Moments:
    """The unscented transform of f(θ), by 2n + 1 evaluations.

    The sigma points are θ̂ and θ̂ ± √(n + κ) S_j with the weights κ / (n + κ) and 1 / (2 (n + κ)). The difference of a
    pair gives the covariance of f with θ along a column of S; its mean gives the curvature. The variance of f is the
    sum of the squares of both.

    Args:
      f: `theta -> []`.
      theta: [n] mean.
      S: [n, n] a square root of the covariance.
      kappa: κ, at least 0, so that no weight is negative.
    """
    squared = theta.size + kappa
    offsets = jnp.sqrt(jnp.asarray(squared, theta.dtype)) * S.T
    centre, plus, minus = f(theta), jax.vmap(f)(theta + offsets), jax.vmap(f)(theta - offsets)
    middle = 0.5 * (plus + minus)
    mean = centre + jnp.sum(middle - centre) / squared
    excess_variance = (jnp.sum((middle - mean) ** 2) + kappa * (centre - mean) ** 2) / squared
    return Moments(mean, 0.5 * (plus - minus) / np.sqrt(squared), excess_variance)


def condition(S: jax.Array, d: jax.Array, rho: jax.Array) -> jax.Array:
    """The lower triangular root of S (I − d dᵀ / (dᵀd + ρ)) Sᵀ, in n² operations (Carlson).

    I − d dᵀ / (dᵀd + ρ) has a Cholesky factor in closed form, made of sums of positive numbers. So the result stays
    positive definite, however small it is.

    Args:
      S: [n, n] lower triangular.
      d: [n] the observation's covariance with θ is S d.
      rho: ρ > 0, the part of the observation's variance that θ does not explain.
    """
    before = rho + jax.lax.cumsum(d**2, reverse=True)
    after = jnp.append(before[1:], rho)
    beyond = jax.lax.cumsum(S * d, axis=1, reverse=True)[:, 1:]
    beyond = jnp.pad(beyond, ((0, 0), (0, 1)))  # Σ_k S_ik d_k over k > j
    return S * jnp.sqrt(after / before) - beyond * (d / jnp.sqrt(after * before))


def _root_of_sum(S: jax.Array, variances: jax.Array) -> jax.Array:
    """The lower triangular root of S Sᵀ + diag(variances), in n³ operations."""
    R = jnp.linalg.qr(jnp.concatenate([S.T, jnp.diag(jnp.sqrt(variances))]), mode="r")
    return (jnp.where(jnp.diagonal(R) < 0.0, -1.0, 1.0)[:, None] * R).T


def predict(
    f: Callable[[jax.Array, Any], jax.Array], belief: UnscentedBelief, xs: Any, kappa: float = 0.0
) -> Prediction:
    """The predictive distribution of f at some inputs, by the unscented transform.

    Args:
      f: `(theta, x) -> []`, for example a value function.
      belief: the filter's state.
      xs: B inputs, stacked along the first axis of each leaf.
      kappa: κ of the transform.
    """

    def at(x: Any) -> Prediction:
        mean, d, excess_variance = unscented(lambda theta: f(theta, x), belief.theta, belief.S, kappa)
        return Prediction(mean, jnp.sum(d**2) + excess_variance)

    return jax.vmap(at)(xs)


class Observe(Protocol):
    """The type of `UnscentedFilter.observe`."""

    def __call__(
        self,
        belief: UnscentedBelief,
        h: Callable[[jax.Array], jax.Array],
        y: jax.Array,
        follows: jax.Array | float = 0.0,
        active: jax.Array | bool = True,
    ) -> tuple[UnscentedBelief, Fit]:
        """Updates the posterior from one observation.

        Args:
          belief: the filter's state.
          h: `theta -> []`, the observation function.
          y: the observation.
          follows: the weight of this observation's noise in the next one's; for coloured noise only.
          active: a traced flag; where it is false the state is returned unchanged, bit for bit.
        """
        ...


class UnscentedFilter(NamedTuple):
    """The filter, one observation at a time.

    Attributes:
      init: `theta -> belief`, the state before any observation.
      observe: see `Observe`.
      restart: `(belief, cut) -> belief`. Where `cut`, the next observation's noise is independent of the last one's. It
        matters for coloured noise only.
    """

    init: Callable[[jax.Array], UnscentedBelief]
    observe: Observe
    restart: Callable[[UnscentedBelief, jax.Array | bool], UnscentedBelief]


def unscented_filter(
    observation_noise: float = 1.0,
    prior_covariance: float | np.ndarray = 1.0,
    adaptive_noise: float = 0.0,
    process_noise: float | np.ndarray = 0.0,
    coloured: bool = False,
    kappa: float = 0.0,
) -> UnscentedFilter:
    """The unscented Kalman filter.

    Args:
      observation_noise: Pₙ, the variance of the observation noise. If it is coloured, the variance σ² of each u.
      prior_covariance: P₀: a number, a vector (its diagonal) or a matrix.
      adaptive_noise: η: P becomes (1 + η) P before every update.
      process_noise: Pᵥ, added to P before every update: a number, or a vector [n] of variances. An update then costs n³
        operations instead of n².
      coloured: the noise of observation i is uᵢ − w uᵢ₊₁ with independent u ~ N(0, σ²); w is its `follows`.
      kappa: κ of the unscented transform, at least 0.
    """
    if not observation_noise > 0.0:
        raise DeeprokError(f"observation_noise is {observation_noise:g}; it must be above 0")
    for field, value in {"adaptive_noise": adaptive_noise, "process_noise": process_noise, "kappa": kappa}.items():
        if not np.all(np.asarray(value) >= 0.0):
            raise DeeprokError(f"{field} is {np.min(value):g}; it must be at least 0")
    growth = float(np.sqrt(1.0 + adaptive_noise))

    def fresh(theta: jax.Array) -> NoiseMemory:
        zero, deviation = jnp.zeros((), theta.dtype), jnp.sqrt(jnp.asarray(observation_noise, theta.dtype))
        return NoiseMemory(mean=zero, shared=jnp.zeros_like(theta), own=deviation)

    def init(theta: jax.Array) -> UnscentedBelief:
        prior = jnp.asarray(prior_covariance, theta.dtype)
        S = jnp.linalg.cholesky(prior) if prior.ndim == 2 else jnp.diag(jnp.broadcast_to(jnp.sqrt(prior), theta.shape))
        return UnscentedBelief(theta=theta, S=S, memory=fresh(theta) if coloured else None, updates=jnp.int32(0))

    def evolve(root: jax.Array, n: int) -> jax.Array:
        """The covariance root of θ, or of θ and the noise in memory, after the prediction step of θ."""
        if adaptive_noise:
            # Noise is added to θ but not to the noise in memory, so their correlation becomes smaller.
            S, shared, own = root[:n, :n] * growth, root[n:, :n] / growth, root[n:, n:]
            own = jnp.sqrt(own**2 + (growth**2 - 1.0) * jnp.sum(shared**2, axis=1, keepdims=True))
            root = _stacked(S, shared, own)
        if np.any(process_noise):
            added = jnp.broadcast_to(jnp.asarray(process_noise, root.dtype), (n,))
            root = _root_of_sum(root, jnp.pad(added, (0, len(root) - n)))
        return root

    def observe(
        belief: UnscentedBelief,
        h: Callable[[jax.Array], jax.Array],
        y: jax.Array,
        follows: jax.Array | float = 0.0,
        active: jax.Array | bool = True,
    ) -> tuple[UnscentedBelief, Fit]:
        n = belief.theta.size
        if belief.memory is None:
            S = evolve(belief.S, n)
            mean, d, excess_variance = unscented(h, belief.theta, S, kappa)
            rest = excess_variance + observation_noise
        else:
            last = belief.memory
            grown = evolve(_stacked(belief.S, last.shared[None], last.own[None, None]), n)
            S, shared, own = grown[:n, :n], grown[n, :n], grown[n, n]
            # The two noises of a step are two more variables. Their sigma points leave θ unchanged.
            mean, d, excess_variance = unscented(h, belief.theta, S, kappa + 2.0)
            mean, d, rest = mean + last.mean, d + shared, excess_variance + own**2
            # The next observation's noise is the last variable; where nothing follows, it is a new one.
            new = fresh(belief.theta)
            d = jnp.append(d, -follows * new.own)
            S = _stacked(S, new.shared[None], new.own[None, None])

        innovation = y - mean
        variance = jnp.sum(d**2) + rest
        step = S @ d * (innovation / variance)
        root = condition(S, d, rest)
        memory = None
        if belief.memory is not None:
            memory = NoiseMemory(mean=step[n], shared=root[n, :n], own=root[n, n])
        moved = UnscentedBelief(
            theta=belief.theta + step[:n], S=root[:n, :n], memory=memory, updates=belief.updates + 1
        )
        health = Health(
            variance=jnp.where(active, variance, jnp.inf),
            consistency=innovation**2 / variance,
            gain=jnp.sum(d[:n] ** 2) / variance,
        )
        return select(jnp.asarray(active), moved, belief), Fit(0.5 * innovation**2, health)

    def restart(belief: UnscentedBelief, cut: jax.Array | bool) -> UnscentedBelief:
        if belief.memory is None:
            return belief
        memory = select(jnp.asarray(cut), fresh(belief.theta), belief.memory)
        return UnscentedBelief(theta=belief.theta, S=belief.S, memory=memory, updates=belief.updates)

    return UnscentedFilter(init, observe, restart)


def ukf(
    observation_noise: float = 1.0,
    prior_covariance: float | np.ndarray = 1.0,
    adaptive_noise: float = 0.0,
    process_noise: float | np.ndarray = 0.0,
    kappa: float = 0.0,
) -> Estimator:
    """The unscented Kalman filter as an estimator; the observations of a mini-batch are processed one after another.

    Args:
      observation_noise: Pₙ, the variance of the observation noise.
      prior_covariance: P₀: a number, a vector (its diagonal) or a matrix.
      adaptive_noise: η: P becomes (1 + η) P before every observation.
      process_noise: Pᵥ, added to P before every observation: a number, or a vector [n] of variances.
      kappa: κ of the unscented transform, at least 0.
    """
    kalman = unscented_filter(observation_noise, prior_covariance, adaptive_noise, process_noise, kappa=kappa)

    def update(
        belief: Any,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[Any, Fit]:
        def one(belief: UnscentedBelief, observation: tuple[Any, jax.Array]) -> tuple[UnscentedBelief, Fit]:
            x, y = observation
            return kalman.observe(belief, lambda theta: h(theta, x), y, active=active)

        belief, fits = jax.lax.scan(one, belief, (xs, ys))
        assert fits.health
        health = Health(
            variance=jnp.min(fits.health.variance),
            consistency=jnp.mean(fits.health.consistency),
            gain=jnp.mean(fits.health.gain),
        )
        return belief, Fit(jnp.mean(fits.loss), health)

    return Estimator(kalman.init, update, lambda belief: belief.theta, POSTERIOR, map_theta)


def _stacked(S: jax.Array, shared: jax.Array, own: jax.Array) -> jax.Array:
    """The lower triangular matrix [[S, 0], [shared, own]]."""
    return jnp.block([[S, jnp.zeros_like(shared.T)], [shared, own]])


def _sample(belief: UnscentedBelief, key: jax.Array) -> jax.Array:
    return belief.theta + belief.S @ jax.random.normal(key, belief.theta.shape, belief.theta.dtype)


def _definite(belief: UnscentedBelief) -> jax.Array:
    finite = jnp.all(jnp.isfinite(belief.theta)) & jnp.all(jnp.isfinite(belief.S))
    return finite & jnp.all(jnp.diagonal(belief.S) > 0.0)


#: Functions of the filter's posterior.
POSTERIOR = Posterior(
    sample=_sample,
    predictive_variance=lambda belief, H: jnp.sum((H @ belief.S) ** 2, axis=1),
    variances=lambda belief: jnp.sum(belief.S**2, axis=1),
    covariance=lambda belief: belief.S @ belief.S.T,
    definite=_definite,
)


# --- settings ----------------------------------------------------------------------------------------------

_BY_WEIGHTS = CheckedElsewhere("the number of weights")


@dataclass(frozen=True)
class UnscentedConfig:
    """A Gaussian posterior over the weights, by the unscented Kalman filter of KTD."""

    observation_noise: Positive = 1.0
    """Pₙ, the variance of the rewards' noise."""
    prior_covariance: Annotated[Variances, variances.option("prior_covariance"), _BY_WEIGHTS] = 1.0
    """P₀: a number, or a .json or .npy file with a vector (its diagonal) or a full matrix."""
    adaptive_noise: NotNegative = 0.0
    """η: P becomes (1 + η) P before every update."""
    process_noise: NotNegative = 0.0
    """Pᵥ, added to every weight's variance before every update; an update then costs n³ operations instead of n²."""
    kappa: NotNegative = 0.0
    """κ of the unscented transform: the weight of its central point."""


def _make(settings: UnscentedConfig, context: Context) -> Estimator:
    return ukf(
        observation_noise=settings.observation_noise,
        prior_covariance=np.asarray(settings.prior_covariance),
        adaptive_noise=settings.adaptive_noise,
        process_noise=settings.process_noise,
        kappa=settings.kappa,
    )


def _memory(settings: UnscentedConfig, network: Weights) -> Memory:
    n = network.num_weights
    numbers = NUMBERS_A_WEIGHT * n + 3 * n * n  # with the sigma points
    return Memory(numbers, "the posterior over", "use fewer hidden units")


def _check(settings: UnscentedConfig, network: Weights, precision: Precision) -> None:
    n = network.num_weights
    variances.check_variances("prior_covariance", settings.prior_covariance, n, precision, definite=True)


PART = EstimatorPart(
    settings=UnscentedConfig,
    make=_make,
    presets={
        "paper": UnscentedConfig(),
        "tuned": UnscentedConfig(observation_noise=0.01, prior_covariance=0.1),
    },
    run={"default": {"recalibrate": True}},
    posterior=True,
    vmap_seeds=lambda settings: False,
    memory=_memory,
    remedy=raise_noise,
    check=_check,
    search=lambda settings: {
        "observation_noise": Range(1e-3, 10.0, log=True),
        "prior_covariance": Range(1e-2, 10.0, log=True),
        "adaptive_noise": Range(0.0, 0.01),
        # An update costs the square of the number of weights, or its cube.
        "hidden": ((10,), (20,), (30,)),
    },
)
