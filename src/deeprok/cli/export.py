"""`deeprok export`: write a policy for use elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.evaluate import note_unfinished
from deeprok.cli.options import RunFolder, check_kept, option_names, parse_options
from deeprok.evaluation.export import FORMATS, export
from deeprok.runs.folder import Keep

_FORMAT = tyro.conf.arg(metavar=f"{{{','.join(FORMATS)}}}", help_behavior_hint="(default: what FILE ends with)")


@dataclass(frozen=True)
class Export:
    """Write a trained policy for use elsewhere, checked to act as the agent does on 10,000 states.

    JSON has the layers and weights, for a few lines of any language. ONNX is for its runtimes; it needs the extra: in
    a clone, pip install -c constraints.txt '.[onnx]'. A C header is for microcontrollers; its functions are named after
    the file, so that policy.h has deeprok_policy_act.

    deeprok export runs/dqn --out policy.json

    deeprok export runs/dqn --out policy.onnx

    deeprok export runs/dqn --out policy.h
    """

    run: RunFolder
    """A run folder; of a folder of seeds the run that did best on held-out models is taken."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """File to write; its folder is made if there is none."""
    format: Annotated[str | None, _FORMAT] = None
    """JSON, ONNX or C; such files end with .json, .onnx and .h."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Export, words, "export")
    check_kept("out", options.out)
    folder = export(options.run, options.out, options.format, options.keep)
    note_unfinished(folder)
    streams.out.print(
        f"{folder} ({options.keep} weights) → {options.out}", highlight=False, markup=False, soft_wrap=True
    )


def options() -> set[str]:
    """The names of its options."""
    return option_names(Export)
