"""What claims are made of: a question, its verdict by a stated rule, and the stored numbers behind it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.statistics import Estimate, difference, fisher
from studies.tables import interval, mean_success, title

Found = Mapping[str, Any]

_ROOT = Path(__file__).parent.parent

YES, NO, OPEN = "yes", "no", "inconclusive"

# Where all seeds are equal an interval has no width, and its ends are as exact as sums of floats are.
_ROUNDING = 1e-9

#: What is to be as good as something else may have this much less success.
LOSS = 0.01
#: Of Fisher's exact test.
LEVEL = 0.05
#: An agent whose mean success is below this has not learned the task.
LEARNED = 0.1

#: What environments are called in sentences.
PLACES = {
    "ferry": "the ferry",
    "market": "the American put",
    "mountain_car": "mountain car",
    "road": "the road",
    "swing_up": "the swing-up",
    "rocket": "the rocket",
    "acrobot": "acrobot",
    "cartpole": "Cart-Pole",
    "hard_cartpole": "the hard Cart-Pole",
}


#: What rows are called in sentences, where their titles do not fit.
_CALLED = {
    "ddqn_dr": "randomised Double-DQN",
    "deep_rok_joint": "joint update",
    "deep_rok_vote": "vote",
    "pg": "plain",
    "robust_pg": "robust",
    "worst with spread": "from the mean on",
    "worst from the start": "worst case from the start",
}


class Source(NamedTuple):
    """Where a claim's numbers come from."""

    command: str
    page: str  # relative to the page of claims


class Claim(NamedTuple):
    """One claim: what was asked, what the numbers say, and how they were measured."""

    question: str
    verdict: str
    numbers: str
    seeds: str
    source: Source


class Stored(NamedTuple):
    """The numbers of the studies that claims rest on, as their JSON files hold them."""

    results: Found
    kalman: Found
    table1: Found
    defaults: Found
    robustness: Found
    calibration: Found
    deep_sea: Found
    critic: Found
    benchmarks: Found


def read(root: Path = _ROOT) -> Stored:
    """Reads all that is stored."""
    names = [name for name in Stored._fields if name != "benchmarks"]
    found = {name: json.loads((root / "docs" / name / f"{name}.json").read_text()) for name in names}
    return Stored(**found, benchmarks=json.loads((root / "benchmarks" / "results.json").read_text()))


# --- the rule ------------------------------------------------------------------------------------------


def verdict(found: Estimate, bar: float = 0.0) -> str:
    """Yes if the whole interval is above the bar, no if it is below, and inconclusive otherwise."""
    if not found.interval:
        return OPEN
    low, high = found.interval
    return YES if low > bar + _ROUNDING else NO if high < bar - _ROUNDING else OPEN


def less(found: Estimate, bar: float = 0.0) -> str:
    """The other way round: yes if the whole interval is below the bar."""
    return {YES: NO, NO: YES, OPEN: OPEN}[verdict(found, bar)]


def apart(first: Found, second: Found) -> str:
    """The same of two numbers of which only the intervals are stored: do these overlap?"""
    return YES if first["ci"][0] > second["ci"][1] else NO if first["ci"][1] < second["ci"][0] else OPEN


def oftener(first: Sequence[bool], second: Sequence[bool]) -> tuple[str, float]:
    """Whether the first agent's seeds succeed more often than the second's, with p of Fisher's exact test."""
    p = fisher(list(map(float, first)), list(map(float, second)), 0.5)
    return (OPEN if p >= LEVEL else YES if np.mean(first) > np.mean(second) else NO), p


def met(reached: bool) -> str:
    """Of an aim that was set beforehand, or of a measurement without seeds."""
    return YES if reached else NO


def over(verdicts: Iterable[str]) -> str:
    """The verdicts of several cases in a phrase."""
    every = list(verdicts)
    if not every:
        return "not measured yet"
    counts = {word: every.count(word) for word in (YES, NO, OPEN)}
    parts = [f"{word} on {count}" for word, count in counts.items() if count]
    parts[0] += f" of {len(every)}"
    return ", ".join(parts)


# --- numbers as text -----------------------------------------------------------------------------------


def signed(text: str) -> str:
    """With a minus sign in place of a hyphen."""
    return text.replace("-", "−")


def percent(share: float, digits: int = 1) -> str:
    """A share in %."""
    return signed(f"{100 * share:.{digits}f} %")


def apart_by(found: Estimate, factor: float = 100.0, digits: int = 1) -> str:
    """A difference with its interval, in percentage points unless there is another factor."""

    def text(number: float) -> str:
        rounded = round(factor * number, digits)
        return signed(f"{rounded:+.{digits}f}") if rounded else f"{0:.{digits}f}"

    return text(found.value) + (f" ({' – '.join(map(text, found.interval))})" if found.interval else "")


def ranged(value: float, ends: Sequence[float]) -> str:
    """A share in % with its interval."""
    return f"{percent(value)} ({interval(ends, 100)})"


def called(name: str) -> str:
    """What a row is called within a sentence."""
    return _CALLED.get(name, title(name))


def places(envs: Sequence[str]) -> str:
    """Environments, as a sentence names them."""
    return listed([PLACES[env] for env in envs])


def listed(words: Sequence[str]) -> str:
    """Several words, with an "and" before the last."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def count_of(found: Sequence[Any]) -> str:
    """How many of these are true."""
    return f"{sum(map(bool, found))} of {len(found)}"


def seeds_of(*samples: Sequence[float]) -> str:
    """How many seeds samples have; once if all have as many."""
    return " and ".join(dict.fromkeys(str(len(sample)) for sample in samples))


def compared(
    question: str, rows: Mapping[str, Found], first: str, second: str, source: Source, bar: float = 0.0, more: str = ""
) -> Claim:
    """Whether one agent has the larger mean success over a grid, failed seeds included."""
    one, other = (rows[name]["per_seed"]["success"] for name in (first, second))
    gap = difference(one, other)
    said = ", ".join(f"{called(name)} {percent(mean_success(rows[name]))}" for name in (first, second))
    numbers = f"{said[0].upper()}{said[1:]}: {apart_by(gap)} points."
    return Claim(question, verdict(gap, bar), f"{numbers} {more}".strip(), seeds_of(one, other), source)


# --- where numbers come from ---------------------------------------------------------------------------

BENCH = Source("make bench", "benchmarks.md")


def paper_source(stored: Stored, anchor: str = "") -> Source:
    """Of the paper's experiment."""
    return Source(f"deeprok reproduce --full --seeds {_most(stored.results['agents'])}", f"results.md{anchor}")


def kalman_source(stored: Stored, anchor: str) -> Source:
    """Of the study of the Kalman agents."""
    seeds = _most(stored.kalman["tables"]["exploration"])
    return Source(f"deeprok reproduce --study kalman --seeds {seeds}", f"kalman.md{anchor}")


def table1_source(stored: Stored, anchor: str) -> Source:
    """Of the study of the paper's Table 1."""
    seeds = _most(stored.table1["tables"]["policies"])
    return Source(f"deeprok reproduce --study table1 --seeds {seeds}", f"table1.md{anchor}")


def _most(rows: Mapping[str, Found]) -> int:
    return max(row["seeds"] for row in rows.values())
