"""Worlds: simulators as pure functions of their physics."""

from deeprok.worlds.base import Interval, World, branch, check_quantity, with_model
from deeprok.worlds.cartpole import CartPole, cartpole
from deeprok.worlds.registry import WORLDS

__all__ = ["WORLDS", "CartPole", "Interval", "World", "branch", "cartpole", "check_quantity", "with_model"]
