"""The command line: finds the command, and turns user errors into one sentence."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, unknown

#: Each is a module beside this one, with `run`, which may return an exit code, and `options`; it is imported when it is
#: asked for.
COMMANDS = {
    "check-env": "try an environment of your own, and say what is wrong with it",
    "screen": "tell before training whether robustness can pay",
    "identify": "find the parameters of a real system from a log of it",
    "train": "train an agent, or resume a run",
    "sweep": "train many trials of settings, algorithms and environments",
    "tune": "find settings that suit an algorithm on an environment",
    "evaluate": "map where a trained policy works",
    "compare": "say which of several trained agents is better; sum up sweeps",
    "tensorboard": "write event files for TensorBoard from the metrics of runs",
    "stress": "find where trained policies break, and how far that is",
    "render": "film policies side by side, as GIF or video",
    "report": "one page on which anyone can see where policies break",
    "watch": "the same page, in a browser, while runs train",
    "plot": "draw where policies work, and how they learned",
    "calibrate": "check the posterior's intervals for Q",
    "export": "write a policy as JSON, ONNX or C",
    "reproduce": "the paper's experiment, with table and figures",
    "solve": "solve a robust MDP exactly",
    "problems": "list the problems that solve knows, and their parameters",
    "algorithms": "list the algorithms",
    "environments": "list the environments, their parameters and boxes",
}


def _help() -> None:
    from rich.table import Table

    from deeprok.cli import streams

    streams.out.print(
        "[bold]deeprok[/bold]: reinforcement learning that keeps working when the real system differs from the"
        " simulator\n"
    )
    streams.out.print("usage: deeprok COMMAND [OPTIONS]   ('deeprok COMMAND --help' tells more)\n", highlight=False)
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, summary in COMMANDS.items():
        table.add_row(f"[bold]{name}[/bold]", summary)
    streams.out.print(table)
    streams.out.print("\nfirst steps:", highlight=False)
    for line in ("deeprok train deep_rok --out runs/rok", "deeprok evaluate runs/rok"):
        streams.out.print(f"  {line}", highlight=False)
    streams.out.print("\nwith every command:", highlight=False)
    streams.out.print(
        f"  {cache.OPTION} DIR|{cache.OFF}   folder for compiled programs, which the next start loads; it may be"
        f" deleted at any time\n                    (default: {cache.VARIABLE}; now: {cache.folder() or cache.OFF})",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _without_cache(words: Sequence[str]) -> tuple[list[str], str | None]:
    """The words without the option of the cache, and that option's value."""
    rest, chosen = [], None
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != cache.OPTION:
            rest.append(word)
        elif (chosen := value if equals else next(remaining, None)) is None:
            raise DeeprokError(f"{cache.OPTION} needs a value: a folder, or {cache.OFF}")
    return rest, chosen


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


def _say(sentence: object) -> None:
    """Says something that is no result."""
    from deeprok.cli import streams

    streams.err.print(f"deeprok: {sentence}", markup=False, highlight=False, soft_wrap=True)


def program() -> int:
    """The command line as a process of its own."""
    # What JAX creates while it is imported and traces is no garbage, and looking through it takes a fifth of a start.
    gc.set_threshold(100_000, 20, 100)
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: one more Ctrl-C must not change the exit code
    gc.freeze()  # or Python looks through all that ends with the process, which takes a fifth of a start as well
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    try:
        words, chosen = _without_cache(sys.argv[1:] if argv is None else argv)
        if chosen is not None:
            os.environ[cache.VARIABLE] = chosen  # for the processes that this one starts, too
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

                command: Any = import_module(f"deeprok.cli.{words[0].replace('-', '_')}")
            if "jax" in sys.modules:  # commands that only list things do without
                cache.enable(_say)
            with mistakes(words[1:], command.options):
                return command.run(words[1:]) or 0
    except DeeprokError as error:
        _say(error)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        return 0
    return 0
