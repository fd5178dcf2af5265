"""The command line: finds the command, and turns what users can mend into one sentence."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from deeprok.core.errors import DeeprokError, unknown

#: Each is a module beside this one, with `run` and `options`; it is imported when it is asked for.
COMMANDS = {
    "train": "train an agent, or go on with a run",
    "evaluate": "map where a trained policy works",
    "calibrate": "check the posterior's intervals for Q",
    "export": "write a policy as JSON or ONNX",
    "reproduce": "the paper's experiment, with table and figures",
    "solve": "solve a robust MDP exactly",
    "problems": "list the problems that solve knows, and their parameters",
    "algorithms": "list the algorithms",
    "worlds": "list the worlds, their parameters and boxes",
}


def _help() -> None:
    from rich.table import Table

    from deeprok.cli import streams

    streams.out.print(
        "[bold]deeprok[/bold]: reinforcement learning that keeps working when the world differs from the model\n"
    )
    streams.out.print("usage: deeprok COMMAND [OPTIONS]   ('deeprok COMMAND --help' tells more)\n", highlight=False)
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, summary in COMMANDS.items():
        table.add_row(f"[bold]{name}[/bold]", summary)
    streams.out.print(table)
    streams.out.print("\nfirst steps:", highlight=False)
    for line in ("deeprok train deep_rok --out runs/rok", "deeprok evaluate runs/rok"):
        streams.out.print(f"  {line}", highlight=False)


@contextlib.contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Within it Ctrl-C ends the process: nothing has begun, and an import could swallow an exception."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def program() -> int:
    """The command line as a process of its own."""
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: one more Ctrl-C must not change the exit code
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] in ("-h", "--help"):
            _help()
        elif words[0] == "--version":
            from deeprok import __version__

            print(__version__)
        elif words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS)
        else:
            with _interrupted_at_once():
                from deeprok.cli.options import mistakes

                command: Any = import_module(f"deeprok.cli.{words[0]}")
            with mistakes(words[1:], command.options):
                command.run(words[1:])
    except DeeprokError as error:
        from deeprok.cli import streams

        streams.err.print(f"deeprok: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        return 0
    return 0
