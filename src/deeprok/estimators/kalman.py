"""The extended Kalman filter as a belief N(θ, P) over a network's weights.

S. Di-Castro Shashua and S. Mannor, "Deep Robust Kalman Filter", 2017, Algorithm 2.
S. Singhal and L. Wu, "Training multilayer perceptrons with the extended Kalman algorithm", 1988.
B. M. Bell and F. W. Cathey, "The iterated Kalman filter update as a Gauss-Newton method", 1993.
A. H. Mohamed and K. P. Schwarz, "Adaptive Kalman filtering for INS/GPS", Journal of Geodesy, 1999:
observation noise from residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import CheckedElsewhere, Count, Fraction, Natural, Positive, Precision, Probability
from deeprok.core.pytree import record
from deeprok.estimators import variances
from deeprok.estimators.base import (
    NUMBERS_A_WEIGHT,
    Context,
    Estimator,
    Fit,
    Health,
    Memory,
    Observation,
    Part,
    Posterior,
    Schedule,
    Weights,
    raise_noise,
)
from deeprok.estimators.covariance import (
    Correction,
    Covariance,
    Evolution,
    Structure,
    block,
    diagonal,
    full,
    low_rank,
    over_columns,
    whiten,
)
from deeprok.estimators.variances import Variances

Batching = Literal["averaged", "joint"]
BATCHINGS: tuple[str, ...] = get_args(Batching)


@record
class GaussianBelief:
    """A normal distribution over the weights."""

    theta: jax.Array  # [n] mean
    P: Any  # the covariance, in the structure's record
    observation_noise: jax.Array  # [] R as it was estimated
    updates: jax.Array  # [] int32


class Gains(NamedTuple):
    """How a mini-batch moves a belief: θ + (A e) W and P − Wᵀ W, with W = A H P and innovations e."""

    whitening: jax.Array  # A: [B, B], or [B] its diagonal
    information: jax.Array  # [B, B] C: the precision grows by (C H)ᵀ C H
    variance: jax.Array  # [B] innovation variances
    share: jax.Array  # [] mean share of an innovation that its own prediction takes over
    weight: float  # (A e)² times this is the mean of the squared innovations over their variances


def averaged_gains(G: jax.Array, R: jax.Array) -> Gains:
    """The mean of the samples' own Kalman steps, as Algorithm 2 is written (lines 8 and 9).

    It minimises the paper's objective for B = 1 only. The covariance falls by the mean of the
    samples' decrements K S Kᵀ, which keeps it positive definite (their sum would not).

    Args:
      G: [B, B] H P Hᵀ with the predicted covariance P.
      R: [B] observation noise Pₙ of each observation.
    """
    batch = len(R)
    variance = jnp.diagonal(G) + R  # Eq. 16
    scale = 1.0 / jnp.sqrt(batch * variance)  # the gain is K = P q / variance (Eq. 17)
    rest = jnp.eye(batch, dtype=G.dtype) - scale[:, None] * G * scale
    if batch == 1:
        rest = (R / variance)[:, None]  # the same without cancellation
    information = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(rest), jnp.diag(scale), lower=True)
    return Gains(scale, information, variance, jnp.mean(jnp.diagonal(G) / variance), 1.0)


def joint_update(G: jax.Array, R: jax.Array) -> Gains:
    """The Kalman step of the mini-batch as one vector of observations.

    With R = B Pₙ it minimises the objective of Theorems 1 and 2 for any B.

    Args:
      G: [B, B] H P Hᵀ with the predicted covariance P.
      R: [B] observation noise of each observation.
    """
    batch = len(R)
    L = jnp.linalg.cholesky(G + jnp.diag(R))
    # The explicit inverse of the small factor: with W straight from a triangular solve, XLA
    # fails to fuse the n × n update.
    inverse = jax.scipy.linalg.solve_triangular(L, jnp.eye(batch, dtype=G.dtype), lower=True)
    share = 1.0 - jnp.sum(inverse**2 * R) / batch
    # The squared pivots are the innovation variances of the samples taken one after the other.
    return Gains(inverse, jnp.diag(1.0 / jnp.sqrt(R)), jnp.diagonal(L) ** 2, share, 1.0 / batch)


# A variance is a difference of numbers of the size of P's entries. Rounding leaves of it what is
# above this many rounding errors, times √n.
_ROUNDINGS = 4


def float32_risk(
    observation_noise: float,
    process_noise: float,
    prior_variance: float,
    updates: int,
    weights: int,
    batch_size: int = 1,
    batching: Batching = "averaged",
    squared_gradient: float = 10.0,
) -> bool:
    """Whether single precision may have to hold the filter back (`Health.floored`) before it is done.

    It does where the variance left along a gradient is lost beside the largest variance of a
    weight. The first is that of a direction seen at every update, by √B of the B samples; the
    second that of a weight never seen, which all process noise adds to. Mini-batches of one sample
    only, copied, can leave less.

    Args:
      observation_noise: R of each observation.
      process_noise: Pᵥ, added to every variance before an update.
      prior_variance: P₀ of each weight.
      updates: how many there will be.
      weights: n.
      batch_size: B.
      batching: how a mini-batch is taken.
      squared_gradient: |∇h|², about the number of units that feed the output.
    """
    alike = math.sqrt(batch_size)
    # An update takes v² / (dilution (v + R)) of a variance v, with R as seen along a unit vector.
    dilution = batch_size / alike if batching == "averaged" else 1.0
    R = observation_noise / squared_gradient / (1.0 if batching == "averaged" else alike)
    added = dilution * process_noise
    steady = (added + math.sqrt(added**2 + 4.0 * added * R)) / 2.0
    falling = 1.0 / (1.0 / prior_variance + updates / (dilution * R))
    before = max(falling, min(steady, prior_variance))
    left = before * (1.0 - before / (dilution * (before + R)))
    largest = prior_variance + process_noise * updates
    return left < _ROUNDINGS * math.sqrt(weights) * float(np.finfo(np.float32).eps) * largest


def _evolved(variances: jax.Array, evolution: Evolution) -> jax.Array:
    """The diagonal of D P D + Q from that of P."""
    scale, noise = evolution
    kept = variances if scale is None else variances * scale**2
    return kept + (jnp.diagonal(noise) if noise.ndim == 2 else noise)


def _left(G: jax.Array, gain: Gains) -> jax.Array:
    """The variance [B] of each observation's prediction after the update."""
    return jnp.diagonal(G) - jnp.sum(whiten(gain.whitening, G) ** 2, axis=0)


def _carried(
    G: jax.Array, gains: Callable[[jax.Array, jax.Array], Gains], sizes: jax.Array, R: jax.Array, n: int
) -> jax.Array:
    """R [B], raised where the variance left after the update would be lost in rounding.

    Args:
      G: [B, B] covariance of the observations' predictions.
      gains: how the mini-batch is taken.
      sizes: [B] Σ h² m over the weights, with gradients h and the size m of the numbers that P is computed from.
      R: [] observation noise.
      n: weights.
    """
    precision = np.finfo(G.dtype)
    variance = jnp.diagonal(G)
    noise = jnp.full_like(variance, R)
    size = jnp.maximum(math.sqrt(n) * sizes, variance)
    least = _ROUNDINGS * precision.eps * size
    # Enough even if all observations are the same one, each taken over in full: what is left of a
    # variance v is v R / (v + R), and this R leaves `least`.
    copies = 1 if gains is averaged_gains else len(noise)
    bound = copies * least
    above = jnp.maximum(variance, bound)
    enough = bound * above / jnp.maximum(jnp.maximum(above - bound, precision.eps * above), precision.tiny)
    # A factorisation that failed leaves what is not a number, which is not enough either.
    lost = ~(_left(G, gains(G, noise)) >= least)
    return jnp.where(lost, jnp.maximum(noise, enough), noise)


def ekf(
    observation_noise: float | Schedule = 1e-3,
    process_noise: float | np.ndarray | Schedule = 0.01,
    prior_covariance: float | np.ndarray = 1.0,
    batching: Batching = "averaged",
    learning_rate: float = 1.0,
    covariance: Structure = full,
    fading: float = 0.0,
    variance_cap: float | None = None,
    adapt_noise: float = 0.0,
    iterations: int = 1,
) -> Estimator:
    """The extended Kalman filter.

    Args:
      observation_noise: R, the variance of each observation's noise; a number or a schedule.
      process_noise: Pᵥ, added to P before an update: a number or a schedule of numbers, for every
        variance; a vector, one for each; or a matrix.
      prior_covariance: P₀, a scalar or a vector (its diagonal) or a full matrix.
      batching: `averaged` as the paper's algorithm is written, or `joint`.
      learning_rate: α, multiplies the step of the mean; 1 is the filter.
      covariance: how P is kept: `full`, `block(*slices)`, `diagonal` or `low_rank(rank)`.
      fading: η of a fading memory: P becomes P / (1 − η) before an update.
      variance_cap: no weight's variance grows above it, neither by noise nor by fading.
      adapt_noise: rate at which R follows the squared residuals; 0 keeps it as given.
      iterations: linearisations of an update, each at the last one's result, all from the same prior.
    """
    gains = averaged_gains if batching == "averaged" else joint_update
    if not 0.0 <= fading < 1.0:
        raise DeeprokError(f"fading is {fading:g}; it must be at least 0 and below 1")
    if not 0.0 <= adapt_noise <= 1.0:
        raise DeeprokError(f"adapt_noise is {adapt_noise:g}; it must be between 0 and 1")
    if iterations < 1:
        raise DeeprokError(f"iterations is {iterations}; it must be at least 1")

    def structure_of(theta: jax.Array) -> Covariance:
        return covariance(theta.shape[-1])

    def prior_variances(theta: jax.Array) -> jax.Array:
        prior = jnp.asarray(prior_covariance, theta.dtype)
        return jnp.diagonal(prior) if prior.ndim == 2 else jnp.broadcast_to(prior, theta.shape)

    def init(theta: jax.Array) -> GaussianBelief:
        structure = structure_of(theta)
        prior = jnp.asarray(prior_covariance, theta.dtype)
        added = jnp.zeros(()) if callable(process_noise) else jnp.asarray(process_noise)
        if max(prior.ndim, added.ndim) == 2 and not structure.matrices:
            raise DeeprokError("a matrix of prior or process noise needs a covariance that is full or in blocks")
        updates = jnp.int32(0)
        first = observation_noise(updates) if callable(observation_noise) else observation_noise
        return GaussianBelief(
            theta=theta,
            P=structure.init(prior if prior.ndim == 2 else jnp.broadcast_to(prior, theta.shape)),
            observation_noise=jnp.asarray(first, theta.dtype),
            updates=updates,
        )

    def evolution_of(structure: Covariance, belief: GaussianBelief) -> tuple[Evolution, jax.Array]:
        """What P goes through before an update, and how many variances the cap held back."""
        dtype = belief.theta.dtype
        noise = jnp.asarray(process_noise(belief.updates) if callable(process_noise) else process_noise, dtype)
        growth = jnp.asarray(1.0 / (1.0 - fading), dtype)
        if variance_cap is None:
            scale = jnp.broadcast_to(jnp.sqrt(growth), belief.theta.shape) if fading else None
            return Evolution(scale, noise), jnp.zeros((), dtype)
        now = structure.variances(belief.P)
        # Fading first, then what the cap leaves for the noise; both can only stop growth, not reverse it.
        allowed = jnp.clip(variance_cap / now, 1.0, growth)
        grown = now * allowed
        room = jnp.maximum(variance_cap - grown, 0.0)
        wanted = jnp.diagonal(noise) if noise.ndim == 2 else jnp.broadcast_to(noise, now.shape)
        capped = jnp.sum((allowed < growth) | (wanted > room))
        if noise.ndim == 2:
            shrink = jnp.sqrt(jnp.minimum(1.0, room / jnp.maximum(wanted, np.finfo(dtype).tiny)))
            noise = shrink[:, None] * shrink[None, :] * noise
        else:
            noise = jnp.minimum(wanted, room)
        return Evolution(jnp.sqrt(allowed) if fading else None, noise), capped.astype(dtype)

    def update(
        belief: GaussianBelief, h: Observation, xs: Any, ys: jax.Array, active: jax.Array | bool = True
    ) -> tuple[GaussianBelief, Fit]:
        active = jnp.asarray(active)
        structure = structure_of(belief.theta)
        evolution, capped = evolution_of(structure, belief)
        if callable(observation_noise) and not adapt_noise:
            R = jnp.asarray(observation_noise(belief.updates), belief.theta.dtype)
        else:
            R = belief.observation_noise
        magnitudes = _evolved(structure.magnitudes(belief.P, prior_variances(belief.theta)), evolution)
        step = jnp.zeros_like(belief.theta)
        for iteration in range(iterations):
            theta = belief.theta + step if iteration else belief.theta
            values, H = jax.vmap(jax.value_and_grad(h), (None, 0))(theta, xs)
            # Seen from the prior's mean, not from where the linearisation is.
            innovation = ys - values + (H @ step if iteration else 0.0)
            HP = structure.project(belief.P, evolution, H)
            G, sizes = over_columns(lambda H, HP, sizes: (HP @ H.T, (H * H) @ sizes), H, HP, magnitudes)
            noise = _carried(G, gains, sizes, R, H.shape[1])
            gain = gains(G, noise)
            white = whiten(gain.whitening, innovation)
            step = whiten(gain.whitening.T, white) @ HP
            if iteration == 0:
                found = innovation
        moved = GaussianBelief(
            theta=belief.theta + jnp.where(active, learning_rate * step, 0.0),
            P=structure.correct(belief.P, evolution, Correction(H, HP, gain.whitening, gain.information, active)),
            observation_noise=belief.observation_noise,
            updates=belief.updates + active,
        )
        if adapt_noise:
            # Residuals are smaller than the noise by what the update explained of it.
            seen = jnp.mean((innovation - H @ step) ** 2 + _left(G, gain))
            estimated = (1.0 - adapt_noise) * R + adapt_noise * seen
            moved = _with_noise(moved, jnp.where(active, estimated, belief.observation_noise))
        health = Health(
            variance=jnp.where(active, jnp.min(gain.variance), jnp.inf),
            consistency=gain.weight * jnp.sum(white**2),
            gain=gain.share,
            capped=capped,
            floored=jnp.sum(noise > R).astype(R.dtype),
        )
        return moved, Fit(0.5 * jnp.mean(found**2), health)

    def sample(belief: GaussianBelief, key: jax.Array) -> jax.Array:
        return belief.theta + structure_of(belief.theta).deviate(belief.P, key)

    def spread(belief: GaussianBelief, H: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.sum(structure_of(belief.theta).times(belief.P, H) * H, axis=1), 0.0)

    posterior = Posterior(
        sample=sample,
        spread=spread,
        variances=lambda belief: structure_of(belief.theta).variances(belief.P),
        covariance=lambda belief: structure_of(belief.theta).dense(belief.P),
        definite=lambda belief: structure_of(belief.theta).definite(belief.P),
    )
    return Estimator(init, update, lambda belief: belief.theta, posterior)


def _with_noise(belief: GaussianBelief, noise: jax.Array) -> GaussianBelief:
    return GaussianBelief(theta=belief.theta, P=belief.P, observation_noise=noise, updates=belief.updates)


# --- as the settings of a run name it --------------------------------------------------------------------

CovarianceKind = Literal["full", "layer", "neuron", "diagonal", "low_rank"]
_BY_WEIGHTS = CheckedElsewhere("the number of weights")


@dataclass(frozen=True)
class KalmanConfig:
    """A normal distribution over the weights, by the extended Kalman filter."""

    observation_noise: Positive = 1e-3
    """Pₙ, the variance of a label's noise; the joint update uses R = B·Pₙ for each observation."""
    process_noise: Annotated[Variances, variances.option("process_noise"), _BY_WEIGHTS] = 0.01
    """Pᵥ, what P grows by before an update: a number for every weight's variance, or a file with a vector or matrix."""
    prior_covariance: Annotated[Variances, variances.option("prior_covariance"), _BY_WEIGHTS] = 1.0
    """P₀: a number, or a .json or .npy file with a vector (its diagonal) or a full matrix."""
    batching: Batching = "averaged"
    """A mini-batch's gains averaged as the paper writes it, or its joint update."""
    learning_rate: Positive = 1.0
    """Step size α, multiplies the step of the mean; 1 is the filter."""
    covariance: CovarianceKind = "full"
    """How P is kept: whole, in blocks by layer or by neuron, its diagonal, or a diagonal and --rank directions."""
    rank: Count = 10
    """Directions that low_rank keeps."""
    fading: Fraction = 0.0
    """η of a fading memory: P becomes P/(1 − η) before an update."""
    variance_cap: Positive | None = None
    """Above it no weight's variance grows, neither by noise nor by fading."""
    noise_updates: Natural = 0
    """Updates over which the noises go, in equal factors, to their ends; 0 keeps them as they are."""
    observation_noise_end: Positive | None = None
    """Where Pₙ goes."""
    process_noise_end: Positive | None = None
    """Where Pᵥ goes, if it is a number."""
    adapt_noise: Probability = 0.0
    """Rate at which Pₙ follows the squared residuals; 0 keeps it as given."""
    iterations: Count = 1
    """Linearisations of an update, each at the result of the last."""


def _make(settings: KalmanConfig, context: Context) -> Estimator:
    # The paper's objective averages over the batch, which leaves each observation B times the noise.
    copies = context.batch_size if settings.batching == "joint" else 1
    structures: dict[str, Structure] = {
        "full": full,
        "layer": block(*context.network.slices),
        "neuron": block(*context.network.neurons),
        "diagonal": diagonal,
        "low_rank": low_rank(settings.rank),
    }
    return ekf(
        observation_noise=_schedule(
            settings, copies * settings.observation_noise, settings.observation_noise_end, copies
        ),
        process_noise=_schedule(settings, np.asarray(settings.process_noise), settings.process_noise_end),
        prior_covariance=np.asarray(settings.prior_covariance),
        batching=settings.batching,
        learning_rate=settings.learning_rate,
        covariance=structures[settings.covariance],
        fading=settings.fading,
        variance_cap=settings.variance_cap,
        adapt_noise=settings.adapt_noise,
        iterations=settings.iterations,
    )


def _schedule(settings: KalmanConfig, start: Any, end: float | None, copies: int = 1) -> Any:
    """A noise that goes in equal factors from start to end, or stays."""
    if end is None:
        return start
    factor = float(copies * end / start)
    return optax.exponential_decay(float(start), settings.noise_updates, factor, end_value=float(copies * end))


def _memory(settings: KalmanConfig, network: Weights) -> Memory:
    n = network.num_weights
    blocks = {
        "full": [n],
        "layer": [len(range(*layer.indices(n))) for layer in network.slices],
        "neuron": [len(range(*unit.indices(n))) for unit in network.neurons],
    }
    vectors = {"diagonal": 0, "low_rank": settings.rank}
    stored = sum(size**2 for size in blocks.get(settings.covariance, ())) + vectors.get(settings.covariance, 0) * n
    return Memory(
        NUMBERS_A_WEIGHT * n + stored,
        f"the covariance {settings.covariance} of",
        "use the covariance neuron, low_rank or diagonal, or fewer hidden units",
    )


def _check(settings: KalmanConfig, network: Weights, precision: Precision) -> None:
    n = network.num_weights
    variances.check_variances("prior_covariance", settings.prior_covariance, n, precision, definite=True)
    variances.check_variances("process_noise", settings.process_noise, n, precision, definite=False)
    for name in ("prior_covariance", "process_noise"):
        if np.ndim(getattr(settings, name)) == 2 and settings.covariance in ("diagonal", "low_rank"):
            raise DeeprokError(
                f"{name} is a matrix, which the covariance {settings.covariance} can't hold; give a vector, "
                "or use the covariance full, layer or neuron"
            )
    ends = (settings.observation_noise_end, settings.process_noise_end)
    if any(end is not None for end in ends) != (settings.noise_updates > 0):
        raise DeeprokError(
            f"noise_updates is {settings.noise_updates}; it must be positive if, and only if, "
            "observation_noise_end or process_noise_end is given"
        )
    if settings.process_noise_end is not None and not (np.ndim(settings.process_noise) == 0 and settings.process_noise):
        raise DeeprokError("process_noise_end is given; then process_noise must be a positive number")


def _warning(settings: KalmanConfig, context: Context) -> str | None:
    if settings.covariance in ("diagonal", "low_rank"):
        return None
    drift = np.diagonal(settings.process_noise) if np.ndim(settings.process_noise) == 2 else settings.process_noise
    noise = min(x for x in (settings.observation_noise, settings.observation_noise_end) if x is not None)
    least, most = float(np.min(drift)), float(np.max(settings.prior_covariance))
    copies = context.batch_size if settings.batching == "joint" else 1
    weights = context.network.num_weights
    if not float32_risk(copies * noise, least, most, context.updates, weights, context.batch_size, settings.batching):
        return None
    return (
        f"an observation noise of {noise:g} with a process noise of {least:g} and a prior covariance of {most:g} "
        "asks for more certainty than float32 can carry, so the filter will hold itself back; "
        "raise --observation-noise or --process-noise, or use --precision float64"
    )


def _metrics(settings: KalmanConfig, belief: GaussianBelief) -> dict[str, float]:
    return {"observation_noise": float(belief.observation_noise)} if settings.adapt_noise else {}


PART = Part(
    settings=KalmanConfig,
    make=_make,
    presets={
        "paper": KalmanConfig(),
        # The mean depends on the ratios 30 : 1e-6 : 1 alone. This scale makes Pₙ about the square
        # of what labels miss by, so that draws from N(θ, P) are policies too.
        "tuned": KalmanConfig(observation_noise=0.12, process_noise=4e-9, prior_covariance=0.004),
    },
    posterior=True,
    vmap_seeds=lambda settings: settings.covariance == "diagonal",
    memory=_memory,
    remedy=raise_noise,
    check=_check,
    warning=_warning,
    metrics=_metrics,
)
