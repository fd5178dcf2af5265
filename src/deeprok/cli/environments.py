"""`deeprok environments`: the environments, their parameters and boxes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.table import Table

from deeprok.cli import streams
from deeprok.cli.options import no_options
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS
from deeprok.environments.mujoco_tasks import PARTS as MUJOCO_PARTS
from deeprok.environments.ready_made import READY_MADE


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    no_options("environments", words)
    for name, part in (*ENVIRONMENTS.items(), *READY_MADE.items(), *MUJOCO_PARTS.items()):
        try:
            env = part.make(part.settings())
        except DeeprokError as error:  # an extra is not installed
            streams.err.print(f"{name} is not shown: {error}", highlight=False, markup=False, soft_wrap=True)
            continue
        table = Table(
            "parameter",
            "nominal",
            "box",
            "unit",
            "what it is",
            box=None,
            header_style="bold",
            title=name,
            title_justify="left",
        )
        for field in dataclasses.fields(env.nominal):
            box = env.box.get(field.name)
            table.add_row(
                field.name,
                f"{getattr(env.nominal, field.name):g}",
                f"{box[0]:g} – {box[1]:g}" if box else "",
                field.metadata["unit"],
                field.metadata["meaning"],
            )
        streams.out.print(table)
    streams.out.print("deeprok check-env ENV tries one of them, or your own", highlight=False)


def options() -> set[str]:
    """It has none."""
    return set()
