"""Margins: how far from the nominal model success holds, along lines of models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deeprok.evaluation.stress.player import LINES, Player
from deeprok.evaluation.stress.space import Space

#: A line is divided into so many sections, and the one in which success falls again, so often in all.
SECTIONS, ROUNDS = 8, 3


class Margin(NamedTuple):
    """The values of a parameter between which success holds, all others nominal; None where it holds to the end.

    Both are the nominal value where success does not even hold there.
    """

    low: float | None
    high: float | None


class Direction(NamedTuple):
    """The way from the nominal model to the worst one found."""

    fraction: float | None
    """How much of the way success holds; None if it holds all the way."""
    parameters: dict[str, float] | None
    """The model there."""


def margins(
    space: Space, nominal: np.ndarray, worst: np.ndarray, player: Player, threshold: float, blocks: int
) -> tuple[dict[str, Margin], Direction]:
    """How far from the nominal model success is at least the threshold.

    Args:
      space: the models that are searched; margins end where it ends.
      nominal: [D] the nominal model.
      worst: [D] the worst model found.
      player: plays models.
      threshold: the success that counts as working.
      blocks: blocks of episodes on each model.
    """
    if player(space.rounded(nominal[None]), LINES, blocks).success[0] < threshold:
        here = dict(zip(space.names, space.rounded(nominal).tolist(), strict=True))
        return {name: Margin(value, value) for name, value in here.items()}, Direction(0.0, here)
    ends: list[np.ndarray] = []
    lines: dict[tuple[str, str], int] = {}
    for i, each in enumerate(space.dimensions):
        for side, end in (("low", each.low), ("high", each.high)):
            if (end < nominal[i]) if side == "low" else (end > nominal[i]):
                lines[each.name, side] = len(ends)
                ends.append(np.where(np.arange(len(nominal)) == i, end, nominal))
    held = held_fractions(nominal, np.stack([*ends, worst]), space, player, threshold, blocks)

    def reached(line: int, end: np.ndarray) -> np.ndarray | None:
        fraction = held[line]
        return None if fraction is None else space.rounded(nominal + fraction * (end - nominal))

    found = {}
    for i, each in enumerate(space.dimensions):
        places = {
            side: reached(line, ends[line]) if (line := lines.get((each.name, side))) is not None else None
            for side in ("low", "high")
        }
        found[each.name] = Margin(*(None if place is None else float(place[i]) for place in places.values()))
    place = reached(-1, worst)
    model = None if place is None else dict(zip(space.names, place.tolist(), strict=True))
    return found, Direction(held[-1], model)


def held_fractions(
    start: np.ndarray, ends: np.ndarray, space: Space, player: Player, threshold: float, blocks: int
) -> list[float | None]:
    """What part of each line success holds on, from its start to where it first falls; None if it never does.

    Success need not fall steadily, so each line is scanned, and only the section in which it falls is divided further.
    All models are played with the same random numbers.

    Args:
      start: [D] where all lines begin, and success holds.
      ends: [L, D] where they end.
      space: the models that are searched.
      player: plays models.
      threshold: the success that counts as working.
      blocks: blocks of episodes on each model.
    """
    holds, width = np.zeros(len(ends)), 1.0
    open_lines = np.arange(len(ends))
    for turn in range(ROUNDS):
        width /= SECTIONS
        steps = width * np.arange(1, SECTIONS + 1)
        fractions = holds[open_lines, None] + steps  # [L, SECTIONS]
        models = start + fractions[..., None] * (ends[open_lines] - start)[:, None]
        scores = player(space.rounded(models.reshape(-1, len(start))), LINES, blocks)
        falls = scores.success.reshape(fractions.shape) < threshold
        if turn == 0:
            open_lines, falls = open_lines[falls.any(axis=1)], falls[falls.any(axis=1)]
            if not len(open_lines):
                break
        falls[:, -1] = True  # of a section that is divided, the end is where success was seen to have fallen
        holds[open_lines] += width * falls.argmax(axis=1)
    return [float(holds[line]) if line in open_lines else None for line in range(len(ends))]
