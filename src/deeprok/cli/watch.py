"""`deeprok watch`: the page of `deeprok report`, served while runs train."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deeprok.cli import streams
from deeprok.cli.options import option_names, parse_options
from deeprok.report.watch import Watch as Server
from deeprok.runs.folder import Keep


@dataclass(frozen=True)
class Watch:
    """Show runs in a browser while they train: the page of 'deeprok report', with newer data every few seconds.

    It reads and writes nothing, and answers this machine alone unless --host is given. Ctrl-C ends it.

    deeprok watch runs
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run folder, a folder of seeds, or a folder of those."""
    host: str = "127.0.0.1"
    """Address to listen on. Whoever reaches another than the default sees the runs."""
    port: Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: one that is free)")] = 0
    """Port to listen on."""
    keep: Keep = "best"
    """The weights that did best on held-out models while training, or the last ones."""


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    options = parse_options(Watch, words, "watch")
    server = Server(options.folder, options.host, options.port, options.keep)
    streams.out.print(
        f"watching {options.folder}: open {server.address} (Ctrl-C ends it)",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    # A shell that starts a command in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server.serve()


def options() -> set[str]:
    """The names of its options."""
    return option_names(Watch)
