"""Errors that a user can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_QUOTED = 80  # characters of a user's text that a sentence repeats
_SENTENCE = 400  # characters of a sentence
_LONG_WORD = re.compile(rf"[^\s/'\"=,:;]{{{_QUOTED + 1},}}")  # of a path, which may be long as a whole, a part


class DeeprokError(Exception):
    """An error of the user's; its message is one sentence that says what and how.

    The command line prints the sentence and exits with code 2. Whatever a message repeats of a
    user's files, it is one line of a sane length.

    Args:
      sentences: one, or several that are joined; each is made one line and shortened by itself.
    """

    def __init__(self, *sentences: str) -> None:
        words = (_LONG_WORD.sub(lambda word: shortened(word[0]), sentence) for sentence in sentences)
        super().__init__(*(shortened(sentence, _SENTENCE) for sentence in words))

    def __str__(self) -> str:
        return "; ".join(self.args)


class DivergedError(DeeprokError):
    """A training broke down: its numbers are no longer finite, which they would not be another time either."""


def joined(errors: Sequence[DeeprokError]) -> DeeprokError:
    """What went wrong at several places, as one error."""
    kind = DivergedError if all(isinstance(error, DivergedError) for error in errors) else DeeprokError
    return kind(*(sentence for error in errors for sentence in error.args))


def shortened(text: str, limit: int = _QUOTED) -> str:
    """A text on one line, without control characters, of at most so many characters: the middle is left out."""
    line = " ".join(text.split())
    if len(line) > limit:
        end = limit // 3
        line = f"{line[: limit - end - 1]}…{line[-end:]}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def shown(value: object) -> str:
    """A value as a sentence quotes it: text in quotation marks, and no more of it than a reader needs."""
    if isinstance(value, str):
        return f"'{shortened(value)}'"
    try:
        return shortened(str(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, brackets in brackets without end
        return f"a {type(value).__name__} that can't be printed"


def extra_missing(need: str, extra: str) -> DeeprokError:
    """The error for an optional dependency that is not installed.

    Args:
      need: what needs it, with its verb, such as "data frames need".
      extra: its name in `pyproject.toml`.
    """
    return DeeprokError(f"{need} the extra {extra}; in a clone: pip install -c constraints.txt '.[{extra}]'")


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> DeeprokError:
    """The error for a name that is not in a list of names, with the nearest match.

    Args:
      kind: what is named.
      name: the name given.
      known: the names there are.
      more: what else is allowed.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:_QUOTED], names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    also = f"; {more}" if more else ""
    return DeeprokError(f"unknown {kind} {shown(name)}: {hint}known are {', '.join(names)}{also}")
