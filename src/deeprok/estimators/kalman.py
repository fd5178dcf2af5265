"""The extended Kalman filter: a Gaussian posterior N(θ, P) over a network's weights.

S. Di-Castro Shashua and S. Mannor, "Deep Robust Kalman Filter", 2017, Algorithm 2.
S. Singhal and L. Wu, "Training multilayer perceptrons with the extended Kalman algorithm", 1988.
B. M. Bell and F. W. Cathey, "The iterated Kalman filter update as a Gauss-Newton method", 1993.
A. H. Mohamed and K. P. Schwarz, "Adaptive Kalman filtering for INS/GPS", Journal of Geodesy, 1999:
observation noise estimated from residuals.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import (
    CheckedElsewhere,
    Count,
    Fraction,
    Natural,
    NotNegative,
    Positive,
    Precision,
    Share,
    added,
)
from deeprok.core.pytree import pytree_dataclass
from deeprok.core.search import Range, Searched, Space
from deeprok.estimators import variances
from deeprok.estimators.averaging import averaged
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
    Schedule,
    Weights,
    map_theta,
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
from deeprok.estimators.fading import Fading, fade
from deeprok.estimators.gains import (
    Batching,
    averaged_gains,
    float32_risk,
    inflate_noise,
    joint_update,
    posterior_variance,
)
from deeprok.estimators.variances import Variances

#: Rate of the moving average of the squared innovations that R is a share of.
_NOISE_RATE = 0.01


@pytree_dataclass
class GaussianBelief:
    """A Gaussian posterior over the weights."""

    theta: jax.Array  # [n] mean
    P: Any  # the covariance, as the structure's record
    observation_noise: jax.Array  # [] R, the last one if it follows the innovations
    updates: jax.Array  # [] int32


def _evolved(variances: jax.Array, evolution: Evolution) -> jax.Array:
    """The diagonal of D P D + Q from that of P."""
    scale, noise = evolution
    scaled = variances if scale is None else variances * scale**2
    return scaled + (jnp.diagonal(noise) if noise.ndim == 2 else noise)


def ekf(
    observation_noise: float | Schedule = 1e-3,
    process_noise: float | np.ndarray | Schedule = 0.01,
    prior_covariance: float | np.ndarray = 1.0,
    batching: Batching = "averaged",
    learning_rate: float = 1.0,
    covariance: Structure = full,
    fading: float | Fading = 0.0,
    variance_cap: float | np.ndarray | None = None,
    adapt_noise: float = 0.0,
    iterations: int = 1,
    noise_share: float = 0.0,
) -> Estimator:
    """The extended Kalman filter over the weights of h(θ, x).

    Schedules are functions of the number of updates; any schedule of optax is one.

    Args:
      observation_noise: R, the variance of the observation noise: a number or a schedule.
      process_noise: Pᵥ, added to P before every update: a number or a schedule of numbers, for all variances; a vector,
        one for each; or a matrix.
      prior_covariance: P₀: a number, a vector (its diagonal) or a matrix.
      batching: `averaged` gains as in the paper's Algorithm 2, or the `joint` update of the mini-batch.
      learning_rate: α, multiplies the step of the mean; 1 is the Kalman filter.
      covariance: the structure of P: `full`, `block(*slices)`, `diagonal` or `low_rank(rank)`.
      fading: η of the fading-memory filter: P becomes P / (1 − η) before every update; a number, or a function of the
        number of updates and of the fraction of the budget that is used.
      variance_cap: upper limit of each weight's variance, a number or a vector; neither process noise nor fading raises
        it above.
      adapt_noise: rate of the moving average that estimates R from squared residuals; 0 keeps R as given.
      iterations: linearisations per update (the iterated filter): each at the last result, all from the same prior.
      noise_share: R follows this share of the running mean of squared innovations, and is `observation_noise` at least;
        0 keeps R as given.
    """
    gains = averaged_gains if batching == "averaged" else joint_update
    if not callable(fading) and not 0.0 <= fading < 1.0:
        raise DeeprokError(f"fading is {fading:g}; it must be at least 0 and below 1")
    if not 0.0 <= adapt_noise <= 1.0:
        raise DeeprokError(f"adapt_noise is {adapt_noise:g}; it must be between 0 and 1")
    if iterations < 1:
        raise DeeprokError(f"iterations is {iterations}; it must be at least 1")
    if noise_share < 0.0:
        raise DeeprokError(f"noise_share is {noise_share:g}; it must be at least 0")
    if noise_share and adapt_noise:
        raise DeeprokError("noise_share and adapt_noise are both ways to find R; give one of them")

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
            raise DeeprokError("the prior covariance or process noise is a matrix; it needs a full or block covariance")
        updates = jnp.int32(0)
        first = observation_noise(updates) if callable(observation_noise) else observation_noise
        return GaussianBelief(
            theta=theta,
            P=structure.init(prior if prior.ndim == 2 else jnp.broadcast_to(prior, theta.shape)),
            observation_noise=jnp.asarray(first, theta.dtype),
            updates=updates,
        )

    def evolution_of(
        structure: Covariance, belief: GaussianBelief, progress: jax.Array | float
    ) -> tuple[Evolution, dict[str, jax.Array]]:
        """The prediction step; and if there is a cap, how many variances it limits."""
        dtype = belief.theta.dtype
        noise = jnp.asarray(process_noise(belief.updates) if callable(process_noise) else process_noise, dtype)
        faded = fading(belief.updates, progress) if callable(fading) else fading
        growth = jnp.asarray(1.0 / (1.0 - faded), dtype)
        if variance_cap is None:
            scale = jnp.broadcast_to(jnp.sqrt(growth), belief.theta.shape) if fading else None
            return Evolution(scale, noise), {}
        variances = structure.variances(belief.P)
        # Fading comes first, then as much noise as the cap leaves room for. A variance above the cap is not lowered.
        cap = jnp.asarray(variance_cap, dtype)
        allowed = jnp.clip(cap / variances, 1.0, growth)
        room = jnp.maximum(cap - variances * allowed, 0.0)
        wanted = jnp.diagonal(noise) if noise.ndim == 2 else jnp.broadcast_to(noise, variances.shape)
        capped = jnp.sum((allowed < growth) | (wanted > room))
        if noise.ndim == 2:
            shrink = jnp.sqrt(jnp.minimum(1.0, room / jnp.maximum(wanted, np.finfo(dtype).tiny)))
            noise = shrink[:, None] * shrink[None, :] * noise
        else:
            noise = jnp.minimum(wanted, room)
        return Evolution(jnp.sqrt(allowed) if fading else None, noise), {"capped": capped.astype(dtype)}

    def update(
        belief: GaussianBelief,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[GaussianBelief, Fit]:
        active = jnp.asarray(active)
        structure = structure_of(belief.theta)
        evolution, counts = evolution_of(structure, belief, progress)
        R = belief.observation_noise
        if noise_share or (callable(observation_noise) and not adapt_noise):
            given = observation_noise(belief.updates) if callable(observation_noise) else observation_noise
            R = jnp.asarray(given, belief.theta.dtype)
        rounding_scale = _evolved(structure.rounding_scale(belief.P, prior_variances(belief.theta)), evolution)
        step = jnp.zeros_like(belief.theta)
        for iteration in range(iterations):
            theta = belief.theta + step if iteration else belief.theta
            values, H = jax.vmap(jax.value_and_grad(h), (None, 0))(theta, xs)
            # Relative to the prior mean, not to the point of linearisation.
            innovation = ys - values + (H @ step if iteration else 0.0)
            if iteration == 0:
                first_innovation = innovation
                if noise_share:
                    # The mean of all at first, as the noise that the filter begins with says nothing of them.
                    rate = jnp.maximum(1.0 / (belief.updates + 1.0), _NOISE_RATE)
                    share = noise_share * jnp.mean(innovation**2)
                    R = jnp.maximum(R, (1.0 - rate) * belief.observation_noise + rate * share)
            HP = structure.project(belief.P, evolution, H)
            G, scale = over_columns(lambda H, HP, scale: (HP @ H.T, (H * H) @ scale), H, HP, rounding_scale)
            noise = inflate_noise(G, gains, scale, R, H.shape[1])
            found = gains(G, noise)
            white = whiten(found.whitening, innovation)
            step = whiten(found.whitening.T, white) @ HP
        moved = GaussianBelief(
            theta=belief.theta + jnp.where(active, learning_rate * step, 0.0),
            P=structure.correct(belief.P, evolution, Correction(H, HP, found.whitening, found.information, active)),
            observation_noise=jnp.where(active, R, belief.observation_noise)
            if noise_share
            else belief.observation_noise,
            updates=belief.updates + active,
        )
        if adapt_noise:
            # Residuals underestimate the noise by the posterior variance of the prediction.
            current = jnp.mean((innovation - H @ step) ** 2 + posterior_variance(G, found))
            estimated = (1.0 - adapt_noise) * R + adapt_noise * current
            noise_estimate = jnp.where(active, estimated, belief.observation_noise)
            moved = dataclasses.replace(moved, observation_noise=noise_estimate)
        health = Health(
            variance=jnp.where(active, jnp.min(found.variance), jnp.inf),
            consistency=found.weight * jnp.sum(white**2),
            gain=found.gain,
            extras=counts | {"floored": jnp.sum(noise > R).astype(R.dtype)},
        )
        return moved, Fit(0.5 * jnp.mean(first_innovation**2), health)

    def sample(belief: GaussianBelief, key: jax.Array) -> jax.Array:
        return belief.theta + structure_of(belief.theta).sample(belief.P, key)

    def predictive_variance(belief: GaussianBelief, H: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.sum(structure_of(belief.theta).times(belief.P, H) * H, axis=1), 0.0)

    posterior = Posterior(
        sample=sample,
        predictive_variance=predictive_variance,
        variances=lambda belief: structure_of(belief.theta).variances(belief.P),
        covariance=lambda belief: structure_of(belief.theta).dense(belief.P),
        definite=lambda belief: structure_of(belief.theta).definite(belief.P),
    )
    return Estimator(init, update, lambda belief: belief.theta, posterior, map_theta)


# --- settings ----------------------------------------------------------------------------------------------

CovarianceKind = Literal["full", "layer", "neuron", "diagonal", "low_rank"]
_BY_WEIGHTS = CheckedElsewhere("the number of weights")


@dataclass(frozen=True)
class KalmanConfig:
    """A Gaussian posterior over the weights, by the extended Kalman filter."""

    observation_noise: Positive = 1e-3
    """Pₙ, the variance of the targets' noise; the joint update uses R = B·Pₙ for each observation."""
    process_noise: Annotated[Variances, variances.option("process_noise"), _BY_WEIGHTS] = 0.01
    """Pᵥ, added to P before every update: a number for every weight's variance, or a file with a vector or matrix."""
    prior_covariance: Annotated[Variances, variances.option("prior_covariance"), _BY_WEIGHTS] = 1.0
    """P₀: a number, or a .json or .npy file with a vector (its diagonal) or a full matrix."""
    batching: Batching = "averaged"
    """Average the gains of a mini-batch as in the paper, or update with the whole mini-batch jointly."""
    learning_rate: Positive = 1.0
    """Step size α, multiplies the step of the mean; 1 is the Kalman filter."""
    averaging: Fraction = added(0.0)
    """Rate of the moving average of the mean that acts and is copied to the target network; 0 averages none."""
    covariance: CovarianceKind = "full"
    """Structure of P: full, blocks by layer or by neuron, diagonal, or a diagonal and --rank directions."""
    rank: Count = 10
    """Number of directions of the covariance low_rank."""
    remembered: Share = added(1.0)
    """Fraction of the past updates that the filter remembers; older ones fade, since their targets were worse."""
    window: Natural = added(0)
    """Updates that the filter remembers at most; more at the end of the budget, where it settles. 0: any number."""
    noise_share: NotNegative = added(0.0)
    """Pₙ follows this share of the mean squared innovation, from --observation-noise upwards; 0: Pₙ is fixed."""


def _make(settings: KalmanConfig, context: Context) -> Estimator:
    # The paper's objective averages over the batch: each observation counts as if its noise were B times as large.
    copies = context.batch_size if settings.batching == "joint" else 1
    structures: dict[str, Structure] = {
        "full": full,
        "layer": block(*context.network.slices),
        "neuron": block(*context.network.neurons),
        "diagonal": diagonal,
        "low_rank": low_rank(settings.rank),
    }
    # What is not observed must not become more uncertain than it was at first.
    fades: dict[str, Any] = {}
    if settings.remembered < 1.0 or settings.window:
        prior = np.asarray(settings.prior_covariance)
        fades = {
            "fading": fade(settings.remembered, settings.window),
            "variance_cap": np.diagonal(prior) if prior.ndim == 2 else prior,
        }
    filtered = ekf(
        observation_noise=copies * settings.observation_noise,
        process_noise=np.asarray(settings.process_noise),
        prior_covariance=np.asarray(settings.prior_covariance),
        batching=settings.batching,
        learning_rate=settings.learning_rate,
        covariance=structures[settings.covariance],
        noise_share=copies * settings.noise_share,
        **fades,
    )
    return averaged(filtered, settings.averaging)


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
                f"{name} is a matrix, which the covariance {settings.covariance} can't represent; give a vector, "
                "or use the covariance full, layer or neuron"
            )


def _metrics(settings: KalmanConfig, belief: Any) -> dict[str, float]:
    if not settings.noise_share:
        return {}
    return {"observation_noise": float((belief.inner if settings.averaging else belief).observation_noise)}


def _warning(settings: KalmanConfig, context: Context) -> str | None:
    # Where Pₙ follows the innovations its size is not known before.
    if settings.covariance in ("diagonal", "low_rank") or settings.noise_share:
        return None
    drift = np.diagonal(settings.process_noise) if np.ndim(settings.process_noise) == 2 else settings.process_noise
    noise = settings.observation_noise
    least, most = float(np.min(drift)), float(np.max(settings.prior_covariance))
    copies = context.batch_size if settings.batching == "joint" else 1
    weights = context.network.num_weights
    # Of updates that fade in proportion, t of them weigh as much as t · r / (1 + r) that don't.
    remembered = settings.remembered
    updates = int(context.updates * (remembered / (1.0 + remembered) if remembered < 1.0 else 1.0))
    if not float32_risk(copies * noise, least, most, updates, weights, context.batch_size, settings.batching):
        return None
    return (
        f"an observation noise of {noise:g} with a process noise of {least:g} and a prior covariance of {most:g} "
        "leads to variances below the rounding error of float32, so the filter will raise the observation noise; "
        "raise --observation-noise or --process-noise, or use --precision float64"
    )


def _search(settings: KalmanConfig) -> Space:
    found: dict[str, Searched] = {"observation_noise": Range(1e-6, 1.0, log=True)}
    found |= {} if isinstance(settings.prior_covariance, tuple) else {"prior_covariance": Range(1e-4, 1.0, log=True)}
    own = {"window": Range(20, 1000, log=True)} if settings.window else {"process_noise": Range(1e-9, 1e-4, log=True)}
    found |= {"noise_share": Range(0.02, 1.0, log=True)} if settings.noise_share else {}
    found |= {"averaging": Range(1e-3, 0.03, log=True)} if settings.averaging else {}
    return found | own | {"hidden": ((10, 10), (20, 20), (30, 30)), "batch_size": Range(8, 32, log=True)}


PART = EstimatorPart(
    settings=KalmanConfig,
    make=_make,
    presets={
        "paper": KalmanConfig(),
        # The mean depends only on the ratios 30 : 1e-6 : 1. This scale makes Pₙ about the squared TD error, so that
        # samples from N(θ, P) are good policies too.
        "tuned": KalmanConfig(observation_noise=0.12, process_noise=4e-9, prior_covariance=0.004),
        # In units in which observations and targets are of size one.
        "default": KalmanConfig(
            observation_noise=3e-5,
            process_noise=0.0,
            prior_covariance=1e-3,
            remembered=0.1,
            batching="joint",
            window=100,
            noise_share=0.2,
            averaging=0.005,
            covariance="low_rank",
        ),
    },
    # An update costs more than one of a gradient, and learns more. The averaged weights, which act, are the target
    # network too.
    run={
        "default": {
            "hidden": (32, 32),
            "batch_size": 16,
            "train_every": 1,
            "target_rate": 1.0,
            "recalibrate": True,
        }
    },
    posterior=True,
    vmap_seeds=lambda settings: settings.covariance == "diagonal",
    memory=_memory,
    remedy=raise_noise,
    check=_check,
    warning=_warning,
    metrics=_metrics,
    search=_search,
)
