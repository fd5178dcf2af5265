"""What a log tells of an environment's parameters, as a record and as a file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.files import parse_json, read_bytes, write_atomically
from deeprok.identification.checks import Check
from deeprok.uncertainty.models import box_text, models_text, values_text

FORMAT, VERSION = "deeprok identified", 1


@dataclass(frozen=True)
class Estimate:
    """A parameter: its most likely value, and the ends of its range."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the noise in each observation."""

    process: tuple[float, ...]
    """What the system itself adds in each step."""
    sensor: tuple[float, ...]
    """What is added to what is seen of it."""


@dataclass(frozen=True)
class Fit:
    """How well the simulator explains the log."""

    episodes: int
    steps: int
    log_likelihood: float
    optima: tuple[dict[str, float], ...]
    """Other parameters that are locally the most likely, and not much less likely than the estimate."""
    checks: tuple[Check, ...]
    """Whether what is not predicted is noise."""


@dataclass(frozen=True)
class Identified:
    """What a log tells of the parameters of an environment.

    Example:
      >>> found = deeprok.identify("cartpole", "log.csv")
      >>> found.parameters["pole_length"].low
      0.571
      >>> config = deeprok.make_config("rtd_dqn", box=found.box, nominal=found.nominal)
    """

    env: str
    parameters: dict[str, Estimate]
    """The ranges hold all true parameters at once with probability `confidence`; where the log does not end one, its
    end is that of the search."""
    confidence: float
    unidentified: tuple[str, ...]
    """Parameters whose ranges the log does not end on both sides."""
    combinations: tuple[str, ...]
    """Sentences about parameters that the log tells together only."""
    noise: Noise
    fit: Fit
    bootstrap: dict[str, tuple[float, float]]
    """Ranges by resampled episodes, to compare with; empty without."""
    models: dict[str, tuple[float, ...]]
    """A sample of plausible models: parameters that the log does not contradict."""
    box: dict[str, tuple[float, float]]
    """The ranges to train for: those of the parameters, ended by the environment's own range where the log does not end
    them. A parameter without either is left out."""
    notes: tuple[str, ...]
    """What else is to be known, a sentence each."""

    @property
    def nominal(self) -> dict[str, float]:
        """The most likely parameters."""
        return {name: each.estimate for name, each in self.parameters.items()}

    @property
    def model_list(self) -> list[dict[str, float]]:
        """The plausible models one by one, as `fixed_models` takes them."""
        return [dict(zip(self.models, values, strict=True)) for values in zip(*self.models.values(), strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that `deeprok identify --json` prints."""
        return asdict(self)

    def to_json(self) -> str:
        """The text of its file."""
        return json.dumps({"format": FORMAT, "version": VERSION, **self.to_dict()}) + "\n"

    def save(self, path: str | Path) -> None:
        """Writes it to a file, which `read_identified` and `deeprok train --box` read."""
        write_atomically(Path(path), self.to_json().encode())


def read_identified(path: str | Path) -> Identified:
    """What `deeprok identify --out` or `Identified.save` has written."""
    path = Path(path)
    content = parse_json(read_bytes(path))
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise DeeprokError(f"{path} is no file of identified parameters; 'deeprok identify --out FILE' writes one")
    if (version := content.pop("version", None)) != VERSION:
        raise DeeprokError(f"{path} has version {shown(version)}; this version of deeprok reads {VERSION}")
    try:
        found: Identified = convert(content, Identified)
    except (ValidationError, UnicodeEncodeError) as error:  # half of a surrogate pair is no text
        raise DeeprokError(f"{path} is damaged: {error}; write it again with deeprok identify") from error
    sizes = {len(values) for values in found.models.values()}
    numbers = [x for values in (*found.box.values(), *found.models.values()) for x in values]
    if set(found.models) != set(found.parameters) or len(sizes) != 1 or not all(map(math.isfinite, numbers)):
        raise DeeprokError(f"{path} is damaged: its models or its box are no numbers; write it again")
    return found


def settings_from(path: str | Path, env: str, what: str) -> dict[str, str]:
    """The settings, as text, of a run that takes its box or its models from identified parameters.

    Args:
      path: a file that `Identified.save` has written.
      env: the run's environment.
      what: `box`; or `models`, by which the plausible models are the set of models, too. Both have the ranges as the
        box, for acting and for trials, and the estimate as the nominal model.
    """
    found = read_identified(path)
    if found.env != env:
        raise DeeprokError(f"{what} is {path}, which is for env {shown(found.env)}, but env is {shown(env)}")
    if not found.box:
        raise DeeprokError(
            f"{what} is {path}, in which no parameter has a range: unidentified are {', '.join(found.unidentified)}; "
            "log more, or give a box as name=low:high"
        )
    settings = {"box": box_text(found.box), "nominal": values_text(found.nominal)}
    if what == "models":
        if not found.model_list:
            raise DeeprokError(f"models is {path}, which has no plausible models; take its box instead")
        settings["fixed_models"] = models_text(found.model_list)
    return settings
