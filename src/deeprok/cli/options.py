"""Mistakes in the options of a command, said in one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import tyro

from deeprok.core import cache
from deeprok.core.errors import DeeprokError, shown
from deeprok.runs.names import is_own_file

T = TypeVar("T")

# It is tyro's own affair what it has here; where it has nothing, its longer words are seen.
events: Any = getattr(tyro, "_errors", None)

PATH = tyro.conf.arg(metavar="PATH")
COUNT = tyro.conf.arg(metavar="N")
JOBS = tyro.conf.arg(metavar="N", help_behavior_hint="(default: one for each core)")
ADDRESS = tyro.conf.arg(metavar="ADDRESS", help_behavior_hint="(default: start one here)")
RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]

_MOST_VALUES = 10_000  # of a range

#: What the word for a value in a help text stands for.
_WANTED = {"INT": "a whole number", "N": "a whole number", "ID": "a whole number", "FLOAT": "a number"}


def option_names(*kinds: type) -> set[str]:
    """The options that dataclasses stand for."""
    return {"--" + field.name.replace("_", "-") for kind in kinds for field in dataclasses.fields(kind)}


def parse_options(kind: type[T], words: Sequence[str], command: str, **more: Any) -> T:
    """The options that words stand for, as tyro reads them; `--help` is printed no wider than the terminal.

    Args:
      kind: a dataclass of options.
      words: what follows the command.
      command: its name, without the program's.
      more: further arguments of `tyro.cli`.
    """
    with contextlib.redirect_stdout(_Folded(sys.stdout)):  # type: ignore[type-var]
        return tyro.cli(kind, args=words, prog=f"deeprok {command}", **more)


class _Folded:
    """A stream whose long lines are broken between words: tyro's boxes fit the terminal, what is above them does not.

    The lines that an example of a command goes on with are indented.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._width = stream, shutil.get_terminal_size().columns

    def write(self, text: str) -> None:
        """Writes text, all of whose lines are whole."""
        self._stream.write("\n".join(self._fold(line) for line in text.split("\n")))

    def _fold(self, line: str) -> str:
        if len(line) <= self._width or "\033" in line:  # as colours have
            return line
        indent = "    " if line.startswith(("deeprok ", "usage: ")) else ""
        return textwrap.fill(
            line, self._width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def mistakes(words: Sequence[str], known: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Within it, what tyro refuses is a `DeeprokError`.

    Args:
      words: what follows the command.
      known: gives the command's own options, for those that are misspelt.
    """

    def refuse(event: Any) -> None:
        said = None
        with contextlib.suppress(AttributeError):
            said = _sentence(event, words, known)
        if said:
            raise DeeprokError(said)

    with contextlib.nullcontext() if events is None else events.on_parse_error(refuse):
        yield


def _sentence(event: Any, words: Sequence[str], known: Callable[[], Iterable[str]]) -> str | None:
    more = f"'{event.prog} --help' lists them all"
    if isinstance(event, events.UnrecognizedArgs):
        options = [word.partition("=")[0] for word in event.tokens if word.startswith("--")]
        if not options:
            return f"unexpected word '{event.tokens[0]}'; options begin with --, {more}"
        near = difflib.get_close_matches(options[0], sorted({*known(), cache.OPTION}), n=1, cutoff=0.6)
        return f"unknown option '{options[0]}': " + (f"did you mean '{near[0]}'? {more}" if near else more)
    if isinstance(event, events.MissingArgs):
        names = " and ".join(_name(each.arg) for each in event.missing_arguments)
        return f"{names} must be given; '{event.prog} --help' tells more"
    if isinstance(event, events.InvalidChoice):
        *others, last = event.choices
        return f"{_name(event.argument)} is '{event.value}'; it must be {', '.join(others)} or {last}"
    if isinstance(event, events.BadValue):
        return f"{_name(event.argument)} needs a value; '{event.prog} --help' tells which"
    if isinstance(event, events.InstantiationFailure) and event.argument:
        name = _name(event.argument)
        given = " ".join(_values(name, words))
        wanted = next((_WANTED[kind] for kind in _metavar(event.argument) if kind in _WANTED), None)
        return f"{name} is '{given}'; " + (f"it must be {wanted}" if wanted else event.message)
    return None


def _metavar(argument: Any) -> list[str]:
    """The words for its values, such as INT."""
    return re.findall(r"\w+", str(argument.lowered.metavar))


def _name(argument: Any) -> str:
    return str(argument.lowered.metavar if argument.is_positional() else argument.lowered.name_or_flags[0])


def _values(name: str, words: Sequence[str]) -> Iterator[str]:
    """What the last of an option's uses gives it."""
    places = [i for i, word in enumerate(words) if word.partition("=")[0] == name]
    if places:
        _, equals, value = words[places[-1]].partition("=")
        if equals:
            yield value
        for word in words[places[-1] + 1 :]:
            if word.startswith("--"):
                break
            yield word


def range_of(name: str, text: str | None) -> float | np.ndarray | None:
    """One number, the numbers of LOW:HIGH:COUNT, or None; raises with the option's name if it is neither."""
    if text is None:
        return None
    parts = text.split(":")
    try:
        if len(parts) == 1 and math.isfinite(float(text)):
            return float(text)
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) > 3 or not 2 <= count <= _MOST_VALUES or not -math.inf < low < high < math.inf:
            raise ValueError
    except (ValueError, IndexError):
        raise DeeprokError(
            f"{name} is {shown(text)}; it must be a finite number, or LOW:HIGH:COUNT with LOW below HIGH and a COUNT of"
            f" at least 2 and at most {_MOST_VALUES}"
        ) from None
    return np.linspace(low, high, count)


def check_output(name: str, path: Path | None, *sources: str | Path) -> None:
    """Raises, before anything is computed, if a file can't be written, or is one that is read or that a run keeps."""
    if path is None:
        return
    if not os.path.isdir(path.parent):
        raise DeeprokError(f"{name} is {path}, but there is no folder {path.parent}")
    if os.path.isdir(path):
        raise DeeprokError(f"{name} is {path}, which is a folder")
    if os.path.exists(path) and any(os.path.exists(source) and path.samefile(source) for source in sources):
        raise DeeprokError(f"{name} is {path}, the model itself; give another file")
    check_kept(name, path)


def check_kept(name: str, path: Path) -> None:
    """Raises if a file that is to be written is one that a run keeps."""
    if is_own_file(path):
        raise DeeprokError(f"{name} is {path}, which the run in {path.parent} keeps for itself; give another file")


def no_options(command: str, words: Sequence[str]) -> None:
    """Raises if a command that takes no options was given one."""
    if words and words[0] not in ("-h", "--help"):
        raise DeeprokError(f"{command} takes no options, but '{words[0]}' was given")
