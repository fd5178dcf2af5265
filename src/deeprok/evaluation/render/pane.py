"""Panes: the picture of an episode at one step, with what it is and how it stands; and several of them in a frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from deeprok.core.errors import shortened
from deeprok.environments.drawing import GREEN, GREY, INK, RED
from deeprok.evaluation.render.canvas import WHITE, fitted, font

#: How an episode ended, and the colour of that. It is cut off if it was to last longer, and just ended where nothing
#: says what a success is.
ENDINGS = {"succeeded": GREEN, "failed": RED, "ended": GREY, "cut off": GREY}

#: Panes beside each other, at most.
_COLUMNS = 3

#: Width of a pane's picture over its height.
_SHAPE = 1.45


class Subject(NamedTuple):
    """What a pane shows: an episode of n steps.

    Attributes:
      label: of the policy.
      model: what differs from the nominal model, in words from long to short; the first that has room is written.
      returns: [n + 1] the return after each number of steps.
      ending: how it ended, one of `ENDINGS`.
      seconds: how long a step lasts; None if nothing says so.
      picture: `(step, width and height) -> picture`, with steps from 0 to n.
    """

    label: str
    model: Sequence[str]
    returns: Sequence[float]
    ending: str
    seconds: float | None
    picture: Callable[[int, tuple[int, int]], Image.Image]

    @property
    def steps(self) -> int:
        """n, the steps that were taken."""
        return len(self.returns) - 1


class Layout(NamedTuple):
    """Sizes in pixels, all of which follow from the width of a pane."""

    width: int

    @property
    def letters(self) -> int:
        """The size of letters."""
        return max(9, round(self.width / 26))

    @property
    def line(self) -> int:
        """The height of a line of words."""
        return round(1.45 * self.letters)

    @property
    def edge(self) -> int:
        """The border of a pane."""
        return max(2, round(self.width / 120))

    @property
    def picture(self) -> tuple[int, int]:
        """Width and height of a pane's picture."""
        inner = self.width - 2 * self.edge
        return inner, round(inner / _SHAPE)

    @property
    def pane(self) -> tuple[int, int]:
        """Width and height of a pane."""
        return self.width, self.picture[1] + 3 * self.line + 3 * self.edge

    def frame(self, panes: int, columns: int | None = None) -> tuple[int, int]:
        """Width and height of so many panes; both even, as films need them."""
        columns = columns or columns_of(panes)
        rows = math.ceil(panes / columns)
        gap = 2 * self.edge
        width = columns * self.width + (columns + 1) * gap
        height = rows * self.pane[1] + (rows + 1) * gap
        return width + width % 2, height + height % 2


def columns_of(panes: int) -> int:
    """How many panes are beside each other; the others are below them."""
    return panes if panes <= _COLUMNS else 2 if panes == 4 else _COLUMNS


def make_pane(subject: Subject, step: int, layout: Layout) -> Image.Image:
    """The pane of an episode at a step; after its end it stays as it was then, with a mark."""
    over = step >= subject.steps
    step = min(step, subject.steps)
    colour = ENDINGS[subject.ending] if over else GREY
    pane = Image.new("RGB", layout.pane, colour)
    edge, line, width = layout.edge, layout.line, layout.width
    pen = ImageDraw.Draw(pane)
    pen.rectangle((edge, edge, width - edge - 1, layout.pane[1] - edge - 1), WHITE)
    left, room = 3 * edge, width - 6 * edge
    plain, bold = font(layout.letters), font(layout.letters, bold=True)
    rows = [2 * edge + line * i + line // 2 for i in range(3)]
    taken = 0.0
    if over:
        words = subject.ending
        taken = bold.getlength(words) + 6 * edge
        right = width - 2 * edge
        pen.rectangle((right - taken + 2 * edge, rows[0] - line // 2, right, rows[0] + line // 2 - 1), colour)
        pen.text((right - taken + 4 * edge, rows[0]), words, WHITE, bold, anchor="lm")
    pen.text((left, rows[0]), fitted(subject.label, bold, room - taken), INK, bold, anchor="lm")
    changes = [shortened(words, 200) for words in subject.model]
    sizes = [(words, plain) for words in changes] + [(changes[-1], font(round(0.8 * layout.letters)))]
    model, letters = next((each for each in sizes if each[1].getlength(each[0]) <= room), sizes[-1])
    pen.text((left, rows[1]), fitted(model, letters, room), INK, letters, anchor="lm")
    clock = f" ({step * subject.seconds:.1f} s)" if subject.seconds else ""
    standing = f"step {step}{clock}, return {subject.returns[step]:.4g}".replace("-", "−")
    pen.text((left, rows[2]), fitted(standing, plain, room), INK, plain, anchor="lm")
    pane.paste(subject.picture(step, layout.picture), (edge, 2 * edge + 3 * line))
    return pane


def make_frame(panes: Sequence[Image.Image], layout: Layout, columns: int | None = None) -> Image.Image:
    """Panes beside and below each other, row by row."""
    columns = columns or columns_of(len(panes))
    frame = Image.new("RGB", layout.frame(len(panes), columns), WHITE)
    gap = 2 * layout.edge
    for i, pane in enumerate(panes):
        row, column = divmod(i, columns)
        frame.paste(pane, (gap + column * (layout.pane[0] + gap), gap + row * (layout.pane[1] + gap)))
    return frame


class Film:
    """The frames of several episodes side by side, until the last of them has ended."""

    def __init__(self, subjects: Sequence[Subject], width: int) -> None:
        self._subjects, self._layout = subjects, Layout(width)
        self._ended: dict[int, Image.Image] = {}
        self.steps = max(subject.steps for subject in subjects)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of a frame."""
        return self._layout.frame(len(self._subjects))

    def frame(self, step: int) -> Image.Image:
        """What is seen after so many steps."""
        return make_frame([self._pane(i, step) for i in range(len(self._subjects))], self._layout)

    def strip(self, moments: int) -> Image.Image:
        """A row for each episode, with so many moments of it from its start to its end."""
        panes = [
            self._pane(i, round(moment * subject.steps / (moments - 1)))
            for i, subject in enumerate(self._subjects)
            for moment in range(moments)
        ]
        return make_frame(panes, self._layout, moments)

    def _pane(self, index: int, step: int) -> Image.Image:
        subject = self._subjects[index]
        if step < subject.steps:
            return make_pane(subject, step, self._layout)
        if index not in self._ended:
            self._ended[index] = make_pane(subject, step, self._layout)
        return self._ended[index]
