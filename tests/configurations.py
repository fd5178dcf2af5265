"""Settings for tests that go through many algorithms."""

from __future__ import annotations

from typing import Any

from deeprok.runs.settings import Config, make_config


def make_readable(algorithm: str, preset: str = "tuned", **changes: Any) -> Config:
    """The settings of an algorithm with those changes that it reads; `double` and the like are for some alone."""
    parts = {name: changes[name] for name in ("env", "network") if name in changes}
    known = make_config(algorithm, preset, **parts).flat()
    return make_config(algorithm, preset, **{name: value for name, value in changes.items() if name in known})
