from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from deeprok.evaluation import Evaluation, GridReturns, summarise
from deeprok.report import figures
from deeprok.worlds import cartpole

WORLD = cartpole()
LENGTHS = {"pole_length": np.linspace(0.2, 1.4, 5)}
GRID = {"pole_length": np.linspace(0.2, 1.4, 3), "cart_mass": np.linspace(0.1, 7.0, 4)}
AGENTS = {"ddqn": "Double-DQN", "rtd_dqn": "RTD-DQN", "deep_rok": "Deep-RoK"}


def evaluations(axes: dict[str, np.ndarray]) -> dict[str, Evaluation]:
    rng = np.random.default_rng(0)
    cells = np.prod([len(values) for values in axes.values()])

    def returns() -> GridReturns:
        return GridReturns(rng.integers(150, 230, (cells, 10)).clip(0, 200).astype(float), np.full(10, 200.0))

    return {name: summarise(name, WORLD, axes, {0: returns(), 1: returns()}, 0.1, "mean", 1, "last") for name in AGENTS}


def draw(kind: str) -> Any:
    if kind == "curves":
        return figures.return_curves(evaluations(LENGTHS), WORLD)
    return figures.success_maps(evaluations(GRID), WORLD)


@pytest.mark.parametrize("kind", ["curves", "maps"])
def test_files(tmp_path: Path, kind: str) -> None:
    figures.save(draw(kind), tmp_path / "new" / "figure")
    png, svg = ((tmp_path / "new" / f"figure.{ending}").read_bytes() for ending in ("png", "svg"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(png) > 10_000
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert len(list((tmp_path / "new").iterdir())) == 2


@pytest.mark.parametrize("kind", ["curves", "maps"])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_same_figure_gives_the_same_file(tmp_path: Path, kind: str, ending: str) -> None:
    for name in ("one", "two"):
        figures.save(draw(kind), tmp_path / name)
    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_curves() -> None:
    results = evaluations(LENGTHS)
    panels = figures.return_curves(results, WORLD).axes
    assert [p.get_title() for p in panels] == [f"({c}) {n}" for c, n in zip("abc", AGENTS.values(), strict=True)]
    for panel, result in zip(panels, results.values(), strict=True):
        curve, nominal = panel.get_lines()
        np.testing.assert_allclose(curve.get_xdata(), LENGTHS["pole_length"])
        np.testing.assert_allclose(curve.get_ydata(), result.mean_return)
        assert list(nominal.get_xdata()) == [0.5, 0.5]
        assert "nominal" in [text.get_text() for text in panel.texts]
        band = panel.collections[0].get_paths()[0].vertices
        for x, mean, spread in zip(LENGTHS["pole_length"], result.mean_return, result.std_return, strict=True):
            edges = band[np.isclose(band[:, 0], x), 1]
            assert edges.min() == pytest.approx(mean - spread)
            assert edges.max() == pytest.approx(mean + spread)
        assert panel.get_xlabel() == "pole length (m)"
        assert panel.get_ylim()[1] >= 200
    assert "return" in panels[0].get_ylabel()


def test_maps() -> None:
    results = evaluations(GRID)
    *panels, scale = figures.success_maps(results, WORLD).axes
    assert "success" in scale.get_ylabel()
    for letter, panel, (name, result) in zip("def", panels, results.items(), strict=True):
        assert panel.get_title() == f"({letter}) {AGENTS[name]}: {100 * result.overall.success:.0f} %"
        image = panel.collections[0]
        shown = np.asarray(image.get_array())
        assert (image.get_clim()) == (0, 100)
        np.testing.assert_allclose(shown, np.transpose(result.success) * 100)
        (nominal,) = panel.get_lines()
        assert (nominal.get_xdata()[0], nominal.get_ydata()[0]) == (0.5, 1.5)
        assert panel.get_xlabel() == "pole length (m)"
        # The numbers stand where their cells are.
        written = {text.get_position(): text.get_text() for text in panel.texts}
        cells = itertools.product(enumerate(GRID["pole_length"]), enumerate(GRID["cart_mass"]))
        for (i, length), (j, mass) in cells:
            assert written[length, mass] == f"{100 * result.success[i][j]:.0f}"
    assert panels[0].get_ylabel() == "cart mass (kg)"


def test_one_agent_and_unknown_names() -> None:
    result = next(iter(evaluations(GRID).values()))
    figure = figures.success_maps({"my own": result}, WORLD, first_letter="a")
    assert figure.axes[0].get_title().startswith("(a) my own: ")
