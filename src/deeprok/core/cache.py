"""Compiled programs, kept on disk: a command that ran before starts without compiling again.

This is JAX's persistent compilation cache in the user's cache folder. Nothing is lost when the folder is deleted, also
while it is used. Importing deeprok does not switch it on, as the setting is JAX's, for the whole process: the command
line and its worker processes do, and what a user calls in Python if `DEEPROK_CACHE` is set.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: The environment variable that moves the cache to another folder, or switches it off.
VARIABLE = "DEEPROK_CACHE"
#: The option of every command that does the same.
OPTION = "--cache"
OFF = "off"

_COMPILED = "compiled"
_MOST_BYTES = 2**30
_DAY = 86_400.0

_refused: set[Path] = set()  # folders that a warning was about


def folder() -> Path | None:
    """The cache's folder: the one that `DEEPROK_CACHE` names, or the user's own; None if there is to be none."""
    chosen = os.environ.get(VARIABLE)
    try:
        if chosen is None:
            return _user_folder() / "deeprok"
        return None if chosen in ("", OFF) else Path(chosen).expanduser().absolute()
    except RuntimeError:  # nobody knows where this user's home is
        return None


def enable(warn: Callable[[str], Any] = warnings.warn) -> Path | None:
    """Stores what this process compiles, and loads what was compiled before.

    A cache that JAX already has, such as that of `JAX_COMPILATION_CACHE_DIR`, is left as it is.

    Args:
      warn: called with a sentence if the folder can't be written to; once for each folder.

    Returns:
      The folder of the programs, None if there is none.
    """
    import jax  # here, so that the command line can name the variable without JAX

    if given := jax.config.values["jax_compilation_cache_dir"]:
        return Path(given)
    root = folder()
    if root is None:
        return None
    programs = root / _COMPILED / _kind_of_program()
    try:
        _make(programs)
    except OSError as error:
        if programs not in _refused:
            _refused.add(programs)
            warn(
                f"compiled programs can't be stored in {programs} ({error.strerror}), so each start compiles anew;"
                f" {VARIABLE} names another folder, or '{OFF}'"
            )
        return None
    _evict(root / _COMPILED)
    _drop_damaged(programs)
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a command has dozens of small programs
    return programs


def enable_if_asked() -> None:
    """The same for a library that others import: only if the user has set `DEEPROK_CACHE`."""
    if os.environ.get(VARIABLE):
        enable()


@contextlib.contextmanager
def shared() -> Iterator[dict[str, str]]:
    """The environment in which worker processes that call `enable` share what they compile.

    They share the cache, or if there is none a temporary folder, which goes with the context.
    """
    root = folder()
    try:
        if root and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            _make(root / _COMPILED)
    except OSError:
        root = None
    with contextlib.nullcontext(root) if root else tempfile.TemporaryDirectory(prefix="deeprok-") as chosen:
        yield {**os.environ, VARIABLE: str(chosen)}


def _make(path: Path) -> None:
    """Makes a folder if it is not there; raises an `OSError` if it can't be written to."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)  # for this user alone: what is loaded from there is run
    with tempfile.TemporaryFile(dir=path):
        pass


def _user_folder() -> Path:
    """Where programs of this user keep what can be made again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"


def _kind_of_program() -> str:
    """A folder name: programs in folders of different names can differ although JAX's own key for them is the same.

    That key holds the program itself and `XLA_FLAGS`. It leaves out the number of cores, by which XLA splits loops, and
    was not always exact about the processor, whose instructions a home shared by several machines must not mix.
    """
    from importlib.metadata import version

    import jax
    from jaxlib.version import __version__ as jaxlib_version

    versions = f"deeprok-{version('deeprok')}-jax-{jax.__version__}-jaxlib-{jaxlib_version}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    depends = [_processor(), str(cores), *(os.environ.get(name, "") for name in ("PJRT_NPROC", "NPROC"))]
    digest = hashlib.sha256("\n".join(depends).encode()).hexdigest()[:12]
    return f"{versions}-{platform.machine()}-{digest}"


def _processor() -> str:
    """The first core's model and instructions."""
    told = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            first = itertools.takewhile(str.strip, lines)
            return "".join(line for line in first if line.partition(":")[0].strip() in told)
    except OSError:
        return platform.processor()


def _evict(compiled: Path) -> None:
    """Removes what was not used for longest, so that a gigabyte is left; looks once a day.

    JAX can do it too (`jax_compilation_cache_max_size`), but needs another package for it, locks the folder for every
    program it loads, and stores nothing more after it was killed at a bad moment.
    """
    looked = compiled / ".last-eviction"
    with contextlib.suppress(OSError):  # another process may remove the same
        if looked.exists() and time.time() - looked.stat().st_mtime < _DAY:
            return
        looked.touch()
        entries = [(path, path.stat()) for path in compiled.glob("*/*-cache")]
        entries.sort(key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime), reverse=True)
        sizes = itertools.accumulate(status.st_size for _, status in entries)
        for (path, _), size in zip(entries, sizes, strict=True):
            if size > _MOST_BYTES:
                path.unlink(missing_ok=True)


def _drop_damaged(programs: Path) -> None:
    """Has programs that can't be loaded removed: JAX would compile them each time, warn, and not write them again.

    A process that was killed leaves such a file, and so does a full disk. JAX's warnings are not shown.
    """
    show = warnings.showwarning

    def show_other(message: Warning | str, *details: Any, **more: Any) -> None:
        found = re.match(r"Error \w+ persistent compilation cache entry for '([\w.<>-]+)'", str(message))
        if found is None:
            show(message, *details, **more)
            return
        with contextlib.suppress(OSError):
            _make(programs)  # someone may have deleted it
            for path in programs.glob(f"{found[1]}-*-cache"):
                path.unlink(missing_ok=True)

    warnings.showwarning = show_other
