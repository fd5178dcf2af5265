"""Gymnasium's environments that are tables, such as FrozenLake, Taxi and CliffWalking, by their ids.

A transition that ends an episode leads to a state that is never left and earns nothing more. Where Gymnasium goes on
from the state that it names, as Taxi does after a delivery, such a state is added.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.toy_text import ACTIONS
from deeprok.tabular.literature import Names
from deeprok.tabular.model import RMDP, from_transitions


def is_id(name: str) -> bool:
    """Whether a name is a Gymnasium id, such as FrozenLake-v1."""
    return re.fullmatch(r"[\w.-]+-v\d+", name) is not None


def build(name: str, arguments: Mapping[str, Any]) -> tuple[RMDP, Names]:
    """The table of an environment, and names of its states and actions.

    Args:
      name: its id.
      arguments: what `gymnasium.make` is given beside the id.
    """
    try:
        gymnasium = import_module("gymnasium")
    except ImportError as error:
        raise DeeprokError(f"{name} is an environment of Gymnasium, which is missing: pip install gymnasium") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says it too
            env = gymnasium.make(name, **arguments)
    except Exception as error:  # whatever an environment raises for arguments that it can't use
        said = f"it does not know {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise DeeprokError(f"{name} can't be made by Gymnasium: {said}") from error
    with env:
        model = from_gymnasium(env)
    actions = ACTIONS.get(name, range(model.actions))
    table = len(env.unwrapped.P)
    return model, Names([*range(table), *(f"end {i}" for i in range(model.states - table))], actions)


def from_gymnasium(env: Any) -> RMDP:
    """A model from the table of a Gymnasium environment, with the same ids of states and actions.

    Args:
      env: an environment whose `unwrapped.P[state][action]` lists (probability, successor, reward, terminated).
    """
    table = getattr(env.unwrapped, "P", None)
    if not isinstance(table, Mapping):
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        raise DeeprokError(
            f"{name} has no table of transitions (env.unwrapped.P); those that have: {', '.join(ACTIONS)}"
        )
    try:
        rows = [
            (int(s), int(a), float(p), int(t), float(r), bool(ended))
            for s, actions in table.items()
            for a, outcomes in actions.items()
            for p, t, r, ended in outcomes
        ]
    except (AttributeError, TypeError, ValueError):
        entry = shown(next(iter(table.values()), None))
        raise DeeprokError(
            f"the table of transitions has {entry} for a state; it must have lists of (probability, successor, reward,"
            " terminated) by action"
        ) from None
    ends, actions = _ends(rows, len(table)), {a for _, a, *_ in rows}
    rows = [(s, a, p, ends[t] if ended else t, r, ended) for s, a, p, t, r, ended in rows]
    rows += [(end, a, 1.0, end, 0.0, True) for end in ends.values() if end >= len(table) for a in actions]
    state, action, probability, successor, reward, _ = zip(*rows, strict=True)
    return from_transitions(state, action, successor, probability, reward)


def _ends(rows: list[tuple[int, int, float, int, float, bool]], states: int) -> dict[int, int]:
    """Where an episode that ends in a state stays: in that state if it is never left and earns nothing, else a new one.

    One for each state, so that nature can tell an end that was earned from one that was not.
    """
    left = {s for s, _, p, t, r, _ in rows if p > 0 and (t != s or r != 0)}
    ends: dict[int, int] = {}
    for *_, t, _, ended in rows:
        if ended and t not in ends:
            ends[t] = t if t not in left else states + sum(end >= states for end in ends.values())
    return ends
