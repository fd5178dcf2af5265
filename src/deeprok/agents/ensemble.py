"""Networks made of several: a network with a fixed prior beside it, an ensemble, and an actor with its critics.

The first two are sums of networks, so that an ensemble of perceptrons is one wide perceptron.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import jax.scipy.linalg

from deeprok.agents.network import MLP, Layer, Network


class Term(NamedTuple):
    """A perceptron in a sum of perceptrons."""

    factor: float
    network: MLP
    theta: jax.Array  # [n]


@runtime_checkable
class SumOfNetworks(Protocol):
    """A network whose outputs are a weighted sum of others' outputs."""

    def terms(self, theta: jax.Array) -> list[tuple[float, Network, jax.Array]]:
        """Of each network in the sum its factor, itself and its weights."""


class WithPrior(NamedTuple):
    """f(x; θ) + scale · f(x; p), for the flat vector of θ and then p.

    Attributes:
      network: f.
      scale: of the prior.
    """

    network: Network
    scale: float

    @property
    def num_weights(self) -> int:
        """The weights of both."""
        return 2 * self.network.num_weights

    @property
    def slices(self) -> tuple[slice, ...]:
        """The layers of one, then those of the other."""
        return _repeated(self.network.slices, self.network.num_weights, 2)

    @property
    def neurons(self) -> tuple[slice, ...]:
        """The neurons of one, then those of the other."""
        return _repeated(self.network.neurons, self.network.num_weights, 2)

    def init(self, key: jax.Array) -> jax.Array:
        """Both random."""
        return jax.vmap(self.network.init)(jax.random.split(key)).ravel()

    def terms(self, theta: jax.Array) -> list[tuple[float, Network, jax.Array]]:
        """The network and its prior."""
        own, prior = jnp.split(theta, 2)
        return [(1.0, self.network, own), (self.scale, self.network, prior)]

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        """The outputs [..., A] for observations [..., D]."""
        own, prior = jnp.split(theta, 2)
        return self.network.apply(own, obs) + self.scale * self.network.apply(prior, obs)


class Ensemble(NamedTuple):
    """The mean of the outputs of several networks, for the flat vector of all their weights, member by member.

    Attributes:
      member: one of them.
      members: K, how many.
    """

    member: Network
    members: int

    @property
    def num_weights(self) -> int:
        """The weights of all members."""
        return self.members * self.member.num_weights

    @property
    def slices(self) -> tuple[slice, ...]:
        """The layers of all members."""
        return _repeated(self.member.slices, self.member.num_weights, self.members)

    @property
    def neurons(self) -> tuple[slice, ...]:
        """The neurons of all members."""
        return _repeated(self.member.neurons, self.member.num_weights, self.members)

    def init(self, key: jax.Array) -> jax.Array:
        """Each member's own."""
        return jax.vmap(self.member.init)(jax.random.split(key, self.members)).ravel()

    def rows(self, theta: jax.Array) -> jax.Array:
        """The weights of each member, [K, n / K]."""
        return theta.reshape(self.members, -1)

    def terms(self, theta: jax.Array) -> list[tuple[float, Network, jax.Array]]:
        """All members, each a K-th."""
        return [(1.0 / self.members, self.member, row) for row in self.rows(theta)]

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        """The members' mean outputs [..., A] for observations [..., D]."""
        return jnp.mean(jax.vmap(self.member.apply, (0, None))(self.rows(theta), obs), axis=0)


#: Critics of an actor.
TWINS = 2


class ActorCritic(NamedTuple):
    """An actor and two critics, for the flat vector of the actor's weights and then those of each critic.

    As a network it is the actor: its outputs are places between −1 and 1 (`ActionSpace.at`).

    Attributes:
      actor: f of the action tanh f(s).
      critic: Q(s, a), for an observation followed by places; its one output.
    """

    actor: Network
    critic: Network

    @property
    def num_weights(self) -> int:
        """The weights of all three."""
        return self.actor.num_weights + TWINS * self.critic.num_weights

    @property
    def slices(self) -> tuple[slice, ...]:
        """The layers of the actor, then those of the critics."""
        return self._parts(self.actor.slices, self.critic.slices)

    @property
    def neurons(self) -> tuple[slice, ...]:
        """The neurons of the actor, then those of the critics."""
        return self._parts(self.actor.neurons, self.critic.neurons)

    def _parts(self, actor: tuple[slice, ...], critic: tuple[slice, ...]) -> tuple[slice, ...]:
        begin = self.actor.num_weights
        both = _repeated(critic, self.critic.num_weights, TWINS)
        return (*actor, *(slice(begin + part.start, begin + part.stop, part.step) for part in both))

    def init(self, key: jax.Array) -> jax.Array:
        """Each its own."""
        actor_key, *keys = jax.random.split(key, 1 + TWINS)
        return jnp.concatenate([self.actor.init(actor_key), *(self.critic.init(key) for key in keys)])

    def split(self, theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The weights of the actor [n_a] and of the critics [2, n_c]."""
        actor, critics = jnp.split(theta, [self.actor.num_weights])
        return actor, critics.reshape(TWINS, -1)

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        """The actor's places [..., A] for observations [..., D]."""
        return self.act(self.split(theta)[0], obs)

    def act(self, actor: jax.Array, obs: jax.Array) -> jax.Array:
        """The places [..., A] of an actor of these weights."""
        return jnp.tanh(self.actor.apply(actor, obs))

    def value(self, critic: jax.Array, obs: jax.Array, places: jax.Array) -> jax.Array:
        """Q(s, a) [...] of a critic of these weights, for observations [..., D] and places [..., A]."""
        return self.critic.apply(critic, jnp.concatenate([obs, places], axis=-1))[..., 0]


def _repeated(parts: tuple[slice, ...], size: int, times: int) -> tuple[slice, ...]:
    """The parts of several vectors of that size in the vector that they make."""
    return tuple(slice(k * size + part.start, k * size + part.stop, part.step) for k in range(times) for part in parts)


def as_perceptron(network: Network, theta: jax.Array) -> tuple[Network, jax.Array]:
    """The same function as one perceptron, if it is a sum of perceptrons of one activation; or what is given.

    The hidden layers stand side by side, and between two of them the weights are block-diagonal.
    """
    terms = _perceptrons(network, theta)
    if not isinstance(network, SumOfNetworks) or not terms:
        return network, theta
    layers = [term.network.layers(term.theta) for term in terms]
    first, *inner, last = zip(*layers, strict=True)
    merged = [
        Layer(jnp.concatenate([one.weights for one in first], axis=1), jnp.concatenate([one.bias for one in first])),
        *(
            Layer(jax.scipy.linalg.block_diag(*(one.weights for one in layer)), jnp.concatenate([b for _, b in layer]))
            for layer in inner
        ),
        Layer(
            jnp.concatenate([term.factor * one.weights for term, one in zip(terms, last, strict=True)]),
            sum((term.factor * one.bias for term, one in zip(terms, last, strict=True)), jnp.zeros(())),
        ),
    ]
    like = terms[0].network
    sizes = (like.sizes[0], *(len(layer.bias) for layer in merged))
    flat = jnp.concatenate([part.reshape(-1) for layer in merged for part in layer])
    return MLP(sizes, like.activation, like.input_scale), flat


def _perceptrons(network: Network, theta: jax.Array, factor: float = 1.0) -> list[Term]:
    """The perceptrons that a network is a sum of; none if one of its terms is something else."""
    if isinstance(network, MLP):
        return [Term(factor, network, theta)]
    if not isinstance(network, SumOfNetworks):
        return []
    parts = [_perceptrons(one, own, factor * its) for its, one, own in network.terms(theta)]
    return list(itertools.chain(*parts)) if all(parts) else []
