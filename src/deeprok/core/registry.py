"""Parts by name: those that come with the package, and users' own, named `module:object`.

A user's module is imported from the current folder or from wherever Python finds modules, in every process that
needs it: a worker, a resumed run, an evaluation.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from deeprok.core.errors import DeeprokError, shown, unknown

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A table of parts of one kind.

    Args:
      kind: what its entries are, for messages: "environment".
      entries: name -> the part, or "module:object" to import it from when it is asked for.
      accept: turns an object that a user named into a part; raises a `DeeprokError` if it can't.
      find: the part of a name that is not in the table, or None: names that another package has.
      more: how these are named, for messages.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T | str],
        accept: Callable[[Any], T],
        find: Callable[[str], T | None] = lambda name: None,
        more: str = "",
    ) -> None:
        self.kind = kind
        self._entries: dict[str, T | str] = dict(entries)
        self._accept = accept
        self._others, self._more = find, more
        self._accepted: dict[str, tuple[Any, T]] = {}  # users' objects and their parts: the same part every time

    def __getitem__(self, name: object) -> T:
        return self.find(name, self.kind)

    def find(self, name: object, field: str) -> T:
        """The part of that name.

        Args:
          name: a name of the table, or `module:object`.
          field: the setting that holds it, for messages.
        """
        if not isinstance(name, str):
            raise DeeprokError(f"{field} is {shown(name)}; it must be a name, or module:object")
        if name in self._entries:
            entry = self._entries[name]
            if isinstance(entry, str):
                module, _, attribute = entry.partition(":")
                entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
            return entry
        if ":" not in name:
            try:
                other = self._others(name)
            except DeeprokError as error:
                raise DeeprokError(f"{field} is {shown(name)}, but {error}") from error
            if other is not None:
                return other
            own = "your own is named module:object"
            raise unknown(field, name, self._entries, more=f"{self._more}, {own}" if self._more else own)
        try:
            found = _find(name)
            if name not in self._accepted or self._accepted[name][0] is not found:
                self._accepted[name] = found, self._accept(found)
            return self._accepted[name][1]
        except DeeprokError as error:
            raise DeeprokError(f"{field} is {shown(name)}, but {error}") from error

    def __contains__(self, name: object) -> bool:
        """Whether it is an entry's name, or may be a user's."""
        return isinstance(name, str) and (name in self._entries or ":" in name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def expect(kind: type[T], what: str) -> Callable[[Any], T]:
    """An `accept` that takes instances of one class."""

    def accept(found: Any) -> T:
        if not isinstance(found, kind):
            raise DeeprokError(f"that object is of type {type(found).__name__}; it must be {what}")
        return found

    return accept


def _find(path: str) -> Any:
    """A user's object at `module:object`."""
    module, _, name = path.partition(":")
    if not all(word.isidentifier() for word in module.split(".")):
        raise DeeprokError(f"{shown(module)} is no name of a module")
    if os.getcwd() not in sys.path:  # the script `deeprok` starts without the current folder
        sys.path.append(os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's module does while it is imported
        if isinstance(error, SystemExit):
            problem = (
                f"the module {shown(module)} ends the process while it is imported (SystemExit: {shown(error.code)}), "
                'as sys.exit() and argparse do; put what is for the command line under if __name__ == "__main__"'
            )
        elif isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            problem = f"there is no module {shown(module)} in the current folder or on Python's path"
        else:
            why = str(error) if isinstance(error, DeeprokError) else f"{type(error).__name__}: {error}"
            problem = f"the module {shown(module)} can't be imported: {why}"
        raise DeeprokError(problem) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise DeeprokError(f"the module {shown(module)} has no {shown(name)}")
        found = getattr(found, part)
    return found
