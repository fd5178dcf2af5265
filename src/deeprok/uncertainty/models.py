"""Sets of models: which physics nature may choose from.

A box, a grid and a list are written as text, in one grammar:

    pole_length=0.2:1.4,cart_mass=0.1:7            a box: a range for each name
    pole_length=0.2:1.4:7,cart_mass=0.1:7:7        a grid: both edges and what lies evenly between
    pole_length=0.5,cart_mass=1.5; pole_length=1   a list: grids of one point, joined by semicolons
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.base import Model, check_quantity

Draw = Literal["pairs", "product"]
DRAWS: tuple[str, ...] = get_args(Draw)

Box = Mapping[str, tuple[float, float]]

_MOST_MODELS = 1_000_000  # of a grid, which is held in memory


class ModelSet(NamedTuple):
    """A finite set of M models, drawn anew for each episode (or always the same)."""

    size: int  # M
    draw: Callable[[jax.Array], Model]  # key -> name -> [M]


def sample_box(key: jax.Array, box: Box, shape: tuple[int, ...]) -> Model:
    """Models drawn uniformly from a box; each quantity has the given shape."""
    keys = jax.random.split(key, len(box))
    return {
        name: jax.random.uniform(k, shape, minval=low, maxval=high)
        for k, (name, (low, high)) in zip(keys, box.items(), strict=True)
    }


def from_box(box: Box, count: int, draw: Draw = "pairs") -> ModelSet:
    """Models drawn uniformly from a box at the start of each episode.

    Args:
      box: name -> (low, high).
      count: how many values are drawn of each quantity.
      draw: `pairs` joins the i-th values of all quantities to the i-th model (M = count);
        `product` takes every combination (M = count to the power of the number of quantities).
    """
    if draw == "pairs":
        return ModelSet(count, lambda key: sample_box(key, box, (count,)))
    index = np.indices((count,) * len(box)).reshape(len(box), -1)

    def product(key: jax.Array) -> Model:
        drawn = sample_box(key, box, (count,))
        return {name: drawn[name][i] for name, i in zip(box, index, strict=True)}

    return ModelSet(index.shape[1], product)


def from_list(models: Mapping[str, np.ndarray]) -> ModelSet:
    """The same models in every episode.

    Args:
      models: name -> [M] values, as `parse_models` gives them.
    """
    fixed = {name: np.asarray(values) for name, values in models.items()}
    size = len(next(iter(fixed.values())))
    return ModelSet(size, lambda key: {name: jnp.asarray(v, float) for name, v in fixed.items()})


def grid_models(axes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every combination of the axes' values, the last axis fastest: name -> [product of sizes]."""
    mesh = np.meshgrid(*axes.values(), indexing="ij")
    return {name: values.reshape(-1) for name, values in zip(axes, mesh, strict=True)}


def parse_values(text: str, params: Any, origin: str) -> dict[str, float]:
    """Reads `name=value,…`, each name a quantity of `params`."""
    values = {}
    for name, numbers in _items(text, params, origin):
        if len(numbers) != 1:
            raise _unreadable(origin, f"{name}={':'.join(map(str, numbers))}", "name=value")
        values[name] = numbers[0]
    return values


def parse_box(text: str, params: Any, origin: str = "box") -> dict[str, tuple[float, float]]:
    """Reads `name=low:high,…`, each name a quantity of `params`."""
    box = {}
    for name, numbers in _items(text, params, origin):
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


def parse_grid(text: str, params: Any, origin: str = "grid") -> dict[str, np.ndarray]:
    """Reads `name=low:high:count,…` or `name=value`, each name a quantity of `params`."""
    items = _items(text, params, origin, counted=True)
    models = math.prod(max(1.0, numbers[2]) if len(numbers) == 3 else 1.0 for _, numbers in items)
    if models > _MOST_MODELS:
        raise DeeprokError(f"{origin} has {models:g} models; at most {_MOST_MODELS:,} are allowed, give fewer points")
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


def _items(text: str, params: Any, origin: str, counted: bool = False) -> list[tuple[str, list[float]]]:
    """Splits `name=number:number,…`, checking names and values (but a grid's third number, a count)."""
    items: list[tuple[str, list[float]]] = []
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        try:
            numbers = [float(number) for number in value.split(":")]
        except ValueError:
            numbers = []
        if not name or not equals or not numbers:
            raise _unreadable(origin, item.strip(), "name=low:high:count" if counted else "name=low:high")
        if name in dict(items):
            raise DeeprokError(f"{origin} names {name} twice; give each quantity once")
        for number in numbers[:2] if counted else numbers:
            check_quantity(params, name, number, origin)
        items.append((name, numbers))
    return items


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
