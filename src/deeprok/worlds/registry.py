"""The worlds that the command line knows by name."""

from collections.abc import Callable

from deeprok.worlds.base import World
from deeprok.worlds.cartpole import cartpole

WORLDS: dict[str, Callable[..., World]] = {"cartpole": cartpole}
