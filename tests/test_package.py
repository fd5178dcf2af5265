from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import pkgutil
import subprocess
import sys
from importlib import resources

import pytest

import deeprok

FRESH = """
import importlib, json, os, pkgutil, sys
import jax
settings, environment = dict(jax.config.values), dict(os.environ)
import deeprok
for module in pkgutil.walk_packages(deeprok.__path__, "deeprok."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps({
    "settings": [name for name, value in jax.config.values.items() if settings.get(name, "new") != value],
    "count": len(settings),
    "environment": environment == dict(os.environ),
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "backends": len(jax._src.xla_bridge._backends),
}))
"""


@pytest.fixture(scope="module")
def fresh() -> dict:
    done = subprocess.run([sys.executable, "-W", "error", "-c", FRESH], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_import_changes_no_settings(fresh: dict) -> None:
    assert fresh["count"] > 50
    assert fresh["settings"] == []
    assert fresh["environment"]
    assert fresh["backends"] == 0  # nothing is computed by importing


@pytest.mark.parametrize("module", ["matplotlib", "onnx", "gymnasium", "ray", "torch"])
def test_import_is_light(fresh: dict, module: str) -> None:
    assert "deeprok" in fresh["modules"]
    assert module not in fresh["modules"]


def test_version() -> None:
    assert deeprok.__version__ == importlib.metadata.version("deeprok")


def test_typed() -> None:
    assert resources.files("deeprok").joinpath("py.typed").is_file()


def modules() -> list[str]:
    names = [m.name for m in pkgutil.walk_packages(deeprok.__path__, "deeprok.")]
    return ["deeprok", *(name for name in names if not name.endswith("__main__"))]


@pytest.mark.parametrize("name", modules())
def test_public_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    exported = getattr(module, "__all__", [])
    assert [word for word in exported if not hasattr(module, word)] == []
    assert len(exported) == len(set(exported))


def test_exported() -> None:
    assert {"train", "resume", "evaluate", "make_config", "Config", "DeeprokError"} <= set(deeprok.__all__)


@pytest.mark.parametrize("command", [["-m", "deeprok"], ["-m", "deeprok", "--version"]])
def test_runs_as_a_module(command: list[str]) -> None:
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    assert "deeprok" in done.stdout if len(command) == 2 else done.stdout.strip() == deeprok.__version__
