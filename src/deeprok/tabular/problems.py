"""Robust MDPs from the literature, by name, and Gymnasium's tables, by id.

On the command line a problem and its parameters are written `garnet:states=50,seed=3` or
`FrozenLake-v1:is_slippery=false`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args, get_type_hints

from deeprok.core.errors import DeeprokError, unknown
from deeprok.tabular import gymnasium
from deeprok.tabular.literature import (
    Names,
    aircraft_routing,
    american_put,
    coin_toss,
    flight_names,
    forest,
    garnet,
    inventory,
    machine_names,
    machine_replacement,
    numbered,
    put_names,
    river_swim,
)
from deeprok.tabular.model import RMDP

_GYMNASIUM_DISCOUNT = 0.99


class Parameter(NamedTuple):
    """A parameter of a problem."""

    kind: type[int] | type[float]
    default: float
    meaning: str


class Problem(NamedTuple):
    """A family of models."""

    build: Callable[..., RMDP]  # its arguments are the parameters
    names: Callable[..., Names]  # takes the same arguments
    discount: float  # the default
    summary: str
    source: str

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the problem, by name."""
        hints = get_type_hints(self.build, include_extras=True)
        found = {}
        for name, argument in inspect.signature(self.build).parameters.items():
            kind, meaning = get_args(hints[name])
            found[name] = Parameter(kind, argument.default, meaning)
        return found


class Instance(NamedTuple):
    """A problem with given parameters."""

    name: str
    model: RMDP
    names: Names
    discount: float


def is_name(text: str) -> bool:
    """Whether a text names a problem, with parameters or without; what else is wrong with it `parse` says."""
    name = text.partition(":")[0]
    return name in PROBLEMS or gymnasium.is_id(name)


def parse(text: str) -> Instance:
    """The problem described by a text, NAME or NAME:parameter=value,… as on the command line."""
    name = text.partition(":")[0]
    if name not in PROBLEMS and gymnasium.is_id(name):
        arguments = {field: _argument(value) for field, value in _given(text).items()}
        return Instance(name, *gymnasium.build(name, arguments), _GYMNASIUM_DISCOUNT)
    if name not in PROBLEMS:
        raise unknown("problem", name, PROBLEMS)
    known, chosen = PROBLEMS[name].parameters, dict[str, float]()
    for field, value in _given(text).items():
        if field not in known:
            raise unknown(f"parameter of {name}", field, known)
        kind = known[field].kind
        try:
            chosen[field] = kind(value)
        except ValueError:
            words = "a whole number" if kind is int else "a number"
            raise DeeprokError(f"{name}: {field} is '{value}'; it must be {words}") from None
    return make(name, chosen)


def _given(text: str) -> dict[str, str]:
    """The parameters that a text gives, as they are written."""
    name, colon, rest = text.partition(":")
    given: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        field, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise DeeprokError(f"'{part}' in '{text}' is not a parameter; write {name}:name=value,…")
        if field in given:
            raise DeeprokError(f"{field} is given twice in '{text}'")
        given[field] = value
    return given


def _argument(text: str) -> bool | int | float | str:
    """An argument of a Gymnasium environment: true or false, a number, or else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def make(name: str, chosen: Mapping[str, float] | None = None) -> Instance:
    """A problem by its name, with some of its parameters changed from their defaults."""
    problem = PROBLEMS[name]
    full = {field: parameter.default for field, parameter in problem.parameters.items()} | dict(chosen or {})
    try:
        model = problem.build(**full)
    except DeeprokError as error:
        raise DeeprokError(f"{name}: {error}") from error
    return Instance(name, model, problem.names(**full), problem.discount)


PROBLEMS: dict[str, Problem] = {
    "river_swim": Problem(
        river_swim,
        lambda states, **_: numbered(states, ("left", "right")),
        0.95,
        "a swimmer against the current",
        "Strehl and Littman (2008)",
    ),
    "machine_replacement": Problem(
        machine_replacement,
        machine_names,
        0.8,
        "when to repair a machine that wears out",
        "Delage and Mannor (2010)",
    ),
    "inventory": Problem(
        inventory,
        lambda capacity, **_: numbered(capacity + 1, [f"order {i}" for i in range(capacity + 1)], "stock "),
        0.95,
        "how much to order before demand is known",
        "Puterman (1994), section 3.2",
    ),
    "forest": Problem(
        forest,
        lambda ages, **_: numbered(ages, ("wait", "cut"), "age "),
        0.9,
        "when to cut a forest that may burn",
        "Chadès et al. (2014)",
    ),
    "coin_toss": Problem(
        coin_toss,
        lambda coins, **_: numbered(coins + 1, ("fewer", "no bet", "more"), "heads "),
        0.95,
        "bets on the next toss of coins that may be unfair; for --set finite",
        "Neufeld and Sester (2022)",
    ),
    "american_put": Problem(
        american_put,
        put_names,
        0.998,
        "when to exercise an option whose share may rise more often",
        "Tamar, Mannor and Xu (2014)",
    ),
    "garnet": Problem(
        garnet,
        lambda states, actions, **_: numbered(states, [*map(str, range(actions))]),
        0.95,
        "a random model",
        "Archibald, McKinnon and Thomas (1995)",
    ),
    "aircraft_routing": Problem(
        aircraft_routing,
        flight_names,
        0.99,
        "a flight around storms of unknown persistence",
        "in the spirit of Nilim and El Ghaoui (2005)",
    ),
}
