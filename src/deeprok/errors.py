"""Errors that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DeeprokError(Exception):
    """Something the user can mend; its message is one sentence that says what and how.

    The command line prints the sentence and exits with code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> DeeprokError:
    """The error for a name that is not in a list of names, with the nearest match."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return DeeprokError(f"unknown {kind} '{name}': {hint}known are {', '.join(names)}")
