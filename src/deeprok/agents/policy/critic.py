"""Critics of a policy gradient: V, what a policy earns from a state on, as the baseline of its advantages.

Either V is linear in features of the observation and the time, or it is a network whose weights are kept by one of the
package's estimators: a point estimate by Adam, or a Gaussian posterior by the extended Kalman filter, the idea of KOVA.

S. Di-Castro Shashua and S. Mannor, "Kalman meets Bellman: improving policy evaluation through value tracking", 2020,
  arXiv:2002.07171.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.network import MLP
from deeprok.agents.policy.steps import ridge, time_features
from deeprok.agents.scaling import ScaledBelief, rescaled, scaled
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.estimators import Estimator, predict


class Critic(NamedTuple):
    """V, and how it is learned from the steps of an iteration: T steps of N trajectories.

    Attributes:
      init: `key -> state`, before any step.
      inputs: `obs [T, N, D] -> [T, N, F]`, what V is a function of.
      value: `(state, inputs) -> [T, N]`, V.
      fit: `(state, inputs, targets [T, N], share [T, N], key) -> state`. The shares are a distribution over the steps.
      deviation: `(state, inputs, share, key) -> []`, the mean standard deviation of V; None for a point estimate.
      bootstraps: whether the targets are the λ-returns, which contain V; if not they are the returns.
    """

    init: Callable[[jax.Array], Any]
    inputs: Callable[[jax.Array], jax.Array]
    value: Callable[[Any, jax.Array], jax.Array]
    fit: Callable[[Any, jax.Array, jax.Array, jax.Array, jax.Array], Any]
    deviation: Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array] | None = None
    bootstraps: bool = False


def linear_critic(scale: tuple[float, ...]) -> Critic:
    """V linear in `time_features`, fitted anew in every iteration.

    Args:
      scale: [D] a typical size of each observation.
    """
    features = time_features(jnp.zeros((1, 1, len(scale))), scale).shape[-1]
    return Critic(
        init=lambda key: jnp.zeros(features),
        inputs=lambda obs: time_features(obs, scale),
        value=lambda weights, x: x @ weights,
        fit=lambda weights, x, targets, share, key: ridge(x, targets, share),
    )


@pytree_dataclass
class NetworkState:
    """A network's weights as the estimator keeps them, in units in which targets are of size one."""

    belief: ScaledBelief
    square: jax.Array  # [] running mean of the squared targets
    fits: jax.Array  # [] int32, iterations that it has learned from


#: Of the running mean of the squared targets, which grow as the policy gets better.
_SIZE_RATE = 0.1


def critic_network(observations: int, hidden: tuple[int, ...]) -> MLP:
    """The network of V: of the scaled observations and the time, since a return ends with the horizon."""
    return MLP((observations + 1, *hidden, 1), "tanh", (1.0,) * (observations + 1))


def scaled_inputs(obs: jax.Array, scale: tuple[float, ...]) -> jax.Array:
    """What a network of V sees [T, N, D + 1]: observations in units of their typical size, and time from −1 to 1."""
    steps, count = obs.shape[:2]
    x = jnp.clip(obs / np.asarray(scale, obs.dtype), -10.0, 10.0)
    time = jnp.linspace(-1.0, 1.0, steps, dtype=obs.dtype)
    return jnp.concatenate([x, jnp.broadcast_to(time[:, None, None], (steps, count, 1))], axis=-1)


def network_critic(scale: tuple[float, ...], network: MLP, estimator: Estimator, updates: int, batch: int) -> Critic:
    """V as a network whose weights an estimator keeps from iteration to iteration.

    Args:
      scale: [D] a typical size of each observation.
      network: of `critic_network`.
      estimator: of its weights, for targets of size one.
      updates: mini-batches in an iteration.
      batch: steps in each.
    """
    inputs = network.sizes[0]
    outer = scaled(estimator, network, (1.0,) * inputs)

    def h(theta: jax.Array, x: jax.Array) -> jax.Array:
        return network.apply(theta, x)[0]

    def init(key: jax.Array) -> NetworkState:
        return NetworkState(belief=outer.init(network.init(key)), square=jnp.zeros(()), fits=jnp.int32(0))

    def value(state: NetworkState, x: jax.Array) -> jax.Array:
        return network.apply(outer.mean(state.belief), x)[..., 0]

    def fit(state: NetworkState, x: jax.Array, targets: jax.Array, share: jax.Array, key: jax.Array) -> NetworkState:
        state = in_units_of(state, jnp.sum(share * targets**2))
        chosen = draw_steps(share, updates * batch, key).reshape(updates, batch)
        xs, ys = x.reshape(-1, inputs), targets.reshape(-1)

        def one(belief: ScaledBelief, some: jax.Array) -> tuple[ScaledBelief, None]:
            return outer.update(belief, h, xs[some], ys[some])[0], None

        return dataclasses.replace(state, belief=jax.lax.scan(one, state.belief, chosen)[0])

    def in_units_of(state: NetworkState, square: jax.Array) -> NetworkState:
        """The same function in units that follow the targets; before it has learned anything, the same weights."""
        first = state.fits == 0
        square = jnp.where(first, square, state.square + _SIZE_RATE * (square - state.square))
        size = jnp.where(square > 0.0, jnp.sqrt(square), 1.0)
        new = dataclasses.replace(state.belief.scales, size=size)
        fresh = dataclasses.replace(state.belief, scales=new)
        belief = select(first, fresh, rescaled(estimator, network, state.belief, new))
        return NetworkState(belief=belief, square=square, fits=state.fits + 1)

    def deviation(state: NetworkState, x: jax.Array, share: jax.Array, key: jax.Array) -> jax.Array:
        some = x.reshape(-1, inputs)[draw_steps(share, batch, key)]
        return jnp.mean(jnp.sqrt(predict(outer, state.belief, h, some).variance))

    return Critic(
        init=init,
        inputs=lambda obs: scaled_inputs(obs, scale),
        value=value,
        fit=fit,
        deviation=deviation if estimator.posterior else None,
        bootstraps=True,
    )


_PARTS = 2**30  # that a distribution is divided into; sums of whole numbers are exact


def draw_steps(share: jax.Array, count: int, key: jax.Array) -> jax.Array:
    """Steps in random order, each as often as its share says, to within one: systematic sampling.

    A step without a share is never drawn.

    Args:
      share: [T, N], a distribution over steps.
      count: how many are drawn.
      key: decides where the sample begins, and the order.

    Returns:
      [count] int32, places in the flattened shares.
    """
    begin_key, order_key = jax.random.split(key)
    ends = jnp.cumsum(jnp.floor(share.reshape(-1) * _PARTS).astype(jnp.int32), dtype=jnp.int32)
    begin = jax.random.uniform(begin_key, dtype=share.dtype)
    points = (jnp.arange(count, dtype=share.dtype) + begin) / count * ends[-1].astype(share.dtype)
    drawn = jnp.searchsorted(ends, jnp.minimum(points.astype(jnp.int32), ends[-1] - 1), side="right")
    return jax.random.permutation(order_key, drawn.astype(jnp.int32))


def explained_variance(value: jax.Array, goal: jax.Array, share: jax.Array) -> jax.Array:
    """1 − Var(G − V) / Var(G) of returns G and values V [T, N], over the distribution of steps; 0 if G is constant."""

    def variance(x: jax.Array) -> jax.Array:
        return jnp.sum(share * (x - jnp.sum(share * x)) ** 2)

    total = variance(goal)
    return jnp.where(total > 0.0, 1.0 - variance(goal - value) / jnp.where(total > 0.0, total, 1.0), 0.0)
