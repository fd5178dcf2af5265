"""`deeprok render`: film trained policies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.evaluate import note_unfinished
from deeprok.cli.options import option_names, parse_options
from deeprok.core.errors import DeeprokError
from deeprok.evaluation.render.render import render
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.training.progress import fraction_bar

_RUNS = tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
_AT = tyro.conf.arg(metavar="MODEL", help_behavior_hint="(default: the first run's nominal model)")
_OUT = tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: render.gif in the first run's folder)")
_STEPS = tyro.conf.arg(metavar="N", help_behavior_hint="(default: the environment's horizon)")
_FPS = tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(default: real time if a step has seconds, else 30)")
_SIZE = tyro.conf.arg(metavar="N", help_behavior_hint="(default: 400 for GIF, 480 for MP4, 300 for PNG)")


@dataclass(frozen=True)
class Render:
    """Film trained policies side by side, on the same model, from the same start and with the same random numbers.

    deeprok render runs/rok

    deeprok render runs/ddqn runs/rok --at pole_length=1.4,cart_mass=0.1 --out both.gif
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, _RUNS]
    """Run folders; of a folder of seeds, the seed that did best on held-out models acts."""
    at: Annotated[str, _AT] = ""
    """The model, as name=value,…: parameters of the environment, sensor_noise and action_delay."""
    out: Annotated[Path | None, _OUT] = None
    """GIF or MP4 film, or PNG with a few moments of each episode."""
    seed: int = 0
    """Decides the start and all other random numbers."""
    steps: Annotated[int | None, _STEPS] = None
    """Steps after which episodes are cut off."""
    epsilon: float = 0.0
    """Probability of a random action."""
    fps: Annotated[float | None, _FPS] = None
    """Steps in a second of the film."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""
    size: Annotated[int | None, _SIZE] = None
    """Width of a pane in pixels."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Render, words, "render")
    if not options.runs:
        raise DeeprokError("RUN must be given; 'deeprok render --help' tells more")
    for folder in options.runs:
        runs.find(folder)
    out = options.out or options.runs[0] / "render.gif"
    with fraction_bar(streams.err, "rendering") as advance:
        found = render(
            options.runs,
            options.at,
            out=out,
            seed=options.seed,
            steps=options.steps,
            epsilon=options.epsilon,
            fps=options.fps,
            keep=options.keep,
            size=options.size,
            advance=advance,
        )
    for folder in options.runs:
        note_unfinished(folder)
    for each in found:
        steps = f"{each.steps} step{'' if each.steps == 1 else 's'}"
        _say(f"{each.name}: {each.ending} after {steps}, return {each.total:.4g}")
    _say(f"{'pictures' if out.suffix == '.png' else 'film'}: {out}")


def _say(line: str) -> None:
    streams.out.print(line, highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Render)
