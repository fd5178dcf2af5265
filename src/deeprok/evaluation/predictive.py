"""What a posterior over the weights says of Q in many states, to first order around its mean.

The variance of Q(s, a) is g P gᵀ with the gradient g. Within a layer g is an outer product of what
the layer is fed and what it does to Q. So the variance is a polynomial in few numbers, whose
coefficients are sums of P's entries, and what the layer is fed is the same for all actions: for the
default network a fourth of the multiplications of g P.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import View
from deeprok.agents.network import MLP, LayerGradient

#: `obs [E, D] -> (mean, deviation)` of Q [E, A].
QDistribution = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def q_distribution(view: View, belief: Any) -> QDistribution:
    """Mean and standard deviation of Q under a posterior; what depends on the posterior alone is computed once.

    Args:
      view: of a learner with a posterior.
      belief: the estimator's record.
    """
    network, posterior = view.network, view.posterior
    assert posterior
    theta, n = view.mean(belief), network.num_weights
    if not isinstance(network, MLP):  # of which nothing is known but its outputs
        assert view.values
        return partial(view.values, belief)
    if sum(leaf.size for leaf in jax.tree.leaves(belief)) >= n**2 // 4:
        blocks = covariance_blocks(network, posterior.covariance(belief))

        def variance(gradients: list[LayerGradient]) -> jax.Array:
            return quadratic_form(blocks, gradients)

    else:  # a posterior that keeps few numbers has a short way for rows of gradients

        def variance(gradients: list[LayerGradient]) -> jax.Array:
            rows = gradient_rows(gradients)
            return posterior.predictive_variance(belief, rows.reshape(-1, n)).reshape(rows.shape[:-1])

    def at(obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, gradients = network.linearise(theta, obs)
        return view.correct(belief, mean, jnp.sqrt(jnp.maximum(variance(gradients), 0.0)))

    return at


def gradient_rows(gradients: list[LayerGradient]) -> jax.Array:
    """∂Q(s, a) / ∂θ [E, A, n]."""
    parts = [jnp.einsum("ei,eao->eaio", *gradient) for gradient in gradients]
    return jnp.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)


#: Of two layers: P's entries as [pairs of inputs, outputs of the first · outputs of the second].
Blocks = dict[tuple[int, int], jax.Array]


def covariance_blocks(network: MLP, P: jax.Array) -> Blocks:
    """P [n, n] in the order in which `quadratic_form` takes it; by symmetry half of it is enough."""
    shapes = [(inputs + 1, outputs) for inputs, outputs in itertools.pairwise(network.sizes)]
    blocks = {}
    for (first, (i, o)), (second, (k, p)) in itertools.combinations_with_replacement(enumerate(shapes), 2):
        block = P[network.slices[first], network.slices[second]].reshape(i, o, k, p).transpose(0, 2, 1, 3)
        if first == second:
            row, column = np.triu_indices(i)
            block = block[row, column] * np.where(row == column, 1.0, 2.0)[:, None, None].astype(P.dtype)
        else:
            block = 2.0 * block
        blocks[first, second] = block.reshape(-1, o * p)
    return blocks


def quadratic_form(blocks: Blocks, gradients: list[LayerGradient]) -> jax.Array:
    """The variance g P gᵀ [E, A] of each Q(s, a)."""
    total = jnp.zeros(gradients[0].outputs.shape[:2], gradients[0].outputs.dtype)
    for (first, second), block in blocks.items():
        a, b = gradients[first], gradients[second]
        if first == second:
            row, column = np.triu_indices(a.inputs.shape[1])
            fed = a.inputs[:, row] * a.inputs[:, column]
        else:
            fed = (a.inputs[:, :, None] * b.inputs[:, None, :]).reshape(len(a.inputs), -1)
        between = (fed @ block).reshape(-1, a.outputs.shape[2], b.outputs.shape[2])
        total += jnp.sum(a.outputs @ between * b.outputs, axis=2)
    return total
