"""Policies made of trained weights: greedy on the mean, an ensemble of draws, or a lower confidence bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.learner import View
from deeprok.agents.network import Network
from deeprok.environments import ActionSpace
from deeprok.evaluation.predictive import q_distribution

PolicyKind = Literal["mean", "vote", "mean_q", "sample", "lcb"]
POLICIES: tuple[str, ...] = get_args(PolicyKind)

#: `obs [E, D] -> action [E]`, or [E, A] where actions are continuous.
Policy = Callable[[jax.Array], jax.Array]

#: `(weights, params) -> Policy`: what weights do in an environment of these parameters, which most don't look at.
PolicyOf = Callable[[Any, Any], Policy]


def ensemble_policy(network: Network, actions: ActionSpace, thetas: jax.Array, kind: PolicyKind) -> Policy:
    """What K weight vectors choose together.

    Args:
      network: the network.
      actions: what its outputs stand for.
      thetas: [K, n]; K = 1 for the policies `mean` and `sample`.
      kind: `vote` for the action that most members prefer (of equals the first), `mean_q` for the
        best on average; with one member both are its greedy action.
    """

    def act(obs: jax.Array) -> jax.Array:
        q = jax.vmap(network.apply, (0, None))(thetas, obs)  # [K, E, A]
        if kind == "vote":  # of Q-networks only
            votes = jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1])
            return jnp.argmax(jnp.sum(votes, axis=0), axis=-1)
        return actions.choose(jnp.mean(q, axis=0))

    return act


def weights_policy(network: Network, actions: ActionSpace, kind: PolicyKind) -> PolicyOf:
    """What weight vectors [K, n] choose together, whatever the parameters."""
    return lambda thetas, params: ensemble_policy(network, actions, thetas, kind)


def draw_members(view: View, belief: Any, kind: PolicyKind, members: int, seed: int) -> np.ndarray:
    """The weights [K, n] that a policy acts on: the mean's, or draws from the posterior."""
    if kind == "mean" or view.posterior is None:
        return np.asarray(view.mean(belief))[None]
    keys = jax.random.split(jax.random.key(seed), members)
    return np.asarray(jax.jit(jax.vmap(view.posterior.sample, (None, 0)))(belief, keys))


def cautious_policy(view: View, kappa: float) -> PolicyOf:
    """Acting on the lower confidence bound Q − κσ; the posterior takes the place of weights.

    Args:
      view: of a learner with a posterior.
      kappa: κ; 0 is the greedy action of the mean, below 0 the policy is optimistic.
    """

    def policy_of(belief: Any, params: Any) -> Policy:
        q = q_distribution(view, belief)

        def act(obs: jax.Array) -> jax.Array:
            mean, deviation = q(obs)
            return jnp.argmax(mean - kappa * deviation, axis=1)

        return act

    return policy_of
