from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from deeprok.environments import cartpole
from deeprok.plot import save
from studies import figures

ENV = cartpole()
LENGTHS = [0.2, 0.5, 0.8, 1.1, 1.4]
GRID = {"pole_length": [0.2, 0.8, 1.4], "cart_mass": [0.1, 2.4, 4.7, 7.0]}
AGENTS = {"ddqn": "Double-DQN", "rtd_dqn": "RTD-DQN", "deep_rok": "Deep-RoK"}
SQUARE = {"dqn": 0.5, "rtd_dqn": 0.7, "ekf_dqn": 0.6, "deep_rok": 0.9}


def bands() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        name: {"lengths": {"mean": rng.uniform(100, 170, 5).tolist(), "deviation": rng.uniform(1, 30, 5).tolist()}}
        for name in AGENTS
    }


def maps() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.uniform(0, 1, (3, 4)).tolist() for name in AGENTS}


def summary(value: float) -> dict[str, Any]:
    curve = {"episodes": [20, 40, 60], "iqm_return": [30.0, 90.0, 200 * value], "low": [20.0] * 3, "high": [190.0] * 3}
    per_seed = {"success": [value - 0.1, value, value + 0.05]}
    return {"curve": curve, "iqm_success": value, "success_ci": [value - 0.05, value + 0.02], "per_seed": per_seed}


def corners() -> dict[str, Any]:
    return {name: summary(value) for name, value in SQUARE.items()}


DRAWN = {
    "returns": lambda: figures.return_curves(bands(), LENGTHS),
    "maps": lambda: figures.success_maps(maps(), GRID),
    "learning": lambda: figures.learning_curves(corners(), 192.0),
    "panels": lambda: figures.learning_panels(corners(), 192.0),
    "square": lambda: figures.square({"one": corners(), "two": corners()}, 0.94),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_same_figure_gives_the_same_files(tmp_path: Path, kind: str) -> None:
    for name in ("one", "two"):
        save(DRAWN[kind](), tmp_path / name / "figure")
        assert len(list((tmp_path / name).iterdir())) == 2
    png, svg = ((tmp_path / "one" / f"figure.{ending}").read_bytes() for ending in ("png", "svg"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(png) > 10_000
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert png == (tmp_path / "two" / "figure.png").read_bytes()
    assert svg == (tmp_path / "two" / "figure.svg").read_bytes()


def test_return_curves() -> None:
    panels = DRAWN["returns"]().axes
    assert [p.get_title() for p in panels] == list(AGENTS.values())
    for panel, row in zip(panels, bands().values(), strict=True):
        band = row["lengths"]
        mean, spread, nominal = panel.get_lines()
        for line, kind in ((mean, "mean"), (spread, "deviation")):
            np.testing.assert_allclose(line.get_xdata(), LENGTHS)
            np.testing.assert_allclose(line.get_ydata(), band[kind])
        assert list(nominal.get_xdata()) == [0.5, 0.5]
        assert "nominal" in [text.get_text() for text in panel.texts]
        assert not panel.collections  # a band would reach beyond the largest return
        assert panel.get_xlabel() == "pole length (m)"
        assert panel.get_ylim()[1] >= 200
    assert "return" in panels[0].get_ylabel()


def test_maps() -> None:
    *panels, scale = DRAWN["maps"]().axes
    assert "success" in scale.get_ylabel()
    for panel, (name, shares) in zip(panels, maps().items(), strict=True):
        assert panel.get_title() == f"{AGENTS[name]}: mean {100 * np.mean(shares):.1f} %"
        image = panel.collections[0]
        assert (image.get_clim()) == (0, 100)
        np.testing.assert_allclose(np.asarray(image.get_array()), np.transpose(shares) * 100)
        (nominal,) = panel.get_lines()
        assert (nominal.get_xdata()[0], nominal.get_ydata()[0]) == (0.5, 1.5)
        assert panel.get_xlabel() == "pole length (m)"
        # The numbers stand where their cells are.
        written = {text.get_position(): text.get_text() for text in panel.texts}
        cells = itertools.product(enumerate(GRID["pole_length"]), enumerate(GRID["cart_mass"]))
        for (i, length), (j, mass) in cells:
            assert written[length, mass] == f"{100 * shares[i][j]:.0f}"
    assert panels[0].get_ylabel() == "cart mass (kg)"


def test_one_agent_and_unknown_names() -> None:
    figure = figures.success_maps({"my own": maps()["ddqn"]}, GRID)
    assert figure.axes[0].get_title().startswith("my own: ")


def test_learning_curves() -> None:
    (panel,) = DRAWN["learning"]().axes
    lines = {line.get_label(): line for line in panel.get_lines()}
    np.testing.assert_allclose(lines["Deep-RoK"].get_ydata(), [30, 90, 180])
    np.testing.assert_allclose(lines["DQN"].get_ydata(), [30, 90, 100])
    heights = sorted(float(line.get_ydata()[0]) for line in panel.get_lines() if len(set(line.get_ydata())) == 1)
    assert heights == pytest.approx([0.95 * 192, 192])
    # Without colour the agents still differ.
    markers = {lines[name].get_marker() for name in ("DQN", "RTD-DQN", "EKF-DQN", "Deep-RoK")}
    assert len(markers) == 4


def test_learning_in_panels() -> None:
    panels = DRAWN["panels"]().axes
    shown = [panel for panel in panels if panel.get_visible()]
    assert [panel.get_title() for panel in shown] == ["DQN", "RTD-DQN", "EKF-DQN", "Deep-RoK"]
    for panel, value in zip(shown, SQUARE.values(), strict=True):
        grey = [line for line in panel.get_lines() if line.get_color() == "lightgrey"]
        assert len(grey) == 3  # the others
        (own,) = [line for line in panel.get_lines() if len(line.get_xdata()) == 3 and line not in grey]
        np.testing.assert_allclose(own.get_ydata(), [30, 90, 200 * value])
        assert len(panel.collections) == 1


def test_the_square_shows_every_seed_and_the_interval() -> None:
    panels = DRAWN["square"]().axes
    assert [panel.get_title() for panel in panels] == ["one", "two"]
    for panel in panels:
        heights = np.concatenate([c.get_offsets()[:, 1] for c in panel.collections if len(c.get_offsets()) == 3])
        expected = [100 * x for value in SQUARE.values() for x in (value - 0.1, value, value + 0.05)]
        np.testing.assert_allclose(np.sort(heights), np.sort(expected))
        means = {c.get_label(): c.lines[0].get_ydata() for c in panel.containers}
        np.testing.assert_allclose(means["nominal target"], [50, 60])
        np.testing.assert_allclose(means["robust target"], [70, 90])
        assert [label.get_text() for label in panel.get_xticklabels()] == ["Adam", "Kalman filter"]
