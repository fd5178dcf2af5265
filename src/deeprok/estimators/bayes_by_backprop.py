"""Bayes by Backprop: variational inference with independent Gaussian weights and reparametrised samples.

C. Blundell, J. Cornebise, K. Kavukcuoglu and D. Wierstra, "Weight uncertainty in neural networks",
ICML 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from deeprok.core.errors import DeeprokError, unknown
from deeprok.core.fields import Count, InnerFraction, Positive, Precision
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.core.search import Range
from deeprok.estimators.base import (
    Context,
    Estimator,
    EstimatorPart,
    Fit,
    Health,
    Observation,
    Posterior,
    Schedule,
    Weights,
    lower_rate,
    map_theta,
    memory_of_vectors,
)
from deeprok.estimators.randomness import key_at, stream_of

#: A prior of independent weights: `w -> log density` of each, for any shape.
Prior = Callable[[jax.Array], jax.Array]

Reweighting = Literal["uniform", "geometric"]
REWEIGHTINGS: tuple[str, ...] = get_args(Reweighting)


@pytree_dataclass
class MeanFieldBelief:
    """A Gaussian posterior with independent weights, and the optimizer's state."""

    theta: jax.Array  # [n] mean, the paper's μ
    rho: jax.Array  # [n] the standard deviations are log(1 + exp ρ)
    optimizer: Any  # optax state
    stream: jax.Array  # [2] uint32, key data of all samples
    updates: jax.Array  # [] int32


def _positive(field: str, value: Any) -> None:
    if not callable(value) and not value > 0:
        raise DeeprokError(f"{field} is {value:g}; it must be above 0")


def _log_normal(w: jax.Array, variance: float) -> jax.Array:
    return -0.5 * (w**2 / variance + math.log(2.0 * math.pi * variance))


def gaussian_prior(variance: float = 1.0) -> Prior:
    """Every weight is N(0, variance)."""
    _positive("variance", variance)
    return lambda w: _log_normal(w, variance)


def mixture_prior(share: float = 0.5, wide: float = 1.0, narrow: float = math.exp(-12.0)) -> Prior:
    """A mixture of two Gaussians for every weight, N(0, wide) and N(0, narrow) (Eq. 7).

    Args:
      share: π, the probability of the wide component.
      wide: σ₁², its variance.
      narrow: σ₂², the variance of the narrow component; small if most weights are expected near 0.
    """
    if not 0.0 < share < 1.0:
        raise DeeprokError(f"share is {share:g}; it must be above 0 and below 1")
    _positive("narrow", narrow)
    if not wide > narrow:
        raise DeeprokError(f"wide is {wide:g}; it must be above narrow, which is {narrow:g}")
    return lambda w: jnp.logaddexp(math.log(share) + _log_normal(w, wide), math.log1p(-share) + _log_normal(w, narrow))


def kl_share(reweighting: Reweighting, batches: float | jax.Array, updates: jax.Array) -> jax.Array:
    """The fraction of the KL divergence in a mini-batch's loss; over M successive mini-batches they sum to 1.

    Args:
      reweighting: `uniform`, 1 / M; or `geometric`, 2^(M − i) / (2^M − 1) for the i-th (Eq. 9), which weights the prior
        first and the data later.
      batches: M, mini-batches per epoch.
      updates: number of previous updates.
    """
    if reweighting == "uniform":
        return jnp.asarray(1.0 / batches)
    return jnp.exp2(-1.0 - updates % batches) / (1.0 - jnp.exp2(-jnp.asarray(batches, float)))


def sampled_kl(theta: jax.Array, rho: jax.Array, noise: jax.Array, prior: Prior) -> jax.Array:
    """KL(q ‖ prior) by Monte Carlo: the mean of log q(w) − log prior(w) over samples w = θ + σ(ρ) noise.

    Args:
      theta: [n] mean of q.
      rho: [n] its standard deviations, before softplus.
      noise: [S, n] standard normal noise.
      prior: log density of each weight.
    """
    deviation = jax.nn.softplus(rho)
    # As a function of its noise, the density of a sample depends only on the standard deviations.
    log_q = jnp.sum(_log_normal(noise, 1.0) - jnp.log(deviation), axis=1)
    return jnp.mean(log_q - jnp.sum(prior(theta + deviation * noise), axis=1))


def free_energy(
    theta: jax.Array,
    rho: jax.Array,
    noise: jax.Array,
    h: Observation,
    xs: Any,
    ys: jax.Array,
    observation_noise: float | jax.Array,
    share: float | jax.Array,
    prior: Prior,
) -> jax.Array:
    """The loss of a mini-batch (Eq. 8 and 9), up to a constant: negative log-likelihood and a share of the KL term.

    Args:
      theta: [n] mean of q.
      rho: [n] its standard deviations, before softplus.
      noise: [S, n] standard normal noise, a row for each sample of the weights.
      h: the observation function.
      xs: B inputs.
      ys: [B] observations.
      observation_noise: R.
      share: the fraction of the KL divergence, see `kl_share`.
      prior: log density of each weight.
    """
    sampled = theta + jax.nn.softplus(rho) * noise
    values = jax.vmap(jax.vmap(h, (None, 0)), (0, None))(sampled, xs)  # [S, B]
    misfit = 0.5 * jnp.mean(jnp.sum((ys - values) ** 2, axis=1)) / observation_noise
    return misfit + share * sampled_kl(theta, rho, noise, prior)


def bayes_by_backprop(
    observation_noise: float | Schedule = 0.1,
    learning_rate: float | Schedule = 1e-3,
    initial_deviation: float = 0.05,
    prior: Prior | None = None,
    samples: int = 1,
    batches: float | Schedule = 1,
    reweighting: Reweighting = "uniform",
) -> Estimator:
    """Bayes by Backprop with Adam.

    Schedules are functions of the number of updates.

    Args:
      observation_noise: R, the variance of the observation noise: a number or a schedule.
      learning_rate: Adam's step size: a number or a schedule.
      initial_deviation: initial standard deviation of each weight.
      prior: log density of each weight: `gaussian_prior` (the default, with variance 1), `mixture_prior` or your own.
      samples: samples of the weights per update; their gradients are averaged.
      batches: M, mini-batches per pass over the data: a number or, if the data grow, a schedule.
      reweighting: weights of the KL divergence in the M mini-batches, see `kl_share`; `geometric` needs a whole M.
    """
    _positive("observation_noise", observation_noise)
    _positive("initial_deviation", initial_deviation)
    if samples < 1:
        raise DeeprokError(f"samples is {samples}; it must be at least 1")
    if not callable(batches) and not batches >= 1:
        raise DeeprokError(f"batches is {batches:g}; it must be at least 1")
    if reweighting not in REWEIGHTINGS:
        raise unknown("reweighting", reweighting, REWEIGHTINGS)
    if reweighting == "geometric" and (callable(batches) or batches != int(batches)):
        shown = "a schedule" if callable(batches) else f"{batches:g}"
        raise DeeprokError(f"batches is {shown}; it must be a whole number if reweighting is geometric")
    rule = optax.adam(learning_rate)
    log_prior = prior or gaussian_prior()

    def init(theta: jax.Array) -> MeanFieldBelief:
        rho = jnp.full_like(theta, math.log(math.expm1(initial_deviation)))
        return MeanFieldBelief(
            theta=theta,
            rho=rho,
            optimizer=rule.init((theta, rho)),
            stream=stream_of(theta),
            updates=jnp.int32(0),
        )

    def update(
        belief: MeanFieldBelief,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[MeanFieldBelief, Fit]:
        active, n, dtype = jnp.asarray(active), belief.theta.size, belief.theta.dtype
        R, M = (s(belief.updates) if callable(s) else s for s in (observation_noise, batches))
        R, share = jnp.asarray(R, dtype), kl_share(reweighting, M, belief.updates).astype(dtype)
        noise = jax.random.normal(key_at(belief.stream, belief.updates), (samples, n), dtype)
        gradients = jax.grad(free_energy, (0, 1))(belief.theta, belief.rho, noise, h, xs, ys, R, share, log_prior)
        (step, rho_step), optimizer_state = rule.update(gradients, belief.optimizer)
        moved = MeanFieldBelief(
            theta=belief.theta + step,
            rho=belief.rho + rho_step,
            optimizer=optimizer_state,
            stream=belief.stream,
            updates=belief.updates + 1,
        )
        values, H = jax.vmap(jax.value_and_grad(h), (None, 0))(belief.theta, xs)
        innovation, predicted = ys - values, predictive_variance(belief, H)
        health = Health(
            variance=jnp.where(active, jnp.min(predicted) + R, jnp.inf),
            consistency=jnp.mean(innovation**2 / (predicted + R)),
            gain=jnp.mean(predicted / (predicted + R)),
        )
        return select(active, moved, belief), Fit(0.5 * jnp.mean(innovation**2), health)

    def sample(belief: MeanFieldBelief, key: jax.Array) -> jax.Array:
        return belief.theta + jax.nn.softplus(belief.rho) * jax.random.normal(
            key, belief.theta.shape, belief.theta.dtype
        )

    def variances(belief: MeanFieldBelief) -> jax.Array:
        return jax.nn.softplus(belief.rho) ** 2

    def predictive_variance(belief: MeanFieldBelief, H: jax.Array) -> jax.Array:
        return H**2 @ variances(belief)

    def definite(belief: MeanFieldBelief) -> jax.Array:
        variance = variances(belief)
        return jnp.all(jnp.isfinite(belief.theta) & jnp.isfinite(variance) & (variance > 0))

    posterior = Posterior(sample, predictive_variance, variances, lambda belief: jnp.diag(variances(belief)), definite)
    return Estimator(init, update, lambda belief: belief.theta, posterior, map_theta)


# --- settings ----------------------------------------------------------------------------------------------

WeightPrior = Literal["gaussian", "mixture"]


@dataclass(frozen=True)
class BayesByBackpropConfig:
    """A Gaussian posterior with independent weights, by Bayes by Backprop."""

    observation_noise: Positive = 0.1
    """R, the variance of the targets' noise."""
    learning_rate: Positive = 1e-3
    """Adam's step size, for means and standard deviations."""
    initial_deviation: Positive = 0.05
    """Initial standard deviation of every weight."""
    weight_prior: WeightPrior = "gaussian"
    """Prior of every weight: N(0, prior_variance), or its mixture with N(0, narrow_variance)."""
    prior_variance: Positive = 1.0
    """Variance of the prior; of its wide component, if it is a mixture."""
    narrow_variance: Positive = 0.0025
    """Variance of the mixture's narrow component."""
    wide_share: InnerFraction = 0.5
    """Probability of the mixture's wide component."""
    samples: Count = 1
    """Samples of the weights per update."""


def _make(settings: BayesByBackpropConfig, context: Context) -> Estimator:
    if settings.weight_prior == "mixture":
        prior = mixture_prior(settings.wide_share, settings.prior_variance, settings.narrow_variance)
    else:
        prior = gaussian_prior(settings.prior_variance)
    return bayes_by_backprop(
        observation_noise=settings.observation_noise,
        learning_rate=settings.learning_rate,
        initial_deviation=settings.initial_deviation,
        prior=prior,
        samples=settings.samples,
        batches=lambda updates: jnp.maximum(context.data_size(updates) / context.batch_size, 1.0),
    )


def _check(settings: BayesByBackpropConfig, network: Weights, precision: Precision) -> None:
    narrow, wide = settings.narrow_variance, settings.prior_variance
    if settings.weight_prior == "mixture" and narrow >= wide:
        raise DeeprokError(f"narrow_variance is {narrow:g}; it must be below prior_variance, which is {wide:g}")


PART = EstimatorPart(
    settings=BayesByBackpropConfig,
    make=_make,
    presets={"paper": BayesByBackpropConfig(), "tuned": BayesByBackpropConfig(learning_rate=1e-4)},
    run={"default": {"recalibrate": True}},
    posterior=True,
    vmap_seeds=lambda settings: True,
    memory=memory_of_vectors(lambda settings: 0),
    remedy=lower_rate,
    check=_check,
    search=lambda settings: {
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "observation_noise": Range(1e-3, 1.0, log=True),
        "initial_deviation": Range(0.01, 0.2, log=True),
    },
)
