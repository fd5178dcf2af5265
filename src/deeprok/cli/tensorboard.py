"""`deeprok tensorboard`: event files for TensorBoard from the metrics of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.options import option_names, parse_options
from deeprok.tracking.convert import write_events
from deeprok.training.progress import fraction_bar

_DIRS = tyro.conf.arg(metavar="DIR [DIR ...]", help_behavior_hint="(required)")


@dataclass(frozen=True)
class Tensorboard:
    """Write event files for TensorBoard from the metrics.jsonl of runs, sweeps or folders that hold them.

    deeprok tensorboard runs/sweep

    tensorboard --logdir runs/sweep
    """

    dirs: Annotated[tuple[Path, ...], tyro.conf.Positional, _DIRS]
    """Run folders, folders of seeds, or folders of sweeps."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: the run folders)")] = None
    """Another folder to write to, with a folder for each run."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Tensorboard, words, "tensorboard")
    with fraction_bar(streams.err, "writing") as advance:
        found = write_events(options.dirs, options.out, advance)
    where = options.out or options.dirs[0]
    files = "1 event file" if len(found) == 1 else f"{len(found)} event files"
    sentence = f"{files}; look at them with: tensorboard --logdir {where}"
    streams.out.print(sentence, highlight=False, markup=False, soft_wrap=True)


def options() -> set[str]:
    """The names of its options."""
    return option_names(Tensorboard)
