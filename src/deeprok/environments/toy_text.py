"""Gymnasium's toy text: FrozenLake, Taxi and CliffWalking, in which a move may slip to either side.

All of them step by a table, `P[state][action]`. Gymnasium computes it once, when the environment is made. Here the
probability that a move goes where it was meant to is uncertain, so the table is weighed anew for each value of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deeprok.core.toy_text import ACTIONS
from deeprok.environments.base import quantity
from deeprok.environments.gymnasium import from_gymnasium
from deeprok.environments.host import Branching, HostEnvironment, make_parameters
from deeprok.environments.simulation import Access

#: A table's row: (probability, successor, reward, terminated) of each outcome.
Row = list[tuple[float, int, float, bool]]


class Slippery(NamedTuple):
    """An environment in which moves may slip.

    Attributes:
      arguments: what `gymnasium.make` is given to have a table in which they do.
      intended: which of the three outcomes of a move is the one that was meant.
      nominal: Gymnasium's probability of it.
      box: what it may be.
    """

    arguments: Mapping[str, Any]
    intended: int
    nominal: float
    box: tuple[float, float]


_THIRD, _MOSTLY = (0.2, 0.6), (0.6, 1.0)

SLIPPERY = {
    "CliffWalking-v1": Slippery({"is_slippery": True}, 1, 1.0, _MOSTLY),
    "CliffWalkingSlippery-v1": Slippery({}, 1, 1 / 3, _THIRD),
    "FrozenLake-v1": Slippery({}, 1, 1 / 3, _THIRD),
    "FrozenLake8x8-v1": Slippery({}, 1, 1 / 3, _THIRD),
    "Taxi-v4": Slippery({"is_rainy": True}, 0, 1.0, _MOSTLY),
}


class Table(Mapping[int, dict[int, Row]]):
    """A table whose moves succeed with another probability; else they go to either side, equally often.

    Rows are weighed when they are asked for: a step asks for one state.
    """

    def __init__(self, slippery: Mapping[int, Mapping[int, Row]], intended: int, rate: float) -> None:
        self.rate = min(rate, 1.0)  # noise on it may have made it larger
        self._slippery, self._intended = slippery, intended

    def __getitem__(self, state: int) -> dict[int, Row]:
        return {action: self._weighed(row) for action, row in self._slippery[state].items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self._slippery)

    def __len__(self) -> int:
        return len(self._slippery)

    def _weighed(self, row: Row) -> Row:
        if len(row) == 1:  # no move, or none from where an episode ends
            return row
        aside = (1.0 - self.rate) / 2.0
        return [(self.rate if i == self._intended else aside, *rest) for i, (_, *rest) in enumerate(row)]  # type: ignore[misc]


def toy_text(name: str, branching: Branching) -> HostEnvironment:
    """An environment by its id, one of `SLIPPERY`."""
    arguments, intended, nominal, box = SLIPPERY[name]

    @functools.cache
    def slippery() -> Any:
        made = sys.modules["gymnasium"].make(name, **arguments)  # imported by whoever has an environment
        return made.unwrapped.P

    def read(env: Any) -> dict[str, float]:
        table = env.unwrapped.P
        return {"success_rate": table.rate if isinstance(table, Table) else nominal}

    def write(env: Any, values: Mapping[str, float]) -> None:
        if "success_rate" in values:
            env.unwrapped.P = Table(slippery(), intended, values["success_rate"])

    meaning = "probability that a move goes where it is meant to, else to either side"
    return from_gymnasium(
        name,
        box={"success_rate": box},
        parameters=Access(read, write),
        state=("unwrapped.s",),
        nominal=make_parameters("ToyTextParameters", {"success_rate": quantity(nominal, "", meaning, most=1.0)}),
        actions=ACTIONS[name],
        branching=branching,
    )
