"""The worlds that the command line knows by name."""

from collections.abc import Callable

from deeprok.environments.base import World
from deeprok.environments.cartpole import cartpole
from deeprok.environments.deep_sea import deep_sea
from deeprok.environments.ferry import ferry
from deeprok.environments.pendulum import pendulum

WORLDS: dict[str, Callable[..., World]] = {
    "cartpole": cartpole,
    "deep_sea": deep_sea,
    "ferry": ferry,
    "pendulum": pendulum,
}
