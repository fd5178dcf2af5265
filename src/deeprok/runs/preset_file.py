"""Presets as files: what `deeprok tune` found, and `deeprok train ALGORITHM --preset FILE` takes.

A preset file is a preset that comes with the package, and the settings that differ from it. A run that is made of one
stores all its settings, and does not need the file again.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.fields import held
from deeprok.core.files import read_bytes, write_atomically
from deeprok.runs.parts import setting_types
from deeprok.runs.run_settings import PRESETS

#: Version of the file.
FORMAT = 1

_KEYS = ("format", "algorithm", "env", "base", "settings")
_MOST_BYTES = 1_000_000
_ENDING = ".toml"


class PresetFile(NamedTuple):
    """The contents of a preset file."""

    algorithm: str
    env: str
    base: str  # the preset whose values all other settings have
    settings: dict[str, Any]  # as they were read: lists are lists

    def held(self, origin: str, env: str, network: str) -> dict[str, Any]:
        """The settings as a run holds them; raises unless a run of these parts may have them.

        Args:
          origin: the file, for messages.
          env: the environment, which may be another than the file's.
          network: the network.
        """
        try:
            known = setting_types(self.algorithm, env, network)
            for name in self.settings:
                if name not in known:
                    raise unknown("setting", name, known)
            return {name: held(f"settings.{name}", value, known[name]) for name, value in self.settings.items()}
        except DeeprokError as error:
            raise DeeprokError(f"{origin}: {error}") from error


def is_preset_file(preset: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a preset is given by a file, and not by its name."""
    return isinstance(preset, os.PathLike) or (isinstance(preset, str) and preset.endswith(_ENDING))


def read_preset(path: str | os.PathLike[str]) -> PresetFile:
    """Reads a preset file; raises one sentence about the first mistake, but for the values of settings."""
    data = read_bytes(Path(path))
    if len(data) > _MOST_BYTES:
        raise DeeprokError(f"{path} has more than {_MOST_BYTES:,} bytes, which no preset needs")
    try:
        written = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, too many digits; lists in lists without end
        raise DeeprokError(f"{path} is not TOML: {error}") from error
    for key in written:
        if key not in _KEYS:
            raise DeeprokError(f"{path}: {unknown('key', key, _KEYS, more='settings stand below [settings]')}")
    if written.get("format") != FORMAT:
        raise DeeprokError(
            f"{path} has format {shown(written.get('format'))}; this version of deeprok reads format {FORMAT}"
        )
    for key in ("algorithm", "env"):
        if not isinstance(written.get(key), str):
            raise DeeprokError(f"{path}: {key} is {shown(written.get(key))}; it must be the name of one")
    base, settings = written.get("base", "default"), written.get("settings", {})
    if base not in PRESETS:
        raise DeeprokError(f"{path}: base is {shown(base)}; it must be {', '.join(PRESETS[:-1])} or {PRESETS[-1]}")
    if not isinstance(settings, Mapping):
        raise DeeprokError(f"{path}: settings is {shown(settings)}; it must be a table of settings")
    for name in ("algorithm", "env", "preset", "seed"):
        if name in settings:
            raise DeeprokError(f"{path}: settings.{name} is given; a preset has no {name} among its settings")
    return PresetFile(written["algorithm"], written["env"], base, dict(settings))


def write_preset(path: Path, preset: PresetFile, remarks: tuple[str, ...] = ()) -> None:
    """Writes a preset file, whole or not at all; remarks become comments at its top."""
    # JSON and TOML write text, numbers, true, false and lists of them alike.
    lines = [f"# {' '.join(remark.split())}" for remark in remarks]
    lines += [f"format = {FORMAT}"]
    lines += [f"{key} = {json.dumps(getattr(preset, key))}" for key in ("algorithm", "env", "base")]
    lines += ["", "[settings]", *(f"{name} = {json.dumps(value)}" for name, value in preset.settings.items())]
    write_atomically(path, ("\n".join(lines) + "\n").encode())
