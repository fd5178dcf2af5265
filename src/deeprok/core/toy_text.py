"""Gymnasium's environments that are tables, by their ids: they can be solved, and trained on."""

from __future__ import annotations

#: The names of their actions.
ACTIONS = {
    "FrozenLake-v1": ("left", "down", "right", "up"),
    "FrozenLake8x8-v1": ("left", "down", "right", "up"),
    "Taxi-v4": ("south", "north", "east", "west", "pick up", "drop off"),
    "CliffWalking-v1": ("up", "right", "down", "left"),
    "CliffWalkingSlippery-v1": ("up", "right", "down", "left"),
}
