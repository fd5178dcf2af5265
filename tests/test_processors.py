"""What is promised of bits and of rounding, compiled for other processors than this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def _other_instructions() -> list[Any]:
    """Older instruction sets than this processor's own, which all other tests run with."""
    try:
        newest = "avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        newest = True  # not known; the tests then may run twice with the same instructions
    oldest = pytest.param("SSE4_2", marks=pytest.mark.slow)
    return ["AVX2", oldest] if newest else [oldest]


@pytest.mark.parametrize("instructions", _other_instructions())
def test_promises_hold_on_other_processors(instructions: str) -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_cpu_max_isa={instructions}"
    # A cache of its own: what was compiled for this processor must not be taken.
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    # Only the files that have such tests: to collect the others takes longer than these tests do.
    files = [path for path in Path(__file__).parent.glob("test_*.py") if "@pytest.mark.bits" in path.read_text()]
    files.remove(Path(__file__))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "bits", *map(str, files)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-10_000:] + process.stderr[-2000:]
    passed = re.search(r"(\d+) passed", process.stdout)
    assert passed
    assert int(passed[1]) > 10
