"""The worlds that the command line knows by name."""

from collections.abc import Callable

from deeprok.worlds.base import World
from deeprok.worlds.cartpole import cartpole
from deeprok.worlds.deep_sea import deep_sea
from deeprok.worlds.ferry import ferry
from deeprok.worlds.pendulum import pendulum

WORLDS: dict[str, Callable[..., World]] = {
    "cartpole": cartpole,
    "deep_sea": deep_sea,
    "ferry": ferry,
    "pendulum": pendulum,
}
