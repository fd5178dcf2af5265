"""The estimator protocol: regression on observations y = h(θ, x) + noise, with a point estimate of θ or a posterior.

An estimator is an `Estimator(init, update, mean, posterior)` of pure functions. Its state, called `belief`, is a
pytree: the point estimate or the posterior over the flat weight vector θ, with what the next update needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from deeprok.core.fields import Precision
from deeprok.core.search import Space, nothing_searched

#: An unbatched observation function, `(theta, x) -> scalar`; `x` is any pytree.
Observation = Callable[[jax.Array, Any], jax.Array]
#: `updates so far -> value`; any schedule of optax is one.
Schedule = Callable[[jax.Array], jax.Array]


class Health(NamedTuple):
    """Diagnostics of one update of a posterior.

    Attributes:
      variance: [] the smallest innovation variance; infinite where there was no update.
      consistency: [] the mean of the squared innovations over their variances. Its expectation is 1 if the posterior
        is calibrated.
      gain: [] mean Kalman gain in observation space, diag(H P Hᵀ S⁻¹), from 0 to 1.
      extras: counts [] that only some estimators have, by their name in the metrics.
    """

    variance: jax.Array
    consistency: jax.Array
    gain: jax.Array
    extras: dict[str, jax.Array] | None = None


class Fit(NamedTuple):
    """How well the observations were predicted before the update."""

    loss: jax.Array  # [] half the mean squared innovation y − h(θ, x)
    health: Health | None  # None for a point estimate
    measures: dict[str, jax.Array] | None = None  # more numbers [] that a learner has, by their name in the metrics


class UpdateFunction(Protocol):
    """The type of `Estimator.update`."""

    def __call__(
        self,
        belief: Any,
        h: Observation,
        xs: Any,
        ys: jax.Array,
        active: jax.Array | bool = True,
        progress: jax.Array | float = 0.0,
    ) -> tuple[Any, Fit]:
        """Updates the state from a mini-batch of B scalar observations.

        Args:
          belief: the estimator's state.
          h: the observation function. For vector outputs see `stack_outputs`.
          xs: B inputs, stacked along the first axis of each leaf.
          ys: [B] observations: the TD targets of a value function, or the targets of any regression.
          active: a traced flag; where it is false the state is returned unchanged, bit for bit.
          progress: the fraction of the run's budget that is used up, for schedules.
        """
        ...


class Posterior(NamedTuple):
    """Functions of a posterior over the weights.

    Attributes:
      sample: `(belief, key) -> theta`, a sample of the weights.
      predictive_variance: `(belief, H) -> [B]`, diag(H P Hᵀ) for gradients H [B, n]: the variance of B linear functions
        of the weights.
      variances: `belief -> [n]`, of each weight.
      covariance: `belief -> [n, n]`; for few weights only.
      definite: `belief -> []`, whether all numbers are finite and all variances positive.
    """

    sample: Callable[[Any, jax.Array], jax.Array]
    predictive_variance: Callable[[Any, jax.Array], jax.Array]
    variances: Callable[[Any], jax.Array]
    covariance: Callable[[Any], jax.Array]
    definite: Callable[[Any], jax.Array]


class Estimator(NamedTuple):
    """An estimator of one flat weight vector.

    Attributes:
      init: `theta -> belief`, the state before any observation.
      update: see `UpdateFunction`.
      mean: `belief -> theta`, the point estimate.
      posterior: functions of the posterior; None for a point estimate.
      map_weights: `(belief, f) -> belief`, the state after each weight vector θ in it was replaced by f(θ), an affine
        map close to the identity: the same function in slightly other units. Second moments may stay as they are.
        None if it can't be done.
    """

    init: Callable[[jax.Array], Any]
    update: UpdateFunction
    mean: Callable[[Any], jax.Array]
    posterior: Posterior | None
    map_weights: Callable[[Any, Callable[[jax.Array], jax.Array]], Any] | None = None


def map_theta(belief: Any, f: Callable[[jax.Array], jax.Array]) -> Any:
    """`Estimator.map_weights` of a state whose only weight vector is `theta`."""
    return dataclasses.replace(belief, theta=f(belief.theta))


class Prediction(NamedTuple):
    """The predictive distribution of h(θ, x), a Gaussian for each of B inputs."""

    mean: jax.Array  # [B]
    variance: jax.Array  # [B] of h itself, without observation noise


def predict(estimator: Estimator, belief: Any, h: Observation, xs: Any) -> Prediction:
    """The predictive distribution of h at some inputs, to first order around the mean of the weights.

    Args:
      estimator: the estimator.
      belief: its state.
      h: the observation function.
      xs: B inputs, stacked along the first axis of each leaf.
    """
    mean, H = jax.vmap(jax.value_and_grad(h), (None, 0))(estimator.mean(belief), xs)
    posterior = estimator.posterior
    return Prediction(mean, posterior.predictive_variance(belief, H) if posterior else jnp.zeros_like(mean))


def stack_outputs(
    f: Callable[[jax.Array, Any], jax.Array], xs: Any, ys: jax.Array
) -> tuple[Observation, Any, jax.Array]:
    """Turns vector observations into a stack of scalar ones.

    Args:
      f: `(theta, x) -> [O]`.
      xs: B inputs, stacked along the first axis of each leaf.
      ys: [B, O] observations.

    Returns:
      The observation function of pairs (x, i), the B·O pairs, and their observations [B·O].
    """
    outputs = ys.shape[1]
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, outputs, axis=0), xs)
    index = jnp.tile(jnp.arange(outputs), ys.shape[0])
    return lambda theta, pair: f(theta, pair[0])[pair[1]], (repeated, index), ys.reshape(-1)


# --- registration ----------------------------------------------------------------------------------------


class Weights(Protocol):
    """The network's weights, as an estimator needs to know them."""

    @property
    def num_weights(self) -> int:
        """n, the length of θ."""

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slice of θ that holds each layer's weights."""

    @property
    def neurons(self) -> tuple[slice, ...]:
        """The slice of θ that holds each unit's weights."""


class Context(NamedTuple):
    """The run that an estimator is made for."""

    network: Weights
    batch_size: int
    updates: int  # in the whole run
    data_size: Schedule  # number of updates -> transitions in the replay buffer


class Memory(NamedTuple):
    """The memory that an estimator's state takes."""

    numbers: int
    what: str  # the state, as an error message names it
    instead: str  # what to change if it is too large


def _nothing(*_: Any) -> None:
    return None


def _no_metrics(*_: Any) -> dict[str, float]:
    return {}


class EstimatorPart(NamedTuple):
    """An estimator as it is registered: its settings, presets and factory, and what the package needs to know of it.

    Attributes:
      settings: a dataclass whose fields have the types of `deeprok.core.fields`.
      make: `(settings, Context) -> Estimator`.
      presets: preset -> its settings.
      run: preset -> settings of the run, by name, that go with it.
      posterior: whether it has a posterior, not only a point estimate.
      vmap_seeds: `settings -> bool`, whether several seeds are trained by one vmapped program. That pays off for small
        states. A large covariance fills the cache by itself.
      memory: `(settings, network) -> Memory`.
      remedy: `settings -> str`, what to change when a run diverges.
      check: `(settings, network, precision) -> None`; raises if settings contradict each other or the network.
      warning: `(settings, Context) -> str | None`, a warning before training in single precision.
      metrics: `(settings, belief) -> dict`, additional metrics of the state.
      search: `settings -> Space`, what `deeprok tune` tries for its settings and for those of the run that go with it.
    """

    settings: type[Any]
    make: Callable[[Any, Context], Estimator]
    presets: Mapping[str, Any]
    posterior: bool
    vmap_seeds: Callable[[Any], bool]
    memory: Callable[[Any, Weights], Memory]
    remedy: Callable[[Any], str]
    check: Callable[[Any, Weights, Precision], None] = _nothing
    warning: Callable[[Any, Context], str | None] = _nothing
    metrics: Callable[[Any, Any], dict[str, float]] = _no_metrics
    run: Mapping[str, Mapping[str, Any]] = {}
    search: Callable[[Any], Space] = nothing_searched


#: Numbers stored per weight by every estimator: the weights, the target network's, and two moments of the gradient or
#: as much.
NUMBERS_A_WEIGHT = 4


def memory_of_vectors(count: Callable[[Any], int]) -> Callable[[Any, Weights], Memory]:
    """The memory of an estimator that stores so many vectors [n] besides what every estimator stores."""

    def memory(settings: Any, network: Weights) -> Memory:
        n = network.num_weights
        return Memory((NUMBERS_A_WEIGHT + count(settings)) * n, "the posterior over", "use fewer hidden units")

    return memory


def lower_rate(settings: Any) -> str:
    """The remedy if the step size may be too large."""
    return f"lower --learning-rate (now {settings.learning_rate:g})"


def raise_noise(settings: Any) -> str:
    """The remedy if a filter may trust its observations too much."""
    return f"raise --observation-noise (now {settings.observation_noise:g}) or --process-noise"
