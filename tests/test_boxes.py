"""Boxes, grids, values and lists of models as dictionaries: the same as their text, number for number."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeprok.core.errors import DeeprokError
from deeprok.environments import CartPole
from deeprok.uncertainty import models, parse_box, parse_grid, parse_models, parse_values
from deeprok.uncertainty.models import box_text, models_text, read_grid, values_text

NAMES = st.sampled_from(["pole_length", "cart_mass", "gravity", "force"])
POSITIVE = st.floats(1e-30, 1e30)
RANGES = st.tuples(POSITIVE, POSITIVE).filter(lambda ends: ends[0] != ends[1]).map(lambda ends: tuple(sorted(ends)))


def test_examples() -> None:
    assert doctest.testmod(models) == (0, 3)


@given(st.dictionaries(NAMES, RANGES, min_size=1))
def test_boxes_come_back(box: dict[str, Any]) -> None:
    text = box_text(box)
    assert parse_box(text, CartPole()) == box
    assert box_text(text) == text
    assert box_text({name: np.array(ends) for name, ends in box.items()}) == text


@given(st.dictionaries(NAMES, POSITIVE))
def test_values_come_back(values: dict[str, float]) -> None:
    text = values_text(values)
    assert (parse_values(text, CartPole(), "nominal") if text else {}) == values
    assert values_text({name: np.float64(value) for name, value in values.items()}) == values_text(text) == text


@given(st.lists(st.fixed_dictionaries({"force": POSITIVE, "gravity": POSITIVE}), min_size=1))
def test_lists_come_back(listed: list[dict[str, float]]) -> None:
    found = parse_models(models_text(listed), CartPole())
    assert [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)] == listed
    assert models_text(models_text(listed)) == models_text(listed)


@given(st.dictionaries(NAMES, st.lists(POSITIVE, min_size=1, max_size=5, unique=True).map(sorted), min_size=1))
def test_grids_of_any_values(grid: dict[str, list[float]]) -> None:
    found = read_grid(grid, CartPole())
    assert {name: axis.tolist() for name, axis in found.items()} == grid


def test_grids_of_text_numbers_and_arrays() -> None:
    text = read_grid("pole_length=0.2:1.4:7,force=9", CartPole())
    arrays = read_grid({"pole_length": np.linspace(0.2, 1.4, 7), "force": 9}, CartPole())
    parsed = parse_grid("pole_length=0.2:1.4:7,force=9", CartPole())
    for name, axis in parsed.items():
        np.testing.assert_array_equal(text[name], axis)
        np.testing.assert_array_equal(arrays[name], axis)


#: What Python values and text have in common: the parser's sentences.
ALIKE: dict[str, tuple[Any, str]] = {
    "one number": ({"force": 3.0}, "force=3.0"),
    "three numbers": ({"force": (1.0, 2.0, 3.0)}, "force=1.0:2.0:3.0"),
    "reversed": ({"force": (2.0, 1.0)}, "force=2.0:1.0"),
    "misspelt": ({"forse": (1.0, 2.0)}, "forse=1.0:2.0"),
    "negative": ({"force": (-1.0, 2.0)}, "force=-1.0:2.0"),
    "not a number": ({"force": (float("nan"), 2.0)}, "force=nan:2.0"),
    "nothing": ({}, ""),
}


@pytest.mark.parametrize(("box", "text"), ALIKE.values(), ids=ALIKE)
def test_the_same_sentence_as_for_text(box: Any, text: str) -> None:
    said = []
    for either in (box, text):
        with pytest.raises(DeeprokError) as error:
            parse_box(box_text(either), CartPole())
        said.append(str(error.value))
    assert said[0] == said[1]


UNREADABLE: dict[str, tuple[Any, Any, str]] = {
    "box": (box_text, 3, r"box is 3; it must be text, as name=low:high,…, or a dictionary, as {'name': \(low, high\)}"),
    "pairs": (box_text, [("force", 1, 2)], "box is .* it must be text"),
    "text in a box": (box_text, {"force": ("1", "2")}, "box: 'force=.*' can't be read; the form is name=low:high"),
    "a smuggled name": (box_text, {"force=1:2,gravity": (1, 2)}, "can't be read"),
    "a name that is none": (box_text, {3: (1, 2)}, "can't be read"),
    "true": (values_text, {"force": True}, "nominal: 'force=True' can't be read; the form is name=value"),
    "huge": (values_text, {"force": 10**400}, "can't be read"),
    "nominal": (values_text, 1.5, "nominal is 1.5; it must be text, as name=value,…, or a dictionary"),
    "models": (models_text, {"force": [1, 2]}, "fixed_models is .*; it must be text.* or a list of dictionaries"),
    "a model": (models_text, [{"force": 1}, 2], "a model of fixed_models is 2; it must be a dictionary"),
    "an empty model": (models_text, [{}], "fixed_models: '' can't be read"),
    "no models": (models_text, [], "fixed_models: '' can't be read"),
}


@pytest.mark.parametrize(("text", "value", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_values_that_no_text_stands_for(text: Any, value: Any, said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        text(value)


GRIDS: dict[str, tuple[Any, str]] = {
    "kind": (7, "grid is 7; it must be text, as name=low:high:count,…, or a dictionary"),
    "empty": ({}, "grid: '' can't be read"),
    "no values": ({"force": []}, r"grid: the values of force .*must be"),
    "text": ({"force": ["1", "2"]}, "grid: the values of force are .*; they must be numbers"),
    "ragged": ({"force": [[1.0], [1.0, 2.0]]}, "the values of force are .*; they must be numbers"),
    "two axes": ({"force": [[1.0, 2.0]]}, r"the values of force have shape \(1, 2\); they must be a list of numbers"),
    "falling": ({"force": [1.0, 3.0, 2.0]}, r"the values of force are \[1.0, 3.0, 2.0\]; each must be above the last"),
    "twice": ({"force": [1.0, 1.0]}, "each must be above the last"),
    "infinite": ({"force": [1.0, np.inf]}, "grid gives force the value inf, which must be positive and finite"),
    "negative": ({"force": [-1.0, 1.0]}, "grid gives force the value -1, which must be positive"),
    "name": ({"forse": [1.0]}, "unknown parameter in grid 'forse': did you mean 'force'"),
    "a name that is none": ({3: [1.0]}, "unknown parameter in grid '3'"),
    "large": ({"force": np.arange(1, 2001), "gravity": np.arange(1, 2001)}, "grid has 4e.06 models; at most 1,000,000"),
}


@pytest.mark.parametrize(("grid", "said"), GRIDS.values(), ids=GRIDS)
def test_bad_grids(grid: Any, said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        read_grid(grid, CartPole())
