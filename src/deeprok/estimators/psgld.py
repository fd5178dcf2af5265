"""Preconditioned stochastic gradient Langevin dynamics: gradient steps with noise, whose path is a sample.

C. Li, C. Chen, D. Carlson and L. Carin, "Preconditioned stochastic gradient Langevin dynamics for
deep neural networks", AAAI 2016.
M. Welling and Y. W. Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML 2011:
the step sizes a (b + t)^(−γ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import Count, Fraction, Natural, NotNegative, Positive
from deeprok.core.pytree import record
from deeprok.estimators.base import (
    Context,
    Estimator,
    Fit,
    Health,
    Observation,
    Part,
    Posterior,
    Schedule,
    lower_rate,
    memory_of_vectors,
)
from deeprok.estimators.randomness import key_at, stream_of


@record
class ChainBelief:
    """A chain of weights and the last of those that were kept of it."""

    theta: jax.Array  # [n] where the chain is
    V: jax.Array  # [n] running mean of squared gradients
    bank: jax.Array  # [K, n] kept weights, a ring
    stream: jax.Array  # [2] uint32, data of the key of all noise
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
    """Preconditioned SGLD, with a bank of the chain's weights as its belief.

    An update moves the chain by ε/2 (G ∇log p + Γ) + N(0, ε G), with G = 1 / (λ + √V). Schedules are
    functions of the number of updates.

    Args:
      observation_noise: R, the variance of each observation's noise; a number or a schedule.
      step: a of the step size ε = a (b + t)^(−γ) of the update after t others; a number or a schedule.
      delay: b.
      decay: γ; 0 keeps the step size.
      data_size: N, the observations that a mini-batch stands for; a number or, where data grow, a schedule.
      prior_variance: the prior of each weight is N(0, prior_variance).
      smoothing: α of V, the running mean of the squares of a mini-batch's mean gradient.
      damping: λ.
      burn_in: updates before any weights are kept.
      thinning: of the weights after these, one in so many is kept.
      members: K, how many the bank holds; then the oldest go.
      gamma_term: add Γ = ∂G/∂θ, with the earlier part of V held fixed; it takes n times the work of a gradient.
      frozen: keep V as it is when the burn-in ends; what is kept then comes from a chain with one preconditioner.
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
        belief: ChainBelief, h: Observation, xs: Any, ys: jax.Array, active: jax.Array | bool = True
    ) -> tuple[ChainBelief, Fit]:
        active, theta, dtype = jnp.asarray(active), belief.theta, belief.theta.dtype
        R, N, a = (
            jnp.asarray(s(belief.updates) if callable(s) else s, dtype) for s in (observation_noise, data_size, step)
        )
        epsilon = a * (delay + belief.updates.astype(dtype)) ** -decay

        values, H = jax.vmap(jax.value_and_grad(h), (None, 0))(theta, xs)
        innovation = ys - values
        slope = innovation @ H / (len(ys) * R)  # mean gradient of the labels' log likelihood
        adapting = active & (belief.updates < burn_in) if frozen else active
        V = jnp.where(adapting, smoothing * belief.V + (1.0 - smoothing) * slope**2, belief.V)
        G = 1.0 / (damping + jnp.sqrt(V))
        drift = G * (N * slope - theta / prior_variance)
        if gamma_term:

            def mean_slope(theta: jax.Array) -> jax.Array:
                return jax.grad(lambda t: -0.5 * jnp.mean((ys - jax.vmap(h, (None, 0))(t, xs)) ** 2) / R)(theta)

            def curvature(axis: jax.Array) -> jax.Array:
                return jax.jvp(mean_slope, (theta,), (axis,))[1] @ axis

            bend = jax.vmap(curvature)(jnp.eye(theta.size, dtype=dtype))
            root = jnp.maximum(jnp.sqrt(V), np.finfo(dtype).tiny)
            # dG/dθ = −G² d√V/dθ, where V changes with the gradient that it has just taken in.
            drift -= jnp.where(adapting, (1.0 - smoothing) * G**2 * slope * bend / root, 0.0)
        noise = jax.random.normal(key_at(belief.stream, belief.updates), theta.shape, dtype)
        change = 0.5 * epsilon * drift + jnp.sqrt(epsilon * G) * noise
        moved = jnp.where(active, theta + change, theta)

        updates = belief.updates + active
        since = updates - burn_in
        keeping = active & (since > 0) & (since % thinning == 0)
        slot = (since // thinning - 1) % members
        bank = belief.bank.at[slot].set(jnp.where(keeping, moved, belief.bank[slot]))

        known = spread(belief, H)
        # The chain is itself a draw: it and the truth both differ from the mean.
        variance = R + 2.0 * known
        health = Health(
            variance=jnp.where(active, jnp.min(variance), jnp.inf),
            consistency=jnp.mean(innovation**2 / variance),
            gain=jnp.mean(known / (known + R)),
            capped=jnp.zeros((), dtype),
            floored=jnp.zeros((), dtype),
        )
        after = ChainBelief(theta=moved, V=V, bank=bank, stream=belief.stream, updates=updates)
        return after, Fit(0.5 * jnp.mean(innovation**2), health)

    def kept(belief: ChainBelief) -> jax.Array:
        """How many of the bank's rows hold weights."""
        return jnp.clip((belief.updates - burn_in) // thinning, 0, members)

    def shares(belief: ChainBelief) -> jax.Array:
        """What each row of the bank counts [K], 0 where it holds nothing yet."""
        count = kept(belief)
        return jnp.where(jnp.arange(members) < count, 1.0 / jnp.maximum(count, 1), 0.0).astype(belief.theta.dtype)

    def mean(belief: ChainBelief) -> jax.Array:
        return jnp.where(kept(belief) > 0, shares(belief) @ belief.bank, belief.theta)

    def sample(belief: ChainBelief, key: jax.Array) -> jax.Array:
        count = kept(belief)
        member = jax.random.randint(key, (), 0, jnp.maximum(count, 1))
        return jnp.where(count > 0, belief.bank[member], belief.theta)

    def deviations(belief: ChainBelief) -> jax.Array:
        """Rows [K, n] whose squares add up to the bank's covariance."""
        return jnp.sqrt(shares(belief))[:, None] * (belief.bank - mean(belief))

    def spread(belief: ChainBelief, H: jax.Array) -> jax.Array:
        return jnp.sum((H @ deviations(belief).T) ** 2, axis=1)

    def covariance(belief: ChainBelief) -> jax.Array:
        rows = deviations(belief)
        return rows.T @ rows

    def definite(belief: ChainBelief) -> jax.Array:
        return jnp.all(jnp.isfinite(belief.theta) & jnp.isfinite(belief.V)) & jnp.all(jnp.isfinite(belief.bank))

    def variances(belief: ChainBelief) -> jax.Array:
        return jnp.sum(deviations(belief) ** 2, axis=0)

    return Estimator(init, update, mean, Posterior(sample, spread, variances, covariance, definite))


# --- as the settings of a run name it --------------------------------------------------------------------


@dataclass(frozen=True)
class LangevinConfig:
    """A bank of weights along a chain, by preconditioned stochastic gradient Langevin dynamics."""

    observation_noise: Positive = 0.1
    """R, the variance of a label's noise."""
    learning_rate: Positive = 1e-3
    """α: the step size ε is 2α/N for a replay of N transitions, which moves weights as RMSprop with the rate α does."""
    decay: NotNegative = 0.0
    """γ: the step size falls with the number t of updates, as (1 + t / decay_updates)^(−γ)."""
    decay_updates: Positive = 10_000.0
    """Updates after which the step size begins to fall, if it does."""
    prior_variance: Positive = 1.0
    """The prior of every weight is N(0, prior_variance)."""
    smoothing: Fraction = 0.99
    """α of the preconditioner, a running mean of squared gradients."""
    damping: Positive = 1e-5
    """λ of the preconditioner."""
    gamma_term: bool = False
    """Add Γ, the drift due to the preconditioner's change; it takes n times the work of a gradient."""
    frozen: bool = False
    """Keep the preconditioner as it is when the burn-in ends."""
    burn_in: Natural = 1000
    """Updates before any weights are kept."""
    thinning: Count = 50
    """Of the weights after these, one in so many is kept."""
    members: Count = 20
    """How many the bank holds; then the oldest go."""


def _make(settings: LangevinConfig, context: Context) -> Estimator:
    # ε = 2α/N moves weights as RMSprop with the rate α does, however many transitions there are.
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


PART = Part(
    settings=LangevinConfig,
    make=_make,
    presets={"paper": LangevinConfig(), "tuned": LangevinConfig(learning_rate=1e-4)},
    posterior=True,
    vmap_seeds=lambda settings: True,
    memory=memory_of_vectors(lambda settings: settings.members),
    remedy=lower_rate,
)
