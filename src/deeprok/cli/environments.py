"""`deeprok environments`: the environments, their parameters and boxes; all, or one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.table import Table

from deeprok.cli import streams
from deeprok.cli.options import option_names, parse_options
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Interval
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.mujoco_tasks import PARTS as MUJOCO_PARTS
from deeprok.environments.ready_made import READY_MADE
from deeprok.environments.registry import usual_environment


@dataclasses.dataclass(frozen=True)
class Environments:
    """List the environments: actions, horizon and parameters with their nominal values, boxes and units."""

    env: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="ENV", help_behavior_hint="(default: all with a box)"),
    ] = None
    """One environment alone: a name of this list, any id of Gymnasium, or your own as module:object."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    name = parse_options(Environments, words, "environments").env
    if name is not None:
        _print(name, usual_environment(name))
        return
    missing: dict[str, list[str]] = {}
    for name, part in (*ENVIRONMENTS.items(), *READY_MADE.items(), *MUJOCO_PARTS.items()):
        try:
            env = part.make(part.settings())
        except DeeprokError as error:  # an extra is not installed
            missing.setdefault(str(error), []).append(name)
            continue
        _print(name, env)
    for why, names in missing.items():
        line = f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} not shown: {why}"
        streams.err.print(line, highlight=False, markup=False, soft_wrap=True)
    streams.out.print("deeprok check-env ENV tries one of them, or your own", highlight=False)


def _print(name: str, env: AnyEnvironment) -> None:
    table = Table(
        "parameter",
        "nominal",
        "box",
        "unit",
        "what it is",
        box=None,
        header_style="bold",
    )
    streams.out.print(f"[italic]{name}[/italic]: {_facts(env)}", highlight=False)
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


def _facts(env: AnyEnvironment) -> str:
    """Its actions, horizon and threshold of a success, in a few words."""
    count = len(env.actions)
    actions = f"{count} actions"
    if isinstance(env.actions, Interval):
        actions = "1 number as action" if count == 1 else f"{count} numbers as action"
    return f"{actions}, {env.horizon} steps, success above {env.success_return:g}"


def options() -> set[str]:
    """The names of its options."""
    return option_names(Environments)
