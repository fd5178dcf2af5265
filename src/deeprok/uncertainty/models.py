"""Sets of models: the parameters that nature may choose from.

A box, a grid and a list are written as text, in one grammar:

    pole_length=0.2:1.4,cart_mass=0.1:7            a box: a range for each name
    pole_length=0.2:1.4:7,cart_mass=0.1:7:7        a grid: both edges and what lies evenly between
    pole_length=0.5,cart_mass=1.5; pole_length=1   a list: grids of one point, joined by semicolons

In Python they may be dictionaries as well. Settings store text, which `box_text`, `values_text` and `models_text` make
of dictionaries without rounding; `read_grid` takes a grid in either form.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.environments.base import Model, check_quantity

Draw = Literal["pairs", "product"]
DRAWS: tuple[str, ...] = get_args(Draw)

Box = Mapping[str, tuple[float, float]]

_LISTED = 12  # parameters that a sentence names
_AROUND = (0.8, 1.25)  # multiples of a nominal value that make a range of it

_MOST_MODELS = 1_000_000  # of a grid, which is held in memory


class ModelSet(NamedTuple):
    """A finite set of M models, drawn anew for each episode (or always the same).

    What it is drawn from is apart from how, so that one compiled program serves sets that differ by their numbers.
    """

    size: int  # M
    numbers: Any  # a pytree: the ends of a box, or a list of models
    sample: Callable[[jax.Array, Any], Model]  # (key, numbers) -> name -> [M]

    def draw(self, key: jax.Array) -> Model:
        """M models: name -> [M]."""
        return self.sample(key, self.numbers)


def sample_box(key: jax.Array, box: Box, shape: tuple[int, ...], edges: float = 0.0) -> Model:
    """Models drawn from a box; each quantity has the given shape.

    Args:
      key: a random key.
      box: name -> (low, high).
      shape: how many.
      edges: the probability that a value is one of the two ends of its range; otherwise it is uniform between them.
    """
    keys = jax.random.split(key, len(box))
    if not edges:
        return {
            name: jax.random.uniform(k, shape, minval=low, maxval=high)
            for k, (name, (low, high)) in zip(keys, box.items(), strict=True)
        }
    beyond = 0.5 * edges / (1.0 - edges)  # what is drawn outside the range is moved to its nearer end
    places = (jnp.clip(jax.random.uniform(k, shape, minval=-beyond, maxval=1.0 + beyond), 0.0, 1.0) for k in keys)
    return {
        # Written so that the ends are exact.
        name: (1.0 - place) * low + place * high
        for place, (name, (low, high)) in zip(places, box.items(), strict=True)
    }


def from_box(box: Box, count: int, draw: Draw = "pairs", edges: float = 0.0) -> ModelSet:
    """Models drawn from a box at the start of each episode.

    Args:
      box: name -> (low, high).
      count: how many values are drawn of each quantity.
      draw: `pairs` joins the i-th values of all quantities to the i-th model (M = count);
        `product` takes every combination (M = count to the power of the number of quantities).
      edges: as in `sample_box`.
    """

    def sample(key: jax.Array, given: Box) -> Model:
        # Random numbers go by the order of the names, which JAX sorts in what it compiles.
        return sample_box(key, {name: given[name] for name in box}, (count,), edges)

    if draw == "pairs":
        return ModelSet(count, dict(box), sample)

    def product(key: jax.Array, given: Box) -> Model:
        drawn = sample(key, given)
        index = np.indices((count,) * len(box)).reshape(len(box), -1)
        return {name: drawn[name][i] for name, i in zip(box, index, strict=True)}

    return ModelSet(count ** len(box), dict(box), product)


def from_list(models: Mapping[str, np.ndarray]) -> ModelSet:
    """The same models in every episode.

    Args:
      models: name -> [M] values, as `parse_models` gives them.
    """
    fixed = {name: np.asarray(values) for name, values in models.items()}
    size = len(next(iter(fixed.values())))
    return ModelSet(size, fixed, lambda key, fixed: {name: jnp.asarray(v, float) for name, v in fixed.items()})


def grid_models(axes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every combination of the axes' values, the last axis fastest: name -> [product of sizes]."""
    mesh = np.meshgrid(*axes.values(), indexing="ij")
    return {name: values.reshape(-1) for name, values in zip(axes, mesh, strict=True)}


def parse_values(text: str, params: Any, origin: str) -> dict[str, float]:
    """Reads `name=value,…`, each name a quantity of `params`."""
    values = {}
    for name, numbers in _items(text, params, origin, "name=value"):
        if len(numbers) != 1:
            raise _unreadable(origin, f"{name}={':'.join(map(str, numbers))}", "name=value")
        values[name] = numbers[0]
    return values


def parse_deviations(text: str, params: Any, origin: str) -> dict[str, float]:
    """Reads `name=deviation,…`, each name a quantity of `params`; empty text is none of them."""
    deviations, known = {}, [field.name for field in dataclasses.fields(params)]
    for name, numbers in _split(text, origin, "name=deviation") if text.strip() else ():
        if name not in known:
            raise unknown(f"parameter in {origin}", name, known)
        deviation, *others = numbers
        if others:
            raise _unreadable(origin, f"{name}={':'.join(f'{x:g}' for x in numbers)}", "name=deviation")
        if not 0 <= deviation <= float(np.finfo(np.float32).max):
            raise DeeprokError(
                f"{origin} gives {name} the deviation {deviation:g}, which must be at least 0 and finite"
            )
        deviations[name] = deviation
    return deviations


def parse_box(text: str, params: Any, origin: str = "box") -> dict[str, tuple[float, float]]:
    """Reads `name=low:high,…`, each name a quantity of `params`."""
    box = {}
    for name, numbers in _items(text, params, origin, "name=low:high"):
        if len(numbers) != 2:
            raise _unreadable(origin, f"{name}={':'.join(f'{x:g}' for x in numbers)}", "name=low:high")
        low, high = numbers
        if not low < high:
            state = "empty" if low == high else "reversed"
            raise DeeprokError(
                f"{origin}: the range {name}={low:g}:{high:g} is {state}; give it as low:high with low < high"
            )
        box[name] = (low, high)
    return box


def example_range(params: Any) -> str:
    """A range around the nominal value of some parameter, as `name=low:high`; empty if there is no parameter."""
    values = {field.name: float(getattr(params, field.name)) for field in dataclasses.fields(params)}
    if not values:
        return ""
    positive = [field.name for field in dataclasses.fields(params) if field.metadata["positive"]]
    name = next(iter(positive or [name for name, value in values.items() if value] or values))
    low, high = sorted(factor * values[name] for factor in _AROUND) if values[name] else (0.0, 0.1)
    return f"{name}={low:.3g}:{high:.3g}"


def no_box(name: str, params: Any, algorithm: str) -> DeeprokError:
    """The error for an environment without a box, of which an algorithm needs one; it says what can be in it.

    Args:
      name: the environment's.
      params: its nominal parameters.
      algorithm: the algorithm's name.
    """
    values = {field.name: float(getattr(params, field.name)) for field in dataclasses.fields(params)}
    nominal_one = "an algorithm on the nominal model, such as ddqn or td3"
    if not values:
        return DeeprokError(
            f"{name} has no parameter, so that nothing of it is uncertain, which {algorithm} needs; take {nominal_one}"
        )
    example = example_range(params)
    value = values[example.partition("=")[0]]
    known = ", ".join([*values][:_LISTED])
    rest = len(values) - _LISTED
    more = f" and {rest} more, which `deeprok environments {name}` lists" if rest > 0 else ""
    return DeeprokError(
        f"{name} has no box of its own; give the ranges of its uncertain parameters as box (on the command line "
        f"--box {example}, for example: it is nominally {value:.3g}), or take {nominal_one}",
        f"its parameters are {known}{more}",
    )


def parse_grid(text: str, params: Any, origin: str = "grid") -> dict[str, np.ndarray]:
    """Reads `name=low:high:count,…` or `name=value`, each name a quantity of `params`."""
    items = _items(text, params, origin, "name=low:high:count", counted=True)
    _check_size(math.prod(max(1.0, numbers[2]) if len(numbers) == 3 else 1.0 for _, numbers in items), origin)
    return {name: _axis(name, numbers, origin) for name, numbers in items}


def parse_models(text: str, params: Any, origin: str = "fixed_models") -> dict[str, np.ndarray]:
    """Reads grids joined by semicolons into one list of models; what a grid leaves out is nominal."""
    parts = [grid_models(parse_grid(part, params, origin)) for part in text.split(";")]
    names = list(dict.fromkeys(itertools.chain(*parts)))
    sizes = [len(next(iter(part.values()))) for part in parts]
    return {
        name: np.concatenate(
            [part.get(name, np.full(size, getattr(params, name))) for part, size in zip(parts, sizes, strict=True)]
        )
        for name in names
    }


def box_text(box: str | Mapping[str, Sequence[float]], origin: str = "box") -> str:
    """A box as text: text as it is, a dictionary of ranges without rounding.

    Args:
      box: name -> (low, high), or text.
      origin: the setting's name, for messages.

    Example:
      >>> box_text({"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7)})
      'pole_length=0.2:1.4,cart_mass=0.1:7.0'
    """
    if isinstance(box, str):
        return box
    _check_kind(box, Mapping, origin, "a dictionary, as {'name': (low, high)}", "name=low:high,…")
    return _dict_text(box, origin, "name=low:high")


def values_text(values: str | Mapping[str, float], origin: str = "nominal") -> str:
    """Values of parameters as text: text as it is, a dictionary without rounding; an empty one is no text.

    Args:
      values: name -> value, or text.
      origin: the setting's name, for messages.

    Example:
      >>> values_text({"cart_mass": 1.2})
      'cart_mass=1.2'
    """
    if isinstance(values, str):
        return values
    _check_kind(values, Mapping, origin, "a dictionary, as {'name': value}", "name=value,…")
    return _dict_text(values, origin, "name=value") if values else ""


def models_text(models: str | Sequence[Mapping[str, float]], origin: str = "fixed_models") -> str:
    """A list of models as text: text as it is, dictionaries without rounding.

    Args:
      models: for each model name -> value, or text.
      origin: the setting's name, for messages.

    Example:
      >>> models_text([{"pole_length": 0.5, "cart_mass": 1.5}, {"pole_length": 1}])
      'pole_length=0.5,cart_mass=1.5; pole_length=1.0'
    """
    if isinstance(models, str):
        return models
    form = "a list of dictionaries, as [{'name': value}, …]"
    _check_kind(models, Sequence, origin, form, "name=value,…; name=value,…")
    for model in models:
        _check_kind(model, Mapping, f"a model of {origin}", "a dictionary, as {'name': value}")
    if not models:
        raise _unreadable(origin, "", "name=value")
    return "; ".join(_dict_text(model, origin, "name=value") for model in models)


def read_grid(grid: str | Mapping[str, Any], params: Any, origin: str = "grid") -> dict[str, np.ndarray]:
    """The axes of a grid, given as text or as the values of each parameter.

    Args:
      grid: as `parse_grid` reads it, or name -> values: a number, or increasing numbers in a list or an array.
      params: the environment's parameters.
      origin: the argument's name, for messages.
    """
    if isinstance(grid, str):
        return parse_grid(grid, params, origin)
    _check_kind(grid, Mapping, origin, "a dictionary, as {'name': values}", "name=low:high:count,…")
    if not grid:
        raise _unreadable(origin, "", "name=low:high:count")
    axes = {name: _axis_values(name, values, params, origin) for name, values in grid.items()}
    _check_size(math.prod(len(axis) for axis in axes.values()), origin)
    return axes


def _axis_values(name: str, values: Any, params: Any, origin: str) -> np.ndarray:
    """The values of a parameter as an array, checked."""
    try:
        axis = np.asarray(values)
    except ValueError:  # lists of unequal lengths
        axis = np.asarray("")
    if axis.dtype.kind not in "iuf":
        raise DeeprokError(f"{origin}: the values of {name} are {shown(values)}; they must be numbers")
    axis = np.atleast_1d(axis).astype(float)
    if axis.ndim != 1 or not len(axis):
        raise DeeprokError(f"{origin}: the values of {name} have shape {axis.shape}; they must be a list of numbers")
    for value in axis:
        check_quantity(params, str(name), float(value), origin)
    if not np.all(np.diff(axis) > 0):
        raise DeeprokError(f"{origin}: the values of {name} are {shown(axis.tolist())}; each must be above the last")
    return axis


def _check_kind(value: Any, kind: Any, origin: str, form: str, text: str = "") -> None:
    if not isinstance(value, kind):
        allowed = f"text, as {text}, or {form}" if text else form
        raise DeeprokError(f"{origin} is {shown(value)}; it must be {allowed}")


def _dict_text(values: Mapping[Any, Any], origin: str, form: str) -> str:
    """A dictionary of numbers as `name=number:number,…`; what these numbers may be is the parser's business."""
    items = []
    for name, numbers in values.items():
        listed = numbers.tolist() if isinstance(numbers, np.ndarray) else numbers
        several = isinstance(listed, Sequence) and not isinstance(listed, str)
        parts = [_number_text(number) for number in (listed if several else [listed])]
        if not isinstance(name, str) or not name.isidentifier() or not parts or None in parts:
            raise _unreadable(origin, f"{name}={numbers}", form)
        items.append(f"{name}={':'.join(part for part in parts if part)}")
    if not items:
        raise _unreadable(origin, "", form)
    return ",".join(items)


def _number_text(value: Any) -> str | None:
    """A number in digits that give the same float again; None if it is no number."""
    if isinstance(value, str | bytes | bool | np.bool_ | np.ndarray):
        return None
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _items(text: str, params: Any, origin: str, form: str, counted: bool = False) -> list[tuple[str, list[float]]]:
    """Splits `name=number:number,…`, checking names and values (but a grid's third number, a count)."""
    items = _split(text, origin, form)
    for name, numbers in items:
        for number in numbers[:2] if counted else numbers:
            check_quantity(params, name, number, origin)
    return items


def _split(text: str, origin: str, form: str) -> list[tuple[str, list[float]]]:
    """Splits `name=number:number,…`."""
    items: list[tuple[str, list[float]]] = []
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        try:
            numbers = [float(number) for number in value.split(":")]
        except ValueError:
            numbers = []
        if not name or not equals or not numbers:
            raise _unreadable(origin, item.strip(), form)
        if name in dict(items):
            raise DeeprokError(f"{origin} names {name} twice; give each quantity once")
        items.append((name, numbers))
    return items


def _check_size(models: float, origin: str) -> None:
    if models > _MOST_MODELS:
        raise DeeprokError(f"{origin} has {models:g} models; at most {_MOST_MODELS:,} are allowed, give fewer points")


def _axis(name: str, numbers: list[float], origin: str) -> np.ndarray:
    if len(numbers) == 1:
        return np.array(numbers)
    if len(numbers) != 3:
        raise _unreadable(origin, f"{name}={':'.join(f'{x:g}' for x in numbers)}", "name=low:high:count or name=value")
    low, high, count = numbers
    if not low < high:
        raise DeeprokError(f"{origin}: the range {name}={low:g}:{high:g} is empty or reversed; low must be below high")
    if not (math.isfinite(count) and count == int(count) and count >= 2):
        raise DeeprokError(f"{origin}: {name} has {count:g} points; a range takes a whole number of at least 2")
    return np.linspace(low, high, int(count))


def _unreadable(origin: str, item: str, form: str) -> DeeprokError:
    return DeeprokError(f"{origin}: {shown(item)} can't be read; the form is {form}, items separated by commas")
