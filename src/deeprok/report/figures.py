"""Figures of the paper: return against pole length, and success over the grid.

Matplotlib is imported when a figure is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.evaluation import Evaluation
from deeprok.worlds import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _RED = "#0072B2", "#D55E00"

NAMES: dict[str, str] = {
    "dqn": "DQN",
    "ddqn": "Double-DQN",
    "ddqn_dr": "Double-DQN, domain randomisation",
    "rtd_dqn": "RTD-DQN",
    "ekf_dqn": "EKF-DQN",
    "deep_rok": "Deep-RoK",
}


def return_curves(results: Mapping[str, Evaluation], world: World) -> Figure:
    """Return against one parameter: mean over all episodes and one standard deviation, a panel an agent.

    Args:
      results: algorithm -> an evaluation that varies one parameter.
      world: the world, for the nominal value.
    """
    figure, panels = _panels(len(results))
    for letter, panel, (name, result) in zip("abcdefgh", panels, results.items(), strict=False):
        (parameter, values), *_ = [(n, v) for n, v in result.grid.items() if len(v) > 1]
        mean = np.asarray(result.mean_return).reshape(-1)
        spread = np.asarray(result.std_return).reshape(-1)
        panel.fill_between(values, mean - spread, mean + spread, color=_BLUE, alpha=0.25, linewidth=0)
        panel.plot(values, mean, color=_BLUE, marker="o", markersize=3)
        nominal = float(getattr(world.nominal, parameter))
        panel.axvline(nominal, color=_RED, linestyle="--", linewidth=1)
        panel.annotate("nominal", (nominal, 4), xytext=(3, 0), textcoords="offset points", color=_RED, fontsize=8)
        panel.set_ylim(0, world.horizon * 1.05)
        panel.set_title(f"({letter}) {NAMES.get(name, name)}")
        panel.set_xlabel(_axis_name(world, parameter))
    panels[0].set_ylabel("return: mean ± one s.d.")
    return figure


def success_maps(results: Mapping[str, Evaluation], world: World, first_letter: str = "d") -> Figure:
    """Share of successful episodes over two parameters, one colour scale, a panel an agent.

    Args:
      results: algorithm -> an evaluation that varies two parameters.
      world: the world, for the nominal values.
      first_letter: of the first panel.
    """
    figure, panels = _panels(len(results))
    for i, (panel, (name, result)) in enumerate(zip(panels, results.items(), strict=True)):
        (across, xs), (up, ys) = result.grid.items()
        success = np.asarray(result.success).T * 100
        image = panel.pcolormesh(xs, ys, success, vmin=0, vmax=100, cmap="cividis", shading="nearest")
        for (row, column), value in np.ndenumerate(success):
            ink = "white" if value < 55 else "black"
            panel.text(xs[column], ys[row], f"{value:.0f}", ha="center", va="center", fontsize=6, color=ink)
        nominal = float(getattr(world.nominal, across)), float(getattr(world.nominal, up))
        panel.plot(
            *nominal, marker="s", markersize=9, markerfacecolor="none", markeredgecolor=_RED, markeredgewidth=1.8
        )
        panel.set_title(f"({chr(ord(first_letter) + i)}) {NAMES.get(name, name)}: {100 * result.overall.success:.0f} %")
        panel.set_xlabel(_axis_name(world, across))
        panel.set_xticks(xs, [f"{x:.3g}" for x in xs])
    panels[0].set_yticks(ys, [f"{y:.3g}" for y in ys])
    panels[0].set_ylabel(_axis_name(world, up))
    figure.colorbar(image, ax=panels, label="success in %", pad=0.02)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG and as SVG.

    Args:
      figure: the figure.
      path: without an ending.
    """
    from matplotlib import rc_context

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "deeprok"}):  # and no date: the same figure gives the same file
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _panels(count: int) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * count, 3.2), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def _axis_name(world: World, parameter: str) -> str:
    unit = {f.name: f.metadata["unit"] for f in world.nominal.__dataclass_fields__.values()}[parameter]
    return parameter.replace("_", " ") + (f" ({unit})" if unit else "")
