"""Steps of a policy gradient: what actions are drawn from, what they were worth, and how the weights move.

Everything is a function of one flat vector of weights and of the steps of some trajectories, each of which
counts by its share. How shares come about is the caller's business.

R. S. Sutton, D. McAllester, S. Singh and Y. Mansour, "Policy gradient methods for reinforcement learning with
  function approximation", NIPS, 1999.
J. Schulman, S. Levine, P. Moritz, M. Jordan and P. Abbeel, "Trust region policy optimization", ICML, 2015.
J. Schulman, P. Moritz, S. Levine, M. Jordan and P. Abbeel, "High-dimensional continuous control using
  generalized advantage estimation", ICLR, 2016.
J. Schulman, F. Wolski, P. Dhariwal, A. Radford and O. Klimov, "Proximal policy optimization algorithms",
  arXiv:1707.06347, 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.sparse.linalg import cg

from deeprok.agents.network import Network
from deeprok.core.pytree import pytree_dataclass


class Distribution(NamedTuple):
    """What actions are drawn from, given the network's outputs [..., A] and the log deviations [A'].

    Attributes:
      deviations: A', how many log deviations belong to the weights.
      noise: `(key, shape) -> [*shape, A]`, what `draw` turns into actions.
      draw: `(outputs, log_deviation, noise) -> action`.
      log_density: `(outputs, log_deviation, action) -> [...]`.
      divergence: `(old outputs, old log deviation, outputs, log deviation) -> [...]`, KL(old ‖ new).
      entropy: `(outputs, log_deviation) -> [...]`.
    """

    deviations: int
    noise: Callable[[jax.Array, tuple[int, ...]], jax.Array]
    draw: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    log_density: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    divergence: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    entropy: Callable[[jax.Array, jax.Array], jax.Array]


def categorical(actions: int) -> Distribution:
    """One of some actions; the outputs are its logits."""

    def divergence(old: jax.Array, _: jax.Array, new: jax.Array, __: jax.Array) -> jax.Array:
        before = jax.nn.log_softmax(old)
        return jnp.sum(jnp.exp(before) * (before - jax.nn.log_softmax(new)), axis=-1)

    def log_density(outputs: jax.Array, _: jax.Array, action: jax.Array) -> jax.Array:
        # A sum over the few actions; a gather's derivative would be a scatter.
        chosen = action[..., None] == jnp.arange(actions)
        return jnp.sum(jnp.where(chosen, jax.nn.log_softmax(outputs), 0.0), axis=-1)

    def entropy(outputs: jax.Array, _: jax.Array) -> jax.Array:
        logs = jax.nn.log_softmax(outputs)
        return -jnp.sum(jnp.exp(logs) * logs, axis=-1)

    return Distribution(
        deviations=0,
        noise=lambda key, shape: jax.random.gumbel(key, (*shape, actions)),
        draw=lambda outputs, _, noise: jnp.argmax(outputs + noise, axis=-1).astype(jnp.int32),
        log_density=log_density,
        divergence=divergence,
        entropy=entropy,
    )


def gaussian(size: int) -> Distribution:
    """Numbers, each normal around an output with a deviation that is the same in every state."""

    def log_density(mean: jax.Array, log_deviation: jax.Array, action: jax.Array) -> jax.Array:
        z = (action - mean) * jnp.exp(-log_deviation)
        return jnp.sum(-0.5 * z * z - log_deviation - 0.5 * math.log(2 * math.pi), axis=-1)

    def divergence(mean: jax.Array, log_dev: jax.Array, new_mean: jax.Array, new_log_dev: jax.Array) -> jax.Array:
        spread = jnp.exp(2 * log_dev) + (mean - new_mean) ** 2
        return jnp.sum(new_log_dev - log_dev + 0.5 * spread * jnp.exp(-2 * new_log_dev) - 0.5, axis=-1)

    def entropy(mean: jax.Array, log_deviation: jax.Array) -> jax.Array:
        each = jnp.broadcast_to(log_deviation + 0.5 * math.log(2 * math.pi * math.e), mean.shape)
        return jnp.sum(each, axis=-1)

    return Distribution(
        deviations=size,
        noise=lambda key, shape: jax.random.normal(key, (*shape, size)),
        draw=lambda mean, log_deviation, noise: mean + jnp.exp(log_deviation) * noise,
        log_density=log_density,
        divergence=divergence,
        entropy=entropy,
    )


@pytree_dataclass
class Steps:
    """Steps of N trajectories, T each, as the policy that took them saw them."""

    obs: jax.Array  # [T, N, D]
    action: jax.Array  # [T, N] int32, or [T, N, A]
    outputs: jax.Array  # [T, N, A] what the network said
    log_density: jax.Array  # [T, N] of the action taken
    advantage: jax.Array  # [T, N]
    share: jax.Array  # [T, N] how much each counts: a distribution over steps, 0 after a trajectory's end


def returns_to_go(reward: jax.Array, discount: float) -> jax.Array:
    """Σ_k γᵏ r_{t+k} to the end, for rewards [T, ...] that are 0 after it."""

    def back(future: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = reward + discount * future
        return total, total

    return jax.lax.scan(back, jnp.zeros_like(reward[0]), reward, reverse=True)[1]


def advantages(reward: jax.Array, value: jax.Array, alive: jax.Array, discount: float, decay: float) -> jax.Array:
    """Generalised advantage estimates: Σ_k (γλ)ᵏ δ_{t+k} with δ_t = r_t + γ V_{t+1} − V_t.

    A trajectory's return is that of its T steps, so nothing is worth anything after them.

    Args:
      reward: [T, ...].
      value: [T, ...] V, the baseline.
      alive: [T, ...] bool, whether a step was taken.
      discount: γ.
      decay: λ; 1 takes all rewards that came, 0 the next one and the baseline.
    """
    value = jnp.where(alive, value, 0.0)
    following = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    surprise = jnp.where(alive, reward + discount * following - value, 0.0)
    return returns_to_go(surprise, discount * decay)


def time_features(obs: jax.Array, scale: tuple[float, ...]) -> jax.Array:
    """What the baseline is linear in: observations, their products, and powers of time.

    Args:
      obs: [T, N, D].
      scale: [D] a typical size of each observation.

    Returns:
      [T, N, F]
    """
    steps = obs.shape[0]
    x = jnp.clip(obs / np.asarray(scale, obs.dtype), -10.0, 10.0)
    i, j = np.triu_indices(x.shape[-1])
    time = jnp.linspace(0.0, 1.0, steps, dtype=obs.dtype)[:, None] ** np.arange(4)
    time = jnp.broadcast_to(time[:, None, :], (steps, obs.shape[1], 4))
    return jnp.concatenate([x, x[..., i] * x[..., j], time], axis=-1)


def ridge(features: jax.Array, labels: jax.Array, share: jax.Array, penalty: float = 1e-5) -> jax.Array:
    """Weights [F] of the least squares Σ share (y − wᵀx)² + penalty wᵀw; the shares sum to 1."""
    x, y, weight = features.reshape(-1, features.shape[-1]), labels.reshape(-1), share.reshape(-1)
    weighted = x * weight[:, None]
    gram = weighted.T @ x + penalty * jnp.eye(x.shape[1], dtype=x.dtype)
    return jax.scipy.linalg.solve(gram, weighted.T @ y, assume_a="pos")


class Surrogate(NamedTuple):
    """What a step moves up, and what it must not move far; both as functions of the weights [n + A'].

    Attributes:
      ratio: `(weights, steps) -> [T, N]`, how much likelier each action became.
      gain: `(weights, steps) -> []`, Σ share · ratio · advantage.
      clipped: `(weights, steps, clip, entropy) -> []`, PPO's lower bound of it, and a reward for entropy.
      divergence: `(weights, steps, log_deviation) -> []`, the mean KL from the policy that took the steps.
    """

    ratio: Callable[[jax.Array, Steps], jax.Array]
    gain: Callable[[jax.Array, Steps], jax.Array]
    clipped: Callable[[jax.Array, Steps, float, float], jax.Array]
    divergence: Callable[[jax.Array, Steps, jax.Array], jax.Array]


def make_surrogate(network: Network, distribution: Distribution) -> Surrogate:
    """The objective of a network's weights followed by the log deviations of its actions."""
    n = network.num_weights

    def ratio(weights: jax.Array, steps: Steps) -> jax.Array:
        outputs = network.apply(weights[:n], steps.obs)
        return jnp.exp(distribution.log_density(outputs, weights[n:], steps.action) - steps.log_density)

    def gain(weights: jax.Array, steps: Steps) -> jax.Array:
        return jnp.sum(steps.share * ratio(weights, steps) * steps.advantage)

    def clipped(weights: jax.Array, steps: Steps, clip: float, entropy: float) -> jax.Array:
        outputs = network.apply(weights[:n], steps.obs)
        r = jnp.exp(distribution.log_density(outputs, weights[n:], steps.action) - steps.log_density)
        least = jnp.minimum(r * steps.advantage, jnp.clip(r, 1.0 - clip, 1.0 + clip) * steps.advantage)
        bonus = entropy * distribution.entropy(outputs, weights[n:]) if entropy else 0.0
        return jnp.sum(steps.share * (least + bonus))

    def divergence(weights: jax.Array, steps: Steps, log_deviation: jax.Array) -> jax.Array:
        outputs = network.apply(weights[:n], steps.obs)
        moved = distribution.divergence(steps.outputs, log_deviation, outputs, weights[n:])
        return jnp.sum(steps.share * moved)

    return Surrogate(ratio, gain, clipped, divergence)


_CG_ITERATIONS = 10
_BACKTRACKS = 10


def natural_step(
    gain: Callable[[jax.Array], jax.Array],
    divergence: Callable[[jax.Array], jax.Array],
    weights: jax.Array,
    bound: float,
    damping: float = 1e-5,
) -> jax.Array:
    """The step of TRPO: along the natural gradient F⁻¹g, as far as a divergence allows.

    F is the divergence's second derivative at the weights. The step has √(2·bound / xᵀFx) times the length
    of x = F⁻¹g, and is halved until the gain has grown and the divergence is within its bound. If it never
    is, the weights stay.

    Args:
      gain: `weights -> []`, to be raised.
      divergence: `weights -> []`, 0 with a slope of 0 at the weights.
      weights: [n].
      bound: δ, what the divergence may be.
      damping: added to the diagonal of F.
    """
    before, slope = jax.value_and_grad(gain)(weights)

    # Once, and not in every step of conjugate gradients: all of them must see one and the same matrix.
    curve = jax.linearize(jax.grad(divergence), weights)[1]

    def fisher(v: jax.Array) -> jax.Array:
        product: jax.Array = curve(v)
        return product + damping * v

    direction, _ = cg(fisher, slope, maxiter=_CG_ITERATIONS, tol=1e-6)
    # Rounding may make F indefinite, and conjugate gradients overflow; the plain gradient then serves.
    direction = jnp.where(jnp.isfinite(jnp.vdot(direction, direction)), direction, slope)
    # At the solution xᵀFx is xᵀg; short of it the product itself is what counts.
    curvature = jnp.vdot(direction, fisher(direction))
    length = jnp.where(curvature > 0, jnp.sqrt(2 * bound / jnp.where(curvature > 0, curvature, 1.0)), 0.0)
    full = length * direction

    def good(candidate: jax.Array) -> jax.Array:
        return (gain(candidate) > before) & (divergence(candidate) <= bound)

    def halve(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        tried, _, _ = state
        candidate = weights + 0.5**tried * full
        return tried + 1, candidate, good(candidate)

    def searching(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return (state[0] < _BACKTRACKS) & ~state[2]

    start = (jnp.zeros((), weights.dtype), weights, jnp.array(False))
    _, candidate, found = jax.lax.while_loop(searching, halve, start)
    return jnp.where(found, candidate, weights)


def proximal_steps(
    objective: Callable[[jax.Array, Steps], jax.Array],
    rule: optax.GradientTransformation,
    weights: jax.Array,
    memory: Any,
    steps: Steps,
    key: jax.Array,
    epochs: int,
    minibatches: int,
) -> tuple[jax.Array, Any]:
    """The steps of PPO: some passes over the trajectories, each in random mini-batches of whole ones.

    Args:
      objective: `(weights, steps) -> []`, to be raised.
      rule: the optimizer.
      weights: [n].
      memory: the optimizer's state.
      steps: of N trajectories, N a multiple of `minibatches`.
      key: decides the mini-batches.
      epochs: passes.
      minibatches: mini-batches in a pass.
    """
    count = steps.share.shape[1]
    orders = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, epochs))

    def one(state: tuple[jax.Array, Any], chosen: jax.Array) -> tuple[tuple[jax.Array, Any], None]:
        weights, memory = state
        batch = jax.tree.map(lambda leaf: leaf[:, chosen], steps) if minibatches > 1 else steps
        # Of a part of the trajectories each stands for as many more.
        slope = jax.grad(lambda w: -minibatches * objective(w, batch))(weights)
        change, memory = rule.update(slope, memory, weights)
        return (optax.apply_updates(weights, change), memory), None

    batches = orders.reshape(epochs * minibatches, count // minibatches)
    (weights, memory), _ = jax.lax.scan(one, (weights, memory), batches)
    return weights, memory
