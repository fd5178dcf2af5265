"""Shapes as pictures: Pillow paints them larger than they are to be and reduces them, so that edges are smooth."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from deeprok.core.errors import DeeprokError, shortened, shown
from deeprok.environments.drawing import Circle, Drawing, Line, Point, Polygon, Shape, Text

WHITE = "#FFFFFF"

#: Pixels that are painted for each pixel of a picture, in either direction.
_FINER = 3

#: No coordinate in pixels is beyond this, whatever a state is; Pillow's numbers end somewhere.
_FAR = 1e5


@functools.cache
def font(pixels: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The font that matplotlib brings, which has letters of many languages."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, max(6, pixels))


def fitted(text: str, letters: ImageFont.FreeTypeFont, width: float) -> str:
    """A text on one line of this width at most: its end is left out if it must be."""
    text = shortened(text, 200)
    if letters.getlength(text) <= width:
        return text
    while text and letters.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def paint(drawing: Drawing, size: tuple[int, int]) -> Image.Image:
    """The picture of a drawing.

    Args:
      drawing: what is drawn, as `is_finite` has found it.
      size: width and height in pixels.
    """
    place = _Place(drawing, (_FINER * size[0], _FINER * size[1]))
    fine = Image.new("RGB", (_FINER * size[0], _FINER * size[1]), WHITE)
    pen = ImageDraw.Draw(fine)
    for shape in drawing.shapes:
        _paint_shape(pen, shape, place, fine.height)
    picture = fine.reduce(_FINER)
    pen = ImageDraw.Draw(picture)
    for shape in drawing.shapes:
        if isinstance(shape, Text):
            _write(pen, shape, place, size)
    return picture


def check_drawing(found: object, origin: str) -> Drawing:
    """The drawing that a user's function returned; raises if it is none.

    Args:
      found: what it returned.
      origin: whose it is, for messages.
    """
    if not isinstance(found, Drawing):
        raise DeeprokError(f"the draw of {origin} returned {shown(found)}; it must be a Drawing")
    for shape in found.shapes:
        if not isinstance(shape, Shape):
            raise DeeprokError(f"a drawing of {origin} has {shown(shape)}; it may have Line, Polygon, Circle and Text")
        try:
            ImageColor.getrgb(shape.colour)
        except (ValueError, AttributeError):
            raise DeeprokError(
                f"a drawing of {origin} has the colour {shown(shape.colour)}; it must be a name such as red, or #rrggbb"
            ) from None
    try:
        left, bottom, right, top = found.view
        right_way = left < right and bottom < top and bool(np.isfinite(found.view).all())
    except (TypeError, ValueError):
        right_way = False
    if not right_way:
        raise DeeprokError(
            f"a drawing of {origin} has the view {shown(found.view)}; it must be left, bottom, right, top"
        )
    return found


def is_finite(drawing: Drawing) -> bool:
    """Whether all places of a drawing are numbers; those of a simulation that has gone wrong may be none."""
    return all(np.isfinite(_numbers(shape)).all() for shape in drawing.shapes)


def _numbers(shape: Shape) -> np.ndarray:
    if isinstance(shape, Circle):
        return np.array([*shape.centre, shape.radius], float)
    return np.asarray(shape.at if isinstance(shape, Text) else shape.points, float)


class _Place:
    """Where points of a drawing are in a picture."""

    def __init__(self, drawing: Drawing, size: tuple[int, int]) -> None:
        left, bottom, right, top = drawing.view
        across, up = size[0] / (right - left), size[1] / (top - bottom)
        self.across, self.up = (across, up) if drawing.stretched else (min(across, up),) * 2
        self._middle = (left + right) / 2, (bottom + top) / 2
        self._size = size

    def __call__(self, point: Point) -> Point:
        x = self._size[0] / 2 + (point[0] - self._middle[0]) * self.across
        y = self._size[1] / 2 - (point[1] - self._middle[1]) * self.up
        return min(max(float(x), -_FAR), _FAR), min(max(float(y), -_FAR), _FAR)


def _paint_shape(pen: ImageDraw.ImageDraw, shape: Shape, place: _Place, height: int) -> None:
    if isinstance(shape, Line):
        width = max(_FINER, round(shape.width * height / 100))
        points = [place(point) for point in shape.points]
        if len(points) > 1:
            pen.line(points, shape.colour, width, joint="curve")
        for end in (points[:1], points[-1:]):
            _disc(pen, end, width / 2, shape.colour)
    elif isinstance(shape, Polygon):
        if len(shape.points) > 1:
            pen.polygon([place(point) for point in shape.points], shape.colour)
    elif isinstance(shape, Circle):
        _disc(pen, [place(shape.centre)], min(abs(shape.radius) * place.up, _FAR), shape.colour)


def _disc(pen: ImageDraw.ImageDraw, centres: Sequence[Point], radius: float, colour: str) -> None:
    for x, y in centres:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), colour)


def _write(pen: ImageDraw.ImageDraw, text: Text, place: _Place, size: tuple[int, int]) -> None:
    letters = font(round(text.size * size[1] / 100))
    words = fitted(text.text, letters, size[0])
    length = letters.getlength(words)
    x, y = (coordinate / _FINER for coordinate in place(text.at))
    start = x - {"left": 0.0, "middle": length / 2, "right": length}[text.side]
    half = letters.size / 2
    at = min(max(start, 0.0), size[0] - length), min(max(y, half), size[1] - half)
    pen.text(at, words, text.colour, letters, anchor="lm")
