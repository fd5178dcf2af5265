"""What an estimator is: a belief over flat weights, updated from labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

#: An unbatched observation function, `(theta, x) -> scalar`; `x` is any pytree.
Observation = Callable[[jax.Array, Any], jax.Array]


class Fit(NamedTuple):
    """How an update found the labels, before it moved."""

    loss: jax.Array  # [] half the mean squared innovation y − h(θ, x)
    variance: jax.Array  # [] least innovation variance; infinite where none was estimated


class Update(Protocol):
    """The type of `Estimator.update`."""

    def __call__(
        self, belief: Any, h: Observation, xs: Any, ys: jax.Array, active: jax.Array | bool = True
    ) -> tuple[Any, Fit]:
        """Updates a belief from a mini-batch of B scalar observations.

        Args:
          belief: the estimator's own record.
          h: the observation function. A vector output is a stack of scalar observations.
          xs: B inputs, stacked along the first axis of each leaf.
          ys: [B] labels.
          active: a traced flag; where it is false the belief is returned unchanged, bit for bit.
        """
        ...


class Estimator(NamedTuple):
    """Learning as regression by a belief over one flat weight vector.

    Attributes:
      init: `theta -> belief`, the belief before any label.
      update: see `Update`.
      mean: `belief -> theta`, the point estimate.
      sample: `(belief, key) -> theta`, a draw from the belief; the mean if the belief is a point.
      posterior: whether the belief is more than a point.
    """

    init: Callable[[jax.Array], Any]
    update: Update
    mean: Callable[[Any], jax.Array]
    sample: Callable[[Any, jax.Array], jax.Array]
    posterior: bool
