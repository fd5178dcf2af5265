"""`deeprok export`: write a policy for use elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from deeprok.cli import streams
from deeprok.cli.options import PATH, RunFolder, option_names
from deeprok.evaluation.export import Format, export_policy
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep
from deeprok.training.scan import make_program


@dataclass(frozen=True)
class Export:
    """Write a trained policy for use elsewhere, checked to act as the agent does."""

    run: RunFolder
    """A run folder; of a folder of seeds the run that did best on held-out models is taken."""
    out: Annotated[Path, PATH]
    """File to write; its folder is made if there is none."""
    format: Format = "json"
    """A small JSON of layers and weights, or ONNX (needs the extra: pip install 'deeprok[onnx]')."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = tyro.cli(Export, args=words, prog="deeprok export")
    folders = runs.find(options.run)
    config = runs.read_config(folders[0])
    with config.arithmetic():
        program = make_program(config)
        folder = max(folders, key=lambda path: runs.best_trial(path, program))
        theta = program.estimator.mean(runs.load_belief(folder, program, options.keep))
        export_policy(program.network, np.asarray(theta), program.world, options.format, options.out, config.algorithm)
    streams.out.print(
        f"{folder} ({options.keep} weights) → {options.out}", highlight=False, markup=False, soft_wrap=True
    )


def options() -> set[str]:
    """The names of its options."""
    return option_names(Export)
