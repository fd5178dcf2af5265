"""Worlds: simulators as pure functions of their physics."""

from deeprok.environments.base import Interval, World, branch, check_quantity, with_model
from deeprok.environments.cartpole import CartPole, cartpole
from deeprok.environments.registry import WORLDS

__all__ = ["WORLDS", "CartPole", "Interval", "World", "branch", "cartpole", "check_quantity", "with_model"]
