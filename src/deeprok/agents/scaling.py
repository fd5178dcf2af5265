"""Running normalisation: an estimator learns in units in which observations and targets are of size one.

Outside, nothing changes: the weights are those of the plain network, for observations and values as they are. Within,
they are written in other units (`RescalableNetwork.rescale`), which follow the data. When the units change the function
stays the same, as in PopArt (H. van Hasselt et al., "Learning values across many orders of magnitude", 2016). Targets
are divided by their root mean square and not centred: a network that begins at zero stays optimistic where rewards are
costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from deeprok.agents.network import Network, RescalableNetwork
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.estimators.base import Estimator, Fit, Observation, Posterior

#: Steps between changes of the units.
EVERY = 500
#: The targets move as the agent learns, so that their size is averaged over some thousand updates only.
_TARGET_RATE = 1e-3
#: An observation that hardly varies is not blown up.
_LEAST_SPREAD = 1e-3


@pytree_dataclass
class Scales:
    """The units that the network learns in."""

    centre: jax.Array  # [D] of the observations
    spread: jax.Array  # [D]
    size: jax.Array  # [] of the targets


@pytree_dataclass
class Statistics:
    """What was observed so far."""

    observed: jax.Array  # [] float, how many observations
    mean: jax.Array  # [D]
    variance: jax.Array  # [D]
    updates: jax.Array  # [] float, how many mini-batches of targets
    target_square: jax.Array  # [] running mean of the squared targets


@pytree_dataclass
class ScaledBelief:
    """An estimator's state in the units of `scales`."""

    inner: Any
    scales: Scales


def no_statistics(observations: int) -> Statistics:
    """Before anything was observed."""
    zero, row = jnp.zeros(()), jnp.zeros(observations)
    return Statistics(observed=zero, mean=row, variance=row, updates=zero, target_square=zero)


def with_observation(seen: Statistics, obs: jax.Array, active: jax.Array) -> Statistics:
    """The statistics with one more observation [D] (Welford's recursion)."""
    count = seen.observed + 1.0
    deviation = obs - seen.mean
    mean = seen.mean + deviation / count
    variance = seen.variance + (deviation * (obs - mean) - seen.variance) / count
    return select(active, dataclasses.replace(seen, observed=count, mean=mean, variance=variance), seen)


def with_targets(seen: Statistics, targets: jax.Array, active: jax.Array) -> Statistics:
    """The statistics with one more mini-batch of targets [B]."""
    updates = seen.updates + 1.0
    rate = jnp.maximum(1.0 / updates, _TARGET_RATE)
    square = seen.target_square + rate * (jnp.mean(targets**2) - seen.target_square)
    return select(active, dataclasses.replace(seen, updates=updates, target_square=square), seen)


def scales_of(seen: Statistics, typical: jax.Array) -> Scales:
    """The units that suit what was observed.

    Args:
      seen: the statistics.
      typical: [D] typical sizes of the observations, as the environment states them.
    """
    spread = jnp.sqrt(seen.variance)
    size = jnp.sqrt(seen.target_square)
    return Scales(
        centre=seen.mean,
        spread=jnp.where(spread > _LEAST_SPREAD * typical, spread, typical),
        size=jnp.where(size > 0.0, size, 1.0),
    )


def _first_scales(typical: tuple[float, ...], dtype: Any) -> Scales:
    """The units before anything was observed: typical sizes of the observations."""
    sizes = jnp.asarray(typical, dtype)
    return Scales(centre=jnp.zeros_like(sizes), spread=sizes, size=jnp.ones((), dtype))


def begun_at(
    estimator: Estimator,
    network: RescalableNetwork,
    typical: tuple[float, ...],
    theta: jax.Array,
    scales: Scales | None = None,
) -> ScaledBelief:
    """The state of `scaled` before any observation whose weights, outside the units, are these.

    Args:
      estimator: what estimates the weights within the units.
      network: the network.
      typical: typical sizes of the observations.
      theta: [n] weights of the plain network.
      scales: the units, if they are known already; by default the first ones of `scaled`.
    """
    units = scales or _first_scales(typical, theta.dtype)
    inside = network.rescale(theta, units.centre, units.spread, units.size, back=True)
    return ScaledBelief(inner=estimator.init(inside), scales=units)


def scaled(estimator: Estimator, network: RescalableNetwork, typical: tuple[float, ...]) -> Estimator:
    """The estimator of the network's weights that learns in units of its own.

    Args:
      estimator: what estimates the weights in these units.
      network: the network.
      typical: the units at first: typical sizes of the observations.
    """

    def outside(theta: jax.Array, scales: Scales) -> jax.Array:
        return network.rescale(theta, scales.centre, scales.spread, scales.size)

    def init(theta: jax.Array) -> ScaledBelief:
        return ScaledBelief(inner=estimator.init(theta), scales=_first_scales(typical, theta.dtype))

    def update(
        belief: ScaledBelief,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[ScaledBelief, Fit]:
        scales = belief.scales

        def within(theta: jax.Array, x: Any) -> jax.Array:
            return h(outside(theta, scales), x) / scales.size

        inner, fit = estimator.update(belief.inner, within, xs, ys / scales.size, active, progress)
        return ScaledBelief(inner=inner, scales=scales), fit._replace(loss=fit.loss * scales.size**2)

    def mean(belief: ScaledBelief) -> jax.Array:
        return outside(estimator.mean(belief.inner), belief.scales)

    def gradients_inside(belief: ScaledBelief, H: jax.Array) -> jax.Array:
        """Gradients [B, n] with respect to the weights inside, from those with respect to the weights outside."""
        pull_back = jax.vjp(lambda theta: outside(theta, belief.scales), estimator.mean(belief.inner))[1]
        return jax.vmap(lambda h: pull_back(h)[0])(H)

    def posterior_outside(own: Posterior) -> Posterior:
        def covariance(belief: ScaledBelief) -> jax.Array:
            J = gradients_inside(belief, jnp.eye(network.num_weights, dtype=belief.scales.size.dtype))
            return J @ own.covariance(belief.inner) @ J.T

        return Posterior(
            sample=lambda belief, key: outside(own.sample(belief.inner, key), belief.scales),
            predictive_variance=lambda belief, H: own.predictive_variance(belief.inner, gradients_inside(belief, H)),
            variances=lambda belief: own.variances(belief.inner),
            covariance=covariance,
            definite=lambda belief: own.definite(belief.inner),
        )

    return Estimator(init, update, mean, estimator.posterior and posterior_outside(estimator.posterior))


def rescaled(estimator: Estimator, network: RescalableNetwork, belief: ScaledBelief, new: Scales) -> ScaledBelief:
    """The same function in new units.

    Args:
      estimator: what estimates the weights within the units.
      network: the network.
      belief: the state in the old units.
      new: the new units.
    """
    old = belief.scales

    def other_units(theta: jax.Array) -> jax.Array:
        outside = network.rescale(theta, old.centre, old.spread, old.size)
        return network.rescale(outside, new.centre, new.spread, new.size, back=True)

    assert estimator.map_weights
    return ScaledBelief(inner=estimator.map_weights(belief.inner, other_units), scales=new)


class Units(NamedTuple):
    """How an estimator learns in units of its own."""

    follow: Callable[[Any, Statistics], Any] | None  # new units, as the statistics say; None if it has none
    begin_at: Callable[..., Any]  # `(theta, scales=None) -> belief`, as in `Learner`
    estimator: Estimator  # of the weights outside


def in_units(estimator: Estimator, network: Network, typical: tuple[float, ...], normalise: bool) -> Units:
    """The estimator in units that follow the data, if that is wanted and both it and the network can do it.

    Args:
      estimator: what estimates the weights.
      network: the network.
      typical: typical sizes of the observations.
      normalise: whether it is wanted.
    """
    if not (normalise and isinstance(network, RescalableNetwork) and estimator.map_weights is not None):
        return Units(None, lambda theta, scales=None: estimator.init(theta), estimator)

    def begin_at(theta: jax.Array, scales: Scales | None = None) -> Any:
        return begun_at(estimator, network, typical, theta, scales)

    def follow(belief: Any, seen: Statistics) -> Any:
        return rescaled(estimator, network, belief, scales_of(seen, jnp.asarray(typical)))

    return Units(follow, begin_at, scaled(estimator, network, typical))
