"""The page on regression: its code runs and does what the page says; its script makes a table and a figure."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the names of the page stand for after all its code has run."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "regression.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    for code in blocks:
        exec(code, names)
    return names


@pytest.mark.slow
def test_filter_learns(page: dict[str, Any]) -> None:
    untrained = page["error"](page["estimator"], page["estimator"].init(page["theta"]))
    assert untrained > 0.3
    # Better than a label: the filter has averaged the noise out.
    assert page["errors"]["Kalman"] < 0.8 * page["noise"]


@pytest.mark.slow
def test_filter_beats_adam_by_sample_seen(page: dict[str, Any]) -> None:
    adam = [value for name, value in page["errors"].items() if name.startswith("Adam")]
    assert len(adam) == 4
    assert page["errors"]["Kalman"] < 0.4 * min(adam)
    # The best rate is not at an edge of the grid, so that a finer or wider one would not help it much.
    assert 0 < adam.index(min(adam)) < len(adam) - 1


@pytest.mark.slow
def test_intervals_cover_what_they_should(page: dict[str, Any]) -> None:
    assert 0.91 < float(page["covered"]) < 0.98
    spread = page["prediction"].variance
    assert float(spread.min()) > 0
    assert 0 < float(page["fit"].health.consistency) < 20


@pytest.mark.slow
def test_smaller_structures_learn_too(page: dict[str, Any]) -> None:
    for name in page["structures"]:
        assert page["errors"][name] < 0.25, name
    assert page["errors"]["Kalman"] < page["errors"]["by layer"] < page["errors"]["diagonal"]


def test_script_prints_a_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("regression", DOCS / "examples" / "regression.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    with matplotlib.rc_context({"backend": "agg"}):
        spec.loader.exec_module(script)
        errors, covered = script.learn(script.FILTERS["Kalman, full"], 10, 200, jnp.arange(2))
        assert errors.shape == (2, 4)
        assert np.all(errors[:, -1] < 0.6 * errors[:, 0])
        assert np.all((covered > 0.8) & (covered < 1))
        mean, low, high = script.interval(errors)
        np.testing.assert_allclose(mean**2, errors.prod(axis=0), rtol=1e-5)
        assert np.all((low <= mean) & (mean <= high))
        names = [*script.FILTERS, "Adam"]
        results = {batch: dict.fromkeys(names, (errors, covered)) for batch in (1, 10)}
        script.table(results)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 + 2 * len(names)
        assert f"| {1000 * mean[1]:.1f} (" in lines[2]
        assert len({line.count("|") for line in lines}) == 1
        script.draw(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_page_has_the_scripts_table() -> None:
    text = (DOCS / "regression.md").read_text()
    assert "python docs/examples/regression.py --out docs/regression.png" in text
    assert "(regression.png)" in text
    assert (DOCS / "regression.png").exists()
    rows = re.findall(r"^\| (Kalman|Adam)[^|]*\| (1|10) \| ([\d.]+) .*$", text, re.MULTILINE)
    first: dict[str, list[float]] = {"Kalman": [], "Adam": []}
    for name, _, value in rows:
        first[name].append(float(value))
    assert len(first["Adam"]) == 2
    assert min(first["Kalman"]) < min(first["Adam"])
