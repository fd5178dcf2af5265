"""What an estimator is: a belief over flat weights, updated from labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from deeprok.core.fields import Precision

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


# --- how a run finds an estimator ----------------------------------------------------------------------


class Weights(Protocol):
    """What an estimator may know of the network whose weights it estimates."""

    @property
    def num_weights(self) -> int:
        """n, the length of θ."""

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each layer's weights lie in θ."""

    @property
    def neurons(self) -> tuple[slice, ...]:
        """Where each unit's weights lie in θ."""


class Context(NamedTuple):
    """What an estimator may know of the run that it is made for."""

    network: Weights
    batch_size: int
    updates: int  # in the whole run
    data_size: Schedule  # transitions that the replay holds after so many updates


class Memory(NamedTuple):
    """What a belief takes."""

    numbers: int
    what: str  # as a sentence names it
    instead: str  # what to change if it is too much


def _nothing(*_: Any) -> None:
    return None


def _no_metrics(*_: Any) -> dict[str, float]:
    return {}


class Part(NamedTuple):
    """An estimator as the settings of a run name it: all that the rest of the package knows of it.

    Attributes:
      settings: a dataclass whose fields' types are those of `deeprok.core.fields`.
      make: `(settings, Context) -> Estimator`; None where weights are not learned from targets.
      presets: preset -> its settings.
      posterior: whether the belief is more than a point.
      vmap_seeds: `settings -> bool`, whether several seeds share a compiled program: small states leave a core idle,
        a covariance fills its cache by itself.
      memory: `(settings, network) -> Memory`.
      remedy: `settings -> str`, what to change when a run breaks down.
      check: `(settings, network, precision) -> None`; raises where settings don't fit each other or the network.
      warning: `(settings, Context) -> str | None`, what a user should know before training in single precision.
      metrics: `(settings, belief) -> dict`, numbers for a line of metrics.
      online: whether each transition is learned from once, when it happens.
    """

    settings: type[Any]
    make: Callable[[Any, Context], Estimator] | None
    presets: Mapping[str, Any]
    posterior: bool
    vmap_seeds: Callable[[Any], bool]
    memory: Callable[[Any, Weights], Memory]
    remedy: Callable[[Any], str]
    check: Callable[[Any, Weights, Precision], None] = _nothing
    warning: Callable[[Any, Context], str | None] = _nothing
    metrics: Callable[[Any, Any], dict[str, float]] = _no_metrics
    online: bool = False


#: Numbers stored for each weight, whatever the estimator: the weights, those of the target network, and two moments of
#: a gradient or as much.
NUMBERS_A_WEIGHT = 4


def memory_of_vectors(count: Callable[[Any], int]) -> Callable[[Any, Weights], Memory]:
    """The memory of an estimator that stores some vectors as long as the weights, beside what all of them do."""

    def memory(settings: Any, network: Weights) -> Memory:
        n = network.num_weights
        return Memory((NUMBERS_A_WEIGHT + count(settings)) * n, "the belief over", "use fewer hidden units")

    return memory


def lower_rate(settings: Any) -> str:
    """The remedy where a step size may be too large."""
    return f"lower --learning-rate (now {settings.learning_rate:g})"


def raise_noise(settings: Any) -> str:
    """The remedy where a filter may trust its observations too much."""
    return f"raise --observation-noise (now {settings.observation_noise:g}) or --process-noise"
