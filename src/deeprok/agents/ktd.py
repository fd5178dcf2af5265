"""Kalman Temporal Differences: values learned on line by a filter that observes rewards.

The reward is the observation, a difference of values its observation function, and the unscented transform takes
the place of derivatives. The covariance is kept as a Cholesky factor.

M. Geist and O. Pietquin, "Kalman temporal differences", JAIR 39, 2010, arXiv:1406.3270.
R. van der Merwe and E. A. Wan, "The square-root unscented Kalman filter for state and parameter estimation",
  ICASSP 2001.
N. A. Carlson, "Fast triangular formulation of the square root filter", AIAA Journal, 1973.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents import targets as bellman
from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import record, select
from deeprok.environments.base import Transition
from deeprok.estimators.base import Fit, Health, Posterior, Prediction
from deeprok.uncertainty import WorstCase

#: `(theta, obs) -> V(s)`, a number.
Value = Callable[[jax.Array, jax.Array], jax.Array]
#: `(theta, obs) -> Q(s, ·)`, [A].
ActionValues = Callable[[jax.Array, jax.Array], jax.Array]


@record
class SarsaTransition(Transition):
    """One step and the action taken after it."""

    next_action: jax.Array  # [] int32


@record
class NoiseMemory:
    """The part of the last step's noise that the next step shares: a normal number that hangs together with θ."""

    mean: jax.Array  # []
    shared: jax.Array  # [n] its covariance with θ is S times this
    own: jax.Array  # [] deviation of what does not hang together with θ


@record
class KTDBelief:
    """A normal distribution over the weights, its covariance as P = S Sᵀ."""

    theta: jax.Array  # [n] mean
    S: jax.Array  # [n, n] lower triangle, its diagonal positive
    memory: NoiseMemory | None  # None where the noise is white
    updates: jax.Array  # [] int32


# --- what is observed ------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """An observation of temporal differences.

    Attributes:
      h: `(theta, transition, discount) -> []`, the observation function.
      y: `transition -> []`, what is observed.
      on_policy: whether it evaluates the policy that acts, which coloured noise presupposes.
    """

    h: Callable[[jax.Array, Any, float], jax.Array]
    y: Callable[[Any], jax.Array]
    on_policy: bool


def _reward(transition: Transition) -> jax.Array:
    return transition.reward[0]


def _future(transition: Transition, value: jax.Array, discount: float) -> jax.Array:
    return discount * jnp.where(transition.terminated[0], 0.0, value)


def v_difference(v: Value) -> Difference:
    """KTD-V: the reward is V(s) − γ V(s')."""

    def h(theta: jax.Array, x: Transition, discount: float) -> jax.Array:
        return v(theta, x.obs) - _future(x, v(theta, x.next_obs[0]), discount)

    return Difference(h, _reward, on_policy=True)


def sarsa_difference(q: ActionValues) -> Difference:
    """KTD-SARSA: the reward is Q(s, a) − γ Q(s', a'), of a `SarsaTransition`."""

    def h(theta: jax.Array, x: SarsaTransition, discount: float) -> jax.Array:
        return q(theta, x.obs)[x.action] - _future(x, q(theta, x.next_obs[0])[x.next_action], discount)

    return Difference(h, _reward, on_policy=True)


def q_difference(q: ActionValues) -> Difference:
    """KTD-Q: the reward is Q(s, a) − γ max Q(s', ·)."""

    def h(theta: jax.Array, x: Transition, discount: float) -> jax.Array:
        return q(theta, x.obs)[x.action] - _future(x, bellman.max_value(q(theta, x.next_obs[0])), discount)

    return Difference(h, _reward, on_policy=False)


def robust_difference(
    q: ActionValues,
    worst_case: Callable[[jax.Array, jax.Array, float | jax.Array], WorstCase],
    level: float | jax.Array = 0.0,
) -> Difference:
    """Robust KTD-Q: 0 is Q(s, a) − worst_m[r_m + γ max Q(s'_m, ·)] over the M models of a transition.

    Args:
      q: the action values.
      worst_case: the inner problem, from `deeprok.uncertainty`.
      level: the size of its set.
    """

    def h(theta: jax.Array, x: Transition, discount: float) -> jax.Array:
        next_value = jax.vmap(lambda obs: bellman.max_value(q(theta, obs)))(x.next_obs)
        label = bellman.label(x.reward, x.terminated, next_value, discount, worst_case, level)
        return q(theta, x.obs)[x.action] - label

    return Difference(h, lambda x: jnp.zeros((), x.reward.dtype), on_policy=False)


# --- the filter ------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """What the unscented transform says of a function of θ ~ N(θ̂, S Sᵀ)."""

    mean: jax.Array  # []
    slope: jax.Array  # [n] its covariance with θ is S times this
    bend: jax.Array  # [] the variance is slope² and this, which is 0 where the function is linear


def unscented(f: Callable[[jax.Array], jax.Array], theta: jax.Array, S: jax.Array, kappa: float = 0.0) -> Moments:
    """The unscented transform of f(θ), by 2n + 1 evaluations.

    The points are θ̂ and θ̂ ± √(n + κ) S_j with the weights κ / (n + κ) and 1 / (2 (n + κ)). A pair of them says how
    f changes along a column of S by its difference and how it bends by its mean; the variance is the sum of the
    squares of both.

    Args:
      f: `theta -> []`.
      theta: [n] mean.
      S: [n, n] a root of the covariance.
      kappa: κ, at least 0, so that no weight is negative.
    """
    squared = theta.size + kappa
    reach = jnp.sqrt(jnp.asarray(squared, theta.dtype)) * S.T
    centre, ahead, behind = f(theta), jax.vmap(f)(theta + reach), jax.vmap(f)(theta - reach)
    middle = 0.5 * (ahead + behind)
    mean = centre + jnp.sum(middle - centre) / squared
    bend = (jnp.sum((middle - mean) ** 2) + kappa * (centre - mean) ** 2) / squared
    return Moments(mean, 0.5 * (ahead - behind) / np.sqrt(squared), bend)


def condition(S: jax.Array, slope: jax.Array, rest: jax.Array) -> jax.Array:
    """The lower triangle whose square is S (I − d dᵀ / (dᵀd + ρ)) Sᵀ, in n² operations (Carlson).

    I − d dᵀ / (dᵀd + ρ) has a Cholesky factor in closed form, made of sums of positive numbers: what is left stays
    positive definite, however little it is.

    Args:
      S: [n, n] lower triangle.
      slope: [n] d, the covariance of the observation with θ in the coordinates of S.
      rest: ρ > 0, the part of the observation's variance that θ does not explain.
    """
    before = rest + jax.lax.cumsum(slope**2, reverse=True)
    after = jnp.append(before[1:], rest)
    beyond = jax.lax.cumsum(S * slope, axis=1, reverse=True)[:, 1:]
    beyond = jnp.pad(beyond, ((0, 0), (0, 1)))  # Σ_k S_ik d_k over k > j
    return S * jnp.sqrt(after / before) - beyond * (slope / jnp.sqrt(after * before))


def _root_of_sum(S: jax.Array, variances: jax.Array) -> jax.Array:
    """The lower triangle whose square is S Sᵀ + diag(variances), in n³ operations."""
    R = jnp.linalg.qr(jnp.concatenate([S.T, jnp.diag(jnp.sqrt(variances))]), mode="r")
    return (jnp.where(jnp.diagonal(R) < 0.0, -1.0, 1.0)[:, None] * R).T


def predict(f: Callable[[jax.Array, Any], jax.Array], belief: KTDBelief, xs: Any, kappa: float = 0.0) -> Prediction:
    """What a belief says of f at some inputs, by the unscented transform.

    Args:
      f: `(theta, x) -> []`, a value for instance.
      belief: the belief.
      xs: B inputs, stacked along the first axis of each leaf.
      kappa: κ of the transform.
    """

    def at(x: Any) -> Prediction:
        mean, slope, bend = unscented(lambda theta: f(theta, x), belief.theta, belief.S, kappa)
        return Prediction(mean, jnp.sum(slope**2) + bend)

    return jax.vmap(at)(xs)


class Update(Protocol):
    """The type of `KTD.update`."""

    def __call__(self, belief: KTDBelief, transition: Any, active: jax.Array | bool = True) -> tuple[KTDBelief, Fit]:
        """Learns from one transition.

        Args:
          belief: what is known.
          transition: a `Transition`, or what else the difference takes; unbatched.
          active: a traced flag; where it is false the belief is returned unchanged, bit for bit.
        """
        ...


class KTD(NamedTuple):
    """Kalman Temporal Differences.

    Attributes:
      init: `theta -> belief`, before any reward.
      update: see `Update`.
      restart: `(belief, cut) -> belief`. Where `cut`, the next transition does not follow the last one, although that
        did not end in a terminal state. It matters with coloured noise only.
      mean: `belief -> theta`, the point estimate.
      posterior: what more can be asked, as of any estimator.
    """

    init: Callable[[jax.Array], KTDBelief]
    update: Update
    restart: Callable[[KTDBelief, jax.Array | bool], KTDBelief]
    mean: Callable[[KTDBelief], jax.Array]
    posterior: Posterior


def ktd(
    difference: Difference,
    discount: float,
    observation_noise: float = 1.0,
    prior_covariance: float | np.ndarray = 1.0,
    adaptive_noise: float = 0.0,
    process_noise: float | np.ndarray = 0.0,
    coloured: bool = False,
    kappa: float = 0.0,
) -> KTD:
    """Kalman Temporal Differences with the unscented transform, in square-root form.

    Args:
      difference: what is observed: `v_difference`, `sarsa_difference`, `q_difference` or `robust_difference`.
      discount: γ.
      observation_noise: Pₙ, the variance of a reward's noise. If it is coloured, the variance σ² of what the noises
        of two steps share.
      prior_covariance: P₀: a number or a vector (its diagonal) or a matrix.
      adaptive_noise: η; P becomes (1 + η) P before an update.
      process_noise: Pᵥ, added to P before an update: a number, or a vector [n] of variances. It makes an update cost
        n³ operations instead of n².
      coloured: XKTD. The noise of a step is uᵢ − γ uᵢ₊₁ with independent u ~ N(0, σ²), which makes the estimate
        that of a regression on returns.
      kappa: κ of the unscented transform, at least 0.
    """
    if not 0.0 <= discount <= 1.0:
        raise DeeprokError(f"discount is {discount:g}; it must be between 0 and 1")
    if not observation_noise > 0.0:
        raise DeeprokError(f"observation_noise is {observation_noise:g}; it must be above 0")
    for field, value in {"adaptive_noise": adaptive_noise, "process_noise": process_noise, "kappa": kappa}.items():
        if not np.all(np.asarray(value) >= 0.0):
            raise DeeprokError(f"{field} is {np.min(value):g}; it must be at least 0")
    if coloured and not difference.on_policy:
        raise DeeprokError("coloured is True; it must be False where a maximum over actions is learned, off policy")
    growth = float(np.sqrt(1.0 + adaptive_noise))

    def fresh(theta: jax.Array) -> NoiseMemory:
        zero, deviation = jnp.zeros((), theta.dtype), jnp.sqrt(jnp.asarray(observation_noise, theta.dtype))
        return NoiseMemory(mean=zero, shared=jnp.zeros_like(theta), own=deviation)

    def init(theta: jax.Array) -> KTDBelief:
        prior = jnp.asarray(prior_covariance, theta.dtype)
        S = jnp.linalg.cholesky(prior) if prior.ndim == 2 else jnp.diag(jnp.broadcast_to(jnp.sqrt(prior), theta.shape))
        return KTDBelief(theta=theta, S=S, memory=fresh(theta) if coloured else None, updates=jnp.int32(0))

    def evolve(root: jax.Array, n: int) -> jax.Array:
        """The root of (θ, and the noise remembered if there is any) after a random step of θ."""
        if adaptive_noise:
            # θ takes in noise that the remembered number does not: what they share is a smaller part of both.
            S, shared, own = root[:n, :n] * growth, root[n:, :n] / growth, root[n:, n:]
            own = jnp.sqrt(own**2 + (growth**2 - 1.0) * jnp.sum(shared**2, axis=1, keepdims=True))
            root = _stacked(S, shared, own)
        if np.any(process_noise):
            added = jnp.broadcast_to(jnp.asarray(process_noise, root.dtype), (n,))
            root = _root_of_sum(root, jnp.pad(added, (0, len(root) - n)))
        return root

    def update(belief: KTDBelief, transition: Any, active: jax.Array | bool = True) -> tuple[KTDBelief, Fit]:
        n, dtype = belief.theta.size, belief.theta.dtype

        def h(theta: jax.Array) -> jax.Array:
            return difference.h(theta, transition, discount)

        if belief.memory is None:
            S = evolve(belief.S, n)
            mean, slope, bend = unscented(h, belief.theta, S, kappa)
            rest = bend + observation_noise
        else:
            last = belief.memory
            grown = evolve(_stacked(belief.S, last.shared[None], last.own[None, None]), n)
            S, shared, own = grown[:n, :n], grown[n, :n], grown[n, n]
            # The two noises of a step are two more variables. The points along them leave θ where it is.
            mean, slope, bend = unscented(h, belief.theta, S, kappa + 2.0)
            mean, slope, rest = mean + last.mean, slope + shared, bend + own**2
            # The next step's noise is the last variable, and after a terminal state it is a new one.
            new = fresh(belief.theta)
            follows = discount * jnp.where(transition.terminated[0], 0.0, 1.0).astype(dtype)
            slope = jnp.append(slope, -follows * new.own)
            S = _stacked(S, new.shared[None], new.own[None, None])

        innovation = difference.y(transition) - mean
        variance = jnp.sum(slope**2) + rest
        step = S @ slope * (innovation / variance)
        root = condition(S, slope, rest)
        memory = None
        if belief.memory is not None:
            memory = NoiseMemory(mean=step[n], shared=root[n, :n], own=root[n, n])
        moved = KTDBelief(theta=belief.theta + step[:n], S=root[:n, :n], memory=memory, updates=belief.updates + 1)
        health = Health(
            variance=jnp.where(active, variance, jnp.inf),
            consistency=innovation**2 / variance,
            gain=jnp.sum(slope[:n] ** 2) / variance,
            capped=jnp.zeros((), dtype),
            floored=jnp.zeros((), dtype),
        )
        return select(jnp.asarray(active), moved, belief), Fit(0.5 * innovation**2, health)

    def restart(belief: KTDBelief, cut: jax.Array | bool) -> KTDBelief:
        if belief.memory is None:
            return belief
        memory = select(jnp.asarray(cut), fresh(belief.theta), belief.memory)
        return KTDBelief(theta=belief.theta, S=belief.S, memory=memory, updates=belief.updates)

    return KTD(init, update, restart, lambda belief: belief.theta, _POSTERIOR)


def _stacked(S: jax.Array, shared: jax.Array, own: jax.Array) -> jax.Array:
    """The lower triangle [[S, 0], [shared, own]]."""
    return jnp.block([[S, jnp.zeros_like(shared.T)], [shared, own]])


def _sample(belief: KTDBelief, key: jax.Array) -> jax.Array:
    return belief.theta + belief.S @ jax.random.normal(key, belief.theta.shape, belief.theta.dtype)


def _definite(belief: KTDBelief) -> jax.Array:
    finite = jnp.all(jnp.isfinite(belief.theta)) & jnp.all(jnp.isfinite(belief.S))
    return finite & jnp.all(jnp.diagonal(belief.S) > 0.0)


_POSTERIOR = Posterior(
    sample=_sample,
    spread=lambda belief, H: jnp.sum((H @ belief.S) ** 2, axis=1),
    variances=lambda belief: jnp.sum(belief.S**2, axis=1),
    covariance=lambda belief: belief.S @ belief.S.T,
    definite=_definite,
)
