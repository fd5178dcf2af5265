"""The package as users get it: built into an sdist, from that a wheel, installed where there is no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
SMALL = [
    *(
        "--preset",
        "tuned",
        "--hidden",
        "4",
        "--episodes",
        "10",
        "--horizon",
        "30",
        "--models",
        "2",
        "--batch-size",
        "3",
    ),
    *("--warm-up", "10", "--chunk-steps", "100", "--trial-models", "2"),
]


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 2), done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, from an sdist; the backend is called itself, since pip would fetch it from the network."""
    folder = tmp_path_factory.mktemp("built")

    def build(source: Path, target: str) -> Path:
        run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)], source).check_returncode()
        (built,) = folder.glob("*.tar.gz" if target == "sdist" else "*.whl")
        return built

    sdist = build(CHECKOUT, "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return build(source, "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a new environment that has the wheel, and of everything else what is installed here."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    scripts = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "--disable-pip-version-check"]
    run([*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", wheel], folder).check_returncode()
    # A path that a .pth file names is searched last, and the .pth files there, such as a checkout's own, are not read.
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n")
    return scripts


def test_wheel_holds_the_package_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"deeprok"}
    assert "deeprok/py.typed" in names
    package = CHECKOUT / "src" / "deeprok"
    assert {name for name in names if name.endswith(".py")} == {
        path.relative_to(package.parent).as_posix() for path in package.rglob("*.py")
    }


def test_installed_package_is_the_wheels(installed: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util as util, json, deeprok; "
        "print(json.dumps([deeprok.__file__, deeprok.__version__, *map(util.find_spec, ['studies', 'tests'])]))"
    )
    file, version, *others = json.loads(run([installed / "python", "-c", code], tmp_path).stdout)
    assert Path(file).is_relative_to(installed.parent)
    assert f'version = "{version}"' in (CHECKOUT / "pyproject.toml").read_text()
    assert others == [None, None]


def test_installed_command_trains_evaluates_and_solves(installed: Path, tmp_path: Path) -> None:
    def deeprok(*words: str) -> subprocess.CompletedProcess[str]:
        return run([installed / "deeprok", *words], tmp_path)

    assert deeprok("train", "deep_rok", *SMALL, "--out", "run").returncode == 0
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["episodes"] >= 10
    evaluated = deeprok("evaluate", "run", "--grid", "pole_length=0.4:0.6:2", "--episodes", "2", "--json")
    assert len(json.loads(evaluated.stdout)) > 0
    solved = json.loads(deeprok("solve", "river_swim", "--radius", "0.1", "--json").stdout)
    assert solved["error_bound"] <= 1e-8
    refused = deeprok("reproduce")
    assert refused.returncode == 2
    assert "use a checkout" in refused.stderr
