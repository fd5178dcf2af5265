"""Preconditioned stochastic gradient Langevin dynamics (pSGLD): MCMC samples of the weights by noisy gradient steps.

C. Li, C. Chen, D. Carlson and L. Carin, "Preconditioned stochastic gradient Langevin dynamics for
deep neural networks", AAAI 2016.
M. Welling and Y. W. Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML 2011:
the step sizes a (b + t)^(−γ).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import Count, Fraction, Natural, NotNegative, Positive
from deeprok.core.pytree import pytree_dataclass
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
    lower_rate,
    memory_of_vectors,
)
from deeprok.estimators.randomness import key_at, stream_of


@pytree_dataclass
class ChainBelief:
    """The state of a Markov chain over the weights, and the last K samples stored from it."""

    theta: jax.Array  # [n] current weights of the chain
    V: jax.Array  # [n] moving average of squared gradients
    bank: jax.Array  # [K, n] stored samples, a ring buffer
    stream: jax.Array  # [2] uint32, key data of all noise
    updates: jax.Array  # [] int32


def psgld(
    observation_noise: float | Schedule = 0.1,
    step: float | Schedule = 1e-6,
    delay: float = 1.0,
    decay: float = 1.0 / 3.0,
    data_size: float | Schedule = 1000.0,
    prior_variance: float = 1.0,
    smoothing: float = 0.99,
    damping: float = 1e-5,
    burn_in: int = 1000,
    thinning: int = 100,
    members: int = 20,
    gamma_term: bool = False,
    frozen: bool = False,
) -> Estimator:
    """Preconditioned SGLD; the posterior is represented by stored samples of the chain.

    An update moves the chain by ε/2 (G ∇log p + Γ) + N(0, ε G), with G = 1 / (λ + √V). Schedules are
    functions of the number of updates.

    Args:
      observation_noise: R, the variance of the observation noise: a number or a schedule.
      step: a of the step size ε = a (b + t)^(−γ) after t updates: a number or a schedule.
      delay: b.
      decay: γ; with 0 the step size is constant.
      data_size: N, the size of the data set that mini-batches come from: a number or, if the data grow, a schedule.
      prior_variance: the prior of each weight is N(0, prior_variance).
      smoothing: α of V, the moving average of the squared mean gradient of a mini-batch.
      damping: λ.
      burn_in: updates before the first sample is stored.
      thinning: updates between stored samples.
      members: K, the number of samples stored; the oldest are replaced.
      gamma_term: add Γ = ∂G/∂θ, with the earlier part of V held fixed; it costs n times as much as a gradient.
      frozen: stop adapting V when the burn-in ends, so that all stored samples come from one preconditioner.
    """
    for field, value in (
        ("observation_noise", observation_noise),
        ("step", step),
        ("delay", delay),
        ("data_size", data_size),
        ("prior_variance", prior_variance),
        ("damping", damping),
    ):
        if not callable(value) and not value > 0:
            raise DeeprokError(f"{field} is {value:g}; it must be above 0")
    if not decay >= 0:
        raise DeeprokError(f"decay is {decay:g}; it must be at least 0")
    if not 0.0 <= smoothing < 1.0:
        raise DeeprokError(f"smoothing is {smoothing:g}; it must be at least 0 and below 1")
    for field, count, least in (("burn_in", burn_in, 0), ("thinning", thinning, 1), ("members", members, 1)):
        if count < least:
            raise DeeprokError(f"{field} is {count}; it must be at least {least}")

    def init(theta: jax.Array) -> ChainBelief:
        return ChainBelief(
            theta=theta,
            V=jnp.zeros_like(theta),
            bank=jnp.zeros((members, theta.size), theta.dtype),
            stream=stream_of(theta),
            updates=jnp.int32(0),
        )

    def update(
        belief: ChainBelief,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[ChainBelief, Fit]:
        active, theta, dtype = jnp.asarray(active), belief.theta, belief.theta.dtype
        R, N, a = (
            jnp.asarray(s(belief.updates) if callable(s) else s, dtype) for s in (observation_noise, data_size, step)
        )
        epsilon = a * (delay + belief.updates.astype(dtype)) ** -decay

        values, H = jax.vmap(jax.value_and_grad(h), (None, 0))(theta, xs)
        innovation = ys - values
        gradient = innovation @ H / (len(ys) * R)  # of the observations' mean log-likelihood
        adapting = active & (belief.updates < burn_in) if frozen else active
        V = jnp.where(adapting, smoothing * belief.V + (1.0 - smoothing) * gradient**2, belief.V)
        G = 1.0 / (damping + jnp.sqrt(V))
        drift = G * (N * gradient - theta / prior_variance)
        if gamma_term:

            def mean_gradient(theta: jax.Array) -> jax.Array:
                return jax.grad(lambda t: -0.5 * jnp.mean((ys - jax.vmap(h, (None, 0))(t, xs)) ** 2) / R)(theta)

            def curvature(axis: jax.Array) -> jax.Array:
                return jax.jvp(mean_gradient, (theta,), (axis,))[1] @ axis

            second = jax.vmap(curvature)(jnp.eye(theta.size, dtype=dtype))
            root = jnp.maximum(jnp.sqrt(V), np.finfo(dtype).tiny)
            # dG/dθ = −G² d√V/dθ, where V depends on θ through the present gradient.
            drift -= jnp.where(adapting, (1.0 - smoothing) * G**2 * gradient * second / root, 0.0)
        noise = jax.random.normal(key_at(belief.stream, belief.updates), theta.shape, dtype)
        change = 0.5 * epsilon * drift + jnp.sqrt(epsilon * G) * noise
        moved = jnp.where(active, theta + change, theta)

        updates = belief.updates + active
        since = updates - burn_in
        stores = active & (since > 0) & (since % thinning == 0)
        slot = (since // thinning - 1) % members
        bank = belief.bank.at[slot].set(jnp.where(stores, moved, belief.bank[slot]))

        predicted = predictive_variance(belief, H)
        # The chain's weights are themselves a sample: they and the true weights both deviate from the mean.
        variance = R + 2.0 * predicted
        health = Health(
            variance=jnp.where(active, jnp.min(variance), jnp.inf),
            consistency=jnp.mean(innovation**2 / variance),
            gain=jnp.mean(predicted / (predicted + R)),
        )
        after = ChainBelief(theta=moved, V=V, bank=bank, stream=belief.stream, updates=updates)
        return after, Fit(0.5 * jnp.mean(innovation**2), health)

    def stored(belief: ChainBelief) -> jax.Array:
        """The number of samples stored so far, at most K."""
        return jnp.clip((belief.updates - burn_in) // thinning, 0, members)

    def shares(belief: ChainBelief) -> jax.Array:
        """The weight of each stored sample [K]; 0 for empty rows."""
        count = stored(belief)
        return jnp.where(jnp.arange(members) < count, 1.0 / jnp.maximum(count, 1), 0.0).astype(belief.theta.dtype)

    def mean(belief: ChainBelief) -> jax.Array:
        return jnp.where(stored(belief) > 0, shares(belief) @ belief.bank, belief.theta)

    def sample(belief: ChainBelief, key: jax.Array) -> jax.Array:
        count = stored(belief)
        member = jax.random.randint(key, (), 0, jnp.maximum(count, 1))
        return jnp.where(count > 0, belief.bank[member], belief.theta)

    def deviations(belief: ChainBelief) -> jax.Array:
        """Rows [K, n] whose outer products sum to the samples' covariance."""
        return jnp.sqrt(shares(belief))[:, None] * (belief.bank - mean(belief))

    def predictive_variance(belief: ChainBelief, H: jax.Array) -> jax.Array:
        return jnp.sum((H @ deviations(belief).T) ** 2, axis=1)

    def covariance(belief: ChainBelief) -> jax.Array:
        rows = deviations(belief)
        return rows.T @ rows

    def definite(belief: ChainBelief) -> jax.Array:
        return jnp.all(jnp.isfinite(belief.theta) & jnp.isfinite(belief.V)) & jnp.all(jnp.isfinite(belief.bank))

    def variances(belief: ChainBelief) -> jax.Array:
        return jnp.sum(deviations(belief) ** 2, axis=0)

    def map_weights(belief: ChainBelief, f: Callable[[jax.Array], jax.Array]) -> ChainBelief:
        return dataclasses.replace(belief, theta=f(belief.theta), bank=jax.vmap(f)(belief.bank))

    posterior = Posterior(sample, predictive_variance, variances, covariance, definite)
    return Estimator(init, update, mean, posterior, map_weights)


# --- settings ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PSGLDConfig:
    """Samples of the weights, by preconditioned stochastic gradient Langevin dynamics."""

    observation_noise: Positive = 0.1
    """R, the variance of the targets' noise."""
    learning_rate: Positive = 1e-3
    """α: the step size ε is 2α/N for a replay of N transitions, so that its drift is a step of RMSprop with rate α."""
    decay: NotNegative = 0.0
    """γ: the step size decays with the number t of updates as (1 + t / decay_updates)^(−γ)."""
    decay_updates: Positive = 10_000.0
    """Time scale of that decay, in updates."""
    prior_variance: Positive = 1.0
    """The prior of every weight is N(0, prior_variance)."""
    smoothing: Fraction = 0.99
    """Smoothing of the preconditioner, a moving average of squared gradients."""
    damping: Positive = 1e-5
    """λ, added to the preconditioner's denominator."""
    gamma_term: bool = False
    """Add Γ, the drift from the preconditioner's dependence on the weights; it costs n times as much as a gradient."""
    frozen: bool = False
    """Stop adapting the preconditioner when the burn-in ends."""
    burn_in: Natural = 1000
    """Updates before the first sample is stored."""
    thinning: Count = 50
    """Updates between stored samples."""
    members: Count = 20
    """Number of samples stored; the oldest are replaced."""


def _make(settings: PSGLDConfig, context: Context) -> Estimator:
    # With ε = 2α/N the drift is a step of RMSprop with learning rate α, whatever the size N of the replay.
    start = 2.0 * settings.learning_rate * settings.decay_updates**settings.decay
    return psgld(
        observation_noise=settings.observation_noise,
        step=lambda updates: start / context.data_size(updates),
        delay=settings.decay_updates,
        decay=settings.decay,
        data_size=context.data_size,
        prior_variance=settings.prior_variance,
        smoothing=settings.smoothing,
        damping=settings.damping,
        burn_in=settings.burn_in,
        thinning=settings.thinning,
        members=settings.members,
        gamma_term=settings.gamma_term,
        frozen=settings.frozen,
    )


PART = EstimatorPart(
    settings=PSGLDConfig,
    make=_make,
    presets={"paper": PSGLDConfig(), "tuned": PSGLDConfig(learning_rate=1e-4)},
    run={"default": {"recalibrate": True}},
    posterior=True,
    vmap_seeds=lambda settings: True,
    memory=memory_of_vectors(lambda settings: settings.members),
    remedy=lower_rate,
    search=lambda settings: {
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "observation_noise": Range(1e-3, 1.0, log=True),
    },
)
