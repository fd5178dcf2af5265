"""What is found, and what a random episode is, in JAX and in a stateful simulator alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from deeprok.core.errors import DeeprokError, shortened

#: Whether something is as it should be; may be meant so, but is worth knowing; or must be fixed.
Level = Literal["pass", "note", "problem"]

#: The failure of a step whose numbers are not finite.
NOT_FINITE = "a number that is not finite"

#: What the failure of a step begins with that is a sentence of its own.
OWN_WORDS = "an error: "


#: Steps for which actions are held, in one episode after the other.
_HOLDS = (2, 50, 10, 20, 5, 100)

#: Numbers that a sentence lists, at most.
_LISTED = 6

#: How far two observations may be apart by rounding, in units of their scale.
_ROUNDING = 1e-5


class Finding(NamedTuple):
    """One thing that was found.

    Attributes:
      subject: what it is about: `observations`, `box`.
      level: `pass`, `note` or `problem`.
      sentence: what was found, what is expected, and what to do.
    """

    subject: str
    level: Level
    sentence: str


class Taken(NamedTuple):
    """A step of a random episode; the first one is the start, which earns nothing."""

    obs: np.ndarray  # [D]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False  # by the simulator itself
    failure: str = ""  # what failed, if the simulation did; it is the last step then


#: A random episode: its start, then its steps. Of one simulator only one can be read at a time.
Episode = Iterable[Taken]

#: A model: a value for each parameter that is tried.
Values = Mapping[str, float]


class Player(NamedTuple):
    """How an environment is played at random.

    The i-th episodes of all models have the same random numbers and actions. In every other episode actions are held
    for some steps, and numbers are at one of their ends: so more states are reached, such as a bound.

    Attributes:
      episodes: `model -> [2 E]`, episodes on that model.
      branches: `models -> [2 E]`, episodes on the nominal model; each step is the outcomes of its action under each of
        the models. None if the environment can't answer for another model in the same state.
      used: name -> whether `reset` or `step` reads the parameter; empty where that can't be known.
    """

    episodes: Callable[[Values], Iterable[Episode]]
    branches: Callable[[Sequence[Values]], Iterable[Iterable[tuple[Taken, ...]]]] | None
    used: Mapping[str, bool] = {}


class Played(NamedTuple):
    """What 2 E random episodes on one model came to."""

    returns: np.ndarray  # [E] of the episodes in which no action is held
    steps: np.ndarray  # [2 E] int
    terminated: np.ndarray  # [2 E] bool
    truncated: np.ndarray  # [2 E] bool
    failures: list[tuple[int, str]]  # of each episode that failed: in which step, and what
    low: np.ndarray  # [D] least of each observation
    high: np.ndarray  # [D]
    best: float  # the largest reward of a step


class Difference(NamedTuple):
    """In what episodes differ from those on the nominal model."""

    start: bool  # in the first observation
    kinds: frozenset[str]  # of observations, rewards, termination: in which of these a step does
    steps: int  # how many were compared


def held(number: int) -> int:
    """For how many steps an action is held in the episode of that number: 1 in every other one."""
    return _HOLDS[number // 2 % len(_HOLDS)] if number % 2 else 1


def failure(obs: np.ndarray, reward: float) -> str:
    """What is wrong with the numbers of a step; empty if nothing is."""
    return "" if np.isfinite(obs).all() and np.isfinite(reward) else NOT_FINITE


def summed_up(episodes: Iterable[Episode]) -> Played:
    """What episodes came to; steps that failed count for nothing else."""
    returns, steps, terminated, truncated = list[float](), list[int](), list[bool](), list[bool]()
    failures, lows, highs, best = list[tuple[int, str]](), list[np.ndarray](), list[np.ndarray](), -np.inf
    for episode in episodes:
        earned, count, last = 0.0, -1, Taken(np.zeros(0))
        sound = list[np.ndarray]()
        for last in episode:
            count += 1
            if last.failure:
                failures.append((count, last.failure))
                break
            earned += last.reward
            best = max(best, last.reward) if count else best
            sound.append(last.obs)
        if sound:
            lows.append(np.min(sound, axis=0))
            highs.append(np.max(sound, axis=0))
        returns.append(earned)
        steps.append(count)
        terminated.append(last.terminated and not last.failure)
        truncated.append(last.truncated)
    empty = np.zeros(0)
    return Played(
        returns=np.array(returns[::2]),
        steps=np.array(steps),
        terminated=np.array(terminated),
        truncated=np.array(truncated),
        failures=failures,
        low=np.min(lows, axis=0) if lows else empty,
        high=np.max(highs, axis=0) if highs else empty,
        best=best,
    )


def difference(pairs: Iterable[Iterable[tuple[Taken, ...]]], most: int) -> Difference:
    """In what episodes differ from the same ones on the nominal model.

    It stops at the first observation of a step that differs, after which all else may.

    Args:
      pairs: episodes, of which each step is that on the nominal model, and those on others.
      most: steps to compare.
    """
    start, kinds, steps = False, set[str](), 0
    for episode in pairs:
        for t, (usual, *others) in enumerate(episode):
            changed = any(other.failure != usual.failure or not same(other.obs, usual.obs) for other in others)
            if t == 0:
                if changed:
                    start = True
                    break  # what follows from another start says nothing of the steps
                continue
            steps += 1
            if changed:
                return Difference(start, frozenset(kinds | {"observations"}), steps)
            kinds |= {"rewards"} if any(other.reward != usual.reward for other in others) else set()
            kinds |= {"termination"} if any(other.terminated != usual.terminated for other in others) else set()
            if steps == most:
                return Difference(start, frozenset(kinds), steps)
    return Difference(start, frozenset(kinds), steps)


def same(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two observations are the same, bit for bit."""
    return np.array_equal(one, two, equal_nan=True)


def words(error: Exception) -> str:
    """An error of a user's code in a sentence; one of ours, which is a sentence that says what to do, as it is."""
    text = str(error).strip()
    if isinstance(error, DeeprokError):
        return f"{OWN_WORDS}{text}"
    return shortened(f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__, 160)


def numbers(values: Sequence[float] | np.ndarray) -> str:
    """Numbers as a sentence lists them; of many the first ones."""
    if len(values) > _LISTED:
        return f"{', '.join(f'{value:.4g}' for value in values[:_LISTED])}, …"
    return listed([f"{value:.4g}" for value in values])


def apart(found: Taken, expected: Taken) -> str:
    """In what two steps differ most: `observation 2 is 0.1 instead of 0.2`."""
    if not same(found.obs, expected.obs):
        differences = np.abs(found.obs - expected.obs)
        place = int(np.argmax(np.where(np.isnan(differences), np.inf, differences)))
        return f"observation {place} is {found.obs[place]:.8g} instead of {expected.obs[place]:.8g}"
    if found.reward != expected.reward:
        return f"the reward is {found.reward:.8g} instead of {expected.reward:.8g}"
    if found.terminated != expected.terminated:
        return f"terminated is {found.terminated} instead of {expected.terminated}"
    return f"{found.failure or 'no failure'} instead of {expected.failure or 'none'}"


def near(found: Taken, expected: Taken, scale: np.ndarray) -> bool:
    """Whether two steps differ by no more than rounding.

    Args:
      found: a step.
      expected: another.
      scale: [D] typical sizes of the observations.
    """
    close = np.abs(found.obs - expected.obs) <= _ROUNDING * np.maximum(scale, np.abs(expected.obs))
    return bool(close.all()) and bool(np.isclose(found.reward, expected.reward)) and found[2] == expected[2]


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def model_text(model: Values) -> str:
    """A model as the command line takes it."""
    return ",".join(f"{name}={value:.4g}" for name, value in model.items())


def counted(count: int, one: str) -> str:
    """How many there are: `1 step`, `2 steps`."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"
