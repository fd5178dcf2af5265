"""Environments: simulators as pure functions of their parameters.

An environment of your own is a `pytree_dataclass` of `quantity` fields, its parameters, and two pure functions, in an
`Environment`. It is named `module:object` wherever a built-in one is named.
"""

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import (
    Axis,
    Environment,
    EnvironmentPart,
    EpisodeSettings,
    Model,
    Outcome,
    Past,
    StateGrid,
    Transition,
    branch,
    check_quantity,
    quantity,
    with_model,
)
from deeprok.environments.cartpole import CartPole, cartpole
from deeprok.environments.registry import ENVIRONMENTS
from deeprok.environments.rollout import Step, rollout
from deeprok.environments.spaces import ActionSpace, Choices, Interval

__all__ = [
    "ENVIRONMENTS",
    "ActionSpace",
    "Axis",
    "CartPole",
    "Choices",
    "Environment",
    "EnvironmentPart",
    "EpisodeSettings",
    "Interval",
    "Model",
    "Outcome",
    "Past",
    "StateGrid",
    "Step",
    "Transition",
    "branch",
    "cartpole",
    "check_quantity",
    "pytree_dataclass",
    "quantity",
    "rollout",
    "with_model",
]
