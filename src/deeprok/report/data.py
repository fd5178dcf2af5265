"""What a page has of runs: typed records, and how they are written into HTML."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from deeprok.evaluation.findings import Finding
from deeprok.runs.folder import Keep


@dataclass(frozen=True)
class Slider:
    """A parameter of an environment, or a disturbance, as a slider has it."""

    name: str
    unit: str
    meaning: str
    nominal: float
    low: float
    """Left end of the slider."""
    high: float
    box: tuple[float, float] | None
    """Where the runs' boxes say that it lies; None if it is none of their parameters."""
    whole: bool
    """Whether it takes whole numbers only."""
    positive: bool


@dataclass(frozen=True)
class Network:
    """The perceptron that acts."""

    sizes: tuple[int, ...]
    activation: str
    input_scale: tuple[float, ...]
    squashed: bool
    """Whether tanh follows the outputs, as of an actor."""
    precision: str
    theta: str
    """The weights, layer by layer the matrix [inputs, outputs] and the bias: base64 of the numbers, little-endian."""


@dataclass(frozen=True)
class Posterior:
    """Draws of the weights from a posterior, and the run's correction of what they say of Q."""

    count: int
    draws: str
    """Their weights one after the other, as `Network.theta`."""
    shift: float
    """The correction: m + shift, and √((factor σ)² + floor²)."""
    factor: float
    floor: float


@dataclass(frozen=True)
class Curve:
    """How one seed learned: numbers at the end of some chunks, or of several joined."""

    seed: int
    steps: list[int]
    episodes: list[int]
    seconds: list[float]
    """Since the start, of training alone."""
    mean_return: list[float | None]
    """Of the episodes that ended since the point before."""
    trial_return: list[float | None]


@dataclass(frozen=True)
class Map:
    """An evaluation on a grid, of all seeds together. Arrays have an axis for each parameter of the grid."""

    grid: dict[str, list[float]]
    success: Any
    low: Any
    """Of Wilson's 95 % intervals over all episodes."""
    high: Any
    mean_return: Any
    overall: list[float]
    """Success over the whole grid, of each seed."""
    returns: list[float]
    """Mean return over the whole grid, of each seed."""
    nominal: float
    """Success on the nominal model."""
    overall_interval: tuple[float, float] | None
    """Of the mean success over seeds, Student's 95 %; None with one seed."""
    improvement: float | None
    """Probability that a seed of it succeeds more often than one of the first agent; None of that one."""
    improvement_interval: tuple[float, float] | None
    """95 %, by a bootstrap over seeds; None if either has one seed."""
    episodes: int
    """In each cell, for each seed."""
    epsilon: float
    keep: str
    file: str
    command: str
    """What makes it again."""


@dataclass(frozen=True)
class Reference:
    """What policies earn that were computed for each model of a grid, from `deeprok screen`: the ceiling of maps."""

    env: str
    grid: dict[str, list[float]]
    nominal: dict[str, float]
    """Of the grid's parameters."""
    success: Any
    mean_return: Any
    epsilon: float
    episodes: int
    file: str
    command: str


@dataclass(frozen=True)
class Solved:
    """A robust MDP as `deeprok solve` has solved it, for R radii."""

    file: str
    command: str
    name: str
    set: str
    objective: str
    discount: float
    state: int
    """The one that values are of."""
    states: list[str]
    """Names."""
    actions: list[str]
    radius: list[float | None]
    """[R]; None of a set without a radius."""
    value: list[float]
    """[R] of the robust policy in the worst case."""
    nominal: float | None
    """Of the nominal policy in the nominal model; None of a single radius, as the next two."""
    nominal_value: list[float] | None
    """[R] of the robust policy in the nominal model."""
    unprotected: list[float] | None
    """[R] of the nominal policy in the worst case."""
    nature: list[Any]
    """[R] of each state that the file has, `Moves` of `deeprok.tabular.moves`."""


@dataclass(frozen=True)
class Agent:
    """A trained agent, one seed of which acts."""

    name: str
    folder: str
    algorithm: str
    preset: str
    settings: str
    """Short name of all of them."""
    acting: str
    box: dict[str, tuple[float, float]]
    seed: int
    """Of the run that acts."""
    seeds: list[int]
    keep: Keep
    state: str
    """How far its training is, in words."""
    disturbances: dict[str, Any]
    """What it was trained with, of noise and delay."""
    memory: dict[str, int] | None
    """Its past, as `Past.describe` lays it out."""
    weights: str
    """Short hash of the weights that act, as evaluations have it; empty without any."""
    network: Network | None
    posterior: Posterior | None
    q: bool
    """Whether its outputs are values of actions."""
    unseen: str
    """Why it can't act in the page; empty if it can."""
    curves: list[Curve]
    map: Map | None
    stress: Finding | None
    """What `deeprok stress` found of the weights that act."""
    coverage: Finding | None
    """What `deeprok calibrate` found of its seeds."""


@dataclass(frozen=True)
class Scene:
    """An environment with the agents that were trained in it."""

    env: str
    """The name that the settings have for it."""
    name: str
    sliders: list[Slider]
    actions: list[str] | None
    """Names; None where actions are numbers."""
    interval: dict[str, list[float]] | None
    horizon: int
    success_return: float
    settings: dict[str, Any]
    """Of the environment."""
    observation_scale: list[float]
    """Of one observation, without a past."""
    seconds: float | None
    """How long a step lasts, if the environment says so."""
    reference: Reference | None
    agents: list[Agent]


@dataclass(frozen=True)
class Report:
    """All that a page shows."""

    title: str
    command: str
    version: str
    live: bool
    """Whether the page asks for newer data."""
    scenes: list[Scene]
    solved: list[Solved] = field(default_factory=list)

    def to_json(self) -> str:
        """JSON without NaN, which browsers don't read: null."""
        return as_json(dataclasses.asdict(self))


def as_json(value: Any) -> str:
    """JSON as pages have it: no spaces, no NaN."""
    return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_script(text: str) -> str:
    r"""JSON that may stand in a <script> of HTML: no tag can end it, and no character is a line's end to some reader.

    Example:
      >>> in_script('"</script>"')
      '"\\u003c/script\\u003e"'
    """
    escapes: dict[str, str | int | None] = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
    return text.translate(str.maketrans(escapes))
