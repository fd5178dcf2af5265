"""Distributions over a box of models that move: towards a target that was watched, or to a policy's worst model.

A point of the box is a vector in the unit cube, an entry for each quantity. A source is a product of normal
distributions cut off at the cube's sides.

A. Rajeswaran, S. Ghotra, B. Ravindran and S. Levine, "EPOpt: learning robust neural network policies using model
  ensembles", ICLR, 2017, arXiv:1610.01283.
R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization", Methodology and
  Computing in Applied Probability, 1999.
O. Cappé, A. Guillin, J.-M. Marin and C. P. Robert, "Population Monte Carlo", Journal of Computational and
  Graphical Statistics, 2004.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp, ndtr

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import Model
from deeprok.uncertainty import cvar
from deeprok.uncertainty.models import Box

#: A deviation, in widths of the box, with which a normal distribution cut off at its sides is uniform.
WIDE = 100.0


@pytree_dataclass
class Source:
    """What models are drawn from: for each of P quantities a normal distribution, cut off at the box."""

    mean: jax.Array  # [P] in the unit cube
    deviation: jax.Array  # [P] in widths of the box


def wide_source(quantities: int) -> Source:
    """The uniform distribution."""
    return Source(mean=jnp.full(quantities, 0.5), deviation=jnp.full(quantities, WIDE))


def draw(key: jax.Array, source: Source, count: int) -> jax.Array:
    """Points [count, P] of the unit cube."""
    low, high = -source.mean / source.deviation, (1.0 - source.mean) / source.deviation
    z = jax.random.truncated_normal(key, low, high, (count, *source.mean.shape))
    return jnp.clip(source.mean + source.deviation * z, 0.0, 1.0)


def log_density(source: Source, points: jax.Array) -> jax.Array:
    """Of points [..., P]."""
    z = (points - source.mean) / source.deviation
    low, high = -source.mean / source.deviation, (1.0 - source.mean) / source.deviation
    # Φ(high) − Φ(low) of numbers on both sides of 0.
    inside = jnp.log1p(-jnp.exp(log_ndtr(-high)) - jnp.exp(log_ndtr(low)))
    wide = (high - low) < 0.1  # there the difference is lost in rounding, and the density flat
    inside = jnp.where(wide, jnp.log(high - low) - 0.5 * math.log(2 * math.pi), inside)
    each = -0.5 * z * z - jnp.log(source.deviation) - 0.5 * math.log(2 * math.pi) - inside
    return jnp.sum(each, axis=-1)


def to_models(points: jax.Array, box: Box) -> Model:
    """Points [..., P] of the unit cube as models: name -> [...]."""
    return {name: low + (high - low) * points[..., i] for i, (name, (low, high)) in enumerate(box.items())}


def to_points(models: Model, box: Box) -> jax.Array:
    """The inverse of `to_models`."""
    return jnp.stack([(models[name] - low) / (high - low) for name, (low, high) in box.items()], axis=-1)


_ROUNDS = 12
_FIT_ROUNDS = 100
_LEAST_EFFECTIVE = 0.2  # of the particles
_POWERS = np.exp(-np.linspace(0.0, 40.0, 161))


def posterior(
    prior: Source, log_likelihood: Callable[[jax.Array], jax.Array], key: jax.Array, particles: int
) -> Source:
    """Bayes' rule by weighted particles, the posterior's moments fitted by a source.

    Steps of a target say so much that of particles drawn from the prior one would take all the weight. So
    the likelihood is raised to a power β, the largest that leaves a fifth of the particles in effect; the
    next particles are drawn from what fits these; and so on, until β is 1. The weights always count what
    the particles were drawn from, so that each round's answer is the tempered posterior's own.

    Args:
      prior: what was believed before.
      log_likelihood: `points [K, P] -> [K]`.
      key: decides the particles.
      particles: how many.
    """

    def weigh(points: jax.Array, proposal: Source) -> jax.Array:
        told = log_likelihood(points)
        offset = log_density(prior, points) - log_density(proposal, points)

        raw = offset + _POWERS[:, None] * (told - jnp.max(told))
        log_weights = raw - logsumexp(raw, axis=1, keepdims=True)
        in_effect = jnp.exp(-logsumexp(2 * log_weights, axis=1))
        enough = in_effect >= _LEAST_EFFECTIVE * particles
        # The largest power that leaves enough, or whatever leaves most.
        best = jnp.where(jnp.any(enough), jnp.argmax(enough), jnp.argmax(in_effect))
        return jnp.exp(log_weights[best])

    def round_(proposal: Source, key: jax.Array) -> tuple[Source, None]:
        points = draw(key, proposal, particles)
        return _fit(points, weigh(points, proposal)), None

    return _untruncated(jax.lax.scan(round_, prior, jax.random.split(key, _ROUNDS))[0])


def _fit(points: jax.Array, weights: jax.Array) -> Source:
    """Mean and deviation of weighted points."""
    mean = weights @ points
    variance = weights @ (points - mean) ** 2
    return Source(mean=mean, deviation=jnp.sqrt(variance) + 1e-6)


def _untruncated(moments: Source) -> Source:
    """The source that has these moments once it is cut off at the cube's sides, its mean kept within them.

    Without this a quantity of which nothing was learned would seem surer after each look.
    """

    def closer(_: int, source: Source) -> Source:
        found = cut_moments(source)
        return Source(
            mean=jnp.clip(source.mean + moments.mean - found.mean, 0.0, 1.0),
            deviation=jnp.minimum(source.deviation * moments.deviation / found.deviation, WIDE),
        )

    return jax.lax.fori_loop(0, _FIT_ROUNDS, closer, moments)


def cut_moments(source: Source) -> Source:
    """Mean and deviation of what is drawn from a source."""
    low, high = -source.mean / source.deviation, (1.0 - source.mean) / source.deviation
    wide = high - low < 0.1  # uniform, to rounding
    inside = jnp.where(wide, 1.0, ndtr(high) - ndtr(low))
    at_low, at_high = (jnp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) for z in (low, high))
    shift = (at_low - at_high) / inside
    variance = 1.0 + (low * at_low - high * at_high) / inside - shift * shift
    return Source(
        mean=jnp.where(wide, 0.5, source.mean + source.deviation * shift),
        deviation=jnp.where(wide, 1 / math.sqrt(12), source.deviation * jnp.sqrt(jnp.maximum(variance, 1e-12))),
    )


_ELITE = 0.25  # of the models tried, the worst
_LEAST_SEARCH = 0.05  # so that the search goes on when the policy has changed


def seek_worst(source: Source, points: jax.Array, returns: jax.Array, rate: float = 0.5) -> Source:
    """One step of the cross-entropy method towards models on which a policy earns least.

    Args:
      source: what the models were drawn from.
      points: [K, P] the models.
      returns: [K] what the policy earned on each.
      rate: how far the source goes to the worst quarter's moments.
    """
    uniform = jnp.full(returns.shape, 1.0 / returns.shape[0], points.dtype)
    worst = _fit(points, cvar(uniform, returns.astype(points.dtype), _ELITE).distribution)
    return Source(
        mean=source.mean + rate * (worst.mean - source.mean),
        deviation=jnp.maximum(jnp.minimum(source.deviation, 1.0) * (1 - rate) + rate * worst.deviation, _LEAST_SEARCH),
    )
