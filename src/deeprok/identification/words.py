"""What a log can't tell, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deeprok.identification.fit import Likelihood
from deeprok.identification.region import Range, Region

#: Ranges by resampled episodes that are so many times as wide are worth a word.
_WIDER = 2.0


def combinations(flat: np.ndarray, names: Sequence[str], positive: Sequence[bool]) -> list[str]:
    """Sentences about parameters that can change together without a trace in the log.

    Args:
      flat: [N, K] directions of x.
      names: of the N parameters.
      positive: which of them have their logarithms in x.
    """
    said = []
    for direction in flat.T:
        powers = direction / direction[np.argmax(np.abs(direction))]
        moving = np.flatnonzero(np.abs(powers) > 0.05).tolist()
        if len(moving) < 2:
            continue
        listed = " and ".join([", ".join(names[i] for i in moving[:-1]), names[moving[-1]]])
        if len(moving) == 2 and all(positive[i] for i in moving):
            (one, other), (a, b) = (names[i] for i in moving), (powers[i] for i in moving)
            sign = "/" if a * b > 0 else "×"
            largest = max(abs(a), abs(b))
            told = f"{_power(one, abs(b) / largest)} {sign} {_power(other, abs(a) / largest)}"
            said.append(f"the log tells {told}, but not {listed} by themselves")
        else:
            changes = ", ".join(f"{names[i]} by {_change(powers[i], positive[i])}" for i in moving)
            said.append(f"the log does not tell {listed} by themselves: it stays as likely if one changes {changes}")
    return said


def _power(base: str, exponent: float) -> str:
    rounded = round(float(exponent), 2)
    return base if rounded == 1 else f"{base}^{rounded:g}"


def _change(power: float, positive: bool) -> str:
    return f"the factor {_power('s', power)}" if positive else f"{power:.2g} s"


def own_ends(ends: tuple[float, float], positive: bool) -> tuple[float, float]:
    """A range of the environment's box, as x has it."""
    return (float(np.log(ends[0])), float(np.log(ends[1]))) if positive else (float(ends[0]), float(ends[1]))


def overlap(one: Range, own: tuple[float, float]) -> bool:
    """Whether a log's range has something of the environment's own."""
    return max(one.low, own[0]) < min(one.high, own[1])


def notes(
    own: Mapping[str, tuple[float, float]], likelihood: Likelihood, region: Region, half: np.ndarray
) -> list[str]:
    """What a user should know of the ranges.

    Args:
      own: the environment's box.
      likelihood: the log and the unknowns.
      region: the ranges.
      half: [N] half the width of those by resampled episodes; 0 without.
    """
    said = []
    at_end = likelihood.bounds.at(region.best.x)
    for i, (name, one) in enumerate(zip(likelihood.unknowns.dynamics.names, region.ranges, strict=True)):
        if at_end[i]:
            said.append(f"the estimate of {name} is an end of what was searched")
        if not one.closed:
            kept = "the environment's own does, in the box"
            if name not in own:
                kept = "it is left out of the box"
            elif not overlap(one, own_ends(own[name], likelihood.unknowns.positive[i])):
                kept = (
                    "what is in the box lies outside the environment's own, so do not train for it before you know why"
                )
            said.append(f"the log does not end the range of {name}: {kept}")
        elif (times := 2 * half[i] / (one.high - one.low)) > _WIDER:
            said.append(
                f"resampled episodes give {name} a range {times:.1f} times as wide: it may differ between episodes, or "
                "the noise is not as assumed"
            )
    return said
