"""Types of settings: what each may be, as a bound that is checked and in words.

A setting's bound stands in its type, so none can be forgotten. msgspec checks it; the sentence about a wrong value is
made of the words that stand beside the bound.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Meta, ValidationError, convert

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.files import as_tuples
from deeprok.core.registry import Registry

Precision = Literal["float32", "float64"]

_MOST = 2**31 - 1  # counts are held as int32


def at_least(least: int) -> Meta:
    """The bound of a count."""
    return Meta(ge=least, le=_MOST, description=f"a whole number of at least {least} and at most {_MOST}")


Count = Annotated[int, at_least(1)]
Natural = Annotated[int, at_least(0)]
Finite = Annotated[float, Meta(description="a finite number")]
Positive = Annotated[float, Meta(gt=0, description="a positive number")]
NotNegative = Annotated[float, Meta(ge=0, description="a number of at least 0")]
Fraction = Annotated[float, Meta(ge=0, lt=1, description="at least 0 and below 1")]
InnerFraction = Annotated[float, Meta(gt=0, lt=1, description="above 0 and below 1")]
Share = Annotated[float, Meta(gt=0, le=1, description="above 0 and at most 1")]
Probability = Annotated[float, Meta(ge=0, le=1, description="a probability between 0 and 1")]
Seed = Annotated[int, Meta(ge=0, lt=2**32, description="a whole number from 0 to 4294967295")]


def added(default: Any) -> Any:
    """The field of a setting that older runs don't have.

    At its default it has no effect. It is then left out of `config.json` and of the hash of a run's settings, so that
    older runs can be read and are the same as before.
    """
    return dataclasses.field(default=default, metadata={"added": True})


@dataclasses.dataclass(frozen=True, eq=False)  # compared by identity: names may be a dictionary, which has no hash
class OneOf:
    """Beside a type of text: it must be one of these names; those of a registry may be a user's `module:object`."""

    names: Collection[str]


class Rule(NamedTuple):
    """Beside a type: what else a value must be."""

    allows: Callable[[Any], bool]
    words: str


class CheckedElsewhere(NamedTuple):
    """Beside a type: what a value may be depends on more than the value."""

    by: str


def check_fields(settings: Any, precision: Precision) -> None:
    """Raises a `DeeprokError` that names the field, its value and what is allowed, unless every field is allowed.

    A number must be allowed as the run's arithmetic holds it too: 1e39 is infinite in float32.

    Args:
      settings: a dataclass whose fields have the types of this module; other dataclasses within it are left alone.
      precision: the run's arithmetic.
    """
    kind: Any = type(settings)
    for name, hint in hints(kind).items():
        value = getattr(settings, name)
        if not dataclasses.is_dataclass(value):
            check_field(name, value, hint, precision)


def check_field(name: str, value: Any, hint: Any, precision: Precision) -> None:
    """Raises a `DeeprokError`, as `check_fields` does, unless a field of this type may have this value."""
    if any(isinstance(part, CheckedElsewhere) for part in _beside(hint)):
        return
    names = choices(hint)
    if isinstance(names, Registry):
        names.find(value, name)
        return
    if names is not None:
        if not isinstance(value, str) or value not in names:
            raise unknown(name, str(value), names)
        return
    if not _allows(hint, value):
        raise DeeprokError(f"{name} is {shown(value)}; it must be {words(hint)}")
    held = tuple(_held(x, precision) for x in value) if isinstance(value, tuple) else _held(value, precision)
    if not _allows(hint, held):
        raise DeeprokError(f"{name} is {shown(value)}, in {precision} {shown(held)}; it must be {words(hint)}")


def choices(hint: Any) -> Collection[str] | None:
    """The names that a field of this type can have, if it has names."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(inner) is Literal:
        return get_args(inner)
    return next((part.names for part in _beside(hint) if isinstance(part, OneOf)), None)


def words(hint: Any) -> str:
    """What a value of this type is, in words."""
    if get_origin(hint) in (Union, types.UnionType):
        return ", or ".join("None" if part is type(None) else words(part) for part in get_args(hint))
    said = [part.words if isinstance(part, Rule) else part.description for part in _beside(hint)]
    return said[0] or "" if said else {bool: "true or false", str: "text"}[hint]


def number_type(hint: Any) -> type | None:
    """What the numbers of a field of this type are, alone or in lists: int or float; None if it has none."""
    if get_origin(hint) in (Annotated, tuple):
        return number_type(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return max((number_type(part) for part in get_args(hint)), key=(None, int, float).index)
    return hint if hint in (int, float) else None


def held(key: str, value: Any, hint: Any, precision: Precision = "float64") -> Any:
    """A value that was read from a file as a setting holds it; raises with its key unless the setting may have it."""
    value = as_tuples(value, 3)
    if number_type(hint) is float:
        value = _with_floats(value)
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(inner) is tuple and not isinstance(value, tuple):
        raise DeeprokError(f"{key} is {shown(value)}, but a value of it is a list: write [{value}]")
    check_field(key, value, hint, precision)
    return value


def _with_floats(value: Any) -> Any:
    """Whole numbers as floats, so that 1 and 1.0 are one setting; too large ones are left, to be refused."""
    if isinstance(value, tuple):
        return tuple(map(_with_floats, value))
    return float(value) if type(value) is int and abs(value) < 2**53 else value


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass, by name, and their types with what stands beside them."""
    return get_type_hints(kind, include_extras=True)


def _beside(hint: Any) -> tuple[Any, ...]:
    ours = (Meta, OneOf, Rule, CheckedElsewhere)
    return tuple(part for part in get_args(hint)[1:] if isinstance(part, ours)) if get_origin(hint) is Annotated else ()


def _allows(hint: Any, value: Any) -> bool:
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, float) and not math.isfinite(part):
            return False
    try:
        convert(value, hint)
    except (ValidationError, UnicodeEncodeError):  # half of a surrogate pair is no text
        return False
    return all(part.allows(value) for part in _beside(hint) if isinstance(part, Rule))


def _held(value: Any, precision: Precision) -> Any:
    """A number as arithmetic of this precision holds it; whole numbers as they are, unless they are too large."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= float(np.finfo(precision).max) else math.inf
    with np.errstate(over="ignore"):
        return float(np.dtype(precision).type(value)) if isinstance(value, float) else value


def written(record: Any) -> dict[str, Any]:
    """The settings as `config.json` has them: without those added later that have no effect."""
    fields = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if not (field.metadata.get("added") and getattr(record, field.name) == field.default)
    }
    return {name: written(value) if dataclasses.is_dataclass(value) else value for name, value in fields.items()}


def build(kind: Any, fields: Any, origin: str) -> Any:
    """A dataclass from a JSON object that must have its fields and no others; lists become tuples."""
    own = dataclasses.fields(kind) if kind else ()
    found = set(fields) if isinstance(fields, Mapping) else {"a section that is no object"}
    expected = {field.name for field in own if not field.metadata.get("added") or field.name in found}
    if found != expected:
        wrong = ", ".join(sorted(found ^ expected))
        raise DeeprokError(f"{origin} lacks or has unknown settings: {wrong}; was it written by another version?")
    return kind(**{name: as_tuples(value) for name, value in fields.items()})
