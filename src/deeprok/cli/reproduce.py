"""`deeprok reproduce`: the paper's experiment, which is a study beside the package."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from deeprok.cli.options import option_names
from deeprok.core.errors import DeeprokError


def _studies() -> Any:
    if importlib.util.find_spec("studies") is None:
        raise DeeprokError(
            "the studies are no part of the installed package; use a checkout, and 'make reproduce' there"
        )
    return import_module("studies.__main__")


def run(words: Sequence[str]) -> None:
    """Runs the command."""
    _studies().run(words)


def options() -> set[str]:
    """The names of its options."""
    return option_names(_studies().Reproduce)
