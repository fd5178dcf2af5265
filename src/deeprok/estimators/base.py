"""What an estimator is: a belief over flat weights, updated from labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

#: An unbatched observation function, `(theta, x) -> scalar`; `x` is any pytree.
Observation = Callable[[jax.Array, Any], jax.Array]
#: `updates so far -> value`; any schedule of optax is one.
Schedule = Callable[[jax.Array], jax.Array]


class Health(NamedTuple):
    """How sure a belief was of what an update told it, and whether it had to be held back."""

    variance: jax.Array  # [] least innovation variance; infinite where there was no update
    consistency: jax.Array  # [] mean of squared innovations over their variances: 1 where the belief is right
    gain: jax.Array  # [] mean share of an innovation that its own prediction takes over, 0 to 1
    capped: jax.Array  # [] weights whose variance was kept from growing
    floored: jax.Array  # [] observations that would have made the belief surer than its arithmetic can carry


class Fit(NamedTuple):
    """How an update found the labels, before it moved."""

    loss: jax.Array  # [] half the mean squared innovation y − h(θ, x)
    health: Health | None  # of the belief, if it is more than a point


class Update(Protocol):
    """The type of `Estimator.update`."""

    def __call__(
        self, belief: Any, h: Observation, xs: Any, ys: jax.Array, active: jax.Array | bool = True
    ) -> tuple[Any, Fit]:
        """Updates a belief from a mini-batch of B scalar observations.

        Args:
          belief: the estimator's own record.
          h: the observation function. A vector output is a stack of scalar observations: `stack_outputs`.
          xs: B inputs, stacked along the first axis of each leaf.
          ys: [B] labels.
          active: a traced flag; where it is false the belief is returned unchanged, bit for bit.
        """
        ...


class Posterior(NamedTuple):
    """What a belief that is more than a point can be asked.

    Attributes:
      sample: `(belief, key) -> theta`, a draw.
      spread: `(belief, H) -> [B]`, the variance of each direction, a row of H [B, n].
      variances: `belief -> [n]`, of each weight.
      covariance: `belief -> [n, n]`, for few weights.
      definite: `belief -> []`, whether it is a distribution still.
    """

    sample: Callable[[Any, jax.Array], jax.Array]
    spread: Callable[[Any, jax.Array], jax.Array]
    variances: Callable[[Any], jax.Array]
    covariance: Callable[[Any], jax.Array]
    definite: Callable[[Any], jax.Array]


class Estimator(NamedTuple):
    """Learning as regression by a belief over one flat weight vector.

    Attributes:
      init: `theta -> belief`, the belief before any label.
      update: see `Update`.
      mean: `belief -> theta`, the point estimate.
      posterior: what more can be asked; None if the belief is a point.
    """

    init: Callable[[jax.Array], Any]
    update: Update
    mean: Callable[[Any], jax.Array]
    posterior: Posterior | None


class Keeper(NamedTuple):
    """The part of an estimator that those who look at a belief use; all there is where labels are not learned from.

    Attributes:
      mean: `belief -> theta`, the point estimate.
      posterior: what more can be asked; None if the belief is a point.
    """

    mean: Callable[[Any], jax.Array]
    posterior: Posterior | None


class Prediction(NamedTuple):
    """A normal distribution of h(θ, x) for each of B inputs."""

    mean: jax.Array  # [B]
    variance: jax.Array  # [B] of h itself, without the noise of a label


def predict(estimator: Estimator, belief: Any, h: Observation, xs: Any) -> Prediction:
    """What a belief says of h at some inputs, to first order around its mean.

    Args:
      estimator: keeper of the belief.
      belief: its record.
      h: the observation function.
      xs: B inputs, stacked along the first axis of each leaf.
    """
    mean, H = jax.vmap(jax.value_and_grad(h), (None, 0))(estimator.mean(belief), xs)
    posterior = estimator.posterior
    return Prediction(mean, posterior.spread(belief, H) if posterior else jnp.zeros_like(mean))


def stack_outputs(
    f: Callable[[jax.Array, Any], jax.Array], xs: Any, ys: jax.Array
) -> tuple[Observation, Any, jax.Array]:
    """A vector output as a stack of scalar observations.

    Args:
      f: `(theta, x) -> [O]`.
      xs: B inputs, stacked along the first axis of each leaf.
      ys: [B, O] labels.

    Returns:
      The observation function of pairs (x, i), the B·O pairs, and their labels [B·O].
    """
    outputs = ys.shape[1]
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, outputs, axis=0), xs)
    index = jnp.tile(jnp.arange(outputs), ys.shape[0])
    return lambda theta, pair: f(theta, pair[0])[pair[1]], (repeated, index), ys.reshape(-1)
