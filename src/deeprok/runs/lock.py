"""The lock of a folder that is written to. A process that is dead holds none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from deeprok.core.errors import DeeprokError
from deeprok.runs.names import LOCK

# How long the workers of a process that was killed may take to end.
_ENDING_SECONDS = 10.0


@contextlib.contextmanager
def hold(folders: Sequence[Path]) -> Iterator[list[int]]:
    """Keeps other processes from writing to folders; refuses those that one is writing to.

    A lock is held by this process and by those that inherit its descriptor, and ends with the last of them,
    however they end.

    Args:
      folders: folders that exist.

    Yields:
      The locks' descriptors.
    """
    with contextlib.ExitStack() as held:
        descriptors = []
        for folder in folders:
            try:
                file = held.enter_context(open(folder / LOCK, "a+"))
            except OSError as error:
                raise DeeprokError(f"can't write to {folder}: {error.strerror}") from error
            _lock(file.fileno(), folder)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            descriptors.append(file.fileno())
        yield descriptors


def _lock(descriptor: int, folder: Path) -> None:
    """Takes a lock, or raises with the name of the process that holds it."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            text = (folder / LOCK).read_bytes()
            holder = int(text) if text.isdigit() else None  # it may be about to write who it is
            # Of a process that was killed, workers may still be about to end.
            if (holder and _alive(holder)) or time.monotonic() > deadline:
                who = f"process {holder}" if holder else "another process"
                raise DeeprokError(f"{folder} is in use by {who}; wait until it has ended, or stop it") from None
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True
