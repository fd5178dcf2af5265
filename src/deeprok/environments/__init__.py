"""Environments: simulators as pure functions of their parameters, and stateful ones such as Gymnasium's.

An environment of your own is a `pytree_dataclass` of `quantity` fields, its parameters, and two pure functions, in an
`Environment`; or a `gymnasium.Env` class, or what `from_gymnasium` makes of one; or any `Simulator` in a
`HostEnvironment`. It is named `module:object` wherever a built-in one is named.
"""

from deeprok.core.pytree import pytree_dataclass
from deeprok.environments.base import (
    Axis,
    Environment,
    EnvironmentPart,
    EpisodeSettings,
    Model,
    Outcome,
    StateGrid,
    Transition,
    branch,
    check_quantity,
    quantity,
    with_model,
)
from deeprok.environments.cartpole import CartPole, cartpole
from deeprok.environments.checks import Finding, check_environment
from deeprok.environments.drawing import Circle, Drawing, Line, Polygon, Text
from deeprok.environments.gymnasium import from_gymnasium
from deeprok.environments.host import Branching, HostEnvironment, HostOutcome, Simulator, make_parameters
from deeprok.environments.past import Past
from deeprok.environments.registry import ENVIRONMENTS
from deeprok.environments.rollout import Step, rollout
from deeprok.environments.simulation import Access
from deeprok.environments.spaces import ActionSpace, Choices, Interval

__all__ = [
    "ENVIRONMENTS",
    "Access",
    "ActionSpace",
    "Axis",
    "Branching",
    "CartPole",
    "Choices",
    "Circle",
    "Drawing",
    "Environment",
    "EnvironmentPart",
    "EpisodeSettings",
    "Finding",
    "HostEnvironment",
    "HostOutcome",
    "Interval",
    "Line",
    "Model",
    "Outcome",
    "Past",
    "Polygon",
    "Simulator",
    "StateGrid",
    "Step",
    "Text",
    "Transition",
    "branch",
    "cartpole",
    "check_environment",
    "check_quantity",
    "from_gymnasium",
    "make_parameters",
    "pytree_dataclass",
    "quantity",
    "rollout",
    "with_model",
]
