"""Drawings of an environment: a few shapes in its own units, independent of what paints them.

An environment that gives `draw` can be seen (`deeprok render`). It is called once for each picture, on numpy arrays,
and is never traced, so that it may format numbers and branch as Python does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

#: Colours of things, of what stands still and of areas, and Okabe and Ito's for what matters. Shapes take any others,
#: as #rrggbb or by names such as red.
INK, GREY, PALE, WATER, MEADOW = "#222222", "#6E6E6E", "#E3E3E3", "#D6EAF8", "#DDF0E4"
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"

#: x to the right and y upwards.
Point = tuple[float, float]


class Line(NamedTuple):
    """Straight pieces from point to point, with round ends."""

    points: Sequence[Point]
    colour: str = INK
    width: float = 0.6  # in hundredths of the picture's height


class Polygon(NamedTuple):
    """A filled area."""

    points: Sequence[Point]
    colour: str = INK


class Circle(NamedTuple):
    """A filled circle."""

    centre: Point
    radius: float  # in the units of y
    colour: str = INK


class Text(NamedTuple):
    """Words on one line. They are in front of all else, and stay within the picture."""

    at: Point  # the middle of the line's height
    text: str
    colour: str = INK
    side: Literal["left", "middle", "right"] = "middle"  # which part of the text is there
    size: float = 4.5  # in hundredths of the picture's height


Shape = Line | Polygon | Circle | Text


class Drawing(NamedTuple):
    """What an environment looks like.

    Attributes:
      shapes: later ones are in front of those before.
      view: left, bottom, right and top of what is to be seen.
      stretched: whether x and y have scales of their own, so that the view fills the picture, as a time course does.
        Otherwise a unit is as long upwards as to the right.
    """

    shapes: Sequence[Shape]
    view: tuple[float, float, float, float]
    stretched: bool = False


#: `(states, params) -> Drawing`: the states of an episode so far, of which the last one is the present, and the
#: parameters of its model. All leaves are numpy arrays.
DrawStates = Callable[[Sequence[Any], Any], Drawing]


def draw_inner(draw: DrawStates | None, own: Callable[[Any], Any] = lambda params: params) -> DrawStates | None:
    """What draws an environment within another one, whose states are pairs with the inner state first.

    Args:
      draw: of the environment within.
      own: what its parameters are, given those around it.
    """
    if draw is None:
        return None
    return lambda states, params: draw([state[0] for state in states], own(params))


def turned(points: Sequence[Point], direction: Point, at: Point) -> list[Point]:
    """Points of a thing's own plan, turned and moved.

    Args:
      points: of the plan, which has its front at the right.
      direction: where the front is to point, of length 1.
      at: where the plan's origin is to be.
    """
    cos, sin = direction
    return [(at[0] + cos * x - sin * y, at[1] + sin * x + cos * y) for x, y in points]


def rectangle(left: float, bottom: float, right: float, top: float) -> list[Point]:
    """The corners of an upright rectangle."""
    return [(left, bottom), (right, bottom), (right, top), (left, top)]
