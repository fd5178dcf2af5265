"""An estimator: gradient steps with momentum, by optax; and an algorithm that uses it."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from deeprok.agents.algorithms import Algorithm
from deeprok.core.fields import Fraction, Positive
from deeprok.core.pytree import pytree_dataclass, select
from deeprok.estimators import Estimator, EstimatorPart, Fit, Memory


@pytree_dataclass
class State:
    theta: jax.Array  # [n]
    optimizer: Any


def momentum_sgd(learning_rate, momentum):
    rule = optax.sgd(learning_rate, momentum)

    def init(theta):
        return State(theta, rule.init(theta))

    def update(state, h, xs, ys, active=True, progress=0.0):
        """`h(theta, x)` predicts the target y of one x; xs and ys are a mini-batch."""

        def loss(theta):
            return 0.5 * jnp.mean((ys - jax.vmap(h, (None, 0))(theta, xs)) ** 2)

        value, slope = jax.value_and_grad(loss)(state.theta)
        change, optimizer = rule.update(slope, state.optimizer)
        moved = State(state.theta + change, optimizer)
        return select(jnp.asarray(active), moved, state), Fit(value, None)

    return Estimator(init, update, mean=lambda state: state.theta, posterior=None)


@dataclass(frozen=True)
class Settings:
    """Each field is an option of the command line; its type holds its bounds."""

    learning_rate: Positive = 1e-3
    """Step size."""
    momentum: Fraction = 0.9
    """Share of the last step that is repeated."""


MOMENTUM = EstimatorPart(
    settings=Settings,
    make=lambda settings, context: momentum_sgd(settings.learning_rate, settings.momentum),
    presets={"paper": Settings(), "tuned": Settings(learning_rate=3e-4)},
    posterior=False,
    vmap_seeds=lambda settings: True,  # a small state: seeds share a program
    memory=lambda settings, network: Memory(3 * network.num_weights, "momentum", "use fewer hidden units"),
    remedy=lambda settings: f"lower --learning-rate (now {settings.learning_rate:g})",
)

RTD_MOMENTUM = Algorithm("RTD-DQN with momentum", target="worst_case", estimator="my_estimator:MOMENTUM")
